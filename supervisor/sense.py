"""What a launch shows by itself: its record, its logs, its steps. (I/O)

Whatever is read here becomes journal records when it is worth remembering: the launch's own record once, each kind of
evidence the first time, progress now and then. The rest stays in the observations, which a new supervisor fills again by reading
the same logs from the same place.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ftrun.supervisor import afterwards, attempts, launchlogs, store
from ftrun.supervisor.lifecycle import IGNORED
from ftrun.supervisor.model import Evidence
from ftrun.supervisor.timers import Interval, Stopwatch
from ftrun.supervisor.watch import LogPath, LogWatcher, WatchReport

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.run_context import RunContext
    from ftrun.supervisor.world import ClusterSnapshot

__all__ = [
    "EndedScript",
    "adopt",
    "is_anothers",
    "just_ended",
    "note_evidence",
    "note_launch",
    "note_start",
    "script_over",
    "watch",
]

CLAIM_EXPECTED_WITHIN_S = 60.0  # P10
PROGRESS_EVERY_S = 60.0
OWNER_EVERY_S = 15.0
LOG_NAMES_EVERY_S = 10.0
EVIDENCE_RECORDS_MAX = 200  # of one run
JUST_ENDED_S = 20.0  # Slurm says that a job is over soon after its script is
TASK_LOGS_MAX = 64  # of the failed tasks of one array, so many logs are read


@dataclass
class _Clocks:
    """Of one launch."""

    unclaimed: Stopwatch = field(default_factory=Stopwatch)  # nothing of its script was seen
    unclaimed_told: Interval = field(default_factory=Interval)
    owner: Interval = field(default_factory=Interval)


@dataclass
class EndedScript:
    """Of one start: when its script was over, and for how long its last log lines are waited for."""

    over: Stopwatch = field(default_factory=Stopwatch)
    log_quiet: Stopwatch = field(default_factory=Stopwatch)


@dataclass
class _Logs:
    """The logs of one start, as they are read."""

    watcher: LogWatcher | None = None
    paths: frozenset[str] = frozenset()  # of `--ft-log`, as they were found last
    next_began: bool = False  # a later launch has left its record
    names_looked_for: Interval = field(default_factory=Interval)
    task_logs_found: Interval = field(default_factory=Interval)
    progress_told: Interval = field(default_factory=Interval)

    def close(self) -> None:
        """Give the descriptors back."""
        if self.watcher is not None:
            self.watcher.close()

    def read_anew(self) -> None:
        """All are read from their first byte again."""
        self.close()
        self.watcher = None


def note_launch(ctx: RunContext, world: ClusterSnapshot) -> None:
    """Take up what batch.sh wrote at the start; say so once when it wrote nothing (P10)."""
    _note_silence(ctx, world)
    note_start(ctx)
    attempt = ctx.attempt
    if attempt.launch.claim_seen:
        return
    launch = attempts.launch_record(ctx.run_dir, attempt.number, attempt.launch.number)
    if launch is not None:
        nodes = list(launch.nodes)
        ctx.record(
            "launch.seen",
            nodes=nodes,
            host=launch.host,
            resume_from=launch.resume_from,
            stdout=launch.stdout,
            passed=launch.passed,
        )
        return
    if attempts.has_tasks(ctx.run_dir, attempt.number):
        ctx.record("launch.seen", nodes=list(attempt.nodes))
        return
    clocks = ctx.observations.per_launch(_Clocks)
    if clocks.unclaimed.held_s(world.mono_s) > CLAIM_EXPECTED_WITHIN_S and clocks.unclaimed_told.first():
        ctx.record(
            "warned",
            message=f"nothing seen of attempt {attempt.number} in {ctx.run_dir}: do the nodes see this folder?",
        )


def note_start(ctx: RunContext) -> None:
    """The script may have been started again inside the launch: what follows is about that start alone."""
    attempt = ctx.attempt
    if attempt.launch.inside and attempt.launch.claim_seen:
        last = attempts.last_start(ctx.run_dir, attempt.number, attempt.launch.number)
        if last is not None and last.start > attempt.launch.start_seen:
            sizes = {log.path: _size_bytes(log.path) for log in afterwards.extra_logs(ctx)}
            ctx.record(
                "launch.seen",
                start=last.start,
                active=list(last.nodes),
                resume_from=last.resume_from,
                stdout=last.stdout,
                sizes=sizes,
            )
    if ctx.observations.start != ctx.attempt.launch.start.number:
        ctx.begin_start()


def _size_bytes(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def is_anothers(ctx: RunContext, world: ClusterSnapshot, row: JobRow) -> bool:
    """sbatch may have made two jobs of one token: the one that holds the claim is the attempt, the other leaves by itself."""
    asked = ctx.observations.per_launch(_Clocks).owner
    if not row.state.ended and not asked.due(world.mono_s, OWNER_EVERY_S):
        return False
    owner = attempts.owner(ctx.run_dir, ctx.attempt.number, ctx.attempt.launch.number)
    if owner is None or not owner.job or owner.job == ctx.attempt.job or len(ctx.rows(world)) > 1:
        return False
    adopt(ctx, owner.job)
    return True


def adopt(ctx: RunContext, job: str) -> None:
    """From now on this job is the attempt's. Raises OSError (journal)."""
    ctx.record("job.adopted", job_id=job, instead_of=ctx.attempt.job)
    store.index(ctx.services.home, job, ctx.run.id)


