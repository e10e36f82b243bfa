"""What a launch shows by itself: its record, its logs, its steps. (I/O)

Whatever is read here becomes journal records when it is worth remembering: the launch's own record once, each kind of
evidence the first time, progress now and then. The rest stays in `Memory`, which a new supervisor fills again by reading
the same logs from the same place.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ftrun.slurm.client.parse import bears
from ftrun.supervisor import afterwards, attempts, launchlogs, store
from ftrun.supervisor.lifecycle import IGNORED
from ftrun.supervisor.model import Diagnosis, Evidence
from ftrun.supervisor.nodefacts import NodeFacts
from ftrun.supervisor.queueclock import QueueClock
from ftrun.supervisor.watch import LogPath, LogWatcher, WatchReport

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.hanging import Afar
    from ftrun.supervisor.hanging_tasks import LiveTask
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World
    from ftrun.supervisor.run_types import Attempt
    from ftrun.supervisor.visits import Visit

__all__ = ["Memory", "adopt", "is_anothers", "note_evidence", "note_launch", "note_pace", "watch"]

CLAIM_EXPECTED_WITHIN_S = 60.0  # P10
PROGRESS_EVERY_S = 60.0
BLIND_FOR_S = 30.0  # an outage; shorter ones are answers that failed
OWNER_EVERY_S = 15.0
LOG_NAMES_EVERY_S = 10.0
EVIDENCE_RECORDS_MAX = 200  # of one run
JUST_ENDED_S = 20.0  # Slurm says that a job is over soon after its script is
_OF_THE_LOGS = ("suspect", "settle", "script-over", "log-names", "task-logs")
TASK_LOGS_MAX = 64  # of the failed tasks of one array, so many logs are read


@dataclass
class Memory:
    """What one supervisor process knows of the present launch beyond the journal. Times are monotonic seconds."""

    attempt: int = 0
    launch: int = 0
    start: int = 1  # which start of the script inside the launch the rest is about
    agent_read: dict[int, int] = field(
        default_factory=dict
    )  # launch -> bytes of its agent's journal that are dealt with
    pulse: bytes = b""  # the agent's counter as it was seen last ...
    pulse_moved_s: float | None = None  # ... and when it was seen to move
    batch_host: str = ""  # as Slurm names it, where nothing of the script is seen
    headless_life: tuple[int, float | None] = (
        -1,
        None,
    )  # steps seen and growth when the script's own node was gone from the job
    watcher: LogWatcher | None = None
    next_began: bool = False  # a later launch has left its record
    paths: frozenset[str] = frozenset()  # of `--ft-log`, as they were found last
    known_as: tuple[str, ...] = ()  # user and name of the row that showed our token ...
    submitted_s: float | None = None  # ... and its time of submission
    report: WatchReport | None = None
    step: int | None = None
    loss: float | None = None
    saved_step: int | None = None
    growth: float | None = None
    growth_seen_s: float | None = None
    progress_recorded_s: float | None = None
    partition: str = ""  # as Slurm showed it last
    seen_s: float | None = None  # when Slurm showed the job last
    looked_s: float | None = None  # when Slurm was asked last, be it in vain
    answered_s: float = 0.0  # for so long it has answered, since the attempt was opened or this process began
    absent_since_s: float | None = None
    unwatched: bool = False  # Slurm had the time to forget the job before we missed it
    provisional: Diagnosis | None = None  # what the log so far would mean if it were all
    suspect_step: int | None = None
    suspicion: Diagnosis | None = None  # what is suspected of the live launch now
    steps_seen: int = 0
    moved_s: float | None = None  # when the counter of steps moved last, from its second move on
    longest_gap_s: float = 0.0  # between two such moves: what this launch is used to
    node_facts: NodeFacts = field(default_factory=NodeFacts)  # what the nodes' reports say
    node_stamp: int = 0  # of the reports as they were read last
    visit: Visit | None = None  # to the nodes, over SSH, after the end
    survived: set[str] = field(default_factory=set)  # findings after which training went on
    findings_seen: set[str] = field(default_factory=set)  # at the last look
    warned: tuple[float | None] | None = None  # `submit.warning_ahead_s`, once it was asked for
    afar: Afar | None = None  # the watch for hangs, where no agent has it
    tasks: dict[int, LiveTask] = field(default_factory=dict)  # the same of an array's tasks
    queued: QueueClock = field(default_factory=QueueClock)
    since: dict[str, float] = field(default_factory=dict)  # a condition -> since when it has held
    # The families and the attempt that were looked at last, and its rows among them.
    own: tuple[object, Attempt, tuple[JobRow, ...]] | None = None

    def learn(self, family: Iterable[JobRow], token: str) -> None:
        """What a job that shows our token is known as, if it should show it no more."""
        for row in family:
            if bears(row.comment, token):
                self.known_as = (row.user, row.name)
                self.submitted_s = row.submit_time_s
                return

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """All that the logs of this launch have shown so far."""
        return self.report.evidence if self.report is not None else ()

    def for_how_long(self, condition: str, mono_s: float) -> float:
        """Seconds since this condition was first noted (now, at the first call)."""
        return mono_s - self.since.setdefault(condition, mono_s)

    def due(self, what: str, mono_s: float, every_s: float) -> bool:
        """True at the first call and then once in `every_s` seconds."""
        last = self.since.get(what)
        if last is not None and mono_s - last < every_s:
            return False
        self.since[what] = mono_s
        return True

    def looked(self, *, seen: bool, mono_s: float) -> None:
        """A node may come back and go again while Slurm cannot be seen: its silence counts anew after a long outage (P6)."""
        if seen and self.looked_s is not None and "blind" not in self.since:
            self.answered_s += mono_s - self.looked_s
        self.looked_s = mono_s
        if not seen:
            self.queued.stop()
            self.since.setdefault("blind", mono_s)
        elif mono_s - self.since.pop("blind", mono_s) >= BLIND_FOR_S:
            self.since = {what: at for what, at in self.since.items() if not what.startswith("silent:")}

    def close(self) -> None:
        """Let go of log files."""
        for watcher in (self.watcher, *(task.watcher for task in self.tasks.values())):
            if watcher is not None:
                watcher.close()

    def at_start(self, start: int) -> Memory:
        """The memory of a later start of the script in the same launch: what the logs showed of the last one does not count."""
        self.close()
        kept = ("attempt", "launch", "agent_read", "pulse", "pulse_moved_s", "known_as", "submitted_s", "partition", "seen_s", "absent_since_s",
                "unwatched", "node_facts", "node_stamp")  # fmt: skip
        since = {key: at for key, at in self.since.items() if not key.startswith(_OF_THE_LOGS)}
        return Memory(start=start, since=since, **{name: getattr(self, name) for name in kept})


def note_launch(keeper: Keeper, world: World) -> None:
    """Take up what batch.sh wrote at the start; say so once when it wrote nothing (P10)."""
    _note_silence(keeper, world)
    note_start(keeper)
    attempt, memory = keeper.attempt, keeper.memory
    if attempt.launch.claim_seen:
        return
    launch = attempts.launch_record(keeper.run_dir, attempt.number, attempt.launch.number)
    if launch is not None:
        nodes = list(launch.nodes)
        keeper.record(
            "launch.seen",
            nodes=nodes,
            host=launch.host,
            resume_from=launch.resume_from,
            stdout=launch.stdout,
            passed=launch.passed,
        )
        return
    if attempts.has_tasks(keeper.run_dir, attempt.number):
        keeper.record("launch.seen", nodes=list(attempt.nodes))
        return
    waited = memory.for_how_long("claim", world.mono_s)
    if waited > CLAIM_EXPECTED_WITHIN_S and "claim-warned" not in memory.since:
        memory.since["claim-warned"] = world.mono_s
        keeper.record(
            "warned",
            message=f"nothing seen of attempt {attempt.number} in {keeper.run_dir}: do the nodes see this folder?",
        )


def note_start(keeper: Keeper) -> None:
    """The script may have been started again inside the launch: what follows is about that start alone."""
    attempt = keeper.attempt
    if attempt.launch.inside and attempt.launch.claim_seen:
        last = attempts.last_start(keeper.run_dir, attempt.number, attempt.launch.number)
        if last is not None and last.start > attempt.launch.start_seen:
            sizes = {log.path: _size_bytes(log.path) for log in afterwards.extra_logs(keeper)}
            keeper.record(
                "launch.seen",
                start=last.start,
                active=list(last.nodes),
                resume_from=last.resume_from,
                stdout=last.stdout,
                sizes=sizes,
            )
    if keeper.memory.start != keeper.attempt.launch.start.number:
        keeper.memory = keeper.memory.at_start(keeper.attempt.launch.start.number)


def _size_bytes(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def is_anothers(keeper: Keeper, world: World, row: JobRow) -> bool:
    """sbatch may have made two jobs of one token: the one that holds the claim is the attempt, the other leaves by itself."""
    if not row.state.ended and not keeper.memory.due("owner", world.mono_s, OWNER_EVERY_S):
        return False
    owner = attempts.owner(keeper.run_dir, keeper.attempt.number, keeper.attempt.launch.number)
    if owner is None or not owner.job or owner.job == keeper.attempt.job or len(keeper.rows(world)) > 1:
        return False
    adopt(keeper, owner.job)
    return True


def adopt(keeper: Keeper, job: str) -> None:
    """From now on this job is the attempt's. Raises OSError (journal)."""
    keeper.record("job.adopted", job_id=job, instead_of=keeper.attempt.job)
    store.index(keeper.office.home, job, keeper.run.id)


