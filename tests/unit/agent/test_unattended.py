"""Laws of the agent that nobody helps: it asks Slurm itself, rarely, and not at all while a supervisor lives. (I/O)"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.slurm.client.cluster import JobRow, NodeRow
from ftrun.supervisor.agent.unattended import ASK_EVERY_S, UnattendedJob
from ftrun.supervisor.store import flag_files
from ftrun.supervisor.store.lease import Lease
from tests.fake_slurm.cluster import Engine, MemoryCluster
from tests.unit.lives import LifeClock

NODES = ("n0", "n1", "n2")


class _Asked(MemoryCluster):
    """Counts the questions."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.asked: list[str] = []
        self.cut_short = False

    def nodes(self, names: Collection[str] | None = None) -> Mapping[str, NodeRow]:
        self.asked.append("nodes")
        return super().nodes(names)

    def jobs(self, job_ids: Collection[str]) -> Mapping[str, JobRow]:
        self.asked.append("job")
        row: Any = SimpleNamespace(is_cut_short=self.cut_short)
        return dict.fromkeys(job_ids, row)


class Scene:
    """The first two nodes of three are in use; `minutes` pass while the agent looks every second."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        self.home, self.place = tmp_path / "home", tmp_path / "place"
        self.home.mkdir()
        self.place.mkdir()
        self.engine = Engine({"main": list(NODES)})
        self.clock, self.cluster = LifeClock(self.engine.clock), _Asked(self.engine)
        where = SimpleNamespace(home=str(self.home), place=str(self.place), launch=0, job="7")
        ctx: Any = SimpleNamespace(clock=self.clock, cluster=self.cluster, where=where, nodes=NODES)
        started: Any = SimpleNamespace(nodes=NODES[:2], token="0.1")
        self.job = UnattendedJob(ctx, started, settings)

    def minutes(self, count: float, lease: Lease | None = None) -> None:
        for _ in range(int(count * 60)):
            self.clock.sleep(1.0)
            if lease is not None:
                lease.renew()
            self.job.look()

    @property
    def request(self) -> flag_files.LeaveRequest | None:
        return flag_files.read_leave(str(self.place), 0)


def test_nothing_is_asked_while_a_supervisor_lives(tmp_path: Path) -> None:
    """Its counter moves. Once it stands still, one question a minute is asked."""
    scene = Scene(tmp_path)
    lease = Lease(str(scene.home), scene.clock, term_s=20.0, writer="login.1")
    assert lease.acquire()
    scene.minutes(20, lease)
    assert [] == scene.cluster.asked

    scene.minutes(10)
    assert 8 <= len(scene.cluster.asked) <= 600 / ASK_EVERY_S
    assert {"nodes", "job"} == {*scene.cluster.asked}


@pytest.mark.parametrize("released", [False, True])
def test_without_any_supervisor_a_drained_node_is_left(tmp_path: Path, *, released: bool) -> None:
    """At the second look that shows it, as if a supervisor had asked; the spare that is drained is named, too."""
    scene = Scene(tmp_path)
    if released:
        lease = Lease(str(scene.home), scene.clock, writer="login.1")
        assert lease.acquire()
        lease.release()
    scene.minutes(1)
    for node in ("n1", "n2"):
        scene.cluster.drain(node, "kernel update")
    scene.minutes(2)
    assert scene.request is None
    scene.minutes(3)

    request = scene.request
    assert request is not None
    assert (("n1",), ("n1", "n2"), "drained (kernel update)") == (request.nodes, request.aside, request.why)


def test_the_setting_and_ftruns_own_drains_move_nobody(tmp_path: Path) -> None:
    """`drained` other than leave; a reason of ftrun's."""
    for number, (setting, reason) in enumerate([("warn", "kernel update"), ("leave", "ftrun: r-1 x")]):
        folder = tmp_path / str(number)
        folder.mkdir()
        scene = Scene(folder, drained=setting)
        scene.cluster.drain("n1", reason)
        scene.minutes(10)
        assert scene.request is None


def test_a_job_that_slurm_means_to_end_is_seen(tmp_path: Path) -> None:
    """Also where its script calls no srun, so that no line says it."""
    scene = Scene(tmp_path)
    scene.minutes(3)
    assert not scene.job.cut_short
    scene.cluster.cut_short = True
    scene.minutes(3)
    assert scene.job.cut_short


def test_a_slurm_that_does_not_answer_costs_nothing(tmp_path: Path) -> None:
    """The next question is a minute later."""
    scene = Scene(tmp_path)
    scene.engine.controller = "down"
    scene.minutes(5)
    assert scene.request is None
