"""The virtual Slurm: what it does beyond the contract, because simulations need it to go wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ftrun.slurm.client.cluster import JobState, SubmitRequest
from ftrun.slurm.client.errors import OutcomeUnknown, RefusedForGood, RefusedForNow, Unreachable
from tests.fake_slurm.cluster import Clock, Engine, Faults, MemoryCluster, Timing
from tests.fake_slurm.faults import crash_controller, hold_launch, preempt, requeue
from tests.fake_slurm.records import Launch

FAST = Timing(
    schedule_s=1,
    complete_s=1,
    kill_wait_s=5,
    slurmd_timeout_s=20,
    requeue_delay_s=10,
    min_job_age_s=60,
    register_s=3,
)


def machine(nodes: int = 4) -> tuple[Engine, MemoryCluster]:
    engine = Engine({"main": [f"n{number}" for number in range(nodes)]}, timing=FAST)
    return engine, MemoryCluster(engine, user="ann")


def submit(cluster: MemoryCluster, *argv: str, script: bytes | None = None) -> str:
    return cluster.submit(SubmitRequest("t", ("--comment=ftrun:t", *argv), script, {}, "/home/ann")).job_id


def state(engine: Engine, job_id: str) -> JobState:
    return engine.jobs[int(job_id)].state


def writer(lines: list[tuple[int, str, float]]) -> Callable[[Launch], None]:
    """Every rank writes a line each second: (restarts, node, time)."""

    def behaviour(launch: Launch) -> None:
        def beat(node: str) -> None:
            lines.append((launch.restarts, node, launch.now()))
            launch.after(1, lambda: beat(node), node)

        for node in launch.nodes:
            beat(node)

    return behaviour


def test_a_thawed_rank_writes_beside_the_new_launch() -> None:
    """A frozen node is given up, its job starts elsewhere, and after the thaw the old rank lives until its slurmd hears."""
    engine, cluster = machine()
    lines: list[tuple[int, str, float]] = []
    engine.script("", writer(lines))
    job_id = submit(cluster, "-N2")
    engine.advance(10)
    engine.fail_node("n1", "freeze")
    frozen_s = engine.now()
    engine.advance(60)
    assert engine.jobs[int(job_id)].nodes == ("n0", "n2")
    assert [line for line in lines if line[0] == 0 and line[1] == "n1" and line[2] > frozen_s] == []
    engine.mend_node("n1")
    thawed_s = engine.now()
    engine.advance(30)
    late = [line[2] - thawed_s for line in lines if line[0] == 0 and line[2] >= thawed_s]
    assert late
    assert max(late) <= FAST.register_s
    assert cluster.nodes(["n1"])["n1"].available


def test_a_dead_daemon_leaves_its_ranks_running() -> None:
    """The node is down for Slurm and the job requeued, but the old rank goes on until the daemon is back."""
    engine, cluster = machine()
    lines: list[tuple[int, str, float]] = []
    engine.script("", writer(lines))
    submit(cluster, "-N2")
    engine.advance(10)
    engine.fail_node("n1", "slurmd")
    engine.advance(100)
    assert (0, "n1", engine.now()) == max(line for line in lines if line[0] == 0)
    engine.mend_node("n1")
    engine.advance(10)
    assert max(line[2] for line in lines if line[0] == 0) <= engine.now() - 6


def test_a_job_without_requeue_fails_with_its_node_and_no_kill_goes_on_without_it() -> None:
    """NODE_FAIL for one, one node less for the other, be it the batch script's own."""
    engine, cluster = machine(6)
    fragile, tough, beheaded = (submit(cluster, "-N2", *argv) for argv in (["--no-requeue"], ["-k"], ["-k"]))
    engine.advance(5)
    for node in ("n1", "n3", "n4"):
        engine.fail_node(node, "crash")
    engine.advance(25)
    assert {"not_responding"} == cluster.nodes(["n1"])["n1"].flags
    engine.advance(15)
    assert cluster.nodes(["n1"])["n1"].state == "down"
    assert state(engine, fragile) is JobState.NODE_FAIL
    assert (state(engine, tough), engine.jobs[int(tough)].nodes) == (JobState.RUNNING, ("n2",))
    assert (state(engine, beheaded), engine.jobs[int(beheaded)].nodes) == (JobState.RUNNING, ("n5",))


def test_a_job_sent_to_a_dead_node_never_starts_there() -> None:
    """Slurm believes it runs until it misses the node; the script is not called."""
    engine, cluster = machine(2)
    started: list[float] = []
    engine.script("", lambda launch: started.append(launch.now()))
    engine.fail_node("n0", "crash")
    job_id = submit(cluster)
    engine.advance(5)
    assert state(engine, job_id) is JobState.RUNNING
    assert started == []
    engine.advance(60)
    assert len(started) == 1
    assert engine.jobs[int(job_id)].nodes == ("n1",)


