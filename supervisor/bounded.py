"""Patterns whose time is bounded by the length of a line, whatever a user writes into it. (pure)

How it thinks. `re` tries a pattern at each place of a line, and a repetition without an end (`[\\w.]*`) may run to the end of the line from each
of them: a line of 64 KiB made for it would cost many seconds. What a signature repeats is a name, a number or a path, so a repetition of
one kind of character ends after REPEATED_MAX.
"""

from __future__ import annotations

import re

__all__ = ["REPEATED_MAX", "bounded"]

REPEATED_MAX = 256

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_KINDS = frozenset({r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", "."})


def bounded(pattern: str) -> str:
    """`pattern` with an end to each repetition of a kind of character."""
    out: list[str] = []
    kind = False
    for token in _TOKEN.findall(pattern):
        if kind and token in {"*", "+"}:
            out.append(f"{{{int(token == '+')},{REPEATED_MAX}}}")
            kind = False
            continue
        out.append(token)
        kind = token in _KINDS or (len(token) > 1 and token[0] == "[")
    return "".join(out)
