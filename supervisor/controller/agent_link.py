"""The link to the agent inside an allocation: whether it lives, and what it has journalled. (I/O)

While the agent lives it alone decides and acts there (P8); the supervisor observes, records, and carries out
what a user wants. The agent lives while its counter moves, by this supervisor's own monotonic clock; a new
supervisor assumes that the counter moves until it has seen it stand still. An agent that is absent, dead or
off changes nothing: the supervisor works as without one.

Its journal is copied into the run's own, record by record, before anything is decided about the launch.
Records that the fold already knows are not copied again, so any supervisor can continue a copy that was cut
anywhere. An invalid record is logged and left out: the folder belongs to the job's user, and no line in it
may make the run's own journal unreadable.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ftrun.slurm.client.cluster import JobRow
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.controller import end_attempt
from ftrun.supervisor.model import agent_events
from ftrun.supervisor.model.events import apply
from ftrun.supervisor.model.states import AGENT_KINDS
from ftrun.supervisor.model.timers import Interval, Stopwatch
from ftrun.supervisor.model.types import WITHOUT_SCRIPT
from ftrun.supervisor.store import attempt_dir, journal, run_dir

STILL_FOR_S = 30.0  # an agent whose counter stands still for this long is dead
SILENT_FOR_S = 300.0  # without an agent
UNCLAIMED_FOR_S = 60.0  # a job runs without any sign of its script
BEAT_EVERY_S = 2.0
OPENS_WITHIN_S = 30.0  # its modules may come over a slow file system
LOOK_EVERY_S = 5.0
LOG_BYTES = 64 << 10  # of an agent's stderr, which is usually empty
ROUND_BYTES = 64 << 20  # of one agent's journal per pass: more than any agent writes
_NUMBERS = frozenset({"attempt", "job", "job_id", "launch", "start", "agent_seq", "at_s"})


@dataclass
class _Agent:
    read_bytes: dict[int, int] = field(default_factory=dict)  # launch -> copied bytes of its journal
    beat: bytes = b""  # its counter as last seen
    moved_s: float | None = None  # when the counter last moved
    beat_looked: Interval = field(default_factory=Interval)
    begins: Stopwatch = field(default_factory=Stopwatch)
    lacking: Stopwatch = field(default_factory=Stopwatch)
    log_looked: Interval = field(default_factory=Interval)


@dataclass
class _Script:
    """Whether any process runs the script of one launch."""

    headless: Stopwatch = field(default_factory=Stopwatch)
    # Start, steps and log growth, as last seen while its own node was gone from the job.
    life: tuple[int, int, float | None] | None = None
    unclaimed: Stopwatch = field(default_factory=Stopwatch)
    host_asked: Interval = field(default_factory=Interval)
    batch_host: str = ""  # by Slurm, if there is no sign of the script


def agent_is_alive(ctx: RunContext) -> bool:
    """Whether the agent of the present launch lives or is about to begin.

    Then nothing else acts in its allocation.
    """
    return _lives(ctx) if ctx.attempt.launch.inside else _begins(ctx)


def _begins(ctx: RunContext) -> bool:
    """Whether batch.sh has just started an agent that has journalled nothing yet."""
    attempt = ctx.attempt
    if attempt.launch.no_agent or not attempt.launch.claim_seen or attempt.launch.end.at_s is not None:
        return False
    if ctx.observations.per_launch(_Agent).begins.held_s(ctx.snapshot.mono_s) >= OPENS_WITHIN_S:
        return False
    folder = run_dir.attempt_dir(ctx.run_dir, attempt.number)
    return os.path.exists(os.path.join(folder, f"agent.{attempt.launch.number}.log"))


def _lives(ctx: RunContext) -> bool:
    attempt, agent = ctx.attempt, ctx.observations.per_launch(_Agent)
    if agent.moved_s is None:
        agent.moved_s = ctx.snapshot.mono_s
    if agent.beat_looked.due(ctx.snapshot.mono_s, BEAT_EVERY_S):
        path = os.path.join(_folder(ctx), f"pulse.{attempt.launch.number}")
        found = run_dir.read_untrusted(path, 64) or b""
        if found and found != agent.beat:
            agent.beat, agent.moved_s = found, ctx.snapshot.mono_s
    return ctx.snapshot.mono_s - agent.moved_s < STILL_FOR_S


def note_absence(ctx: RunContext, *, over: bool = False) -> None:
    """Record once why nothing is restarted inside this launch: its agent never wrote anything, or is dead.

    `over`: the launch is over.
    """
    attempt, agent = ctx.attempt, ctx.observations.per_launch(_Agent)
    if (
        attempt.launch.no_agent
        or not attempt.launch.claim_seen
        or (attempt.launch.inside and (over or _lives(ctx)))
    ):
        agent.lacking.stop()
        return
    if not over:
        waited_s = agent.lacking.held_s(ctx.snapshot.mono_s)
        if waited_s < OPENS_WITHIN_S or not agent.log_looked.due(ctx.snapshot.mono_s, LOOK_EVERY_S):
            return
    if attempt.launch.inside:
        ctx.record("agent.absent", why="the agent beside the script shows no sign of life any more")
        return
    folder = run_dir.attempt_dir(ctx.run_dir, attempt.number)
    output = run_dir.read_untrusted(os.path.join(folder, f"agent.{attempt.launch.number}.log"), LOG_BYTES)
    wrote = run_dir.read_untrusted(os.path.join(_folder(ctx), f"{attempt.launch.number}.jsonl"), 1)
    if output is None or wrote is not None:  # there is no agent, or its journal is still to be copied
        return
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    if lines or not over:  # a very short script leaves the agent no time to begin
        words = f": {lines[-1][:200]}" if lines else ""
        ctx.record("agent.absent", why=f"the agent beside the script has not begun its work{words}")


def end_if_headless(ctx: RunContext, row: JobRow) -> None:
    """End a job that goes on without the node of its batch script: no process runs the script any more.

    With `--no-kill` Slurm takes a lost node out of a job, even the first one, and leaves the job RUNNING to
    its time limit. Slurm confirms the fault (P7). If the node answers again by then, no step must have been
    made for a while; and without an agent, whose counter would show that it died, nothing must have been
    written for longer: a user may have taken the node out.
    """
    attempt, seen, script = ctx.attempt, ctx.observations, ctx.observations.per_launch(_Script)
    if attempt.launch.claim_seen:
        record = attempt_dir.launch_record(ctx.run_dir, attempt.number, attempt.launch.number)
        host = record.host if record is not None and record.host in attempt.nodes else ""
    else:
        host = _batch_host(ctx)
    if not host or not row.nodes or host in row.nodes or agent_is_alive(ctx):
        script.headless.stop()
        return
    node = (ctx.snapshot.nodes or {}).get(host)
    if node is not None and node.responding:
        life = (seen.start, seen.steps_seen, None if attempt.launch.inside else seen.growth_seen_s)
        if script.life != life:
            script.life = life
            script.headless.restart(ctx.snapshot.mono_s)
        if script.headless.held_s(ctx.snapshot.mono_s) < (
            STILL_FOR_S if attempt.launch.inside else SILENT_FOR_S
        ):
            return
    end_attempt.announce_end(ctx, f"{host} was lost, which the batch script ran on: {WITHOUT_SCRIPT}")


def _batch_host(ctx: RunContext) -> str:
    """The node that the script was to begin on, by Slurm; asked if there is no sign of the script for long.

    A node may be lost before the script has written anything; then no record names it. Raises SlurmError.
    """
    script = ctx.observations.per_launch(_Script)
    if script.unclaimed.held_s(ctx.snapshot.mono_s) < UNCLAIMED_FOR_S:
        return ""
    if script.host_asked.due(ctx.snapshot.mono_s, UNCLAIMED_FOR_S):
        details = ctx.services.cluster.details(ctx.attempt.job)
        script.batch_host = details.batch_host if details is not None else ""
    return script.batch_host


def copy_journal(ctx: RunContext) -> None:
    """Copy the agents' records of this attempt that the run does not have yet. Raises LeaseLost, OSError
    (journal).
    """
    present, read = ctx.attempt.launch.number, ctx.observations.per_launch(_Agent).read_bytes
    for launch in range(present + 1):
        if launch == present or launch not in read:
            _copy_launch(ctx, launch)


def copy_later_journals(ctx: RunContext) -> None:
    """Copy what the agents of launches noted that nobody followed: Slurm started the job again, and its end was already
    decided. What they learnt of checkpoints and nodes holds for the next attempt. Raises as `copy_journal`.
    """
    attempt = ctx.attempt
    for launch in attempt_dir.launch_numbers(ctx.run_dir, attempt.number):
        if launch > attempt.launch.number:
            _copy_launch(ctx, launch)


def _copy_launch(ctx: RunContext, launch: int) -> None:
    read, attempt = ctx.observations.per_launch(_Agent).read_bytes, ctx.attempt
    path = os.path.join(_folder(ctx), f"{launch}.jsonl")
    for end, record in _records(path, read.setdefault(launch, 0)):
        problem = _problem(record)
        if not problem and record["seq"] >= ctx.attempt.copied.get(launch, 0):
            problem = _copy(ctx, launch, record)
        if problem:
            ctx.services.tell(
                "agent.record-left-out", run=ctx.run.id, attempt=attempt.number, launch=launch, why=problem
            )
        read[launch] = end


def _copy(ctx: RunContext, launch: int, record: Mapping[str, Any]) -> str:
    """Journal one record of the agent. Returns why it was left out, or ""."""
    data = {key: value for key, value in record["data"].items() if key not in _NUMBERS}
    data |= {"agent_seq": record["seq"], "at_s": record["at"]}
    if record["kind"].startswith("companion."):
        data[agent_events.COMPANION_JOB_KEY] = agent_events.companion_job_of(record["data"])
    number = ctx.attempt.number
    start = record["start"] or 1
    copy = {"kind": record["kind"], "at": record["at"], "attempt": number, "launch": launch, "start": start}
    try:
        apply(ctx.run, copy | {"job": ctx.attempt.job, "data": data})
    except (LookupError, TypeError, AttributeError, ValueError, AssertionError) as error:
        return f"{record['kind']}: {type(error).__name__}: {error}"
    ctx.record(record["kind"], attempt=number, launch=launch, start=start, **data)
    return ""


def _folder(ctx: RunContext) -> str:
    return os.path.join(run_dir.attempt_dir(ctx.run_dir, ctx.attempt.number), "agent")


def _records(path: str, start_bytes: int) -> Iterator[tuple[int, Any]]:
    """(offset after the line, its JSON or None) of each whole line from an offset on.

    Nothing if unreadable.
    """
    content = run_dir.read_untrusted(path, ROUND_BYTES, start_bytes=start_bytes) or b""
    end = start_bytes
    for line in content.split(b"\n")[:-1]:  # the last piece is torn, or not completely written yet
        end += len(line) + 1
        try:
            yield end, journal.parse_record(line)
        except ValueError:
            yield end, None


def _problem(record: Any) -> str:
    """Why this is no agent record that this release knows; "" if it is one. (pure)"""
    if not isinstance(record, dict) or not isinstance(record.get("data"), dict):
        return "no record"
    if record.get("v") != journal.VERSION:
        return f"version {record.get('v')}"
    numbers = (record.get("seq"), record.get("at"), record.get("start"))
    if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in numbers):
        return "a record without its numbers"
    if not isinstance(record["seq"], int) or not isinstance(record["start"], int):
        return "a record without its numbers"
    kind = record.get("kind")
    return "" if isinstance(kind, str) and kind in AGENT_KINDS else f"unknown kind {kind!r:.80}"
