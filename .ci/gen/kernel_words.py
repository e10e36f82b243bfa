"""Writes a table into hooks/checks/kernel_rules.py: for each rule, words of which one stands in every line that it matches. (I/O)

Read off the expressions by Python's own parser, so that no line is missed; `--check` says whether the file is current.
"""

from __future__ import annotations

import re._constants as op  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import sys
from pathlib import Path
from typing import Any

from ftrun.hooks.checks.kernel_rules import TABLE

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "hooks" / "checks" / "kernel_rules.py"
HEAD = "WORDS: tuple[tuple[str, ...], ...] = (\n"
END = "\n)\n# fmt: on\n"


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
    """The file, with the table in its place."""
    rows = []
    for _, _, _, expression in TABLE:
        found = words(expression)
        rows.append(f"    ({', '.join(map(_quoted, found))}{',' if len(found) == 1 else ''}),\n")
    before, _, after = FILE.read_text(encoding="utf-8").partition(HEAD)
    return before + HEAD + "".join(rows).rstrip("\n") + END + after.partition(END)[2]


def _quoted(word: str) -> str:
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


if __name__ == "__main__":
    wanted = text()
    if sys.argv[1:] == ["--check"]:
        if FILE.read_text(encoding="utf-8") != wanted:
            sys.exit("hooks/checks/kernel_rules.py is not current: run `make docs`")
    else:
        FILE.write_text(wanted, encoding="utf-8")
