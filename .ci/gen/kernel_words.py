"""Writes hooks/kernel_words.py: for each rule about the kernel's log, words of which one stands in every line that it matches. (I/O)

Read off the expressions by Python's own parser, so that no line is missed; `--check` says whether the file is current.
"""

from __future__ import annotations

import re._constants as op  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import sys
from pathlib import Path
from typing import Any

from ftrun.hooks.kernel_faults import TABLE

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "hooks" / "kernel_words.py"
HEAD = '''"""Words of which one stands in every line that a rule of kernel_faults matches, in the order of its table. (pure)

Written by `make docs` from the expressions there; do not edit by hand.
"""

from __future__ import annotations

__all__ = ["WORDS"]

# fmt: off
WORDS: tuple[tuple[str, ...], ...] = (
'''


def words(expression: str) -> tuple[str, ...]:
    """Texts of which one is part of whatever `expression` matches; () where there are none."""
    parsed = parser.parse(expression)
    if parsed.state.flags & op.SRE_FLAG_IGNORECASE:
        return ()
    return tuple(sorted(_needed(parsed) or ()))


def _needed(sequence: Any) -> set[str] | None:
    found: list[set[str]] = []
    run = ""
    for kind, value in [*sequence, (None, None)]:
        if kind is op.LITERAL:
            run += chr(value)
            continue
        if run:
            found.append({run})
            run = ""
        below: set[str] | None = None
        if kind is op.SUBPATTERN:
            below = None if value[1] & op.SRE_FLAG_IGNORECASE else _needed(value[3])
        elif kind is op.MAX_REPEAT and value[0] > 0:
            below = _needed(value[2])
        elif kind is op.BRANCH:
            several = [_needed(one) for one in value[1]]
            below = set().union(*[one for one in several if one]) if all(several) else None
        if below:
            found.append(below)
    # The longest are the rarest.
    return max(found, key=lambda one: (min(map(len, one)), -len(one)), default=None)


def text() -> str:
    """The file."""
    rows = []
    for _, _, _, expression in TABLE:
        found = words(expression)
        rows.append(f"    ({', '.join(map(_quoted, found))}{',' if len(found) == 1 else ''}),\n")
    return HEAD + "".join(rows) + ")\n"


def _quoted(word: str) -> str:
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


if __name__ == "__main__":
    wanted = text()
    if sys.argv[1:] == ["--check"]:
        if FILE.read_text(encoding="utf-8") != wanted:
            sys.exit("hooks/kernel_words.py is not current: run `make docs`")
    else:
        FILE.write_text(wanted, encoding="utf-8")
