"""Laws of comparing the nodes of an attempt: the odd one out is found, a minority may be blamed, and what most show is nobody's fault. (I/O)"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ftrun.hooks.health.outliers import COMPARED, Row, Verdict, find_outliers, verdict
from ftrun.hooks.runtime import node_report
from ftrun.hooks.runtime.finding import BAD, DEGRADED, NOTE, OK, SEVERITIES, SKIPPED, UNKNOWN, Finding


def row(
    check: str,
    severity: str = OK,
    device: str = "",
    value: float | None = None,
    text: str = "",
    fault: str = "",
) -> Row:
    blamed = fault or ("storage" if severity in (BAD, DEGRADED) else "")
    return Finding(
        check, severity, f"{check} {severity}", blamed, device, (text,) if text else (), value, ""
    )._asdict()


def judged(*nodes: list[Row], of: int = 0, names: tuple[str, ...] = ()) -> Verdict:
    return verdict({f"n{number}": rows for number, rows in enumerate(nodes)}, of or len(nodes), names)


WELL = [row("canary")]
ILL = [row("canary", BAD)]


@pytest.mark.parametrize(
    ("nodes", "blamed", "site"),
    [
        ([ILL, WELL, WELL, WELL], {"n0"}, ()),
        ([ILL, WELL], {"n0"}, ()),
        ([ILL, ILL, WELL, WELL], {"n0", "n1"}, ()),
        ([ILL, ILL, WELL], set(), ("canary",)),
        ([ILL, ILL], set(), ("canary",)),
        ([ILL], set(), ("canary",)),
        ([WELL, WELL], set(), ()),
        ([[row("canary", DEGRADED)], WELL, WELL], set(), ()),
        ([[row("canary", UNKNOWN)], [row("canary", SKIPPED)], WELL], set(), ()),
        ([ILL, [*WELL, row("quota", BAD)], WELL, WELL, WELL], {"n0", "n1"}, ()),
        ([], set(), ()),
    ],
)
def test_a_minority_is_to_blame_and_a_majority_is_the_site_s(
    nodes: list[list[Row]], blamed: set[str], site: tuple[str, ...]
) -> None:
    """A check that fails on most nodes is told as the site's and held against nobody."""
    found = judged(*nodes)

    assert (blamed, site) == (set(found.bad), found.site)


def test_more_than_half_of_the_nodes_are_never_blamed_each_for_its_own_fault() -> None:
    """So much bad luck has one cause."""
    kinds = ["canary", "quota", "mounts"]
    found = judged(*([*WELL[:0], row(kind, BAD)] for kind in kinds), WELL)

    assert ({}, ("n0", "n1", "n2")) == (found.bad, found.many)


def test_who_gave_no_report_is_not_among_those_compared() -> None:
    """Two of four answer, and both are bad, each in its own way: that is not a minority of four."""
    found = judged([row("canary", BAD)], [row("mounts", BAD)], of=4)

    assert ({}, ("n0", "n1")) == (found.bad, found.many)


def test_what_is_degraded_everywhere_is_told_as_such() -> None:
    """Once, of the site; one node alone has nobody to compare with."""
    slow = [row("ulimit", DEGRADED, "open_files", 1024)]

    assert ("ulimit",) == judged(slow, slow).everywhere
    assert () == judged(slow).everywhere


@pytest.mark.parametrize(
    ("mine", "peers", "blamed"),
    [
        ([row("ulimit", DEGRADED, "open_files", 1024)], [row("ulimit")], True),
        ([row("ulimit", DEGRADED, "open_files", 1024)], [row("ulimit", DEGRADED, "open_files", 1024)], False),
        (
            [row("ulimit", DEGRADED, "open_files", 1024)],
            [row("ulimit", DEGRADED, "open_files", 20_000)],
            True,
        ),
        (
            [row("ulimit", DEGRADED, "open_files", 20_000)],
            [row("ulimit", DEGRADED, "open_files", 1024)],
            False,
        ),
        ([row("ulimit", DEGRADED, "open_files", 1024)], [row("ulimit", DEGRADED, "stack_kib", 8)], True),
        ([row("ulimit", DEGRADED, "open_files", 1024)], [row("ulimit", UNKNOWN)], False),
        ([row("ulimit", BAD, "open_files", 1024)], [row("ulimit")], True),
    ],
)
def test_limits_count_where_a_node_differs_from_its_peers(
    mine: list[Row], peers: list[Row], blamed: bool
) -> None:
    """The marks are what one maker asks for; a site that enforces them makes them bad."""
    found = judged(mine, peers, peers, peers)

    assert blamed == ("n0" in found.bad)
    assert set(found.bad) <= {"n0"} or not blamed


