"""The run as a value: its states, its journal's records, and the fold that makes a run of them. (pure)

Start with `states` (the table of states and arrows), `run` and `events` (how one record changes a run). Below everything else of the supervisor:
imports slurm.records and slurm.client, hooks.checkpoints for the form of a checkpoint, nothing more.
"""
