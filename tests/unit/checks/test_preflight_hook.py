"""Laws of `ftrun-hook preflight`: what it writes, and the one status that keeps a script from starting. (I/O)"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.checks.runner import Report, report_of
from ftrun.hooks.health.preflight import EXIT_HELD
from ftrun.hooks.main import main
from ftrun.hooks.runtime import node_report
from ftrun.supervisor.model import types

NODES = ("n0", "n1", "n2", "n3")


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_NODELIST", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)


def _told(attempt: Path, bad: tuple[str, ...], nodes: tuple[str, ...] = NODES) -> None:
    from ftrun.hooks.runtime.finding import BAD, OK, Finding

    for node in nodes:
        one = Finding(
            "edac",
            BAD if node in bad else OK,
            "memory fails",
            "hardware-other",
            "mc0",
            ("line",),
            1.0,
            "errors",
        )
        report = report_of([Report("edac", (one,), 0.1)], kind="preflight", node=node, at_s=1.0, tier="fast")
        node_report.write_report(str(attempt / "nodes"), 0, report)


def _verdict(attempt: Path, *more: str) -> tuple[int, dict[str, Any]]:
    status = main(["preflight", "--verdict", "--folder", str(attempt / "nodes"), "--nodes", "4", *more])
    return status, json.loads((attempt / "preflight.0").read_text())


def test_a_bad_minority_holds_the_script_and_the_record_says_who(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the supervisor reads it; two of four are still the nodes' own fault."""
    _told(tmp_path, ("n1", "n3"))
    status, record = _verdict(tmp_path)

    assert (EXIT_HELD, True) == (status, record["held"])
    understood = types.parse_prelaunch_hold(record, NODES)
    assert understood
    assert ("n1", "n3") == tuple(understood.bad)
    assert "n1: edac: memory fails" in capsys.readouterr().err


def test_anything_else_starts_it(tmp_path: Path) -> None:
    """All well, all bad, most bad, a caller that wants no more than a report, nodes without a report, and none at all."""
    cases: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
        "well": ((), NODES, ()),
        "all": (NODES, NODES, ()),
        "most": (NODES[1:], NODES, ()),
        "told": (("n1",), NODES, ("--report-only",)),
        "silent": ((), NODES[:1], ()),
        "none": ((), (), ()),
    }
    for name, (bad, nodes, words) in cases.items():
        (tmp_path / name).mkdir()
        _told(tmp_path / name, bad, nodes)
        status, record = _verdict(tmp_path / name, *words)
        assert (0, False, len(nodes)) == (status, record["held"], record["answered"]), name
        assert types.parse_prelaunch_hold(record, NODES) is None


def test_no_record_no_hold(tmp_path: Path) -> None:
    """Nobody would know why the script was not started: where it cannot be written, it starts; torn reports count for nothing."""
    _told(tmp_path, ("n1",))
    (tmp_path / "preflight.0").mkdir()
    assert 0 == main(["preflight", "--verdict", "--folder", str(tmp_path / "nodes"), "--nodes", "4"])

    (tmp_path / "preflight.0").rmdir()
    (tmp_path / "nodes" / "preflight.0.n1.json").write_text('{"schema": 1, "findings": [{"check"')
    assert (0, 3) == ((told := _verdict(tmp_path))[0], told[1]["answered"])


def test_a_node_checks_itself_by_the_thresholds_of_its_file(tmp_path: Path) -> None:
    """Found bad twice, it stands in the report under the node's name; a file that cannot be read leaves no report."""
    (tmp_path / "n7.json").write_text('{"disk-size root": {"size_gb": 1000000000}}')
    words = [
        "preflight",
        "--node",
        "n7",
        "--folder",
        str(tmp_path / "nodes"),
        "--launch",
        "2",
        "disk-size root",
    ]

    assert 0 == main([*words, "--settings", f"{tmp_path}/{{node}}.json"])
    report = json.loads((tmp_path / "nodes" / "preflight.2.n7.json").read_text())
    assert ("preflight", "n7", "bad", "fast") == (
        report["kind"],
        report["node"],
        report["worst"],
        report["tier"],
    )
    (tmp_path / "nodes" / "preflight.2.n7.json").unlink()
    (tmp_path / "n7.json").write_text("{")
    assert 0 == main([*words, "--settings", f"{tmp_path}/{{node}}.json"])
    assert [] == list((tmp_path / "nodes").iterdir())
