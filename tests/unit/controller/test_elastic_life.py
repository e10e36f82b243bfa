"""Laws of an elastic run in a whole life: it waits, goes on smaller, comes back, and never is two jobs that could start. (I/O)"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.client.errors import OutcomeUnknown, RefusedForGood
from ftrun.supervisor.controller import resubmit
from ftrun.supervisor.policy.policy_input import ClusterView
from ftrun.supervisor.store.crash_points import PlannedCrash
from tests.unit.lives import Life

BUG = (
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in main',
    "ValueError: batch of 10 is not divisible by 3",
)


def elastic(folder: Path, **chosen: Any) -> Life:
    """A run of four nodes in a cluster of four, five or more, which can go on with three or two."""
    values: dict[str, Any] = {
        "nodes": 4,
        "wanted": 4,
        "sizes": "2-4",
        "resize_after": 60.0,
        "exclude_cap": 0.5,
    } | chosen
    return Life(folder, **values)


def taken(life: Life, *names: str) -> None:
    """Strangers have these nodes."""
    for name in names:
        life.engine.nodes[name].slots = 0


def left(life: Life, *names: str) -> None:
    """The strangers leave."""
    for name in names:
        life.engine.nodes[name].slots = 1
    life.engine.schedule_soon()


def crash(life: Life, name: str) -> None:
    """The node is gone for good; the run is over for Slurm and was judged."""
    life.engine.fail_node(name, "crash")


def sizes(life: Life) -> list[int]:
    """What each attempt was submitted with."""
    return [attempt.size for attempt in life.run.attempts]


def one_job(life: Life) -> None:
    """At most one job of the run has not ended."""
    assert len(life.living()) <= 1, life.living()


def watched(life: Life, seconds: int) -> None:
    """Time passes; the law of one job is looked at every second."""
    for _ in range(seconds):
        life.live()
        one_job(life)


def until_size(life: Life, size: int, within_s: int = 900) -> None:
    """Live until an attempt of this size runs."""
    for _ in range(within_s):
        watched(life, 1)
        if life.run.state.value == "running" and (life.attempt.size or 4) == size and life.attempt.number > 1:
            return
    raise AssertionError(f"{life.run.state.value} at {sizes(life)}: {life.run.decision}")


def only_anew(life: Life) -> Life:
    """This Slurm lets nobody change a job that waits."""

    def refuse(job_id: str, **_: int) -> None:
        raise RefusedForGood(f"Requested operation is presently disabled for job {job_id}", exit_code=1)

    life.cluster.reshape = refuse  # type: ignore[method-assign]
    return life


def waiting(folder: Path, *, in_place: bool = False, **chosen: Any) -> Life:
    """A run of four of five nodes that has lost one, while strangers have the fifth: it waits in the queue."""
    life = elastic(folder, nodes=5, **chosen)
    if not in_place:
        only_anew(life)
    taken(life, "n4")
    life.until("running")
    crash(life, "n3")
    life.until("queued")
    return life


def test_a_run_whose_lost_node_can_never_be_replaced_goes_on_smaller_at_once(tmp_path: Path) -> None:
    """The partition has no other node: waiting would be for nothing."""
    life = elastic(tmp_path)
    life.until("running")
    life.train(1, 5)
    crash(life, "n3")
    until_size(life, 3)

    assert sizes(life) == [0, 3]
    assert life.launches[-1].nodes == ("n0", "n1", "n2")
    assert "queue.moved" not in life.kinds()


def test_a_run_waits_for_a_node_and_then_goes_on_smaller(tmp_path: Path) -> None:
    """At its present size for `resize-after`, since the fifth node may come free; then with the three that are there."""
    life = only_anew(elastic(tmp_path, nodes=5))
    taken(life, "n4")
    life.until("running")
    life.train(1, 5)
    crash(life, "n3")
    life.until("queued")
    watched(life, 55)
    assert (sizes(life), life.run.state.value) == ([0, 4], "queued")

    until_size(life, 3)
    assert sizes(life) == [0, 4, 3]
    moved = next(record for record in life.records() if record["kind"] == "queue.moved")
    assert "on with 3 of 4 nodes" in moved["data"]["decision"]["reason"]
    assert life.run.retries == 1, "the move is no fault of the run"


def test_a_node_that_comes_free_in_time_is_taken(tmp_path: Path) -> None:
    """Nothing is moved where waiting helps."""
    life = waiting(tmp_path)
    watched(life, 30)
    left(life, "n4")
    until_size(life, 4)

    assert sizes(life) == [0, 4]


def test_a_run_without_sizes_waits(tmp_path: Path) -> None:
    """As it always did."""
    life = waiting(tmp_path, sizes="")
    watched(life, 400)

    assert (life.run.state.value, sizes(life)) == ("queued", [0, 0])


def test_the_first_start_is_waited_for_at_full_size(tmp_path: Path) -> None:
    """However long it takes, and whatever could start now."""
    life = elastic(tmp_path, on_queue_timeout="stop", queue_timeout=100.0)
    taken(life, "n3")
    watched(life, 500)

    assert (life.run.state.value, sizes(life)) == ("queued", [0])
    left(life, "n3")
    life.until("running")


def test_it_grows_back_at_the_next_start_that_must_be_made(tmp_path: Path) -> None:
    """Not before: a healthy run is left alone."""
    life = elastic(tmp_path, nodes=5, exclude_for=60.0)
    taken(life, "n4")
    life.until("running")
    life.train(1, 5)
    crash(life, "n3")
    until_size(life, 3)
    life.train(6, 9)
    left(life, "n4")
    watched(life, 120)
    assert sizes(life)[-1] == 3
    life.launches[-1].exit(0, 9)
    until_size(life, 4)

    assert life.attempt.size == 4
    assert set(life.attempt.nodes) == {"n0", "n1", "n2", "n4"}


def test_it_never_goes_below_its_least_size(tmp_path: Path) -> None:
    """One node alone is none of the sizes: it waits for a second one."""
    life = elastic(tmp_path, nodes=5)
    taken(life, "n4")
    life.until("running")
    for name in ("n1", "n2", "n3"):
        crash(life, name)
    watched(life, 600)
    assert life.run.state.value == "queued"
    assert all(size in (0, 2, 3, 4) for size in sizes(life))
    left(life, "n4")
    until_size(life, 2)


def test_units_stay_whole(tmp_path: Path) -> None:
    """With units of two a third node is of no use."""
    life = elastic(tmp_path, sizes="2-4:2")
    life.until("running")
    crash(life, "n3")
    until_size(life, 2)

    assert sizes(life) == [0, 2]


@pytest.mark.parametrize(
    "point",
    [
        "record:after:queue.moved",
        "record:after:cancel.intended",
        "cancel:before",
        "cancel:after",
        "record:after:attempt.closed",
        "open:after",
        "record:after:attempt.opened",
        "submit:before",
        "submit:after",
    ],
)
def test_whoever_dies_in_the_middle_of_a_move_is_followed_by_one_who_ends_it(
    tmp_path: Path, point: str
) -> None:
    """One job at every moment, and the smaller size in the end."""
    life = only_anew(elastic(tmp_path, nodes=5))
    taken(life, "n4")
    life.until("running")
    life.train(1, 5)
    crash(life, "n3")
    life.until("queued")

    def die(name: str) -> None:
        if name == point and "queue.moved" in life.kinds():
            raise PlannedCrash(name)

    life.supervisor.services.crash = die
    with pytest.raises(PlannedCrash):
        watched(life, 300)
    one_job(life)
    life.begin_anew()
    until_size(life, 3)
    one_job(life)


# ---------------------------------------------------------------------- made smaller where it stands


def test_a_waiting_job_is_made_smaller_where_it_stands(tmp_path: Path) -> None:
    """Its place in the queue is kept: no other job, no other attempt, and the journal says how large it is."""
    life = waiting(tmp_path, in_place=True)
    job = life.attempt.job
    watched(life, 59)
    assert (life.attempt.size, life.attempt.job) == (4, job)
    until_size(life, 3)

    assert (sizes(life), life.attempt.job, life.run.retries) == ([0, 3], job, 1)
    assert len(life.attempt.nodes) == 3
    assert "queue.moved" not in life.kinds()
    assert life.kinds().count("resize.done") == 1


@pytest.mark.parametrize(
    "point", ["record:after:resize.intended", "resize:before", "resize:after", "record:after:resize.done"]
)
@pytest.mark.parametrize("starts", [False, True], ids=["waits", "starts"])
def test_whoever_dies_while_a_job_is_made_smaller_is_followed_by_one_who_knows_its_size(
    tmp_path: Path, point: str, starts: bool
) -> None:
    """Slurm is asked what became of it; where the job has started meanwhile, its nodes tell."""
    life = waiting(tmp_path, in_place=True)
    job = life.attempt.job

    def die(name: str) -> None:
        if name == point:
            raise PlannedCrash(name)

    life.supervisor.services.crash = die
    with pytest.raises(PlannedCrash):
        watched(life, 300)
    if starts:
        if point in ("record:after:resize.intended", "resize:before"):
            left(life, "n4")
        life.engine.advance(5.0)
    life.begin_anew()
    life.until("running")
    life.live(5)

    wanted = 4 if starts and point in ("record:after:resize.intended", "resize:before") else 3
    assert (life.attempt.job, life.attempt.size, len(life.attempt.nodes)) == (job, wanted, wanted)
    assert life.attempt.resizing == 0


def test_what_nobody_heard_is_asked_for(tmp_path: Path) -> None:
    """An update whose answer was lost is looked up, and done where it was not."""
    life = waiting(tmp_path, in_place=True)
    really, calls = life.cluster.reshape, []

    def lost(job_id: str, *, nodes: int, tasks: int, cpus: int) -> None:
        calls.append(nodes)
        if len(calls) == 1:
            raise OutcomeUnknown("Socket timed out on send/recv operation", exit_code=1)
        really(job_id, nodes=nodes, tasks=tasks, cpus=cpus)

    life.cluster.reshape = lost  # type: ignore[method-assign]
    until_size(life, 3)
    assert calls == [3, 3]
    assert sizes(life) == [0, 3]


def test_a_size_that_slurm_does_not_take_in_the_queue_is_submitted_anew(tmp_path: Path) -> None:
    """BadConstraints after the change is no verdict on the size: another job asks for the same one."""
    life = waiting(tmp_path, in_place=True)

    def spoil(name: str) -> None:
        if name == "resize:after":
            life.engine.jobs[int(life.attempt.job)].excluded = tuple(f"n{i}" for i in range(5))

    life.supervisor.services.crash = spoil
    for _ in range(200):
        watched(life, 1)
        job = life.engine.jobs[int(life.attempt.job)]
        if life.attempt.resized and job.state is JobState.PENDING and "queue.moved" not in life.kinds():
            job.reason = "BadConstraints"
    assert sizes(life) == [0, 3, 3]
    assert life.run.state.value == "running"


def test_the_clock_of_the_queue_survives_a_supervisor(tmp_path: Path) -> None:
    """Who comes after goes on from what was noted: many restarts cost no run its patience."""
    life = waiting(tmp_path, sizes="", on_queue_timeout="stop", queue_timeout=400.0)
    for _ in range(5):
        watched(life, 90)
        life.begin_anew()
        if life.run.state.value == "stopped":
            break
    life.until("stopped", within_s=120.0)
    assert "longer than queue-timeout" in life.run.final_reason


def test_no_time_passes_in_the_queue_while_slurm_is_silent(tmp_path: Path) -> None:
    """Nobody waits for nodes then."""
    life = waiting(tmp_path, sizes="", on_queue_timeout="stop", queue_timeout=200.0)
    watched(life, 50)
    life.engine.set_controller("down")
    watched(life, 600)
    life.engine.set_controller("up")
    watched(life, 100)
    assert life.run.state.value == "queued"
    life.until("stopped", within_s=120.0)


def test_a_job_that_starts_before_it_is_taken_out_is_the_run(tmp_path: Path) -> None:
    """The move is forgotten, and a person's cancel afterwards is a person's."""
    life = waiting(tmp_path)

    def start(name: str) -> None:
        if name == "record:after:queue.moved":
            left(life, "n4")
            life.engine.advance(2.0)

    life.supervisor.services.crash = start
    for _ in range(120):
        life.live()
    assert (life.run.state.value, sizes(life)) == ("running", [0, 4])
    life.engine.end(life.engine.jobs[int(life.attempt.job)], JobState.CANCELLED)
    life.until("stopped")
    assert "cancelled" in life.run.final_reason


def test_a_person_who_cancels_in_the_queue_is_heard(tmp_path: Path) -> None:
    """Also in the moment of a move."""
    life = waiting(tmp_path)

    def cancel(name: str) -> None:
        if name == "record:after:queue.moved":
            life.engine.end(life.engine.jobs[int(life.attempt.job)], JobState.CANCELLED)

    life.supervisor.services.crash = cancel
    life.until("stopped")
    assert "by a person" in life.run.final_reason
    assert sizes(life) == [0, 4]


def test_a_fault_that_the_new_size_provokes_sends_the_run_back(tmp_path: Path) -> None:
    """A bug that only three nodes have is not the script's: the size is put aside, the run waits for four or takes two."""
    life = elastic(tmp_path)
    life.until("running")
    life.train(1, 5)
    crash(life, "n3")
    until_size(life, 3)
    life.say(*BUG)
    life.exit(1)
    until_size(life, 2)

    assert life.run.sizes_aside == (3,)
    life.train(6, 8)
    life.say(*BUG)
    life.exit(1)
    life.until("stopped")
    assert "trying again cannot succeed" in life.run.final_reason


