"""Options and arguments of commands: short forms of typer's words, and those that several commands share. (pure)"""

from __future__ import annotations

from typing import Annotated, Any

import typer


def option(names: str, told: str, value: str | None = None, **limits: Any) -> Any:
    """An option: its names with a space between them, its help, what its value is called."""
    return typer.Option(*names.split(), help=told, metavar=value, **limits)


def argument(value: str, told: str = "", **more: Any) -> Any:
    """An argument: what it is called, and its help."""
    return typer.Argument(metavar=value, help=told or None, **more)


Json = Annotated[bool, option("--json", "One JSON object on one line.")]
Name = Annotated[str, argument("RUN|JOBID", "A run id, or any job id of the run.")]
