"""A failure that the program outlived: the rest of the text is judged by itself. (pure)

A text without a record of its end may hold several tries of one script, or a remark of set-up that a reader
takes for a failure. What was followed by work is no cause of the end: the words behind the work are. So the
text is cut there, and the rest is diagnosed like any other text. The first answer stays where the rest tells
less, or only what follows from the first: a collective that timed out, a lost connection, a step that was
killed.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from ftrun.slurm.records import replace
from ftrun.supervisor.diagnosis.statements import END_LINES, health_words, stated_places
from ftrun.supervisor.model.types import Diagnosis, FaultClass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ftrun.supervisor.diagnosis.evidence import Case
    from ftrun.supervisor.diagnosis.facts import Facts
    from ftrun.supervisor.diagnosis.log_text import TextLine

WORK_LINES, WORK_BYTES = 30, 1 << 14
"""So much ordinary text is work: one of the two is enough."""

LONG_TIMES = 8
"""After an end by a person or a limit, so many times as much: their words reach the log late."""

_PROGRAM = frozenset(
    {FaultClass.CONFIG, FaultClass.USER_CODE, FaultClass.DATA, FaultClass.LIBRARY_BUG, FaultClass.CHECKPOINT}
)
_ENDS = frozenset({FaultClass.CANCELLED, FaultClass.TIMELIMIT, FaultClass.PREEMPTED})
_OWN = _PROGRAM | {FaultClass.OOM_GPU, FaultClass.OOM_HOST, FaultClass.STORAGE, FaultClass.PORT_CONFLICT}
"""Causes of their own, whatever failed before."""

_TRACEBACK = re.compile(r"Traceback \(most recent call last\)")
_IDLE = re.compile(
    r"^\s*(?:wandb:|at |[\w.$/@#!-]+\([\w .:$-]*\)\s*$|Thread\[|File \"|#\d|frame #|\[\d+\]|[|*=#~_+-]{3,}|[\]})]|[\w ]{1,20} ?: \S+$)|Killing subprocess"
    r"|NCCL (?:INFO|WARN)|rror|xception|bort|ailed|illed|kill|erminat|time:|rank +:|<N/A>|signal"
)
"""Lines that are printed in the course of an end: no work."""

HEALTHY_AFTER = 0.5
"""How sure a good end is behind a failure that was outlived."""


def rests_of_text(case: Case, found: Diagnosis) -> Iterator[Facts]:
    """The facts of what stands behind work that followed `found`, the last first; none where no work followed."""
    facts = case.facts
    if facts.attempt is not None or case.ended is not None or found.fault not in _PROGRAM | _ENDS:
        return
    text = facts.text
    if not text or any(line.file != text[0].file for line in text):
        return
    own = [one.line for one in case.log.lines_of(found.signature)] or [proof.line for proof in found.because]
    last = max(own, default=0)
    begin = next((at for at, line in enumerate(text) if line.number == last), None) if last else None
    if begin is None:
        return
    least = LONG_TIMES if found.fault in _ENDS else 1
    marks = [begin, *_marks(case, begin), len(text)]
    works = [one for one, other in pairwise(marks) if _is_work(text[one + 1 : other], least)]
    for at in works[: -RESTS_MAX - 1 : -1]:
        yield _facts_behind(facts, text, at + 1)


RESTS_MAX = 3
"""How many rests are judged."""


def _marks(case: Case, begin: int) -> list[int]:
    """The places behind `begin` that tell of a failure, in written order."""
    numbers = {line.line for line, _ in case.log.causes} | {line.line for line in case.log.spoken}
    stated = stated_places(case)
    return [
        at
        for at, line in enumerate(case.facts.text)
        if at > begin and (line.number in numbers or at in stated or _TRACEBACK.search(line.text))
    ]


def _is_work(lines: Sequence[TextLine], times: int) -> bool:
    ordinary = [line.text for line in lines if not _IDLE.search(line.text)]
    between_bytes = lines[-1].offset_bytes - lines[0].offset_bytes if len(lines) > 1 else 0
    return len(ordinary) >= WORK_LINES * times or (
        bool(ordinary) and between_bytes >= WORK_BYTES * times and len(ordinary) * 2 >= len(lines)
    )


def _facts_behind(facts: Facts, text: Sequence[TextLine], begin: int) -> Facts:
    start, number = text[begin].offset_bytes, text[begin].number
    progress = facts.progress
    return replace(
        facts,
        evidence=tuple(line for line in facts.evidence if line.line >= number),
        text=tuple(text[begin:]),
        progress=progress if progress is not None and progress.offset_bytes > start else None,
    )


def tells_more(found: Diagnosis, rest: Facts, later: Diagnosis) -> Diagnosis | None:
    """`later`, the diagnosis of the rest, where it tells more than `found`; else None."""
    if later.fault is FaultClass.HEALTHY:
        if not health_words(rest.text[-END_LINES:], rest) or _died(found):
            return None
        words = f"{found.signature or found.fault.value} was outlived: the text behind it ends well"
        confidence = min(later.confidence, HEALTHY_AFTER)
        return replace(later, confidence=confidence, rests_on=(*later.rests_on, words))
    if later.fault not in _OWN | _ENDS or later.confidence < LEAST:
        return None
    if later.fault in _ENDS and found.fault not in _ENDS and not _is_work(rest.text, LONG_TIMES):
        return None
    words = f"{found.signature or found.fault.value} was outlived: work followed it"
    return replace(later, rests_on=(*later.rests_on, words))


LEAST = 0.3
"""A guess about the rest that is less sure than this changes nothing."""


def _died(found: Diagnosis) -> bool:
    """Whether a program ended of it: then it failed, although its script went on."""
    return (found.fault is not FaultClass.CONFIG and found.fault not in _ENDS) or "python" in found.signature
