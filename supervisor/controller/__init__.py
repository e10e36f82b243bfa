"""The controller: one reconcile loop for each run, outside of the job. (pure)

Start with `loop` (all runs of a user) and `reconcile` (one run, a handler for each state). Imports nodes and below, never the agent.
"""