def _note_silence(keeper: Keeper, world: World) -> None:
    """A node is fenced by the time of its silence, which begins long before Slurm gives it up."""
    for node in keeper.attempt.reach:
        row = (world.nodes or {}).get(node)
        if row is not None and not row.responding:
            keeper.memory.for_how_long(f"silent:{node}", world.mono_s)
        else:
            keeper.memory.since.pop(f"silent:{node}", None)


def script_over(keeper: Keeper, world: World) -> bool:
    """True once in a launch: when its script has left the record of its end, so that Slurm is worth a look now."""
    attempt, since = keeper.attempt, keeper.memory.since
    if "script-over" in since or not attempts.script_over(
        keeper.run_dir, attempt.number, attempt.launch.number
    ):
        return False
    since["script-over"] = world.mono_s
    return True


def just_ended(keeper: Keeper) -> bool:
    """The script of a job that Slurm still calls live is over: worth a closer look for a while."""
    ended = keeper.memory.since.get("script-over")
    return ended is not None and keeper.office.clock.mono_s() - ended < JUST_ENDED_S


def watch(keeper: Keeper, world: World, *, fresh: bool = False) -> WatchReport | None:
    """Read what the logs have grown by; None while no log is known. First sightings and progress are journalled."""
    memory = keeper.memory
    over = keeper.attempt.failed_tasks and keeper.attempt.launch.end.at_s is not None
    if over and memory.due("task-logs", world.mono_s, float("inf")):
        memory.close()  # the logs of an array's failed tasks are read once it is known which they all are
        memory.watcher = None
    if keeper.settings.get("log") and memory.due("log-names", world.mono_s, LOG_NAMES_EVERY_S):
        memory.paths, before = frozenset(log.path for log in afterwards.extra_logs(keeper)), memory.paths
        if memory.paths - before:  # a log that the script began only now: where its steps are, perhaps
            memory.close()
            memory.watcher = None
    if not memory.next_began and launchlogs.later(
        keeper.run_dir, keeper.attempt.number, keeper.attempt.launch.number
    ):
        memory.next_began = (
            True  # it writes into the same file, and some of it may have been read as this one's
        )
        memory.close()
        memory.watcher = memory.step = memory.saved_step = None
    if memory.watcher is None:
        paths = _log_paths(keeper)
        if not paths:
            return None
        attempt = keeper.attempt
        ours = launchlogs.ours(keeper.run_dir, attempt.number, attempt.launch.number)
        memory.watcher = LogWatcher(paths, catalog=keeper.office.catalog(), ours=ours)
    memory.watcher.admit(*keeper.attempt.family)
    report = memory.watcher.poll(world.now_s, fresh=fresh)
    memory.report = report
    if report.last_growth_s != memory.growth:
        memory.growth, memory.growth_seen_s = report.last_growth_s, world.mono_s
    for evidence in report.new:
        note_evidence(keeper, evidence)
    for evidence in report.others:
        _note_ignored(keeper, evidence)
    _note_progress(keeper, world, report)
    return report


