"""Writes supervisor/cli/complete_table.py, the command tree for completion; `--check` says whether it is current. (I/O)"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import tree

PAGE = Path(__file__).resolve().parents[2] / "supervisor" / "cli" / "complete_table.py"
HEAD = '''\
"""The tree of commands for shell completion: written by `make docs`, not by hand. (pure)

Path -> (one line of help, options as (names, kind of value, help), kinds of operands, sub-commands). An operand
with `*` takes all remaining words. The kinds are listed in .ci/gen/tree.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["COMMANDS"]

# fmt: off
COMMANDS: Mapping[str, tuple[str, tuple[tuple[str, str, str], ...], tuple[str, ...], tuple[str, ...]]] = {
'''


def page() -> str:
    """Return the whole module."""
    found = tree.commands()
    top = tuple(command.path for command in found if " " not in command.path)
    general = (
        ("-h --help", "", "Show this message and exit."),
        ("--version", "", "Print the version and exit."),
    )
    rows = [f'    "": ("", {general!r}, (), {top!r}),'.replace("'", '"')]
    for command in found:
        options = tuple((" ".join(one.names), one.kind, _first(one.help)) for one in command.options)
        operands = tuple(one.kind + "*" * one.many for one in command.operands)
        rows.append(f"    {command.path!r}: {(_first(command.line), options, operands, command.members)!r},")
    return HEAD + "\n".join(rows) + "\n}\n"


def _first(text: str) -> str:
    """The first sentence, without what typer adds in brackets."""
    return re.split(r"\.(?: |$)|  \[|[:;] ", text, maxsplit=1)[0].replace("\t", " ")


if __name__ == "__main__":
    os.environ.update(COLUMNS="80", NO_COLOR="1", LC_ALL="C.UTF-8")
    wanted = page()
    if "--check" not in sys.argv:
        PAGE.write_text(wanted, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted:
        sys.exit("supervisor/cli/complete_table.py is not current: run `make docs`")
