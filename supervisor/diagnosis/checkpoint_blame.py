"""Whether a checkpoint is to blame for the failure of a start that resumed from it. (pure)

A program that cannot load a checkpoint says so in its own words, so the class of its error tells little. The
moment, before the first new step, and the path tell more. An error that names the checkpoint, or a file in
it, is about the checkpoint. What fails twice from the same one, whatever it says, is the checkpoint's fault
as long as an older one has not failed in the same way. A graver cause (hardware, network, memory, a lost
node) leaves the checkpoint alone. A failing file system is blamed first, since it recovers; where it refuses
the same checkpoint twice, an older one is tried.

An error that every checkpoint gives is not a checkpoint's fault. If its words name no checkpoint, the program
is to blame from the second checkpoint on. If they do, the older ones are tried first, `NAMED_MAX` at most.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ftrun.hooks.checkpoints.names import step_of
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.model.types import Action, Blame, Diagnosis, Evidence, FaultClass, Loading, Source

if TYPE_CHECKING:
    from ftrun.supervisor.model.run import Run
    from ftrun.supervisor.signatures.catalog import Catalog
    from ftrun.supervisor.telemetry.progress import Progress


ASIDE, PROGRAM, AGAIN = "aside", "program", "again"
"""Verdicts: see `model.types.Loading`."""

UNNAMED_MAX, NAMED_MAX = 2, 5
"""After so many checkpoints with the same error it is the program's: if its words do not name the checkpoint,
and if they do.
"""

UNSURE = 0.75
"""Below this confidence, the error may be a checkpoint's though its words do not say so."""

TEXT_CHARS = 300
CUT_CHARS = 4  # a shorter word is not taken for a cut one
USAGE = frozenset({"python-arguments"})
"""Signatures of errors that only repeat the script's command line, which may name a checkpoint."""

SUSPECT = frozenset(
    {
        FaultClass.USER_CODE,
        FaultClass.DATA,
        FaultClass.CONFIG,
        FaultClass.UNKNOWN,
        FaultClass.LIBRARY_BUG,
        FaultClass.CHECKPOINT,
        FaultClass.STORAGE,
    }
)
"""Classes that a checkpoint that cannot be loaded may hide behind."""

ONCE_MORE = frozenset({FaultClass.USER_CODE, FaultClass.DATA, FaultClass.CONFIG, FaultClass.LIBRARY_BUG})

_WORD = re.compile(r"[^\s'\"`<>()\[\]{},;|]+")
_LABEL = re.compile(r"^(?:\s*(?:\d+: |\[(?:rank)?\d+\]:?|[\w.-]+: (?=\[rank)))+\s*")
_TWICE = re.compile(r"(\w{4,}?)\1+")
_CUT = re.compile(r"(?:srun|yhrun): |slurmstepd: |Traceback \(most recent")
"""Words of other writers, which land in the middle of a line where several write into one log."""
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]*\d[0-9a-f]*\b|\d+")


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """What a start would load now. `path`: the checkpoint, "" = none. `stuck`: why it could not begin at
    all, "" = it could. `anew`: it would begin from nothing, since there is nothing or its user allows it.
    `own`: the run itself wrote all checkpoints that block it.
    """

    path: str = ""
    stuck: str = ""
    anew: bool = False
    own: bool = False

    @property
    def back(self) -> str:
        """Where a run that goes back would be, in words; "" where it cannot go back."""
        return self.path or ("its beginning" if self.anew else "")


@dataclass(frozen=True, slots=True)
class ResumedCheckpoint:
    """The checkpoint (absolute path) that a failed start resumed from, what failed to load before, and what a
    start would load without it. `trained`: the run has made steps.
    """

    path: str
    earlier: tuple[Loading, ...] = ()
    without: ResumePoint = ResumePoint()
    trained: bool = False


