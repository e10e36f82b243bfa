"""Access to the host: commands with deadlines, /proc, mounts, ownership of files, forms of reports. (pure)

Imports nothing else of hooks.
"""