def _log_paths(keeper: Keeper) -> list[LogPath]:
    attempt = keeper.attempt
    tasks = attempts.task_records(keeper.run_dir, attempt.number, attempt.failed_tasks[:TASK_LOGS_MAX])
    paths = launchlogs.of_launch(keeper.run_dir, attempt.number, attempt.launch.number)
    paths += [path for record in tasks.values() for path in launchlogs.of_record(record)]
    return paths + afterwards.extra_logs(keeper)


def note_evidence(keeper: Keeper, evidence: Evidence) -> None:
    """Journal a fact of this launch the first time that it is seen."""
    if told := _not_yet_told(keeper, evidence):
        keeper.record("evidence", **told)


def _note_ignored(keeper: Keeper, evidence: Evidence) -> None:
    """The same of a line that another job wrote."""
    if told := _not_yet_told(keeper, evidence, IGNORED):
        keeper.record("line.ignored", **told)


def _not_yet_told(keeper: Keeper, evidence: Evidence, mark: str = "") -> dict[str, Any]:
    """What a record says of it; {} where it was told before, or enough was."""
    attempt = keeper.attempt
    place = f"{attempt.number}.{attempt.launch.number}" + (
        f".{attempt.launch.start.number}" if attempt.launch.start.number > 1 else ""
    )
    key = f"{place}:{evidence.signature}:{evidence.file}:{evidence.line}{mark}"
    if key in keeper.run.evidence_seen or len(keeper.run.evidence_seen) >= EVIDENCE_RECORDS_MAX:
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