@pytest.mark.parametrize(
    ("check", "mine", "theirs", "device", "counts"),
    [
        ("versions", {"text": "6.1.0-27"}, {"text": "6.1.0-28"}, "kernel", False),
        ("gpu-driver", {"text": "565.57.01"}, {"text": "570.86.15"}, "", False),
        ("mtu", {"value": 1500.0}, {"value": 9000.0}, "eth0", False),
        ("clock", {"value": 2.0}, {"value": 0.0001}, "", False),
        ("nic-link", {"value": 10_000.0}, {"value": 25_000.0}, "eth0", False),
        ("ib-speed", {"value": 200.0}, {"value": 400.0}, "mlx5_3", True),
        ("gpu-check", {"value": 7.0}, {"value": 8.0}, "", True),
        ("memory", {"value": 960.0}, {"value": 1007.0}, "", True),
    ],
)
def test_the_odd_one_out_is_found(
    check: str, mine: dict[str, Any], theirs: dict[str, Any], device: str, counts: bool
) -> None:
    """By version, clock, speed or number; only what holds up all ranks keeps a job away."""
    make = row("versions", device="product", text="DGX H100")
    odd, peers = [make, row(check, device=device, **mine)], [make, row(check, device=device, **theirs)]
    found = judged(peers, peers, odd, peers)

    (one,) = found.odd
    assert ("n2", check, device, counts) == (one.node, one.check, one.device, one.counts)
    assert counts == ("n2" in found.bad)
    assert () == judged(peers, odd).odd
    assert () == judged(peers, odd, odd, peers).odd


def test_only_machines_of_one_make_are_compared() -> None:
    """A small node among large ones is no broken one; where nothing tells the make, the difference counts for nothing."""
    large = [row("versions", device="product", text="Large"), row("memory", value=2014.0)]
    small = [row("versions", device="product", text="Small"), row("memory", value=1007.0)]
    ill = [row("versions", device="product", text="Large"), row("memory", value=1888.0)]
    other = [row("versions", device="product", text="Large"), row("memory", value=1007.0)]
    unknown = [row("memory", value=2014.0)]

    assert {} == judged(large, large, large, small).bad
    assert {"n3"} == set(judged(large, large, large, ill).bad)
    assert {} == judged(large, large, large, other).bad
    assert ("n3",) == tuple(
        one.node for one in judged(unknown, unknown, unknown, [row("memory", value=1888.0)]).odd
    )
    assert {} == judged(unknown, unknown, unknown, [row("memory", value=1888.0)]).bad


def test_a_faster_node_is_no_fault() -> None:
    """More memory, a faster link, a later clock tick: only less counts."""
    usual = [row("ib-speed", device="mlx5_0", value=400.0), row("memory", value=1007.0)]
    more = [row("ib-speed", device="mlx5_0", value=800.0), row("memory", value=2014.0)]

    assert () == judged(usual, usual, more, usual).odd


@pytest.mark.parametrize(
    ("tellers", "blamed"),
    [
        ([["n3"], ["n3"], [], []], True),
        ([["n3"], [], [], []], False),
        ([["n3"], ["n3"], [], [], [], [], []], False),
        ([["login9"], ["login9"], ["login9"], []], False),
    ],
)
def test_a_node_that_most_of_its_peers_cannot_reach_is_cut_off(
    tellers: list[list[str]], blamed: bool
) -> None:
    """One that says so may be wrong itself, and a host of no job is nobody's node."""
    reports = [[row("peers", NOTE, host) for host in lost] or [row("peers")] for lost in tellers]
    found = judged(*reports)

    assert blamed == ("n3" in found.bad)
    assert set(found.bad) <= {"n3"}


