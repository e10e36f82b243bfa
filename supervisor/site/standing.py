"""What the runs of all users know of each node, folded: who blames it, and what follows. (pure)

A *report* is what one user's supervisor told of one incident, once Slurm has confirmed that a job of that user
was on that node then. An *event* is what the service saw or did: a node left service or came back, a check of
it, a quarantine. The fold depends on both and on the rules only, in any order and with duplicates.

- A user counts once for a node, by their surest open report. Two users count as two only if no job of theirs
  ever ran for the same project. So one user alone, or two accounts of one project, weigh as one.
- A node is *corroborated* where two such users blame it, and surely enough together. Nothing that a third user
  reports can undo that: it could be their own fault, but never their word, that frees a node.
- Reports count for `window_s`, and no longer once the node was checked, or left service and came back.
- The same fault on several nodes of a switch, or on many nodes, within minutes is not a node's own fault, as far
  as others saw it, too (`_common`).
- Where accounting tells projects, a report without one corroborates nobody and frees no node.
- What follows (`due_checks`): the node is checked. Sick: it is drained. Healthy all the same: it is
  quarantined, which is to say placed last for everybody, for a day, and twice as long each further time. Blame
  while that lasts waits for its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import combinations
from typing import Any

from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.policy.correlated_failures import Failure, common_causes

A_DAY_S = 86_400.0
MONTH_S = 30 * A_DAY_S


@dataclass(frozen=True, slots=True)
class SiteRules:
    """The numbers. `blame_least`: of the two users together, each counts up to 1; `share`: of all nodes, so many
    may be quarantined at a time (one always may).
    """

    window_s: float = 14 * A_DAY_S
    blame_least: float = 1.0
    quarantine_s: float = A_DAY_S
    quarantine_max_s: float = MONTH_S
    again_s: float = 3600.0  # after a check that gave no answer, or a drain above a cap
    share: float = 0.05
    common_window_s: float = 600.0
    many: int = 4
    several: int = 3


@dataclass(frozen=True, slots=True)
class Report:
    """One incident of one user's run that blames a node, as far as Slurm confirms it. Times are Unix seconds."""

    id: str
    uid: int
    project: str
    node: str
    job: str
    fault: str
    signature: str
    confidence: float
    seen_s: float
    ran_s: float = 0.0
    digest: str = ""
    machine: str = ""  # digests of the machine that the user's supervisor knew under this name


