"""Errors, by whose fault they are. (pure)

UserError            the person at the keyboard can mend it: one line, exit 2 (or the code given)
ftrun.slurm.client.errors   what Slurm's answers mean: refused for good, refused for now, unknown, unreachable
anything else        our own mistake: one line, details in a file, exit 70
"""

from __future__ import annotations

__all__ = ["EXIT_INTERNAL", "EXIT_USAGE", "SubmitImpossible", "UserError"]

EXIT_USAGE = 2
"""Wrong usage, a wrong value, something missing that the user can supply."""

EXIT_INTERNAL = 70
"""Our own mistake (EX_SOFTWARE of sysexits.h)."""


class UserError(Exception):
    """What is wrong and how to mend it, in one line for stderr.

    `exit_code` is the exit status of the command: 2 for wrong usage, or what the command documents.
    """

    def __init__(self, message: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


class SubmitImpossible(Exception):
    """This attempt cannot be submitted as the user asked for it. The message is one line."""
