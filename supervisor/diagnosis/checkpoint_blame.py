"""Whether a checkpoint is to blame for a start that resumed from it and failed, and what a start could load. (pure)

How it thinks. A program that cannot load a checkpoint says so in words of its own, so the class of its error tells little. What tells is the moment, before the first
new step, and the path: an error that names the checkpoint, or a file in it, is about the checkpoint; and what fails twice from the same one, whatever it
says, is the checkpoint's as long as an older one has not failed in the same way. A graver cause (hardware, network, memory, a lost node) leaves it alone. A file
system that fails is blamed first, for it comes back; where it refuses the same checkpoint twice, an older one is tried.

Not the checkpoint's is an error that every checkpoint gives. Words that name no checkpoint are believed to be the program's from the second checkpoint
on; words that do are about that one, and the older ones are tried first, `NAMED_MAX` at most.
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

__all__ = [
    "AGAIN",
    "ASIDE",
    "PROGRAM",
    "Resumed",
    "Usable",
    "cannot_load",
    "earlier",
    "is_aside",
    "judged",
    "names",
]

ASIDE, PROGRAM, AGAIN = "aside", "program", "again"
"""Verdicts: see `model.Loading`."""

UNNAMED_MAX, NAMED_MAX = 2, 5
"""So many checkpoints with the same error are enough to call it the program's, by whether its words name the checkpoint."""

UNSURE = 0.75
"""An error that is known less surely than this may be a checkpoint's though its words do not say so."""

TEXT_CHARS = 300
CUT_CHARS = 4  # a shorter beginning of a word is a word of its own
USAGE = frozenset({"python-arguments"})
"""Signatures of errors that only repeat the script's command line, on which a checkpoint may stand."""

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
"""Classes behind which a checkpoint may stand that cannot be loaded."""

ONCE_MORE = frozenset({FaultClass.USER_CODE, FaultClass.DATA, FaultClass.CONFIG, FaultClass.LIBRARY_BUG})

_WORD = re.compile(r"[^\s'\"`<>()\[\]{},;|]+")
_LABEL = re.compile(r"^(?:\s*(?:\d+: |\[(?:rank)?\d+\]:?|[\w.-]+: (?=\[rank)))+\s*")
_TWICE = re.compile(r"(\w{4,}?)\1+")
_CUT = re.compile(r"(?:srun|yhrun): |slurmstepd: |Traceback \(most recent")
"""Words of others, which come into the middle of a line where several write into one log."""
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]*\d[0-9a-f]*\b|\d+")


