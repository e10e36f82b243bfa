"""`ftrun-hook`, the command that nodes run: standard library only, Python 3.9. (I/O)

A hook runs inside a job or a prolog, and a defect in it must never cost a healthy job. So an internal error
prints one line and exits 0. Only wrong usage exits 2: the administrator who configures the hook sees it
before any job depends on it.
"""

from __future__ import annotations

import importlib
import os
import sys

from ftrun.hooks.runtime import UsageError

# Command -> (module below ftrun.hooks, help). The module is imported when its command is called, and its `main`
# takes the remaining arguments.
COMMANDS = {
    "check": ("checks.cmd_check", "check this node and report what is wrong with it"),
    "preflight": ("health.preflight", "check this node before a job's script starts"),
    "post-failure-check": ("health.post_failure", "check this node after a job on it has failed"),
    "watch": ("health.node_monitor", "monitor this node while a job runs on it"),
    "staging-daemon": ("staging.daemon", "publish the checkpoints that a job stages on this node"),
    "guard": ("ranks.fence_daemon", "kill ranks of an earlier start as soon as they appear on this node"),
    "sweep": ("ranks.kill_stale", "kill what earlier starts of a run left on this node"),
    "stacks": ("ranks.stacks", "record what the ranks on this node are doing"),
    "rank": ("ranks.rank_wrapper", "run one rank that can be restarted alone"),
    "prolog": ("health.prolog", "Slurm's Prolog: keep jobs off a bad node"),
    "epilog": ("health.epilog", "Slurm's Epilog: check how a job left this node"),
    "health": ("health.health_check", "Slurm's HealthCheckProgram: check this node periodically"),
    "install": (
        "health.install",
        "copy the hooks to a folder for Slurm to call, and print the lines for slurm.conf",
    ),
    "pick": ("checkpoints.cmd_pick", "choose the checkpoint that a start loads, and say why"),
    "verify-checkpoint": (
        "checkpoints.cmd_verify",
        "read a run's newest checkpoint to its end, in the background",
    ),
    "mlflow-run": ("progress.mlflow_run", "find the MLflow run that an earlier start of this run began"),
    "receive": ("staging.partner_server", "receive a staged checkpoint's part from another node"),
    "cache": ("compile_cache.cmd", "fill this node's compile caches, or merge them into the run's"),
    "restore": ("staging.restore", "build the folder that a start on this node resumes from"),
    "pair-test": ("health.pair_test", "test the network between the nodes of a job, in pairs"),
    "host": ("cluster.cmd_host", "carry out a request of `ftrun cluster` on this host"),
    "version": ("version", "print the version and the Python it runs on"),
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
        status: int = importlib.import_module(f"ftrun.hooks.{COMMANDS[name][0]}").main(arguments[1:])
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
    for name, (_, line) in COMMANDS.items():
        print(f"  {name:<18} {line}")


if __name__ == "__main__":
    sys.exit(main())
