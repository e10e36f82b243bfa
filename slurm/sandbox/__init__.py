"""A disposable real Slurm on one machine: munged, slurmctld, slurmd for each node, sshd and slurmdbd where they are wanted. (I/O)

Entry points: `lifecycle.up`, `handle.Sandbox`. Imports `slurm.client` and `slurm.records`, and no other client of a cluster.
"""
