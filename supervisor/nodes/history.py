"""What is known of each node over months: the entries of the ledger, folded. (pure)

The ledger holds one fact per entry. `fold` makes a record of each node from them, whatever their order and
however often one was written (each has an id). The result depends on entries and rules only, so every
reader computes the same.

- A *strike* is one incident for which ftrun held a fault against a node: the incident, the exclusion and
  the drain that followed are one strike together. An exclusion by a person is no strike.
- The n-th open strike quarantines the node for `base_s` x 2^(n-1), `ceiling_s` at most. A node that passed
  its recheck is free, but its strikes stay, so that the next quarantine after a relapse is longer. A strike
  fades after `fades_after_h` hours of service without a new one, the oldest first; a person's release
  closes all.
- A strike belongs to a device where one is named. A new serial at the same place of the node closes the
  strikes of the old one.
- So does a report that shows another machine under the node's name, for all strikes (`machines`).
- The same fault on several nodes of one switch within `window_s` points at the switch; on many nodes, at
  the job or the cluster. Neither is a strike (`common`).
- Failures for no known cause that follow one node over many starts are strikes as well (`repeat_failures`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from ftrun.hooks.runtime.formats import DAY_S
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.model import node_entry
from ftrun.supervisor.model.node_entry import NodeEntry
from ftrun.supervisor.model.types import FaultClass
from ftrun.supervisor.nodes import machines, repeat_failures
from ftrun.supervisor.nodes.repeat_failures import Association
from ftrun.supervisor.policy.correlated_failures import CommonCause, Failure, common_causes

LIE_WITHIN_S = 7 * DAY_S  # a strike this soon after a passed recheck is a relapse
DOUBLINGS_MAX = 40


@dataclass(frozen=True, slots=True)
class QuarantineRules:
    """The numbers of the fold; settings `exclude-for` and `quarantine-max` give the first two."""

    base_s: float = DAY_S
    ceiling_s: float = 30 * DAY_S
    fades_after_h: float = 336.0  # two weeks of good service
    window_s: float = 600.0
    many: int = 4  # this many nodes with the same fault in a window: the job or the cluster
    several: int = 3  # this many of one switch: the switch

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> QuarantineRules:
        """The rules by the settings of a run or of a home."""
        default = cls()
        return cls(
            base_s=float(settings.get("exclude-for", default.base_s)),
            ceiling_s=float(settings.get("quarantine-max", default.ceiling_s)),
        )


@dataclass(frozen=True, slots=True)
class Strike:
    """One incident that is held against a node, and until when it keeps the node away."""

    at_s: float
    until_s: float
    run: str
    signature: str
    fault: str
    device: str = ""
    serial: str = ""


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """One place in a node: what is installed there as far as known, and what is held against it."""

    device: str
    serial: str
    strikes: int
    incidents: int
    replaced: int  # how often a new serial was found there


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What is known of a node. `history` is oldest first and leaves out the hours served."""

    node: str
    strikes: tuple[Strike, ...] = ()
    faded: int = 0  # strikes closed by good service, a release or a new device
    excluded_until_s: float = 0.0  # by a person
    excluded_why: str = ""
    released_at_s: float = 0.0
    returned_at_s: float = 0.0
    lies: int = 0  # relapses: strikes soon after a passed recheck
    served_h: float = 0.0
    alone: tuple[float, ...] = ()  # when launches ended that had no other node
    devices: tuple[DeviceRecord, ...] = ()
    history: tuple[NodeEntry, ...] = ()
    machine: Mapping[str, str] = field(default_factory=dict)  # which one bears the name now
    replaced: tuple[float, ...] = ()  # when reports first showed another one
    common: frozenset[str] = frozenset()  # keys of incidents that are not this node's fault
    association: Association | None = None  # how failures for no known cause go with it

    @property
    def quarantined_until_s(self) -> float:
        """Until when runs avoid the node, if they can; 0 = they do not."""
        return max((self.excluded_until_s, *(strike.until_s for strike in self.strikes)), default=0.0)

    @property
    def last_fault(self) -> NodeEntry | None:
        """The newest incident that named the node."""
        return next((e for e in reversed(self.history) if e.what == "incident"), None)

    @property
    def why(self) -> str:
        """The longest reason for the quarantine."""
        if self.excluded_until_s >= self.quarantined_until_s > 0:
            return self.excluded_why
        strike = max(self.strikes, key=lambda s: s.until_s, default=None)
        if strike is not None and strike.signature == repeat_failures.SIGNATURE and self.association:
            return self.association.sentence
        return (strike.signature or strike.fault) if strike else ""


