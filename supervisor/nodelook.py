"""What the nodes of one launch tell of themselves, as the supervisor of one run sees it. (I/O)

Live, the reports of the watch are looked at now and then, and what is new becomes evidence in the journal. Once the launch is over, all reports
are read, those of the checks after the failure among them, for the diagnosis.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftrun.slurm.records import replace
from ftrun.supervisor import attempts, nodereports, sense
from ftrun.supervisor.model import Evidence
from ftrun.supervisor.nodefacts import SIGNATURE, NodeFacts, NodeFinding
from ftrun.supervisor.nodestory import entry_prefix
from ftrun.supervisor.timers import Interval, Stopwatch
from ftrun.supervisor.visits import GIVEN_UP_AFTER_S, Visit

if TYPE_CHECKING:
    from ftrun.supervisor.run_context import RunContext
    from ftrun.supervisor.world import ClusterSnapshot

__all__ = ["first_seen_s", "live_facts", "of_end", "visit_is_over"]

LOOK_EVERY_S = 2.0
_WORTH_A_VISIT = frozenset({"FAILED", "NODE_FAIL", "CANCELLED", "OUT_OF_MEMORY", "BOOT_FAIL", "GONE"})
TOLD_MAX = 50
"""Findings of one launch that become records; the reports hold the others."""


@dataclass
class _Reports:
    """Of one launch."""

    looked: Interval = field(default_factory=Interval)


@dataclass
class _Visit:
    """To the nodes of one start, over SSH, after its end."""

    visit: Visit | None = None
    waited: Stopwatch = field(default_factory=Stopwatch)
    told: Interval = field(default_factory=Interval)


def live_facts(ctx: RunContext, world: ClusterSnapshot) -> NodeFacts:
    """What the watch over the nodes of a live launch has found so far."""
    seen = ctx.observations
    if seen.per_launch(_Reports).looked.due(world.mono_s, LOOK_EVERY_S):
        stamp = nodereports.stamp(ctx.run_dir, ctx.attempt.number)
        if stamp != seen.node_stamp:
            seen.node_stamp = stamp
            _read(ctx)
    return seen.node_facts


def visit_is_over(ctx: RunContext, world: ClusterSnapshot) -> bool:
    """False while the nodes of an end that their own checks do not cover are being looked at over SSH, where that is asked for."""
    attempt, after = ctx.attempt, ctx.observations.per_start(_Visit)
    if ctx.settings.get("after-checks") != "ssh" or attempt.launch.end.state not in _WORTH_A_VISIT:
        return True
    if attempt.launch.end.state == "CANCELLED" and not attempt.ended_by_us:
        return True
    if attempts.held_record(ctx.run_dir, attempt.number, attempt.launch.number, attempt.nodes) is not None:
        return True  # the checks before the script have just told
    if after.visit is None:
        _read(ctx)
        missing = [node for node in attempt.used if node not in ctx.observations.node_facts.asked]
        if not missing or attempts.has_tasks(ctx.run_dir, attempt.number):
            return True
        after.visit = Visit(missing, str(ctx.settings.get("ssh-config", "")))
    waited_s = after.waited.held_s(world.mono_s)
    if not after.visit.over and waited_s < GIVEN_UP_AFTER_S:
        return False
    if after.told.first():
        told = {"answered": ",".join(sorted(after.visit.reports)), "why": after.visit.why}
        ctx.services.tell("nodes.visited", run=ctx.run.id, attempt=attempt.number, **told)
    return True


def of_end(ctx: RunContext, world: ClusterSnapshot, lost: Collection[str] = ()) -> NodeFacts:
    """What the nodes say of themselves once the launch is over, less what was there before; `lost` ones say nothing."""
    attempt, seen = ctx.attempt, ctx.observations
    if attempts.has_tasks(ctx.run_dir, attempt.number):
        return NodeFacts()  # each task has nodes of its own
    _read(ctx)
    facts = replace(seen.node_facts.survived(seen.survived), silent=frozenset(lost))
    if not facts.odd(world.now_s):
        return facts
    entries = ctx.services.ledger.entries()
    launch = entry_prefix(ctx.run, attempt.number, attempt.launch.number)
    return facts.noted_before(entries, ctx.run.id, launch, world.now_s)


def first_seen_s(ctx: RunContext, signature: str) -> list[float]:
    """When the findings were made that a diagnosis with this signature rests on (Unix seconds, by the nodes' clocks)."""
    told = ctx.observations.node_facts.findings
    return [one.at_s for one in told if one.at_s is not None and SIGNATURE + one.check == signature]


def _read(ctx: RunContext) -> None:
    attempt = ctx.attempt
    visit = ctx.observations.per_start(_Visit).visit
    more = dict(visit.reports) if visit is not None else {}
    facts = nodereports.read(
        ctx.run_dir,
        attempt.number,
        attempt.launch.number,
        attempt.used,
        start=attempt.launch.start.number,
        by_ssh=more,
    )
    ctx.observations.node_facts = facts
    for finding in facts.findings[:TOLD_MAX]:
        sense.note_evidence(ctx, _evidence(finding))


def _evidence(finding: NodeFinding) -> Evidence:
    return Evidence(
        source=finding.source,
        signature=SIGNATURE + finding.check,
        text=f"{finding.node}: {finding.message}",
        file=f"{finding.kind} of {finding.node} {finding.device}".strip(),
        at_s=finding.at_s,
        captures={"host": finding.node, "device": finding.device},
    )
