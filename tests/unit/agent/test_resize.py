"""Laws of the agent of a run that has fewer nodes than it could have: nothing of it is touched before all is there, and a growth is no fault."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.client.cluster import SubmitRequest
from ftrun.slurm.commands.spanning import Span
from ftrun.slurm.commands.steps import StepRow
from ftrun.supervisor.agent import companion_jobs, resize, start_loop, start_monitor, stop_start
from ftrun.supervisor.agent.companion_jobs import FAILED, READY, WAITING, Companion, Companions
from ftrun.supervisor.model.stop_conditions import StopConditions
from ftrun.supervisor.policy import elastic
from ftrun.supervisor.store import flag_files
from tests.unit.agent.test_agent import TRANSIENT, Stage, Steps, quick

__all__ = ["quick"]

CANCELLED = "slurmstepd: error: *** STEP 1.0 ON n0 CANCELLED AT 2026-01-01T00:00:00 ***"
Make = Callable[..., Stage]


@dataclass
class Lenders:
    """Companions that the test brings: `come` are the nodes of the next one, `unfit` those of them that are no good."""

    come: tuple[str, ...] = ()
    job: str = "99"
    late: bool = False
    unfit: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[int, frozenset[str]]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def lend(self, stage: Stage) -> None:
        """A job that runs beside the stage's, with one node."""
        life = stage.life
        life.engine.script("mate", lambda _: None)
        request = SubmitRequest(
            "mate:7", ("-N1", "-pmain", "--job-name=mate", "mate.sh"), b"", {}, str(life.cwd)
        )
        self.job = life.cluster.submit(request).job_id
        life.clock.sleep(5.0)
        self.come = life.cluster.jobs((self.job,))[self.job].nodes
        assert self.come

    def bring(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In place of the real ones."""

        def ask(self_: Companions, count: int, exclude: Any, left_s: float | None, why: str) -> Companion:
            self.asked.append((count, frozenset(exclude)))
            return Companion(WAITING, 1, job=self.job)

        def look(self_: Companions) -> Companion:
            if self.late:
                return Companion(WAITING, 1, job=self.job)
            if not self.come:
                return Companion(FAILED, 1, job=self.job, reason="AssocMaxJobsLimit")
            self_.ctx.spans = (Span(self.job, self.come),)
            return Companion(READY, 1, self.come, self.job)

        def end(self_: Companions, number: int, why: str) -> None:
            self.ended.append(why)
            self_.ctx.spans = ()

        for name, deed in (("ask", ask), ("look", look), ("end", end)):
            monkeypatch.setattr(Companions, name, deed)
        fit = companion_jobs.unfit_nodes

        def looked_at(*words: Any, **more: Any) -> dict[str, str]:
            return dict(self.unfit) or fit(*words, **more)

        monkeypatch.setattr(companion_jobs, "unfit_nodes", looked_at)


@pytest.fixture
def lenders(monkeypatch: pytest.MonkeyPatch) -> Lenders:
    """Nobody lends anything unless the test says so."""
    found = Lenders()
    found.bring(monkeypatch)
    return found


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lenders: Lenders, quick: None) -> Iterator[Make]:
    """A stage whose agent looks often, on two of three nodes."""
    for module, name, seconds in (
        (start_loop, "LOOK_EVERY_S", 0.1),
        (stop_start, "SIGHT_EVERY_S", 0.1),
        (resize, "LOOK_EVERY_S", 0.1),
        (resize, "SIGHT_EVERY_S", 0.1),
    ):
        monkeypatch.setattr(module, name, seconds)
    made: list[Stage] = []

    def stage(*, wanted: int = 3, **chosen: Any) -> Stage:
        usual: dict[str, Any] = {
            "checkpoint": "step-*",
            "checkpoint_marker": "done",
            "save_signal": "USR1",
            "grow_min_interval": 0.0,
            "sizes": "2-3",
        }
        one = Stage(tmp_path / str(len(made)), wanted=wanted, active=2, **(usual | chosen))
        (one.talk_dir / "calls.1").write_text("1700000000 4711 srun ./train\n")
        one.steps.running = [StepRow(f"{one.life.launches[-1].job.number}.0", "train", one.nodes[:2])]
        made.append(one)
        one.life.say("step 5 loss 2.0")
        return one

    yield stage
    for one in made:
        one.ctx.given_up = True
        one.thread.join(60)


def save(stage: Stage, step: int) -> None:
    saved = stage.life.cwd / f"step-{step}"
    saved.mkdir()
    (saved / "done").write_text("1")  # a checkpoint without a byte is none


def stays(stage: Stage, word: str) -> dict[str, Any]:
    """The record that says that it does not grow for this kind of reason."""
    give_up_s = time.monotonic() + 60
    while True:
        told = [one["data"] for one in stage.records() if one["kind"] == "grow.stays"]
        found = [data for data in told if data["word"] == word]
        if found:
            return dict(found[-1])
        assert time.monotonic() < give_up_s, (told, stage.kinds(), stage.error)
        time.sleep(0.02)


def test_a_free_node_of_the_job_joins_at_the_next_checkpoint(make: Make) -> None:
    """Not before this start has saved once; then a checkpoint is asked for, the start is ended, and the next one has the node behind those that were there."""
    stage = make()
    assert stays(stage, "unsaved")["reason"] == "this start has written no checkpoint yet"
    save(stage, 5)
    assert stage.until("grow.begun")["own"] == [stage.nodes[2]]
    assert stage.until("save.asked")["occasion"] == "grow"
    assert "script.end.intended" not in stage.kinds()
    save(stage, 6)
    stage.until("script.end.done")
    answer = stage.fails(1, CANCELLED, code=143)

    assert answer.pop("why").startswith("the run grows from 2 to 3 nodes")
    assert answer == {"kind": "again", "nodes": ",".join(stage.nodes), "fault": "", "had": "1"}
    assert stage.until("start.decided")["rung"] == "grow"


def test_a_growth_is_no_fault(make: Make) -> None:
    """No incident, no try, no budget, no rung, nobody excluded or set aside; and the next start at full size is left alone."""
    stage = make()
    save(stage, 5)
    stage.until("save.asked")
    save(stage, 6)
    stage.until("script.end.done")
    stage.fails(1, CANCELLED, code=143)
    stage.start(2, stage.nodes)
    stage.life.say("step 7 loss 1.0")
    stage.until("start.first-step")
    run = stage.ctx.journal.run()

    assert (run.incidents, run.retries, run.spent, run.rungs, run.excluded) == ((), 0, {}, {}, ())
    assert run.attempt is not None
    assert run.attempt.launch.aside == ()
    assert len(run.attempt.used) == 3
    assert run.attempt.growth.startswith("the run grows from 2 to 3 nodes")


def test_nodes_of_another_job_are_there_and_looked_at_before_anything_is_touched(
    make: Make, lenders: Lenders
) -> None:
    """The script works on while they are asked for and awaited; only then a checkpoint is asked for."""
    lenders.late = True
    stage = make(wanted=2)
    lenders.lend(stage)
    save(stage, 5)
    assert stage.until("grow.begun")["missing"] == 1
    stage.looks()
    assert "save.asked" not in stage.kinds()
    lenders.late = False
    stage.until("save.asked")
    save(stage, 6)
    stage.until("script.end.done")
    answer = stage.fails(1, CANCELLED, code=143)

    assert answer["nodes"] == ",".join((*stage.nodes, *lenders.come))
    assert answer["span"] == f"{lenders.job}:{lenders.come[0]}"
    assert lenders.asked == [(1, frozenset())]
    assert lenders.ended == []


def test_nothing_of_the_live_start_is_swept_away_while_new_nodes_are_looked_at(
    make: Make, lenders: Lenders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every sweep before its end names the start that lives, or an earlier one."""
    lines: list[str] = []
    begin = Steps.begin

    def heard(self: Steps, job_id: str, nodes: Any, script: str) -> Any:
        lines.append(script)
        return begin(self, job_id, nodes, script)

    monkeypatch.setattr(Steps, "begin", heard)
    stage = make(wanted=2)
    lenders.lend(stage)
    save(stage, 5)
    stage.until("save.asked")
    save(stage, 6)
    stage.until("script.end.intended")

    tokens = {word for line in lines for word in re.findall(r"--token (\S+)", line)}
    assert tokens == {"0.1"}


@pytest.mark.parametrize("how", ["none comes", "too late", "no good"])
def test_a_companion_that_is_of_no_use_costs_the_run_nothing(
    make: Make, lenders: Lenders, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It is given back, the try counts as failed and is not repeated at once, and the start goes on."""
    monkeypatch.setattr(resize, "STARTS_WITHIN_S", 0.3)
    lenders.come, lenders.late = ("n4",) * (how != "none comes"), how == "too late"
    lenders.unfit = {"n4": "it does not answer"} if how == "no good" else {}
    stage = make(wanted=2)
    save(stage, 5)
    dropped = stage.until("grow.dropped")
    stays(stage, "failed")

    assert dropped["failed"]
    assert len(lenders.ended) == len(lenders.asked) == 1
    assert not {"save.asked", "script.end.intended"} & set(stage.kinds())


@pytest.mark.parametrize("what", ["it is to stop soon", "a person said pause"])
def test_what_somebody_else_does_with_the_run_goes_first(
    make: Make, lenders: Lenders, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Before it begins, and at the last moment; it is no failed try."""
    stage = make(wanted=2)
    lenders.lend(stage)
    save(stage, 5)
    stage.until("save.asked")
    monkeypatch.setattr(resize, "_busy", lambda _: what)
    save(stage, 6)
    dropped = stage.until("grow.dropped")

    assert what in dropped["reason"]
    assert not dropped["failed"]
    assert len(lenders.ended) == 1
    assert stays(stage, "busy")["reason"] == what
    assert "script.end.intended" not in stage.kinds()


def test_a_fault_goes_first_and_what_was_asked_for_is_given_back(make: Make, lenders: Lenders) -> None:
    """The start fails while nodes stand by: the ladder as ever."""
    stage = make(wanted=2)
    lenders.lend(stage)
    save(stage, 5)
    stage.until("save.asked")
    answer = stage.fails(1, TRANSIENT)

    assert answer["nodes"] == ",".join(stage.nodes)
    assert stage.until("start.decided")["rung"] == "step"
    assert len(lenders.ended) >= 1
    assert not stage.until("grow.dropped")["failed"]


def test_a_new_node_that_fails_at_the_last_moment_is_left_out(make: Make) -> None:
    """The start that was ended for it begins again as it was; nobody is blamed."""
    stage = make()
    save(stage, 5)
    stage.until("save.asked")
    save(stage, 6)
    stage.until("script.end.done")
    stage.steps.silent = {stage.nodes[2]}
    answer = stage.fails(1, CANCELLED, code=143)

    assert answer["nodes"] == ",".join(stage.nodes[:2])
    assert stage.until("grow.dropped")["failed"]
    assert stage.ctx.journal.run().incidents == ()


def test_an_old_node_that_fails_at_the_last_moment_is_a_fault(make: Make) -> None:
    """The ladder as ever: the free node takes its place."""
    stage = make()
    save(stage, 5)
    stage.until("save.asked")
    save(stage, 6)
    stage.until("script.end.done")
    stage.steps.silent = {stage.nodes[1]}
    answer = stage.fails(1, CANCELLED, code=143)

    assert answer["nodes"] == f"{stage.nodes[0]},{stage.nodes[2]}"
    assert answer["fault"] == "node"
    assert stage.until("start.decided")["rung"] == "swap"


def test_it_does_not_grow_where_it_is_not_wanted_or_does_not_pay(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, and Slurm is asked for nothing."""
    stage = make(grow="never")
    save(stage, 5)
    assert stays(stage, "never")["reason"] == "grow=never"

    monkeypatch.setattr(elastic, "MARGIN", 1e9)
    stage = make()
    save(stage, 5)
    assert "it does not pay" in stays(stage, "price")["reason"]
    assert stage.ctx.journal.run().attempt.growth == stays(stage, "price")["reason"]  # type: ignore[union-attr]


def ends_to_grow(stage: Stage, step: int, start: int = 1) -> None:
    """This start saves twice, and is ended for one with more nodes; an earlier one may have been asked, too, before it failed."""

    def comes(kind: str) -> None:
        give_up_s = time.monotonic() + 60
        while kind not in _of_start(stage.kinds(), start):
            assert time.monotonic() < give_up_s, (stage.kinds(), stage.error)
            time.sleep(0.02)

    comes("start.begun")
    save(stage, step)
    comes("grow.begun")
    comes("save.asked")
    save(stage, step + 1)
    comes("script.end.done")


def _of_start(kinds: list[str], start: int) -> list[str]:
    """The records of one start and those behind it."""
    begun = [place for place, kind in enumerate(kinds) if kind == "start.begun"]
    return kinds[begun[start - 1] :] if len(begun) >= start else []


def test_a_persons_word_between_the_end_and_the_next_start_counts(make: Make) -> None:
    """Who says stop in that moment gets no further start."""
    stage = make()
    ends_to_grow(stage, 5)
    flag_files.write_halt(stage.life.run_dir, StopConditions(token="now", by="ann", after_checkpoint=True))
    answer = stage.fails(1, CANCELLED, code=143)

    assert answer["kind"] == "end"
    assert stage.until("start.left")["reason"] == "a person said stop"


def test_what_was_reached_before_a_growth_is_progress(make: Make) -> None:
    """The budgets that an earlier fault spent are full again; else the first fault of the next start would count as one that follows at once."""
    stage = make()
    save(stage, 5)
    stage.fails(1, TRANSIENT)
    spent = stage.ctx.journal.run()
    assert spent.rungs["step"] == 1
    assert spent.best_step == 5
    stage.start(2, stage.nodes[:2])
    stage.life.say("step 9 loss 1.0")
    ends_to_grow(stage, 9, start=2)
    stage.fails(2, CANCELLED, code=143)
    run = stage.ctx.journal.run()

    assert (run.spent, run.rungs, run.best_step) == ({}, {}, 9)
    assert run.best_checkpoint.endswith("step-10")
    assert (spent.retries, run.retries) == (1, 0)


def test_a_growth_that_pays_no_more_when_the_checkpoint_is_there_is_left(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was awaited for long: what is left of the job's time would go to the restart."""
    stage = make()
    save(stage, 5)
    stage.until("save.asked")
    reach_all = start_monitor.query_all_nodes

    def late(*words: Any, **more: Any) -> Any:
        return replace(reach_all(*words, **more), end_s=time.time() + 40.0)

    monkeypatch.setattr(start_monitor, "query_all_nodes", late)
    save(stage, 6)

    assert "of the job's time are left then" in stage.until("grow.dropped")["reason"]
    assert "script.end.intended" not in stage.kinds()


def test_an_agent_that_dies_between_the_end_and_its_answer_costs_no_more_than_a_new_job(make: Make) -> None:
    """What its own end of the start printed is no person's cancel, and no fault of anybody."""
    stage = make()
    ends_to_grow(stage, 5)
    stage.ctx.given_up = True
    stage.thread.join(60)
    stage.life.say(CANCELLED)
    stage.life.exit(143)
    while len(stage.life.run.attempts) == 1 and not stage.life.run.final:
        stage.life.live()
    run = stage.life.run

    assert len(run.attempts) == 2, (run.state, run.decision)
    assert (run.excluded, run.sizes_aside, run.wish) == ((), (), "")


def test_what_a_start_began_from_is_no_progress_of_its_own(make: Make) -> None:
    """A launch before it saved that, and the supervisor counts it when it judges that launch, however late: one checkpoint gives the retries back once."""
    stage = make()
    save(stage, 5)
    stage.fails(1, TRANSIENT)
    save(stage, 7)
    os.utime(stage.life.cwd / "step-7", (1.0, 1.0))
    stage.start(2, stage.nodes[:2], resume_from="step-7")
    stage.fails(2, TRANSIENT)

    assert stage.ctx.journal.run().best_checkpoint.endswith("step-5")
