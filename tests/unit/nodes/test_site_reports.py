"""Laws of telling the site: what is told of a run, once, and what becomes of it where it cannot be told now."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.slurm.client.cluster import ClusterFacts
from ftrun.slurm.records import replace
from ftrun.supervisor.model.node_entry import NodeEntry
from ftrun.supervisor.nodes import drain_rules, site_reports, spool
from ftrun.supervisor.nodes.drain_rules import DrainRequest
from ftrun.supervisor.nodes.site_reports import SiteReporter
from ftrun.supervisor.nodes.spool import Spool

FACTS = ClusterFacts("c", (24, 5, 0), 300.0, 30.0, 1, 300.0, True, auth="auth/slurm")
ME = os.geteuid()


class Home:
    """A supervisor of a run whose second launch has failed on n1, in front of a spool without munge."""

    def __init__(self, folder: Path) -> None:
        self.now_s, self.log = 10_000.0, []  # type: tuple[float, list[str]]
        self.service = Spool(str(folder / "spool"), unsigned=True)
        end = SimpleNamespace(slurm_at_s=9950.0, at_s=9960.0)
        launch = SimpleNamespace(number=1, end=end, started_at_s=9000.0)
        attempt = SimpleNamespace(number=3, launch=launch, holder=lambda node: "77_4")
        incident = SimpleNamespace(
            id="3.1", attempt=3, launch=1, diagnosed_at_s=9970.0, diagnosis={"confidence": 0.8}
        )
        self.run: Any = SimpleNamespace(
            id="llm-1", settings={"site-spool": self.service.path}, incidents=(incident,), attempts=(attempt,)
        )
        self.entry = NodeEntry(
            9970.0, "incident", ("n1",), "t:3.1:incident", "llm-1", "nvidia xid/79", "hardware-gpu",
            detail={"incident": "3.1", "strike": True, "evidence": "my secret line"},
        )  # fmt: skip
        self.reporter = SiteReporter(
            lambda: FACTS, lambda: self.now_s, lambda event, **_: self.log.append(event)
        )

    def told(self) -> list[DrainRequest]:
        waiting, removed = self.service.look()
        assert removed == 0
        assert all((one.uid, one.is_report, one.is_unsigned) == (ME, True, True) for one in waiting)
        return [drain_rules.from_payload(self.service.read(one) or b"") for one in waiting]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_fault_held_against_a_node_is_told_with_its_facts_and_no_text(home: Home) -> None:
    """Job, node, class, signature, confidence, run time, hash of the line; of the end that Slurm saw, and the same id each time."""
    for _ in range(2):
        home.reporter.report(home.run, [home.entry])
    (told,) = home.told()
    assert (told.want, told.cluster, told.node, told.job, told.run) == ("report", "c", "n1", "77", "llm-1")
    assert (told.fault, told.signature, told.confidence) == ("hardware-gpu", "nvidia-xid-79", 0.8)
    assert (told.seen_s, told.ran_s, len(told.digest)) == (9950.0, 950.0, 64)
    assert "secret" not in json.dumps([told.signature, told.digest])


@pytest.mark.parametrize(
    "changed", [{"what": "excluded"}, {"detail": {"incident": "3.1"}}, {"nodes": ("a", "b", "c", "d", "e")}]
)
def test_what_is_no_strike_or_names_many_is_not_told(home: Home, changed: dict[str, Any]) -> None:
    """Nor what is older than an hour, nor anything where the site names no spool."""
    home.reporter.report(home.run, [replace(home.entry, **changed)])
    home.now_s = 20_000.0
    home.reporter.report(home.run, [home.entry])
    home.now_s = 10_000.0
    home.run.settings = {}
    home.reporter.report(home.run, [home.entry])
    assert home.told() == []


def test_what_cannot_be_told_is_tried_again_for_an_hour(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a minute, however often the run is looked after; the run never hears of it."""
    leave, tries = spool.leave_request, []

    def full(*_: object) -> None:
        tries.append(home.now_s)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spool, "leave_request", full)
    for _ in range(200):
        home.reporter.report(home.run, [home.entry] if home.now_s == 10_000.0 else [])
        home.now_s += 1.0
    assert tries == [10_000.0, 10_060.0, 10_120.0, 10_180.0]
    assert set(home.log) == {"site.not-told"}
    monkeypatch.setattr(spool, "leave_request", leave)
    home.now_s += 60.0
    home.reporter.report(home.run, [])
    assert [one.node for one in home.told()] == ["n1"]
    assert site_reports.WAITING_MAX > 100


def test_only_a_folder_in_which_its_owner_alone_writes_stands_for_a_signature(tmp_path: Path) -> None:
    """Others' folders, links, second names of a file and open modes are nobody's word; with munge no such folder counts."""
    service = Spool(str(tmp_path / "spool"), unsigned=True)
    own = Path(service.path, f"u{ME}")
    own.mkdir(mode=0o700)
    names = [f"{number:032x}.rep" for number in range(4)]
    for name in names[:2]:
        (own / name).write_bytes(b"{}")
    os.link(own / names[1], own / names[2])
    (own / names[3]).symlink_to("/etc/passwd")
    Path(service.path, f"u{ME + 1}").mkdir()
    Path(service.path, f"u{ME + 1}", names[0]).write_bytes(b"{}")
    waiting, removed = service.look()
    assert [one.name for one in waiting if service.read(one) is not None] == [f"u{ME}/{names[0]}"]
    assert removed == 1  # the link
    own.chmod(0o720)
    assert service.look()[0] == []
    assert service.read(waiting[0]) is None
    assert not service.remove(waiting[0].name)
    own.chmod(0o700)
    assert Spool(service.path).look()[0] == []
    assert service.remove(waiting[0].name)
    assert not (own / names[0]).exists()
