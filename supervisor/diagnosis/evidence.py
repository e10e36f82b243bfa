"""The case of one diagnosis: its facts, with the evidence of the log ranked. (pure)

The evidence is ranked into causes, consequences, and lines that training survived.

Each line is what its signature says it is; where several match one line, the one of the highest priority
counts. A line after which training went on is no cause. Nor is a link that came up again where nothing else
failed, nor a fault that the program caught or only warned of, nor, in a text without a record of its end, a
line before a good end. Where the record says how the job ended, lines about a cancel are consequences unless
a person cancelled. The best of the rest by role, priority and order is the cause; another class at about the
same priority is its rival.

The catalog's terms: role `info` is never a fault. Of class `healthy`, role `cause` marks a good end, and role
`either` a beginning. A beginning after Slurm's own verdict means that a later submission appended to the same
file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from ftrun.hooks.runtime.formats import counted
from ftrun.slurm.records import dataclass
from ftrun.supervisor.diagnosis import blame
from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.model.log_order import sort_by_time_written
from ftrun.supervisor.model.types import (
    LEFT_THE_QUEUE,
    LOST_TRACK,
    STARTED_TWICE,
    UNWATCHED,
    Evidence,
    FaultClass,
    Role,
    Topology,
)

if TYPE_CHECKING:
    from ftrun.supervisor.diagnosis.facts import Facts
    from ftrun.supervisor.signatures.catalog import Catalog, Signature
    from ftrun.supervisor.telemetry.progress import Progress


Pair = tuple[Evidence, "Signature"]

IMPORTS = frozenset({"python-module-missing", "python-import-name"})
"""Signatures of failures in the first lines of a program, its imports. After Slurm ended a step, they belong
to another attempt in the same file.
"""

RIVAL_DISTANCE = 5
"""A cause of another class whose priority differs by no more than this is a rival."""

ENDED_BY_SLURM = frozenset({FaultClass.TIMELIMIT, FaultClass.PREEMPTED, FaultClass.CANCELLED})
"""Ends that no training survives, whatever it still prints."""

OF_THE_CLEAN_UP = frozenset({"slurm-stepd-unkillable", "slurm-kill-task-failed", "slurm-epilog-failed"})
"""Failures while Slurm ends a job as it was told to: they are not the cause of that end."""

_KILLED_STEP = re.compile(
    r"\bSTEP \S+ ON \S+ CANCELLED AT |\b(?:srun|yhrun): (?:forcing job termination|Force Terminated|Terminating)"
)

_ROW_OF_A_TABLE = re.compile(r"\|| {2,}\S+ +\d+:\d+\s*$")
"""Rows of sacct and squeue. They list other jobs as well."""

SUSPICIOUS_MAX = 5
"""How many lines are shown where no cause is known."""


@dataclass(frozen=True, slots=True)
class RankedEvidence:
    """The evidence by weight: `causes`, best first."""

    causes: tuple[Pair, ...] = ()
    spoken: tuple[Evidence, ...] = ()  # the consequences: their writers were alive
    hinted: frozenset[FaultClass] = frozenset()  # what the consequences are about
    finished: bool = False  # the log itself shows a good end
    noted: frozenset[str] = frozenset()  # the signatures of all lines, remarks included
    words: tuple[str, ...] = ()
    late: int = 0  # lines that came after ftrun had begun to end the start

    @property
    def consequences(self) -> int:
        """The number of consequences."""
        return sum(line.count for line in self.spoken) + self.late

    @property
    def suspicious(self) -> tuple[Evidence, ...]:
        """The last consequences: what a person should read where no cause is known."""
        return self.spoken[-SUSPICIOUS_MAX:]

    @property
    def cause(self) -> Signature | None:
        """The signature of the chosen cause."""
        return self.causes[0][1] if self.causes else None

    def lines_of(self, signature: str) -> tuple[Evidence, ...]:
        """The lines of one signature that count, in written order."""
        return tuple(sorted((line for line, of in self.causes if of.id == signature), key=_order))

    def lines_about(self, fault: FaultClass) -> tuple[Evidence, ...]:
        """The lines of one class that count, in written order."""
        return tuple(sorted((line for line, of in self.causes if of.fault is fault), key=_order))

    def first_of(self, faults: Collection[FaultClass]) -> Signature | None:
        """The weightiest signature of these classes."""
        return next((of for _, of in self.causes if of.fault in faults), None)

    def rivals_of(self, signature: Signature) -> tuple[str, ...]:
        """Signatures of another class that could be the cause as well."""
        near = (
            of.id
            for _, of in self.causes
            if of.fault is not signature.fault
            and of.role is signature.role
            and abs(signature.priority - of.priority) <= RIVAL_DISTANCE
        )
        return tuple(dict.fromkeys(near))


class Input(StrEnum):
    """What the facts may hold beyond the log and a plain end. A rule that needs one is not asked without it."""

    TASKS = "tasks"
    REFUSAL = "refusal"
    ODD_END = "odd-end"  # Slurm or ftrun marks the end: its state or reason says more than a failure
    HELD = "held"
    UNLOADABLE = "unloadable"
    HOOK_HOLD = "hook-hold"
    GIVEN_UP = "given-up"
    RESUMED = "resumed"
    OUR_END = "our-end"  # ftrun announced the end or a cancel, or asked to save before the time limit
    SUSPICION = "suspicion"
    GONE = "gone"
    FINDINGS = "findings"
    SILENT = "silent"
    SUSPECTS = "suspects"
    TOLD_INSIDE = "told-inside"
    LAST_WORDS = "last-words"
    OPINION = "opinion"
    TEXT = "text"  # the lines of the logs as they stand


ODD_STATES = frozenset({"CANCELLED", "GONE", "REVOKED"})
ODD_REASONS = frozenset({LEFT_THE_QUEUE, LOST_TRACK, STARTED_TWICE, UNWATCHED})


@dataclass(frozen=True, slots=True)
class Case:
    """The facts of one diagnosis with their evidence ranked. `topology` includes what the evidence says of
    hosts and ranks.
    """

    facts: Facts
    inputs: frozenset[Input]
    log: RankedEvidence
    topology: Topology
    ended: Ended | None  # how the launch ended; None while it lives, or without a record
    progress: Progress | None  # the steps in the log
    trained: bool  # the log shows a step
    down: tuple[str, ...]  # the nodes of the attempt that Slurm reports as down or not responding
    lines: tuple[Evidence, ...]  # all that count, in written order


def case_of(facts: Facts) -> Case:
    """The facts with their evidence in written order, ranked."""
    evidence = blame.with_recorded_hosts(sort_by_time_written(facts.evidence))
    topology = blame.with_learned_ranks(evidence, facts.topology)
    before = written_before(evidence, facts.end_offsets)
    late = sum(one.count for one in evidence) - sum(one.count for one in before)
    hung = facts.suspicion is not None and facts.suspicion.fault is FaultClass.HANG
    down = facts.ended.nodes_down if facts.ended else ()
    if topology.nodes:
        down = tuple(dict.fromkeys(node for name in down if (node := topology.node_of(name))))
    return Case(
        facts,
        inputs=_inputs(facts),
        log=rank_evidence(before, facts.catalog, facts.ended, late=late, hung=hung),
        topology=topology,
        ended=facts.ended,
        progress=facts.progress,
        trained=facts.progress is not None and facts.progress.steps_seen > 0,
        down=down,
        lines=tuple(before),
    )


def _inputs(facts: Facts) -> frozenset[Input]:
    attempt = facts.attempt
    end = attempt.launch.end if attempt is not None else None
    there = {
        Input.TASKS: facts.tasks,
        Input.REFUSAL: facts.refusal,
        Input.ODD_END: end is not None and (end.state in ODD_STATES or end.reason in ODD_REASONS),
        Input.HELD: facts.held,
        Input.UNLOADABLE: facts.unloadable,
        Input.HOOK_HOLD: facts.hook_hold,
        Input.GIVEN_UP: facts.given_up,
        Input.RESUMED: facts.resumed,
        Input.OUR_END: attempt is not None
        and (facts.near_limit or attempt.end_intended or attempt.cancel_intended),
        Input.SUSPICION: facts.suspicion,
        Input.GONE: facts.gone,
        Input.FINDINGS: facts.nodes.findings,
        Input.SILENT: facts.silent,
        Input.SUSPECTS: facts.suspects,
        Input.TOLD_INSIDE: facts.told_inside,
        Input.LAST_WORDS: facts.last_words,
        Input.OPINION: facts.second_opinion,
        Input.TEXT: facts.text and facts.grammar is not None,
    }
    return frozenset(name for name, value in there.items() if value)


def written_before(evidence: Sequence[Evidence], end_offsets: Mapping[str, int]) -> list[Evidence]:
    """Those lines that ftrun's own end of the start cannot have caused (P7).

    `end_offsets`: log -> its bytes when ftrun began to end the start. Bytes, because clocks of nodes differ
    and most lines have no time. A storm's last line may be late although its first is not; then the first
    counts.
    """
    return [
        line
        for line in evidence
        if line.file not in end_offsets or line.offset_bytes < end_offsets[line.file]
    ]


def rank_evidence(
    evidence: Sequence[Evidence],
    catalog: Catalog,
    ended: Ended | None,
    *,
    late: int = 0,
    hung: bool = False,
) -> RankedEvidence:
    """Sort `evidence` into causes and consequences. Evidence of signatures that the catalog does not know is
    dropped. `late`: the number of lines left out because they followed an end of ours, `hung`: which was for a
    hang.
    """
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
    left = _without_caught(_without_clean_up(left), known)
    if not hung and _all_healed(left, known):
        left = []
    causes = sorted((pair for pair in left if _can_be_cause(pair[1], ended)), key=_weight)
    if not causes and ended is None:
        # A job lives some seconds after Slurm's verdict, and may print steps in that time.
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
            f"{counted(sum(line.count for line in survived), 'line')} survived: training went on after them"
        )
    if consequences:
        words.append(f"{counted(sum(line.count for line in consequences), 'consequence')} set aside")
    if late:
        words.append(f"{counted(late, 'line')} written after ftrun had begun to end the start: no cause")
    return RankedEvidence(
        causes=tuple(causes),
        spoken=tuple(sorted(consequences, key=_order)),
        hinted=frozenset(of.fault for _, of in left if not _can_be_cause(of, ended)) - {FaultClass.UNKNOWN},
        finished=any(_is_good_end(of) for _, of in known),
        noted=frozenset(of.id for _, of in known),
        words=tuple(words),
        late=late,
    )


def _one_meaning(known: Sequence[Pair]) -> list[Pair]:
    """Of several signatures at one place of a file, the one of the highest priority."""
    best: dict[tuple[object, ...], Pair] = {}
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


def _without_killed_steps(left: Sequence[Pair]) -> list[Pair]:
    """Drop cancelled steps where something failed before: srun kills the other tasks when one fails.

    When a person cancels a job, a line about the JOB appears as well. Where a node could not kill the step,
    that is the cause.
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


