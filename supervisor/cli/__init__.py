"""The command line's front door: `sbatch` leaves here before anything heavy is loaded. (I/O)

How it thinks: `ftrun sbatch` stands in the way of every submission of every user, so this module imports
nothing but `os` and `sys` and hands `sbatch` to its own light parser.  Everything else goes to the typer
application, which loads one family of commands only.  Whatever ends a command is turned into an exit
status here, in one place:

    UserError            `ftrun: ...` on stderr, its own exit code
    Ctrl-C               quiet, 130
    reader went away     quiet, 141 as a shell would report it
    anything else        one line that names a file with the traceback, 70
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from ftrun.supervisor.model.errors import EXIT_INTERNAL, UserError

__all__ = ["main"]

AS_THE_USER = ("sbatch", "sandbox", "drill", "simulate")
"""What goes on with the caller's umask: it is the job's, or that of a command it becomes; what these write themselves has its mode by name."""

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run `ftrun` with `argv` (default: the process's arguments) and return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    before = os.umask(0o077)  # what is ours is nobody else's
    if arguments[:1] and arguments[0] in AS_THE_USER:
        os.umask(before)
    try:
        status = _guarded(lambda: _dispatch(arguments))
    finally:
        os.umask(before)
    return _flushed(status)


def _dispatch(arguments: list[str]) -> int:
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
    from ftrun.supervisor.cli import app

    return app.run(arguments)


def _guarded(command: Callable[[], int]) -> int:
    try:
        return command()
    except UserError as error:
        _say(error.message)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_BROKEN_PIPE
    except SystemExit as end:
        # typer meets a broken pipe before we do, and leaves with 1.
        broken = isinstance(end.__context__, BrokenPipeError)
        return EXIT_BROKEN_PIPE if broken else _status(end.code)
    except Exception as error:  # noqa: BLE001  the last line of defence: a user never sees a traceback
        from ftrun.supervisor.cli import crash

        _say(crash.report(error))
        return EXIT_INTERNAL


def _status(code: object) -> int:
    """Read what was given to sys.exit as Python itself reads it."""
    if isinstance(code, int):
        return code
    if code is not None:
        print(code, file=sys.stderr)
    return int(code is not None)


def _flushed(status: int) -> int:
    """Flush stdout now, while a reader that went away can still be met quietly."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at exit; give it somewhere to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return status


def _say(message: str) -> None:
    print(f"ftrun: {message}", file=sys.stderr)
