"""The hang watch of a supervisor, and hang detection for the tasks of an array. (I/O)

While the agent beside the script lives, it alone watches for hangs (P8). Without one, or once it is dead, the
supervisor watches in the same way (`telemetry.hang_watch`) with what it can see from its host: logs and
heartbeats on the shared folder, and stacks by a job step of its own where Slurm allows one.

- **Less is visible from afar.** What a node uses is known only from ranks or that step; with less evidence
  the limits are longer (`hang_rules.limits_from`).
- **Only its own observations count.** Each supervisor, also one that takes over from an agent, begins with
  fresh clocks: a start gets its whole warm-up again. Passes too far apart, logs or heartbeats that cannot be
  read, a Slurm that does not answer, a job that does not run: none of these is silence.
- **It never blocks the loop.** Stacks are taken in the background and judged when they are there.
- **Just before the end** Slurm is asked whether the job runs, and the logs are opened again: a network file
  system may have held lines back.

The decision is journalled, and the attempt is ended as after any other suspicion.

A task of an array has its own log, heartbeat folder and row in the queue, so it is watched as a launch is and
ended alone. The decision is journalled; a task that still runs is cancelled at the next snapshot, by
whichever supervisor leads then. Our cancel makes the task a failed one; a user's would make it an unwanted
one. Tasks that share one log cannot be told apart and are not watched. Of a wide array the first `TASKS_MAX`
live tasks are watched, so that a pass stays short; the others follow when those are over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

from ftrun.slurm.client.cluster import JobRow, JobState
from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.commands.steps import Steps
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.context.services import ClusterSnapshot
from ftrun.supervisor.model import job_rows, types
from ftrun.supervisor.model.timers import Interval, Intervals
from ftrun.supervisor.store import attempt_dir
from ftrun.supervisor.store.attempt_dir import LaunchRecord
from ftrun.supervisor.telemetry import hang_rules, log_watcher
from ftrun.supervisor.telemetry.hang_watch import (
    ASK_LIMIT_S,
    ASK_QUIET_S,
    HangWatch,
    StacksAnswer,
    stacks_command,
)
from ftrun.supervisor.telemetry.log_watcher import LogWatcher, WatchReport

ERRANDS_MAX = 4  # of all runs: a whole wide array may fall silent at once
TASKS_EVERY_S = 5.0
TASKS_MAX = 64
AGAIN_S = 30.0


@dataclass(frozen=True, slots=True)
class HangTarget:
    """What is watched: a launch, or a task of an array.

    `place` is its folder, `token` its start, `nodes` those that it uses (() = all of its rows), `more` the
    additional fields of its records. `mine` picks its rows from those of the attempt, `read` reads its logs
    again.
    """

    place: str
    token: str
    nodes: tuple[str, ...]
    mine: Callable[[Sequence[JobRow]], tuple[JobRow, ...]]
    read: Callable[[], WatchReport | None]
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class _StackRequest:
    """Stacks that are being taken: the nodes asked, and those that answered so far.

    Another thread writes; it sets `over` last.
    """

    asked: tuple[tuple[str, tuple[str, ...]], ...]  # job -> its nodes
    answered: list[str] = field(default_factory=list)
    over: bool = False

    def run(self, steps: Steps, lines: Mapping[str, str]) -> None:
        """Ask one job after the other."""
        try:
            for job, nodes in self.asked:
                result = steps.ask(job, nodes, lines[job], limit_s=ASK_LIMIT_S, quiet_s=ASK_QUIET_S)
                self.answered += [node for node in nodes if result.answers.get(node)]
        except SlurmError:
            pass  # no srun on this host: the answers until now count
        finally:
            self.over = True


@dataclass
class StackRequests:
    """Of all runs: stacks that are being taken in the background."""

    pending: list[_StackRequest] = field(default_factory=list)


@dataclass
class _Hands:
    """What a supervisor does for its watch; see `WatchBackend`."""

    ctx: RunContext
    watched: HangTarget
    errand: _StackRequest | None = None

    def record(self, kind: str, data: Mapping[str, Any]) -> None:
        self.ctx.record(kind, **{**data, **self.watched.more})

    def runs(self) -> bool | None:
        try:
            known = self.ctx.services.cluster.jobs((self.ctx.attempt.job,))
        except SlurmError:
            return None
        found = self.rows(replace(self.ctx.snapshot, families=job_rows.rows_by_submission(known)))
        return all(row.state is JobState.RUNNING for row in found) if found else None

    def read(self) -> WatchReport | None:
        return self.watched.read()

    def ask(self, folder: str) -> bool:
        """See `WatchBackend.ask`. A run that ftrun may only observe is not disturbed."""
        services = self.ctx.services
        steps, errands = services.steps, services.shared(StackRequests)
        errands.pending = [one for one in errands.pending if not one.over]
        if steps is None or self.ctx.watch_only or len(errands.pending) >= ERRANDS_MAX:
            return False
        asked = tuple(self._parties())
        lines = {job: self._line(job, folder) for job, _ in asked}
        errand = _StackRequest(asked)
        self.ctx.act("stacks", lambda: services.in_background(lambda: errand.run(steps, lines)))
        self.errand = errand
        errands.pending.append(errand)  # not before `act`: an errand that never began is never over
        return True

    def answer(self) -> StacksAnswer | None:
        if self.errand is None or not self.errand.over:
            return None
        asked = tuple(node for _, nodes in self.errand.asked for node in nodes)
        return StacksAnswer(asked, tuple(self.errand.answered))

    def rows(self, snapshot: ClusterSnapshot | None = None) -> tuple[JobRow, ...]:
        """The rows of the launch or task that is watched."""
        return self.watched.mine(self.ctx.rows(snapshot))

    def _line(self, job: str, folder: str) -> str:
        """The command that runs on the nodes of a job; the ranks in a companion are the main job's."""
        attempt, watched = self.ctx.attempt, self.watched
        theirs = attempt.job if job in attempt.joined else job
        return stacks_command(self.ctx.services.home, watched.place, watched.token, theirs, folder)

    def _parties(self) -> list[tuple[str, tuple[str, ...]]]:
        """Each plain job with the nodes used.

        Several for a heterogeneous job, and for a start that uses companions.
        """
        found = []
        joined = (row for job in self.ctx.attempt.joined for row in self.ctx.snapshot.families.get(job, ()))
        for row in (*self.rows(), *joined):
            used = self.watched.nodes or row.nodes
            nodes = tuple(node for node in row.nodes if node in used)
            if row.state is JobState.RUNNING and nodes:
                found.append((row.raw_job_id or row.job_id, nodes))
        return found