def _note_progress(keeper: Keeper, world: World, report: WatchReport) -> None:
    progress = report.progress
    if progress is None or progress.step is None:
        return
    memory = keeper.memory
    memory.loss = progress.loss
    memory.saved_step = (
        progress.checkpoint_step if progress.checkpoint_step is not None else memory.saved_step
    )
    note_pace(memory, world.mono_s, report, progress.steps_seen)
    if memory.step is not None and progress.step <= memory.step:
        return
    first = memory.step is None
    memory.step = progress.step
    due = memory.progress_recorded_s is None or world.mono_s - memory.progress_recorded_s >= PROGRESS_EVERY_S
    if due:
        memory.progress_recorded_s = world.mono_s
        step_s = round(report.median_step_s, 4) if report.median_step_s is not None else None
        told = {"total": progress.total, "step_s": step_s}
        keeper.record("launch.progress", step=progress.step, loss=progress.loss, first_step=first, **told)


def note_pace(memory: Memory, mono_s: float, report: WatchReport, steps_seen: int) -> None:
    """The longest time between two looks that saw steps; the first of all may have been spent on compiling."""
    if steps_seen == memory.steps_seen:
        return
    if memory.moved_s is not None and not report.behind:
        memory.longest_gap_s = max(memory.longest_gap_s, mono_s - memory.moved_s)
    if memory.steps_seen and not report.behind:
        memory.moved_s = mono_s
    memory.steps_seen = steps_seen
