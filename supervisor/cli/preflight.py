"""`ftrun preflight`: check many nodes at once, over SSH or, inside a job, by a job step. (I/O)"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from ftrun.hooks.runtime import UsageError
from ftrun.hooks.runtime.finding import TIERS
from ftrun.hooks.runtime.formats import counted
from ftrun.slurm.client import nodeset
from ftrun.slurm.records import replace
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, argument, option
from ftrun.supervisor.config import sources
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.nodes import check_summary
from ftrun.supervisor.nodes.check_summary import CheckedNode

Told = Callable[[CheckedNode], None]


def preflight(
    checks: Annotated[list[str] | None, argument("CHECK...", "Only these checks.")] = None,
    *,
    nodelist: Annotated[str, option("--nodelist -w", "Nodes to check, over SSH.", "NODES")] = "",
    partition: Annotated[str, option("--partition -p", "All nodes of a partition, over SSH.", "NAME")] = "",
    tier: Annotated[str, option("", "How thorough: fast (15 s), recheck (5 min), burn-in (1 h).")] = "fast",
    thresholds: Annotated[
        str,
        option(
            "--checks",
            "Thresholds by check, as JSON; {node} in it is the node's name (inside a job).",
            "FILE",
        ),
    ] = "",
    ssh_config: Annotated[str, option("", "Use this file instead of ~/.ssh/config.", "FILE")] = "",
    at_once: Annotated[int, option("", "Number of nodes to check at a time, over SSH.", min=1)] = 32,
    pairs: Annotated[
        bool, option("--pairs", "Inside a job: also test the network between the nodes, in pairs.")
    ] = False,
    every: Annotated[bool, option("--all -a", "Also show what is fine and what was skipped.")] = False,
    json: Json = False,
) -> int:
    """Check nodes in parallel and show what is wrong: over SSH, or inside a job by a step on all its nodes.

    ftrun need not be installed on the nodes; they need Python 3.9 or newer.

    Exit 0: all nodes were checked and nothing is bad.  1: something is bad.  3: nothing is bad, but some
    nodes gave no report.
    """
    names = list(checks or ())
    _known(tier, names)
    inside = not (nodelist or partition)
    # Inside a job each node may have a file of its own.
    settings = {} if inside and "{node}" in thresholds else _thresholds(thresholds)
    job = os.environ.get("SLURM_JOB_ID", "")
    if pairs and (not inside or not job):
        raise UserError("--pairs tests the nodes of a job: call it inside a job, without --nodelist")
    if not inside:
        nodes = _nodes(nodelist, partition)
        own = ssh_config or sources.load(os.getcwd(), dict(os.environ)).text("ssh-config")
        found = _by_ssh(nodes, tier, names, settings, ssh_config=own, at_once=at_once)
    elif job:
        nodes = nodeset.expand(os.environ.get("SLURM_JOB_NODELIST", ""))
        found = _by_step(nodes, tier, names, thresholds, job=job, pairs=pairs)
    else:
        raise UserError("which nodes? name them with --nodelist or --partition, or call this inside a job")
    result = check_summary.summarize([found[node] for node in nodes])
    if json:
        common.print_json(check_summary.summary_json(result))
        return result.exit_status
    _shown(result, every=every)
    return result.exit_status


def _shown(result: check_summary.Result, *, every: bool) -> None:
    columns, rows = check_summary.matrix(result, every=every)
    if rows:
        common.print_table(columns, rows)
        print()
    for line in check_summary.summary_lines(result):
        common.print_styled(line, style="red" if line.startswith(("bad ", "to be avoided")) else "")
    answered = len(result.seen) - len(result.unseen)
    print(
        f"{answered} of {counted(len(result.seen), 'node')} checked, {len(result.verdict.bad)} to be avoided"
    )


def _by_ssh(
    nodes: Sequence[str],
    tier: str,
    names: Sequence[str],
    settings: Mapping[str, Mapping[str, Any]],
    *,
    ssh_config: str,
    at_once: int,
) -> Mapping[str, CheckedNode]:
    from ftrun.hooks.ssh import pool

    found: dict[str, CheckedNode] = {}
    progress = _Progress(len(nodes))

    def told(report: pool.NodeReport) -> None:
        findings = report.report["findings"] if report.report is not None else ()
        state = (
            report.state
            if report.report is not None or report.state != check_summary.ANSWERED
            else "no report"
        )
        found[report.node] = CheckedNode(report.node, state, findings, report.took_s, report.why)
        progress.told(found[report.node])

    try:
        probes = pool.NodePool(ssh_config, at_once)
        pool.check_nodes(nodes, tier, settings, probes, kind="preflight", names=names, told=told)
    except OSError as error:
        raise UserError(f"ssh configuration: {error.filename}: {error.strerror}") from None
    finally:
        progress.end()
    return found


def _by_step(
    nodes: Sequence[str], tier: str, names: Sequence[str], thresholds: str, *, job: str, pairs: bool
) -> Mapping[str, CheckedNode]:
    from ftrun.hooks.checks.runner import BUDGETS_S
    from ftrun.supervisor.nodes import in_job_checks

    env = dict(os.environ)
    arguments = ["--tier", tier, *(["--settings", os.path.abspath(thresholds)] if thresholds else []), *names]
    home = common.checked_home(sources.load(os.getcwd(), env).home(env))
    progress = _Progress(len(nodes))
    try:
        found = in_job_checks.check_nodes(
            nodes, arguments, home=home, job=job, within_s=BUDGETS_S[tier], env=env, told=progress.told
        )
        between = in_job_checks.test_pairs(nodes, home=home, job=job, env=env) if pairs else {}
    except OSError as error:
        raise UserError(
            f"{error.filename}: {error.strerror}; name the nodes with --nodelist, for SSH", 1
        ) from None
    finally:
        progress.end()
    if pairs and not between:
        print("ftrun: the network between the nodes was not tested: no result", file=sys.stderr)
    more = {node: (finding,) for node, finding in between.items()}
    return {node: replace(one, findings=(*one.findings, *more.get(node, ()))) for node, one in found.items()}


class _Progress:
    """One line on a terminal's stderr that counts the nodes; silent elsewhere."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._done = 0
        self._bad = 0
        self._shown = common.is_terminal(sys.stderr)

    def told(self, seen: CheckedNode) -> None:
        """One more node."""
        self._done += 1
        self._bad += any(row["severity"] == "bad" for row in seen.findings)
        if self._shown:
            bad = f", {self._bad} with something bad" if self._bad else ""
            print(f"\r{self._done} of {self._number} nodes{bad}\x1b[K", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clear the line."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _known(tier: str, names: Sequence[str]) -> None:
    from ftrun.hooks.checks import catalogue

    if tier not in TIERS:
        raise UserError(f"no tier is called {tier!r}; there are {', '.join(TIERS)}")
    try:
        catalogue.checks(tier, names)
    except UsageError as error:
        raise UserError(str(error)) from None


def _thresholds(path: str) -> dict[str, dict[str, Any]]:
    from ftrun.hooks.checks import catalogue
    from ftrun.hooks.checks import thresholds as checks_thresholds

    if not path:
        return {}
    try:
        table = checks_thresholds.whole(path)
    except ValueError as error:
        raise UserError(f"--checks {error}") from None
    for told in catalogue.strange(table):
        print(f"ftrun: --checks {path}: {told}", file=sys.stderr)
    return table


def _nodes(nodelist: str, partition: str) -> tuple[str, ...]:
    """The named nodes and those of the partition. Raises UserError."""
    from ftrun.slurm.client.errors import SlurmError
    from ftrun.slurm.commands.cluster import CommandCluster

    named = common.nodes_named([nodelist], "--nodelist")
    if not partition:
        return named
    try:
        known = CommandCluster(dict(os.environ)).partitions()
    except SlurmError as error:
        raise UserError(f"--partition: Slurm does not answer: {error.message}", 1) from None
    if partition not in known:
        raise UserError(f"no partition is called {partition!r}; there are {', '.join(sorted(known))}")
    return tuple(dict.fromkeys((*named, *known[partition].nodes)))
