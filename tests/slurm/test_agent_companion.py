"""Companions asked for, awaited and given back, on real Slurm."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ftrun.slurm.commands.cluster import CommandCluster
from ftrun.slurm.commands.spanning import SpanningSteps
from ftrun.slurm.commands.steps import CommandSteps
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.agent.batch_channel import BatchChannel
from ftrun.supervisor.agent.companion_jobs import FAILED, READY, WAITING, Companion, Companions
from ftrun.supervisor.agent.context import AgentContext, AgentJournal, LaunchIdentity
from ftrun.supervisor.store import run_dir as store_run_dir
from tests.slurm.apart import side_by_side
from tests.slurm.post import Post, posts, queue

pytestmark = pytest.mark.slurm


def _companions(post: Post, *words: str) -> Companions:
    """Of a job that holds two nodes and has no agent of its own."""
    job = post.sbatch("srun sleep 300", "-N2", "--ft-agent=never", *words)
    post.supervise()
    post.until(lambda: [row for row in queue(post.box) if row.startswith(f"{job}|RUNNING")], "the job runs")
    run_dir = post.run_dir()
    place = store_run_dir.attempt_dir(run_dir, 1)
    row = CommandCluster(post.env).jobs((job,))[job]
    where = LaunchIdentity(run_dir, str(place), 1, 0, job, "", row.nodes[0], row.nodes)
    ctx: AgentContext
    steps = SpanningSteps(CommandSteps(post.env), job, lambda: (*ctx.spans, *ctx.coming))
    journal = AgentJournal(run_dir, str(place), attempt=1, launch=0, job=job)
    ctx = AgentContext(where, BatchChannel(str(post.folder)), journal, CommandCluster(post.env), steps)
    return Companions(ctx, {})


def _settled(post: Post, companions: Companions) -> Companion:
    def done() -> Companion | None:
        found = companions.look()
        return found if found.state != WAITING else None

    found: Companion = post.until(done, "the companion is here, or failed")
    return found


def _kinds(companions: Companions) -> list[str]:
    return [record["kind"] for record in companions.ctx.journal.records]


@side_by_side
def test_a_companion_is_here_soon_and_gone_when_nobody_wants_it(
    make_sandbox: Callable[..., Sandbox],
) -> None:
    """Its node is none of the job's, and is asked as if it were one; each effect stands in the journal first; at its end nothing is left."""
    box = make_sandbox(nodes=4)
    with posts(box) as make:
        post = make()
        companions = _companions(post)
        ctx = companions.ctx
        asked = companions.ask(1, (), 600.0, "a node is missing")
        assert (asked.state, asked.number) == (WAITING, 1)
        found = _settled(post, companions)

        assert (found.state, len(found.nodes)) == (READY, 1), found
        assert not {*found.nodes} & {*ctx.where.nodes}
        assert ctx.nodes == (*ctx.where.nodes, *found.nodes)
        answers = ctx.steps.ask(ctx.where.job, ctx.nodes, "", limit_s=120, quiet_s=120).answers
        assert sorted(answers) == sorted(ctx.nodes)
        companions.end(found.number, "the test is over")
        assert ctx.nodes == ctx.where.nodes
        gone = {(found.job, "CANCELLED"), (found.job, "COMPLETED"), (found.job, "FAILED")}
        post.until(lambda: gone & {tuple(row.split("|")[:2]) for row in queue(box)}, "it is over")
        assert os.path.exists(Path(ctx.where.place, "companions", "1.over"))
        assert _kinds(companions) == [
            "companion.intended",
            "companion.submitted",
            "companion.here",
            "companion.ended.intended",
            "companion.ended",
        ]


@side_by_side
def test_a_companion_that_cannot_be_had_fails_at_once_and_one_that_waits_is_taken_back(
    make_sandbox: Callable[..., Sandbox],
) -> None:
    """With every node left out Slurm refuses it; with others busy it waits, and nothing of it stays in the queue once it is ended."""
    box = make_sandbox(nodes=4)
    with posts(box) as make:
        post = make()
        companions = _companions(post)
        rest = [node for node in ("n0", "n1", "n2", "n3") if node not in companions.ctx.where.nodes]
        refused = companions.ask(1, rest, 600.0, "nowhere")
        assert refused.state == FAILED
        assert "not available" in refused.reason, refused

        post.plain("-N2", "--exclusive", "--wrap", "sleep 300")
        post.until(lambda: sum("|RUNNING" in row for row in queue(box)) == 2, "the others are busy")
        waits = companions.ask(1, (), 600.0, "a node is missing")
        assert waits.state == WAITING, waits
        assert companions.ask(1, (), 600.0, "again") == waits
        companions.ctx.rest(3.0)
        assert companions.look().state == WAITING
        companions.end(waits.number, "it took too long")
        assert (waits.job, "CANCELLED") in {tuple(row.split("|")[:2]) for row in queue(box)}
        assert waits.number == 2
        assert companions.ctx.spans == ()


def test_a_companion_asked_for_ahead_is_nobodys_before_it_is_wanted(
    make_sandbox: Callable[..., Sandbox],
) -> None:
    """Its node is reached, and is none of the run's until the ladder says so; where another one is wanted it is ended."""
    box = make_sandbox(nodes=4)
    with posts(box) as make:
        post = make()
        companions = _companions(post)
        ctx = companions.ctx
        companions.ask(1, (), None, "a node is lost", ahead=True)
        assert companions.expected
        assert ctx.expected == 1
        found = _settled(post, companions)
        assert found.state == READY, found
        assert ctx.nodes == ctx.where.nodes
        answers = ctx.steps.ask(ctx.where.job, found.nodes, "", limit_s=120, quiet_s=120).answers
        assert sorted(answers) == sorted(found.nodes)

        assert companions.take(1, ()) == found
        assert ctx.nodes == (*ctx.where.nodes, *found.nodes)
        assert not companions.expected
        assert (ctx.expected, ctx.coming) == (0, ())
        companions.end_ahead("it is wanted, so nothing happens")
        assert ctx.spans
        other = companions.ask(1, (), None, "one more", ahead=True)
        assert companions.take(2, ()) is None
        post.until(
            lambda: (other.job, "CANCELLED") in {tuple(row.split("|")[:2]) for row in queue(box)},
            "the other one is ended",
        )
        companions.end_all("the test is over")
        assert ctx.nodes == ctx.where.nodes
