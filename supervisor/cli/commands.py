"""The table of commands: name, module, one line of help. (pure)

A command is a function, or a `typer.Typer` where it has sub-commands. Its module is imported only when the
command is called. Each command returns its exit status or None, and raises `UserError` for wrong input.
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
    "status": Command(
        "ftrun.supervisor.cli.runs", "status", "The runs under supervision, and who supervises them."
    ),
    "show": Command("ftrun.supervisor.cli.runs", "show", "One run in full: attempts, faults, budgets."),
    "logs": Command("ftrun.supervisor.cli.explain", "logs", "The output of a run, across its attempts."),
    "explain": Command("ftrun.supervisor.cli.explain", "explain", "Why ftrun took each decision."),
    "history": Command("ftrun.supervisor.cli.runs", "history", "The faults of all runs."),
    "cancel": Command("ftrun.supervisor.cli.control", "cancel", "End a run now, for good."),
    "stop": Command(
        "ftrun.supervisor.cli.control",
        "stop",
        "End a run after its next checkpoint, at a step, or before a time.",
    ),
    "pause": Command(
        "ftrun.supervisor.cli.control", "pause", "Save a checkpoint, release the nodes, and wait for resume."
    ),
    "resume": Command("ftrun.supervisor.cli.control", "resume", "Continue a stopped or paused run."),
    "prune": Command("ftrun.supervisor.cli.prune", "prune", "Remove runs that ended long ago."),
    "doctor": Command(
        "ftrun.supervisor.cli.doctor", "doctor", "What this site lets ftrun do, and what is in its way."
    ),
    "supervise": Command(
        "ftrun.supervisor.cli.supervise",
        "supervise",
        "Supervise the runs: watch, diagnose, recover.",
    ),
    "nodes": Command(
        "ftrun.supervisor.cli.nodes", "app", "The history of nodes: strikes, quarantine, lemons."
    ),
    "preflight": Command(
        "ftrun.supervisor.cli.preflight", "preflight", "Check many nodes at once, over SSH or inside a job."
    ),
    "recheck": Command(
        "ftrun.supervisor.cli.recheck",
        "recheck",
        "Check the nodes that ftrun drained; return healthy ones to service.",
    ),
    "site": Command(
        "ftrun.supervisor.cli.site",
        "site",
        "The site's service: drain nodes for users who may not, after a check of the node.",
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
        "What faults would cost a run under different policies, on a virtual cluster.",
    ),
    "sandbox": Command(
        "ftrun.supervisor.cli.sandbox",
        "app",
        "A disposable real Slurm on this machine: try things, break nodes.",
    ),
    "drill": Command(
        "ftrun.supervisor.cli.drill",
        "drill",
        "Inject faults into a real training job on a real Slurm, and watch it recover.",
    ),
    "checkpoints": Command(
        "ftrun.supervisor.cli.checkpoints",
        "checkpoints",
        "Which checkpoints are complete, which are not and why, and which one the next start takes.",
    ),
    "config": Command(
        "ftrun.supervisor.cli.config",
        "app",
        "The settings in force, and where each value came from.",
    ),
    "trust": Command(
        "ftrun.supervisor.cli.config",
        "trust",
        "Allow a project's ftrun.toml to set what can run, read or write something.",
    ),
    "completion": Command(
        "ftrun.supervisor.cli.completion",
        "completion",
        "Print the code that lets a shell complete ftrun's commands, options and runs.",
    ),
    "diagnose": Command(
        "ftrun.supervisor.cli.diagnose",
        "diagnose",
        "What went wrong, from logs alone: the cause, the node to blame, whether a retry makes sense.",
    ),
    "catalog": Command(
        "ftrun.supervisor.cli.catalog",
        "app",
        "The known faults: what each looks like and what ftrun does about it.",
    ),
}
