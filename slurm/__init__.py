"""Talks to Slurm: protocol, clients, and a disposable Slurm. Knows no runs, diagnosis or policies. (pure)

Start with `client.cluster.Cluster` (the protocol) and `commands.cluster.CommandCluster`. Imports nothing else
of ftrun.
"""