def test_time_limit_preemption_and_requeue_have_their_states() -> None:
    """TIMEOUT, PREEMPTED or back in the queue; a requeue puts the submit time anew and waits out its delay."""
    engine, cluster = machine()
    late, taken, put_back, held = (submit(cluster, *argv) for argv in (["-t", "1"], [], [], []))
    engine.advance(5)
    preempt(engine, taken, cancel=True)
    preempt(engine, put_back)
    requeue(engine, held, hold=True)
    engine.advance(3)
    assert state(engine, taken) is JobState.PREEMPTED
    row = cluster.jobs([put_back])[put_back]
    assert (row.state, row.reason, row.restarts) == (JobState.PENDING, "BeginTime", 1)
    assert cluster.jobs([held])[held].reason == "job requeued in held state"
    cluster.release(held)
    engine.advance(62)
    assert state(engine, late) is JobState.TIMEOUT
    assert {state(engine, put_back), state(engine, held)} == {JobState.RUNNING}


def test_a_launch_that_failed_is_held_until_someone_looks() -> None:
    """Slurm's own words, and no start by itself."""
    engine, cluster = machine()
    job_id = submit(cluster)
    engine.advance(3)
    hold_launch(engine, job_id)
    engine.advance(100)
    row = cluster.jobs([job_id])[job_id]
    assert (row.state, row.reason) == (JobState.PENDING, "launch failed requeued held")
    cluster.release(job_id)
    engine.advance(5)
    assert state(engine, job_id) is JobState.RUNNING


def test_an_ended_job_is_forgotten_after_its_age() -> None:
    """Then it is missing, which says nothing about how it ended."""
    engine, cluster = machine()
    engine.script("", lambda launch: launch.exit(0))
    job_id = submit(cluster)
    engine.advance(30)
    assert cluster.jobs([job_id])[job_id].state is JobState.COMPLETED
    engine.advance(60)
    assert cluster.jobs([job_id]) == {}
    assert cluster.details(job_id) is None


def test_a_killed_controller_forgets_jobs_and_gives_their_ids_away() -> None:
    """What ran of the lost job goes on for a moment; the next submission gets its id."""
    engine, cluster = machine()
    lines: list[tuple[int, str, float]] = []
    engine.script("", writer(lines))
    kept, lost = submit(cluster), submit(cluster)
    engine.advance(5)
    crash_controller(engine, lose_last=1)
    with pytest.raises(Unreachable):
        cluster.jobs([kept])
    engine.advance(5)
    assert {line[1] for line in lines if line[2] > engine.now() - 2} == {"n0", "n1"}
    engine.set_controller("up")
    assert set(cluster.jobs([kept, lost])) == {kept}
    assert submit(cluster, "-H") == lost
    engine.advance(5)
    assert {line[1] for line in lines if line[2] > engine.now() - 1} == {"n0"}


def test_a_killed_controller_may_start_a_running_job_again() -> None:
    """It comes back as pending, with the same restart count, and runs a second time."""
    engine, cluster = machine()
    starts: list[int] = []
    engine.script("", lambda launch: starts.append(launch.restarts))
    job_id = submit(cluster)
    engine.advance(5)
    crash_controller(engine, lose_last=0, rewind=[int(job_id)])
    engine.set_controller("up")
    engine.advance(10)
    assert starts == [0, 0]


def test_what_happens_while_the_controller_is_away_is_heard_later() -> None:
    """A script that ends meanwhile is seen as ended when the controller is back, at its own exit code."""
    engine, cluster = machine()
    engine.script("", lambda launch: launch.after(10, lambda: launch.exit(4)))
    job_id = submit(cluster)
    engine.advance(5)
    engine.set_controller("down")
    engine.advance(60)
    engine.set_controller("up")
    engine.advance(3)
    details = cluster.details(job_id)
    assert details is not None
    assert (details.state, details.exit_code) == (JobState.FAILED, 4)


