"""Drills: fault injection on a real Slurm. A training job is hurt on purpose, ftrun carries it to its end, a verdict follows. (pure)"""