@dataclass(frozen=True, slots=True)
class NodeHistory:
    """All nodes, and the failures that several of them had in common."""

    nodes: Mapping[str, NodeRecord] = field(default_factory=dict)
    common: tuple[CommonCause, ...] = ()

    @property
    def suspects(self) -> dict[str, Association]:
        """The nodes that failures seem to follow."""
        found = {name: record.association for name, record in self.nodes.items()}
        return {name: one for name, one in found.items() if one is not None and one.suspect}

    def quarantined(self, now_s: float) -> tuple[str, ...]:
        """The nodes to avoid now: a person's exclusions, then those with most strikes, then the newest."""
        away = [n for n in self.nodes.values() if n.quarantined_until_s > now_s]
        away.sort(
            key=lambda n: (n.excluded_until_s <= now_s, -len(n.strikes), -n.quarantined_until_s, n.node)
        )
        return tuple(n.node for n in away)


def fold_entries(
    entries: Iterable[NodeEntry],
    rules: QuarantineRules | None = None,
    domains: Mapping[str, Iterable[str]] | None = None,
) -> NodeHistory:
    """The record of every node that an entry names; `domains`: leaf switch or block -> its nodes."""
    rules = rules or QuarantineRules()
    ordered = _in_order(entries)
    forgiven = _forgiven_s(ordered)
    together = _associations(ordered, forgiven)
    ordered = sorted((*ordered, *_repeat_strikes(ordered, together, forgiven)), key=_order)
    common = common_causes(failures(ordered), rules.window_s, rules.many, rules.several, domains or {})
    innocent = {(node, key) for cause in common for node, key in cause.failures}
    built: dict[str, _Builder] = {}
    for entry in ordered:
        if entry.what == repeat_failures.ENDED:
            continue
        served_h = max(0.0, _number(entry.detail.get("hours"))) if entry.what == "served" else None
        for node in entry.nodes:
            builder = built.get(node)
            if builder is None:
                builder = built[node] = _Builder(node, rules)
            if served_h is not None:  # by far the most entries, so no more than an addition
                builder.serve(served_h, entry)
            else:
                builder.take(entry, common=(node, strike_key(entry)) in innocent)
    for node in together:
        built.setdefault(node, _Builder(node, rules))
    records = {name: replace(built[name].record(), association=together.get(name)) for name in sorted(built)}
    return NodeHistory(records, common)


def _associations(ordered: Sequence[NodeEntry], forgiven: Mapping[str, float]) -> dict[str, Association]:
    """How failures for no known cause go with the nodes, as of the newest entry."""
    newest_s = ordered[-1].at_s if ordered else 0.0
    starts = repeat_failures.starts_of(ordered, newest_s - repeat_failures.KEPT_S)
    return repeat_failures.associations(starts, forgiven) if starts else {}


def _forgiven_s(ordered: Sequence[NodeEntry]) -> dict[str, float]:
    """Node -> since when it has another machine, or a person released it: what was before is forgiven."""
    since_s = {node: entry.at_s for entry in ordered if entry.what == "released" for node in entry.nodes}
    for node, times in machines.replaced_at(ordered).items():
        since_s[node] = max(times[-1], since_s.get(node, 0.0))
    return since_s


