"""From the reports of an attempt's nodes to the nodes that are to blame: never all of them, and never most. (pure)

How it thinks. Some things are wrong only in comparison: a version, a clock, a link, a limit. So values that healthy nodes share are laid side by side, and
the node that differs from what more than half of them have is the odd one out; with two that differ nobody knows which. Whether that alone keeps a job away is told by
the table: a slow link or a missing GPU holds up all ranks, a newer kernel does not. Only machines of one make are compared with each other, and where nothing tells the make, or a
value is so low that it is another kind of node, the difference is told and counts for nothing. `ulimit` counts by comparison only, since its marks are what one maker asks for.

A check that fails on most nodes says something about the site or about the check, not about a node: it is told once and held against nobody. And where more than
half of the nodes that answer are bad, each in its own way, something that they share is likelier than so much bad luck; then nobody is blamed either. A job of one node has no
peers: whatever fails there is the site's until another node shows otherwise. What is unknown, skipped or missing is nobody's fault.

A node says of others that they cannot be reached: one that says so may be wrong itself; two or more, and more than half of all that tell, are believed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks.runtime.finding import BAD, DEGRADED, NOTE, OK, Finding

__all__ = ["COMPARED", "How", "Odd", "Verdict", "odd_ones", "verdict"]

Row = Mapping[str, Any]
"""A finding as reports hold it: the fields of Finding by name."""
Rows = Sequence[Row]

SAME, TEXT, LEAST, APART = "same", "text", "least", "apart"
TELLERS_MIN = 3  # two that differ do not say which of them is odd


class How(NamedTuple):
    """How the values of a check are compared. `kind`: text or value are the same, or the value is at least `amount` of the median
    ("least"), or no more than `amount` away from it ("apart"). `counts`: whether the odd one may be left out for it, if it has
    at least `floor` of the median: below that it is no broken node, but one of another kind.
    """

    kind: str
    amount: float
    counts: bool
    fault: str
    floor: float = 0.0


COMPARED: Mapping[str, How] = {
    "versions": How(TEXT, 0, counts=False, fault="node"),
    "gpu-driver": How(TEXT, 0, counts=False, fault="node"),
    "mtu": How(SAME, 0, counts=False, fault="network"),
    "hugepages": How(SAME, 0, counts=False, fault="config"),
    "clock": How(APART, 0.5, counts=False, fault="node"),
    "nic-link": How(LEAST, 0.9, counts=False, fault="network"),
    "cpu-frequency": How(LEAST, 1, counts=False, fault="hardware-other"),
    "memory": How(LEAST, 0.97, counts=True, fault="hardware-other", floor=0.7),
    "gpu-check": How(LEAST, 1, counts=True, fault="hardware-gpu", floor=0.5),
    "ib-speed": How(LEAST, 0.9, counts=True, fault="network"),
}
"""What is compared, by the name of the check."""


class Odd(NamedTuple):
    """A node that differs from its peers: in what, what it has, what they have, and whether it may be left out for it."""

    node: str
    check: str
    device: str
    has: str
    peers_have: str
    counts: bool
    fault: str


class Verdict(NamedTuple):
    """`bad`: the blamed nodes and why, gravest first; `site`: checks that fail on most nodes; `many`: nodes that are bad and too many to
    be blamed; `odd`: all that differ, blamed or not; `everywhere`: checks that are degraded on every node.
    """

    bad: Mapping[str, Rows]
    site: tuple[str, ...]
    many: tuple[str, ...]
    odd: tuple[Odd, ...] = ()
    everywhere: tuple[str, ...] = ()


def verdict(reports: Mapping[str, Rows], nodes: int, names: Collection[str] = ()) -> Verdict:
    """Who is to blame. `reports`: the findings of each node that gave a report; `nodes`: how many the attempt has;
    `names`: their names, where nodes that gave no report may be blamed by their peers.
    """
    failing = _by_check(reports, BAD)
    site = tuple(sorted(check for check, count in failing.items() if count * 2 > len(reports)))
    worse = _by_check(reports, DEGRADED)
    everywhere = tuple(sorted(check for check, count in worse.items() if 1 < len(reports) == count))
    odd = (*odd_ones(reports), *_low_limits(reports), *_unreached(reports, {*reports, *names}))
    own: dict[str, list[Row]] = {}
    for node, rows in reports.items():
        own[node] = [one for one in rows if one["severity"] == BAD and one["check"] not in site]
    for one in odd:
        if one.counts:
            own.setdefault(one.node, []).append(_row(one))
    bad = {node: tuple(sorted(found, key=_gravity)) for node, found in own.items() if found}
    answered = len(bad.keys() & reports.keys())  # who is silent is not among those compared
    if len(bad) * 2 > max(nodes, len(reports)) or answered * 2 > len(reports):
        return Verdict({}, site, tuple(sorted(bad)), odd, everywhere)
    return Verdict(bad, site, (), odd, everywhere)


def _by_check(reports: Mapping[str, Rows], severity: str) -> Counter[str]:
    """On how many nodes each check says so."""
    checks = ({one["check"] for one in rows if one["severity"] == severity} for rows in reports.values())
    return Counter(check for one in checks for check in one)


def odd_ones(reports: Mapping[str, Rows]) -> tuple[Odd, ...]:
    """The nodes whose values differ from those of most of their make, by the table; each device on its own."""
    makes = {node: _make(rows) for node, rows in reports.items()}
    told: dict[tuple[str, str, str], dict[str, Row]] = {}
    for node, rows in reports.items():
        for row in rows:
            if row["check"] in COMPARED and _told(row) is not None:
                make = "" if COMPARED[row["check"]].kind == APART else makes[node]
                told.setdefault((row["check"], row["device"], make), {})[node] = row
    found: list[Odd] = []
    for (check, device, make), rows_by_node in sorted(told.items()):
        if len(rows_by_node) >= TELLERS_MIN:
            found += _odd_in(check, device, rows_by_node, is_known_make=bool(make))
    return tuple(found)


def _make(rows: Rows) -> str:
    """Which machine a node is, as its firmware tells it; "" where it does not."""
    makes = (row.get("evidence") for row in rows if row["check"] == "versions" and row["device"] == "product")
    return next((str(evidence[0]) for evidence in makes if evidence), "")


def _odd_in(check: str, device: str, rows: Mapping[str, Row], *, is_known_make: bool) -> list[Odd]:
    how = COMPARED[check]
    values = {node: _told(row) for node, row in rows.items()}
    counts = how.counts and is_known_make
    floor = 0.0
    if how.kind in (TEXT, SAME):
        usual, count = Counter(values.values()).most_common(1)[0]
        odd = [node for node, value in values.items() if value != usual] if count * 2 > len(values) else []
        peers = _word(usual, next(iter(rows.values())))
    else:
        numbers = {node: float(value or 0) for node, value in values.items()}
        middle = _median(sorted(numbers.values()))
        floor = middle * how.floor
        if how.kind == LEAST:
            odd = [node for node, number in numbers.items() if number < middle * how.amount]
        else:
            odd = [node for node, number in numbers.items() if abs(number - middle) > how.amount]
        odd = odd if len(odd) * 2 < len(numbers) else []
        peers = _word(middle, next(iter(rows.values())))
    return [
        Odd(
            node,
            check,
            device,
            _word(values[node], rows[node]),
            peers,
            counts and float(values[node] or 0) >= floor,
            how.fault,
        )
        for node in odd
    ]


def _told(row: Row) -> Any:
    """What a finding offers for comparison: the value, or the first line of evidence where texts are compared; None where nothing."""
    if row["severity"] not in (OK, NOTE, DEGRADED, BAD):
        return None
    if COMPARED[row["check"]].kind == TEXT:
        evidence = row.get("evidence") or ()
        return str(evidence[0]) if evidence else None
    value = row.get("value")
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _word(value: Any, row: Row) -> str:
    return f"{value:g} {row.get('unit') or ''}".strip() if isinstance(value, float) else str(value)


def _median(ordered: Sequence[float]) -> float:
    """Of numbers in their order. A job waits while `statistics` is imported."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _low_limits(reports: Mapping[str, Rows]) -> list[Odd]:
    """The nodes whose `ulimit` is lower than that of most peers, or too low where most have enough."""
    tellers = 0
    low: dict[str, dict[str, float]] = {}  # kind -> node -> limit that is too low
    judged: set[tuple[str, str]] = set()  # those that are degraded; what is bad counts by itself
    for node, rows in reports.items():
        mine = [row for row in rows if row["check"] == "ulimit" and row["severity"] in (OK, DEGRADED, BAD)]
        tellers += bool(mine)
        for row in mine:
            value = row.get("value")
            if row["severity"] != OK and isinstance(value, (int, float)):
                low.setdefault(row["device"], {})[node] = float(value)
                if row["severity"] == DEGRADED:
                    judged.add((node, row["device"]))
    found = []
    for kind, limits in sorted(low.items()):
        known = sorted(limits.values())
        for node, mine_is in sorted(limits.items()):
            higher = known[bisect_right(known, mine_is) :]
            enough = tellers - len(known)
            if (node, kind) in judged and (len(higher) + enough) * 2 > tellers - 1:
                peers = f"{_median(higher):g}" if higher else "enough"
                found.append(Odd(node, "ulimit", kind, f"{mine_is:g}", peers, counts=True, fault="config"))
    return found


