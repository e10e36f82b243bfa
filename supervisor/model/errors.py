"""Errors of the supervisor, by who can fix them. (pure)

UserError                   the user can fix it: one line, exit status 2 (or the documented one)
SettingError                a setting has an impossible name or value; `nearest` finds a similar known word
UnreadableRun               the journal of a run cannot be believed
SubmitImpossible            this attempt cannot be submitted as the user asked
ftrun.slurm.client.errors   Slurm's answers: refused for good, refused for now, unknown, unreachable
anything else               a bug of ftrun: one line, details in a file, exit status 70
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

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


class UnreadableRun(ValueError):
    """A journal that is damaged, of a newer ftrun, or tells what cannot happen: the run is left alone."""


def unreadable_text(run_id: str, error: UnreadableRun | OSError) -> str:
    """Why a run cannot be read, and what to do."""
    if isinstance(error, OSError):
        return f"{run_id}: its journal cannot be read: {error.filename}: {error.strerror}"
    return f"{run_id}: {error}; the run is left alone: ftrun explain {run_id} says how to go on"


class SubmitImpossible(Exception):
    """This attempt cannot be submitted as the user asked for it. The message is one line."""


class SettingError(Exception):
    """A name or value that cannot be meant. The message is one line and names what would be right."""


def nearest_word(word: str, known: Iterable[str]) -> str:
    """The known word that takes the fewest changes to get to; "" where none is near."""
    best, least = "", max(2, len(word) // 3) + 1
    for candidate in known:
        changes = _distance(word, candidate, least)
        if candidate.startswith(word) and word:
            changes = min(changes, 1)
        elif len(word) > 3 and candidate.startswith(word[:-1]):  # retry, retries
            changes = min(changes, 2)
        if changes < least:
            best, least = candidate, changes
    return best


def _distance(a: str, b: str, limit: int) -> int:
    if abs(len(a) - len(b)) >= limit:
        return limit
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]
