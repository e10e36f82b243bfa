"""Slurm's Prolog, Epilog and HealthCheckProgram, the check before a job, the monitor beside it, the check after a failure. (pure)

Start with `preflight`, `node_monitor` and `slurm_hook`. Imports checks, bundle, staging and below.
"""
