"""`ftrun-hook post-failure-check`: fast checks of a node whose job has just failed, as a report. (I/O)

The job's processes, with their ports and memory, may still be there. So what a node needs *before* a job is
not checked, only what shows that the node itself is broken. The report in the attempt's folder is written
before time is up, with `unknown` for checks that did not answer.
"""

from __future__ import annotations

import argparse
import contextlib
import time

from ftrun.hooks.checks import catalogue, runner, thresholds
from ftrun.hooks.runtime import node_report
from ftrun.hooks.runtime.command_line import parser_of
from ftrun.hooks.runtime.slurm_env import node_name

WITHIN_S = 12.0
NOT_AFTERWARDS = frozenset(
    ["disk-size cache", "folder-room", "gpu-memory", "gpu-processes", "hugepages", "port-free", "ulimit"]
)
"""Checks of what a job needs to start."""


def main(arguments: list[str]) -> int:
    """Check this node, write its report. Always 0: this step's status must not become the job's in Slurm."""
    words = _parser().parse_args(arguments)
    chosen = [check for check in catalogue.checks("fast") if check.name not in NOT_AFTERWARDS]
    node = node_name(words.node)
    settings = thresholds.read(words.settings, node)
    if settings is None:
        return 0
    counting = [one.name for one in chosen if words.since and "since_s" in one.thresholds]
    for name in counting:
        # The kernel log and the uptime count from the start of the script; settings of the site take
        # precedence.
        settings[name] = {"since_s": words.since, **settings.get(name, {})}
    root = words.root.replace("{node}", node)
    reports = runner.run(chosen, settings=settings, budget_s=words.within, root=root)
    report = runner.report_of(reports, kind="after", node=node, at_s=time.time(), tier="fast", root=root)
    # Findings of these checks appeared while the job ran; others may be older.
    report["since"] = [name for name in counting if settings[name]["since_s"] == words.since]
    if words.start:
        report["start"] = words.start
    with contextlib.suppress(OSError):
        node_report.write_report(words.folder, words.launch, report)
    return 0


def _parser() -> argparse.ArgumentParser:
    text = "Check this node after a job on it has failed."
    parser = parser_of("post-failure-check", text, "--folder", "--launch", "--node", "--root")
    add = parser.add_argument
    text = f"thresholds by check, as JSON (default: {thresholds.SITES_OWN})"
    add("--settings", default="", metavar="FILE", help=text)
    text = "when the script began, in seconds of the epoch"
    add("--since", type=float, default=0.0, metavar="TIME", help=text)
    add("--start", type=int, default=0, help="the number of the script's start in this launch")
    add("--within", type=float, default=WITHIN_S, metavar="SECONDS", help="end within this time")
    return parser
