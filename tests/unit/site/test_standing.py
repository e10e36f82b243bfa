"""Laws of the site's ledger, folded: who counts for how much, and that no user alone moves a node, whatever they report."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from ftrun.supervisor.site import standing
from ftrun.supervisor.site.standing import Event, Report, SiteRules, Standing

NOW_S = 1_000_000.0
RULES = SiteRules()


def report(uid: int, node: str = "n1", ago_s: float = 3600.0, **more: object) -> Report:
    given = {"project": f"p{uid}", "fault": "hardware-gpu", "signature": f"s{uid}", "confidence": 0.8} | more
    told = f"{uid}-{node}-{ago_s}-{sorted(more)}"
    return Report(told, uid, node=node, job="7", seen_s=NOW_S - ago_s, **given)  # type: ignore[arg-type]


def folded(reports: Sequence[Report], events: Sequence[Event] = ()) -> dict[str, Standing]:
    return standing.fold(reports, events, NOW_S, RULES)


@pytest.mark.parametrize(
    ("reports", "corroborated"),
    [
        ([report(1)], False),
        ([report(1, ago_s=hour * 3600.0) for hour in range(1, 30)], False),
        ([report(1), report(2)], True),
        ([report(1, project="ml"), report(2, project="ml", ago_s=9000.0)], False),
        ([report(1, project=""), report(2, project="")], True),  # without accounting
        ([report(1, project="ml"), report(2, project="own"), report(2, "n9", project="ml")], False),
        ([report(1), report(2, project="")], False),  # with accounting, which does not know that job
        ([report(1), report(2, confidence=0.1)], False),
        ([report(1), report(2, "n2")], False),
        ([report(1), report(2, ago_s=15 * 86_400.0)], False),
        ([report(1), report(2, ago_s=-3600.0)], False),
        ([report(1), report(2), report(3, project="p1"), report(3, "n5", project="p2")], True),
    ],
)
def test_two_users_of_different_projects_corroborate(reports: list[Report], corroborated: bool) -> None:
    """Surely enough, within two weeks, about one node; nobody who belongs to both projects can undo it."""
    assert bool(folded(reports)["n1"].corroborated_s) is corroborated


def test_the_same_fault_on_many_nodes_at_once_is_no_nodes_own() -> None:
    """Of whichever users: it is the job's, the switch's or the cluster's."""
    told = [report(uid, f"n{uid}", signature="nccl", ago_s=3600.0 + uid) for uid in range(1, 6)]
    nodes = folded([*told, report(9, "n1", signature="nccl", ago_s=3700.0)])
    assert not any(one.score for one in nodes.values())
    switched = standing.fold(told[:3], (), NOW_S, RULES, {"s0": ["n1", "n2", "n3"], "s1": ["n4"]})
    assert not any(one.score for one in switched.values())


@pytest.mark.parametrize(
    ("what", "detail", "open_"),
    [
        ("back", {}, False),
        ("checked", {"result": "healthy"}, False),
        ("checked", {"result": "unseen"}, True),
        ("released", {}, False),
        ("out", {"by": "others"}, True),
    ],
)
def test_a_report_counts_until_the_node_was_dealt_with(
    what: str, detail: dict[str, str], open_: bool
) -> None:
    """And anew for what is seen after that."""
    done = Event("e", "n1", NOW_S - 1800.0, what, detail)
    assert bool(folded([report(1), report(2)], [done])["n1"].corroborated_s) is open_
    again = [report(1, ago_s=60.0), report(2, ago_s=30.0)]
    assert folded([report(1), *again], [done])["n1"].corroborated_s


def test_a_quarantine_doubles_and_stays_under_its_share() -> None:
    """For a node that passes its checks again and again; a month at most; a share of all nodes, the worst first."""
    events = [
        Event(
            f"q{n}{i}", f"n{n}", at_s := NOW_S - 1.2 * 86_400.0 * i - 100.0, "quarantined",
            {"until_s": at_s + 86_400.0 if i else NOW_S + n},
        )
        for n in range(1, 9)
        for i in range(n)
    ]  # fmt: skip
    nodes = folded([], events)
    assert [one.node for one in standing.quarantined(nodes, NOW_S, 60, RULES)] == ["n8", "n7", "n6"]
    assert [one.node for one in standing.quarantined(nodes, NOW_S, 4, RULES)] == ["n8"]
    days = [
        (standing.quarantine_until_s(nodes[n], NOW_S, RULES) - NOW_S) / 86_400.0 for n in ("n1", "n2", "n8")
    ]
    assert days == [2.0, 4.0, 30.0]


