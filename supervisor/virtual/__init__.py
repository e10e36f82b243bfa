"""A virtual cluster on which the real policy looks after a run: what `ftrun simulate` counts. (pure)"""
