"""A disposable real Slurm on one machine: munged, slurmctld, slurmds; optionally sshd and slurmdbd. (I/O)

Entry points: `lifecycle.up`, `handle.Sandbox`. Imports `slurm.cluster`, `slurm.client` and `slurm.records`, and no other
client of a cluster.
"""
