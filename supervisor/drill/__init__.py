"""Drills: fault injection into a training job on a real Slurm, and a verdict on its recovery. (pure)"""
