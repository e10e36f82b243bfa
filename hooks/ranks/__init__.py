"""Ranks on one node: kill stale ones, fence later ones, a parent for each, and their stacks. (pure)

Entry points: `kill_stale`, `fence_daemon`, `rank_wrapper`, `stacks` (`ftrun-hook sweep|guard|rank|stacks`).
Of hooks it may import runtime, compile_cache and staging.
"""
