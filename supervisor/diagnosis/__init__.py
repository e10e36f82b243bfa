"""The root cause of an end: which fault, which nodes, how sure. (pure)

Start with `rules.diagnose`: facts in, one diagnosis out. `inputs` reads the facts of a finished job from
files and Slurm, `unknown_cause` and `resumable` read more of them, and `launch_monitor` follows a live start
for the supervisor and the agent; everything that judges is pure. May import telemetry and the rooms below it.
"""
