"""What a launch shows by itself: its record, its logs, its steps. (I/O)

Whatever is read here becomes journal records when it is worth remembering: the launch's own record once, each kind of
evidence the first time, progress now and then. The rest stays in the observations, which a new supervisor fills again by reading
the same logs from the same place.

Files that the user named besides the job's log, and what is read of them once a launch is over.
How it thinks. Most of what `--ft-log` names are logs, and are followed. A flight recorder's dump or torchrun's error file is written
at the end and makes sense when it is whole; so it waits until the launch is judged.

What the nodes of one launch tell of themselves, as the supervisor of one run sees it.
Live, the reports of the watch are looked at now and then, and what is new becomes evidence in the journal. Once the launch is over, all reports
are read, those of the checks after the failure among them, for the diagnosis.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ftrun.slurm.records import replace
from ftrun.supervisor.diagnosis import inputs
from ftrun.supervisor.diagnosis.node_findings import SIGNATURE, NodeFacts, NodeFinding
from ftrun.supervisor.model.states import IGNORED
from ftrun.supervisor.model.timers import Interval, Stopwatch
from ftrun.supervisor.model.types import Evidence
from ftrun.supervisor.nodes.from_runs import entry_prefix
from ftrun.supervisor.nodes.remote_checks import GIVEN_UP_AFTER_S, Visit
from ftrun.supervisor.store import attempt_dir, node_reports, run_dir, submission_context
from ftrun.supervisor.telemetry import log_watcher
from ftrun.supervisor.telemetry.log_watcher import LogWatcher, WatchReport
from ftrun.supervisor.telemetry.tail import LogPath

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.context.cluster_snapshot import ClusterSnapshot
    from ftrun.supervisor.context.run_context import RunContext

__all__ = [
    "EndedScript",
    "adopt",
    "attached",
    "extra_logs",
    "first_seen_s",
    "is_anothers",
    "just_ended",
    "live_facts",
    "note_evidence",
    "note_launch",
    "note_start",
    "of_end",
    "script_over",
    "visit_is_over",
    "watch",
]


def extra_logs(ctx: RunContext) -> list[LogPath]:
    """The logs of `--ft-log`, relative to the folder of submission; what stood there before this start of the script is none of its."""
    sizes = ctx.attempt.launch.log_sizes
    return [LogPath(path, sizes.get(path, 0)) for path in _named(ctx) if not inputs.is_attachment(path)]


def attached(ctx: RunContext) -> tuple[Evidence, ...]:
    """What the other files of `--ft-log` tell, in order after all that the logs have told."""
    return inputs.told_by(_named(ctx), ctx.services.catalog(), ctx.observations.evidence)


def _named(ctx: RunContext) -> list[str]:
    """The files that `--ft-log` names and that this launch has written."""
    return inputs.named(
        ctx.settings, submission_context.cwd(ctx.run_dir), ctx.attempt.launch.started_at_s or 0.0
    )


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


def note_launch(ctx: RunContext, snapshot: ClusterSnapshot) -> None:
    """Take up what batch.sh wrote at the start; say so once when it wrote nothing (P10)."""
    _note_silence(ctx, snapshot)
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
    clocks = ctx.observations.per_launch(_Clocks)
    if clocks.unclaimed.held_s(snapshot.mono_s) > CLAIM_EXPECTED_WITHIN_S and clocks.unclaimed_told.first():
        ctx.record(
            "warned",
            message=f"nothing seen of attempt {attempt.number} in {ctx.run_dir}: do the nodes see this folder?",
        )


def note_start(ctx: RunContext) -> None:
    """The script may have been started again inside the launch: what follows is about that start alone."""
    attempt = ctx.attempt
    if attempt.launch.inside and attempt.launch.claim_seen:
        last = attempt_dir.last_start(ctx.run_dir, attempt.number, attempt.launch.number)
        if last is not None and last.start > attempt.launch.start_seen:
            sizes = {log.path: _size_bytes(log.path) for log in extra_logs(ctx)}
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


def is_anothers(ctx: RunContext, snapshot: ClusterSnapshot, row: JobRow) -> bool:
    """sbatch may have made two jobs of one token: the one that holds the claim is the attempt, the other leaves by itself."""
    asked = ctx.observations.per_launch(_Clocks).owner
    if not row.state.ended and not asked.due(snapshot.mono_s, OWNER_EVERY_S):
        return False
    owner = attempt_dir.owner(ctx.run_dir, ctx.attempt.number, ctx.attempt.launch.number)
    if owner is None or not owner.job or owner.job == ctx.attempt.job or len(ctx.rows(snapshot)) > 1:
        return False
    adopt(ctx, owner.job)
    return True


def adopt(ctx: RunContext, job: str) -> None:
    """From now on this job is the attempt's. Raises OSError (journal)."""
    ctx.record("job.adopted", job_id=job, instead_of=ctx.attempt.job)
    run_dir.index(ctx.services.home, job, ctx.run.id)


