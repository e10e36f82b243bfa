"""`ftrun site sweep`: longer checks of nodes that idle, and of the network between them. (I/O)

A sweep takes the idle nodes of one partition that were swept longest ago. It holds them by a job of the lowest
priority, so that no job starts beside the test, checks them by SSH, looks at the bad ones once more, tests the
network between them in pairs, and compares them with each other (`nodes.check_summary`): what most of them show is
the site's or the check's fault, and held against none of them. When a job waits in a partition that has one of the
nodes, the sweep gives its own job up at once.

It drains nothing. What it found is an event of the site's ledger; the service acts on it, within its caps.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ftrun.slurm.client.cluster import Cluster, JobState, NodeRow, PartitionRow, SubmitRequest
from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.records import dataclass
from ftrun.supervisor.nodes import check_summary
from ftrun.supervisor.nodes.check_summary import CheckedNode, Result
from ftrun.supervisor.nodes.recheck_rules import CheckNodes, CheckReport
from ftrun.supervisor.site.standing import Event

JOB_NAME = "ftrun-sweep"
LOWEST_NICE = 2_147_483_645  # of sbatch's manual
START_S = 30.0  # an idle node starts a job at once; else somebody else has it
POLL_S = 2.0
EVERY_S = 7 * 86_400.0
FINDINGS_MAX = 8
_HARMLESS = frozenset({"cloud", "dynamic", "dynamic_norm"})

TestPairs = Callable[[Sequence[str]], Mapping[str, Mapping[str, Any]]]
"""Nodes -> a finding for each about the network between them; {} without a verdict."""


class NotHeld(Exception):
    """The nodes could not be had; one line: why."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """`gave_way`: a job waited, and the nodes were given up before the end."""

    partition: str
    result: Result
    gave_way: bool = False


def due_nodes(
    rows: Mapping[str, NodeRow],
    partitions: Mapping[str, PartitionRow],
    swept_s: Mapping[str, float],
    now_s: float,
    *,
    most: int,
    every_s: float = EVERY_S,
    only: Collection[str] = (),
) -> tuple[str, tuple[str, ...]]:
    """The partition and its idle nodes that are due, those swept longest ago first; ("", ()) where none is.

    Of partitions it is the one with the node that waits longest. `only`: these nodes, however lately swept.
    """
    idle = [
        row.name
        for row in rows.values()
        if row.state == "idle"
        and row.flags <= _HARMLESS
        and not row.spoken_for
        and (row.name in only if only else now_s - swept_s.get(row.name, 0.0) >= every_s)
    ]
    idle.sort(key=lambda name: (swept_s.get(name, 0.0), name))
    for name in idle:
        for partition in partitions.values():
            if partition.up and name in partition.nodes:
                there = set(partition.nodes)
                return partition.name, tuple(one for one in idle if one in there)[:most]
    return "", ()


def sharing(partitions: Mapping[str, PartitionRow], nodes: Collection[str]) -> list[str]:
    """All partitions that have one of these nodes: whoever waits there may wait for it."""
    return sorted(row.name for row in partitions.values() if not set(row.nodes).isdisjoint(nodes))


@contextmanager
def held(
    cluster: Cluster, partition: str, nodes: Sequence[str], limit_s: float, options: Sequence[str]
) -> Iterator[str]:
    """Hold idle nodes by a job of the lowest priority until the block ends; its id. Raises NotHeld, SlurmError."""
    minutes = max(1, int(limit_s / 60.0 + 0.999))
    argv = (
        "--parsable", f"--job-name={JOB_NAME}", f"--partition={partition}", f"--nodelist={','.join(nodes)}",
        f"--nodes={len(nodes)}", "--exclusive", f"--nice={LOWEST_NICE}", f"--time={minutes}", "--no-requeue",
        "--output=/dev/null", "--export=NONE", *options,
    )  # fmt: skip
    script = f"#!/bin/sh\nexec sleep {int(60 * minutes)}\n".encode()
    env = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SBATCH_", "SLURM_")) or key == "SLURM_CONF"
    }
    job = cluster.submit(SubmitRequest(JOB_NAME, argv, script, env, "/")).job_id
    try:
        deadline = time.monotonic() + START_S
        while (row := cluster.jobs([job]).get(job)) is None or row.state is not JobState.RUNNING:
            if time.monotonic() > deadline or (row is not None and row.state.ended):
                raise NotHeld("somebody else has these nodes by now" + (f": {row.reason}" if row else ""))
            time.sleep(0.2)
        yield job
    finally:
        cluster.cancel(job)


def sweep_nodes(
    nodes: Sequence[str],
    look: CheckNodes,
    pairs: TestPairs,
    gives_way: Callable[[], bool] = lambda: False,
) -> tuple[Result, bool]:
    """Check nodes, the bad ones twice, then the network between them; whether it was given up for a waiting job.

    `gives_way` is asked every two seconds; what was found until then counts. A look or a test that it cut short met
    another's job: it proves nothing. A node that was bad once and not looked at again is left out, so that it stays due.
    """
    ended = threading.Event()
    way = threading.Event()

    def watch() -> None:
        while not ended.wait(POLL_S):
            with suppress(SlurmError):
                if gives_way():
                    way.set()
                    return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        found = dict(look(nodes))
        again = [node for node in nodes if _bad(found[node])]
        second = look(again) if again and not way.is_set() else {}
        unsettled = set(again) if way.is_set() else set()
        between = {} if way.is_set() or len(nodes) < 2 else pairs([n for n in nodes if found[n].findings])
    finally:
        ended.set()
        watcher.join()
    if way.is_set():
        between = {}
    settled = [node for node in nodes if node not in unsettled]
    seen = [_checked(node, _twice(found[node], second.get(node)), between.get(node)) for node in settled]
    return check_summary.summarize(seen), way.is_set()


def _bad(report: CheckReport) -> set[str]:
    return {str(one.get("check")) for one in report.findings if one.get("severity") == "bad"}


def _twice(report: CheckReport, again: CheckReport | None) -> CheckReport:
    """The report in which bad is only what a second look finds bad as well."""
    both = _bad(report) & (_bad(again) if again is not None else set())
    findings = [
        {**one, "severity": "note"} if one.get("severity") == "bad" and one.get("check") not in both else one
        for one in report.findings
    ]
    return CheckReport(report.state, findings, report.why, report.machine)


def _checked(node: str, report: CheckReport, between: Mapping[str, Any] | None) -> CheckedNode:
    return CheckedNode(
        node, report.state, [*report.findings, *([between] if between else [])], why=report.why
    )


def events_of(result: Result, now_s: float) -> list[Event]:
    """What the ledger keeps of a sweep: one event for each node, which takes the place of its last one."""
    found = []
    for one in result.seen:
        rows = list(result.verdict.bad.get(one.node, ()))[:FINDINGS_MAX]
        state = "sick" if rows else "well" if one.state == check_summary.ANSWERED else "unseen"
        detail = {"result": state, "findings": rows}
        found.append(Event(f"swept:{one.node}", one.node, now_s, "swept", detail))
    return found
