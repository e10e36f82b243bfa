"""What a log says in words that no signature knows. (pure)

The second layer under the signatures (`signatures.grammar`). It is asked where no signature explains an end,
and it answers with less confidence than any signature would. It never leads to a drain. Each statement is
evidence of its own kind: the diagnosis quotes the line, its subject and its predicate.

A log is not healthy because nothing in it is known. Health is earned: by steps after the last scary line, by
a good end, by words that take the scary ones back. Where nothing speaks for health and nothing against it,
the confidence says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ftrun.slurm.records import replace
from ftrun.supervisor.diagnosis import names
from ftrun.supervisor.diagnosis.blame import admitted
from ftrun.supervisor.diagnosis.class_defaults import CLASS_DEFAULTS, clamp_confidence, plain
from ftrun.supervisor.diagnosis.setup_rules import waits_for_ever
from ftrun.supervisor.model.types import Action, Blame, Diagnosis, FaultClass, Proof, Source
from ftrun.supervisor.signatures.grammar import Found, Grammar, spoken_lines
from ftrun.supervisor.telemetry.line_prefix import Spoken, peeled

if TYPE_CHECKING:
    from ftrun.supervisor.diagnosis.evidence import Case
    from ftrun.supervisor.diagnosis.facts import Facts
    from ftrun.supervisor.diagnosis.log_text import TextLine


READ_MAX = 4000
"""How many lines are read as statements: the first and the last of a longer text."""

SIGNATURE = "statement."
"""Signatures of such a diagnosis are this plus the id of the reading."""

HEALTHY_WITH_SIGN, HEALTHY_AFTER_STEPS, HEALTHY_UNSAID = 0.75, 0.7, 0.4
"""How sure a text without a known fault is healthy: it tells of a good end, it tells of steps, it tells
nothing.
"""

LONG_LINES, HEALTHY_LONG = 60, 0.6
"""A text of so many lines that tells nothing is no piece of a log: then nothing was to be told."""

SURE_WORDS = 46
"""A statement of less weight needs a word of severity, or a level: programs say much that is wrong and go on."""

OF_MANAGERS = 92
"""Statements of this weight are words of the batch system or the cloud: the program says "done" after them, too."""

_LOUD = frozenset("efcs")
_SEVERE = re.compile(
    r"error|fatal|exception|abort|fail(?:ed|ure)|critical|panic|exit|\bE:|错误|失败|エラー|失敗|fehler|erreur|falló|errore|ошибка|오류",
    re.IGNORECASE,
)
_QUIET = frozenset("widnt")
_KERNEL = re.compile(r"^(?:<\d+>)?\[ *\d+\.\d{4,6}\]|\bkernel: ")
_OF_KERNELS = frozenset(
    {
        *(FaultClass.HARDWARE_GPU, FaultClass.HARDWARE_OTHER, FaultClass.NETWORK, FaultClass.NODE),
        *(FaultClass.STORAGE, FaultClass.OOM_HOST),
    }
)
"""What a kernel can tell of. Of a job's settings or program it knows nothing."""
_DATA = re.compile(
    r"""\s*(?:[\w.]+: [\[{]|:::\w+ |[{\[] ?["'][\w/ ]+["']: ?(?:[\d"'\[{]|nan|true|false|null))"""
)
"""Metrics and settings as JSON: names of errors with their numbers."""


class Statement(NamedTuple):
    """A line that says that something failed. `at` is its place among the text's lines."""

    found: Found
    line: TextLine
    spoken: Spoken
    at: int


