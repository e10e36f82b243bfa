"""The typer application: it lists every command and imports only the one that is called. (I/O)

`ftrun --help` prints the table of commands, with a stub for each. When typer resolves the command that was
typed, `LazyGroup` replaces the stub by the real command.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import sys
from typing import Any

import typer
import typer.core
import typer.main

from ftrun.supervisor.cli.commands import COMMANDS, Command
from ftrun.supervisor.model.errors import EXIT_USAGE, UserError

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


class LazyGroup(typer.core.TyperGroup):
    """A group whose members are stubs until they are called."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, command in COMMANDS.items():
            self.commands[name] = typer.core.TyperCommand(name=name, help=command.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Replace the stub by the real command, then let typer continue."""
        if args and args[0] in COMMANDS:
            self.commands[args[0]] = load(args[0], COMMANDS[args[0]])
        return super().resolve_command(ctx, args)


def run(arguments: list[str]) -> int:
    """Run `ftrun` with `arguments` and return the exit status.

    Raises UserError for wrong usage.  Without arguments the help goes to stderr, as wrong usage.
    """
    if not arguments:
        with contextlib.redirect_stdout(sys.stderr):
            _root().main(args=["--help"], prog_name="ftrun", standalone_mode=False)
        return EXIT_USAGE
    if not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        raise UserError(_no_such_command(arguments[0]))
    try:
        status = _root().main(args=arguments, prog_name="ftrun", standalone_mode=False)
    except typer.Abort:
        return 130
    except typer.TyperException as error:
        if error.format_message().startswith("Usage:"):
            # A group called without a sub-command: its help, as wrong usage.
            print(error.format_message(), file=sys.stderr)
            return EXIT_USAGE
        raise UserError(_one_line(error), EXIT_USAGE) from None
    return status if isinstance(status, int) else 0


def load(name: str, command: Command) -> Any:
    """Import the module of `command` and return typer's object for it."""
    found = getattr(importlib.import_module(f"{__package__}.{command.module}"), command.attribute)
    if not isinstance(found, typer.Typer):
        application = typer.Typer()
        application.command(name, help=found.__doc__ or command.help)(found)
        found = application
    elif not isinstance(found.info.help, str):
        found.info.help = command.help
    # The same plain help for all commands, in a pipe and in docs/ as well, and no second completion.
    found.rich_markup_mode = None
    return _as_command(found, name)


def _as_command(application: typer.Typer, name: str) -> Any:
    application._add_completion = False  # noqa: SLF001  typer takes it only in the constructor
    application.info.context_settings = HELP_OPTIONS
    for info in application.registered_commands:
        info.context_settings = {**HELP_OPTIONS, **(info.context_settings or {})}
    made = typer.main.get_command(application)
    made.name = name
    return made


def _root() -> Any:
    application = typer.Typer(
        name="ftrun",
        cls=LazyGroup,
        help="Fault-tolerant job supervisor for Slurm: write `ftrun sbatch` where you wrote `sbatch`.\n\n"
        "It takes every option of sbatch, whose help `ftrun sbatch --help` shows, and each setting as --ft-NAME;"
        " `ftrun config show` lists the settings.",
        epilog="See `ftrun COMMAND --help`.  Every command that prints facts takes --json.",
        rich_markup_mode=None,
        add_completion=False,  # `ftrun completion` answers in a fraction of the time, without loading typer
        context_settings=HELP_OPTIONS,
    )
    application.callback()(_options)
    return typer.main.get_command(application)


def _options(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),  # noqa: ARG001
) -> None:
    # `main` answers `--version` before typer is loaded; the option is here for the help.
    return None


_MEANT = {
    **dict.fromkeys(("run", "submit", "start", "launch", "train"), "did you mean `ftrun sbatch`?"),
    **dict.fromkeys(("list", "ls", "ps", "jobs", "squeue"), "did you mean `ftrun status`?"),
    **dict.fromkeys(("kill", "scancel", "delete"), "did you mean `ftrun cancel`?"),
    **dict.fromkeys(("sacct", "events"), "did you mean `ftrun history`?"),
    **dict.fromkeys(("why", "reason"), "did you mean `ftrun explain`?"),
    **dict.fromkeys(("watch", "ui", "dashboard", "monitor", "board", "htop"), "did you mean `ftrun top`?"),
    "srun": "write srun in the script that ftrun sbatch submits",
    "salloc": "ftrun looks after batch jobs: `ftrun sbatch SCRIPT`",
    "sinfo": "did you mean `ftrun nodes`?",
}
"""Other programs' words for what a person may want of ftrun."""


def _no_such_command(typed: str) -> str:
    known = [
        name for name in ("sbatch", *COMMANDS) if name != "prune" or typed.startswith("pr")
    ]  # it removes
    near = difflib.get_close_matches(typed, known, n=1, cutoff=0.6)
    hint = f"did you mean `ftrun {near[0]}`?" if near else "`ftrun --help` lists them"
    return f"no such command: {typed}; {_MEANT.get(typed, hint)}"


def _one_line(error: typer.TyperException) -> str:
    message = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    where = f" (`{context.command_path} --help` tells more)" if context is not None else ""
    return f"{message}{where}"
