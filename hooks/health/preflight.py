"""`ftrun-hook preflight`: checks each node before a job's script starts; one node draws the verdict. (I/O)

batch.sh makes two calls. The first runs on every node at once and writes a report into the attempt's folder;
bad results are checked twice. The second, `--verdict`, runs on the first node when all are done or time is
up, and reads the reports: what a minority of the nodes shows is those nodes' fault, what most of them show is
the site's, and missing or unknown results are held against no node (see `outliers`). The only node of a job is
compared with nodes of its kind in earlier jobs (see `past_checks`). Only its status
EXIT_HELD keeps the script from starting; a defect of ours, a full disk or a crashed Python let it start. Each
call imports only what it needs: the job waits.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ftrun.hooks.checks import thresholds
from ftrun.hooks.runtime import node_report
from ftrun.hooks.runtime.command_line import parser_of
from ftrun.hooks.runtime.finding import SEVERITIES, TIERS
from ftrun.hooks.runtime.host import Machine, NoAnswer
from ftrun.hooks.runtime.node_report import SCHEMA, parse_report
from ftrun.hooks.runtime.slurm_env import node_name

if TYPE_CHECKING:
    from ftrun.hooks.health.outliers import Verdict

KIND = "preflight"
EXIT_HELD = 69
"""The script must not start here. A number that no interpreter, shell or signal returns by itself."""
RECORD = "preflight"
"""`preflight.<launch>` in the attempt's folder: the findings, and whether the script was held."""

WITHIN_S = 12.0
AGAIN_WITHIN_S = 3.0
REPORT_BYTES_MAX = 1 << 20
NAMED_MAX = 8
SIX = ("dns", "disk-size root", "disk-size shm", "disk-size cache", "ulimit", "gpu-check")


def main(arguments: list[str]) -> int:
    """Check this node (0 always), or draw the verdict (EXIT_HELD: the script must not start)."""
    words = _parser().parse_args(arguments)
    if words.verdict:
        return _summed_up(words)
    node = node_name(words.node)
    settings = thresholds.read(words.settings, node)
    if settings is not None:
        from ftrun.hooks.checks import catalogue, runner

        chosen = catalogue.checks(words.tier, words.names)
        root = words.root.replace("{node}", node)
        reports = runner.run_confirmed(
            chosen, settings=settings, budget_s=words.within, again_s=lambda: AGAIN_WITHIN_S, root=root
        )
        report = runner.report_of(reports, kind=KIND, node=node, at_s=time.time(), tier=words.tier, root=root)
        node_report.write_report(words.folder, words.launch, report)
    return 0


def _summed_up(words: argparse.Namespace) -> int:
    from ftrun.hooks.health.outliers import verdict

    reports = {}
    start = os.path.join(words.folder, f"{KIND}.{words.launch}.")
    for path in glob.glob(f"{glob.escape(start)}*.json"):
        with open(path, encoding="utf-8") as stream:
            report = parse_report(stream.read(REPORT_BYTES_MAX))
        if report is not None:
            reports[path[len(start) : -len(".json")]] = report["findings"]
    found = verdict(reports, words.nodes, _nodes())
    earlier = 0
    if words.history:
        from ftrun.hooks.health import past_checks

        now_s, partition = time.time(), os.environ.get("SLURM_JOB_PARTITION", "")
        if words.nodes == len(reports) == 1:
            (rows,) = reports.values()
            past = past_checks.read(
                past_checks.file_of(words.history, rows, partition, words.settings), now_s
            )
            found = past_checks.verdict_by_past(reports, past)
            earlier = len(past.keys() - reports.keys())
        with contextlib.suppress(OSError):  # then later jobs know less
            past_checks.add(words.history, partition, words.settings, reports, now_s)
    held = bool(found.bad) and not words.report_only
    for line in [*_items(reports), *_told(found, len(reports), words.nodes, earlier, held=held)]:
        print(f"ftrun: preflight: {line}", file=sys.stderr)
    record = {
        "schema": SCHEMA,
        "launch": words.launch,
        "held": held,
        "nodes": words.nodes,
        "answered": len(reports),
        "bad": {node: found.bad[node][0] for node in sorted(found.bad)},
        "site": list(found.site),
    }
    # The record explains why the script was held: if it cannot be written, the script starts.
    attempt = os.path.dirname(os.path.abspath(words.folder))
    node_report.write_json(os.path.join(attempt, f"{RECORD}.{words.launch}"), record)
    return EXIT_HELD if held else 0