def test_a_run_that_may_not_wait_longer_is_stopped_with_its_checkpoint_named(tmp_path: Path) -> None:
    """`on-queue-timeout=stop` is said with the reason, and nothing is left in the queue."""
    life = elastic(tmp_path, nodes=5, sizes="", on_queue_timeout="stop", queue_timeout=100.0)
    taken(life, "n4")
    life.until("running")
    crash(life, "n3")
    life.until("stopped")

    assert "longer than queue-timeout" in life.run.final_reason
    assert "no complete checkpoint is known" in life.run.final_reason
    assert life.living() == []


@pytest.mark.parametrize(("chosen", "notices"), [("wait", 1), ("", 1), ("notify", 3)])
def test_who_waits_is_told_of_it(tmp_path: Path, chosen: str, notices: int) -> None:
    """Once, or at every further time-out."""
    life = waiting(tmp_path, sizes="", on_queue_timeout=chosen, queue_timeout=100.0)
    watched(life, 395)

    assert sum("waits in the queue" in message for message in life.run.warnings) == notices


def test_a_reason_that_time_does_not_resolve_is_an_error(tmp_path: Path) -> None:
    """Not a wait; but only after it stood for a while."""
    life = elastic(tmp_path, nodes=5, sizes="")
    taken(life, "n4")
    life.until("running")
    life.launches[-1].exit(0, 9)
    taken(life, "n3")
    life.until("queued")
    job = life.engine.jobs[int(life.attempt.job)]
    for _ in range(20):
        job.reason = "PartitionConfig"
        life.live()
    assert life.run.state.value == "queued"
    for _ in range(30):
        job.reason = "PartitionConfig"
        life.live()
    assert "PartitionConfig" in life.run.final_reason


