"""Laws of a job of one node: it is compared with nodes of its kind in earlier jobs, and with nobody where too few are known. (I/O)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.health import past_checks
from ftrun.hooks.health.past_checks import AGE_MAX_S, NODES_MAX, PastResult

NOW_S = 1_000_000.0


def _rows(severity: str = "ok", check: str = "dns", **more: Any) -> list[dict[str, Any]]:
    return [{"check": check, "severity": severity, "message": "m", "fault": "node", "device": "", **more}]


def _past(*severities: str) -> dict[str, PastResult]:
    """Earlier nodes, the newest last."""
    return {f"o{i}": PastResult(NOW_S - 100 + i, _rows(one)) for i, one in enumerate(severities)}


@pytest.mark.parametrize(
    ("earlier", "held"),
    [
        ((), False),
        (("ok", "ok"), False),
        (("ok", "ok", "ok"), True),
        (("ok", "bad", "ok"), True),
        (("ok", "ok", "ok", "bad"), False),  # the node before it shows the same: the site changed
        (("bad", "bad", "bad", "ok"), False),  # most of them show it
    ],
)
def test_the_only_node_is_blamed_where_its_kind_was_well(earlier: tuple[str, ...], *, held: bool) -> None:
    """Three earlier nodes at least, most of them well, and the newest of them well."""
    found = past_checks.verdict_by_past({"n1": _rows("bad")}, _past(*earlier))

    assert (["n1"] if held else []) == list(found.bad)
    assert (() if held else ("dns",)) == found.site


def test_its_own_earlier_result_is_no_peer() -> None:
    """A node that was held before does not speak for itself, nor against itself."""
    past = {**_past("ok", "ok", "ok"), "n1": PastResult(NOW_S, _rows("bad"))}

    assert ["n1"] == list(past_checks.verdict_by_past({"n1": _rows("bad")}, past).bad)


def test_results_are_kept_by_kind_and_not_for_ever(tmp_path: Path) -> None:
    """Another partition, another file of thresholds or another model is another kind; old and many results go; what cannot be read says nothing."""
    folder = str(tmp_path / "checks")
    model = _rows("note", "versions", device="product", evidence=["box 7"])
    model[0]["device"] = "product"
    for number in range(NODES_MAX + 3):
        past_checks.add(folder, "main", "", {f"n{number}": [*_rows(), *model]}, NOW_S + number)
    path = past_checks.file_of(folder, model, "main", "")
    others = {
        past_checks.file_of(folder, *kind)
        for kind in ((model, "gpu", ""), (model, "main", "x.json"), (_rows(), "main", ""))
    }
    late_s = NOW_S + NODES_MAX + 3

    assert path not in others
    assert {f"n{number}" for number in range(3, NODES_MAX + 3)} == set(past_checks.read(path, late_s))
    assert {} == past_checks.read(path, late_s + AGE_MAX_S)
    assert all({} == past_checks.read(other, late_s) for other in others)
    Path(path).write_text('{"schema": 1, "nodes": {"n1": {"at_s": "x"}}}')
    assert {} == past_checks.read(path, late_s)
    assert 0o600 == Path(path).stat().st_mode & 0o777
