"""Logs are read between two looks at Slurm, often, and never at the price of much CPU. (I/O)"""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ftrun.supervisor.context.run_context import LaunchObservations
from ftrun.supervisor.context.services import ClusterSnapshot
from ftrun.supervisor.controller.loop import GLANCE_EVERY_S, Supervisor
from ftrun.supervisor.controller.observe import EndedScript
from ftrun.supervisor.model.states import State
from ftrun.supervisor.store.lease import Lease
from tests.fake_slurm.cluster import Engine, MemoryCluster


class _Clock:
    """Time passes only in sleep."""

    def __init__(self) -> None:
        self.at_s = 1000.0

    def now_s(self) -> float:
        return self.at_s

    def mono_s(self) -> float:
        return self.at_s

    def sleep(self, seconds: float) -> None:
        self.at_s += seconds


class _Run:
    """A live run whose logs cost `cpu_s[n]` to read the n-th time."""

    def __init__(self, clock: _Clock, cpu_s: list[float]) -> None:
        self.run = SimpleNamespace(state=State.RUNNING, id="r")
        self.attempt = SimpleNamespace(number=1, launch=0)
        self.observations = LaunchObservations()
        self.observations.per_start(EndedScript).over.restart(0.0)
        self.read_at: list[float] = []
        self._clock, self._cpu_s = clock, cpu_s

    @property
    def ctx(self) -> Any:
        return self

    def glance(self, world: ClusterSnapshot) -> None:
        self.read_at.append(self._clock.at_s)
        end = time.thread_time() + (self._cpu_s.pop(0) if self._cpu_s else 0.0)
        while time.thread_time() < end:
            pass


def _watched(tmp_path: Path, cpu_s: list[float]) -> tuple[Supervisor, _Run, _Clock]:
    clock = _Clock()
    cluster = MemoryCluster(Engine({"main": ["n0"]}))
    supervisor = Supervisor(str(tmp_path), cluster, clock, Lease(str(tmp_path), clock))
    supervisor._snapshot = ClusterSnapshot(clock.now_s(), clock.mono_s(), {}, {})
    run: Any = _Run(clock, cpu_s)
    supervisor.reconcilers["r"] = run
    return supervisor, run, clock


def test_logs_are_read_five_times_a_second_between_two_looks(tmp_path: Path) -> None:
    """No line waits for the next look at Slurm."""
    supervisor, run, clock = _watched(tmp_path, [])

    supervisor._wait(2.0)

    gaps = [later - earlier for earlier, later in zip([1000.0, *run.read_at], run.read_at, strict=False)]
    assert max(gaps) < 1.5 * GLANCE_EVERY_S
    assert clock.at_s - run.read_at[-1] < 2 * GLANCE_EVERY_S


def test_one_dear_reading_makes_a_pause_and_no_end(tmp_path: Path) -> None:
    """After 0.1 s of CPU the logs rest for 3 s, longer than a wait; then they are read as often as before."""
    supervisor, run, _ = _watched(tmp_path, [0.1])

    for _ in range(4):
        supervisor._wait(2.0)

    assert 2.9 < run.read_at[1] - run.read_at[0] < 4.0
    assert run.read_at[-1] - run.read_at[-2] < 1.5 * GLANCE_EVERY_S
