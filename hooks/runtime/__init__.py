"""Access to the host: commands with deadlines, /proc, mounts, ownership of files, state between calls. (pure)

Start with `host.Machine` (commands and files under a deadline) and `procfs`. Imports no other room of hooks.
"""