def _unreached(reports: Mapping[str, Rows], names: Collection[str]) -> list[Odd]:
    """The nodes that two or more of their peers, and more than half of those that tell, cannot reach."""
    tellers = {
        node: {row["device"] for row in rows if row["check"] == "peers" and row["severity"] == NOTE}
        for node, rows in reports.items()
        if any(row["check"] == "peers" and row["severity"] in (OK, NOTE) for row in rows)
    }
    named = Counter(name for node, lost in tellers.items() for name in lost if name != node)
    found = []
    for name in sorted(name for name in named if name in names):
        others = len(tellers) - (name in tellers)
        if named[name] >= 2 and named[name] * 2 > others:
            has = f"{named[name]} of {others} peers do not reach it"
            found.append(Odd(name, "peers", "", has, "answers", counts=True, fault="network"))
    return found


def _row(one: Odd) -> Row:
    """An odd one as a finding, so that whoever reads of blamed nodes needs one form only."""
    message = f"{one.has}, its peers have {one.peers_have}" if one.check != "peers" else one.has
    return Finding(one.check, BAD, message, one.fault, one.device)._asdict()


def _gravity(row: Row) -> tuple[bool, str, str]:
    """Hardware first, then by name, so that the order is always the same."""
    return (not str(row["fault"]).startswith("hardware"), row["check"], row["device"])