def test_nodes_that_alone_keep_a_job_from_starting_are_given_back(tmp_path: Path) -> None:
    """What Slurm cannot place gets its excluded nodes back."""
    life = elastic(tmp_path, nodes=6, sizes="", words=("-x", "n5"))
    life.until("running")
    life.train(1, 5)
    crash(life, "n3")
    taken(life, "n4")
    life.until("queued")
    job = life.engine.jobs[int(life.attempt.job)]
    assert set(job.excluded) == {"n3", "n5"}
    for _ in range(12):
        job.reason = "BadConstraints"
        life.live()

    assert set(job.excluded) == {"n5"}
    assert any("no longer kept off n3" in message for message in life.run.warnings)


@pytest.mark.parametrize("aside", [(), (4,)])
def test_a_new_job_does_not_take_the_size_that_a_growth_ran_into(
    tmp_path: Path, aside: tuple[int, ...]
) -> None:
    """Though enough nodes are idle for it; else it is the full one again, as soon as it can be had."""
    life = elastic(tmp_path, nodes=6)
    life.until("running")
    life.train(1, 5)
    nodes = tuple(life.engine.nodes)
    run = replace(life.run, sizes_aside=aside)
    world = SimpleNamespace(nodes={})
    ctx: Any = SimpleNamespace(run=run, attempt=life.attempt, settings=run.settings, snapshot=world)
    view = ClusterView(nodes, frozenset(nodes), frozenset(nodes))
    size = resubmit.next_size_and_spares(ctx, view, ())[0]

    assert size == (3 if aside else 4)
