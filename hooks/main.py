"""`ftrun-hook`, the command that nodes run: standard library only, Python 3.9. (I/O)

A hook runs inside a job or a prolog, and a defect in it must never cost a healthy job. So an internal error
prints one line and exits 0. Only wrong usage exits 2: the administrator who configures the hook sees it
before any job depends on it.
"""

from __future__ import annotations

import importlib
import os
import sys

from ftrun.hooks.runtime.host import UsageError

__all__ = ["COMMANDS", "main"]

# Command -> (module, its function: remaining arguments -> exit status, help). A module is imported only when its command is called.
COMMANDS = {
    "check": ("ftrun.hooks.checks.cmd_check", "main", "check this node and report what is wrong with it"),
    "preflight": ("ftrun.hooks.health.preflight", "main", "check this node before a job's script starts"),
    "post-failure-check": (
        "ftrun.hooks.health.post_failure",
        "main",
        "check this node after a job on it has failed",
    ),
    "watch": ("ftrun.hooks.health.node_monitor", "main", "monitor this node while a job runs on it"),
    "staging-daemon": (
        "ftrun.hooks.staging.daemon",
        "main",
        "publish the checkpoints that a job stages on this node",
    ),
    "guard": (
        "ftrun.hooks.ranks.fence_daemon",
        "main",
        "kill ranks of an earlier start as soon as they appear on this node",
    ),
    "sweep": ("ftrun.hooks.ranks.kill_stale", "main", "kill what earlier starts of a run left on this node"),
    "stacks": ("ftrun.hooks.ranks.stacks", "main", "record what the ranks on this node are doing"),
    "rank": ("ftrun.hooks.ranks.rank_wrapper", "main", "run one rank that can be restarted alone"),
    "prolog": ("ftrun.hooks.health.prolog", "main", "Slurm's Prolog: keep jobs off a bad node"),
    "epilog": ("ftrun.hooks.health.epilog", "main", "Slurm's Epilog: check how a job left this node"),
    "health": (
        "ftrun.hooks.health.health_check",
        "main",
        "Slurm's HealthCheckProgram: check this node periodically",
    ),
    "install": (
        "ftrun.hooks.health.install",
        "main",
        "copy the hooks to a folder for Slurm to call, and print the lines for slurm.conf",
    ),
    "pick": (
        "ftrun.hooks.checkpoints.cmd_pick",
        "main",
        "choose the checkpoint that a start loads, and say why",
    ),
    "verify-checkpoint": (
        "ftrun.hooks.checkpoints.cmd_verify",
        "main",
        "read a run's newest checkpoint to its end, in the background",
    ),
    "receive": (
        "ftrun.hooks.staging.partner_server",
        "main",
        "receive a staged checkpoint's part from another node",
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
        "build the folder that a start on this node resumes from",
    ),
    "pair-test": (
        "ftrun.hooks.health.pair_test",
        "main",
        "test the network between the nodes of a job, in pairs",
    ),
    "version": ("ftrun.hooks.version", "main", "print the version and the Python it runs on"),
}

ALIASES = {
    "after": "post-failure-check",
    "deepen": "verify-checkpoint",
    "keep": "staging-daemon",
    "pairs": "pair-test",
}
"""Former names. Jobs that an older version submitted call a newer zip application by them; the help does not show them."""

AS_THE_USER = frozenset({"prolog", "epilog", "health", "install", "rank", "guard", "staging-daemon"})
"""Commands that keep the caller's umask: root runs them and others read their files, or the user's own processes inherit it.
All others get 077."""

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130  # what a shell reports for SIGINT


def main(argv: list[str] | None = None) -> int:
    """Run `ftrun-hook` with `argv` (default: the process's arguments) and return the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        _help()
        return 0 if arguments else EXIT_USAGE
    name = "version" if arguments[0] == "--version" else ALIASES.get(arguments[0], arguments[0])
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
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001  fail open: a defect here must not end a healthy job
        kind = type(error).__name__
        print(f"ftrun-hook: {name} gave up, the job goes on: {kind}: {error}", file=sys.stderr)
        return 0
    finally:
        os.umask(before)
    return status


def _help() -> None:
    print("usage: ftrun-hook COMMAND [ARGS]\n\nRuns on the nodes of a job. Commands:\n")
    for name, (_, _, line) in COMMANDS.items():
        print(f"  {name:<18} {line}")


if __name__ == "__main__":
    sys.exit(main())
