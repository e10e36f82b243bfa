"""The live tasks of an array: each is watched for hangs by itself, and ended by itself. (I/O)

How it thinks. A task is a run of its own: it has its log, its folder of beats and its row in the queue, so it is watched as a launch is (`hanging`). What is
decided is journalled; whatever is decided and still runs is cancelled at the next look at Slurm, by whoever leads then. A cancel of ours makes the task
a failed one, where a person's would have made it one that nobody wants.

Tasks that write into one log cannot be told apart by it, and are not watched. Of a wide array the first live tasks are watched, so that a look stays
short; the others come when those are over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.records import dataclass
from ftrun.supervisor import attempts, hang, launchlogs, rows
from ftrun.supervisor.attempts import LaunchRecord
from ftrun.supervisor.hanging import RemoteHangWatch, Watched
from ftrun.supervisor.timers import Interval, Intervals
from ftrun.supervisor.watch import LogWatcher, WatchReport

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.run_context import RunContext
    from ftrun.supervisor.world import ClusterSnapshot

__all__ = ["LiveTask", "TaskWatch", "end", "look"]

LOOK_EVERY_S = 5.0
TASKS_MAX = 64
AGAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class LiveTask:
    """One task's launch, its log, and the watch over it."""

    launch: int
    watcher: LogWatcher
    afar: RemoteHangWatch


@dataclass
class TaskWatch:
    """The live tasks of the present launch."""

    tasks: dict[int, LiveTask] = field(default_factory=dict)
    looked: Interval = field(default_factory=Interval)
    ended: Intervals = field(default_factory=Intervals)  # task and its launch

    def close(self) -> None:
        """Let go of log files."""
        for task in self.tasks.values():
            task.watcher.close()


def look(ctx: RunContext, world: ClusterSnapshot) -> None:
    """One look at the live tasks: journal which of them hang. Raises OSError (journal), LeaseLost."""
    watch, attempt = ctx.observations.per_start(TaskWatch), ctx.attempt
    limits = hang.limits_from(ctx.settings, from_afar=True)
    if limits is None or not watch.looked.due(world.mono_s, LOOK_EVERY_S):
        return
    running = [one.number for one in _running(ctx, world)]
    for task in [task for task in watch.tasks if task not in running]:
        watch.tasks.pop(task).watcher.close()
    known = attempts.task_records(ctx.run_dir, attempt.number, running[:TASKS_MAX])
    logs = [launch.stdout for launch in known.values()]
    for task, launch in known.items():
        before = attempt.hung_tasks.get(task)
        if logs.count(launch.stdout) > 1 or (before is not None and before.launch == launch.number):
            continue
        live = watch.tasks.get(task)
        if live is None or live.launch != launch.number:
            if live is not None:
                live.watcher.close()
            live = watch.tasks[task] = _live(ctx, world, task, launch, limits)
        over = attempts.task_over(ctx.run_dir, attempt.number, task, launch.number)
        live.afar.look(world, live.watcher.poll(world.now_s), over=over)


@dataclass(frozen=True, slots=True)
class _Running:
    number: int
    row: JobRow


def _running(ctx: RunContext, world: ClusterSnapshot) -> list[_Running]:
    """The tasks that Slurm shows running, by number."""
    live = ((rows.task_of(row), row) for row in ctx.rows(world) if row.state is JobState.RUNNING)
    return sorted((_Running(task, row) for task, row in live if task is not None), key=lambda one: one.number)


def _live(
    ctx: RunContext, world: ClusterSnapshot, task: int, launch: LaunchRecord, limits: hang.Limits
) -> LiveTask:
    watcher = LogWatcher(launchlogs.of_record(launch), catalog=ctx.services.catalog())

    def mine(found: Sequence[JobRow]) -> tuple[JobRow, ...]:
        return tuple(row for row in found if rows.task_of(row) == task)

    def read(now: ClusterSnapshot) -> WatchReport:
        return watcher.poll(now.now_s, fresh=True)

    place = attempts.task_dir(ctx.run_dir, ctx.attempt.number, task)
    more = {"task": task, "task_launch": launch.number}
    watched = Watched(place, f"{launch.number}.1", launch.nodes, mine, read, more)
    return LiveTask(launch.number, watcher, RemoteHangWatch(ctx, world, watched, limits))


def end(ctx: RunContext, world: ClusterSnapshot) -> None:
    """Cancel each task that was held to hang and runs on. Raises SlurmError, LeaseLost, Stale."""
    attempt, watch = ctx.attempt, ctx.observations.per_start(TaskWatch)
    if not attempt.hung_tasks or ctx.watch_only:
        return
    for one in _running(ctx, world):
        task, known = one.number, attempt.hung_tasks.get(one.number)
        if known is None or not _is_still(ctx, task, known.launch):
            continue
        if not watch.ended[task, known.launch].due(world.mono_s, AGAIN_S):
            continue
        if task not in attempt.ended_tasks:
            ctx.record("tasks.end.intended", task=task)
        name = one.row.job_id
        ctx.services.act("cancel", world, lambda name=name: ctx.services.cluster.cancel(name))  # type: ignore[misc]
        ctx.record("tasks.end.done", task=task)


def _is_still(ctx: RunContext, task: int, launch: int) -> bool:
    """The launch that was held to hang is the task's present one, and its script has not ended."""
    number = ctx.attempt.number
    found = attempts.task_records(ctx.run_dir, number, (task,)).get(task)
    return (
        found is not None
        and found.number == launch
        and not attempts.task_over(ctx.run_dir, number, task, launch)
    )
