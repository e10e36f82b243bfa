"""Laws of the start monitor: standstill counts only while the job is seen to run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ftrun.slurm.commands.node_queries import QueryAnswers
from ftrun.slurm.records import replace
from ftrun.supervisor.agent import node_liveness, start_monitor
from ftrun.supervisor.agent.batch_channel import Started
from ftrun.supervisor.agent.context import LaunchIdentity, Suspicion
from ftrun.supervisor.agent.start_monitor import StartMonitor
from ftrun.supervisor.model import types
from ftrun.supervisor.model.types import FaultClass
from ftrun.supervisor.signatures import catalog as signatures_catalog
from ftrun.supervisor.store.attempt_dir import LaunchRecord
from ftrun.supervisor.telemetry import hang_rules, liveness
from tests.unit.lives import write_stacks

NODES = ("n0", "n1")
FATAL = "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error, NCCL version 2.20.5"

FAILED = "srun: error: n0: task 0: Exited with exit code 1"


class Clock:
    """Stands still but for what a test adds."""

    def __init__(self) -> None:
        self.s = 1000.0

    def now_s(self) -> float:
        return 1_700_000_000.0 + self.s

    def mono_s(self) -> float:
        return self.s

    def sleep(self, seconds: float) -> None:
        self.s += seconds


class Life:
    """A start that made steps, printed a fatal line, and whose ranks have waited in a collective since, unless they `move`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, steps: int = 7) -> None:
        self.runs: bool | None = True
        self.moves, self.taken, self.told, self.takes_s = False, 0, list[str](), 0.0
        self.clock, self.asked, self.silent = Clock(), 0, tuple[str, ...]()
        self.log = folder / "log"
        self.log.touch()
        told = os.stat(self.log)
        place = str(folder / "runs" / "r" / "attempts" / "1")
        launch = LaunchRecord(
            number=1, job="7", host="n0", nodes=NODES, stdout=str(self.log), stdout_dev=told.st_dev, stdout_ino=told.st_ino,
            stderr=str(self.log), stderr_dev=told.st_dev, stderr_ino=told.st_ino,
            stdout_offset_bytes=0, stderr_offset_bytes=0, resume_from="", started_s=None,
        )  # fmt: skip
        catalog = signatures_catalog.load()
        self.monitor = StartMonitor(
            LaunchIdentity(str(folder / "runs" / "r"), place, 1, 0, "7", "c", "n0", NODES),
            Started(1, 1, NODES, "0.1", launch),
            {"fault-grace": 60.0},
            lambda: catalog,
            self._silent,
            lost=lambda moves: self._silent(),
            clock=self.clock,
        )
        monkeypatch.setattr(node_liveness, "job_is_running", lambda cluster, job: self.runs)
        ctx = SimpleNamespace(
            where=self.monitor._where, clock=self.clock, cluster=None, steps=self, alive=lambda: None, nodes=NODES,
            journal=SimpleNamespace(record=lambda kind, **_: self.told.append(kind)),
        )  # fmt: skip
        self.hangs = start_monitor.HangMonitor(
            cast("Any", ctx), self.monitor.started, {}, lambda: 0, lambda: self.monitor.look(fresh=True)
        )
        for step in range(1, steps + 1):
            self.say(f"step {step} loss 2.0")
            self.goes_on(1)
        if steps:
            self.say(FATAL)

    def _silent(self) -> tuple[str, ...]:
        self.asked += 1
        self.clock.s += self.takes_s
        return self.silent

    def say(self, line: str) -> None:
        with self.log.open("a") as stream:
            stream.write(f"{line}\n")

    def goes_on(self, seconds: int) -> Suspicion | None:
        """A look a second, to the first suspicion."""
        for _ in range(seconds):
            self.clock.s += 1.0
            found = self.monitor.judge()
            verdict = self.hangs.look(self.monitor.memory.report, self.monitor.suspicious())
            if found is None and verdict is not None and verdict.state is types.HangState.HUNG:
                found = self.monitor.hung(verdict)
            if found is not None:
                return found
        return None

    def ask(self, job_id: str, nodes: Sequence[str], script: str, **_: object) -> QueryAnswers:
        """A step of the agent's."""
        self.taken += 1
        write_stacks(script, nodes, str(self.taken) if self.moves else "")
        return QueryAnswers(dict.fromkeys(nodes, ("taken",)))


def test_a_fatal_line_and_ranks_that_all_wait_for_long_end_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is where the job runs all the time. What the line says is told, and is no verdict."""
    found = Life(tmp_path, monkeypatch).goes_on(90)

    assert found is not None
    assert found.waited_s >= 60
    assert found.diagnosis.fault is FaultClass.HANG
    assert "NCCL" in found.diagnosis.rests_on[0]


def test_a_fatal_line_ends_nothing_while_stacks_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P7: an hour without a step in which somebody is seen to work is no hang, be the log silent or not."""
    life = Life(tmp_path, monkeypatch)
    life.moves = True

    assert life.goes_on(3600) is None
    assert life.taken