def earlier_failures(run: Run, incident: str) -> tuple[Loading, ...]:
    """The earlier starts that failed to load something, back to the last one that made steps."""
    found: list[Loading] = []
    for one in reversed(run.incidents):
        if one.id == incident:
            continue
        told = one.diagnosis.get("loading")
        if told:
            known = {key: told[key] for key in ("path", "error", "text", "named", "verdict") if key in told}
            found.append(Loading(**known))
        elif one.step is not None:
            break
    return tuple(reversed(found))


def is_set_aside(found: Diagnosis) -> bool:
    """Whether no further start may load the checkpoint that this one resumed from."""
    return (
        found.fault is FaultClass.CHECKPOINT and found.loading is not None and found.loading.verdict == ASIDE
    )


def blame_checkpoint(
    found: Diagnosis, lines: Sequence[Evidence], resumed: ResumedCheckpoint | None, progress: Progress | None
) -> Diagnosis:
    """`found`, or what it means for a start that resumed from a checkpoint and made no step. `lines` are its
    possible causes and consequences.
    """
    if resumed is None or found.fault not in SUSPECT or not _is_before_first(progress, resumed.path):
        return found
    said = _said(found, lines, resumed.path)
    storage = found.fault is FaultClass.STORAGE
    before = [one for one in resumed.earlier if one.path == resumed.path and (one.named or not storage)]
    others = tuple(one for one in resumed.earlier if one.path != resumed.path)
    if _is_of_every_checkpoint(said, others, resumed.without.path):
        return _of_the_program(found, said, others)
    if (said.named and not storage) or (before and (said.named or not storage)):
        return _of_the_checkpoint(found, said, tries=len(before) + 1)
    doubtful = found.fault in ONCE_MORE and not found.retry and found.confidence < UNSURE
    if doubtful and resumed.trained and found.signature not in USAGE:
        words = f"the run has made steps before, and this start failed before its first: {_base(said.path)} may be why"
        again = replace(said, verdict=AGAIN)
        return replace(found, loading=again, rests_on=(*found.rests_on, words))
    return replace(found, loading=said)


def is_reported_broken(evidence: Iterable[Evidence], catalog: Catalog, path: str) -> bool:
    """Whether a line says that this checkpoint, or some checkpoint, is broken. Then it is not tried again,
    even if something else is blamed.
    """
    known = catalog.by_id
    told = (
        (line, known[line.signature])
        for line in evidence
        if line.signature in known and known[line.signature].fault is FaultClass.CHECKPOINT
    )
    return bool(path) and any(of.retry or names_checkpoint(line.text, path) for line, of in told)


def names_checkpoint(text: str, path: str) -> bool:
    """Whether a line names the checkpoint at this absolute path, or something in it: by path, by part of it,
    or by the name of a view of it.
    """
    return any(_is_in(word, path) for word in _WORD.findall(text))


def _is_before_first(progress: Progress | None, path: str) -> bool:
    """No new step: nothing at all, or the checkpoint's own step, which many programs print after loading."""
    if progress is None or progress.step is None:
        return True
    return progress.steps_seen <= 1 and progress.step == step_of(path)


def _said(found: Diagnosis, lines: Sequence[Evidence], path: str) -> Loading:
    """What the start said: the line that names the checkpoint, else the line of the cause."""
    log = [line.text for line in lines if line.source is Source.LOG]
    named = (
        next((text for text in log if names_checkpoint(text, path)), "")
        if found.signature not in USAGE
        else ""
    )
    text = named or next((one.text for one in found.because), "") or found.title
    broken = found.fault is FaultClass.CHECKPOINT and found.retry
    return Loading(
        path, _plain(text, path), _LABEL.sub("", text).strip()[:TEXT_CHARS], named=bool(named) or broken
    )


def _is_of_every_checkpoint(said: Loading, others: Iterable[Loading], left: str) -> bool:
    """Each checkpoint that was tried gave the same error, and none is left, or enough were tried."""
    others = tuple(others)
    tried = {one.path for one in others} | {said.path}
    alike = {one.path for one in others if _is_same(one.error, said.error)} | {said.path}
    if len(tried) < UNNAMED_MAX or alike != tried:
        return False
    return not left or len(tried) >= (NAMED_MAX if said.named else UNNAMED_MAX)