@dataclass(frozen=True, slots=True)
class Usable:
    """The checkpoint that a start would load ("" = none), and why it could not begin at all ("" = it could). `anew`: it would begin from nothing,
    since there is nothing, or since its user allows it. `own`: of those that keep it from that, the run itself wrote all."""

    path: str = ""
    stuck: str = ""
    anew: bool = False
    own: bool = False

    @property
    def back(self) -> str:
        """Where a run that goes back would be, in words; "" where it cannot."""
        return self.path or ("its beginning" if self.anew else "")


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a failed start had resumed from (absolute), what failed so before, and what a start would load without it. `trained`: the run has made steps."""

    path: str
    earlier: tuple[Loading, ...] = ()
    without: Usable = Usable()
    trained: bool = False


def earlier(run: Run, incident: str) -> tuple[Loading, ...]:
    """The starts before this incident that failed to load something, back to the last that made steps."""
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


def is_aside(found: Diagnosis) -> bool:
    """Whether the checkpoint that the start had resumed from is to be loaded by no other."""
    return (
        found.fault is FaultClass.CHECKPOINT and found.loading is not None and found.loading.verdict == ASIDE
    )


def judged(
    found: Diagnosis, lines: Sequence[Evidence], resumed: Resumed | None, progress: Progress | None
) -> Diagnosis:
    """`found`, or what it means where the start had resumed from a checkpoint and made no step. `lines` are those that may be causes or consequences."""
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


def cannot_load(evidence: Iterable[Evidence], catalog: Catalog, path: str) -> bool:
    """A line says that this checkpoint could not be loaded, or that one is broken: where something else is blamed, it is not tried again all the same."""
    known = catalog.by_id
    told = (
        (line, known[line.signature])
        for line in evidence
        if line.signature in known and known[line.signature].fault is FaultClass.CHECKPOINT
    )
    return bool(path) and any(of.retry or names(line.text, path) for line, of in told)


def names(text: str, path: str) -> bool:
    """Whether a line names a checkpoint (an absolute path), or something in it: by its path, by a part of it, or by the name of a view of it."""
    return any(_is_in(word, path) for word in _WORD.findall(text))


def _is_before_first(progress: Progress | None, path: str) -> bool:
    """No new step: nothing at all, or the step of the checkpoint itself, which many programs print when they have loaded it."""
    if progress is None or progress.step is None:
        return True
    return progress.steps_seen <= 1 and progress.step == step_of(path)


def _said(found: Diagnosis, lines: Sequence[Evidence], path: str) -> Loading:
    """What the start said: the line that names the checkpoint, else that of the cause."""
    log = [line.text for line in lines if line.source is Source.LOG]
    named = next((text for text in log if names(text, path)), "") if found.signature not in USAGE else ""
    text = named or next((one.text for one in found.because), "") or found.title
    broken = found.fault is FaultClass.CHECKPOINT and found.retry
    return Loading(
        path, _plain(text, path), _LABEL.sub("", text).strip()[:TEXT_CHARS], named=bool(named) or broken
    )


def _is_of_every_checkpoint(said: Loading, others: Iterable[Loading], left: str) -> bool:
    """Each that was tried gave the same error, in one of its starts, and there is none left, or enough were tried."""
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
    """The words of an error, each once and in no order, without what differs from checkpoint to checkpoint and from rank to rank.

    Ranks that fail at one moment write into each other's lines: `KeyErrorKeyError: : 'model''model'`.
    """
    whole = _LABEL.sub("", text)
    own = _CUT.split(whole, maxsplit=1)[0].strip() or whole
    kept = [word for word in _WORD.findall(own) if "/" not in word and not _is_in(word, path)]
    words = re.findall(r"[A-Za-z_]\w*", _NUMBER.sub(" ", " ".join(kept)))
    return " ".join(sorted({_TWICE.sub(r"\1", word) for word in words}))[:TEXT_CHARS]


def _is_same(one: str, other: str) -> bool:
    """Whether two errors are one: a line that was cut, or mixed with another's, has the words of the whole, the last one perhaps not to its end."""
    mine, theirs = one.split(), other.split()
    return bool(mine and theirs) and (_is_part(mine, theirs) or _is_part(theirs, mine))


def _is_part(few: Sequence[str], more: Sequence[str]) -> bool:
    """All words are among the others, one of them perhaps cut off."""
    missing = [word for word in few if word not in more]
    return not missing or (
        len(missing) == 1
        and len(missing[0]) >= CUT_CHARS
        and any(word.startswith(missing[0]) for word in more)
    )


def _is_in(word: str, path: str) -> bool:
    """Whether a word of a line is that path, or leads into it. Only a name that is nobody else's counts without the folder that it lies in."""
    word = word.removeprefix("file://").rstrip(".:")
    if word.startswith("-"):
        return False
    parts = [part for part in word.split("/") if part not in ("", ".")]
    *above, base = [part for part in path.split("/") if part]
    at = next((i for i, part in enumerate(parts) if part == base or part.startswith(f"{base}.")), None)
    if at is None:
        return False
    if not at:  # nothing stands before the name
        return not word.startswith("/") and _is_telling(base)
    return parts[at - 1] == (above[-1] if above else "") or "views" in parts[:at]


def _is_telling(base: str) -> bool:
    """A name that no sentence has by chance: letters and digits in it, or an extension."""
    has_digit = any(c.isdigit() for c in base)
    return len(base) > 3 and any(c.isalpha() for c in base) and (has_digit or "." in base)
