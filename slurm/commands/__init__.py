"""The cluster by Slurm's own commands: sbatch, squeue, scontrol, sinfo, scancel, srun, sacct. (I/O)

Entry points: `cluster.CommandCluster`, `steps.InsideSteps`, `accounting`. `parse` reads what the commands print, `answers` sorts what they refuse.
Imports `slurm.client` and `slurm.records`.
"""