def _repeat_strikes(
    ordered: Sequence[NodeEntry], together: Mapping[str, Association], forgiven: Mapping[str, float]
) -> Iterable[NodeEntry]:
    """A strike for each failure with which a node was, or still was, to be avoided."""
    excluded = [found for found in together.values() if found.excluded]
    if not excluded:
        return
    starts = repeat_failures.starts_of(ordered, ordered[-1].at_s - repeat_failures.KEPT_S)
    for found in excluded:
        since_s = forgiven.get(found.node, float("-inf"))
        for at_s in repeat_failures.strike_times_s(starts, found, since_s):
            yield NodeEntry(
                at_s,
                "incident",
                (found.node,),
                id=f"{repeat_failures.SIGNATURE}:{found.node}:{at_s}",
                run=found.runs[-1] if found.runs else "",
                signature=repeat_failures.SIGNATURE,
                fault=FaultClass.UNKNOWN.value,
                detail={"strike": True, "title": found.sentence},
            )


def may_be_common(entries: Iterable[NodeEntry], rules: QuarantineRules) -> bool:
    """Whether enough nodes failed for something that they share to be blamed."""
    return len({failure.node for failure in failures(entries)}) >= rules.several


def common_causes_of(
    entries: Iterable[NodeEntry], rules: QuarantineRules, domains: Callable[[], Mapping[str, tuple[str, ...]]]
) -> tuple[CommonCause, ...]:
    """What the failures in these entries may have in common. `domains` is asked only where a switch could be
    to blame.
    """
    entries = list(entries)
    below = domains() if may_be_common(entries, rules) else {}
    return tuple(common_causes(failures(entries), rules.window_s, rules.many, rules.several, below))


def failures(entries: Iterable[NodeEntry]) -> list[Failure]:
    """What can have a common cause: each node of each incident, exclusion and drain by ftrun."""
    return [
        Failure(entry.at_s, entry.signature or entry.fault, node, strike_key(entry))
        for entry in entries
        if entry.what in ("incident", "excluded", "drained") and not entry.by
        for node in entry.nodes
    ]


def strike_key(entry: NodeEntry) -> str:
    """The key that an incident, its exclusion and its drain share."""
    incident = entry.detail.get("incident", "")
    return f"{entry.run}:{incident}" if incident else entry.id


def _in_order(entries: Iterable[NodeEntry]) -> list[NodeEntry]:
    """Oldest first, each once. The order comes from the entries' own facts, never from files."""
    seen: set[tuple[str, str]] = set()
    ordered = []
    for entry in sorted(entries, key=_order):
        if entry.id and (entry.id, entry.what) in seen:
            continue
        seen.add((entry.id, entry.what))
        ordered.append(entry)
    return ordered


def _order(entry: NodeEntry) -> tuple[Any, ...]:
    return (
        entry.at_s,
        entry.what != "incident",  # before its consequences
        entry.what,
        entry.id,
        entry.nodes,
        entry.run,
        entry.signature,
        entry.device,
        entry.serial,
    )