class RemoteHangWatch:
    """The watch over one launch or task, from the supervisor's host."""

    def __init__(self, ctx: RunContext, watched: HangTarget, limits: hang_rules.HangLimits | None) -> None:
        self._hands = _Hands(ctx, watched)
        self._watch = HangWatch(self._hands, watched.place, watched.token, limits, ctx.services.clock.mono_s)

    def look(
        self, report: WatchReport, *, over: bool, suspect: hang_rules.HangLimits | None = None
    ) -> types.HangVerdict | None:
        """The verdict if it hangs, else None. `over`: the script has ended; `suspect`: see `HangWatch.judge`.
        Raises OSError (journal), LeaseLost.
        """
        found = self._hands.rows()
        runs = bool(found) and all(row.state is JobState.RUNNING for row in found)
        if not self._watch.poll():
            return None
        verdict = self._watch.judge(report, running=runs and not over, suspect=suspect)
        return verdict if verdict is not None and verdict.state is types.HangState.HUNG else None


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
        """Close the log files."""
        for task in self.tasks.values():
            task.watcher.close()


def detect_hung_tasks(ctx: RunContext) -> None:
    """One pass over the live tasks: journal which of them hang. Raises OSError (journal), LeaseLost."""
    watch, attempt = ctx.observations.per_start(TaskWatch), ctx.attempt
    limits = hang_rules.hang_limits(ctx.settings, from_afar=True)
    if limits is None or not watch.looked.due(ctx.snapshot.mono_s, TASKS_EVERY_S):
        return
    running = [one.number for one in _running(ctx)]
    for task in [task for task in watch.tasks if task not in running]:
        watch.tasks.pop(task).watcher.close()
    known = attempt_dir.task_records(ctx.run_dir, attempt.number, running[:TASKS_MAX])
    logs = [launch.stdout for launch in known.values()]
    for task, launch in known.items():
        before = attempt.hung_tasks.get(task)
        if logs.count(launch.stdout) > 1 or (before is not None and before.launch == launch.number):
            continue
        live = watch.tasks.get(task)
        if live is None or live.launch != launch.number:
            if live is not None:
                live.watcher.close()
            live = watch.tasks[task] = _live(ctx, task, launch, limits)
        over = attempt_dir.task_has_ended(ctx.run_dir, attempt.number, task, launch.number)
        live.afar.look(live.watcher.poll(ctx.snapshot.now_s), over=over)


def _live(ctx: RunContext, task: int, launch: LaunchRecord, limits: hang_rules.HangLimits) -> LiveTask:
    watcher = LogWatcher(log_watcher.recorded_logs(launch), catalog=ctx.services.catalog())

    def mine(found: Sequence[JobRow]) -> tuple[JobRow, ...]:
        return tuple(row for row in found if job_rows.task_number(row) == task)

    def read() -> WatchReport:
        return watcher.poll(ctx.snapshot.now_s, fresh=True)

    place = attempt_dir.task_dir(ctx.run_dir, ctx.attempt.number, task)
    more = {"task": task, "task_launch": launch.number}
    watched = HangTarget(place, f"{launch.number}.1", launch.nodes, mine, read, more)
    return LiveTask(launch.number, watcher, RemoteHangWatch(ctx, watched, limits))


@dataclass(frozen=True, slots=True)
class _Running:
    number: int
    row: JobRow


def _running(ctx: RunContext) -> list[_Running]:
    live = ((job_rows.task_number(row), row) for row in ctx.rows() if row.state is JobState.RUNNING)
    return sorted((_Running(task, row) for task, row in live if task is not None), key=lambda one: one.number)


def cancel_hung_tasks(ctx: RunContext) -> None:
    """Cancel each task that hangs and still runs. Raises SlurmError, LeaseLost, Stale."""
    attempt, watch = ctx.attempt, ctx.observations.per_start(TaskWatch)
    if not attempt.hung_tasks or ctx.watch_only:
        return
    for one in _running(ctx):
        task, known = one.number, attempt.hung_tasks.get(one.number)
        if known is None or not _is_still(ctx, task, known.launch):
            continue
        if not watch.ended[task, known.launch].due(ctx.snapshot.mono_s, AGAIN_S):
            continue
        if task not in attempt.ended_tasks:
            live = watch.tasks.get(task)
            ctx.record("tasks.end.intended", task=task, logs=live.watcher.sizes() if live else {})
        ctx.act("cancel", partial(ctx.services.cluster.cancel, one.row.job_id))
        ctx.record("tasks.end.done", task=task)


def _is_still(ctx: RunContext, task: int, launch: int) -> bool:
    """Whether the hung launch is still the task's present one, and its script has not ended."""
    number = ctx.attempt.number
    found = attempt_dir.task_records(ctx.run_dir, number, (task,)).get(task)
    return (
        found is not None
        and found.number == launch
        and not attempt_dir.task_has_ended(ctx.run_dir, number, task, launch)
    )
