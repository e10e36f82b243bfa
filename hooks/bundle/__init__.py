"""The zipapp that nodes run (content, entry point, bytecode cache), and a job's shell scripts. (pure)

`zipapp` builds it, `entry` is its `__main__`, `shell` assembles the scripts. Imports hooks.runtime; `zipapp`
also `checks.thresholds`.
"""
