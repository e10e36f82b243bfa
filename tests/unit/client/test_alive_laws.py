"""Laws of a live attempt that looks broken: what a fatal line may end, and what it may not (P7)."""

from __future__ import annotations

from pathlib import Path

from ftrun.slurm.client.cluster import JobState
from tests.fake_slurm import faults
from tests.unit.lives import TIMED_OUT, Life


def test_a_node_lost_right_after_a_fatal_line_is_not_waited_for(tmp_path: Path) -> None:
    """P7: a fatal line, one step that may have been under way, and no progress for `fault-grace`: the run
    need not wait for Slurm to give the lost node up; and the blame is the node's, not the line's.
    """
    life = Life(tmp_path, fault_grace=20.0)
    life.until("running")
    life.train(1, 10)
    life.say(TIMED_OUT, "step 11/100000 loss 0.5")
    life.live(2)
    lost = life.launches[0].nodes[1]
    life.engine.fail_node(lost, "crash")
    life.until("ending")
    assert life.engine.nodes[lost].down is False

    life.live(120)

    assert (life.run.incidents[0].fault, life.run.incidents[0].nodes) == ("node", (lost,))
    assert (life.run.state.value, life.attempt.number) == ("running", 2)


def test_a_fatal_line_that_was_survived_ends_nothing_when_a_node_is_lost_later(tmp_path: Path) -> None:
    """P7: once training went on the line is spent; the silence that follows is no hang, and Slurm speaks of the node."""
    life = Life(tmp_path, fault_grace=5.0)
    life.until("running")
    life.train(1, 10)
    life.say(TIMED_OUT)
    life.train(11, 14)
    life.engine.fail_node(life.launches[0].nodes[1], "crash")
    life.live(90)

    assert "end.intended" not in life.kinds()
    assert life.run.incidents[0].fault == "node"


def test_a_job_that_slurm_started_again_is_not_ended_for_want_of_retries(tmp_path: Path) -> None:
    """Law 1: with all retries used up, the requeued job that runs again by itself and shows no fault is left alone."""
    life = Life(tmp_path, retries=1)
    life.until("running")
    life.train(1, 5)
    life.say("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.")
    life.exit(1)
    life.until("queued")
    life.until("running")
    life.train(6, 9)
    life.say("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.")
    faults.requeue(life.engine, 2)
    life.until("settling")
    life.engine.jobs[2].begin_s = life.engine.now()
    life.engine.schedule_soon()
    life.engine.advance(3)
    assert life.engine.jobs[2].state is JobState.RUNNING

    life.live(30)

    assert (life.run.state.value, life.attempt.launch.number, life.living()) == ("running", 1, ["2"])
    assert life.run.retries == 1
