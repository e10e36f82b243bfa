"""Laws of the eye of an agent: the time for which a start stands still counts only while the job is seen to run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ftrun.supervisor import agent_hang, agent_reach, hang, signatures
from ftrun.supervisor.agent_desk import Where
from ftrun.supervisor.agent_eye import Eye, Suspicion
from ftrun.supervisor.agent_talk import Started
from ftrun.supervisor.attempts import Launch

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
    """A start that made steps, printed a fatal line, and has done nothing since."""

    def __init__(self, folder: Path, runs: Callable[[], bool | None], steps: int = 7) -> None:
        self.clock, self.asked, self.silent = Clock(), 0, tuple[str, ...]()
        self.log = folder / "log"
        self.log.touch()
        told = os.stat(self.log)
        place = str(folder / "runs" / "r" / "attempts" / "1")
        launch = Launch(
            number=1, job="7", host="n0", nodes=NODES, stdout=str(self.log), stdout_dev=told.st_dev, stdout_ino=told.st_ino,
            stderr=str(self.log), stderr_dev=told.st_dev, stderr_ino=told.st_ino,
            stdout_offset_bytes=0, stderr_offset_bytes=0, resume_from="", started_s=None,
        )  # fmt: skip
        catalog = signatures.load()
        self.eye = Eye(
            Where(str(folder / "runs" / "r"), place, 1, 0, "7", "c", "n0", NODES),
            Started(1, 1, NODES, "0.1", launch),
            {"end-wait": 60.0},
            lambda: catalog,
            self._silent,
            clock=self.clock,
            runs=runs,
        )
        for step in range(1, steps + 1):
            self.say(f"step {step} loss 2.0")
            self.goes_on(1)
        if steps:
            self.say(FATAL)

    def _silent(self) -> tuple[str, ...]:
        self.asked += 1
        return self.silent

    def say(self, line: str) -> None:
        with self.log.open("a") as stream:
            stream.write(f"{line}\n")

    def goes_on(self, seconds: int) -> Suspicion | None:
        """A look a second, to the first suspicion."""
        for _ in range(seconds):
            self.clock.s += 1.0
            if (found := self.eye.judge()) is not None:
                return found
        return None


def test_a_fatal_line_and_no_step_for_long_end_a_start(tmp_path: Path) -> None:
    """So it is where the job runs all the time."""
    found = Life(tmp_path, lambda: True).goes_on(90)

    assert found is not None
    assert found.waited_s >= 60


def test_time_in_which_the_job_and_its_agent_were_stopped_counts_for_nothing(tmp_path: Path) -> None:
    """A gang scheduler stops all processes of a job for an hour: afterwards the start has the time that it would have had."""
    life = Life(tmp_path, lambda: True)
    assert life.goes_on(40) is None
    life.clock.s += 3600
    assert life.goes_on(50) is None
    assert life.goes_on(20) is not None


def test_a_start_is_not_ended_while_its_job_is_suspended_nor_right_afterwards(tmp_path: Path) -> None:
    """Where Slurm does not stop the agent with the job, it asks; and the whole wait lies in time in which the job was seen to run."""
    suspended = [True]
    life = Life(tmp_path, lambda: not suspended[0])
    assert life.goes_on(1000) is None
    suspended[0] = False
    assert life.goes_on(59) is None
    assert life.goes_on(130) is not None


def test_a_start_is_not_ended_where_slurm_says_nothing_of_its_job(tmp_path: Path) -> None:
    """Blindness is neither clean nor dead; once Slurm answers, the wait counts."""
    answer: list[bool | None] = [None]
    life = Life(tmp_path, lambda: answer[0])
    assert life.goes_on(300) is None
    answer[0] = True
    assert life.goes_on(2) is not None


def test_a_node_that_is_late_long_after_an_earlier_step_failed_ends_nothing(tmp_path: Path) -> None:
    """`srun prepare || true; srun train`: what srun said of the first step explains a node's silence then, and not while the second one compiles."""
    life = Life(tmp_path, lambda: True, steps=0)
    life.say(FAILED)
    assert life.goes_on(70) is None
    assert life.asked
    life.silent = ("n1",)

    assert life.goes_on(600) is None


def test_a_node_that_is_silent_when_srun_ends_its_step_is_lost(tmp_path: Path) -> None:
    """At once: srun cannot end it there."""
    life = Life(tmp_path, lambda: True, steps=0)
    life.silent = ("n1",)
    life.say(FAILED)
    found = life.goes_on(5)

    assert found is not None
    assert found.diagnosis.nodes == ("n1",)


def test_a_hang_is_none_where_the_job_is_suspended_nor_right_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a suspended start did not do says nothing when it goes on; where Slurm says nothing, what was seen is kept."""
    rows: list[bool | None] = [None]
    life = Life(tmp_path, lambda: True)
    monkeypatch.setattr(agent_reach, "runs", lambda cluster, job: rows[0])
    monkeypatch.setattr(hang, "judge", _hung_by_its_history)
    told: list[str] = []
    desk = SimpleNamespace(
        where=life.eye._where, clock=life.clock, cluster=None, book=SimpleNamespace(record=lambda kind, **_: told.append(kind))
    )  # fmt: skip
    hangs = agent_hang.Hangs(cast("Any", desk), life.eye.started, {}, lambda: 0)

    def looks(number: int) -> bool:
        for _ in range(number):
            life.clock.s += 1.0
            if (verdict := hangs.look(life.eye.look())) is not None and verdict.state is hang.State.HUNG:
                return True
        return False

    assert not looks(50)
    rows[0] = False
    assert not looks(1)
    rows[0] = True
    assert not looks(20)
    assert looks(20)
    assert told == ["hang.decided"]


def _hung_by_its_history(history: hang.History, now_s: float, _limits: hang.Limits) -> hang.Verdict:
    """After half a minute of silence, whoever agrees."""
    quiet_s = history.at(now_s) - history.moves.at_s
    state = hang.State.HUNG if quiet_s >= 30 else hang.State.HEALTHY
    return hang.Verdict(state, quiet_s, 30.0, "silence")
