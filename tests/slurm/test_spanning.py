"""Steps over two jobs on real Slurm: whoever asks need not know in which of them a node lies."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from ftrun.slurm.commands.cluster import CommandCluster
from ftrun.slurm.commands.spanning import Span, SpanningSteps
from ftrun.slurm.commands.steps import CommandSteps
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.agent.node_liveness import PingRequest, query_nodes, sweep_line
from ftrun.supervisor.store.lease import SystemClock
from tests.slurm.apart import side_by_side
from tests.slurm.post import Post, posts, queue

pytestmark = pytest.mark.slurm


class Two:
    """A main job on two nodes, with a step on both, and a companion on two others, with one on both."""

    def __init__(self, box: Sandbox, post: Post) -> None:
        self.box, self.post = box, post
        work = "srun -N2 --job-name=train sleep 300"
        self.main = post.plain("-N2", "-wn0,n1", "--no-kill", "--wrap", work)
        self.companion = post.plain("-N2", "-wn2,n3", "--no-requeue", "--wrap", work)
        self.spans = [Span(self.companion, ("n2", "n3"))]
        self.nodes = ("n0", "n1", "n2", "n3")
        self.steps = SpanningSteps(CommandSteps(box.env()), self.main, lambda: self.spans)
        post.until(lambda: len(self.steps.steps(self.main)) == 2, "both steps run")

    def ask(self) -> list[str]:
        found = self.steps.ask(self.main, self.nodes, "", limit_s=1000, quiet_s=3)
        return sorted(found.answers)

    def answer(self, *nodes: str) -> None:
        """These do, and no others. On a slow machine one may need longer than the others are waited for: they are asked again."""
        self.post.until(lambda: self.ask() == [*nodes], f"{nodes} answer")

    def reach(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """(answered, silent, gone) of a roll call over both jobs."""
        place = str(self.post.folder / "home/runs/r/attempts/1")
        line = sweep_line(str(self.post.home), place, "0.2", self.main)
        sweep = PingRequest(self.main, self.nodes, "n0", line, spans=tuple(self.spans))
        cluster = CommandCluster(self.box.env())
        found = query_nodes(cluster, self.steps, SystemClock(), sweep)
        return found.answered, found.silent, found.gone

    def called(self, answered: tuple[str, ...], silent: tuple[str, ...], gone: tuple[str, ...]) -> None:
        """So a roll call ends, at the latest when it is repeated."""
        self.post.until(lambda: self.reach() == (answered, silent, gone), f"{answered} are reached")


@side_by_side
def test_nodes_of_two_jobs_are_asked_and_their_steps_ended_as_if_they_were_one(
    make_sandbox: Callable[..., Sandbox],
) -> None:
    """One question reaches all nodes; a node that crashed, and then a companion that is over, cost the others' answers nothing."""
    box = make_sandbox(nodes=4, slurmd_timeout_s=60)
    with posts(box) as make:
        two = Two(box, make())
        assert {step.id: step.nodes for step in two.steps.steps(two.main)} == {
            f"{two.main}.0": ("n0", "n1"),
            f"{two.companion}.0": ("n2", "n3"),
        }
        two.answer(*two.nodes)
        two.called(two.nodes, (), ())

        box.crash("n3")
        began_s = time.monotonic()
        two.answer("n0", "n1", "n2")
        two.called(("n0", "n1", "n2"), ("n3",), ())
        assert time.monotonic() - began_s < 500  # nobody waited for the one that is gone

        for step in two.steps.steps(two.main):
            two.steps.end_step(step.id)
        # With its step each script ends; the companion completes for as long as its dead node is not given up.
        states = {(two.main, "FAILED"), (two.companion, "COMPLETING")}
        two.post.until(lambda: states <= {tuple(row.split("|")[:2]) for row in queue(box)}, "both ended")


@side_by_side
def test_a_companion_that_is_over_takes_its_nodes_away_and_blames_none(
    make_sandbox: Callable[..., Sandbox],
) -> None:
    """Somebody cancels it: the question goes on without it, and its nodes are gone, not silent."""
    box = make_sandbox(nodes=4, slurmd_timeout_s=60)
    with posts(box) as make:
        two = Two(box, make())
        box.run(["scancel", two.companion])
        two.post.until(
            lambda: (two.companion, "CANCELLED") in {tuple(row.split("|")[:2]) for row in queue(box)},
            "it is over",
        )
        two.answer("n0", "n1")
        two.called(("n0", "n1"), (), ("n2", "n3"))
        assert [step.id for step in two.steps.steps(two.main) if step.name == "train"] == [f"{two.main}.0"]
