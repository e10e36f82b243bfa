"""Compares the reports of an attempt's nodes: which nodes to blame; never all of them, and never most. (pure)

Values that healthy nodes share are compared, and a node that differs from more than half of the others is an
outlier; of two nodes that differ neither can be blamed. The table says whether an outlier alone keeps a job
away: a slow link or a missing GPU holds up all ranks, a newer kernel does not. Only machines of one model are
compared. If the model is unknown, or a value is so low that the node must be of another kind, the difference
does not count. `ulimit` counts by comparison only, since its thresholds are one vendor's advice.

A check that fails on most nodes points to the site or to the check, and if more than half of the nodes that
answer are bad a shared cause is likelier: neither is held against a node. A job of one node has no peers
but those of earlier jobs (`past_checks`): without them every failure counts as the site's. Unknown, skipped or missing results are held against no node. That a
node cannot be reached is believed from two or more nodes that are more than half of all that report.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks.runtime.finding import BAD, DEGRADED, NOTE, OK, Finding

Row = Mapping[str, Any]
"""A finding as in reports: the fields of Finding by name."""
Rows = Sequence[Row]

SAME, TEXT, LEAST, APART = "same", "text", "least", "apart"
TELLERS_MIN = 3  # of two nodes that differ neither can be called odd


class Comparison(NamedTuple):
    """How the values of a check are compared. `kind`: text or value are equal, or the value is at least
    `amount` of the median ("least"), or within `amount` of it ("apart"). `counts`: whether an outlier may be
    excluded for it, if it has at least `floor` of the median: below that it is no broken node, but one of
    another kind.
    """

    kind: str
    amount: float
    counts: bool
    fault: str
    floor: float = 0.0


COMPARED: Mapping[str, Comparison] = {
    "versions": Comparison(TEXT, 0, counts=False, fault="node"),
    "gpu-driver": Comparison(TEXT, 0, counts=False, fault="node"),
    "mtu": Comparison(SAME, 0, counts=False, fault="network"),
    "hugepages": Comparison(SAME, 0, counts=False, fault="config"),
    "clock": Comparison(APART, 0.5, counts=False, fault="node"),
    "nic-link": Comparison(LEAST, 0.9, counts=False, fault="network"),
    "cpu-frequency": Comparison(LEAST, 1, counts=False, fault="hardware-other"),
    "memory": Comparison(LEAST, 0.97, counts=True, fault="hardware-other", floor=0.7),
    "gpu-check": Comparison(LEAST, 1, counts=True, fault="hardware-gpu", floor=0.5),
    "ib-speed": Comparison(LEAST, 0.9, counts=True, fault="network"),
}
"""What is compared, by name of the check."""


class Outlier(NamedTuple):
    """A node that differs from its peers: in what, both values, and whether it may be excluded for that."""

    node: str
    check: str
    device: str
    has: str
    peers_have: str
    counts: bool
    fault: str


class Verdict(NamedTuple):
    """The result of the comparison. `bad`: the blamed nodes and why, gravest first; `site`: checks that fail
    on most nodes; `many`: bad nodes that are too many to blame; `odd`: all outliers, blamed or not;
    `everywhere`: checks that are degraded on every node.
    """

    bad: Mapping[str, Rows]
    site: tuple[str, ...]
    many: tuple[str, ...]
    odd: tuple[Outlier, ...] = ()
    everywhere: tuple[str, ...] = ()


def verdict(reports: Mapping[str, Rows], nodes: int, names: Collection[str] = ()) -> Verdict:
    """Which nodes to blame. `reports`: the findings of each node that reported; `nodes`: how many the attempt
    has; `names`: their names, if peers may put blame on nodes without a report.
    """
    failing = _by_check(reports, BAD)
    site = tuple(sorted(check for check, count in failing.items() if count * 2 > len(reports)))
    worse = _by_check(reports, DEGRADED)
    everywhere = tuple(sorted(check for check, count in worse.items() if 1 < len(reports) == count))
    odd = (*find_outliers(reports), *_low_limits(reports), *_unreached(reports, {*reports, *names}))
    own: dict[str, list[Row]] = {}
    for node, rows in reports.items():
        own[node] = [one for one in rows if one["severity"] == BAD and one["check"] not in site]
    for one in odd:
        if one.counts:
            own.setdefault(one.node, []).append(_row(one))
    bad = {node: tuple(sorted(found, key=_gravity)) for node, found in own.items() if found}
    answered = len(bad.keys() & reports.keys())  # nodes without a report are not compared
    if len(bad) * 2 > max(nodes, len(reports)) or answered * 2 > len(reports):
        return Verdict({}, site, tuple(sorted(bad)), odd, everywhere)
    return Verdict(bad, site, (), odd, everywhere)


def _by_check(reports: Mapping[str, Rows], severity: str) -> Counter[str]:
    """The number of nodes on which each check says so."""
    checks = ({one["check"] for one in rows if one["severity"] == severity} for rows in reports.values())
    return Counter(check for one in checks for check in one)


def find_outliers(reports: Mapping[str, Rows]) -> tuple[Outlier, ...]:
    """The nodes whose values differ from most of their model, by the table; each device separately."""
    makes = {node: model_of(rows) for node, rows in reports.items()}
    told: dict[tuple[str, str, str], dict[str, Row]] = {}
    for node, rows in reports.items():
        for row in rows:
            if row["check"] in COMPARED and _told(row) is not None:
                make = "" if COMPARED[row["check"]].kind == APART else makes[node]
                told.setdefault((row["check"], row["device"], make), {})[node] = row
    found: list[Outlier] = []
    for (check, device, make), rows_by_node in sorted(told.items()):
        if len(rows_by_node) >= TELLERS_MIN:
            found += _odd_in(check, device, rows_by_node, is_known_make=bool(make))
    return tuple(found)


def model_of(rows: Rows) -> str:
    """The machine model in the node's firmware; "" if unknown."""
    makes = (row.get("evidence") for row in rows if row["check"] == "versions" and row["device"] == "product")
    return next((str(evidence[0]) for evidence in makes if evidence), "")


def _odd_in(check: str, device: str, rows: Mapping[str, Row], *, is_known_make: bool) -> list[Outlier]:
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
        Outlier(
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
    """The value of a finding for comparison, or its first line of evidence; None without one."""
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
    """The median of sorted numbers. Importing `statistics` would delay the job."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _low_limits(reports: Mapping[str, Rows]) -> list[Outlier]:
    """The nodes whose `ulimit` is lower than that of most peers, or too low while most have enough."""
    tellers = 0
    low: dict[str, dict[str, float]] = {}  # kind -> node -> limit that is too low
    judged: set[tuple[str, str]] = set()  # those that are degraded; bad ones count by themselves
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
                found.append(
                    Outlier(node, "ulimit", kind, f"{mine_is:g}", peers, counts=True, fault="config")
                )
    return found


def _unreached(reports: Mapping[str, Rows], names: Collection[str]) -> list[Outlier]:
    """The nodes that two or more peers, and more than half of those that report, cannot reach."""
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
            found.append(Outlier(name, "peers", "", has, "answers", counts=True, fault="network"))
    return found


def _row(one: Outlier) -> Row:
    """An outlier as a finding, so that readers of blamed nodes need one form only."""
    message = f"{one.has}, its peers have {one.peers_have}" if one.check != "peers" else one.has
    return Finding(one.check, BAD, message, one.fault, one.device)._asdict()


def _gravity(row: Row) -> tuple[bool, str, str]:
    """Hardware first, then by name, for a stable order."""
    return (not str(row["fault"]).startswith("hardware"), row["check"], row["device"])
