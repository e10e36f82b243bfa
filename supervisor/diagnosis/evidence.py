"""What a log says, weighed: causes apart from consequences, survived lines apart from both. (pure)

How it thinks. Each line is what its signature says it is; where several match one line, the one of the highest priority speaks.
A line after which training went on is no cause, neither is a link that came up again where nothing else failed, and neither is, in a text without a record of its end, one before a good end. Where the record says how the job ended, lines that tell of a
cancel are consequences unless a person cancelled. Of the rest the best by role, priority and order is the cause; another
class at about the same priority is its rival.

Words of the catalog: role `info` is never a fault. Of class `healthy`, role `cause` tells of a good end, and role `either` of a beginning;
a beginning after Slurm's own verdict means that a later submission was appended to the same file.

Faults that a text itself calls none: caught, ignored, only warned of, of a logger, of an attempt before.
How it thinks. A program that warns of something and then ends by another exception did not end by what it warned of. What a
logger cannot format it prints with a traceback, and goes on; so does Python with an exception that it ignored. A program imports its modules first: an import that fails
after Slurm has ended a step is of another attempt, written into the same file.

Links and connections that were lost and came back by themselves.
How it thinks. At boot, and whenever a switch is touched, links go down and up again; the kernel tells of both, as
Lustre does of its servers. Where that is all that a text
tells of, nothing is wrong. Where something else failed as well, the break may be its reason, and stays what it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from ftrun.slurm.records import dataclass
from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.model.types import Evidence, FaultClass, Role

if TYPE_CHECKING:
    from ftrun.supervisor.signatures.catalog import Catalog, Signature

__all__ = ["IMPORTS", "RankedEvidence", "healed", "rank_evidence", "without_caught"]


IMPORTS = frozenset({"python-module-missing", "python-import-name"})
"""Signatures of what fails in the first lines of a program."""

LOGGER = "noise-logging-error"
"""The signature of a logger's own trouble."""

IGNORED = "noise-ignored-exception"
"""The signature of the words with which Python begins an exception that it ignored."""

LOGGER_LINES = 20
"""A traceback of a logger, or of an exception that was ignored, is no longer."""

# A level stands by itself; `NCCL_DEBUG=INFO` in an advice is none.
_WARNED = re.compile(r"^(?:.{0,80}[\s\[(|:\-])?(?:WARN(?:ING)?|INFO|DEBUG)(?:[\s\])|:\-]|$)")
_OF_PROGRAMS = frozenset({"framework", "user"})

Pair = tuple[Evidence, "Signature"]


def without_caught(left: Sequence[Pair], known: Sequence[Pair]) -> list[Pair]:
    """`left` without what a logger printed of its own trouble, and without warnings that something graver follows."""
    loggers = [(line.file, line.line) for line, of in known if of.id == LOGGER]
    ignored = _ignored(left, known)
    faults = [
        (line, of)
        for line, of in left
        if line not in ignored
        and (
            of.layer.value not in _OF_PROGRAMS
            or not any(line.file == file and 0 < line.line - at <= LOGGER_LINES for file, at in loggers)
        )
    ]
    graver = [line.order for line, of in faults if of.role is Role.CAUSE and not _is_warning(line, of)]
    last = max(graver, default=-1)
    return [(line, of) for line, of in faults if not _is_warning(line, of) or line.order > last]


def _ignored(left: Sequence[Pair], known: Sequence[Pair]) -> list[Evidence]:
    """The line with which each ignored exception ends: the first exception below the words, and no other.

    A person's interrupt is one all the same, wherever it hit the program.
    """
    ends = []
    for mark in (line for line, of in known if of.id == IGNORED):
        below = [
            line
            for line, of in left
            if of.layer.value in _OF_PROGRAMS
            and of.role is not Role.CONSEQUENCE
            and of.fault is not FaultClass.CANCELLED
            and line.file == mark.file
            and 0 < line.line - mark.line <= LOGGER_LINES
        ]
        ends += sorted(below, key=lambda line: line.line)[:1]
    return ends


def _is_warning(line: Evidence, signature: Signature) -> bool:
    return signature.layer.value in _OF_PROGRAMS and _WARNED.match(line.text) is not None


_LINK = re.compile(
    r"(?P<device>[\w.-]+)\)?:? (?:Port: \d+ |NIC )?[Ll]ink (?:is |status definitely )?(?P<now>[Dd]own|DOWN|[Uu]p|ACTIVE)\b"
)
_LUSTRE = re.compile(r"\bLustre(?:Error)?: .{0,40}\b(?P<device>[\w.]+-(?:MDT|OST)[0-9a-f]{4}[\w-]*)")
_RESTORED = re.compile(r"Connection restored|Recovery over after")