def _items(reports: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """A line for each of the six items that users of managed clusters know: name, verdict, and where, if not
    everywhere. Without the reason: words such as "Name or service not known" in the job's log would be taken
    for the job's own. The reports have them.
    """
    lines = []
    for name in SIX:
        told = {node: [one for one in rows if one["check"] == name] for node, rows in reports.items()}
        graded = {
            node: max(mine, key=lambda one: SEVERITIES.index(one["severity"]))
            for node, mine in told.items()
            if mine
        }
        if not graded:
            continue
        worst = max(graded.values(), key=lambda one: SEVERITIES.index(one["severity"]))
        where = sorted(node for node, one in graded.items() if one["severity"] == worst["severity"])
        shown = f"{','.join(where[:NAMED_MAX])}{',...' if len(where) > NAMED_MAX else ''}"
        place = "" if len(where) == len(graded) else f" on {shown}, {len(where)} of {len(graded)} nodes"
        lines.append(f"{name}: {worst['severity']}{place}")
    return lines


def _nodes() -> Sequence[str]:
    """The names of the job's nodes, since peers may report on a node without a report. () if unknown."""
    from ftrun.hooks.checks import job_hosts

    try:
        return job_hosts.all_of(Machine(), {"hosts": "", "hosts_file": ""})
    except NoAnswer:
        return ()


def _told(found: Verdict, answered: int, nodes: int, earlier: int, *, held: bool) -> Sequence[str]:
    """What the job's log says beside the items: nothing if all is well. `earlier`: the nodes of its kind with
    which the only node of the job was compared.
    """
    lines = []
    if answered < nodes:
        lines.append(
            f"{nodes - answered} of {nodes} nodes gave no report, which is held against none of them"
        )
    lines += [
        f"{check} fails on most of {answered} nodes: a matter of the site, not of a node"
        for check in found.site
    ]
    for node in sorted(found.bad)[:NAMED_MAX]:
        first = found.bad[node][0]
        lines.append(f"{node}: {first['check']}: {first['message']}")
    if found.bad and nodes == 1:
        lines.append(f"compared with {earlier} nodes of its kind in earlier jobs")
    if len(found.bad) > NAMED_MAX:
        lines.append(f"and {len(found.bad) - NAMED_MAX} more nodes")
    if found.bad:
        lines.append("the script is not started here" if held else "the script starts all the same")
    elif found.many:
        lines.append(
            f"bad on {', '.join(found.many[:NAMED_MAX])}: most nodes, or none to compare with, so nobody is blamed; the script starts"
        )
    return lines


def _parser() -> argparse.ArgumentParser:
    text = "Check this node before a job's script starts."
    parser = parser_of("preflight", text, "--folder", "--launch", "--node", "--root")
    add = parser.add_argument
    add("names", nargs="*", metavar="CHECK", help="only these checks")
    add("--tier", choices=TIERS, default="fast", help="how thorough (default: fast)")
    add("--within", type=float, default=WITHIN_S, metavar="SECONDS", help="end within this time")
    text = "thresholds by check, as JSON; {node} in it is the node's name"
    add("--settings", default="", metavar="FILE", help=text)
    add("--verdict", action="store_true", help="sum up the reports of all nodes")
    add("--nodes", type=int, default=1, help="with --verdict: how many nodes the job has")
    text = "with --verdict: folder of earlier results, with which the only node of a job is compared"
    add("--history", default="", metavar="DIR", help=text)
    add("--report-only", action="store_true", help="with --verdict: hold no script")
    return parser