def history(seed: int) -> tuple[list[Report], list[Event], list[Report]]:
    """Honest reports, what became of nodes, and what hostile users of one project add."""
    luck = Random(seed)
    nodes = [f"n{i}" for i in range(12)]

    def some(uids: Sequence[int], count: int, project: str = "") -> list[Report]:
        return [
            report(
                uid := luck.choice(uids),
                luck.choice(nodes),
                luck.choice([60.0, 4000.0, 1e5, 2e6]) * luck.random(),
                project=project or f"p{uid % 3}",
                confidence=luck.choice([0.2, 0.6, 0.95, 1.0]),
                signature=luck.choice(["a", "b", "c", "d", "e"]) + str(luck.randint(0, 30)),
                number=number,
            )
            for number in range(count)
        ]

    def report(uid: int, node: str, ago_s: float, *, number: int, **more: object) -> Report:
        return Report(
            f"{uid}:{number}", uid, node=node, job="7", seen_s=NOW_S - ago_s, fault="hardware-gpu", **more  # type: ignore[arg-type]
        )  # fmt: skip

    events = [
        Event(
            f"e{i}", luck.choice(nodes), NOW_S - 1e6 * luck.random(), luck.choice(["out", "back", "checked", "quarantined"]),
            {"result": luck.choice(["healthy", "sick", "unseen"]), "until_s": NOW_S + luck.choice([-1e5, 1e5])},
        )
        for i in range(luck.randint(0, 6))
    ]  # fmt: skip
    return some(range(1, 7), luck.randint(0, 12)), events, some([90, 91], luck.randint(1, 60), "evil")


def hold(seed: int) -> None:
    """The laws for one history."""
    luck = Random(-seed)
    honest, events, hostile = history(seed)
    before = folded(honest, events)
    after = folded([*honest, *hostile], events)
    mixed = [*honest, *hostile, *luck.sample(hostile, len(hostile) // 2)]
    luck.shuffle(mixed)
    assert after == folded(mixed, luck.sample(events, len(events))), "the order or a duplicate counts"
    alone = folded(hostile, events)
    assert not any(one.corroborated_s for one in alone.values()), "one project alone moved a node"
    assert not standing.due_checks(alone, NOW_S, RULES)
    for node, one in after.items():
        known = before.get(node, Standing(node))
        assert 0.0 <= one.score <= 2.0
        assert one.quarantined_until_s == known.quarantined_until_s, "words alone quarantine nobody"
        if known.corroborated_s:
            assert one.corroborated_s, "hostile reports freed a node"
        if one.corroborated_s and not known.corroborated_s:
            mine = {r.uid for r in honest if r.node == node}
            assert mine, "only hostile users blame it"
    assert len(standing.quarantined(after, NOW_S, 12, RULES)) <= 1


@pytest.mark.parametrize("seed", range(60))
def test_hostile_users_of_one_project_move_no_node(seed: int) -> None:
    """However many reports they leave: they weigh as one, free no node, and neither order nor repetition counts."""
    hold(seed)


@pytest.mark.drills
def test_the_same_over_thousands_of_histories() -> None:
    """Seeds beyond those of every run."""
    for seed in range(60, 2060):
        hold(seed)


def test_one_user_of_two_projects_frees_no_node() -> None:
    """Who reports others' signature on many nodes for two projects is still one user; nor do friends of one project."""
    honest = [report(1, signature="xid-79"), report(2, signature="ecc", ago_s=7200.0)]
    for users in ((9, 9), (8, 9)):
        flood = [
            report(users[i % 2], f"n{i}", 3600.0 + i, signature="xid-79", project=("pa", "pb", "")[i % 3])
            for i in range(2, 20)
        ]
        flood += [report(user, "n30", project="pa") for user in set(users)]
        assert folded([*honest, *flood])["n1"].corroborated_s


def test_a_flood_of_alike_faults_frees_no_node() -> None:
    """Who reports two other users' signature on many nodes excuses themselves, not these."""
    honest = [report(1, signature="xid-79"), report(2, signature="ecc", ago_s=7200.0)]
    flood = [report(9, f"n{i}", 3600.0 + i, signature="xid-79") for i in range(2, 20)]
    nodes = folded([*honest, *flood])
    assert nodes["n1"].corroborated_s
    assert set(nodes) == {"n1"}