def healed(left: Sequence[tuple[Evidence, Signature]], known: Sequence[tuple[Evidence, Signature]]) -> bool:
    """Whether all that is `left` of the faults are links and servers of which a later line of the same file says that they are up.

    `known` is everything that was seen, remarks included.
    """
    up: dict[tuple[str, str], int] = {}
    for line, _ in known:
        device, is_up = _state(line.text)
        if is_up:
            place = line.file, device
            up[place] = max(up.get(place, 0), line.order)
    return bool(left) and all(_is_up_again(line, up) for line, _ in left)


def _is_up_again(line: Evidence, up: dict[tuple[str, str], int]) -> bool:
    device, is_up = _state(line.text)
    return bool(device) and not is_up and up.get((line.file, device), 0) > line.order


def _state(text: str) -> tuple[str, bool]:
    """The device that a line tells the state of, and whether it is up; "" where it tells of none."""
    server = _LUSTRE.search(text)
    if server:
        return server["device"], bool(_RESTORED.search(text))
    found = _LINK.search(text)
    return (found["device"], found["now"].lower() != "down") if found else ("", False)


RIVAL_DISTANCE = 5
"""Causes of another class whose priority is at most so much lower are rivals."""

ENDED_BY_SLURM = frozenset({FaultClass.TIMELIMIT, FaultClass.PREEMPTED, FaultClass.CANCELLED})
"""What no training survives, whatever it still prints."""

OF_THE_CLEAN_UP = frozenset({"slurm-stepd-unkillable", "slurm-kill-task-failed", "slurm-epilog-failed"})
"""What may go wrong on a node while Slurm ends a job that it was told to end: no cause of that end."""

_KILLED_STEP = re.compile(
    r"\bSTEP \S+ ON \S+ CANCELLED AT |\b(?:srun|yhrun): (?:forcing job termination|Force Terminated|Terminating)"
)

_ROW_OF_A_TABLE = re.compile(r"\|| {2,}\S+ +\d+:\d+\s*$")
"""Rows of sacct and squeue: they tell of other jobs as well."""

SUSPICIOUS_MAX = 5
"""So many lines are shown where no cause is known."""


@dataclass(frozen=True, slots=True)
class RankedEvidence:
    """The evidence in order of weight: `causes` best first."""

    causes: tuple[tuple[Evidence, Signature], ...] = ()
    spoken: tuple[Evidence, ...] = ()  # the consequences: who wrote one was alive
    hinted: frozenset[FaultClass] = frozenset()  # what the consequences are about
    finished: bool = False  # the log itself tells of a good end
    noted: frozenset[str] = frozenset()  # the signatures of all that was seen, remarks included
    words: tuple[str, ...] = ()

    @property
    def consequences(self) -> int:
        """How many lines are consequences."""
        return sum(line.count for line in self.spoken)

    @property
    def suspicious(self) -> tuple[Evidence, ...]:
        """What a person should look at where no cause is known: the last words."""
        return self.spoken[-SUSPICIOUS_MAX:]

    @property
    def cause(self) -> Signature | None:
        """The signature of the chosen cause."""
        return self.causes[0][1] if self.causes else None

    def lines_of(self, signature: str) -> tuple[Evidence, ...]:
        """All lines of one signature that count, in the order written."""
        return tuple(sorted((line for line, of in self.causes if of.id == signature), key=_order))

    def lines_about(self, fault: FaultClass) -> tuple[Evidence, ...]:
        """All lines of one class that count, in the order written."""
        return tuple(sorted((line for line, of in self.causes if of.fault is fault), key=_order))

    def first_of(self, faults: Collection[FaultClass]) -> Signature | None:
        """The weightiest signature of these classes."""
        return next((of for _, of in self.causes if of.fault in faults), None)

    def rivals_of(self, signature: Signature) -> tuple[str, ...]:
        """Signatures of another class that could as well be the cause."""
        near = (
            of.id
            for _, of in self.causes
            if of.fault is not signature.fault
            and of.role is signature.role
            and abs(signature.priority - of.priority) <= RIVAL_DISTANCE
        )
        return tuple(dict.fromkeys(near))


