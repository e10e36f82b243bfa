"""Laws of what is known of nodes: strikes, quarantine, devices, common causes, lemons. (pure)"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.supervisor.model.node_entry import NodeEntry, canonical_device
from ftrun.supervisor.nodes.history import NodeHistory, NodeRecord, QuarantineRules, fold_entries
from ftrun.supervisor.nodes.lemon_score import LEMON_AT, Score, score

T = 1_790_000_000.0
HOUR, DAY = 3600.0, 86_400.0
RULES = QuarantineRules()
SWITCHES = {"s0": ("n0", "n1", "n2", "n3"), "s1": ("n4", "n5", "n6", "n7")}


def fault(number: int, node: str = "n1", at_s: float | None = None, **changes: Any) -> NodeEntry:
    """The `number`-th incident, of a run of its own, held against a node; a day between two unless told."""
    plain = NodeEntry(
        at_s=T + number * DAY if at_s is None else at_s,
        what="incident",
        nodes=(node,),
        id=f"i{number}",
        run=f"r-{number:04d}",
        signature="xid-79",
        fault="hardware-gpu",
        detail={"incident": "1.0", "attempt_nodes": 8, "strike": True},
    )
    return replace(plain, **changes)


def other(what: str, at_s: float, node: str = "n1", **changes: Any) -> NodeEntry:
    return replace(NodeEntry(at_s, what, (node,), id=f"{what}{at_s}{node}"), **changes)


def served(hours: float, at_s: float, node: str = "n1") -> NodeEntry:
    return other("served", at_s, node, detail={"hours": hours})


def node(*entries: NodeEntry, name: str = "n1", **more: Any) -> NodeRecord:
    return fold_entries(entries, **more).nodes[name]


# ---------------------------------------------------------------------- strikes and quarantine


def test_quarantine_doubles_with_each_strike_up_to_a_ceiling() -> None:
    """One day, two, four, eight, sixteen, thirty, thirty."""
    faults = [fault(n) for n in range(7)]
    days = [strike.until_s - strike.at_s for strike in node(*faults).strikes]

    assert [DAY * n for n in (1, 2, 4, 8, 16, 30, 30)] == days


def test_incident_exclusion_and_drain_are_one_strike() -> None:
    """What came of one incident of one run is one; the same number of another run is another."""
    one = fault(0)
    came = [replace(one, what=what, id=what, at_s=T + n) for n, what in enumerate(("excluded", "drained"), 1)]

    assert 1 == len(node(one, *came).strikes)
    assert 2 == len(node(one, *came, fault(1)).strikes)


def test_what_is_not_held_against_a_node_is_history_only() -> None:
    """An incident that only names it, a check, a person's exclusion: no strike."""
    seen = fault(0, detail={"incident": "1.0", "strike": False})
    person = other("excluded", T, detail={"by": "ada", "until_s": T + DAY})
    record = node(seen, other("check", T), person)

    assert () == record.strikes
    assert 3 == len(record.history)


def test_a_person_excludes_until_a_time_or_a_release() -> None:
    """The person's reason is shown; a release ends it, and takes all strikes back."""
    person = other("excluded", T, detail={"by": "ada", "until_s": T + 9 * DAY, "reason": "smells"})
    away = fold_entries([person, fault(0)])
    free = fold_entries([person, fault(0), other("released", T + HOUR, detail={"by": "ada"})])

    assert (T + 9 * DAY, "smells") == (away.nodes["n1"].quarantined_until_s, away.nodes["n1"].why)
    assert (0.0, (), 1) == (
        free.nodes["n1"].quarantined_until_s,
        free.nodes["n1"].strikes,
        free.nodes["n1"].faded,
    )


def test_a_returned_node_is_free_and_a_liar_is_away_longer() -> None:
    """A passed recheck ends the quarantine; the strikes stay, so a fault soon after counts as the second, and as a lie."""
    back = other("returned", T + HOUR)

    assert node(fault(0), back).quarantined_until_s == T + HOUR
    liar = node(fault(0), back, fault(1))
    assert (2 * DAY, 1) == (liar.strikes[-1].until_s - liar.strikes[-1].at_s, liar.lies)
    assert 0 == node(fault(0), back, fault(30)).lies