def _note_silence(ctx: RunContext, world: ClusterSnapshot) -> None:
    """A node is fenced by the time of its silence, which begins long before Slurm gives it up."""
    for node in ctx.attempt.reach:
        row = (world.nodes or {}).get(node)
        if row is not None and not row.responding:
            ctx.observations.silent[node].held_s(world.mono_s)
        else:
            ctx.observations.silent.stop(node)


def script_over(ctx: RunContext, world: ClusterSnapshot) -> bool:
    """True once in a launch: when its script has left the record of its end, so that Slurm is worth a look now."""
    attempt, over = ctx.attempt, ctx.observations.per_start(EndedScript).over
    if over.runs or not attempts.script_over(ctx.run_dir, attempt.number, attempt.launch.number):
        return False
    over.restart(world.mono_s)
    return True


def just_ended(ctx: RunContext) -> bool:
    """The script of a job that Slurm still calls live is over: worth a closer look for a while."""
    ended_s = ctx.observations.per_start(EndedScript).over.since_s
    return ended_s is not None and ctx.services.clock.mono_s() - ended_s < JUST_ENDED_S


def watch(ctx: RunContext, world: ClusterSnapshot, *, fresh: bool = False) -> WatchReport | None:
    """Read what the logs have grown by; None while no log is known. First sightings and progress are journalled."""
    seen = ctx.observations
    logs = seen.per_start(_Logs)
    over = ctx.attempt.failed_tasks and ctx.attempt.launch.end.at_s is not None
    if over and logs.task_logs_found.first():
        logs.read_anew()  # the logs of an array's failed tasks are read once it is known which they all are
    if ctx.settings.get("log") and logs.names_looked_for.due(world.mono_s, LOG_NAMES_EVERY_S):
        logs.paths, before = frozenset(log.path for log in afterwards.extra_logs(ctx)), logs.paths
        if logs.paths - before:  # a log that the script began only now: where its steps are, perhaps
            logs.read_anew()
    if not logs.next_began and launchlogs.later(ctx.run_dir, ctx.attempt.number, ctx.attempt.launch.number):
        logs.next_began = (
            True  # it writes into the same file, and some of it may have been read as this one's
        )
        logs.read_anew()
        seen.step = seen.saved_step = None
    if logs.watcher is None:
        paths = _log_paths(ctx)
        if not paths:
            return None
        attempt = ctx.attempt
        ours = launchlogs.ours(ctx.run_dir, attempt.number, attempt.launch.number)
        logs.watcher = LogWatcher(paths, catalog=ctx.services.catalog(), ours=ours)
    logs.watcher.admit(*ctx.attempt.family)
    report = logs.watcher.poll(world.now_s, fresh=fresh)
    seen.note_growth(report, world.mono_s)
    for evidence in report.new:
        note_evidence(ctx, evidence)
    for evidence in report.others:
        _note_ignored(ctx, evidence)
    _note_progress(ctx, world, report)
    return report


def _log_paths(ctx: RunContext) -> list[LogPath]:
    attempt = ctx.attempt
    tasks = attempts.task_records(ctx.run_dir, attempt.number, attempt.failed_tasks[:TASK_LOGS_MAX])
    paths = launchlogs.of_launch(ctx.run_dir, attempt.number, attempt.launch.number)
    paths += [path for record in tasks.values() for path in launchlogs.of_record(record)]
    return paths + afterwards.extra_logs(ctx)


def note_evidence(ctx: RunContext, evidence: Evidence) -> None:
    """Journal a fact of this launch the first time that it is seen."""
    if told := _not_yet_told(ctx, evidence):
        ctx.record("evidence", **told)


def _note_ignored(ctx: RunContext, evidence: Evidence) -> None:
    """The same of a line that another job wrote."""
    if told := _not_yet_told(ctx, evidence, IGNORED):
        ctx.record("line.ignored", **told)


def _not_yet_told(ctx: RunContext, evidence: Evidence, mark: str = "") -> dict[str, Any]:
    """What a record says of it; {} where it was told before, or enough was."""
    attempt = ctx.attempt
    place = f"{attempt.number}.{attempt.launch.number}" + (
        f".{attempt.launch.start.number}" if attempt.launch.start.number > 1 else ""
    )
    key = f"{place}:{evidence.signature}:{evidence.file}:{evidence.line}{mark}"
    if key in ctx.run.evidence_seen or len(ctx.run.evidence_seen) >= EVIDENCE_RECORDS_MAX:
        return {}
    return {
        "key": key,
        "source": evidence.source.value,
        "signature": evidence.signature,
        "text": evidence.text[:400],
        "file": evidence.file,
        "line": evidence.line,
        "captures": dict(evidence.captures),
    }


def _note_progress(ctx: RunContext, world: ClusterSnapshot, report: WatchReport) -> None:
    progress = report.progress
    if progress is None or progress.step is None:
        return
    seen = ctx.observations
    if progress.checkpoint_step is not None:
        seen.saved_step = progress.checkpoint_step
    seen.note_pace(world.mono_s, report, progress.steps_seen)
    if seen.step is not None and progress.step <= seen.step:
        return
    first = seen.step is None
    seen.step = progress.step
    if seen.per_start(_Logs).progress_told.due(world.mono_s, PROGRESS_EVERY_S):
        step_s = round(report.median_step_s, 4) if report.median_step_s is not None else None
        told = {"total": progress.total, "step_s": step_s}
        ctx.record("launch.progress", step=progress.step, loss=progress.loss, first_step=first, **told)
