"""Sort log lines by when they were written, however they were read. (pure)

The first failure decides who is to blame. So the order must not depend on how a log was read: live or
afterwards, in large or small pieces, one file before the other. Within a file, position is order. Between
files, only the full dates in the lines count. A line without a date takes the date of the dated line before
it in its file, else of the one after it; a file without any date comes last, by its name. The time at which
ftrun saw a line is not used.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Sequence

from ftrun.slurm.records import replace
from ftrun.supervisor.model.types import Evidence

_NEVER = float("inf")
_DATE = re.compile(
    r"(?<!\d)(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?: ?(Z|UTC|[+-]\d\d:?\d\d)\b)?"
)


def sort_by_time_written(evidence: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """Return `evidence` in the order in which it was written, numbered anew from 1, independent of the input
    order.

    Evidence of no file (of Slurm, of a check) keeps its own order, behind the files.
    """
    by_file: dict[str, list[Evidence]] = {}
    for one in evidence:
        by_file.setdefault(one.file, []).append(one)
    placed: list[tuple[tuple[float, str, int, int], Evidence]] = []
    for name, lines in by_file.items():
        lines.sort(key=lambda one: (one.offset_bytes, one.order if not name else 0, one.signature))
        for place, (line, at_s) in enumerate(zip(lines, _times(lines), strict=True)):
            placed.append(((at_s, name or "\uffff", line.offset_bytes, place), line))
    placed.sort(key=lambda pair: pair[0])
    return tuple(replace(one, order=number) for number, (_, one) in enumerate(placed, 1))


def _times(lines: Sequence[Evidence]) -> list[float]:
    """When each line of one file was written, as far as the lines tell; never going back."""
    own = [found[0] if (found := parse_timestamp(line.text)) else None for line in lines]
    last = next((at_s for at_s in own if at_s is not None), _NEVER)
    times = []
    for at_s in own:
        last = max(last, at_s) if at_s is not None and last != _NEVER else last
        times.append(last)
    return times


def parse_timestamp(text: str) -> tuple[float, bool] | None:
    """The first full date in `text` (Unix seconds, UTC unless named), whether it names a zone; or None."""
    match = _DATE.search(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    sane = 1970 <= year <= 2200 and 1 <= month <= 12 and 1 <= day <= 31
    if not sane or hour >= 24 or minute >= 60 or second >= 61:
        return None
    fraction = float(f"0.{match[7]}") if match[7] else 0.0
    zone = match[8]
    ahead_s = 0
    if zone is not None and zone[0] in "+-":
        ahead_s = (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60) * (-1 if zone[0] == "-" else 1)
    return timegm((year, month, day, hour, minute, second)) - ahead_s + fraction, zone is not None