def test_strikes_fade_with_good_service_and_not_with_time() -> None:
    """Two weeks of service take the oldest back, four take two; a year without a job takes none."""
    two = [fault(0), fault(1)]

    assert [2, 1, 0] == [
        len(node(*two, served(hours, T + 90 * DAY)).strikes) for hours in (335.9, 336.0, 672.0)
    ]
    assert 2 == len(node(*two, other("check", T + 365 * DAY)).strikes)
    apart = [fault(0), served(335, T + HOUR), fault(1), served(335, T + 2 * DAY)]
    assert 2 == len(node(*apart).strikes)


def test_the_worst_are_avoided_first() -> None:
    """A person's word, then the number of strikes: where only some can be avoided, these are."""
    person = other("excluded", T, "n9", detail={"by": "ada", "until_s": T + 90 * DAY})
    faults = [fault(0, "n1"), fault(1, "n2"), fault(2, "n2"), fault(3, "n3", at_s=T - 60 * DAY)]

    assert ("n9", "n2", "n1") == fold_entries([*faults, person]).quarantined(T + HOUR)


# ---------------------------------------------------------------------- devices


def test_a_new_serial_closes_the_strikes_of_the_old_device() -> None:
    """Another card in the slot: its strikes go, and its quarantine; those of other slots stay."""
    card = fault(0, device="0000:3b:00", serial="A")
    elsewhere = fault(1, device="0000:86:00", serial="B")
    swapped = other("check", T + 2 * DAY, device="00000000:3B:00.0", serial="C")
    record = node(card, elsewhere, swapped)

    assert ["0000:86:00"] == [strike.device for strike in record.strikes]
    assert [("0000:3b:00", "C", 0, 1, 1), ("0000:86:00", "B", 1, 1, 0)] == [
        (d.device, d.serial, d.strikes, d.incidents, d.replaced) for d in record.devices
    ]
    again = node(card, other("check", T + 2 * DAY, device="0000:3b:00", serial="A"))
    assert 1 == len(again.strikes)


def test_a_serial_that_is_learned_later_is_that_of_the_strike() -> None:
    """The log names a slot only; a check tells what sits there, a later one that it is gone."""
    card = fault(0, device="0000:3b:00")
    learned = other("check", T + HOUR, device="0000:3b:00", serial="A")
    swapped = other("check", T + 2 * HOUR, device="0000:3b:00", serial="B")

    assert ["A"] == [strike.serial for strike in node(card, learned).strikes]
    assert () == node(card, learned, swapped).strikes
    assert 1 == len(node(fault(0), learned, swapped).strikes)


@pytest.mark.parametrize(
    "text", ["0000:3b:00", "00000000:3B:00.0", "PCI:0000:3b:00", " 0000:3B:00.0 ", "0 (00000000:3B:00.0)"]
)
def test_a_place_has_one_name(text: str) -> None:
    """The driver, lspci and nvidia-smi write the same slot in different ways."""
    assert "0000:3b:00" == canonical_device(text)
    assert "mlx5_0" == canonical_device("mlx5_0")
    assert canonical_device("0000:3b:00.1") != canonical_device("0000:3b:00.0")


# ---------------------------------------------------------------------- together


def together(names: str, *, apart_s: float = 60.0, **changes: Any) -> list[NodeEntry]:
    return [fault(n, name, at_s=T + n * apart_s, **changes) for n, name in enumerate(names.split())]


def test_the_same_fault_on_many_nodes_strikes_nobody() -> None:
    """Four nodes in ten minutes, be it in one run or in several: the job or the cluster."""
    book = fold_entries(together("n0 n2 n4 n6"))

    assert [()] * 4 == [record.strikes for record in book.nodes.values()]
    (cause,) = book.common
    assert ("", ("n0", "n2", "n4", "n6")) == (cause.where, cause.nodes)
    assert "held to be the job's or the cluster's fault" in cause.sentence
    at_once = fault(0, nodes=("n0", "n2", "n4", "n6"))
    assert () == fold_entries([at_once]).quarantined(T)


