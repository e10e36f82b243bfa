"""Lives in which one law alone stands between a run and its ruin: without it, the life breaks; each is a plan, not luck.

Whoever takes a safeguard out of the product finds it here: a stray looked for, a submission looked up, the lease proven, a
missing row waited for, a checkpoint set aside, a token kept.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.plan import (
    HiddenRows,
    JobFault,
    Outage,
    PersonAct,
    Plan,
    Stall,
    SubmitFault,
    SupervisorFault,
)
from tests.simulation.world import World, live

OFTEN = (("poll", 2.0),)
# Two nodes, both needed: attempt 2 waits in the queue until the broken one is mended.
WAITS_FOR_A_NODE = Plan(
    1, nodes=2, steps=10, requeue=False, job=(JobFault("crash", 6, 1, 300.0),), settings=OFTEN
)
AFTER_SBATCH = 7  # the step of `ftrun sbatch` that writes down the answer
KILLED = Plan(2, nodes=4, steps=10, job=(JobFault("kill", 6, 0, 0.0),), settings=OFTEN)


def _lives(plan: Plan, end: str = "finished") -> World:
    """A life that keeps the laws and ends as it should."""
    outcome, broken, world = live(plan)
    assert not broken
    assert outcome == end
    return world


# ---------------------------------------------------------------------- submissions and their tokens


@pytest.mark.parametrize(("kind", "late_s"), [("unheard", 0.0), ("late", 25.0)])
def test_a_submission_without_an_answer_is_looked_up(kind: str, late_s: float) -> None:
    """A job that Slurm took although it said nothing is the attempt: it is found by its token, neither doubled nor cancelled."""
    world = _lives(replace(WAITS_FOR_A_NODE, submits=(SubmitFault(2, kind, late_s),)))

    assert list(world.laws.submitted.values()) == [1, 1]
    assert world.laws.jobs_seen() == ["attempt 1", "attempt 2"]


@pytest.mark.parametrize("at", ["record:after:submit.intended", "submit:before", "submit:after"])
def test_a_token_outlives_the_supervisor_that_made_it(at: str) -> None:
    """Whoever dies around sbatch: the next supervisor asks for the job by the very token that was to be submitted."""
    died = SupervisorFault("crash", 1, 15.0, at_name=at)

    world = _lives(replace(WAITS_FOR_A_NODE, supervisors=(died,)))

    assert set(world.laws.submitted.values()) == {1}
    assert len(world.laws.jobs_seen()) == len(world.laws.submitted)


def test_a_first_submission_is_adopted_from_a_front_that_died() -> None:
    """`ftrun sbatch` that dies between sbatch and its record leaves a job, and the supervisor takes the run over with it."""
    world = _lives(Plan(3, nodes=4, steps=60, front_dies_at=AFTER_SBATCH, settings=OFTEN))

    assert world.laws.jobs_seen() == ["attempt 1"]


# ---------------------------------------------------------------------- strays


def test_a_second_job_of_an_old_attempt_never_trains_beside_the_next_one() -> None:
    """Before each submission the run's token is looked for: what sbatch made twice is cancelled, even where no claim can be seen."""
    spare = (Outage(2, "crash", 0.0, 25.0), Outage(3, "crash", 0.0, 25.0))
    copied = (SubmitFault(1, "copied", 15.0),)

    _lives(replace(KILLED, steps=30, submits=copied, outages=spare, blind_nodes_s=(20.0, 60.0)))


def test_a_late_second_job_is_cancelled_while_the_next_attempt_trains() -> None:
    """Strays are looked for while an attempt lives, too: on nodes that see no claim this one would train beside attempt 2."""
    drained = (Outage(0, "drain", 40.0, 60.0),)  # until then it can only wait
    copied = (SubmitFault(1, "copied", 50.0),)

    world = _lives(replace(KILLED, steps=30, submits=copied, outages=drained, blind_nodes_s=(49.0, 200.0)))

    assert world.laws.jobs_seen() == ["attempt 1", "attempt 2", "attempt 1"]
    assert len(world.laws.starts) == 2


