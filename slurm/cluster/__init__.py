"""What a Slurm of ftrun's own is made of: its plan, and the texts of its configuration files. (pure)

Start with `plan.Plan`, the cluster on a user's hosts; `conf` writes the texts for it and for the sandbox.
Imports `slurm.client` and `slurm.records`.
"""
