"""Laws of the agent when Slurm wants nodes back: drained ones are left at a checkpoint, and a preemption that nobody else saw is heard of. (I/O)"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.client.cluster import JobDetails
from ftrun.slurm.commands.steps import StepRow
from ftrun.supervisor.agent import start_loop, stop_start
from ftrun.supervisor.model.events import apply
from ftrun.supervisor.store import flag_files
from tests.fake_slurm import faults
from tests.unit.agent.test_agent import Stage, quick

__all__ = ["quick"]

CANCELLED = "slurmstepd: error: *** STEP 1.0 ON n0 CANCELLED AT 2026-01-01T00:00:00 ***"


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None) -> Iterator[Callable[..., Stage]]:
    """A stage whose agent looks often."""
    for module, name, seconds in (
        (start_loop, "LOOK_EVERY_S", 0.1),
        (stop_start, "SIGHT_EVERY_S", 0.1),
        (stop_start, "LOOK_EVERY_S", 0.1),
        (stop_start, "SUPERVISORS_S", 0.5),
    ):
        monkeypatch.setattr(module, name, seconds)
    made: list[Stage] = []

    def stage(*, wanted: int, active: int, **chosen: Any) -> Stage:
        more = {"checkpoint": "step-*", "checkpoint_marker": "done", "save_signal": "USR1"} | chosen
        one = Stage(tmp_path / str(len(made)), wanted=wanted, active=active, **more)
        one.steps.running = [StepRow(f"{one.life.launches[-1].job.number}.0", "train", one.nodes[:active])]
        made.append(one)
        return one

    yield stage
    for one in made:
        one.ctx.given_up = True
        one.thread.join(60)


def _save(stage: Stage, step: int) -> None:
    saved = stage.life.cwd / f"step-{step}"
    saved.mkdir()
    (saved / "done").touch()


def _wish(stage: Stage, *nodes: str, aside: tuple[str, ...] = ()) -> None:
    wish = flag_files.LeaveRequest("7", nodes, (*nodes, *aside), "drained (kernel update)")
    flag_files.write_leave(stage.place, 0, wish)


def _within(limit_s: float, holds: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.02)
    return True


def test_a_spare_takes_a_drained_nodes_place_at_the_next_checkpoint(make: Callable[..., Stage]) -> None:
    """Asked first, and a spare that is drained itself is passed over; nobody is drained or excluded for it."""
    stage = make(wanted=4, active=2)
    stage.life.say("step 5 loss 2.0")
    _wish(stage, stage.nodes[1], aside=(stage.nodes[2],))
    assert stage.until("save.asked")["occasion"] == "drain"
    assert "script.end.intended" not in stage.kinds()
    _save(stage, 5)
    stage.until("script.end.done")
    answer = stage.fails(1, CANCELLED, code=143)
    decided = stage.until("start.decided")

    assert answer["nodes"] == f"{stage.nodes[0]},{stage.nodes[3]}"
    assert (decided["rung"], decided["signature"]) == ("swap", "node.drained")
    assert (decided["drain"], decided["exclude"]) == ([], [])
    assert set(decided["aside"]) == {stage.nodes[1], stage.nodes[2]}


@pytest.mark.parametrize("saves", [True, False], ids=["no spare", "nothing saved"])
def test_where_it_cannot_the_start_goes_on_and_says_why(make: Callable[..., Stage], saves: bool) -> None:
    """Once; the supervisor reads it from the journal."""
    stage = make(wanted=2 if saves else 3, active=2, save_wait=60.0 if saves else 0.5)
    stage.life.say("step 5 loss 2.0")
    _wish(stage, stage.nodes[1])
    stage.until("save.asked")
    if saves:
        _save(stage, 5)
    told = stage.until("start.stays")
    stage.looks()

    assert (told["token"], told["nodes"], told["saved"]) == ("7", [stage.nodes[1]], saves)
    assert stage.kinds().count("start.stays") == stage.kinds().count("save.asked") == 1
    assert "script.end.intended" not in stage.kinds()
    run = stage.life.run
    run = apply(
        run,
        {
            "kind": "leave.intended",
            "at": 1.0,
            "attempt": 1,
            "launch": 0,
            "start": 1,
            "data": {"token": "7", "by": "agent"},
        },
    )
    run = apply(run, next(one for one in stage.records() if one["kind"] == "start.stays"))
    assert run.leaving["stage"] == ("stays" if saves else "missed")


def test_what_is_taken_back_ends_nothing(make: Callable[..., Stage]) -> None:
    """The wish is gone before a checkpoint came: save-now is, too, and a later checkpoint is only that."""
    stage = make(wanted=3, active=2)
    stage.life.say("step 5 loss 2.0")
    _wish(stage, stage.nodes[1])
    stage.until("save.asked")
    wish = Path(stage.life.run_dir, "save-now")
    assert _within(60.0, wish.exists)  # that it will ask is noted before it does
    flag_files.remove_leave(stage.place, 0)
    assert _within(60.0, lambda: not wish.exists())
    _save(stage, 5)
    stage.looks()

    assert "script.end.intended" not in stage.kinds()


def test_what_is_taken_back_at_the_last_moment_ends_nothing(
    make: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint that comes just then is the answer to somebody else's question: the wish is read once more before it is obeyed."""
    stage = make(wanted=3, active=2)
    stage.life.say("step 5 loss 2.0")
    _wish(stage, stage.nodes[1])
    stage.until("save.asked")
    monkeypatch.setattr(stop_start, "LOOK_EVERY_S", 1e6)
    stage.looks(2)  # it looks now for the last time
    flag_files.remove_leave(stage.place, 0)
    _save(stage, 5)
    stage.until("save.done")
    time.sleep(1.0)

    assert "script.end.intended" not in stage.kinds()
    assert "start.stays" not in stage.kinds()


def test_an_end_that_is_near_for_another_reason_is_no_preemption(
    make: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reservation that ends: Slurm is asked what it is, and the script is asked for nothing."""
    stage = make(wanted=2, active=2)
    stage.life.say("step 5 loss 2.0")
    faults.preempt_later(stage.life.engine, stage.life.attempt.job, 1e6)
    tell, asked = stage.ctx.cluster.details, list[str]()

    def details(job: str) -> JobDetails | None:
        asked.append(job)
        told = tell(job)
        return replace(told, fields={}) if told is not None else None

    monkeypatch.setattr(stage.ctx.cluster, "details", details)
    stage.life.say(CANCELLED)
    assert _within(60.0, lambda: bool(asked))
    stage.looks()

    assert "save.asked" not in stage.kinds()


@pytest.mark.parametrize("preempted", [True, False])
def test_a_cancelled_step_of_a_start_that_lives_on_is_asked_about(
    make: Callable[..., Stage], preempted: bool
) -> None:
    """Where Slurm wants the nodes and no supervisor has asked the script to save, the agent does, once."""
    stage = make(wanted=2, active=2)
    stage.life.say("step 5 loss 2.0")
    if preempted:
        faults.preempt_later(stage.life.engine, stage.life.attempt.job, 1e6)
    stage.life.say(CANCELLED)
    if preempted:
        assert stage.until("save.asked")["occasion"] == "preempt"
        _save(stage, 5)
        stage.until("save.done")
    stage.looks(5)

    assert stage.kinds().count("save.asked") == preempted
    assert "script.end.intended" not in stage.kinds()
