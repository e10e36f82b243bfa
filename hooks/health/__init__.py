"""Slurm's Prolog, Epilog and HealthCheckProgram; checks of nodes before, during and after a job. (pure)

Start with `preflight`, `node_monitor` and `slurm_hook`. Of hooks it imports runtime, bundle, checks,
compile_cache and staging.
"""
