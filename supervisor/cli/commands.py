"""The table of commands: name, module, one line of help. (pure)

A command is a function, or a `typer.Typer` where it has sub-commands. Its module is imported only when the
command is called. Each command returns its exit status or None, and raises `UserError` for wrong input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Command(NamedTuple):
    """Where a command lives (a module of this room, a name in it), and what one line says about it."""

    module: str
    attribute: str
    help: str


COMMANDS: Mapping[str, Command] = {
    "init": Command("config", "init", "Propose the #FTRUN lines of a script: checkpoints, how to resume."),
    "adopt": Command("adopt", "app", "Look after a job that was submitted by plain sbatch."),
    "status": Command("runs", "status", "The runs under supervision, and who supervises them."),
    "top": Command(
        "runs", "top", "The runs on one screen, kept up to date; keys to stop, pause, resume, cancel."
    ),
    "show": Command("runs", "show", "One run in full: attempts, faults, budgets."),
    "logs": Command("explain", "logs", "The output of a run, across its attempts."),
    "explain": Command("explain", "explain", "Why ftrun took each decision."),
    "history": Command("runs", "history", "The faults of all runs."),
    "stats": Command("stats", "stats", "Where the time of runs went: goodput, faults, repair, node-hours."),
    "report": Command(
        "stats", "report", "What happened to a run, as one HTML file: time, training, faults, proof."
    ),
    "metrics": Command("stats", "metrics", "Series of all runs for Prometheus; a dashboard and alert rules."),
    "cancel": Command("control", "cancel", "End a run now, for good."),
    "stop": Command("control", "stop", "End a run after its next checkpoint, at a step, or before a time."),
    "pause": Command("control", "pause", "Save a checkpoint, release the nodes, and wait for resume."),
    "resume": Command("control", "resume", "Continue a stopped or paused run."),
    "prune": Command("control", "prune", "Remove runs that ended long ago."),
    "doctor": Command("doctor", "doctor", "What this site lets ftrun do, and what is in its way."),
    "supervise": Command("supervise", "supervise", "Supervise the runs: watch, diagnose, recover."),
    "notify": Command("supervise", "notify", "Who gets notices, what waits for them; --test sends one."),
    "nodes": Command("nodes", "app", "The history of nodes: strikes, quarantine, lemons."),
    "preflight": Command("preflight", "preflight", "Check many nodes at once, over SSH or inside a job."),
    "recheck": Command(
        "site", "recheck", "Check the nodes that ftrun drained; return healthy ones to service."
    ),
    "site": Command(
        "site", "app", "The site's service: drain nodes for users who may not, after a check of the node."
    ),
    "cache": Command("cache", "cache", "The compile caches of a run: sizes, versions, hits."),
    "advise": Command(
        "advise", "advise", "What a run's own history says about checkpoints, spares and sizes."
    ),
    "simulate": Command(
        "simulate", "simulate", "What faults would cost a run under different policies, on a virtual cluster."
    ),
    "cluster": Command("cluster", "app", "A private, real Slurm on your own hosts, over SSH, without root."),
    "sandbox": Command("sandbox", "app", "A disposable real Slurm on this machine: try things, break nodes."),
    "drill": Command(
        "drill", "drill", "Inject faults into a real training job on a real Slurm, and watch it recover."
    ),
    "checkpoints": Command(
        "checkpoints",
        "checkpoints",
        "Which checkpoints are complete, which are not and why, and which one the next start takes.",
    ),
    "config": Command("config", "app", "The settings in force, and where each value came from."),
    "trust": Command(
        "config", "trust", "Allow a project's ftrun.toml to set what can run, read or write something."
    ),
    "completion": Command(
        "completion",
        "completion",
        "Print the code that lets a shell complete ftrun's commands, options and runs.",
    ),
    "diagnose": Command(
        "diagnose",
        "diagnose",
        "What went wrong, from logs alone: the cause, the node to blame, whether a retry makes sense.",
    ),
    "catalog": Command(
        "catalog", "app", "The known faults: what each looks like and what ftrun does about it."
    ),
}
