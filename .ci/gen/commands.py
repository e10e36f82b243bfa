"""Writes docs/commands.md from the commands' own help; `--check` says whether it is current. (I/O)"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import Any

from ftrun.supervisor.cli import app, main
from ftrun.supervisor.cli.commands import COMMANDS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "commands.md"
HEAD = """\
# Commands

Every command that prints facts takes `--json`. Errors are one line on stderr; wrong usage exits with 2.

<!-- Written by `make docs` from the help of the commands; do not edit by hand. -->
"""


def page() -> str:
    """Return the whole page."""
    parts = [HEAD, *(_section(name) for name in sorted(COMMANDS))]
    return "\n".join(parts)


def _section(name: str) -> str:
    lines = [f"## ftrun {name}", "", _help([name])]
    lines += [_help([name, sub]) for sub in _sub_commands(name)]
    return "\n".join(lines)


def _sub_commands(name: str) -> list[str]:
    if name == "sbatch":
        return []  # has a light parser of its own
    command: Any = app.load(name, COMMANDS[name])
    return list(getattr(command, "commands", {}))


def _help(arguments: list[str]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = main([*arguments, "--help"])
    if status:
        raise SystemExit(f"ftrun {' '.join(arguments)} --help exits with {status}")
    text = "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())
    return f"```text\n{text}\n```\n"


if __name__ == "__main__":
    # The same page on every terminal and for every user.
    os.environ.update(COLUMNS="80", NO_COLOR="1", LC_ALL="C.UTF-8")
    wanted = page()
    if "--check" not in sys.argv:
        PAGE.write_text(wanted, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted:
        sys.exit("docs/commands.md is not current: run `make docs`")
