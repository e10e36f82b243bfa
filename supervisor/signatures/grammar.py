"""A grammar of failure statements: what failed, what became of it, what that means. (pure)

Signatures know sentences; the grammar knows words, and reads a sentence that no signature knows. A *subject*
(a device, a host, a file) and a *predicate* (does not answer, is full, is not found) in one sentence make a
*reading*: a class of fault, whether a retry makes sense, and whether the host that is named or the one that
speaks may be at fault. The words are data, in `statements.toml`.

A line says nothing if something in it takes it back ("will be retried", "0 errors"), if a box around it
does, or if its level is a warning or less; only readings with `any_level` (Slurm's kin report a preemption at
level INFO) count then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from ftrun.slurm.records import dataclass
from ftrun.supervisor.model.types import FaultClass

SENTENCE_CHARS = 400
"""A sentence is read up to here."""

SUBJECT_BEFORE, SUBJECT_AFTER = 90, 70
"""How far from the predicate its subject may stand, in characters."""

CONFIDENCE_MAX = 0.55
"""No statement is surer: most signatures are."""

_SENTENCE = re.compile(r"(?<=[.!?;。；！])(?<!\.\.)\s+|\s+[|]\s+")
_KEYS = frozenset(
    {
        *("id", "subject", "predicate", "phrase", "class", "retry", "exclude", "who", "weight"),
        *("confidence", "any_level", "only_before_steps"),
    }
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a subject with a predicate means.

    `who`: "named" = the host that the sentence names as silent or lost, "self" = the host that speaks, "" =
    nobody. `weight`: which of a log's statements counts, the greater the nearer to the cause.
    `only_before_steps`: after steps of training the same words mean something else.
    """

    id: str
    fault: FaultClass
    retry: bool
    weight: int
    subject: tuple[str, ...] = ()
    predicate: tuple[str, ...] = ()
    phrase: re.Pattern[str] | None = None
    exclude: bool = False
    who: str = ""
    confidence: float = 0.4
    any_level: bool = False
    only_before_steps: bool = False


class Found(NamedTuple):
    """A reading of one sentence. `subject` and `predicate` are the words that it rests on."""

    reading: Reading
    sentence: str
    subject: str
    predicate: str


@dataclass(frozen=True, slots=True)
class Grammar:
    """The compiled words. `gate` finds every line with any predicate; `calm`, `box` and `health` are what takes
    a statement back: words in its line, in the box around it, or an end that went well (`unhealthy`: words of
    failure in such a line). `supposed`: it is told
    as possible only. `again`: the next line tries once more.
    """

    subjects: Mapping[str, re.Pattern[str]]
    predicates: Mapping[str, re.Pattern[str]]
    readings: tuple[Reading, ...]
    gate: re.Pattern[str]
    calm: re.Pattern[str]
    box: re.Pattern[str]
    health: re.Pattern[str]
    unhealthy: re.Pattern[str]
    supposed: re.Pattern[str]
    again: re.Pattern[str]

    def ends_well(self, text: str) -> bool:
        """Whether a line tells of a good end, and not of one with failures."""
        return self.health.search(text) is not None and self.unhealthy.search(text) is None

    def read(self, text: str, *, loud: bool = True, trained: bool = False) -> Found | None:
        """The weightiest reading of a line without prefixes. `loud`: its level is no warning or remark. `trained`:
        steps were done before it.
        """
        if not self.gate.search(text):
            return None
        loud = loud and self.calm.search(text, 0, SENTENCE_CHARS) is None
        found = (
            one
            for sentence in _SENTENCE.split(text)
            if (one := self._read_sentence(sentence[:SENTENCE_CHARS], loud=loud, trained=trained)) is not None
        )
        return max(found, key=lambda one: one.reading.weight, default=None)

    def _read_sentence(self, sentence: str, *, loud: bool, trained: bool) -> Found | None:
        told = {
            name: match
            for name, pattern in self.predicates.items()
            if (match := pattern.search(sentence)) and not _is_denied(sentence, match)
        }
        supposed = self.supposed.search(sentence) is not None
        for reading in self.readings:
            if (supposed if reading.any_level else not loud) or (trained and reading.only_before_steps):
                continue
            if reading.phrase is not None:
                match = reading.phrase.search(sentence)
                if match and not _is_denied(sentence, match):
                    return Found(reading, sentence, "", match[0])
                continue
            for name in reading.predicate:
                if name not in told:
                    continue
                subject = self._subject(reading, sentence, told[name])
                if subject is not None:
                    return Found(reading, sentence, subject, told[name][0])
        return None

    def _subject(self, reading: Reading, sentence: str, predicate: re.Match[str]) -> str | None:
        """The subject's words near the predicate; "" where the reading needs none, None where it misses one."""
        if not reading.subject:
            return ""
        start = max(0, predicate.start() - SUBJECT_BEFORE)
        window = sentence[start : predicate.end() + SUBJECT_AFTER]
        for name in reading.subject:
            match = self.subjects[name].search(window)
            if match:
                return match[0]
        return None


_NONE_BEFORE = re.compile(
    r"(?:^|[\s(\[,;:])(?:no|0|zero|none|without|never|any)\s(?:[\w/-]+\s){0,2}$", re.IGNORECASE
)
_NONE_AFTER = re.compile(
    r"[\w \-/()'\"]{0,40}[:=]+ *(?:0+(?:\.0+)?|none|false|off|no|null|\[\]|\{\}|n/a|0%)(?![\w.]|\s*(?:of|/|out)\b)"
    r"|(?:\s+\w+){0,2}\s*\(0\)",
    re.IGNORECASE,
)


