"""Access to the host: commands with deadlines, /proc, mounts, ownership of files, state between calls. (pure)

Start with `host.Machine` (commands and files under a deadline) and `procfs`. Imports no other room of hooks.
"""

# Here, since the prolog imports nothing else of this room.


class UsageError(Exception):
    """A hook was called wrongly: the message says in one line what is wrong and how to fix it."""