def test_few_nodes_other_faults_or_more_time_are_each_nodes_own() -> None:
    """Three nodes; four with two faults; four over an hour; four times the same node: strikes."""
    mixed = [*together("n0 n2"), *(replace(e, signature="ecc", id=f"x{e.id}") for e in together("n4 n6"))]

    for told in (together("n0 n2 n4"), mixed, together("n0 n2 n4 n6", apart_s=1200), together("n1 n1 n1 n1")):
        book = fold_entries(told)
        assert () == book.common
        assert 0 < min(len(record.strikes) for record in book.nodes.values())


def test_nodes_of_one_switch_point_at_the_switch() -> None:
    """Three below one leaf switch, one elsewhere at most: told, and nobody's strike but that one's."""
    book = fold_entries(together("n0 n1 n2"), domains=SWITCHES)

    assert ["s0"] == [cause.where for cause in book.common]
    assert "below s0" in book.common[0].sentence
    assert [()] * 3 == [record.strikes for record in book.nodes.values()]
    with_one = fold_entries(together("n0 n1 n2 n5"), domains=SWITCHES)
    assert {"n0": 0, "n1": 0, "n2": 0, "n5": 1} == {n: len(r.strikes) for n, r in with_one.nodes.items()}


def test_a_cluster_of_one_switch_points_at_none() -> None:
    """Where all nodes hang on one switch, or nobody knows, three failures say nothing of it."""
    for domains in ({"only": SWITCHES["s0"]}, {}):
        assert () == fold_entries(together("n0 n1 n2"), domains=domains).common


# ---------------------------------------------------------------------- laws for any history

NAMES = ("n0", "n1", "n2", "n3", "n4", "n5")


KINDS = ("incident", "incident", "excluded", "drained", "returned", "released", "served", "check")
FACTS = st.tuples(
    st.sampled_from(KINDS),
    st.sampled_from([("n0",), ("n1",), ("n2",), ("n0", "n1"), ("n1", "n4"), ("n0", "n1", "n2"), NAMES]),
    st.integers(0, 400),  # when: a few days, in steps of five minutes
    st.sampled_from(["r-0001:0", "r-0001:1", "r-0002:0", "r-0002:1"]),
    st.sampled_from(["xid-79", "ecc", ""]),
    st.sampled_from([("", ""), ("0000:3b:00", ""), ("0000:3b:00", "A"), ("0000:3b:00", "B")]),
    st.integers(0, 9),  # what kind of detail
)


def histories() -> st.SearchStrategy[list[NodeEntry]]:
    """Entries of any kind, of any nodes, in any order of time, each with an id of its own."""
    return st.lists(FACTS, max_size=12).map(lambda facts: [_made(n, *fact) for n, fact in enumerate(facts)])


def _made(number: int, what: str, names: tuple[str, ...], when: int, key: str, *rest: Any) -> NodeEntry:
    signature, (device, serial), kind = rest
    run, _, incident = key.partition(":")
    detail: dict[str, Any] = {"incident": incident, "strike": kind < 7}
    if what == "served":
        detail = {"hours": kind * 60.0}
    elif kind == 9:
        detail = {"by": "ada", "until_s": T + when * DAY / 10}
    names = tuple(sorted(names))
    return NodeEntry(
        T + when * 300.0, what, names, f"e{number}", run, signature, "hardware-gpu", device, serial, detail
    )