def _is_denied(sentence: str, match: re.Match[str]) -> bool:
    """Whether the words around a predicate say that it did not happen: "0 lost", "lost: 0", "no X errors"."""
    return bool(
        _NONE_BEFORE.search(sentence[max(0, match.start() - 40) : match.start()])
        or _NONE_AFTER.match(sentence, match.end())
    )


def parse_grammar(table: Mapping[str, Any]) -> Grammar:
    """Compile a grammar. Raises ValueError for an unknown key or word, KeyError for a missing one."""
    subjects = {name: _words(words, plural=True) for name, words in table["subject"].items()}
    predicates = {name: _words(words) for name, words in table["predicate"].items()}
    readings = tuple(_reading(row, subjects, predicates) for row in table["reading"])
    phrases = [row["phrase"] for row in table["reading"] if "phrase" in row]
    calm = table["calm"]
    return Grammar(
        subjects,
        predicates,
        readings,
        gate=_words("|".join([*table["predicate"].values(), *phrases])),
        calm=re.compile(calm["line"], re.IGNORECASE),
        box=re.compile(calm["box"], re.IGNORECASE),
        health=re.compile(calm["health"], re.IGNORECASE),
        unhealthy=re.compile(calm["unhealthy"], re.IGNORECASE),
        supposed=re.compile(calm["supposed"], re.IGNORECASE),
        again=re.compile(calm["again"], re.IGNORECASE),
    )


def _words(words: str, *, plural: bool = False) -> re.Pattern[str]:
    end = r"s?(?![a-z0-9_])" if plural else "(?![a-z_])"
    return re.compile(rf"(?<![a-z_])(?:{words}){end}", re.IGNORECASE)


def _reading(
    row: Mapping[str, Any], subjects: Mapping[str, object], predicates: Mapping[str, object]
) -> Reading:
    unknown = set(row) - _KEYS
    if unknown:
        raise ValueError(f"reading {row.get('id')}: unknown key {min(unknown)!r}")
    strange = [*set(row.get("subject", ())) - set(subjects), *set(row.get("predicate", ())) - set(predicates)]
    if strange:
        raise ValueError(f"reading {row['id']}: there are no words for {strange[0]!r}")
    if not 0 < row.get("confidence", 0.4) <= CONFIDENCE_MAX:
        raise ValueError(f"reading {row['id']}: its confidence is above {CONFIDENCE_MAX}")
    return Reading(
        id=row["id"],
        fault=FaultClass(row["class"]),
        retry=bool(row["retry"]),
        weight=int(row["weight"]),
        subject=tuple(row.get("subject", ())),
        predicate=tuple(row.get("predicate", ())),
        phrase=re.compile(row["phrase"], re.IGNORECASE) if "phrase" in row else None,
        exclude=bool(row.get("exclude", False)),
        who=str(row.get("who", "")),
        confidence=float(row.get("confidence", 0.4)),
        any_level=bool(row.get("any_level", False)),
        only_before_steps=bool(row.get("only_before_steps", False)),
    )


# ---- whole texts

_RULER = re.compile(r"^[\s|]*[-=*#+~_]{8,}[\s|]*$")
_BOX_LINES = 40
_FRAME = re.compile(
    r'^(?:\S{0,40}[:\]] {0,4})?\s*(?:File "|at [\w.$<>]+\(|#\d+ +0x|\[\d+\] +func=|frame #\d+)'
    r"|\((?:\w+\.(?:java|groovy|scala|kt)(?::\d+)?|Unknown Source|Native Method)\)\s*$"
    r"|^[\w.!#$-]+ at \S+(?:\.\w+:\d+| \(unknown line\))(?: \[inlined\])?$|^\s*\d+\s+\.\./sysdeps/"
)
_SOURCE = re.compile(
    r"^\s*(?:--?[a-z][\w-]*[ =,\]]|class \w+|def \w+\(|raise \w|import |from \w+ import|#(?!\d)|//|\* |(?:echo|printf) [\"'])"
)
_CODE = re.compile(r"^\s+(?:raise|return|self\.|if |for |with |assert |def |\w+ ?= ?|\w+\(|[\^~]+\s*$)")
_IGNORED = re.compile(r"^Exception ignored in|^Exception in thread .{0,60}monitor|--- Logging error ---")
_SOURCE_LINES = 20


def spoken_lines(texts: Sequence[str], grammar: Grammar) -> Iterator[int]:
    """The indices of the lines of a text that a program says in earnest: no frames of tracebacks, no source
    code, nothing in a box that calms itself or in a report of an ignored exception.
    """
    boxed = set(_calm_boxes(texts, grammar))
    under_frame, ignored = False, 0
    for at, text in enumerate(texts):
        if _IGNORED.search(text):
            ignored = _SOURCE_LINES
        if ignored:
            over = (
                ignored < _SOURCE_LINES
                and text[:1].strip()
                and re.match(r"[\w.]*(?:Error|Exception)\b", text)
            )
            ignored = 0 if over else ignored - 1
            continue
        if _SOURCE.match(text):
            continue
        if _FRAME.search(text):
            under_frame = True
            continue
        if under_frame and _CODE.search(text):
            continue
        under_frame = False
        if at not in boxed:
            yield at


def _calm_boxes(texts: Sequence[str], grammar: Grammar) -> Iterator[int]:
    """The lines of boxes between rulers that calm themselves. A box may be cut off at either end of the text."""
    rulers = [-1, *(at for at, text in enumerate(texts) if _RULER.match(text)), len(texts)]
    if len(rulers) == 2:
        return
    for begin, end in pairwise(rulers):
        if 1 < end - begin <= _BOX_LINES and grammar.box.search(" ".join(texts[begin + 1 : end])):
            yield from range(max(0, begin), min(end + 1, len(texts)))
