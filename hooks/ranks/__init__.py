"""The ranks of a run on one node: killing stale ones, fencing later ones, a parent for each, and their stacks. (pure)

Entry points: `kill_stale`, `fence_daemon`, `rank_wrapper`, `stacks` (`ftrun-hook sweep|guard|rank|stacks`). May import of hooks the runtime, the compile
caches and staging.
"""
