"""The controller: outside of the job, one reconcile loop serves every run of a user. (pure)

Start with `loop` (all runs) and `reconcile` (one run, one handler for each state); then `assess` (a launch is
over) and `resubmit` (the next attempt). The room imports `context`, `nodes` and the rooms below, never the
agent.
"""
