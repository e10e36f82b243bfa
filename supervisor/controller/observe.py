"""What a launch shows by itself: its record, its logs, its steps. (I/O)

What is worth remembering becomes a journal record: the launch's own record once, each kind of evidence at its
first sighting, progress now and then. The rest stays in the observations; a new supervisor fills them again
by reading the same logs from the same place.

Most files of `--ft-log` are logs and are followed. A flight recorder's dump or torchrun's error file is
written at the end and makes sense only when complete; `gather_facts` reads those when the launch is assessed.
While the launch lives, its nodes' reports are read now and then, and new findings become evidence.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ftrun.slurm.client import releases
from ftrun.slurm.client.cluster import JobRow, StepFiles
from ftrun.slurm.client.errors import SlurmError
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.diagnosis import inputs
from ftrun.supervisor.diagnosis.launch_monitor import LaunchMonitor
from ftrun.supervisor.diagnosis.node_findings import SIGNATURE, NodeFacts, NodeFinding, facts_from_reports
from ftrun.supervisor.model.states import IGNORED_SUFFIX
from ftrun.supervisor.model.timers import Interval, Stopwatch
from ftrun.supervisor.model.types import Evidence
from ftrun.supervisor.store import attempt_dir, node_reports, run_dir
from ftrun.supervisor.store.live_steps import StepSeen
from ftrun.supervisor.telemetry import log_watcher
from ftrun.supervisor.telemetry.line_owner import KnownOwners
from ftrun.supervisor.telemetry.log_watcher import WatchReport
from ftrun.supervisor.telemetry.step_logs import Place, StepLogs, note_steps
from ftrun.supervisor.telemetry.tail import LogPath

CLAIM_EXPECTED_WITHIN_S = 60.0  # P10
PROGRESS_EVERY_S = 60.0
OWNER_EVERY_S = 15.0
STEP_FILES_EVERY_S = 30.0
EVIDENCE_RECORDS_MAX = 200  # in one run
JUST_ENDED_S = 20.0  # Slurm shows the end of a job soon after that of its script
RECORDS_MAX = 50  # findings of one launch that become records; the reports hold the others
NO_REPORTS: Mapping[str, Mapping[str, object]] = {}
TASK_LOGS_MAX = 64  # logs that are read of the failed tasks of one array


@dataclass
class EndedScript:
    """Of one start: when its script ended, and how long its log has been awaited."""

    over: Stopwatch = field(default_factory=Stopwatch)
    log_quiet: Stopwatch = field(default_factory=Stopwatch)


class _Backend:
    """What the monitor of a live start asks of a supervisor; see `MonitorBackend`."""

    def __init__(self, ctx: RunContext) -> None:
        self._ctx = ctx
        self._of_steps: StepLogs | None = None

    def logs(self) -> list[LogPath]:
        ctx, attempt = self._ctx, self._ctx.attempt
        tasks = attempt_dir.task_records(ctx.run_dir, attempt.number, attempt.failed_tasks[:TASK_LOGS_MAX])
        paths = log_watcher.launch_logs(ctx.run_dir, attempt.number, attempt.launch.number)
        return paths + [path for record in tasks.values() for path in log_watcher.recorded_logs(record)]

    def other_logs(self) -> list[LogPath]:
        ctx, launch = self._ctx, self._ctx.attempt.launch
        if self._of_steps is None:
            place = Place(ctx.run_dir, ctx.attempt.number, launch.number, launch.start.number)
            self._of_steps = StepLogs(place, ctx.attempt.used)
        return self._of_steps.find() + extra_logs(ctx)

    def owners(self) -> KnownOwners:
        attempt = self._ctx.attempt
        return log_watcher.known_owners(self._ctx.run_dir, attempt.number, attempt.launch.number)

    def family(self) -> tuple[Collection[str], Collection[str]]:
        return self._ctx.attempt.family

    def nodes(self) -> tuple[str, ...]:
        return self._ctx.attempt.used

    def reports_stamp(self) -> int:
        return run_dir.folder_time_ns(node_reports.folder(self._ctx.run_dir, self._ctx.attempt.number))

    def node_reports(self) -> NodeFacts:
        return read_node_reports(self._ctx)


@dataclass
class _Watch:
    """Of one start."""

    next_began: bool = False  # a later launch has left its record
    next_looked: Interval = field(default_factory=Interval)
    folders: run_dir.FolderTimes = field(default_factory=run_dir.FolderTimes)  # where its record would appear
    task_logs_found: Interval = field(default_factory=Interval)
    progress_told: Interval = field(default_factory=Interval)
    step_files: set[StepFiles] = field(default_factory=set)


def monitor_of(ctx: RunContext) -> LaunchMonitor:
    """The monitor of the present start."""
    seen = ctx.observations
    return seen.per_start(
        LaunchMonitor, lambda: LaunchMonitor(_Backend(ctx), seen, ctx.settings, ctx.services.catalog)
    )


def note_launch(ctx: RunContext) -> None:
    """Journal the record that batch.sh wrote at the start; warn once if there is none (P10)."""
    _note_silence(ctx)
    note_start(ctx)
    attempt = ctx.attempt
    if attempt.launch.claim_seen:
        return
    launch = attempt_dir.launch_record(ctx.run_dir, attempt.number, attempt.launch.number)
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
    if attempt_dir.has_tasks(ctx.run_dir, attempt.number):
        ctx.record("launch.seen", nodes=list(attempt.nodes))
        return
    seen = ctx.observations
    unclaimed_s = seen.stopwatches["unclaimed"].held_s(ctx.snapshot.mono_s)
    if unclaimed_s > CLAIM_EXPECTED_WITHIN_S and seen.intervals["unclaimed"].first():
        unseen = f"nothing seen of attempt {attempt.number} in {ctx.run_dir}"
        ctx.record("warned", message=f"{unseen}: do the nodes see this folder?")


def _note_silence(ctx: RunContext) -> None:
    """Time the silence of each node: fencing counts from its start, long before Slurm gives the node up."""
    for node in ctx.attempt.reach:
        row = (ctx.snapshot.nodes or {}).get(node)
        if row is not None and not row.responding:
            ctx.observations.silent[node].held_s(ctx.snapshot.mono_s)
        else:
            ctx.observations.silent.stop(node)


def note_start(ctx: RunContext) -> None:
    """Notice that the script was started again inside the launch.

    From now on the observations describe that start.
    """
    attempt = ctx.attempt
    if attempt.launch.inside and attempt.launch.claim_seen:
        last = attempt_dir.latest_start_record(ctx.run_dir, attempt.number, attempt.launch.number)
        if last is not None and last.start > attempt.launch.start_seen:
            sizes = {log.path: log_watcher.file_size(log.path) for log in extra_logs(ctx)}
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


def adopt_claim_holder(ctx: RunContext, row: JobRow | None) -> bool:
    """Whether another job with this attempt's token holds the claim; that job is adopted as the attempt's.

    sbatch may have made two jobs of one token, and Slurm may have started the other one more than once before it
    claimed. The one without the claim exits by itself.
    """
    asked = ctx.observations.intervals["claim holder"]
    over = row is not None and row.state.ended
    if not over and not asked.due(ctx.snapshot.mono_s, OWNER_EVERY_S):
        return False
    if len(ctx.rows()) > 1:
        return False
    holder = attempt_dir.claim_holder(ctx.run_dir, ctx.attempt.number)
    if holder is None or holder.job == ctx.attempt.job:
        return False
    adopt_job(ctx, holder.job, holder.launch)
    return True


def adopt_job(ctx: RunContext, job: str, launch: int) -> None:
    """From now on this job, in this launch of it, is the attempt's. Raises OSError (journal)."""
    ctx.record("job.adopted", job_id=job, launch=launch, instead_of=ctx.attempt.job)
    ctx.begin_launch(launch)
    run_dir.index_job(ctx.services.home, job, ctx.run.id)