def test_a_silent_node_is_blamed_by_its_peers_where_its_name_is_known() -> None:
    """It gave no report because it is cut off."""
    lost = [row("peers", NOTE, "n9")]

    assert {"n9"} == set(judged(lost, lost, lost, of=4, names=("n0", "n1", "n2", "n9")).bad)
    assert {} == judged(lost, lost, lost, of=4).bad


def test_what_is_compared_is_kept_where_a_report_is_cut(tmp_path: Path) -> None:
    """What was skipped goes first, what is bad last."""
    rows = [row("skips", SKIPPED)] * 300 + [row("versions", OK, "kernel", text="6.1"), row("canary", BAD)]
    node_report.write_report(str(tmp_path), 0, {"kind": "preflight", "node": "n0", "findings": rows})
    kept = json.loads((tmp_path / "preflight.0.n0.json").read_text())["findings"]

    assert node_report.FINDINGS_MAX == len(kept)
    assert node_report.EVIDENCE_MAX >= 16, "gpu-check has a line for each card, and the ledger reads it"
    assert [("canary", BAD), ("versions", OK)] == [(one["check"], one["severity"]) for one in kept[:2]]


ROWS = st.lists(
    st.builds(
        row,
        st.sampled_from([*COMPARED, "ulimit", "peers", "canary", "gpu-ecc"]),
        st.sampled_from(SEVERITIES),
        st.sampled_from(["", "a", "n0", "n1", "product"]),
        st.one_of(st.none(), st.floats(0, 1e6)),
        st.sampled_from(["", "x", "y"]),
    ),
    max_size=5,
)
REPORTS = st.dictionaries(st.sampled_from([f"n{number}" for number in range(9)]), ROWS, max_size=9)


@given(REPORTS, st.integers(0, 9))
def test_never_more_than_half_is_blamed_and_only_for_a_reason(
    reports: dict[str, list[Row]], silent: int
) -> None:
    """And only nodes of the attempt, by findings that most do not show."""
    nodes = len(reports) + silent
    found = verdict(reports, nodes)

    assert len(found.bad) * 2 <= nodes
    assert set(found.bad) <= set(reports)
    assert not (found.bad and found.many)
    for node, rows in found.bad.items():
        assert rows
        assert all(BAD == one["severity"] and one["fault"] for one in rows)
        counted = {one.check for one in found.odd if one.node == node and one.counts}
        assert all(one["check"] not in found.site or one["check"] in counted for one in rows)


@given(ROWS, st.integers(1, 9))
def test_what_all_nodes_show_excludes_nobody(rows: list[Row], nodes: int) -> None:
    """The same report everywhere is a matter of the site, whatever it says."""
    alike = [one for one in rows if one["check"] != "peers"]

    assert {} == verdict({f"n{number}": alike for number in range(nodes)}, nodes).bad


@given(REPORTS)
def test_names_and_order_change_nothing(reports: dict[str, list[Row]]) -> None:
    """Whoever reads the reports in another order finds the same."""
    turned = dict(reversed(list(reports.items())))

    assert verdict(reports, 9).bad == verdict(turned, 9).bad
    assert set(verdict(reports, 9).odd) == set(verdict(turned, 9).odd)


@given(REPORTS)
def test_a_healthy_peer_more_saves_no_bad_node(reports: dict[str, list[Row]]) -> None:
    """It makes the minority smaller; only what was the site's can become a node's by it."""
    found = verdict(reports, len(reports))
    assume(not found.site)

    assert set(found.bad) <= set(verdict({**reports, "well": []}, len(reports) + 1).bad)


@given(REPORTS)
def test_who_says_nothing_sure_is_never_odd(reports: dict[str, list[Row]]) -> None:
    """Unknown and skipped are no verdict on a node."""
    silent = {
        node: [row(one["check"], UNKNOWN, one["device"], one["value"]) for one in rows]
        for node, rows in reports.items()
    }

    assert () == find_outliers(silent)
    assert {} == verdict(silent, len(silent)).bad