def test_a_finished_run_leaves_no_second_job_in_the_queue() -> None:
    """Where sbatch made two jobs, the end of the one is the end of both."""
    drained = (Outage(0, "drain", 20.0, 3000.0),)  # the job goes on there, and no other may start

    world = _lives(
        Plan(4, nodes=2, steps=10, submits=(SubmitFault(1, "copied", 15.0),), outages=drained, settings=OFTEN)
    )

    assert world.laws.jobs_seen() == ["attempt 1", "attempt 1"]


def test_a_late_job_of_an_abandoned_submission_is_cancelled() -> None:
    """Nobody waits for it any more: it must not wait for a node, either."""
    lost = (Outage(0, "crash", 0.0, 3000.0),)

    world = _lives(
        Plan(5, nodes=2, steps=10, submits=(SubmitFault(1, "late", 60.0),), outages=lost, settings=OFTEN),
        end="stopped",
    )

    assert world.laws.jobs_seen() == ["attempt 1"]


def test_a_late_job_of_an_abandoned_run_that_is_only_watched_is_left_alone() -> None:
    """With `observe` nothing is ever ended by ftrun, be it a job that nobody waits for any more."""
    late = (SubmitFault(1, "late", 60.0),)

    _, broken, world = live(Plan(5, nodes=2, steps=10, submits=late, settings=(*OFTEN, ("observe", True))))

    assert not broken
    assert world.laws.exited


# ---------------------------------------------------------------------- the lease


@pytest.mark.parametrize(
    "before",
    ["record:after:attempt.closed", "record:after:attempt.opened", "record:after:submit.intended"],
)
def test_who_lost_the_lease_in_mid_step_carries_out_nothing(before: str) -> None:
    """A process that stood still for less than a look is old, and longer than its lease, wakes up and does not act."""
    stands_still = (SupervisorFault("pause", 1, 9.5, at_name=before),)

    world = _lives(
        replace(KILLED, supervisors=stands_still, second_at_s=6.0, settings=(*OFTEN, ("lease", 8.0)))
    )

    assert set(world.laws.submitted.values()) == {1}


def test_who_cannot_renew_the_lease_stops_acting_before_another_may_begin() -> None:
    """Half a term without a renewal is the end of acting, although the loop goes on and nobody has taken over yet."""
    stall = (Stall(22.5, 13.0),)

    _lives(replace(KILLED, stalls=stall, settings=(*OFTEN, ("lease", 16.0))))


def test_a_higher_epoch_ends_the_right_to_act_at_once() -> None:
    """Whoever took the lease, and however fresh the own renewal is: before each effect the epoch is read again."""
    slow = (SupervisorFault("slow", 1, 5.0, at_name="record:after:attempt.opened"),)

    _lives(replace(KILLED, supervisors=slow, usurped_at_s=33.0))


def test_what_was_seen_too_long_ago_is_not_acted_on() -> None:
    """Who stood still while the lease was kept looks again before anything is ended: the requeued job trains by now."""
    slow = (SupervisorFault("slow", 1, 60.0, at_name="record:after:cancel.intended"),)
    lost = (JobFault("crash", 6, 1, 300.0),)

    world = _lives(replace(KILLED, nodes=6, steps=20, job=lost, supervisors=slow))

    assert {start.launch.restarts for start in world.laws.starts} == {0, 1}


# ---------------------------------------------------------------------- rows that are missing


def test_a_job_that_no_answer_shows_for_a_while_is_not_over() -> None:
    """A missing row is unknown: only a minute of absence, from the first to the last answer, is an end (P6)."""
    world = _lives(replace(KILLED, job=(), steps=30, hidden=(HiddenRows(30.0, 50.0, "all"),)))

    assert len(world.laws.starts) == 1


def test_a_job_that_its_token_finds_is_not_over_however_long_its_row_is_missing() -> None:
    """Slurm drops the row of a living job from an answer; asked by token, it shows it."""
    world = _lives(replace(KILLED, job=(), steps=60, hidden=(HiddenRows(10.0, 200.0, "look"),)))

    assert len(world.laws.starts) == 1


