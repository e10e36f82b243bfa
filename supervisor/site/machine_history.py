"""The history of nodes follows the machine, not the name: renamed, replaced, installed anew. (pure)

Each look of the service at a node tells which machine bears the name (`nodes.machines`). That is an event of the
ledger, `machine`, where it is news. From these events each report and each other event gets the name that its machine
bears now; what is known of a machine that bears no name any more counts for no node, until it is seen again.

A report says by digests which machine its user's supervisor knew under the name. Users may lie, so that decides only
what the service cannot know: a fault between its last sight of one machine and its first of the next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ftrun.slurm.records import replace
from ftrun.supervisor.nodes.machines import (
    MACHINE,
    digests,
    is_another,
    is_the_same,
    known_after,
    parse_identity,
)
from ftrun.supervisor.nodes.recheck_rules import CheckReport
from ftrun.supervisor.site.standing import Event, Report


class MachineHistory:
    """Which machine bore which name when, by the events of the ledger. `names`: those that Slurm knows now; None = any.

    Where several names show one machine now (a copied serial number, nodes of a test on one host), it tells nothing,
    and what was of a name stays with that.
    """

    def __init__(self, events: Iterable[Event], names: Collection[str] | None = None) -> None:
        self._machines: list[dict[str, str]] = []  # each by what is known of it
        self._lines: dict[
            str, list[tuple[float, int]]
        ] = {}  # name -> (from when, which machine), oldest first
        for event in sorted((e for e in events if e.what == MACHINE), key=lambda e: (e.at_s, e.id)):
            self._take(event)
        self._names: dict[int, list[str]] = {}
        for name, line in self._lines.items():
            if names is None or name in names:
                self._names.setdefault(line[-1][1], []).append(name)

    def _take(self, event: Event) -> None:
        told, line = parse_identity(event.detail), self._lines.setdefault(event.node, [])
        if line and not is_another(self._machines[line[-1][1]], told):
            machine = line[-1][1]
        else:
            known = (n for n, one in enumerate(self._machines) if is_the_same(one, told))
            machine = next(known, len(self._machines))
            if machine == len(self._machines):
                self._machines.append({})
            line.append((event.at_s if line else float("-inf"), machine))
        self._machines[machine] = known_after(self._machines[machine], told)

    def bearer(self, name: str) -> Mapping[str, str]:
        """What is known of the machine that bears this name now; {} if nothing is."""
        line = self._lines.get(name)
        return self._machines[line[-1][1]] if line else {}

    def name_now(self, name: str, at_s: float, claim: str = "") -> str:
        """The name that the machine which bore this one then bears now; "" = none. `claim`: digests in a report."""
        line = self._lines.get(name)
        if not line:
            return name
        place = max(number for number, (from_s, _) in enumerate(line) if from_s <= at_s)
        following = line[place + 1 : place + 2]
        if claim and following and digests(self._machines[following[0][1]], like=claim) == claim:
            place += 1
        names = self._names.get(line[place][1], [])
        if name in names:
            return name
        return names[0] if len(names) == 1 else ""


def follow_machines(
    reports: Iterable[Report], events: Iterable[Event], names: Collection[str] | None = None
) -> tuple[list[Report], list[Event]]:
    """Reports and events by the name that their machine bears now; those of machines without a name are left out."""
    events = list(events)
    history = MachineHistory(events, names)
    told = [replace(one, node=history.name_now(one.node, one.seen_s, one.machine)) for one in reports]
    happened = [
        replace(one, node=history.name_now(one.node, one.at_s)) for one in events if one.what != MACHINE
    ]
    return [one for one in told if one.node], [one for one in happened if one.node]


def sightings(
    history: MachineHistory, reports: Mapping[str, CheckReport], now_s: float
) -> tuple[list[Event], bool]:
    """The events of what these looks tell that is news, and whether one shows another machine than before."""
    news, another = [], False
    for node, report in reports.items():
        told: dict[str, Any] = {key: value for key, value in report.machine.items() if key != "boot"}
        before = history.bearer(node)
        if told and known_after(before, told) != before:
            another |= is_another(before, told)
            news.append(Event(f"{MACHINE}:{node}:{now_s:.3f}", node, now_s, MACHINE, told))
    return news, another
