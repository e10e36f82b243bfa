"""What a service that only observes would have done, and which of it was wrong. (pure)

A drain that was only observed is followed as `ftrun recheck` follows a real one: the same tier, the same pauses
between two looks, as many clean looks in a row before the node comes back. So each ends as it would have:

- *right*: a later look found the node sick again, or somebody else took it out of service meanwhile;
- *wrong*: all looks were clean, and it would have come back without any repair;
- *open*: not yet known. `ended` says whether the node would be back in service by now.

What users ask while the node would have been drained adds to the same drain (`times`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.nodes import recheck_rules
from ftrun.supervisor.nodes.drain_rules import WORN
from ftrun.supervisor.nodes.recheck_rules import CheckReport, RecheckRules, RecheckState

WOULD = "would be drained: "
LOOKED, TAKEN_OUT = "looked", "out"
_CHECK = re.compile(r"([a-z][a-z0-9 -]{0,31}): ")


@dataclass(frozen=True, slots=True)
class ObservedDrain:
    """A drain that would have been made; `memory` is what recheck would know of it."""

    node: str
    at_s: float
    why: str
    uid: int  # who asked first; -1 = the site's ledger
    times: int = 1
    outcome: str = "open"
    ended_s: float = 0.0  # when the node would have come back, or was taken out by others
    last: str = ""  # what the last look said
    memory: RecheckState = RecheckState()

    @property
    def ended(self) -> bool:
        """Nothing more is to be found out."""
        return bool(self.ended_s)


def observed_drains(records: Iterable[Mapping[str, Any]], rules: RecheckRules) -> list[ObservedDrain]:
    """The drains that were only observed, oldest first, by the records of the service's journal."""
    found: list[ObservedDrain] = []
    now: dict[str, int] = {}  # node -> the place of its last one
    for record in records:
        node, place = record.get("node"), now.get(str(record.get("node")))
        open_ = place is not None and not found[place].ended
        if record["kind"] == "answered" and record["verdict"] == "observed" and node:
            if place is not None and open_:
                found[place] = replace(found[place], times=found[place].times + 1)
            else:
                now[node] = len(found)
                found.append(_begun(record))
        elif record["kind"] == LOOKED and place is not None and open_:
            found[place] = _after(found[place], record, rules)
    return found


def _begun(record: Mapping[str, Any]) -> ObservedDrain:
    why = str(record["why"]).removeprefix(WOULD)
    check = _CHECK.match(why)
    memory = RecheckState(
        reason=record["id"], since_s=record["at"], told=(check.group(1),) if check is not None else ()
    )
    return ObservedDrain(record["node"], record["at"], why, int(record["uid"]), memory=memory)


def _after(drain: ObservedDrain, record: Mapping[str, Any], rules: RecheckRules) -> ObservedDrain:
    if record["result"] == TAKEN_OUT:
        return replace(drain, outcome="right", ended_s=record["at"], last=record["why"])
    memory = recheck_rules.apply_record(drain.memory, record)
    drain = replace(drain, memory=memory, last=record["why"])
    if record["result"] == "failed":
        return replace(drain, outcome="right")
    if memory.passes < rules.passes:
        return drain
    return replace(drain, outcome="right" if drain.outcome == "right" else "wrong", ended_s=record["at"])


def due_drains(drains: Iterable[ObservedDrain], now_s: float, rules: RecheckRules) -> list[ObservedDrain]:
    """Those whose node is to be looked at now, the oldest first."""
    return [one for one in drains if not one.ended and recheck_rules.due_s(one.memory, rules) <= now_s]


def worn_report(report: CheckReport, memory: RecheckState) -> CheckReport:
    """The report in which a degraded finding is bad where one of that check would have drained the node."""
    worn = WORN.intersection(memory.told)
    found = [
        {**one, "severity": "bad"} if one.get("severity") == "degraded" and one.get("check") in worn else one
        for one in report.findings
    ]
    return replace(report, findings=tuple(found))