def _note_silence(ctx: RunContext, snapshot: ClusterSnapshot) -> None:
    """A node is fenced by the time of its silence, which begins long before Slurm gives it up."""
    for node in ctx.attempt.reach:
        row = (snapshot.nodes or {}).get(node)
        if row is not None and not row.responding:
            ctx.observations.silent[node].held_s(snapshot.mono_s)
        else:
            ctx.observations.silent.stop(node)


def script_over(ctx: RunContext, snapshot: ClusterSnapshot) -> bool:
    """True once in a launch: when its script has left the record of its end, so that Slurm is worth a look now."""
    attempt, over = ctx.attempt, ctx.observations.per_start(EndedScript).over
    if over.runs or not attempt_dir.script_over(ctx.run_dir, attempt.number, attempt.launch.number):
        return False
    over.restart(snapshot.mono_s)
    return True


def just_ended(ctx: RunContext) -> bool:
    """The script of a job that Slurm still calls live is over: worth a closer look for a while."""
    ended_s = ctx.observations.per_start(EndedScript).over.since_s
    return ended_s is not None and ctx.services.clock.mono_s() - ended_s < JUST_ENDED_S


def watch(ctx: RunContext, snapshot: ClusterSnapshot, *, fresh: bool = False) -> WatchReport | None:
    """Read what the logs have grown by; None while no log is known. First sightings and progress are journalled."""
    seen = ctx.observations
    logs = seen.per_start(_Logs)
    over = ctx.attempt.failed_tasks and ctx.attempt.launch.end.at_s is not None
    if over and logs.task_logs_found.first():
        logs.read_anew()  # the logs of an array's failed tasks are read once it is known which they all are
    if ctx.settings.get("log") and logs.names_looked_for.due(snapshot.mono_s, LOG_NAMES_EVERY_S):
        logs.paths, before = frozenset(log.path for log in extra_logs(ctx)), logs.paths
        if logs.paths - before:  # a log that the script began only now: where its steps are, perhaps
            logs.read_anew()
    if not logs.next_began and log_watcher.later(ctx.run_dir, ctx.attempt.number, ctx.attempt.launch.number):
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
        ours = log_watcher.ours(ctx.run_dir, attempt.number, attempt.launch.number)
        logs.watcher = LogWatcher(paths, catalog=ctx.services.catalog(), ours=ours)
    logs.watcher.admit(*ctx.attempt.family)
    report = logs.watcher.poll(snapshot.now_s, fresh=fresh)
    seen.note_growth(report, snapshot.mono_s)
    for evidence in report.new:
        note_evidence(ctx, evidence)
    for evidence in report.others:
        _note_ignored(ctx, evidence)
    _note_progress(ctx, snapshot, report)
    return report


def _log_paths(ctx: RunContext) -> list[LogPath]:
    attempt = ctx.attempt
    tasks = attempt_dir.task_records(ctx.run_dir, attempt.number, attempt.failed_tasks[:TASK_LOGS_MAX])
    paths = log_watcher.of_launch(ctx.run_dir, attempt.number, attempt.launch.number)
    paths += [path for record in tasks.values() for path in log_watcher.of_record(record)]
    return paths + extra_logs(ctx)


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


def _note_progress(ctx: RunContext, snapshot: ClusterSnapshot, report: WatchReport) -> None:
    progress = report.progress
    if progress is None or progress.step is None:
        return
    seen = ctx.observations
    if progress.checkpoint_step is not None:
        seen.saved_step = progress.checkpoint_step
    seen.note_pace(snapshot.mono_s, report, progress.steps_seen)
    if seen.step is not None and progress.step <= seen.step:
        return
    first = seen.step is None
    seen.step = progress.step
    if seen.per_start(_Logs).progress_told.due(snapshot.mono_s, PROGRESS_EVERY_S):
        step_s = round(report.median_step_s, 4) if report.median_step_s is not None else None
        told = {"total": progress.total, "step_s": step_s}
        ctx.record("launch.progress", step=progress.step, loss=progress.loss, first_step=first, **told)