def test_a_row_that_is_missing_now_and_then_adds_up_to_nothing() -> None:
    """Two short absences with the job in between are no long one."""
    twice = (HiddenRows(20.0, 40.0, "all"), HiddenRows(66.0, 40.0, "all"))

    world = _lives(replace(KILLED, job=(), steps=40, hidden=twice))

    assert len(world.laws.starts) == 1


# ---------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("torn", [1, 2])
def test_a_checkpoint_that_cannot_be_loaded_is_left_out_by_the_next_attempt(torn: int) -> None:
    """What a start failed to load is set aside, one after the other, until one is whole; training goes on from that."""
    world = _lives(
        Plan(6, steps=12, save_every=3, job=(JobFault("torn", 8, 0, 0.0), JobFault("torn", 9, 0, 0.0))[:torn])
    )

    assert len(world.laws.unloadable) == torn
    assert world.laws.starts[-1].began_from == 6  # the last whole one


# ---------------------------------------------------------------------- what a person asks for


def test_a_run_that_was_stopped_while_its_job_waited_goes_on_when_it_is_resumed() -> None:
    """The cancel of the requeued job was ftrun's, on request: nobody takes it for a person's word against going on."""
    lost = (JobFault("crash", 6, 1, 300.0),)

    world = _lives(replace(KILLED, nodes=2, job=lost, people=(PersonAct("stop", 35.0),), resume_after_s=10.0))

    assert world.laws.resumed_times == 1


@pytest.mark.parametrize("kind", ["crash", "pause"])
@pytest.mark.parametrize("at", ["record:after:run.resumed", "record:after:request.seen"])
def test_a_request_to_resume_outlives_the_supervisor_that_read_it(kind: str, at: str) -> None:
    """Whoever dies or stands still between the two records of a resume: the run goes on, once."""
    hurt = SupervisorFault(kind, 2 if at.endswith("seen") else 1, 60.0, at_name=at)

    world = _lives(
        replace(
            KILLED,
            people=(PersonAct("cancel", 10.0),),
            resume_after_s=10.0,
            supervisors=(hurt,),
            second_at_s=6.0,
        )
    )

    resumed = [record for record in world.laws.told if record["kind"] == "run.resumed"]
    assert len(resumed) == 1


def test_a_resumed_run_does_not_begin_with_the_checkpoint_that_stopped_it() -> None:
    """What could not be loaded when the retries ended is set aside then, so that a person's resume starts from a whole one."""
    plan = Plan(7, steps=12, save_every=3, job=(JobFault("torn", 8, 0, 0.0),), resume_after_s=30.0)

    world = _lives(replace(plan, settings=(*OFTEN, ("retries", 1))))

    assert world.laws.resumed_times == 1
    assert [start.began_from for start in world.laws.starts] == [0, 0, 6]


@pytest.mark.parametrize("chosen", [("observe", True), ("retries", 0)])
@pytest.mark.parametrize("kind", ["xid", "hang-exit", "crash", "torn", "preempt", "hold-launch"])
def test_a_run_that_is_only_watched_is_left_to_slurm(chosen: tuple[str, object], kind: str) -> None:
    """With `observe` or `retries=0` ftrun diagnoses what fails, submits nothing, ends nothing and drains nothing."""
    plan = replace(KILLED, job=(JobFault(kind, 6, 1, 60.0),), settings=(*OFTEN, chosen))

    _, broken, world = live(plan)

    assert not broken
    assert list(world.laws.submitted.values()) == [1]


def test_what_a_person_cancelled_before_anyone_knew_of_it_is_not_brought_back() -> None:
    """P5: sbatch was acknowledged, nobody wrote it down, a person cancelled the waiting job and Slurm forgot it: a person decides."""
    died = SupervisorFault("crash", 1, 250.0, at_name="submit:after")

    world = _lives(
        replace(WAITS_FOR_A_NODE, supervisors=(died,), people=(PersonAct("scancel", 110.0),)), end="stopped"
    )

    assert world.laws.jobs_seen() == ["attempt 1", "attempt 2"]
    assert world.laws.person_ended


