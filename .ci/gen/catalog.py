"""Writes docs/catalog.md from the signatures; `--check` says whether it is current. (I/O)"""

from __future__ import annotations

import sys
from pathlib import Path

from ftrun.supervisor import signatures
from ftrun.supervisor.model import FaultClass
from ftrun.supervisor.signatures import Signature

PAGE = Path(__file__).resolve().parents[2] / "docs" / "catalog.md"
HEAD = """\
# The known faults

A signature is a pattern for one line of text, with the class of fault, whom to blame and what to do, and with examples
and counter-examples that prove it. Of several signatures on one line the one with the highest priority speaks. A `cause`
can be the reason by itself, `either` is one only where nothing better is known, a `consequence` is counted and never
blamed, and `info` is no fault. `ftrun catalog show SIGNATURE` prints all of one, `ftrun catalog test LOG` what
they find in a file. A site's own files (the same form, in folders named by `FTRUN_CATALOG`, joined by `:`) are
checked by `ftrun catalog check`.

<!-- Written by `make docs` from the signatures; do not edit by hand. -->
"""


def page() -> str:
    """Return the whole page."""
    known = signatures.load().signatures
    parts = [HEAD, f"There are {len(known)} signatures.\n"]
    for fault in FaultClass:
        of_class = sorted(
            (signature for signature in known if signature.fault is fault),
            key=lambda signature: (-signature.priority, signature.id),
        )
        if of_class:
            parts.append("\n".join([f"## {fault}", "", *_table(of_class)]) + "\n")
    return "\n".join(parts)


def _table(of_class: list[Signature]) -> list[str]:
    rows = ["| signature | what it is | role | blame | do | retry |", "|---|---|---|---|---|---|"]
    rows += [
        f"| `{s.id}` | {s.title}{'. ' + s.advice if s.advice else ''} | {s.role} | {s.blame} | {s.action} | {'yes' if s.retry else 'no'} |"
        for s in of_class
    ]
    return rows


if __name__ == "__main__":
    wanted = page()
    if "--check" not in sys.argv:
        PAGE.write_text(wanted, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted:
        sys.exit("docs/catalog.md is not current: run `make docs`")
