"""`ftrun simulate`: the real policy looks after a run on a virtual cluster. (pure)

Start with `life` (one virtual run) and `compare` (policies side by side); `attended` is ftrun's policy. May
import policy and the rooms below it, never the controller.
"""