# ---------------------------------------------------------------------- trainings that diverge

DIVERGES = Plan(
    8,
    steps=24,
    save_every=4,
    sick_steps=6,
    judged=True,
    job=(JobFault("diverge", 14, 0, 0.0),),
    settings=OFTEN,
)


@pytest.mark.parametrize("agent", [False, True])
@pytest.mark.parametrize("judge", ["structure", "name"])
def test_what_a_diverged_training_saved_is_never_loaded(judge: str, agent: bool) -> None:
    """It wrote whole checkpoints with nothing in them that is a number: the next start goes back behind the last healthy step, once, and finishes."""
    plan = replace(DIVERGES, agent=agent, settings=(*OFTEN, ("checkpoint-verify", judge)))

    world = _lives(plan)

    assert [start.began_from for start in world.laws.starts] == [0, 12]
    assert [start.attempt for start in world.laws.starts] == ([1, 1] if agent else [1, 2])
    known = [record for record in world.laws.told if record["kind"] == "checkpoint.poisoned"]
    assert [(14, 13)] == [(record["data"]["step"], record["data"]["before_step"]) for record in known]


@pytest.mark.parametrize("judge", ["structure", "name"])
def test_what_is_saved_anew_after_a_divergence_is_good(judge: str) -> None:
    """The second start writes checkpoints of the same steps: a fault after that costs the steps since the last of them, and no more."""
    job = (*DIVERGES.job, JobFault("kill", 22, 0, 0.0))
    plan = replace(DIVERGES, job=job, settings=(*OFTEN, ("checkpoint-verify", judge)))

    assert [0, 12, 20] == [start.began_from for start in _lives(plan).laws.starts]


@pytest.mark.parametrize("agent", [False, True])
def test_a_training_that_diverges_at_the_same_step_again_is_stopped(agent: bool) -> None:
    """It is in the data or the code: one try from an older checkpoint shows that, and no more are made."""
    world = _lives(
        replace(DIVERGES, agent=agent, job=(JobFault("diverge-again", 14, 0, 0.0),)), end="stopped"
    )

    assert "the same failure twice at step 14" in world.laws.told[-1]["data"]["reason"]
    assert [start.began_from for start in world.laws.starts] == [0, 12]


@pytest.mark.parametrize("fault", ["crash", "kill", "preempt"])
def test_a_fault_that_comes_while_a_training_is_sick_does_not_hide_it(fault: str) -> None:
    """Whatever ended the start, its log had said that the losses were no numbers."""
    job = (*DIVERGES.job, JobFault(fault, 17, 1, 200.0))
    plan = replace(DIVERGES, steps=30, sick_steps=9, nodes=6, requeue=False, job=job)

    world = _lives(plan)

    assert [start.began_from for start in world.laws.starts][:2] == [0, 12]


@pytest.mark.parametrize("fresh", [False, True])
def test_nothing_to_load_is_said_and_not_begun_anew(fresh: bool) -> None:
    """Where every checkpoint is spoilt the run stops, unless its user said that it may begin from nothing."""
    plan = replace(
        DIVERGES,
        save_every=5,
        job=(JobFault("diverge", 4, 0, 0.0),),
        settings=(*OFTEN, ("checkpoint-fresh", fresh)),
    )

    world = _lives(plan, end="finished" if fresh else "stopped")

    assert fresh or "none of 1 checkpoints may be loaded" in world.laws.told[-1]["data"]["reason"]


def test_a_torn_checkpoint_is_seen_before_a_start_fails_on_it() -> None:
    """The judge passes it over, so it costs no start; with the names alone it costs one."""
    plan = Plan(6, steps=12, save_every=3, judged=True, job=(JobFault("torn", 8, 0, 0.0),), settings=OFTEN)

    assert [0, 6] == [start.began_from for start in _lives(plan).laws.starts]
    by_name = _lives(replace(plan, settings=(*OFTEN, ("checkpoint-verify", "name"))))
    assert 1 == len(by_name.laws.unloadable)