def _without_clean_up(left: Sequence[Pair]) -> list[Pair]:
    """Drop what failed while Slurm carried out an end that it had announced before."""
    announced = [line.order for line, of in left if of.fault in ENDED_BY_SLURM]
    return [
        (line, of)
        for line, of in left
        if of.id not in OF_THE_CLEAN_UP or not announced or line.order < min(announced)
    ]


def _passed(known: Sequence[Pair]) -> dict[str, int]:
    """For each file, the order of the last line that is past: before a good end, or of an earlier
    submission.
    """
    passed: dict[str, int] = {}
    ended: dict[str, int] = {}
    for line, signature in sorted(known, key=lambda pair: pair[0].order):
        if signature.fault in ENDED_BY_SLURM:
            ended[line.file] = line.order
        if _is_good_end(signature):
            passed[line.file] = line.order
        elif _is_beginning(signature) and line.file in ended:
            # The first beginning after Slurm's verdict: all lines before it are the earlier submission's.
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
    # Slurm's record says how it ended: slurmstepd's lines about a cancel are then ours, or about one step.
    cancelled_by_other = ended is None or (ended.state in {"CANCELLED", "GONE"} and not ended.by_us)
    return signature.fault is not FaultClass.CANCELLED or cancelled_by_other


def _weight(pair: Pair) -> tuple[bool, int, int]:
    line, signature = pair
    return (signature.role is not Role.CAUSE, -signature.priority, line.order)