@dataclass(frozen=True, slots=True)
class Event:
    """`what`: out (left service; detail by: ftrun or others), back, checked (result: sick, healthy, unseen, held),
    quarantined (until_s), released (by a person), swept (result: sick, well, unseen; findings), machine (what a look told of the machine with that name).
    """

    id: str
    node: str
    at_s: float
    what: str
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a node now. `score`: of one user at most 1, of two at most 2."""

    node: str
    score: float = 0.0
    corroborated_s: float = 0.0  # when the second of two users saw their fault; 0 = it is not corroborated
    classes: tuple[str, ...] = ()  # of its open reports, the most frequent first
    signature: str = ""
    reports: int = 0  # open ones
    out: bool = False
    unanswered_s: float = 0.0  # the last check since then that decided nothing
    quarantined_until_s: float = 0.0
    sick_s: float = 0.0  # when a sweep found it sick, and nothing has followed yet
    quarantines: int = 0  # in the last month, each begun after the one before had ended


@dataclass(frozen=True, slots=True)
class Order:
    """Who gave it, when (Unix seconds), and why in their words."""

    at_s: float
    by: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Orders:
    """`paused`: nothing is drained, raised, returned or checked. `denied`: uid -> the order; what these users ask
    is refused, and what they report does not count.
    """

    paused: Order | None = None
    denied: Mapping[int, Order] = field(default_factory=dict)


def fold(
    reports: Iterable[Report],
    events: Iterable[Event],
    now_s: float,
    rules: SiteRules,
    domains: Mapping[str, Iterable[str]] | None = None,
) -> dict[str, Standing]:
    """The standing of each node that a report or an event names; `domains`: switch -> its nodes."""
    told = list({(one.uid, one.id): one for one in reports}.values())
    projects: dict[int, set[str]] = {}
    for one in told:
        projects.setdefault(one.uid, set()).update({one.project} - {""})
    closed_s: dict[str, float] = {}
    found: dict[str, Standing] = {}
    for event in sorted({e.id: e for e in events}.values(), key=lambda e: (e.at_s, e.id)):
        before = found.get(event.node) or Standing(event.node)
        found[event.node], closes = _after(before, event, now_s)
        if closes:
            closed_s[event.node] = event.at_s
    innocent = _common(told, projects, rules, domains or {})
    open_: dict[str, list[Report]] = {}
    for one in told:
        fresh = now_s - rules.window_s < one.seen_s <= now_s + rules.common_window_s
        if fresh and one.seen_s > closed_s.get(one.node, 0.0) and f"{one.uid}:{one.id}" not in innocent:
            open_.setdefault(one.node, []).append(one)
    for node, mine in open_.items():
        found[node] = _blamed(found.get(node) or Standing(node), mine, projects, rules)
    return found


def _counting(told: Iterable[Report], projects: Mapping[int, set[str]]) -> list[Report]:
    """The reports that count for others: those with a project, or all where no accounting tells any."""
    accounted = any(projects.values())
    return [one for one in told if one.project or not accounted]


def _common(
    told: Sequence[Report],
    projects: Mapping[int, set[str]],
    rules: SiteRules,
    domains: Mapping[str, Iterable[str]],
) -> set[str]:
    """Keys of the reports whose fault is something that several nodes share.

    What one user alone saw on many nodes excuses their own reports only. It excuses others' where two users of
    different projects saw it on other nodes: so nobody frees a node by reports of their own.
    """
    by_key = {f"{one.uid}:{one.id}": one for one in told}
    found: set[str] = set()
    for own in (True, False):
        failures = [
            Failure(one.seen_s, f"{one.uid if own else ''}:{one.signature or one.fault}", one.node, key)
            for key, one in by_key.items()
        ]
        for cause in common_causes(failures, rules.common_window_s, rules.many, rules.several, domains):
            counting = _counting((by_key[key] for _, key in cause.failures), projects)
            freed = {
                node: own or _are_several({one.uid for one in counting if one.node != node}, projects)
                for node in {node for node, _ in cause.failures}
            }
            found |= {key for node, key in cause.failures if freed[node]}
    return found


def _are_several(users: Iterable[int], projects: Mapping[int, set[str]]) -> bool:
    """Whether two of these users have no project in common."""
    return any(not projects[one] & projects[other] for one, other in combinations(users, 2))


def _after(node: Standing, event: Event, now_s: float) -> tuple[Standing, bool]:
    """The node after one more event, and whether that closes the reports before it."""
    what, result = event.what, event.detail.get("result")
    if what == "out":
        return replace(node, out=True), False
    if what == "back":
        return replace(node, out=False, sick_s=0.0), True
    if what == "released":
        return replace(node, quarantined_until_s=0.0, unanswered_s=0.0, sick_s=0.0), True
    if what == "swept":
        return replace(node, sick_s=event.at_s if result == "sick" else 0.0), False
    if what == "quarantined":
        until_s = max(node.quarantined_until_s, float(event.detail.get("until_s", 0.0)))
        anew = event.at_s >= node.quarantined_until_s and now_s - event.at_s <= MONTH_S
        times = node.quarantines + anew
        return replace(node, quarantined_until_s=until_s, quarantines=times), False
    if what == "checked" and result in ("unseen", "held"):
        return replace(node, unanswered_s=event.at_s), False
    return replace(node, unanswered_s=0.0, sick_s=0.0), what == "checked"


def _blamed(
    node: Standing, mine: Sequence[Report], projects: Mapping[int, set[str]], rules: SiteRules
) -> Standing:
    surest: dict[int, Report] = {}
    for one in sorted(_counting(mine, projects), key=lambda r: (-r.confidence, r.seen_s, r.id)):
        surest.setdefault(one.uid, one)
    score = max(one.confidence for one in mine)
    corroborated_s = 0.0
    for one, other in combinations(surest.values(), 2):
        both = one.confidence + other.confidence
        if both >= rules.blame_least and _are_several((one.uid, other.uid), projects):
            score = max(score, both)
            seen_s = max(one.seen_s, other.seen_s)
            corroborated_s = min(corroborated_s or seen_s, seen_s)
    counted: dict[str, int] = {}
    for one in mine:
        counted[one.fault] = counted.get(one.fault, 0) + 1
    first = min(mine, key=lambda r: (-r.confidence, r.signature))
    return replace(
        node,
        score=round(score, 3),
        corroborated_s=corroborated_s,
        classes=tuple(sorted(counted, key=lambda fault: (-counted[fault], fault))),
        signature=first.signature,
        reports=len(mine),
    )


def due_checks(nodes: Mapping[str, Standing], now_s: float, rules: SiteRules) -> list[Standing]:
    """The corroborated nodes whose check is due now, those blamed most first. One that passed and is placed last
    is checked again when that is over.
    """
    due = [
        one
        for one in nodes.values()
        if one.corroborated_s
        and not one.out
        and now_s - one.unanswered_s >= rules.again_s
        and (one.unanswered_s or one.quarantined_until_s <= now_s)
    ]
    return sorted(due, key=lambda one: (-one.score, one.node))


def due_drains(nodes: Mapping[str, Standing], now_s: float, rules: SiteRules) -> list[Standing]:
    """The nodes that a sweep of the last day found sick, and for which nothing was done yet."""
    return [
        one
        for _, one in sorted(nodes.items())
        if now_s - one.sick_s < A_DAY_S and not one.out and now_s - one.unanswered_s >= rules.again_s
    ]


def quarantine_until_s(node: Standing, now_s: float, rules: SiteRules) -> float:
    """Until when a node is placed last that is not drained."""
    return now_s + min(rules.quarantine_s * 2.0 ** min(node.quarantines, 40), rules.quarantine_max_s)


def quarantined(nodes: Mapping[str, Standing], now_s: float, total: int, rules: SiteRules) -> list[Standing]:
    """The nodes to place last now, as many as the share of all `total` nodes allows, those at it longest first."""
    held = [one for one in nodes.values() if one.quarantined_until_s > now_s and not one.out]
    held.sort(key=lambda one: (-one.quarantines, -one.quarantined_until_s, one.node))
    return held[: max(1, int(rules.share * total))]
