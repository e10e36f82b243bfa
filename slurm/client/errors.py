"""What Slurm's answers mean, sorted by what a caller may do next. (pure)

    SlurmError
    ├── RefusedForGood      the same request will be refused again: tell the user, stop
    ├── RefusedForNow       nothing happened; the same request may pass later: wait
    ├── OutcomeUnknown      it may or may not have happened: look it up before doing it again
    └── Unreachable         Slurm did not hear us: nothing happened, nothing is known

Only `Unreachable` and `RefusedForNow` are safe to repeat blindly, and only reads are repeated without
asking: an `OutcomeUnknown` submission is looked up by its token first (protocol: never run one run twice).
"""

from __future__ import annotations


class SlurmError(Exception):
    """Slurm, or the connection to it, refused or failed. `message` is one line for a person; `output` is the
    command's stderr, verbatim; `exit_code` is its exit status, if there was one.
    """

    def __init__(self, message: str, *, output: str = "", exit_code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.output = output
        self.exit_code = exit_code


class RefusedForGood(SlurmError):
    """Slurm understood and refused; a retry will be refused again."""


class RefusedForNow(SlurmError):
    """Slurm understood and refused because of a passing condition (limits, controller busy)."""


class OutcomeUnknown(SlurmError):
    """The request may have been carried out although no success was reported (time-out on send/recv)."""


class Unreachable(SlurmError):
    """The request never reached Slurm (no controller, no munge, no configuration)."""
