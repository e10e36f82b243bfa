"""The run as a value: its states, the records of its journal, and the fold that makes a run of them. (pure)

Start with `states` (the tables of states and moves), `run` (the value) and `events` (how one record changes
it). This is the lowest room of the supervisor. It imports slurm.records, slurm.client and
hooks.checkpoints.diverged, nothing more.
"""
