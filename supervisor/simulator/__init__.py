"""A virtual cluster on which the real policy looks after a run: what `ftrun simulate` counts. (pure)

Start with `life` and `compare`. Imports policy and below, never the controller.
"""