def _order(line: Evidence) -> int:
    return line.order


# ---- faults that the text itself calls none

LOGGER = "noise-logging-error"
"""The signature of a logger that could not format a message: it prints a traceback and goes on."""

IGNORED = "noise-ignored-exception"
"""The signature of the line with which Python reports an exception that it ignored."""

LOGGER_LINES = 20
"""The most lines in the traceback of a logger, or of an ignored exception."""

# A level stands alone: `NCCL_DEBUG=INFO` in an advice is none.
_WARNED = re.compile(r"^(?:.{0,80}[\s\[(|:\-])?(?:WARN(?:ING)?|INFO|DEBUG)(?:[\s\])|:\-]|$)")
_OF_PROGRAMS = frozenset({"framework", "user"})

_REMARKED = re.compile(
    r"^(?:.{0,80}[\s\[(|:\-])?(?:INFO|DEBUG|TRACE)(?:[\s\])|:\-]|$)|\blevel=(?:info|debug|trace)\b"
)
_UNCAUGHT = re.compile(
    r"(?:INFO|DEBUG|TRACE)[\s\])|:\-]+(?:[\w.-]{1,40}[:|\]]\s+|-\s+)?(?:\w{1,40}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception|NotFound)(?:: |$)"
)
"""The last line of a traceback that a logger copied from a program's output at its own level."""
_OF_SETTINGS = frozenset({FaultClass.CONFIG, FaultClass.LIBRARY_BUG, FaultClass.DATA})
"""Causes that no program reports as a remark."""


