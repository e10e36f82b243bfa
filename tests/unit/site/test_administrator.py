"""Laws of what administrators say: pause, deny, observe; and of what they are told."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest

from ftrun.slurm.records import replace
from ftrun.supervisor.nodes.recheck_rules import CheckReport, RecheckRules
from ftrun.supervisor.site import orders
from ftrun.supervisor.site.account_of_node import NodeFacts, account
from ftrun.supervisor.site.drain_service import site_dir
from ftrun.supervisor.site.observed import ObservedDrain, observed_drains
from ftrun.supervisor.site.standing import Event, Order, Orders, Report, Standing
from ftrun.supervisor.store import site_nodes
from ftrun.supervisor.store.append_log import AppendLog
from tests.unit.site.test_drain_service import AWAY, BAD, SICK, WELL, row
from tests.unit.site.test_service import Town

PAUSED = Orders(paused=Order(1.0, "root", "a maintenance"))
RULES = RecheckRules(passes=2, spacing_s=600.0)


@pytest.fixture
def town(tmp_path: Path) -> Town:
    site_nodes._cache.clear()
    return Town(tmp_path, Random(1))


def asked(town: Town, user: str, node: str = "n0", **changes: Any) -> str:
    """A request of that user to drain a node."""
    made = town.tell(user, node, want="drain", **changes)
    town.spool.files[f"{made}.req"] = town.spool.files.pop(f"{made}.rep")
    return made


def test_a_paused_service_touches_nothing_and_loses_nothing(town: Town) -> None:
    """No look, no drain, no placing last; reports are taken, requests wait, and all of it is done after the pause."""
    town.truth["n0"] = SICK
    request = asked(town, "cat", "n1")
    town.truth["n1"] = SICK
    for user in ("ann", "ben"):
        town.tell(user)
    look, looked = town.look, list[str]()
    town.look = lambda nodes: looked.extend(nodes) or look(nodes)  # type: ignore[method-assign, func-returns-value]
    assert [one.verdict for one in town.once(orders=lambda: PAUSED)] == ["reported", "reported"]
    assert (looked, town.ours(), town.placed_last()) == ([], set(), [])
    assert list(town.spool.files) == [f"{request}.req"]
    assert sorted((one.node, one.verdict) for one in town.once()) == [("n0", "drained"), ("n1", "drained")]


def test_who_is_denied_counts_for_nothing(town: Town) -> None:
    """What they ask is refused with the reason, what they report and have reported corroborates nobody; with the order the effect ends."""
    orders_ = Orders(denied={crc32(b"ben"): Order(1.0, "root", "see ticket 7")})
    town.truth |= {"n0": SICK, "n1": SICK}
    for user in ("ann", "ben"):
        town.tell(user)
    town.limits = replace(town.limits, per_hour=0)
    town.once()  # corroborated, and a cap forbids the drain
    town.limits = replace(town.limits, per_hour=99)
    town.engine.advance(3700.0)
    asked(town, "ben", "n1")
    town.tell("ben", "n2")
    answers = town.once(orders=lambda: orders_)
    assert {one.verdict for one in answers} == {"refused"}
    assert all("see ticket 7" in one.why for one in answers)
    assert town.ours() == set()
    assert [(one.node, one.verdict) for one in town.once()] == [("n0", "drained")]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"[" * 100_000, b'{"schema": 2}', b"\xff", b'{"schema":1,"paused":7,"denied":{}}'],
)
def test_orders_that_cannot_be_read_are_a_pause(tmp_path: Path, content: bytes) -> None:
    """Nobody's order is forgotten for a damaged file; the way out is said."""
    (tmp_path / orders.FILE).write_bytes(content)
    paused = orders.read_orders(str(tmp_path)).paused
    assert paused is not None
    assert "remove it" in paused.why


def test_orders_are_kept_whole(tmp_path: Path) -> None:
    """What was given is read; each order changes its own part only."""
    folder = str(tmp_path / "site")
    one, two = Order(1.0, "root", "x"), Order(2.0, "kim")
    orders.change_orders(folder, lambda before: replace(before, denied={7: one}))
    orders.change_orders(folder, lambda before: replace(before, paused=two))
    assert orders.read_orders(folder) == Orders(two, {7: one})
    orders.change_orders(folder, lambda before: replace(before, paused=None))
    assert orders.read_orders(folder) == Orders(None, {7: one})