LOOK_EVERY_S = 2.0
_WORTH_A_VISIT = frozenset({"FAILED", "NODE_FAIL", "CANCELLED", "OUT_OF_MEMORY", "BOOT_FAIL", "GONE"})
TOLD_MAX = 50
"""Findings of one launch that become records; the reports hold the others."""


@dataclass
class _Reports:
    """Of one launch."""

    looked: Interval = field(default_factory=Interval)


@dataclass
class _Visit:
    """To the nodes of one start, over SSH, after its end."""

    visit: Visit | None = None
    waited: Stopwatch = field(default_factory=Stopwatch)
    told: Interval = field(default_factory=Interval)


def live_facts(ctx: RunContext, snapshot: ClusterSnapshot) -> NodeFacts:
    """What the watch over the nodes of a live launch has found so far."""
    seen = ctx.observations
    if seen.per_launch(_Reports).looked.due(snapshot.mono_s, LOOK_EVERY_S):
        stamp = node_reports.stamp(ctx.run_dir, ctx.attempt.number)
        if stamp != seen.node_stamp:
            seen.node_stamp = stamp
            _read(ctx)
    return seen.node_facts


def visit_is_over(ctx: RunContext, snapshot: ClusterSnapshot) -> bool:
    """False while the nodes of an end that their own checks do not cover are being looked at over SSH, where that is asked for."""
    attempt, after = ctx.attempt, ctx.observations.per_start(_Visit)
    if ctx.settings.get("after-checks") != "ssh" or attempt.launch.end.state not in _WORTH_A_VISIT:
        return True
    if attempt.launch.end.state == "CANCELLED" and not attempt.ended_by_us:
        return True
    if attempt_dir.held_record(ctx.run_dir, attempt.number, attempt.launch.number, attempt.nodes) is not None:
        return True  # the checks before the script have just told
    if after.visit is None:
        _read(ctx)
        missing = [node for node in attempt.used if node not in ctx.observations.node_facts.asked]
        if not missing or attempt_dir.has_tasks(ctx.run_dir, attempt.number):
            return True
        after.visit = Visit(missing, str(ctx.settings.get("ssh-config", "")))
    waited_s = after.waited.held_s(snapshot.mono_s)
    if not after.visit.over and waited_s < GIVEN_UP_AFTER_S:
        return False
    if after.told.first():
        told = {"answered": ",".join(sorted(after.visit.reports)), "why": after.visit.why}
        ctx.services.tell("nodes.visited", run=ctx.run.id, attempt=attempt.number, **told)
    return True


def of_end(ctx: RunContext, snapshot: ClusterSnapshot, lost: Collection[str] = ()) -> NodeFacts:
    """What the nodes say of themselves once the launch is over, less what was there before; `lost` ones say nothing."""
    attempt, seen = ctx.attempt, ctx.observations
    if attempt_dir.has_tasks(ctx.run_dir, attempt.number):
        return NodeFacts()  # each task has nodes of its own
    _read(ctx)
    facts = replace(seen.node_facts.survived(seen.survived), silent=frozenset(lost))
    if not facts.odd(snapshot.now_s):
        return facts
    entries = ctx.services.ledger.entries()
    launch = entry_prefix(ctx.run, attempt.number, attempt.launch.number)
    return facts.noted_before(entries, ctx.run.id, launch, snapshot.now_s)


def first_seen_s(ctx: RunContext, signature: str) -> list[float]:
    """When the findings were made that a diagnosis with this signature rests on (Unix seconds, by the nodes' clocks)."""
    told = ctx.observations.node_facts.findings
    return [one.at_s for one in told if one.at_s is not None and SIGNATURE + one.check == signature]


def _read(ctx: RunContext) -> None:
    attempt = ctx.attempt
    visit = ctx.observations.per_start(_Visit).visit
    more = dict(visit.reports) if visit is not None else {}
    facts = inputs.read_node_reports(
        ctx.run_dir,
        attempt.number,
        attempt.launch.number,
        attempt.used,
        start=attempt.launch.start.number,
        by_ssh=more,
    )
    ctx.observations.node_facts = facts
    for finding in facts.findings[:TOLD_MAX]:
        note_evidence(ctx, _evidence(finding))


def _evidence(finding: NodeFinding) -> Evidence:
    return Evidence(
        source=finding.source,
        signature=SIGNATURE + finding.check,
        text=f"{finding.node}: {finding.message}",
        file=f"{finding.kind} of {finding.node} {finding.device}".strip(),
        at_s=finding.at_s,
        captures={"host": finding.node, "device": finding.device},
    )