def test_calls_go_wrong_as_the_faults_say() -> None:
    """Each kind of bad luck by itself, with certainty."""
    engine, cluster = machine()
    job_id = submit(cluster, "-H")
    seen = cluster.jobs([job_id])
    cluster.cancel(job_id)
    cluster.faults = Faults(stale=1)
    assert cluster.jobs([job_id]) == seen
    cluster.faults = Faults(drop_row=1)
    assert cluster.jobs([job_id]) == {}
    cluster.faults = Faults(read_fails=1)
    with pytest.raises(Unreachable):
        cluster.nodes()
    cluster.faults = Faults(submit_busy=1)
    with pytest.raises(RefusedForNow):
        submit(cluster)
    counts = {}
    for fault in ("submit_unheard", "submit_lost"):
        cluster.faults = Faults(**{fault: 1.0})
        before = len(engine.jobs)
        with pytest.raises(OutcomeUnknown):
            submit(cluster, "-H")
        counts[fault] = len(engine.jobs) - before
    assert counts == {"submit_unheard": 1, "submit_lost": 0}
    cluster.faults = Faults(submit_late=1, late_s=20)
    before = len(engine.jobs)
    with pytest.raises(OutcomeUnknown):
        submit(cluster, "-H")
    engine.advance(19)
    assert len(engine.jobs) == before
    engine.advance(2)
    assert len(engine.jobs) == before + 1
    cluster.faults = Faults(submit_doubled=1)
    before = len(cluster.find("ftrun:t"))
    last = submit(cluster, "-H")
    assert len(cluster.find("ftrun:t")) == before + 2
    cluster.faults = Faults(effect_unheard=1)
    with pytest.raises(OutcomeUnknown):
        cluster.cancel(last)
    assert state(engine, last) is JobState.CANCELLED


def test_a_hung_controller_may_lose_what_it_was_sent() -> None:
    """Or carry it out when it goes on; the client cannot know. Calls take their time."""
    engine, _ = machine()
    spent: list[float] = []
    for takes, found in ((1.0, 1), (0.0, 0)):
        cluster = MemoryCluster(
            engine, faults=Faults(hung_takes=takes), spend=spent.append, user=f"user {takes}"
        )
        engine.set_controller("hung")
        with pytest.raises(OutcomeUnknown):
            submit(cluster, "-H")
        engine.set_controller("up")
        assert len(cluster.find("ftrun:t")) == found
    assert spent == [10.0, 10.0]


def test_users_see_but_do_not_touch_each_others_jobs() -> None:
    """And who may not drain is refused."""
    engine, cluster = machine()
    other = MemoryCluster(engine, user="bob", may_drain=False)
    job_id = submit(cluster, "-H")
    assert other.find("ftrun:t") == ()
    assert other.jobs([job_id])
    with pytest.raises(RefusedForGood):
        other.cancel(job_id)
    with pytest.raises(RefusedForGood):
        other.release(job_id)
    with pytest.raises(RefusedForGood):
        other.drain("n0", "ftrun: x")
    assert state(engine, job_id) is JobState.PENDING


def test_options_are_read_in_every_spelling_and_from_the_script() -> None:
    """Arguments win over `#SBATCH` lines, and the script's own arguments are not ours."""
    engine, cluster = machine()
    script = b"#!/bin/sh\n#SBATCH -N 3 --job-name=inner # why\n#SBATCH --no-requeue\n\necho\n#SBATCH -N4\n"
    job_id = submit(cluster, "-o", "x-%j", "--nodes", "2", "-xn[0-1]", "-H", "run.sh", "-N4", script=script)
    job = engine.jobs[int(job_id)]
    assert (job.node_count, job.name, job.requeue, job.held) == (2, "inner", False, True)
    assert (job.excluded, job.std_out) == (("n0", "n1"), f"/home/ann/x-{job_id}")


def test_the_same_seed_gives_the_same_story() -> None:
    """Faults, times and ids are repeated exactly."""

    def story() -> list[str]:
        engine = Engine({"main": ["n0", "n1"]}, timing=FAST, clock=Clock(0))
        engine.script("", lambda launch: launch.after(7, lambda: launch.exit(0)))
        cluster = MemoryCluster(engine, faults=Faults(stale=0.3, drop_row=0.3, submit_unheard=0.3), seed=42)
        told = []
        for _ in range(30):
            try:
                told.append(submit(cluster))
            except OutcomeUnknown as unknown:
                told.append(unknown.message)
            engine.advance(3)
            told.append(str(cluster.jobs([str(number) for number in range(40)])))
        return told

    assert story() == story()


def test_events_run_in_order_and_time_never_goes_back() -> None:
    """Also when an event itself lets time pass."""
    clock = Clock(100)
    order: list[tuple[str, float]] = []
    clock.after(5, lambda: order.append(("b", clock.now())))

    def slow() -> None:
        order.append(("a", clock.now()))
        clock.advance(10)

    clock.after(1, slow)
    assert clock.next_event_s() == 101
    clock.advance(3)
    assert order == [("a", 101), ("b", 105)]
    assert clock.now() == 111
    assert clock.advance_until(lambda: False, 5) is False
    assert clock.now() == 116
    assert clock.next_event_s() is None
