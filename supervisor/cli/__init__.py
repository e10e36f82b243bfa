"""The commands of `ftrun` and their views; `main` is the entry point. (I/O)

Start at `main`, then `commands.COMMANDS`: one row for each command, one module beside this one for each row.
`view_*` turn runs, nodes and checkpoints into the facts that several commands print. This room may import
every other room; no room imports it.

Every submission of every user passes through `ftrun sbatch`, so this module imports almost nothing and gives
`sbatch` to its own light parser. All other commands go to the typer application (`app`), which imports one
command only. `main` alone turns the end of a command into an exit status:

    UserError            `ftrun: ...` on stderr, its own exit code
    Ctrl-C               no message, 130
    stdout was closed    no message, 141 as a shell reports it
    anything else        one line that names a file with the traceback, 70
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from ftrun.supervisor.model.errors import EXIT_INTERNAL, UserError

KEEP_UMASK = ("sbatch", "adopt", "sandbox", "cluster", "drill", "simulate")
"""Commands that keep the caller's umask: the job or the command that they execute inherits it. They set the
modes of their own files.
"""

ASKS_NO_SLURM = (
    "sandbox",
    "cluster",
    "catalog",
    "config",
    "trust",
    "completion",
    "diagnose",
    "init",
    "simulate",
    "__complete",
)
"""Commands that ask no Slurm, or choose it themselves: they are not made clients of the user's cluster."""

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run `ftrun` with `argv` (default: the process's arguments) and return the exit status."""
    if argv is None:
        _leave_own_sbatch()
    arguments = list(sys.argv[1:] if argv is None else argv)
    before = os.umask(0o077)  # files of ftrun are private
    if arguments[:1] and arguments[0] in KEEP_UMASK:
        os.umask(before)
    try:
        status = _exit_status_of(lambda: _dispatch(arguments))
    finally:
        os.umask(before)
    return _flush_stdout(status)


def _leave_own_sbatch() -> None:
    """Begin anew without the user's own `sbatch` that calls ftrun on PATH: neither ftrun nor a job may come back through it."""
    from ftrun.supervisor.submission import sbatch_process

    path = os.environ.get("PATH", "")
    if (without := sbatch_process.path_without_own(path)) != path:
        os.execve(  # noqa: S606  ourselves, with our own words
            sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PATH": without}
        )


def _dispatch(arguments: list[str]) -> int:
    if arguments and not arguments[0].startswith("-") and arguments[0] not in ASKS_NO_SLURM:
        from ftrun.supervisor.cluster import choice

        if name := choice.elsewhere(os.environ, choice.wish_in(arguments[1:])):
            from ftrun.supervisor.cluster import on_head_host

            return on_head_host.run(name, arguments)
    if arguments and arguments[0] == "sbatch":
        from ftrun.supervisor.cli import sbatch

        return sbatch.main(arguments[1:])
    if arguments and arguments[0] == "__complete":
        from ftrun.supervisor.cli import complete

        return complete.main(arguments[1:])
    if arguments == ["--version"]:
        from importlib import metadata

        print(f"ftrun {metadata.version('ftrun')}")
        return 0
    if arguments and not arguments[0].startswith("-") and arguments[0] not in ASKS_NO_SLURM:
        from ftrun.supervisor.cluster import choice

        os.environ.update(choice.changes(os.environ))
    from ftrun.supervisor.cli import app

    return app.run(arguments)


def _exit_status_of(command: Callable[[], int]) -> int:
    try:
        return command()
    except UserError as error:
        _print_error(error.message)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except SystemExit as end:
        # typer catches a broken pipe first and exits with 1.
        broken = isinstance(end.__context__, BrokenPipeError)
        return EXIT_BROKEN_PIPE if broken else _status_of_exit(end.code)
    except Exception as error:  # noqa: BLE001  the last line of defence: a user never sees a traceback
        from ftrun.supervisor.store import crash_report

        _print_error(crash_report.report(error))
        return EXIT_INTERNAL


def _status_of_exit(code: object) -> int:
    """The exit status of an argument of sys.exit, as Python itself derives it."""
    if isinstance(code, int):
        return code
    if code is not None:
        print(code, file=sys.stderr)
    return int(code is not None)


def _flush_stdout(status: int) -> int:
    """Flush stdout now, while a closed pipe can still be handled without a message."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at exit: redirect that to /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return status


def _print_error(message: str) -> None:
    from ftrun.hooks.runtime.formats import plain  # it may hold words of another user

    print(f"ftrun: {plain(message, keep=chr(10))}", file=sys.stderr)
