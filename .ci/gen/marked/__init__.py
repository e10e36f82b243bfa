"""A part of a page between two marks that is written by a generator; `--check` compares. (I/O)"""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"


def keep_current(name: str, what: str, begin: str, end: str, content: str) -> None:
    """Write `content`, called `what`, between the marks of docs/NAME or, with --check, exit with a line where it is not what stands there."""
    page = DOCS / name
    present = page.read_text(encoding="utf-8")
    if present.count(begin) != 1 or present.count(end) != 1:
        raise SystemExit(f"{name} must have these two lines once:\n{begin}\n{end}")
    before, rest = present.split(begin)
    renewed = f"{before}{begin}\n{content}\n{end}{rest.split(end)[1]}"
    if "--check" not in sys.argv:
        page.write_text(renewed, encoding="utf-8")
    elif present != renewed:
        sys.exit(f"{what} in docs/{name} is not current: run `make docs`")
