"""The zipapp that nodes run: its content, entry point and bytecode cache, and the shell scripts of a job.
(pure)

`zipapp` builds it, `entry` is its `__main__`, `shell` assembles the scripts. Imports hooks.runtime; `zipapp`
also `checks.thresholds`.
"""