class _Builder:
    """One node while its entries are folded, oldest first."""

    def __init__(self, node: str, rules: QuarantineRules) -> None:
        self._rules = rules
        self._record = NodeRecord(node)
        self._strikes: list[Strike] = []
        self._held: set[str] = set()  # incidents that are strikes already
        self._served_h = 0.0
        self._good_h = 0.0  # served since the last strike, or since one faded
        self._serials: dict[str, str] = {}
        self._replaced: dict[str, int] = {}
        self._incidents: dict[str, int] = {}
        self._history: list[NodeEntry] = []
        self._alone: list[float] = []
        self._common: set[str] = set()

    def serve(self, hours: float, entry: NodeEntry) -> None:
        """Add the hours of a launch on this node; fade strikes."""
        self._served_h += hours
        if len(entry.nodes) == 1:
            self._alone.append(entry.at_s)
        self._good_h += hours
        while self._strikes and self._good_h >= self._rules.fades_after_h:
            self._good_h -= self._rules.fades_after_h
            self._take_back(self._strikes[:1])

    def take(self, entry: NodeEntry, *, common: bool) -> None:
        """Add one entry that names this node and is not about hours."""
        if entry.what == machines.MACHINE and not self._is_told(entry):
            return
        self._history.append(entry)
        device = node_entry.canonical_device(entry.device)
        if device:
            self._sits_there(device, entry.serial)
            if entry.what == "incident":
                self._incidents[device] = self._incidents.get(device, 0) + 1
        if common:
            self._common.add(strike_key(entry))
        elif _is_strike(entry):
            self._strike(entry, device)
        elif entry.what == "excluded":
            until_s = _number(entry.detail.get("until_s"))
            why = str(entry.detail.get("reason", "")) or f"excluded by {entry.by}"
            self._record = replace(self._record, excluded_until_s=until_s, excluded_why=why)
        elif entry.what in ("returned", "released"):
            self._free(entry)

    def record(self) -> NodeRecord:
        """The node after its last entry."""
        return replace(
            self._record,
            strikes=tuple(self._strikes),
            served_h=self._served_h,
            devices=tuple(self._device(name) for name in sorted({*self._serials, *self._incidents})),
            history=tuple(self._history),
            alone=tuple(self._alone),
            common=frozenset(self._common),
        )

    def _device(self, name: str) -> DeviceRecord:
        strikes = sum(strike.device == name for strike in self._strikes)
        serial, replaced = self._serials.get(name, ""), self._replaced.get(name, 0)
        return DeviceRecord(name, serial, strikes, self._incidents.get(name, 0), replaced)

    def _strike(self, entry: NodeEntry, device: str) -> None:
        key = strike_key(entry)
        if key in self._held:
            return
        self._held.add(key)
        self._good_h = 0.0
        times = 2.0 ** min(len(self._strikes), DOUBLINGS_MAX)
        until_s = entry.at_s + min(self._rules.base_s * times, max(self._rules.ceiling_s, self._rules.base_s))
        serial = entry.serial or self._serials.get(device, "")
        strike = Strike(entry.at_s, until_s, entry.run, entry.signature, entry.fault, device, serial)
        self._strikes.append(strike)
        back_s = self._record.returned_at_s
        if back_s and entry.at_s - back_s <= LIE_WITHIN_S:
            self._record = replace(self._record, lies=self._record.lies + 1, returned_at_s=0.0)

    def _free(self, entry: NodeEntry) -> None:
        """A recheck ends the quarantine; a person's release also closes all strikes."""
        self._strikes = [replace(s, until_s=min(s.until_s, entry.at_s)) for s in self._strikes]
        if entry.what == "returned":
            self._record = replace(self._record, returned_at_s=entry.at_s)
            return
        self._take_back(list(self._strikes))
        self._record = replace(
            self._record, excluded_until_s=0.0, excluded_why="", released_at_s=entry.at_s, returned_at_s=0.0
        )

    def _is_told(self, entry: NodeEntry) -> bool:
        """Note which machine this is. True if that is news; another one closes the strikes of the one before."""
        before, now = self._record.machine, machines.parse_identity(entry.detail)
        another = machines.is_another(before, now)
        self._record = replace(self._record, machine=machines.known_after(before, now))
        if another:
            self._take_back(list(self._strikes))
            self._serials, self._good_h = {}, 0.0
            times = (*self._record.replaced, entry.at_s)
            self._record = replace(self._record, replaced=times, returned_at_s=0.0)
        return another or not before

    def _sits_there(self, device: str, serial: str) -> None:
        """Note the serial of a device; a new one closes the strikes of the old one."""
        before = self._serials.get(device, "")
        if not serial or serial == before:
            return
        self._serials[device] = serial
        if before:
            self._replaced[device] = self._replaced.get(device, 0) + 1
            self._take_back([s for s in self._strikes if s.device == device and s.serial == before])
        else:  # the first known serial at this place
            self._strikes = [
                replace(s, serial=serial) if s.device == device and not s.serial else s for s in self._strikes
            ]

    def _take_back(self, strikes: list[Strike]) -> None:
        self._strikes = [strike for strike in self._strikes if strike not in strikes]
        self._record = replace(self._record, faded=self._record.faded + len(strikes))


def _is_strike(entry: NodeEntry) -> bool:
    if entry.by:
        return False
    return entry.what in ("excluded", "drained") or (
        entry.what == "incident" and entry.detail.get("strike") is True
    )


def _number(value: object) -> float:
    """A number of the entry; 0 for anything else, since entries come from files."""
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0
    except OverflowError:
        return 0.0
