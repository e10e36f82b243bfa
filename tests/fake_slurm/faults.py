"""What goes wrong between a client and a virtual Slurm, and with its controller. (pure)"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.client.errors import RefusedForGood
from tests.fake_slurm.engine import Engine
from tests.fake_slurm.records import Job

__all__ = ["Faults", "crash_controller", "hold_launch", "preempt", "preempt_later", "quietly", "requeue"]


@dataclass(slots=True)
class Faults:
    """How often calls of one client go wrong: probabilities per call, 0 to 1, changeable at any time."""

    read_fails: float = 0.0  # Unreachable
    stale: float = 0.0  # jobs() and nodes() answer what they answered last time
    drop_row: float = 0.0  # one job's row is missing from an answer
    submit_unheard: float = 0.0  # OutcomeUnknown, and the job exists
    submit_late: float = 0.0  # OutcomeUnknown, and the job appears `late_s` later
    late_s: float = 30.0
    submit_lost: float = 0.0  # OutcomeUnknown, and it does not
    submit_busy: float = 0.0  # RefusedForNow
    submit_doubled: float = 0.0  # two jobs with one token; the id of the second is told
    effect_unheard: float = 0.0  # OutcomeUnknown, and it happened
    effect_lost: float = 0.0  # OutcomeUnknown, and it did not
    hung_takes: float = (
        1.0  # what is sent to a hung controller is carried out when it goes on (else it is lost)
    )


def crash_controller(engine: Engine, *, lose_last: int = 1, rewind: Collection[int] = ()) -> None:
    """kill -9 of the controller; it is down until `engine.set_controller("up")`.

    The `lose_last` newest jobs vanish although they were acknowledged, and their ids are given out again; 0 = none.
    Jobs in `rewind` come back as pending although they had started. What ran of both is killed when the daemons
    compare notes with the new controller.
    """
    engine.controller = "down"
    lost = sorted(engine.jobs, reverse=True)[:lose_last] if lose_last > 0 else []
    for number in lost:
        _forget(engine, engine.jobs.pop(number))
        engine.final.pop(number, None)
    if lost:
        engine.next_id = min(lost)
    for number in rewind:
        job = engine.jobs.get(number)
        if job is not None and job.state.live:
            _forget(engine, job)
            job.state, job.reason, job.nodes, job.start_s, job.end_s = (
                JobState.PENDING,
                "None",
                (),
                None,
                None,
            )

    def compare_notes() -> None:
        for node in engine.nodes.values():
            if not node.fault:
                engine.register_soon(node)

    engine.tell(compare_notes)


def _forget(engine: Engine, job: Job) -> None:
    for node in engine.nodes.values():
        node.jobs.discard(job.number)
    job.launch = None
    job.completing.clear()


def requeue(engine: Engine, job_id: int | str, *, hold: bool = False) -> None:
    """`scontrol requeue` or `requeuehold` by a person or the script itself; an ended job goes back into the queue too."""
    job = engine.jobs[int(job_id)]
    if hold:
        job.held, job.held_reason = True, "job requeued in held state"
    if job.state.ended:
        engine.requeue_ended(job)
    else:
        engine.end(job, JobState.PENDING)


def preempt(engine: Engine, job_id: int | str, *, cancel: bool = False) -> None:
    """Slurm takes a running job's nodes for another: requeued, or ended as PREEMPTED."""
    engine.end(engine.jobs[int(job_id)], JobState.PREEMPTED if cancel else JobState.PENDING, "Preempted")


def preempt_later(engine: Engine, job_id: int | str, grace_s: float, *, cancel: bool = False) -> None:
    """The same after a time of grace, which begins now: the job is RUNNING, and may leave by itself before."""
    job = engine.jobs[int(job_id)]
    launch, job.grace_end_s = job.launch, engine.now() + grace_s

    def end() -> None:
        if job.launch is launch and job.state is JobState.RUNNING:
            preempt(engine, job_id, cancel=cancel)

    engine.after(grace_s, lambda: engine.tell(end))


def hold_launch(engine: Engine, job_id: int | str) -> None:
    """The batch script could not be started on the node: the job is back in the queue, held, "launch failed requeued held"."""
    job = engine.jobs[int(job_id)]
    job.held, job.held_reason = True, "launch failed requeued held"
    engine.end(job, JobState.PENDING)


def quietly(change: Callable[[], None]) -> None:
    """What a hung controller does with a request when it goes on: nobody hears a refusal."""
    with suppress(RefusedForGood):
        change()
