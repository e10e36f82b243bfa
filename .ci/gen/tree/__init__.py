"""The command tree as plain records, read from typer's own objects: what completion and the man pages are made from. (I/O)

The kinds of a value, for completion: "" a flag, "any" nothing to offer, "run" a run or a job id, "signature", "file", "dir", "partition" and "node" names that Slurm
knows, "=a b c" these words. Two kinds are joined by "+".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ftrun.hooks.checks import catalogue
from ftrun.hooks.runtime.finding import TIERS
from ftrun.slurm.sandbox.handle import HOWS
from ftrun.supervisor.cli import app
from ftrun.supervisor.cli.commands import COMMANDS
from ftrun.supervisor.drill.runner import user_scenarios
from ftrun.supervisor.model.types import FaultClass
from ftrun.supervisor.simulator import presets

__all__ = ["Command", "Operand", "Option", "commands"]

_CLASSES = "=" + " ".join(fault.value for fault in FaultClass)
# Values that the metavar alone tells.
_BY_METAVAR = {
    "RUN|JOBID": "run",
    "RUN|DIR|GLOB": "run+file",
    "SIGNATURE": "signature",
    "CLASS": _CLASSES,
    "CLASS|SIGNATURE": f"signature+{_CLASSES}",
    "FILE": "file",
    "FILE.toml": "file",
    "LOG": "file",
    "NODE": "node",
    "NODES": "node",
    "CMD [ARGS]": "file",
}
# Values that a command looks at itself: (command, the parameter's name in Python).
_OF_COMMANDS = {
    ("drill", "names"): "=" + " ".join(sorted(scenario.name for scenario in user_scenarios())),
    ("preflight", "checks"): "="
    + " ".join(sorted({check.name for check in catalogue.checks(TIERS[-1]) if " " not in check.name})),
    ("preflight", "tier"): "=" + " ".join(TIERS),
    ("preflight", "partition"): "partition",
    ("simulate", "preset"): "=" + " ".join(presets.names()),
    ("sandbox break", "how"): "=" + " ".join(HOWS),
    ("sandbox break", "node"): "any",  # of a cluster that is not asked
    ("sandbox mend", "node"): "any",
    ("catalog test", "engine"): "=auto hyperscan re",
    ("completion", "shell"): "=bash zsh fish",
}


@dataclass(frozen=True)
class Option:
    """One option: its names, the word for its value ("" for a flag), the kind of that value, what its help says, as typer prints it."""

    names: tuple[str, ...]
    value: str
    kind: str
    help: str


@dataclass(frozen=True)
class Operand:
    """One argument that is no option. `shown`: as in the usage line; `many`: it takes all that is left."""

    shown: str
    kind: str
    many: bool
    help: str


@dataclass(frozen=True)
class Command:
    """One command: `path` as typed ("nodes show"), `line` in the list of its kin, `help` in paragraphs, `members` the names of its sub-commands."""

    path: str
    line: str
    help: str
    options: tuple[Option, ...]
    operands: tuple[Operand, ...]
    members: tuple[str, ...]


def commands() -> list[Command]:
    """Every command but sbatch (whose options are sbatch's and the settings), each before its sub-commands, in the order of the table."""
    known: set[tuple[str, str]] = set()
    found = [
        command
        for name, row in COMMANDS.items()
        for command in _command(name, row.help, app.load(name, row), known)
    ]
    if dead := set(_OF_COMMANDS) - known:
        raise SystemExit(f"no command has these parameters any more: {sorted(dead)}")
    return found


def _command(path: str, line: str, made: Any, known: set[tuple[str, str]]) -> Iterator[Command]:
    context = made.context_class(made, info_name=f"ftrun {path}", **made.context_settings)
    known.update((path, parameter.name) for parameter in made.params)
    options, operands = [], []
    for parameter in made.get_params(context):
        if parameter.hidden:
            continue
        # Short names first, as in the help; typer keeps those of --help in a set.
        names = tuple(sorted((name for name in parameter.opts if name.startswith("-")), key=len))
        shown, told = parameter.get_help_record(context) or ("", "")
        if names:
            flag = parameter.is_flag or parameter.name == "help"
            value = "" if flag else re.sub(r"^(-\S+ )+", "", shown.strip())
            options.append(Option(names, value, "" if flag else _kind(path, parameter), told))
        else:
            operands.append(Operand(_shown(parameter), _kind(path, parameter), parameter.nargs == -1, told))
    members = getattr(made, "commands", {})
    yield Command(path, line, made.help or "", tuple(options), tuple(operands), tuple(members))
    for name, member in members.items():
        yield from _command(f"{path} {name}", (member.help or "").partition("\n")[0], member, known)


def _shown(parameter: Any) -> str:
    """`RUN|JOBID`, `NODE...`, `[CHECK...]`: typer adds brackets to those that a metavar has already."""
    name = re.sub(r"^\[(.*)\]$", r"\1", (parameter.metavar or parameter.name.upper()).removesuffix("..."))
    many = "..." * (parameter.nargs == -1)
    return f"{name}{many}" if parameter.required else f"[{name}{many}]"


def _kind(path: str, parameter: Any) -> str:
    if (path, parameter.name) in _OF_COMMANDS:
        return _OF_COMMANDS[path, parameter.name]
    if parameter.type.name == "path":
        return "dir" if "folder" in parameter.name else "file"
    metavar = re.sub(r"^--\s+|[\[\]]|\.\.\.$", "", parameter.metavar or "").strip()
    return _BY_METAVAR.get(metavar.removesuffix("..."), "any")