def read_statements(case: Case) -> list[Statement]:
    """The statements of a text in written order, without those that steps followed or that a signature calls
    harmless.
    """
    text = case.facts.text
    if not text:
        return []
    grammar = _grammar(case)
    known = _known_places(case)
    steps_end = (
        case.progress.offset_bytes if case.progress is not None and case.progress.steps_seen > 1 else 0
    )
    texts = [line.text for line in text]
    places = list(spoken_lines(texts, grammar))
    if len(places) > READ_MAX:
        places = [*places[: READ_MAX // 4], *places[-(READ_MAX - READ_MAX // 4) :]]
    told = []
    for at in places:
        line = text[at]
        if any(grammar.again.search(after) for after in texts[at : at + 3]):
            continue
        if (line.file, line.number) in known or line.offset_bytes < steps_end:
            continue
        if _DATA.match(line.text):
            continue
        spoken = peeled(line.text)
        found = grammar.read(spoken.text, loud=spoken.level not in _QUIET, trained=case.trained)
        if found is None or (_KERNEL.search(line.text) and found.reading.fault not in _OF_KERNELS):
            continue
        if (
            found.reading.weight < SURE_WORDS
            and spoken.level not in _LOUD
            and not _SEVERE.search(spoken.text)
        ):
            continue
        told.append(Statement(found, line, spoken, at))
    return told


def _grammar(case: Case) -> Grammar:
    assert case.facts.grammar is not None, "rules of statements need Input.TEXT"
    return case.facts.grammar


def _known_places(case: Case) -> frozenset[tuple[str, int]]:
    """The lines that a signature knows: what they mean has been judged. Of a wrapper, the words still count."""
    return frozenset(
        (line.file, line.line)
        for line in case.facts.evidence
        if line.line and line.signature not in WRAPPERS | TYPED | ECHOES
    )


def stated_cause(case: Case) -> Diagnosis | None:
    """The weightiest statement of a log without a known cause. A run that ftrun looks after is not stopped by
    it: there, a class that would stop it stays unknown.
    """
    if case.log.finished or (case.ended is not None and not case.ended.failed and not case.ended.by_us):
        return None
    told = read_statements(case)
    best = max(told, key=lambda one: (one.found.reading.weight, -one.at), default=None)
    if best is None:
        return None
    told_by_manager = (
        best.found.reading.weight >= OF_MANAGERS or best.found.reading.fault is FaultClass.CANCELLED
    )
    if case.ended is None and not told_by_manager and _health_after(case, best):
        return None
    if best.found.reading.fault is FaultClass.UNKNOWN:
        return None
    return _diagnosis(case, best, told)


def sentence_before_type(case: Case, found: Diagnosis) -> Diagnosis | None:
    """A cause that only says that a program gave up: what its words tell counts for more. Of an exception with
    a type of its own, only the words of its own line. The words of a batch system or a cloud (preempted, a limit)
    count for more than any failure of the program.
    """
    general = found.signature in WRAPPERS | TYPED
    if case.facts.attempt is not None or not (general or found.fault in _OF_PROGRAM):
        return None
    own = {(proof.file, proof.line) for proof in found.because}
    told = [
        one
        for one in read_statements(case)
        if one.found.reading.weight >= OF_MANAGERS
        or (
            general
            and one.found.reading.weight >= (OUTWEIGHS if found.signature in WRAPPERS else OUTWEIGHS_TYPED)
            and (found.signature in WRAPPERS or (one.line.file, one.line.number) in own)
        )
    ]
    best = max(told, key=lambda one: (one.found.reading.weight, -one.at), default=None)
    if best is None or best.found.reading.fault in {found.fault, FaultClass.UNKNOWN}:
        return None
    said = _diagnosis(case, best, told)
    less = "alone says no more than that it ended" if general else "says less than the batch system"
    words = (*said.rests_on, f"{found.signature or found.fault.value} {less}")
    return replace(said, rests_on=words, consequences=found.consequences)


WRAPPERS = frozenset(
    {
        *("python-exception", "python-glued-errors", "fatal-word", "native-exception", "language-error"),
        *("make-echo", "batch-exit-code", "workflow-task-failed", "slurm-task-exit", "slurm-task-aborted"),
        *(
            "mpi-program-gave-up",
            "mpi-rank-aborted",
            "slurm-step-task-failure",
            "workflow-ended-from-outside",
        ),
        *("killed-by-exit-code", "killed-bare", "mpi-rank-killed", "torch-dump-signal", "workflow-killed"),
    }
)
"""Signatures that say that something ended, not why."""

ECHOES = frozenset({"python-traceback", "child-failed"})
"""Signatures of lines around the words of an exception."""

TYPED = frozenset({"python-value-error", "python-name-error", "python-assertion", "python-key"})
"""Signatures of exceptions whose type says little."""

_OF_PROGRAM = frozenset(
    {FaultClass.CONFIG, FaultClass.USER_CODE, FaultClass.LIBRARY_BUG, FaultClass.DATA, FaultClass.CHECKPOINT}
)

OUTWEIGHS, OUTWEIGHS_TYPED = 42, 68
"""The least weight of a statement that counts for more than those."""


def _diagnosis(case: Case, best: Statement, told: Sequence[Statement]) -> Diagnosis:
    reading = best.found.reading
    same = [one for one in told if one.found.reading.id == reading.id]
    who = _accused(case, best, same)
    rivals = {one.found.reading.fault for one in told if one.found.reading.weight >= 40} - {reading.fault}
    confidence = reading.confidence * (0.8 if rivals else 1.0)
    default = CLASS_DEFAULTS[reading.fault]
    words = [f"no signature knows this log; its words read as {reading.id.replace('-', ' ')}"]
    if best.found.subject:
        words[0] += f": {best.found.subject!r} and {best.found.predicate!r}"
    if rivals:
        words.append(f"could also be: {', '.join(sorted(fault.value for fault in rivals))}")
    supervised = case.facts.attempt is not None and not reading.retry
    return Diagnosis(
        fault=FaultClass.UNKNOWN if supervised else reading.fault,
        retry=reading.retry or supervised,
        action=_action(reading.exclude and bool(who), retry=reading.retry or supervised),
        nodes=who,
        # A machine that no line names is left out only where the words have one meaning.
        exclude=reading.exclude and (bool(who) or (reading.who == "self" and not rivals)),
        confidence=clamp_confidence(confidence),
        signature=SIGNATURE + reading.id,
        title=f"its words tell of {reading.fault.value}: {best.found.sentence.strip()[:120]}",
        because=tuple(
            Proof(one.line.file, one.line.number, one.line.text, SIGNATURE + reading.id) for one in same[:5]
        ),
        advice=default.advice,
        blame=Blame.NODE if who else Blame.UNKNOWN,
        rests_on=tuple(words),
        sources=(Source.LOG,),
    )


def _action(elsewhere: bool, *, retry: bool) -> Action:
    if elsewhere:
        return Action.EXCLUDE
    return Action.RESUBMIT if retry else Action.STOP


def _accused(case: Case, best: Statement, same: Sequence[Statement]) -> tuple[str, ...]:
    """Whom the statement means: the host that it calls silent, or the one that speaks of itself."""
    who = best.found.reading.who
    if not who:
        return ()
    texts = [line.text for line in case.facts.text]
    named: list[str] = []
    for one in same:
        told = names.accused_hosts(one.spoken.text)
        if who == "self":
            told = ((one.spoken.host,) if one.spoken.host else ()) or told
        if not told and one is best:
            told = names.recorded_hosts(texts, one.at)
        named += told
    if not named and who == "self":
        named = [host] if (host := names.asked_host(texts)) else []
    if not named and best.spoken.rank is not None and who == "self":
        named = [f"rank {best.spoken.rank}"]
    if not named and len(ranks := names.accused_ranks(best.found.sentence)) == 1:
        named = [f"rank {ranks[0]}"]
    found = tuple(dict.fromkeys(node for name in named if (node := admitted(name, case.topology))))
    return found if len(found) <= _NAMED_MAX else ()


_NAMED_MAX = 4


_GAVE_UP = re.compile(
    r"^\W*(?:\w+ )?(?:run|job|simulation|pipeline|workflow|analysis|training|script|program|calculation|stage|task)\b.{0,30} failed (?:with|:|because|due)",
    re.IGNORECASE,
)
"""The whole work failed: what a summary says after that is no good end."""


def _gave_up(told: Statement) -> bool:
    return _GAVE_UP.search(told.spoken.text) is not None


def _health_after(case: Case, last: Statement) -> bool:
    """Whether the text goes on to a good end behind the statement."""
    text = case.facts.text
    grammar = _grammar(case)
    after = [line.text for line in text[last.at + 1 :] if line.file == last.line.file][-END_LINES:]
    return any(grammar.ends_well(one) for one in after)


END_LINES = 15
"""How many last lines tell whether a text ends well."""


def health_words(lines: Sequence[TextLine], facts: Facts) -> bool:
    """Whether one of `lines` tells of a good end."""
    grammar = facts.grammar
    return grammar is not None and any(grammar.ends_well(line.text) for line in lines)


def stated_places(case: Case) -> frozenset[int]:
    """The places of the text's lines that say that something failed, whatever signatures and steps say."""
    if not case.facts.text:
        return frozenset()
    return frozenset(one.at for one in read_statements(case) if one.found.reading.weight >= SURE_WORDS)


# ---- names beside the lines of a signature


def named_beside(case: Case, found: Diagnosis) -> Diagnosis | None:
    """The host or rank of a cause whose own lines do not name it: the verb's object, the prefix, the fields of
    the same record, the prompt, the rank whose traceback stands above.
    """
    if found.nodes or found.signature.startswith(SIGNATURE) or found.blame not in {Blame.NODE, Blame.DEVICE}:
        return None
    signature = case.facts.catalog.by_id.get(found.signature)
    lines = case.log.lines_of(found.signature)
    if signature is None or not lines:
        return None
    texts = [line.text for line in case.facts.text]
    places = {(line.file, line.number): at for at, line in enumerate(case.facts.text) if line.number}
    named: list[str] = []
    if found.fault is FaultClass.CONFIG:
        return None
    for line in lines[:_LINES_READ]:
        spoken = peeled(line.text)
        at = places.get((line.file, line.line))
        told = names.accused_hosts(spoken.text) if found.blame is Blame.NODE else ()
        own = found.blame is Blame.DEVICE  # a line about another node only has its reporter in front
        if own and not told and names.is_host_name(spoken.host):
            told = (spoken.host,)
        if not told and at is not None:
            told = names.recorded_hosts(texts, at)
        if own and not told and spoken.rank is not None:
            told = (f"rank {spoken.rank}",)
        elif own and not told and at is not None:
            told = _rank_above(texts, at)
        named += told
    named = named or ([host] if (host := names.asked_host(texts)) else [])
    who = tuple(dict.fromkeys(node for name in named if (node := admitted(name, case.topology))))
    if not who or len(who) > _NAMED_MAX:
        return None
    return replace(
        found,
        nodes=who,
        exclude=found.exclude or (signature.exclude and found.fault is not FaultClass.NETWORK),
        rests_on=(*found.rests_on, f"the lines beside it name {', '.join(who)}"),
    )


_LINES_READ = 5
_BLOCK_LINES = 30


def _rank_above(texts: Sequence[str], at: int) -> tuple[str, ...]:
    """The one rank that printed the block of lines above; () for none or several."""
    ranks = {peeled(text).rank for text in texts[max(0, at - _BLOCK_LINES) : at]} - {None}
    return (f"rank {ranks.pop()}",) if len(ranks) == 1 else ()


def text_without_cause(case: Case, told: Sequence[Statement]) -> Diagnosis:
    """A text without a record and without a cause: what speaks for health, and how sure that is."""
    grammar = _grammar(case)
    texts = [line.text for line in case.facts.text]
    ends_well = any(grammar.ends_well(text) for text in texts[-END_LINES:])
    endless = waits_for_ever(case) if not ends_well else None
    if endless is not None:
        return endless
    if told and not ends_well:
        last = told[-1]
        found = plain(
            FaultClass.UNKNOWN,
            f"something failed, in words that tell no class: {last.found.sentence.strip()[:120]}",
            ["words of failure, and no sign of health after them"],
            confidence=0.25,
            sources=(Source.LOG,),
        )
        proofs = tuple(Proof(one.line.file, one.line.number, one.line.text, "") for one in told[-5:])
        return replace(found, suspicious=proofs)
    if ends_well:
        words, confidence = "the text ends well, as its words tell", HEALTHY_WITH_SIGN
    elif case.trained:
        words, confidence = "steps, and no word of failure after them", HEALTHY_AFTER_STEPS
    else:
        words = "no line tells of a failure, and none of health"
        confidence = HEALTHY_UNSAID if len(texts) < LONG_LINES else HEALTHY_LONG
    return plain(FaultClass.HEALTHY, "no failure seen", [words], confidence=confidence)
