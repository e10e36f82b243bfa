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
    "status": Command("ftrun.supervisor.cli.runs", "status", "The runs that are looked after, and by whom."),
    "show": Command("ftrun.supervisor.cli.runs", "show", "One run in full: attempts, faults, budgets."),
    "logs": Command("ftrun.supervisor.cli.explain", "logs", "What the attempts printed, across attempts."),
    "explain": Command("ftrun.supervisor.cli.explain", "explain", "Why each decision was taken."),
    "history": Command("ftrun.supervisor.cli.runs", "history", "The faults of all runs."),
    "cancel": Command("ftrun.supervisor.cli.control", "cancel", "End a run now, for good."),
    "stop": Command(
        "ftrun.supervisor.cli.control", "stop", "End a run after its next checkpoint, at a step, or in time."
    ),
    "pause": Command(
        "ftrun.supervisor.cli.control", "pause", "Save, release the nodes, and wait for resume."
    ),
    "resume": Command("ftrun.supervisor.cli.control", "resume", "Let a stopped or paused run go on."),
    "prune": Command("ftrun.supervisor.cli.prune", "prune", "Remove runs that have been over for long."),
    "doctor": Command(
        "ftrun.supervisor.cli.doctor", "doctor", "What this site lets ftrun do, and what is in its way."
    ),
    "supervise": Command(
        "ftrun.supervisor.cli.supervise",
        "supervise",
        "Look after the runs: watch, diagnose, recover.",
    ),
    "nodes": Command(
        "ftrun.supervisor.cli.nodes", "app", "What is known of nodes: strikes, quarantine, lemons."
    ),
    "preflight": Command(
        "ftrun.supervisor.cli.preflight", "preflight", "Check many nodes at once, over SSH or inside a job."
    ),
    "recheck": Command(
        "ftrun.supervisor.cli.recheck",
        "recheck",
        "Look at the nodes that ftrun drained; give back those that are well again.",
    ),
    "site": Command(
        "ftrun.supervisor.cli.site",
        "site",
        "Drain nodes for users who may not: signed requests, checked at the node.",
    ),
    "cache": Command(
        "ftrun.supervisor.cli.cache", "cache", "The compile caches of a run: sizes, versions, hits."
    ),
    "advise": Command(
        "ftrun.supervisor.cli.advise",
        "advise",
        "What a run's own history says about checkpoints, spares and sizes.",
    ),
    "simulate": Command(
        "ftrun.supervisor.cli.simulate",
        "simulate",
        "What faults would cost a run, by who looks after it: ftrun's policy on a virtual cluster.",
    ),
    "sandbox": Command(
        "ftrun.supervisor.cli.sandbox",
        "app",
        "A disposable real Slurm on this machine: try things, break nodes.",
    ),
    "drill": Command(
        "ftrun.supervisor.cli.drill",
        "drill",
        "Hurt a real training job on a real Slurm, and watch it recover.",
    ),
    "checkpoints": Command(
        "ftrun.supervisor.cli.checkpoints",
        "checkpoints",
        "Which checkpoints are whole, which are not and why, and which one the next start takes.",
    ),
    "config": Command(
        "ftrun.supervisor.cli.config",
        "app",
        "The settings in force, and where each value came from.",
    ),
    "trust": Command(
        "ftrun.supervisor.cli.config",
        "trust",
        "Let a project's ftrun.toml run, read and write something.",
    ),
    "completion": Command(
        "ftrun.supervisor.cli.completion",
        "completion",
        "Print the code that lets a shell complete ftrun's commands, options and runs.",
    ),
    "diagnose": Command(
        "ftrun.supervisor.cli.diagnose",
        "diagnose",
        "What went wrong, from logs alone: the cause, the culprit, whether another try makes sense.",
    ),
    "catalog": Command(
        "ftrun.supervisor.cli.catalog",
        "app",
        "The known faults: what each looks like and what is done about it.",
    ),
}