def followed(town: Town, *truths: CheckReport) -> ObservedDrain:
    """One observed drain of n0, which then shows this at each look, ten minutes and more apart."""
    town.truth["n0"] = SICK
    asked(town, "ann")
    assert [one.verdict for one in town.once(observe=True)][:1] == ["observed"]
    for truth in truths:
        town.truth["n0"] = truth
        town.engine.advance(7200.0)
        town.once(observe=True)
    (found,) = observed_drains(AppendLog(site_dir(town.home)).read(), RULES)
    return found


@pytest.mark.parametrize(
    ("truths", "outcome", "ended"),
    [
        ((), "right", False),
        ((WELL,), "right", False),
        ((SICK, WELL, WELL), "right", True),
        ((AWAY, AWAY), "right", False),
    ],
)
def test_an_observed_drain_that_is_confirmed_was_right(
    town: Town, truths: tuple[CheckReport, ...], outcome: str, *, ended: bool
) -> None:
    """The look after it, in the same round, finds the node sick as well; whenever it is mended, that stays so."""
    found = followed(town, *truths)
    assert (found.outcome, found.ended) == (outcome, ended)
    assert town.ours() == set()


def test_an_observed_drain_is_wrong_where_all_looks_are_clean() -> None:
    """As many clean looks in a row as recheck wants; what is asked for meanwhile is the same drain, what comes later another."""
    would: dict[str, Any] = {
        "kind": "answered",
        "verdict": "observed",
        "node": "n0",
        "id": "a",
        "uid": 7,
        "why": "would be drained: gpu-check: 7 of 8",
    }
    clean: dict[str, Any] = {"kind": "looked", "node": "n0", "result": "clean", "why": "clean", "wrong": []}
    records = [
        would | {"at": 1.0},
        clean | {"at": 2.0},
        would | {"at": 3.0},
        clean | {"at": 700.0},
        would | {"at": 900.0},
    ]
    first, second = observed_drains(records, RULES)
    assert (first.outcome, first.times, first.ended_s) == ("wrong", 2, 700.0)
    assert (second.outcome, second.at_s, second.ended) == ("open", 900.0, False)
    taken = {"kind": "looked", "at": 950.0, "node": "n0", "result": "out", "why": "by hand"}
    assert observed_drains([*records, taken], RULES)[1].outcome == "right"


def test_what_wears_is_no_wrong_drain(town: Town) -> None:
    """A drain for lost lanes that two users brought about: a later look that shows them again confirms it."""
    town.truth["n0"] = CheckReport("answered", (BAD | {"severity": "degraded", "check": "gpu-pcie"},))
    for user in ("ann", "ben"):
        town.tell(user)
    assert "observed" in {one.verdict for one in town.once(observe=True)}
    (found,) = observed_drains(AppendLog(site_dir(town.home)).read(), RULES)
    assert found.outcome == "right"


def test_an_account_of_a_node_says_who_what_and_what_is_next() -> None:
    """In sentences: Slurm's word, requests with their answers, blame, the check for it, how long it lasts, and the pause."""
    facts = NodeFacts(
        row("n0", reason="by hand"),
        Standing("n0", 1.8, corroborated_s=5.0, classes=("network",), reports=2, quarantined_until_s=900.0),
        [
            Report("a", 7, "p", "n0", "1", "network", "s", 0.9, 1.0),
            Report("b", 8, "q", "n0", "2", "network", "s", 0.9, 2.0),
        ],
        [Event("c", "n0", 6.0, "checked", {"result": "healthy"})],
        [{"at": 3.0, "uid": 7, "verdict": "refused", "why": "the checks find the node healthy"}],
        orders=Orders(Order(4.0, "root"), {8: Order(4.0, "root")}),
    )
    told = "\n".join(account(facts, 10.0, lambda at_s: f"{at_s:.0f}", lambda uid: f"user{uid}"))
    for words in (
        "out of service: by hand", "not ftrun's", "user7 asked for its drain: refused", "2 reports of user7, user8",
        "user8 count for nothing", "healthy: placed last", "until 900", "`ftrun site release n0`", "paused since 4 by root",
    ):  # fmt: skip
        assert words in told, words
