"""Companions of a run from outside of its job: who is seen gone, and who must be ended by the supervisor. (I/O)

How it thinks. Beside a live agent a companion is that agent's business (P8): here is only written down that Slurm has it no more. Once nobody else
can end it, the supervisor does: its launch is over, the run is, its job was ended by us, the agent that asked for it is dead and the start goes on
without it, or the agent gave it back and Slurm did not hear of that. It is announced, cancelled and noted like every effect, and asked for until it is gone.

A companion whose agent died between sbatch and its record has no id: it is found by its mark, which is looked for as long as an sbatch may be under way.
What comes later still harms nobody: its own script sees that nobody wants it, and runs nothing of the user's.

An id alone names no job (P1): only what bears the companion's mark is cancelled; where a site rewrites comments, what has the user and the name of the run's own job.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.client.errors import RefusedForGood
from ftrun.slurm.client.parse import bears
from ftrun.supervisor import store
from ftrun.supervisor.agent_events import JOB
from ftrun.supervisor.lifecycle import FINAL
from ftrun.supervisor.rows import base_id

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World
    from ftrun.supervisor.run_types import Attempt, Companion, Run

__all__ = ["ABSENT_FOR_S", "FIND_FOR_S", "are_left", "job_ids", "look", "unwanted"]

ABSENT_FOR_S = 60.0  # two answers that lack it must be this far apart (P6)
FIND_FOR_S = 30.0  # an sbatch of which nothing is known is looked for so long
FIND_EVERY_S = 3.0
AGAIN_EVERY_S = 30.0


def job_ids(run: Run) -> tuple[str, ...]:
    """The companions' jobs that Slurm is to be asked about. (pure)"""
    return tuple(one.job for _, one in _left(run) if one.job)


def are_left(run: Run) -> bool:
    """Companions that nobody else clears away are not known to be gone. (pure)"""
    return any(unwanted(run, attempt, one) for attempt, one in _left(run))


def unwanted(run: Run, attempt: Attempt, one: Companion, held: Collection[str] = ()) -> str:
    """Why the supervisor ends this companion; "" while that is not its business. `held` are its nodes as Slurm says, which nobody may have noted. (pure)"""
    if run.state in FINAL:
        return "the run is over"
    if (
        run.attempt is None
        or attempt.number != run.attempt.number
        or one.launch != attempt.launch.number
        or attempt.launch.requeued
    ):
        return "its launch is over"
    if attempt.launch.end.state or attempt.launch.over or attempt.closed:
        return "its launch is over"
    if attempt.end_intended and attempt.end_done:
        return f"job {attempt.job} was ended"
    brought = {*one.nodes, *(node for node in held if node not in attempt.nodes)}
    if attempt.launch.no_agent and not brought & set(attempt.used):
        return "the agent that asked for it is dead, and no start uses it"
    return ""


def look(keeper: Keeper, world: World) -> None:
    """Note what is gone, and end what nobody wants. Raises SlurmError, Stale, OSError (journal)."""
    for place in [_place(*found) for found in _left(keeper.run)]:
        # Whatever is noted of one makes the run anew.
        attempt, one = next(found for found in _left(keeper.run) if _place(*found) == place)
        if one.job and keeper.memory.due(f"companion-index:{one.job}", world.mono_s, float("inf")):
            store.index(keeper.office.home, one.job, keeper.run.id)
        row = _row(world, one)
        held = row.nodes if row is not None else ()
        why = unwanted(keeper.run, attempt, one, held) or _kept(keeper, world, one)
        if one.job:
            _follow(keeper, world, attempt, one, why)
        elif why:
            _search(keeper, world, attempt, one)


def _kept(keeper: Keeper, world: World, one: Companion) -> str:
    """Its agent has given it back and Slurm still has it: the agent's scancel was lost, and nothing else may reach it."""
    key = f"companion-kept:{one.mark}"
    if one.state not in ("ending", "ended"):
        keeper.memory.since.pop(key, None)
        return ""
    lasts = keeper.memory.for_how_long(key, world.mono_s) >= AGAIN_EVERY_S
    return "nobody wants it any more" if lasts else ""


def _left(run: Run) -> Iterator[tuple[Attempt, Companion]]:
    for attempt in run.attempts:
        for one in attempt.companions:
            if not one.gone:
                yield attempt, one


def _place(attempt: Attempt, one: Companion) -> tuple[int, int, int]:
    return attempt.number, one.launch, one.number


def _row(world: World, one: Companion) -> JobRow | None:
    return next((row for row in world.families.get(one.job, ()) if row.job_id == one.job), None)


