"""What is new and what is odd in a log that no signature explains. (pure)

How it thinks. A failure that nobody has described still prints something that a healthy run does not. So each line is
reduced to its shape, without numbers, addresses and times, and what was printed while all was well (before the last
step, in an attempt that was not at fault) is usual. Of the rest a line counts for more when its words sound of trouble and when one
node alone says it. The result is no diagnosis: a few lines that a person should read first.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from ftrun.slurm.records import dataclass

__all__ = ["SHOWN_MAX", "Line", "shape", "shapes", "suspects"]

SHOWN_MAX = 5
"""A person reads so many lines."""

_VARIABLE = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+(?:[.,:]\d+)*", re.IGNORECASE)
_SPACE = re.compile(r"\s+")
_RULER = re.compile(r"[\W_]*")
_TROUBLE = (
    (3, re.compile(r"\b(?:error|exception|fatal|panic|abort(?:ed|ing)?|segfault|corrupt\w*|critical)\b|\w+Error\b", re.I)),
    (2, re.compile(r"\b(?:fail(?:ed|ure|s)?|cannot|can't|could not|unable|refused|denied|invalid|killed|timed? ?out|lost|unreachable|dead|not found|no such)\b", re.I)),
    (1, re.compile(r"\b(?:warn(?:ing)?|retry(?:ing)?|unexpected|missing|exit(?:ed|ing)?|terminat\w+|signal)\b", re.I)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log: where it stands, and who wrote it (a node or "rank N"; "" where nobody is named)."""

    file: str
    number: int
    text: str
    speaker: str = ""


def shape(text: str) -> str:
    """The line without what differs each time it is printed; "" for a ruler or an empty line."""
    if _RULER.fullmatch(text):
        return ""
    return _SPACE.sub(" ", _VARIABLE.sub("#", text)).strip().lower()[:200]


def suspects(lines: Sequence[Line], usual: Collection[str] = ()) -> tuple[Line, ...]:
    """The lines that a person should look at, in the order written; () where all is usual.

    `lines` are the last words of an attempt, `usual` the shapes of what is printed when nothing is wrong.
    """
    first: dict[str, Line] = {}
    speakers: dict[str, set[str]] = {}
    for line in lines:
        form = shape(line.text)
        if form and form not in usual:
            first.setdefault(form, line)
            speakers.setdefault(form, set()).add(line.speaker)
    many = len({line.speaker for line in lines if line.speaker}) > 1
    places = {id(line): place for place, line in enumerate(lines)}

    def weight(form: str) -> tuple[int, int]:
        alone = many and len(speakers[form]) == 1 and "" not in speakers[form]
        return (-_trouble(first[form].text) - (2 if alone else 0), places[id(first[form])])

    best = sorted(first, key=weight)[:SHOWN_MAX]
    if all(weight(form)[0] == 0 for form in best):
        # Nothing sounds of trouble: then the last words are as good as any.
        best = list(first)[-SHOWN_MAX:]
    return tuple(sorted((first[form] for form in best), key=lambda line: places[id(line)]))


def shapes(texts: Iterable[str]) -> frozenset[str]:
    """The shapes of all these lines."""
    return frozenset(shape(text) for text in texts)


def _trouble(text: str) -> int:
    return next((weight for weight, words in _TROUBLE if words.search(text)), 0)
