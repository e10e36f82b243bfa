"""The table of commands: what there is, where it lives, one line of help. (pure)

A family of commands is one module of this folder.  Its attribute is a function (one command) or a
`typer.Typer` (a command with sub-commands).  The module is imported only when its command is called.
Each command returns its exit status or None; wrong input is a `UserError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["COMMANDS", "Command"]


class Command(NamedTuple):
    """Where a command lives and what one line says about it."""

    module: str
    attribute: str
    help: str


COMMANDS: Mapping[str, Command] = {
    "supervise": Command(
        "ftrun.supervisor.cli.supervise",
        "supervise",
        "Look after the runs: watch, diagnose, recover.",
    ),
    "sandbox": Command(
        "ftrun.supervisor.cli.sandbox",
        "app",
        "A disposable real Slurm on this machine: try things, break nodes.",
    ),
    "config": Command(
        "ftrun.supervisor.cli.config",
        "app",
        "The settings in force, and where each value came from.",
    ),
}