def _follow(keeper: Keeper, world: World, attempt: Attempt, one: Companion, why: str) -> None:
    row = _row(world, one)
    if row is None:
        if _away(keeper, world, one):
            _note(keeper, "gone", attempt, one, state="", reason="Slurm does not know it any more")
        return
    keeper.memory.since.pop(f"companion-away:{one.mark}", None)
    if not _is_it(keeper, world, one, row):
        _note(keeper, "gone", attempt, one, state="", reason=f"job {one.job} is another one by now")
    elif row.state.ended:
        if not _twins(keeper, world, one):
            _note(keeper, "gone", attempt, one, state=row.state.value)
    elif why:
        if row.nodes and not one.nodes:  # whoever starts next must know where it was
            _note(keeper, "here", attempt, one, nodes=list(row.nodes))
        if row.state is not JobState.COMPLETING:
            _end(keeper, world, attempt, one, why)


def _away(keeper: Keeper, world: World, one: Companion) -> bool:
    """It is really gone: two answers far enough apart lack it, and its mark finds nothing alive. Raises SlurmError."""
    if keeper.memory.for_how_long(f"companion-away:{one.mark}", world.mono_s) < ABSENT_FOR_S:
        return False
    cluster = keeper.office.cluster
    return cluster.ping() and all(row.state.ended for row in cluster.find(one.mark))


def _twins(keeper: Keeper, world: World, one: Companion) -> bool:
    """Another job bears its mark, which nobody knows: sbatch was heard twice by a controller that answered late. It is cancelled, now and then
    until it is gone. Raises SlurmError."""
    cluster, key = keeper.office.cluster, f"companion-twins:{one.mark}"
    living = [row for row in cluster.find(one.mark) if bears(row.comment, one.mark) and not row.state.ended]
    twins = {base_id(row.raw_job_id or row.job_id) for row in living} - {one.job}
    if twins and keeper.memory.due(key, world.mono_s, AGAIN_EVERY_S):
        for job in sorted(twins):
            keeper.office.act("companion", world, functools.partial(cluster.cancel, job))
    return bool(twins)


def _is_it(keeper: Keeper, world: World, one: Companion, row: JobRow) -> bool:
    if bears(row.comment, one.mark):
        return True
    own = keeper.row(world) if keeper.run.attempt is not None else None
    known = keeper.attempt.known_as or ((own.user, own.name) if own is not None else ())
    rewritten = "ftrun:" not in row.comment and ":companion:" not in row.comment
    return rewritten and (row.user, row.name) == known


def _end(keeper: Keeper, world: World, attempt: Attempt, one: Companion, why: str) -> None:
    memory, key = keeper.memory, f"companion-end:{one.mark}"
    if one.state == "ended" and not memory.due(key, world.mono_s, AGAIN_EVERY_S):
        return
    if one.state not in ("ending", "ended"):
        keeper.office.fresh(world)
        _note(keeper, "ended.intended", attempt, one, reason=why)
    memory.since[key] = world.mono_s
    try:
        keeper.office.act("companion", world, lambda: keeper.office.cluster.cancel(one.job))
    except RefusedForGood as error:
        told = f"companion job {one.job} cannot be ended: {error.message}"
        if told not in keeper.run.warnings:
            keeper.record("warned", message=told)
        return
    if one.state != "ended":
        _note(keeper, "ended", attempt, one, reason=why)


def _search(keeper: Keeper, world: World, attempt: Attempt, one: Companion) -> None:
    """Its sbatch was announced and nobody noted an answer: it is found by its mark, or was never made. Raises SlurmError."""
    memory = keeper.memory
    since_s = memory.for_how_long(f"companion-search:{one.mark}", world.mono_s)
    if not memory.due(f"companion-find:{one.mark}", world.mono_s, FIND_EVERY_S):
        return
    found = [row for row in keeper.office.cluster.find(one.mark) if bears(row.comment, one.mark)]
    if found:
        job = base_id(found[0].raw_job_id or found[0].job_id)
        _note(keeper, "submitted", attempt, one, found=True, **{JOB: job})
    elif one.state in ("failed", "ended") or since_s >= FIND_FOR_S:  # then its agent knew the answer
        _note(keeper, "gone", attempt, one, state="", reason=one.reason or "no job bears its mark")


def _note(keeper: Keeper, step: str, attempt: Attempt, one: Companion, **data: Any) -> None:
    where = {"attempt": attempt.number, "launch": one.launch}
    about = {JOB: one.job, **data, "number": one.number}
    if step == "submitted":
        keeper.record("companion.submitted", **where, **about)
    elif step == "here":
        keeper.record("companion.here", **where, **about)
    elif step == "ended.intended":
        keeper.record("companion.ended.intended", **where, **about)
    elif step == "ended":
        keeper.record("companion.ended", **where, **about)
    else:
        keeper.record("companion.gone", **where, **about)