def step_seen(ctx: RunContext) -> StepSeen | None:
    """The step of a live start, and where in its log; None before the first."""
    place, step = monitor_of(ctx).step_place(), ctx.observations.step
    launch = ctx.attempt.launch
    if place is None or step is None or ctx.attempt.failed_tasks:
        return None
    return StepSeen((ctx.attempt.number, launch.number, launch.start.number), *place, step)


def script_ended_now(ctx: RunContext) -> bool:
    """True once in a launch.

    When its script has left the record of its end, so that Slurm is worth a query now.
    """
    attempt, over = ctx.attempt, ctx.observations.per_start(EndedScript).over
    if over.runs or not attempt_dir.script_has_ended(ctx.run_dir, attempt.number, attempt.launch.number):
        return False
    over.restart(ctx.snapshot.mono_s)
    return True


def script_just_ended(ctx: RunContext) -> bool:
    """Whether the script of a job that Slurm still shows as live ended a moment ago: poll faster."""
    ended_s = ctx.observations.per_start(EndedScript).over.since_s
    return ended_s is not None and ctx.services.clock.mono_s() - ended_s < JUST_ENDED_S


def read_logs(ctx: RunContext, *, fresh: bool = False) -> WatchReport | None:
    """Read how the logs have grown.

    None while no log is known. First sightings and progress are journalled.
    """
    seen, monitor = ctx.observations, monitor_of(ctx)
    watch = seen.per_start(_Watch)
    over = ctx.attempt.failed_tasks and ctx.attempt.launch.end.at_s is not None
    if over and watch.task_logs_found.first():
        monitor.close()  # all failed tasks of the array are known now: read their logs
    if _next_launch_began(ctx, watch):
        # It writes into the same file, and some of its lines may have been read as this launch's.
        watch.next_began = True
        monitor.close()
        seen.step = seen.saved_step = None
    note_step_files(ctx)
    before = seen.step
    report = monitor.look(ctx.snapshot.now_s, ctx.snapshot.mono_s, fresh=fresh)
    if report is None:
        return None
    for evidence in report.new:
        note_evidence(ctx, evidence)
    for evidence in report.others:
        _note_ignored(ctx, evidence)
    if seen.step != before and watch.progress_told.due(ctx.snapshot.mono_s, PROGRESS_EVERY_S):
        _note_progress(ctx, report, first=before is None)
    return report


