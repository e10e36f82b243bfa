"""Talks to Slurm. Knows nothing of runs, diagnosis or policies. (pure)"""
