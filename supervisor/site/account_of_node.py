"""Why a node is as it is, in sentences: who drained it, on whose word, what was found, what ends it. (pure)"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ftrun.hooks.runtime.formats import counted
from ftrun.slurm.client.cluster import NodeRow
from ftrun.slurm.records import dataclass
from ftrun.supervisor.nodes.machines import reason_of_others
from ftrun.supervisor.nodes.recheck_rules import PREFIX, RecheckState
from ftrun.supervisor.site.observed import ObservedDrain
from ftrun.supervisor.site.standing import Event, Orders, Report, Standing

ANSWERS_MAX = 5
CHECKED = {
    "sick": "sick",
    "healthy": "healthy: placed last instead of drained",
    "unseen": "nothing: it gave no answer",
    "held": "nothing new: it was out of service already, or a cap forbade the drain",
}


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of one node. `answers`: records of the service's journal, oldest first; `recheck`: what recheck
    remembers; `drain`: the last one that was only observed.
    """

    row: NodeRow
    standing: Standing
    reports: Sequence[Report] = ()
    events: Sequence[Event] = ()
    answers: Sequence[Mapping[str, Any]] = ()
    recheck: RecheckState = RecheckState()
    drain: ObservedDrain | None = None
    orders: Orders = Orders()


def account(
    facts: NodeFacts, now_s: float, clock: Callable[[float], str], user: Callable[[int], str]
) -> list[str]:
    """The sentences, the most important first."""
    return [
        *_state(facts),
        *_asked(facts, clock, user),
        *_blame(facts, now_s, clock, user),
        *_next(facts, clock),
    ]


def _state(facts: NodeFacts) -> Iterator[str]:
    row = facts.row
    where = "out of service" if row.drained else "in service"
    yield f"Slurm: {'+'.join((row.state, *sorted(row.flags)))}, {where}" + (
        f": {row.reason}" if row.reason else ""
    )
    if row.spoken_for and not row.reason.startswith(PREFIX):
        yield f"the reason is not ftrun's: {reason_of_others(row.reason) or 'ftrun leaves the node to whoever gave it'}"


def _asked(facts: NodeFacts, clock: Callable[[float], str], user: Callable[[int], str]) -> Iterator[str]:
    for one in facts.answers[-ANSWERS_MAX:]:
        yield f"{clock(one['at'])}: {user(int(one['uid']))} asked for its drain: {one['verdict']}: {one['why']}"
    if facts.drain is not None:
        drain = facts.drain
        told = {"open": "not yet known whether rightly", "right": "rightly", "wrong": "wrongly"}[
            drain.outcome
        ]
        yield f"{clock(drain.at_s)}: it would have been drained, {told}: {drain.why}; last look: {drain.last or 'none yet'}"


def _blame(
    facts: NodeFacts, now_s: float, clock: Callable[[float], str], user: Callable[[int], str]
) -> Iterator[str]:
    one = facts.standing
    people = sorted({user(report.uid) for report in facts.reports})
    if facts.reports:
        denied = {report.uid for report in facts.reports} & set(facts.orders.denied)
        yield (
            f"{counted(len(facts.reports), 'report')} of {', '.join(people)} blame it, {one.reports} of them open; score {one.score}"
            + (f"; those of {', '.join(map(user, sorted(denied)))} count for nothing" if denied else "")
        )
    if one.corroborated_s:
        yield f"users of different projects blame it ({', '.join(one.classes)}): the service checks it"
    elif one.reports:
        yield "nobody corroborates that: nothing follows"
    for event in [event for event in facts.events if event.what == "checked"][-1:]:
        yield f"{clock(event.at_s)}: checked for that, found: {CHECKED.get(str(event.detail.get('result')), 'unknown')}"
    if one.quarantined_until_s > now_s:
        yield f"placed last for everybody until {clock(one.quarantined_until_s)}: `ftrun site release {one.node}` ends that"


def _next(facts: NodeFacts, clock: Callable[[float], str]) -> Iterator[str]:
    memory = facts.recheck
    if memory.left:
        yield f"recheck leaves it to a person: {memory.left}"
    elif memory.ours and memory.looked_s:
        yield (
            f"{clock(memory.looked_s)}: recheck: "
            + (
                f"clean {counted(memory.passes, 'time')} in a row"
                if memory.passes
                else f"not clean for {counted(memory.fails, 'look')}"
            )
            + (f"; bad since the drain: {', '.join(memory.told)}" if memory.told else "")
        )
    elif facts.row.reason.startswith(PREFIX):
        yield "recheck has not looked at it yet"
    if facts.orders.paused is not None:
        paused = facts.orders.paused
        yield f"the service is paused since {clock(paused.at_s)} by {paused.by}: `ftrun site resume` ends that"