def _next_launch_began(ctx: RunContext, watch: _Watch) -> bool:
    """Whether a later launch has left its record since the last look."""
    number = ctx.attempt.number
    folder = run_dir.attempt_dir(ctx.run_dir, number)
    changed = not watch.next_began and watch.folders.changed((os.path.dirname(folder), folder))
    if not changed and (watch.next_began or not watch.next_looked.due(ctx.snapshot.mono_s, OWNER_EVERY_S)):
        return False
    return log_watcher.next_launch(ctx.run_dir, number, ctx.attempt.launch.number) is not None


def note_step_files(ctx: RunContext) -> None:
    """Where no srun of ftrun's notes what steps write, take it from Slurm's records. Raises OSError."""
    attempt, launch, seen = ctx.attempt, ctx.attempt.launch, ctx.observations
    if launch.inside or not launch.claim_seen or attempt_dir.has_tasks(ctx.run_dir, attempt.number):
        return
    if not seen.intervals["step files"].due(ctx.snapshot.mono_s, STEP_FILES_EVERY_S):
        return
    try:
        if not releases.since("step-files", ctx.services.facts().version[:2]):
            return
        found = ctx.services.cluster.step_files(attempt.job)
    except SlurmError:
        return  # asked again
    known = seen.per_start(_Watch).step_files
    fresh = [one for one in found if one not in known]
    if fresh:
        known.update(fresh)
        place = Place(ctx.run_dir, attempt.number, launch.number, launch.start.number)
        note_steps(place, attempt.job, fresh, launch.started_at_s or 0.0, launch.log_sizes)


def log_sizes(ctx: RunContext) -> dict[str, int]:
    """Log of the present start -> its bytes now, as far as they are seen."""
    return monitor_of(ctx).log_sizes(written_extra_files(ctx))


def extra_logs(ctx: RunContext) -> list[LogPath]:
    """The logs of `--ft-log`, relative to the submission folder; lines before this start do not count."""
    sizes = ctx.attempt.launch.log_sizes
    return [
        LogPath(path, sizes.get(path, 0))
        for path in written_extra_files(ctx)
        if not inputs.is_attachment(path)
    ]


def written_extra_files(ctx: RunContext) -> list[str]:
    """The files of `--ft-log` that this launch has written."""
    return inputs.find_extra_logs(ctx.settings, ctx.cwd, ctx.attempt.launch.started_at_s or 0.0)


def note_evidence(ctx: RunContext, evidence: Evidence) -> None:
    """Journal a fact of this launch at its first sighting."""
    if data := _evidence_fields(ctx, evidence):
        ctx.record("evidence", **data)


def _note_ignored(ctx: RunContext, evidence: Evidence) -> None:
    """Journal, at its first sighting, a line that another job wrote into our log."""
    if data := _evidence_fields(ctx, evidence, IGNORED_SUFFIX):
        ctx.record("line.ignored", **data)


def _evidence_fields(ctx: RunContext, evidence: Evidence, mark: str = "") -> dict[str, Any]:
    """The data of the record; {} if it was recorded before, or if the run has enough of them."""
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


def _note_progress(ctx: RunContext, report: WatchReport, *, first: bool) -> None:
    progress = report.progress
    assert progress is not None
    step_s = round(report.median_step_s, 4) if report.median_step_s is not None else None
    more = {"total": progress.total, "step_s": step_s}
    ctx.record("launch.progress", step=progress.step, loss=progress.loss, first_step=first, **more)


def read_node_reports(ctx: RunContext, by_ssh: Mapping[str, Mapping[str, object]] = NO_REPORTS) -> NodeFacts:
    """What the nodes of the present start report; new findings become evidence in the journal.

    `by_ssh`: reports that ftrun itself fetched.
    """
    attempt = ctx.attempt
    start, nodes = attempt.launch.start.number, attempt.used
    found = node_reports.read_reports(ctx.run_dir, attempt.number, attempt.launch.number, nodes, start=start)
    facts = ctx.observations.node_facts = facts_from_reports(nodes, found, by_ssh=by_ssh)
    for finding in facts.findings[:RECORDS_MAX]:
        note_evidence(ctx, _finding_evidence(finding))
    return facts


def _finding_evidence(finding: NodeFinding) -> Evidence:
    return Evidence(
        source=finding.source,
        signature=SIGNATURE + finding.check,
        text=f"{finding.node}: {finding.message}",
        file=f"{finding.kind} of {finding.node} {finding.device}".strip(),
        at_s=finding.at_s,
        captures={"host": finding.node, "device": finding.device},
    )