def _of_the_checkpoint(found: Diagnosis, said: Loading, *, tries: int) -> Diagnosis:
    why = (
        f"{tries} starts from {_base(said.path)} failed before their first step"
        if tries > 1
        else f"it resumed from {_base(said.path)}, made no step, and the error is about that"
    )
    title = f"{_base(said.path)} could not be loaded: {found.title}"
    return replace(
        found,
        fault=FaultClass.CHECKPOINT,
        retry=True,
        action=Action.RESTART,
        nodes=(),
        exclude=False,
        confidence=max(found.confidence, 0.6),
        title=title,
        blame=Blame.JOB,
        advice="",
        rests_on=(*found.rests_on, why),
        loading=replace(said, verdict=ASIDE),
    )


def _of_the_program(found: Diagnosis, said: Loading, others: Sequence[Loading]) -> Diagnosis:
    back = tuple(dict.fromkeys(one.path for one in others if one.verdict == ASIDE))
    tried = len({one.path for one in others} | {said.path})
    words = f"{tried} checkpoints gave the same error: it is not theirs, and none of them is set aside"
    found = replace(
        found, loading=replace(said, verdict=PROGRAM, back=back), rests_on=(*found.rests_on, words)
    )
    if found.fault in (FaultClass.UNKNOWN, FaultClass.STORAGE):
        return found
    return replace(
        found,
        fault=FaultClass.USER_CODE if found.fault is FaultClass.CHECKPOINT else found.fault,
        retry=False,
        action=Action.STOP,
        nodes=(),
        exclude=False,
        confidence=max(found.confidence, 0.8),
        title=f"{tried} checkpoints in a row gave the same error: {found.title}",
        advice="Look at the code that loads, and at what it expects; none of the checkpoints is set aside.",
    )


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _plain(text: str, path: str) -> str:
    """The words of an error, sorted and unique, without what differs between checkpoints and ranks.

    Ranks that fail at one moment write into each other's lines: `KeyErrorKeyError: : 'model''model'`.
    """
    whole = _LABEL.sub("", text)
    own = _CUT.split(whole, maxsplit=1)[0].strip() or whole
    kept = [word for word in _WORD.findall(own) if "/" not in word and not _is_in(word, path)]
    words = re.findall(r"[A-Za-z_]\w*", _NUMBER.sub(" ", " ".join(kept)))
    return " ".join(sorted({_TWICE.sub(r"\1", word) for word in words}))[:TEXT_CHARS]


def _is_same(one: str, other: str) -> bool:
    """Whether two errors are one. A line that was cut, or mixed with another, has the words of the whole one;
    the last may be cut.
    """
    mine, theirs = one.split(), other.split()
    return bool(mine and theirs) and (_is_part(mine, theirs) or _is_part(theirs, mine))


def _is_part(few: Sequence[str], more: Sequence[str]) -> bool:
    """All words are among the others; one may be cut off."""
    missing = [word for word in few if word not in more]
    return not missing or (
        len(missing) == 1
        and len(missing[0]) >= CUT_CHARS
        and any(word.startswith(missing[0]) for word in more)
    )


def _is_in(word: str, path: str) -> bool:
    """Whether a word of a line is that path, or leads into it. Without its folder, only an unmistakable name
    counts.
    """
    word = word.removeprefix("file://").rstrip(".:")
    if word.startswith("-"):
        return False
    parts = [part for part in word.split("/") if part not in ("", ".")]
    *above, base = [part for part in path.split("/") if part]
    at = next((i for i, part in enumerate(parts) if part == base or part.startswith(f"{base}.")), None)
    if at is None:
        return False
    if not at:  # no folder before the name
        return not word.startswith("/") and _is_telling(base)
    return parts[at - 1] == (above[-1] if above else "") or "views" in parts[:at]


def _is_telling(base: str) -> bool:
    """A name that no sentence has by chance: with letters and digits, or with an extension."""
    has_digit = any(c.isdigit() for c in base)
    return len(base) > 3 and any(c.isalpha() for c in base) and (has_digit or "." in base)
