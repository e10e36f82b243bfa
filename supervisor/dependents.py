"""Jobs of the same user that wait for a job of this run: what waits for an attempt waits for the run (P5). (I/O)

How it thinks. Where ftrun ends an attempt its dependents are held first, so that an end of ours sets nobody off; once the
next attempt has a job, they wait for that one and are released. While a run is paused they stay held. Both steps do no harm when done twice, and are done
again after a crash until the journal says that they are done. A dependent that is gone, or that somebody changed in the
meantime, is told and never holds the run up.

An id alone is no identity, the dependents' own as little as ours: one that has another time of submission by now is another job and is
left alone, and what waits for an old id of ours that is another job's by now waits for that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from ftrun.slurm.client.errors import OutcomeUnknown, RefusedForGood, RefusedForNow, Unreachable
from ftrun.supervisor import context
from ftrun.supervisor.lifecycle import State
from ftrun.supervisor.rows import base_id, own

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import Cluster, JobRow
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World
    from ftrun.supervisor.run_types import Run

__all__ = ["are_left", "hold", "let_go", "move", "to_hold"]

AGAIN_AFTER_S = 15.0


def hold(keeper: Keeper, world: World) -> None:
    """Before an end that is ours: hold what waits for this attempt's job. Not where a person cancels: that end is meant."""
    if keeper.run.wish == "cancel":
        return
    cluster = keeper.office.cluster
    if not keeper.attempt.dependents_held:
        waiting, since = to_hold(cluster, keeper.attempt.job)
        if not waiting:
            return
        keeper.record("dependents.held", jobs=sorted(waiting), waits=waiting, since=since)
    for job in _still_they(keeper, keeper.attempt.dependents_held):
        _try(keeper, world, "hold", job, partial(cluster.hold, job))


def to_hold(cluster: Cluster, job: str) -> tuple[dict[str, str], dict[str, float]]:
    """What waits for this job and may be held: job -> the whole of what it waits for; and since when each is submitted. Raises SlurmError."""
    waiting = dict(cluster.dependents(job))
    shown = cluster.jobs(waiting) if waiting else {}
    for row in shown.values():
        if "JobHeld" in row.reason:  # by a person, who alone may release it; nothing sets it off
            waiting.pop(row.raw_job_id, None)
            waiting.pop(row.job_id, None)
    since = _submitted(shown.values())
    return waiting, {job: since[job] for job in waiting if job in since}


def _submitted(shown: Iterable[JobRow]) -> dict[str, float]:
    """Id -> time of submission, under every name that a job goes by. (pure)"""
    names: dict[str, float] = {}
    for row in shown:
        if row.submit_time_s is not None:
            names |= dict.fromkeys((row.job_id, row.raw_job_id, base_id(row.job_id)), row.submit_time_s)
    return names


def _still_they(keeper: Keeper, jobs: Iterable[str]) -> list[str]:
    """Those of the jobs that we hold which are not other ones by now. What Slurm does not show is left to it. Raises SlurmError."""
    since = {job: at for attempt in keeper.run.attempts for job, at in attempt.dependents_since.items()}
    known = [job for job in jobs if job in since]
    shown = _submitted(keeper.office.cluster.jobs(known).values()) if known else {}
    return [job for job in jobs if job not in since or shown.get(job, since[job]) == since[job]]


def move(keeper: Keeper, world: World) -> None:
    """Once attempt n has a job: what still waits for an earlier one waits for this one from now on."""
    attempt = keeper.attempt if keeper.run.attempt else None
    if attempt is None or attempt.number == 1 or attempt.dependents_moved or not attempt.job:
        return
    if keeper.run.state not in (State.QUEUED, State.RUNNING, State.SUSPECT):
        return
    if not keeper.memory.due(f"dependents:{attempt.number}", world.mono_s, AGAIN_AFTER_S):
        return
    moved: set[str] = set()
    who = f"what waits for {keeper.run.id}"
    try:
        for old in _earlier_jobs(keeper):
            moved |= _move_from(keeper, world, old)
        moved |= _release(keeper, world)
    except (Unreachable, OutcomeUnknown) as error:
        keeper.office.unseen(error.message, who=who, run=keeper.run.id)
        return
    keeper.office.seen(who=who, run=keeper.run.id)
    keeper.record("dependents.moved", jobs=sorted(moved), to=attempt.job)


def let_go(keeper: Keeper, world: World) -> None:
    """The run is over: what was held for a next attempt meets the end as it is."""
    if _held(keeper.run):
        keeper.record("dependents.moved", jobs=sorted(_release(keeper, world)), to="")


def are_left(run: Run) -> bool:
    """Whether a run is over and not paused, and what waited for it is held still."""
    return run.final and not run.paused and bool(_held(run))


def _held(run: Run) -> set[str]:
    return {job for attempt in run.attempts for job in attempt.dependents_held}


def _earlier_jobs(keeper: Keeper) -> list[str]:
    """The jobs for which something may still wait: from the last attempt that took over the others' dependents."""
    earlier = keeper.run.attempts[:-1]
    since = max((i for i, a in enumerate(earlier) if a.dependents_moved), default=0)
    return sorted({a.job for a in earlier[since:] if a.job} - {keeper.attempt.job})


def _move_from(keeper: Keeper, world: World, old: str) -> set[str]:
    """Also what was held: Slurm may call its dependency fulfilled by now, so it is set anew from what was written down."""
    cluster, new = keeper.office.cluster, keeper.attempt.job
    written = {
        job: text for a in keeper.run.attempts if a.job == old for job, text in a.dependents_held.items()
    }
    written = {job: written[job] for job in _still_they(keeper, written)}
    live = {} if _is_anothers(keeper, old) else cluster.dependents(old)
    done = set()
    for job, text in sorted({**written, **live}.items()):
        deed = partial(cluster.set_dependency, job, context.replace_job(text, old, new))
        if _try(keeper, world, "dependency", job, deed):
            done.add(job)
    return done


def _is_anothers(keeper: Keeper, old: str) -> bool:
    """The id of an attempt that is over belongs to another job now. Raises SlurmError."""
    shown = [row for row in keeper.office.cluster.jobs((old,)).values() if base_id(row.job_id) == old]
    user, mine = keeper.run.submitter.get("user", ""), [a for a in keeper.run.attempts if a.job == old]
    return bool(shown) and not any(own(shown, attempt, user=user) for attempt in mine)


def _release(keeper: Keeper, world: World) -> set[str]:
    cluster = keeper.office.cluster
    return {
        job
        for job in _still_they(keeper, sorted(_held(keeper.run)))
        if _try(keeper, world, "release", job, partial(cluster.release, job))
    }


def _try(keeper: Keeper, world: World, name: str, job: str, deed: Callable[[], None]) -> bool:
    """One effect on a dependent. False where Slurm refused it, which is told. Raises Unreachable, OutcomeUnknown."""
    try:
        keeper.office.act(name, world, deed)
    except (RefusedForGood, RefusedForNow) as error:
        told = {"hold": "held", "dependency": "moved to the new attempt", "release": "released"}[name]
        keeper.record(
            "warned", message=f"job {job}, which depends on this run, could not be {told}: {error.message}"
        )
        return False
    return True
