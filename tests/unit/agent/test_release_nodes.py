"""Laws of the nodes that a job has set aside while a start works without them: who is to mend one gets it, and one that is gone may come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.commands.spanning import Span
from ftrun.supervisor.agent import companion_jobs, release_nodes, start_loop
from tests.unit.agent.test_agent import TRANSIENT, Stage, quick

__all__ = ["quick"]

Make = Callable[..., Stage]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None) -> Iterator[Make]:
    """Four nodes, of which the last was set aside since it could not be swept: the second start works on three."""
    monkeypatch.setattr(release_nodes, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(start_loop, "LOOK_EVERY_S", 0.1)
    made: list[Stage] = []

    def stage(**chosen: Any) -> Stage:
        usual: dict[str, Any] = {"words": ("--no-kill",)}
        one = Stage(tmp_path, wanted=4, active=4, cluster=4, sizes="2-4", **(usual | chosen))
        made.append(one)
        one.steps.unfit = {one.nodes[3]: "processes of an earlier start cannot be ended"}
        assert one.fails(1, TRANSIENT)["nodes"] == ",".join(one.nodes[:3])
        one.start(2, one.nodes[:3])
        one.until("start.begun")
        return one

    yield stage
    for one in made:
        one.ctx.given_up = True
        one.thread.join(60)


def drain(stage: Stage, node: str) -> None:
    stage.life.cluster.drain(node, "to be mended")


def test_a_drained_node_that_was_set_aside_is_given_back(make: Make) -> None:
    """Not before somebody drained it; the intent is written first, and all who stay are named."""
    stage = make()
    stage.looks(5)
    assert "release.intended" not in stage.kinds()
    drain(stage, stage.nodes[3])
    told = stage.until("release.done")

    assert told == {"nodes": list(stage.nodes[:3]), "gone": [stage.nodes[3]], "why": release_nodes.FOR_REPAIR}
    assert stage.kinds().index("release.intended") == stage.kinds().index("release.done") - 1
    assert stage.steps.kept == [stage.nodes[:3]]
    assert stage.ctx.nodes == stage.nodes[:3]
    assert stage.rounds is not None
    assert stage.rounds.aside == ()


def test_no_node_of_the_start_that_works_is_given_back(make: Make) -> None:
    """Whoever drains it."""
    stage = make()
    for node in stage.nodes[:3]:
        drain(stage, node)
    stage.looks(5)
    assert "release.intended" not in stage.kinds()


def test_a_refusal_ends_it_for_the_launch(make: Make) -> None:
    """The node stays aside as before, and nothing else comes of it."""
    stage = make()
    stage.steps.refused = "Job update not available right now"
    drain(stage, stage.nodes[3])
    assert stage.until("release.refused")["message"] == stage.steps.refused
    stage.looks(5)

    assert stage.kinds().count("release.intended") == 1
    assert stage.ctx.nodes == stage.nodes
    assert not {"start.left", "script.end.intended"} & set(stage.kinds())


def test_a_job_that_slurm_ends_for_a_dead_node_keeps_its_one_release_for_that(make: Make) -> None:
    """Slurm may allow it once only."""
    stage = make(words=("--no-kill=off",))
    drain(stage, stage.nodes[3])
    stage.looks(5)
    assert "release.intended" not in stage.kinds()


def test_a_node_that_left_the_job_may_be_one_of_a_companion(make: Make) -> None:
    """It is the companion's then, stands behind the job's own in the ranks, and is none of what a companion must not have before."""
    stage = make()
    job = stage.life.launches[-1].job
    job.nodes = stage.nodes[:3]
    give_up_s = time.monotonic() + 60
    while stage.ctx.nodes != stage.nodes[:3]:
        assert time.monotonic() < give_up_s, stage.kinds()
        time.sleep(0.05)
    stage.ctx.given_up = True
    stage.thread.join(60)
    ctx = replace(stage.ctx, spans=(Span("99", (stage.nodes[3],)),), left=stage.ctx.left)

    assert ctx.nodes == stage.nodes
    assert companion_jobs.rank_order(ctx, stage.nodes) == (stage.nodes, ctx.spans)


def test_nodes_stand_as_srun_ranks_them_whatever_order_they_are_asked_for_in(make: Make) -> None:
    """A spare takes the place of a bad node where the ladder lists it; the journal says which node gets which ranks."""
    stage = make()
    stage.ctx.given_up = True
    stage.thread.join(60)
    first, second, third, *_ = stage.nodes

    assert companion_jobs.rank_order(stage.ctx, (third, first, second)) == ((first, second, third), ())