def test_time_in_which_the_job_and_its_agent_were_stopped_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gang scheduler stops all processes of a job for an hour: afterwards the start has the time that it would have had."""
    life = Life(tmp_path, monkeypatch)
    assert life.goes_on(30) is None
    life.clock.s += 3600
    assert life.goes_on(14) is None
    assert life.goes_on(40) is not None


def test_a_start_is_not_ended_while_its_job_is_suspended_nor_right_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Slurm does not stop the agent with the job, it asks; and the whole wait lies in time in which the job was seen to run."""
    life = Life(tmp_path, monkeypatch)
    life.runs = False
    assert life.goes_on(1000) is None
    life.runs = True
    assert life.goes_on(59) is None
    assert life.goes_on(700) is not None


def test_a_start_is_not_ended_where_slurm_says_nothing_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blindness is neither clean nor dead; once Slurm answers, the wait counts."""
    life = Life(tmp_path, monkeypatch)
    life.runs = None
    assert life.goes_on(300) is None
    life.runs = True
    assert life.goes_on(2) is not None


def test_a_node_that_is_late_long_after_an_earlier_step_failed_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`srun prepare || true; srun train`: what srun said of the first step explains a node's silence then, and not while the second one compiles."""
    life = Life(tmp_path, monkeypatch, steps=0)
    life.say(FAILED)
    assert life.goes_on(70) is None
    assert life.asked
    life.silent = ("n1",)

    assert life.goes_on(600) is None


def test_a_node_that_is_silent_when_srun_ends_its_step_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: srun cannot end it there."""
    life = Life(tmp_path, monkeypatch, steps=0)
    life.silent = ("n1",)
    life.say(FAILED)
    found = life.goes_on(5)

    assert found is not None
    assert found.diagnosis.nodes == ("n1",)


def test_the_pause_after_a_harmless_silence_ends_when_beats_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the log was silent before: the pause is a point in time, and no length of silence."""
    life = Life(tmp_path, monkeypatch, steps=0)
    moves = liveness.Moves(kind="beats", steps=100, longest_s=1.0)
    beats = SimpleNamespace(count=0, overdue_nodes=lambda at_s: False)
    hangs = SimpleNamespace(
        history=SimpleNamespace(at=lambda at_s: at_s, learnt={}, phase="", moves=moves), watch=SimpleNamespace(beats=beats)
    )  # fmt: skip
    life.monitor.hangs = cast("Any", hangs)
    life.say("begun")

    def lives(seconds: int, *, moving: bool) -> int:
        for _ in range(seconds):
            life.clock.s += 1.0
            if moving:
                hangs.history.moves, beats.count = replace(moves, at_s=life.clock.s), beats.count + 1
            assert life.monitor.judge() is None
        return life.asked

    assert lives(7200, moving=True) == 0
    assert lives(15, moving=False) == 1
    assert lives(2, moving=True) == 1
    assert lives(5, moving=False) == 2


def test_a_long_question_is_no_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The silence goes on through it, and so does the pause after it."""
    life = Life(tmp_path, monkeypatch, steps=0)
    for step in range(1, 8):
        life.say(f"step {step} loss 2.0")
        life.clock.s += 1.0
        life.monitor.judge()
    life.takes_s = 25.0
    for _ in range(12):
        life.clock.s += 1.0
        life.monitor.judge()

    assert life.asked == 1
    assert life.monitor.quiet_s() >= 36.0


def test_a_hang_is_none_where_the_job_is_suspended_nor_right_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a suspended start did not do says nothing when it goes on; where Slurm says nothing, what was seen is kept."""
    life = Life(tmp_path, monkeypatch)
    life.runs = None
    monkeypatch.setattr(hang_rules, "hang_verdict", _hung_by_its_history)

    def looks(number: int) -> bool:
        for _ in range(number):
            life.clock.s += 1.0
            verdict = life.hangs.look(life.monitor.look())
            if verdict is not None and verdict.state is types.HangState.HUNG:
                return True
        return False

    life.told.clear()
    assert not looks(50)
    life.runs = False
    assert not looks(1)
    life.runs = True
    assert not looks(20)
    assert looks(20)
    assert life.told == ["hang.decided"]


def _hung_by_its_history(
    history: liveness.History, now_s: float, _limits: hang_rules.HangLimits
) -> types.HangVerdict:
    """After half a minute of silence, whoever agrees."""
    quiet_s = history.at(now_s) - history.moves.at_s
    state = types.HangState.HUNG if quiet_s >= 30 else types.HangState.HEALTHY
    return types.HangVerdict(state, quiet_s, 30.0, "silence")
