"""The one error of a hook that is not swallowed. (pure)"""

__all__ = ["UsageError"]


class UsageError(Exception):
    """A hook was called wrongly: the message says what is wrong and how to mend it, in one line."""
