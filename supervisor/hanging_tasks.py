"""The live tasks of an array: each is watched for hangs by itself, and ended by itself. (I/O)

How it thinks. A task is a run of its own: it has its log, its folder of beats and its row in the queue, so it is watched as a launch is (`hanging`). What is
decided is journalled; whatever is decided and still runs is cancelled at the next look at Slurm, by whoever leads then. A cancel of ours makes the task
a failed one, where a person's would have made it one that nobody wants.

Tasks that write into one log cannot be told apart by it, and are not watched. Of a wide array the first live tasks are watched, so that a look stays
short; the others come when those are over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.records import dataclass
from ftrun.supervisor import attempts, hang, launchlogs, rows
from ftrun.supervisor.attempts import LaunchRecord
from ftrun.supervisor.hanging import Afar, Watched
from ftrun.supervisor.watch import LogWatcher, WatchReport

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World

__all__ = ["LiveTask", "end", "look"]

LOOK_EVERY_S = 5.0
TASKS_MAX = 64
AGAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class LiveTask:
    """One task's launch, its log, and the watch over it."""

    launch: int
    watcher: LogWatcher
    afar: Afar


def look(keeper: Keeper, world: World) -> None:
    """One look at the live tasks: journal which of them hang. Raises OSError (journal), LeaseLost."""
    memory, attempt = keeper.memory, keeper.attempt
    limits = hang.limits_from(keeper.settings, from_afar=True)
    if limits is None or not memory.due("hang-tasks", world.mono_s, LOOK_EVERY_S):
        return
    running = [one.number for one in _running(keeper, world)]
    for task in [task for task in memory.tasks if task not in running]:
        memory.tasks.pop(task).watcher.close()
    known = attempts.task_records(keeper.run_dir, attempt.number, running[:TASKS_MAX])
    logs = [launch.stdout for launch in known.values()]
    for task, launch in known.items():
        before = attempt.hung_tasks.get(task)
        if logs.count(launch.stdout) > 1 or (before is not None and before.launch == launch.number):
            continue
        live = memory.tasks.get(task)
        if live is None or live.launch != launch.number:
            if live is not None:
                live.watcher.close()
            live = memory.tasks[task] = _live(keeper, world, task, launch, limits)
        over = attempts.task_over(keeper.run_dir, attempt.number, task, launch.number)
        live.afar.look(world, live.watcher.poll(world.now_s), over=over)


@dataclass(frozen=True, slots=True)
class _Running:
    number: int
    row: JobRow


def _running(keeper: Keeper, world: World) -> list[_Running]:
    """The tasks that Slurm shows running, by number."""
    live = ((rows.task_of(row), row) for row in keeper.rows(world) if row.state is JobState.RUNNING)
    return sorted((_Running(task, row) for task, row in live if task is not None), key=lambda one: one.number)


def _live(keeper: Keeper, world: World, task: int, launch: LaunchRecord, limits: hang.Limits) -> LiveTask:
    watcher = LogWatcher(launchlogs.of_record(launch), catalog=keeper.office.catalog())

    def mine(found: Sequence[JobRow]) -> tuple[JobRow, ...]:
        return tuple(row for row in found if rows.task_of(row) == task)

    def read(now: World) -> WatchReport:
        return watcher.poll(now.now_s, fresh=True)

    place = attempts.task_dir(keeper.run_dir, keeper.attempt.number, task)
    more = {"task": task, "task_launch": launch.number}
    watched = Watched(place, f"{launch.number}.1", launch.nodes, mine, read, more)
    return LiveTask(launch.number, watcher, Afar(keeper, world, watched, limits))


def end(keeper: Keeper, world: World) -> None:
    """Cancel each task that was held to hang and runs on. Raises SlurmError, LeaseLost, Stale."""
    attempt, memory = keeper.attempt, keeper.memory
    if not attempt.hung_tasks or keeper.watch_only:
        return
    for one in _running(keeper, world):
        task, known = one.number, attempt.hung_tasks.get(one.number)
        if known is None or not _is_still(keeper, task, known.launch):
            continue
        if not memory.due(f"task-ends:{task}.{known.launch}", world.mono_s, AGAIN_S):
            continue
        if task not in attempt.ended_tasks:
            keeper.record("tasks.end.intended", task=task)
        name = one.row.job_id
        keeper.office.act("cancel", world, lambda name=name: keeper.office.cluster.cancel(name))  # type: ignore[misc]
        keeper.record("tasks.end.done", task=task)


def _is_still(keeper: Keeper, task: int, launch: int) -> bool:
    """The launch that was held to hang is the task's present one, and its script has not ended."""
    number = keeper.attempt.number
    found = attempts.task_records(keeper.run_dir, number, (task,)).get(task)
    return (
        found is not None
        and found.number == launch
        and not attempts.task_over(keeper.run_dir, number, task, launch)
    )
