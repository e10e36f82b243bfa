"""`ftrun-hook`: what a node runs; standard library only, Python 3.9. (I/O)

How it thinks: a hook stands inside a job or a prolog.  Its own mistake must never cost a healthy job, so an
internal error prints one line and exits 0.  Only wrong usage exits 2: that is found by whoever configures
the hook, before any job depends on it.
"""

from __future__ import annotations

import importlib
import os
import sys

from ftrun.hooks.runtime.host import UsageError

__all__ = ["COMMANDS", "main"]

# Sub-command -> (module, function taking the remaining arguments and returning an exit status, help).
# Each module is imported only when its command is called.
COMMANDS = {
    "check": ("ftrun.hooks.checks.cmd_check", "main", "look at this node and say what is wrong with it"),
    "preflight": ("ftrun.hooks.health.preflight", "main", "check this node before a job's script starts"),
    "after": ("ftrun.hooks.health.post_failure", "main", "check this node after a job on it has failed"),
    "watch": ("ftrun.hooks.health.node_monitor", "main", "look after this node while a job runs on it"),
    "staging-daemon": (
        "ftrun.hooks.staging.daemon",
        "main",
        "publish the checkpoints that a job stages on this node",
    ),
    "guard": (
        "ftrun.hooks.ranks.fence_daemon",
        "main",
        "end ranks of an earlier start as soon as they show on this node",
    ),
    "sweep": ("ftrun.hooks.ranks.kill_stale", "main", "end what earlier starts of a run left on this node"),
    "stacks": ("ftrun.hooks.ranks.stacks", "main", "write down what the ranks on this node are doing"),
    "rank": ("ftrun.hooks.ranks.rank_wrapper", "main", "run one rank that may be started again alone"),
    "prolog": ("ftrun.hooks.health.prolog", "main", "Slurm's Prolog: no job begins on a node that is bad"),
    "epilog": ("ftrun.hooks.health.epilog", "main", "Slurm's Epilog: how a job left this node"),
    "health": (
        "ftrun.hooks.health.health_check",
        "main",
        "Slurm's HealthCheckProgram: look at this node now and then",
    ),
    "install": (
        "ftrun.hooks.health.install",
        "main",
        "copy the hooks to a folder for Slurm to call, and print its lines",
    ),
    "pick": ("ftrun.hooks.checkpoints.cmd_pick", "main", "say which checkpoint a start is to load, and why"),
    "deepen": (
        "ftrun.hooks.checkpoints.cmd_verify",
        "main",
        "read a run's newest checkpoint to its end, in the background",
    ),
    "receive": (
        "ftrun.hooks.staging.partner_server",
        "main",
        "take a staged checkpoint's part from another node",
    ),
    "cache": (
        "ftrun.hooks.compile_cache.cmd",
        "main",
        "fill this node's compile caches, or merge them into the run's",
    ),
    "partner": (
        "ftrun.hooks.staging.partner_client",
        "main",
        "keep a copy of staged checkpoints in another node's memory",
    ),
    "restore": (
        "ftrun.hooks.staging.restore",
        "main",
        "make the folder that a start on this node resumes from",
    ),
    "pairs": ("ftrun.hooks.health.pair_test", "main", "try the network between the nodes of a job, in pairs"),
    "version": ("ftrun.hooks.version", "main", "print the version and the Python it runs on"),
}

AS_THE_USER = frozenset({"prolog", "epilog", "health", "install", "rank", "guard", "staging-daemon"})
"""What has another umask than 077: for root, whose files others read, or above processes and checkpoints of the user's own."""

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # as a shell tells of SIGINT


def main(argv: list[str] | None = None) -> int:
    """Run `ftrun-hook` with `argv` (default: the process's arguments) and return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        _help()
        return 0 if arguments else EXIT_USAGE
    name = "version" if arguments[0] == "--version" else arguments[0]
    if name not in COMMANDS:
        known = ", ".join(COMMANDS)
        print(f"ftrun-hook: no such command: {name}; there are: {known}", file=sys.stderr)
        return EXIT_USAGE
    before = os.umask(0o077)
    if name in AS_THE_USER:
        os.umask(before)
    try:
        module, function, _ = COMMANDS[name]
        status: int = getattr(importlib.import_module(module), function)(arguments[1:])
    except UsageError as error:
        print(f"ftrun-hook: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # whoever reads has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001  fails open: a mistake here must not end a healthy job
        kind = type(error).__name__
        print(f"ftrun-hook: {name} gave up, the job goes on: {kind}: {error}", file=sys.stderr)
        return 0
    finally:
        os.umask(before)
    return status


def _help() -> None:
    print("usage: ftrun-hook COMMAND [ARGS]\n\nRuns on the nodes of a job.  Commands:\n")
    for name, (_, _, line) in COMMANDS.items():
        print(f"  {name:<14} {line}")


if __name__ == "__main__":
    sys.exit(main())
