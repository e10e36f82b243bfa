"""The protocol between ftrun and a cluster: its records, its errors, and sbatch's options as data. (pure)

Entry points: `cluster.Cluster` (what every client offers), `cluster.SubmitRequest`, `errors.SlurmError`, `options.split`.
Imports `slurm.records` only; nothing here starts a process.
"""