@given(told=histories(), data=st.data())
def test_order_and_repetition_make_no_difference(told: list[NodeEntry], data: st.DataObject) -> None:
    """Whoever reads the files in whatever order, with lines that were written twice, comes to the same book."""
    shuffled = data.draw(st.permutations([*told, *told[: len(told) // 2]]))

    assert fold_entries(told, domains=SWITCHES) == fold_entries(shuffled, domains=SWITCHES)


@given(told=histories())
def test_a_quarantine_has_a_cause_and_a_ceiling(told: list[NodeEntry]) -> None:
    """Whoever is avoided bears an open strike or a person's word; no strike keeps a node away for longer than the ceiling."""
    book = fold_entries(told, domains=SWITCHES)
    for record in book.nodes.values():
        assert (record.quarantined_until_s > 0) <= bool(record.strikes or record.excluded_until_s)
        for strike in record.strikes:
            assert strike.until_s - strike.at_s <= RULES.ceiling_s
    assert set(book.quarantined(T)) <= set(book.nodes)


@given(told=histories())
def test_nobody_is_struck_for_what_is_held_to_be_common(told: list[NodeEntry]) -> None:
    """A common cause has enough nodes to be one, and the incidents in it are strikes of none of them."""
    book = fold_entries(told, domains=SWITCHES)
    for cause in book.common:
        assert len(cause.nodes) >= (RULES.several if cause.where else 1)
        assert not cause.where or set(cause.nodes) <= set(SWITCHES[cause.where])
        for name, key in cause.failures:
            assert key in book.nodes[name].common


@given(told=histories(), late=st.integers(1, 50))
def test_one_more_fault_frees_nobody(told: list[NodeEntry], late: int) -> None:
    """A further fault of one node alone never shortens that node's quarantine."""
    end_s = max((entry.at_s for entry in told), default=T) + late * DAY
    before = fold_entries(told).nodes.get("n1")
    after = node(*told, fault(99, at_s=end_s, run="r-0099", id="last", signature="other"))

    assert after.quarantined_until_s >= (before.quarantined_until_s if before else 0.0)
    assert after.quarantined_until_s >= end_s + RULES.base_s


@given(told=histories())
def test_a_release_makes_a_clean_sheet(told: list[NodeEntry]) -> None:
    """After a person's release nothing keeps the node away."""
    end_s = max((entry.at_s for entry in told), default=T) + HOUR
    record = node(*told, other("released", end_s, detail={"by": "ada"}))

    assert ((), 0.0) == (record.strikes, record.quarantined_until_s)


# ---------------------------------------------------------------------- lemons


def scored(*entries: NodeEntry, now_s: float = T + 10 * DAY, name: str = "n1") -> Score:
    return score(node(*entries, name=name), now_s)


def failed(number: int, *, alone: bool = False) -> list[NodeEntry]:
    """A fault with its exclusion, on the node alone or on one of eight."""
    plain = fault(number, detail={"incident": "1.0", "attempt_nodes": 1 if alone else 8, "strike": True})
    return [plain, replace(plain, what="excluded", id=f"x{number}")]


def test_the_score_is_the_documented_sum() -> None:
    """Two failures of wide jobs in two runs with two exclusions, one kind of fault, one drain: 2x2 + 2x0.5 + 1 + 1.5."""
    drained = fault(1, what="drained", id="d")
    found = scored(*failed(0), *failed(1), drained)

    assert (7.5, True, 2) == (found.score, found.lemon, found.runs)


def test_one_run_alone_makes_no_lemon() -> None:
    """However often the log of one run blames a node."""
    told = [
        replace(e, run="r-0001", detail={**e.detail, "incident": str(n)}) for n in range(9) for e in failed(n)
    ]

    assert scored(*told).score >= LEMON_AT
    assert not scored(*told).lemon


def test_what_lies_long_back_or_is_common_counts_nothing() -> None:
    """Twenty-eight days; and what befell many nodes together."""
    assert 0 == scored(*failed(0), *failed(1), now_s=T + 40 * DAY).score
    many = [fault(n, f"n{n}", at_s=T) for n in range(6)]
    assert 0 == scored(*many).score


def test_the_share_of_failures_needs_some_launches() -> None:
    """One failure of one launch on the node alone says little, three of three say much."""
    one = [*failed(0, alone=True), served(1, T)]
    three = [e for n in range(3) for e in (*failed(n, alone=True), served(1, T + n * DAY))]

    assert 0 == scored(*one).share
    assert 1 == scored(*three).share


@given(told=histories())
def test_a_score_is_bounded_and_never_below_zero(told: list[NodeEntry]) -> None:
    """No history makes more than the documented most."""
    book: NodeHistory = fold_entries(told)
    for record in book.nodes.values():
        assert 0 <= score(record, T + 10 * DAY).score <= 35
