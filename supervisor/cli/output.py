"""How every command prints: JSON for programs, tables for people. (I/O)

rich is loaded on the first table that a terminal shows; JSON and tables into a pipe never load it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "emit_json", "is_terminal", "say", "table"]


def is_terminal(stream: TextIO | None = None) -> bool:
    """Say whether a person reads `stream` (default: stdout)."""
    stream = sys.stdout if stream is None else stream
    return stream.isatty()


def emit_json(value: object) -> None:
    """Print `value` as one line of JSON on stdout.

    Dataclasses, msgspec Structs, enums, paths, sets and datetimes are allowed anywhere in it; sets come out
    sorted, so that the same facts print the same line.
    """
    print(json.dumps(value, default=_plain, ensure_ascii=False))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
    """Print `rows` under `columns` on stdout; every row has one cell for each column.

    On a terminal a rich table, as wide as the terminal; elsewhere plain aligned columns, one line for each
    row and never shortened, so that `grep` and `awk` see whole values.  None prints as `-`.
    """
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    if is_terminal():
        _rich_table(columns, cells, title)
    else:
        _plain_table(columns, cells)


def say(line: str, *, style: str) -> None:
    """Print one line on stdout, in `style` (rich's words) where a person reads it."""
    if is_terminal():
        console().print(line, style=style, markup=False, soft_wrap=True)
    else:
        print(line)


@cache
def console() -> Console:
    """Return the process's rich console on stdout: colour on a terminal only, NO_COLOR respected."""
    from rich.console import Console

    return Console(no_color=bool(os.environ.get("NO_COLOR")), highlight=False, emoji=False)


def _rich_table(columns: Sequence[str], cells: list[list[str]], title: str) -> None:
    from rich.table import Table
    from rich.text import Text

    view = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        view.add_column(column, overflow="fold")
    for row in cells:
        # Text, so that a node set such as gpu[1-4] is not read as markup.
        view.add_row(*(Text(cell) for cell in row))
    console().print(view)


def _plain_table(columns: Sequence[str], cells: list[list[str]]) -> None:
    lines = [list(columns), *([" ".join(cell.split()) for cell in row] for row in cells)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _plain(value: object) -> Any:
    """Turn what JSON has no word for into what it has."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if hasattr(value, "__struct_fields__"):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (PurePath, Exception)):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be printed as JSON")
