"""A job that Slurm's answers lack: unknown at first, over when it stays away, and then what became of it. (I/O)

How it thinks. A missing row is no end (P6): two answers far enough apart must lack it while the controller is up, and
no job may bear its token. What it did last is then told by its own folder alone: the newest launch that it claimed is the
one that ended, be it one that no look at Slurm ever showed. Where the cluster has accounting, that is asked once then, and
its answer stands in for the row (see `archive`).

A job that claimed no start since it went into the queue never started. Slurm forgets what ended only after MinJobAge: if the
job was there a moment ago, the controller has lost it, and it is submitted again. If nobody looked for that long, it was
cancelled in the queue as far as anyone can tell, and a person's cancel is never undone (P5).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ftrun.slurm.client.parse import bears
from ftrun.supervisor import archive, attempts, ends, sense
from ftrun.supervisor import rows as rows_of

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World

__all__ = ["for_long", "latest_launch", "left_the_queue", "missed", "seen", "unseen"]

ABSENT_FOR_S = 60.0  # two answers that lack a job must be this far apart


def seen(keeper: Keeper, world: World, row: JobRow) -> None:
    """Slurm shows the job."""
    keeper.memory.partition = row.partition or keeper.memory.partition
    keeper.memory.seen_s = world.mono_s
    keeper.memory.absent_since_s = None


def missed(keeper: Keeper, world: World) -> None:
    """The job's row is missing: wait, and record its end once it is really gone. Raises SlurmError."""
    unseen(keeper, world)
    if not for_long(keeper, world):
        _adopt_another(keeper, world)
        return
    told = archive.word(keeper)
    if told in (archive.ASKED, archive.TOLD):
        return
    reason = ends.UNWATCHED if keeper.memory.unwatched and told != archive.LOST else ends.FORGOTTEN
    if left_the_queue(keeper) and told != archive.LOST:
        reason = ends.LEFT_THE_QUEUE
    launch = latest_launch(keeper)
    if launch != keeper.attempt.launch.number:
        keeper.forget(launch)  # its log begins elsewhere
    keeper.record_end("job.ended", "GONE", reason, archive.nodes_of(keeper), launch=launch)


def unseen(keeper: Keeper, world: World) -> None:
    """Slurm does not show the job: since when, and whether anybody could have seen why."""
    memory = keeper.memory
    if memory.absent_since_s is None:
        memory.absent_since_s = world.mono_s
        memory.unwatched = _unwatched(keeper, world)


def for_long(keeper: Keeper, world: World) -> bool:
    """The job is really gone: two answers far enough apart lack it, and its token finds nothing alive. Raises SlurmError."""
    cluster = keeper.office.cluster
    if not _due(keeper, world) or not cluster.ping():
        return False
    return all(row.state.ended for row in cluster.find(keeper.attempt.token))


def _adopt_another(keeper: Keeper, world: World) -> None:
    """sbatch may have made two jobs of one token: where Slurm has lost the one that we know, the other is the attempt."""
    if not _due(keeper, world):
        return
    rows = [row for row in keeper.office.cluster.find(keeper.attempt.token) if not row.state.ended]
    jobs = sorted({rows_of.base_id(row.job_id) for row in rows if bears(row.comment, keeper.attempt.token)})
    if jobs and keeper.attempt.job not in jobs:
        sense.adopt(keeper, jobs[0])


def _due(keeper: Keeper, world: World) -> bool:
    since_s = keeper.memory.absent_since_s
    return since_s is not None and world.mono_s - since_s >= ABSENT_FOR_S


def left_the_queue(keeper: Keeper) -> bool:
    """It went from the queue, as far as anyone can tell: unstarted, not by us, and nobody was there to see it."""
    return keeper.memory.unwatched and not keeper.attempt.launch.over and _never_started(keeper)


def latest_launch(keeper: Keeper) -> int:
    """The newest launch that the attempt's job has claimed; the one that is known where it claimed none after that."""
    attempt = keeper.attempt
    with contextlib.suppress(OSError):
        claimed = attempts.claims(keeper.run_dir, attempt.number)
        return max((c.launch for c in claimed if c.job == attempt.job), default=attempt.launch.number)
    return attempt.launch.number


def _never_started(keeper: Keeper) -> bool:
    """No start was claimed since the job went into the queue, and none of its ends is ours."""
    attempt, run_dir = keeper.attempt, keeper.run_dir
    if attempt.ended_by_us or attempt.cancel_intended or attempts.has_tasks(run_dir, attempt.number):
        return False
    if attempt.launch.end.state:  # of the launch before: it must have been put into the queue again since
        return attempt.launch.requeued and latest_launch(keeper) <= attempt.launch.number
    return attempts.owner(run_dir, attempt.number, attempt.launch.number) is None


def _unwatched(keeper: Keeper, world: World) -> bool:
    """Slurm had the time to forget the job since it was last seen: by this process or, as the journal tells, by another."""
    attempt, age_s = keeper.attempt, keeper.office.facts().min_job_age_s
    if keeper.memory.seen_s is not None:
        return world.mono_s - keeper.memory.seen_s >= age_s
    told = (attempt.submitted_at_s, attempt.launch.running_seen_at_s, attempt.launch.end.at_s)
    return ends.forgettable(max((at for at in told if at is not None), default=None), world.now_s, age_s)
