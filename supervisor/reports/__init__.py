"""What a run's journal tells people: its facts as tables, where its time went, the figures that follow. (I/O)

Entry points: `view_run.run_facts`, `view_checkpoints.survey`, `time_ledger.ledger_of`, `statistics.statistics_of`.
May import the rooms from the simulator and the context downwards; nothing here writes a file or asks Slurm.
"""
