"""What the nodes of one launch tell of themselves, as one run's keeper sees it. (I/O)

Live, the reports of the watch are looked at now and then, and what is new becomes evidence in the journal. Once the launch is over, all reports
are read, those of the checks after the failure among them, for the diagnosis.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ftrun.slurm.records import replace
from ftrun.supervisor import attempts, nodereports, sense
from ftrun.supervisor.model import Evidence
from ftrun.supervisor.nodefacts import SIGNATURE, NodeFacts, NodeFinding
from ftrun.supervisor.nodestory import entry_prefix
from ftrun.supervisor.visits import GIVEN_UP_AFTER_S, Visit

if TYPE_CHECKING:
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World

__all__ = ["first_seen_s", "live", "of_end", "visited"]

LOOK_EVERY_S = 2.0
_WORTH_A_VISIT = frozenset({"FAILED", "NODE_FAIL", "CANCELLED", "OUT_OF_MEMORY", "BOOT_FAIL", "GONE"})
TOLD_MAX = 50
"""Findings of one launch that become records; the reports hold the others."""


def live(keeper: Keeper, world: World) -> NodeFacts:
    """What the watch over the nodes of a live launch has found so far."""
    memory = keeper.memory
    if memory.due("node-reports", world.mono_s, LOOK_EVERY_S):
        stamp = nodereports.stamp(keeper.run_dir, keeper.attempt.number)
        if stamp != memory.node_stamp:
            memory.node_stamp = stamp
            _read(keeper)
    return memory.node_facts


def visited(keeper: Keeper, world: World) -> bool:
    """False while the nodes of an end that their own checks do not cover are being looked at over SSH, where that is asked for."""
    attempt, memory = keeper.attempt, keeper.memory
    if keeper.settings.get("after-checks") != "ssh" or attempt.end_state not in _WORTH_A_VISIT:
        return True
    if attempt.end_state == "CANCELLED" and not attempt.ended_by_us:
        return True
    if attempts.held_record(keeper.run_dir, attempt.number, attempt.launch, attempt.nodes) is not None:
        return True  # the checks before the script have just told
    if memory.visit is None:
        _read(keeper)
        missing = [node for node in attempt.used if node not in memory.node_facts.asked]
        if not missing or attempts.has_tasks(keeper.run_dir, attempt.number):
            return True
        memory.visit = Visit(missing, str(keeper.settings.get("ssh-config", "")))
    waited_s = memory.for_how_long("visit", world.mono_s)
    if not memory.visit.over and waited_s < GIVEN_UP_AFTER_S:
        return False
    if memory.due("visit-told", world.mono_s, float("inf")):
        told = {"answered": ",".join(sorted(memory.visit.reports)), "why": memory.visit.why}
        keeper.office.tell("nodes.visited", run=keeper.run.id, attempt=attempt.number, **told)
    return True


def of_end(keeper: Keeper, world: World, lost: Collection[str] = ()) -> NodeFacts:
    """What the nodes say of themselves once the launch is over, less what was there before; `lost` ones say nothing."""
    attempt, memory = keeper.attempt, keeper.memory
    if attempts.has_tasks(keeper.run_dir, attempt.number):
        return NodeFacts()  # each task has nodes of its own
    _read(keeper)
    facts = replace(memory.node_facts.survived(memory.survived), silent=frozenset(lost))
    if not facts.odd(world.now_s):
        return facts
    entries = keeper.office.nodebook.entries()
    launch = entry_prefix(keeper.run, attempt.number, attempt.launch)
    return facts.noted_before(entries, keeper.run.id, launch, world.now_s)


def first_seen_s(keeper: Keeper, signature: str) -> list[float]:
    """When the findings were made that a diagnosis with this signature rests on (Unix seconds, by the nodes' clocks)."""
    told = keeper.memory.node_facts.findings
    return [one.at_s for one in told if one.at_s is not None and SIGNATURE + one.check == signature]


def _read(keeper: Keeper) -> None:
    attempt = keeper.attempt
    more = dict(keeper.memory.visit.reports) if keeper.memory.visit is not None else {}
    facts = nodereports.read(
        keeper.run_dir, attempt.number, attempt.launch, attempt.used, start=attempt.start, by_ssh=more
    )
    keeper.memory.node_facts = facts
    for finding in facts.findings[:TOLD_MAX]:
        sense.note_evidence(keeper, _evidence(finding))


def _evidence(finding: NodeFinding) -> Evidence:
    return Evidence(
        source=finding.source,
        signature=SIGNATURE + finding.check,
        text=f"{finding.node}: {finding.message}",
        file=f"{finding.kind} of {finding.node} {finding.device}".strip(),
        at_s=finding.at_s,
        captures={"host": finding.node, "device": finding.device},
    )
