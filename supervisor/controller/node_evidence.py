"""What the nodes of one launch report of themselves, read for its run. (I/O)

While the launch is live, the reports of the node monitor are read now and then, and new findings become
evidence in the journal. Once the launch is over, all reports are read, with those of the checks after the
failure, for the diagnosis. Where `after-checks` is `ssh`, nodes that their own checks do not cover are
checked over SSH.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftrun.slurm.records import replace
from ftrun.supervisor.controller import observe
from ftrun.supervisor.diagnosis import inputs
from ftrun.supervisor.diagnosis.node_findings import SIGNATURE, NodeFacts, NodeFinding
from ftrun.supervisor.model.timers import Interval, Stopwatch
from ftrun.supervisor.model.types import Evidence
from ftrun.supervisor.nodes.from_runs import entry_prefix
from ftrun.supervisor.nodes.remote_checks import GIVEN_UP_AFTER_S, SshVisit
from ftrun.supervisor.store import attempt_dir, node_reports

if TYPE_CHECKING:
    from ftrun.supervisor.context.cluster_snapshot import ClusterSnapshot
    from ftrun.supervisor.context.run_context import RunContext

__all__ = ["first_seen_s", "of_end", "of_live", "ssh_checks_over"]

LOOK_EVERY_S = 2.0
_WORTH_SSH_CHECKS = frozenset({"FAILED", "NODE_FAIL", "CANCELLED", "OUT_OF_MEMORY", "BOOT_FAIL", "GONE"})
RECORDS_MAX = 50  # findings of one launch that become records; the reports hold the others


@dataclass
class _Reports:
    """Of one launch."""

    looked: Interval = field(default_factory=Interval)


@dataclass
class _SshChecks:
    """Of one start, after its end."""

    visit: SshVisit | None = None
    waited: Stopwatch = field(default_factory=Stopwatch)
    told: Interval = field(default_factory=Interval)


def of_live(ctx: RunContext, snapshot: ClusterSnapshot) -> NodeFacts:
    """What the monitors on the nodes of a live launch have found so far."""
    seen = ctx.observations
    if seen.per_launch(_Reports).looked.due(snapshot.mono_s, LOOK_EVERY_S):
        stamp = node_reports.folder_stamp(ctx.run_dir, ctx.attempt.number)
        if stamp != seen.node_stamp:
            seen.node_stamp = stamp
            _read_reports(ctx)
    return seen.node_facts


def ssh_checks_over(ctx: RunContext, snapshot: ClusterSnapshot) -> bool:
    """False while the nodes of an ended start are being checked over SSH."""
    attempt, after = ctx.attempt, ctx.observations.per_start(_SshChecks)
    if ctx.settings.get("after-checks") != "ssh" or attempt.launch.end.state not in _WORTH_SSH_CHECKS:
        return True
    if attempt.launch.end.state == "CANCELLED" and not attempt.ended_by_us:
        return True
    if (
        attempt_dir.prelaunch_hold(ctx.run_dir, attempt.number, attempt.launch.number, attempt.nodes)
        is not None
    ):
        return True  # the preflight checks have just reported
    if after.visit is None:
        _read_reports(ctx)
        missing = [node for node in attempt.used if node not in ctx.observations.node_facts.asked]
        if not missing or attempt_dir.has_tasks(ctx.run_dir, attempt.number):
            return True
        after.visit = SshVisit(missing, str(ctx.settings.get("ssh-config", "")))
    waited_s = after.waited.held_s(snapshot.mono_s)
    if not after.visit.over and waited_s < GIVEN_UP_AFTER_S:
        return False
    if after.told.first():
        outcome = {"answered": ",".join(sorted(after.visit.reports)), "why": after.visit.why}
        ctx.services.tell("nodes.visited", run=ctx.run.id, attempt=attempt.number, **outcome)
    return True


def of_end(ctx: RunContext, snapshot: ClusterSnapshot, lost: Collection[str] = ()) -> NodeFacts:
    """What the nodes report once the launch is over, less what was there before. `lost` nodes report
    nothing."""
    attempt, seen = ctx.attempt, ctx.observations
    if attempt_dir.has_tasks(ctx.run_dir, attempt.number):
        return NodeFacts()  # each task has nodes of its own
    _read_reports(ctx)
    facts = replace(seen.node_facts.survived(seen.survived), silent=frozenset(lost))
    if not facts.odd(snapshot.now_s):
        return facts
    entries = ctx.services.ledger.entries()
    launch = entry_prefix(ctx.run, attempt.number, attempt.launch.number)
    return facts.noted_before(entries, ctx.run.id, launch, snapshot.now_s)


def first_seen_s(ctx: RunContext, signature: str) -> list[float]:
    """When the findings behind a diagnosis with this signature were made (Unix seconds, nodes' clocks)."""
    told = ctx.observations.node_facts.findings
    return [one.at_s for one in told if one.at_s is not None and SIGNATURE + one.check == signature]


def _read_reports(ctx: RunContext) -> None:
    attempt = ctx.attempt
    visit = ctx.observations.per_start(_SshChecks).visit
    more = dict(visit.reports) if visit is not None else {}
    facts = inputs.read_node_reports(
        ctx.run_dir,
        attempt.number,
        attempt.launch.number,
        attempt.used,
        start=attempt.launch.start.number,
        by_ssh=more,
    )
    ctx.observations.node_facts = facts
    for finding in facts.findings[:RECORDS_MAX]:
        observe.note_evidence(ctx, _evidence(finding))


def _evidence(finding: NodeFinding) -> Evidence:
    return Evidence(
        source=finding.source,
        signature=SIGNATURE + finding.check,
        text=f"{finding.node}: {finding.message}",
        file=f"{finding.kind} of {finding.node} {finding.device}".strip(),
        at_s=finding.at_s,
        captures={"host": finding.node, "device": finding.device},
    )
