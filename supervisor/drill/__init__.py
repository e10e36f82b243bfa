"""Drills: a real training job on a real Slurm, hurt on purpose, carried to its end by ftrun. (pure)"""
