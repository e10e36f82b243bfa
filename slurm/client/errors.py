"""What Slurm's answers mean, sorted by what a caller may do next. (pure)

    SlurmError
    ├── RefusedForGood      the same request will be refused again: tell the user, stop
    ├── RefusedForNow       nothing happened; the same request may pass later: wait
    ├── OutcomeUnknown      it may or may not have happened: look it up before doing it again
    └── Unreachable         Slurm did not hear us: nothing happened, nothing is known

Only `Unreachable` and `RefusedForNow` are safe to repeat blindly, and only reads are repeated without
asking: an `OutcomeUnknown` submission is looked up by its token first (protocol: never run one run twice).

Beside them an `OptionError`: arguments that sbatch itself would refuse. `ftrun sbatch` imports this module at
startup.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


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


class OptionError(Exception):
    """sbatch would refuse these arguments; show its own message."""


class UnknownOption(OptionError):
    """Not in the table: an option of a plugin or of a newer Slurm, or a typo. `name` has no dashes."""

    def __init__(self, name: str) -> None:
        super().__init__(f"unrecognized option '{name}'")
        self.name = name


class Ambiguous(OptionError):
    """An abbreviation that fits several options, of the given version if there is one."""

    def __init__(self, name: str, candidates: Iterable[str]) -> None:
        super().__init__(f"option '--{name}' is ambiguous")
        self.name = name
        self.candidates = tuple(candidates)


class MissingValue(OptionError):
    """One of ftrun's own options is last and lacks its value. `name` is without `--ft-`."""

    def __init__(self, name: str) -> None:
        super().__init__(f"--ft-{name}: a value is wanted")
        self.name = name
