"""The cluster by pyslurm in a child process; Slurm's commands do what pyslurm cannot. (I/O)

Entry point: `cluster.NativeCluster`. `child` is the only module that imports pyslurm, and runs on Python 3.9.
Imports `slurm.commands`, `slurm.client` and `slurm.records`.
"""
