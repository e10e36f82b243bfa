"""Laws of the live tasks of an array: each hangs by itself, and is ended by itself. (I/O)"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ftrun.slurm.client.cluster import JobRow, JobState
from ftrun.supervisor.context.run_context import LaunchObservations
from ftrun.supervisor.context.services import ClusterSnapshot
from ftrun.supervisor.controller import hang
from ftrun.supervisor.model import events, run
from ftrun.supervisor.model.run import Attempt
from ftrun.supervisor.model.states import State
from ftrun.supervisor.model.timers import Slots
from ftrun.supervisor.signatures import catalog as signatures_catalog

SETTINGS = {"hang-min": 10.0, "hang-max": 60.0, "hang-grace": 40.0}
WAITS = "distributed/distributed_c10d.py:all_reduce < /train.py:step"


class Array:
    """Tasks that beat once a second while they work, and what the context of their run does and records."""

    def __init__(self, folder: Path, tasks: int = 3, *, shared: bool = False, observe: bool = False) -> None:
        self.folder, self.now_s, self.steps = folder, 1000.0, dict.fromkeys(range(tasks), 0)
        self.hung: set[int] = set()
        self.states = dict.fromkeys(range(tasks), JobState.RUNNING)
        self.kinds: list[tuple[str, int]] = []
        self.cancelled: list[str] = []
        self.run = run.Run("r", state=State.RUNNING, attempts=(Attempt(1, 0.0, job="7", submission="done"),))
        for task in range(tasks):
            place = self.place(task)
            (place / "beats/0.1").mkdir(parents=True)
            log = folder / ("all.log" if shared else f"{task}.log")
            log.touch()
            (place / "launch.0").write_text(f"job={70 + task}\nnodes=n{task}\nstdout={log}\nstderr={log}\n")
        cluster = SimpleNamespace(
            jobs=lambda ids: {row.job_id: row for row in self.rows()}, cancel=self.cancelled.append
        )
        catalog = signatures_catalog.load()
        self.services = SimpleNamespace(
            cluster=cluster, steps=None, shared=Slots().of, home=str(folder), catalog=lambda: catalog,
            clock=SimpleNamespace(mono_s=lambda: self.now_s),
        )  # fmt: skip
        self.run_dir, self.settings, self.watch_only, self.observations = (
            str(folder),
            SETTINGS,
            observe,
            LaunchObservations(attempt=1),
        )

    @property
    def attempt(self) -> Attempt:
        return self.run.attempts[-1]

    def place(self, task: int) -> Path:
        return self.folder / "attempts/1/tasks" / str(task)

    def rows(self, _world: object = None) -> tuple[JobRow, ...]:
        return tuple(
            JobRow(f"7_{task}", state, "", (f"n{task}",), 1, "", "", "", "", None, None, None, raw_job_id=str(70 + task))
            for task, state in self.states.items()
        )  # fmt: skip

    def record(self, kind: str, **data: Any) -> None:
        self.kinds.append((kind, data["task"]))
        self.run = events.apply(
            self.run, {"kind": kind, "at": self.now_s, "attempt": 1, "launch": 0, "start": 1, "data": data}
        )

    @property
    def watch(self) -> hang.TaskWatch:
        return self.observations.per_start(hang.TaskWatch)

    def act(self, _name: str, deed: Callable[[], None]) -> None:
        deed()

    def live(self, seconds: int) -> None:
        """A second in the life of each task, and a look, so often."""
        for _ in range(seconds):
            self.now_s += 1.0
            for task in self.steps:
                self._tell(task)
            self.snapshot = ClusterSnapshot(self.now_s, self.now_s, {}, {})
            hang.detect_hung_tasks(cast("Any", self))
            hang.cancel_hung_tasks(cast("Any", self))

    def _tell(self, task: int) -> None:
        stands = task in self.hung
        self.steps[task] += not stands
        told: dict[str, Any] = {
            "rank": 0, "pid": 10, "host": f"n{task}", "step": self.steps[task], "phase": "", "n": self.steps[task], "t": 1e9,
            "stack_signal": 42, "own_s": 0.0, "own_n": 0,
        }  # fmt: skip
        if stands:
            told["still"] = {
                "at": self.now_s,
                "stack": "aa",
                "top": WAITS,
                "cpu_s": 1.0,
                "io_bytes": 9,
                "stuck": False,
            }
        (self.place(task) / "beats/0.1/0").write_text(json.dumps(told).ljust(400) + "\n")


def test_the_task_that_hangs_is_ended_alone_and_once(tmp_path: Path) -> None:
    """Told, decided, announced, cancelled by its own name."""
    array = Array(tmp_path)
    array.live(40)
    array.hung = {1}
    array.live(200)

    assert array.cancelled[0] == "7_1"
    assert set(array.cancelled) == {"7_1"}
    assert array.kinds[:4] == [
        ("hang.suspected", 1),
        ("hang.decided", 1),
        ("tasks.end.intended", 1),
        ("tasks.end.done", 1),
    ]
    assert [kind for kind, _ in array.kinds].count("hang.decided") == 1
    assert array.attempt.hung is None


def test_tasks_that_write_into_one_log_cannot_be_told_apart(tmp_path: Path) -> None:
    """Nobody is suspected by a log that others write, too."""
    array = Array(tmp_path, shared=True)
    array.live(40)
    array.hung = {0, 1, 2}
    array.live(200)

    assert array.kinds == []


@pytest.mark.parametrize("state", [JobState.SUSPENDED, JobState.COMPLETING, JobState.PENDING])
def test_a_task_that_does_not_run_does_not_hang(tmp_path: Path, state: JobState) -> None:
    """Suspended, on its way out, or back in the queue."""
    array = Array(tmp_path)
    array.live(40)
    array.hung, array.states[1] = {1}, state
    array.live(200)

    assert array.cancelled == []


def test_a_task_that_came_to_its_end_meanwhile_is_not_ended(tmp_path: Path) -> None:
    """It left its record between the decision and the end, or another launch of it has begun."""
    for what in ("exit.0", "launch.1"):
        array = Array(tmp_path / what)
        array.record(
            "hang.decided", task=1, task_launch=0, quiet_s=70.0, threshold_s=60.0, behind=[], reason="still"
        )
        (array.place(1) / what).write_text((array.place(1) / "launch.0").read_text() + "code=0\n")
        array.live(20)

        assert array.cancelled == []


def test_what_was_decided_before_is_carried_out_by_whoever_comes_next(tmp_path: Path) -> None:
    """Cut down after the decision, or after the announcement: the next one cancels at once, and announces it once."""
    for announced in (False, True):
        array = Array(tmp_path / str(announced))
        array.record(
            "hang.decided", task=1, task_launch=0, quiet_s=70.0, threshold_s=60.0, behind=[], reason="still"
        )
        if announced:
            array.record("tasks.end.intended", task=1)
        array.live(1)

        assert array.cancelled == ["7_1"]
        assert [kind for kind, _ in array.kinds].count("tasks.end.intended") == 1


def test_a_run_that_may_only_be_watched_keeps_its_tasks(tmp_path: Path) -> None:
    """It is told what hangs, once."""
    array = Array(tmp_path, observe=True)
    array.live(40)
    array.hung = {1}
    array.live(300)

    assert array.cancelled == []
    assert array.kinds == [("hang.suspected", 1), ("hang.decided", 1)]


def test_a_wide_array_costs_a_bounded_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first live tasks are watched; the others come when those are over."""
    monkeypatch.setattr(hang, "TASKS_MAX", 2)
    array = Array(tmp_path)
    array.live(10)
    assert set(array.watch.tasks) == {0, 1}
    array.states[0] = JobState.COMPLETED
    array.live(10)

    assert set(array.watch.tasks) == {1, 2}


def test_a_task_that_slurm_started_again_between_two_looks_leaves_no_file_open(tmp_path: Path) -> None:
    """The watch over its earlier launch is given back."""
    array = Array(tmp_path)
    array.live(10)
    before = array.watch.tasks[1].watcher
    closed: list[int] = []
    before.close = lambda: closed.append(1)  # type: ignore[method-assign]
    (array.place(1) / "launch.1").write_text((array.place(1) / "launch.0").read_text())
    array.live(10)

    assert array.watch.tasks[1].watcher is not before
    assert closed == [1]