def rank_evidence(evidence: Sequence[Evidence], catalog: Catalog, ended: Ended | None) -> RankedEvidence:
    """Sort `evidence` by what it can be; evidence of signatures that the catalog does not know is left aside."""
    known = _one_meaning(
        [(line, catalog.by_id[line.signature]) for line in evidence if line.signature in catalog.by_id]
    )
    fatal = [
        (line, of) for line, of in known if of.role is not Role.INFO and of.fault is not FaultClass.HEALTHY
    ]
    survived = [line for line, _ in fatal if line.progress_after]
    passed = _passed(known) if ended is None else {}
    left = [(line, of) for line, of in fatal if not line.progress_after and not _is_passed(line, passed)]
    if ended is None:
        left = _without_killed_steps(left)
    left = without_caught(_without_clean_up(left), known)
    if healed(left, known):
        left = []
    causes = sorted((pair for pair in left if _can_be_cause(pair[1], ended)), key=_weight)
    if not causes and ended is None:
        # A job has some seconds between Slurm's verdict and its end, and may print steps in them.
        told = [
            (line, of)
            for line, of in fatal
            if of.fault in ENDED_BY_SLURM
            and not _is_passed(line, passed)
            and not _ROW_OF_A_TABLE.search(line.text)
        ]
        causes = told[-1:]
    consequences = [line for line, of in left if not _can_be_cause(of, ended)]
    words = []
    if survived:
        words.append(
            f"{sum(line.count for line in survived)} lines were survived: training went on after them"
        )
    if consequences:
        words.append(f"{sum(line.count for line in consequences)} lines are consequences")
    return RankedEvidence(
        causes=tuple(causes),
        spoken=tuple(sorted(consequences, key=_order)),
        hinted=frozenset(of.fault for _, of in left if not _can_be_cause(of, ended)) - {FaultClass.UNKNOWN},
        finished=any(_is_good_end(of) for _, of in known),
        noted=frozenset(of.id for _, of in known),
        words=tuple(words),
    )


def _one_meaning(known: Sequence[tuple[Evidence, Signature]]) -> list[tuple[Evidence, Signature]]:
    """Of several signatures on one place of a file the one of the highest priority."""
    best: dict[tuple[object, ...], tuple[Evidence, Signature]] = {}
    for pair in known:
        line, signature = pair
        place = (
            (line.source, line.file, line.offset_bytes, line.line, line.text)
            if line.file
            else (line.order, signature.id)
        )
        other = best.get(place)
        if other is None or (signature.priority, signature.id) > (other[1].priority, other[1].id):
            best[place] = pair
    return list(best.values())


def _without_killed_steps(left: Sequence[tuple[Evidence, Signature]]) -> list[tuple[Evidence, Signature]]:
    """Leave out a cancelled step where something failed before: srun kills the other tasks when one fails.

    A person who cancels a job leaves a line about the JOB as well. Where a node could not kill the step, that is what is wrong.
    """
    cancels = [line for line, of in left if of.fault is FaultClass.CANCELLED]
    if not cancels or any(not _KILLED_STEP.search(line.text) for line in cancels):
        return list(left)
    first = min(line.order for line in cancels)
    before = any(
        of.fault is not FaultClass.CANCELLED and of.role is not Role.CONSEQUENCE and line.order < first
        for line, of in left
    )
    unkillable = any(of.id in OF_THE_CLEAN_UP for _, of in left)
    if not before and not unkillable:
        return list(left)
    return [pair for pair in left if pair[1].fault is not FaultClass.CANCELLED]


def _without_clean_up(left: Sequence[tuple[Evidence, Signature]]) -> list[tuple[Evidence, Signature]]:
    """Leave out what failed while Slurm carried out an end that it had announced before."""
    announced = [line.order for line, of in left if of.fault in ENDED_BY_SLURM]
    return [
        (line, of)
        for line, of in left
        if of.id not in OF_THE_CLEAN_UP or not announced or line.order < min(announced)
    ]


def _passed(known: Sequence[tuple[Evidence, Signature]]) -> dict[str, int]:
    """For each file up to where (the order of a line) it tells of what is past: a good end, or an earlier submission."""
    passed: dict[str, int] = {}
    ended: dict[str, int] = {}
    for line, signature in sorted(known, key=lambda pair: pair[0].order):
        if signature.fault in ENDED_BY_SLURM:
            ended[line.file] = line.order
        if _is_good_end(signature):
            passed[line.file] = line.order
        elif _is_beginning(signature) and line.file in ended:
            # The first beginning after Slurm's verdict: all that stands before it is of the submission before.
            passed[line.file] = max(passed.get(line.file, -1), ended.pop(line.file))
    return passed


def _is_passed(line: Evidence, passed: Mapping[str, int]) -> bool:
    return line.order <= passed.get(line.file, -1)


def _is_good_end(signature: Signature) -> bool:
    return signature.fault is FaultClass.HEALTHY and signature.role is Role.CAUSE


def _is_beginning(signature: Signature) -> bool:
    return (
        signature.fault is FaultClass.HEALTHY and signature.role is Role.EITHER
    ) or signature.id in IMPORTS


def _can_be_cause(signature: Signature, ended: Ended | None) -> bool:
    if signature.role is Role.CONSEQUENCE:
        return False
    # Slurm's record says how it ended: what slurmstepd prints of a cancel is then our own, or that of one step.
    cancelled_by_other = ended is None or (ended.state in {"CANCELLED", "GONE"} and not ended.by_us)
    return signature.fault is not FaultClass.CANCELLED or cancelled_by_other


def _weight(pair: tuple[Evidence, Signature]) -> tuple[bool, int, int]:
    line, signature = pair
    return (signature.role is not Role.CAUSE, -signature.priority, line.order)


def _order(line: Evidence) -> int:
    return line.order