def _without_caught(left: Sequence[Pair], known: Sequence[Pair]) -> list[Pair]:
    """`left` without a logger's own trouble, ignored exceptions, remarks, and warnings that a graver fault follows."""
    loggers = [(line.file, line.line) for line, of in known if of.id == LOGGER]
    ignored = _ignored(left, known)
    faults = [
        (line, of)
        for line, of in left
        if line not in ignored
        and not (of.fault in _OF_SETTINGS and _is_remark(line.text))
        and (
            of.layer.value not in _OF_PROGRAMS
            or not any(line.file == file and 0 < line.line - at <= LOGGER_LINES for file, at in loggers)
        )
    ]
    graver = [line.order for line, of in faults if of.role is Role.CAUSE and not is_warning(line, of)]
    last = max(graver, default=-1)
    return [(line, of) for line, of in faults if not is_warning(line, of) or line.order > last]


def _ignored(left: Sequence[Pair], known: Sequence[Pair]) -> list[Evidence]:
    """The line that ends each ignored exception: the first exception below the report, and no other.

    A person's interrupt counts, wherever it hit the program.
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


def _is_remark(text: str) -> bool:
    return _REMARKED.search(text) is not None and _UNCAUGHT.search(text) is None


def is_warning(line: Evidence, signature: Signature) -> bool:
    """Whether a program only warned of it."""
    return signature.layer.value in _OF_PROGRAMS and _WARNED.match(line.text) is not None


# ---- links and servers that came back

_LINK = re.compile(
    r"(?P<device>[\w.-]+)\)?:? (?:Port: \d+ |NIC )?[Ll]ink (?:is |status definitely )?(?P<now>[Dd]own|DOWN|[Uu]p|ACTIVE)\b"
)
_LUSTRE = re.compile(r"\bLustre(?:Error)?: .{0,40}\b(?P<device>[\w.]+-(?:MDT|OST)[0-9a-f]{4}[\w-]*)")
_RESTORED = re.compile(r"Connection restored|Recovery over after")


def _all_healed(left: Sequence[Pair], known: Sequence[Pair]) -> bool:
    """Whether `left` has only links and servers that a later line of the same file reports as up.

    At boot, and whenever somebody touches a switch, links go down and up; the kernel logs both, as Lustre
    does for its servers. Alone that is no fault. If something else failed as well, or training hung after it,
    the break may be the cause, and counts. `known` has all lines, remarks included.
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
    """The device whose state a line reports, and whether it is up; "" for none."""
    server = _LUSTRE.search(text)
    if server:
        return server["device"], bool(_RESTORED.search(text))
    found = _LINK.search(text)
    return (found["device"], found["now"].lower() != "down") if found else ("", False)
