"""The error of a step on a host. (pure)"""


class HostError(Exception):
    """A step could not be done on this host; one line: what is wrong and how to mend it."""
