"""An allocation that has an agent inside: does it live, and what has it journalled? (I/O)

How it thinks. While the agent lives only the agent judges and acts there (P8); the supervisor looks on, writes down what it sees, and
carries out what a person wants. The agent lives while its counter moves, by this supervisor's own monotonic clock; a supervisor that has just come takes the
counter for moving until it has seen it stand still. An agent that is absent, dead or off changes nothing: all is as without one.

Its journal is copied into the run's own, record by record, before anything is decided about the launch. What the fold knows already is not
copied again, so a copy may be cut anywhere and be gone on with by anybody. A record that makes no sense is told and left out: the folder belongs to the
job's user, and no line in it may make the run's own journal unreadable.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ftrun.supervisor import attempts, companion_fold, journal, store
from ftrun.supervisor.end_reasons import WITHOUT_SCRIPT
from ftrun.supervisor.lifecycle import INSIDE

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import JobRow
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World

__all__ = ["STILL_FOR_S", "WITHOUT_SCRIPT", "headless", "in_charge", "look_for", "take"]

STILL_FOR_S = 30.0  # a counter that stands still for so long is a dead agent's
SILENT_FOR_S = 300.0  # without an agent
UNCLAIMED_FOR_S = 60.0  # a job runs, and nothing of its script is seen
PULSE_EVERY_S = 2.0
OPENS_WITHIN_S = 30.0  # its modules may come over a slow file system
LOOK_EVERY_S = 5.0
LOG_BYTES = 64 << 10  # of what an agent says on stderr: most say nothing
ROUND_BYTES = 64 << 20  # of one agent's journal at one look: more than any agent writes
_NUMBERS = frozenset({"attempt", "job", "job_id", "launch", "start", "agent_seq", "at_s"})


def in_charge(keeper: Keeper, world: World) -> bool:
    """The agent of the present launch lives, or is about to begin: nobody else acts inside its allocation."""
    return _lives(keeper, world) if keeper.attempt.inside else _begins(keeper, world)


def _begins(keeper: Keeper, world: World) -> bool:
    """batch.sh has started an agent a moment ago, which has journalled nothing yet."""
    attempt, memory = keeper.attempt, keeper.memory
    if attempt.no_agent or not attempt.claim_seen or attempt.ended_at_s is not None:
        return False
    if memory.for_how_long("agent-begins", world.mono_s) >= OPENS_WITHIN_S:
        return False
    folder = store.attempt_dir(keeper.run_dir, attempt.number)
    return os.path.exists(os.path.join(folder, f"agent.{attempt.launch}.log"))


def _lives(keeper: Keeper, world: World) -> bool:
    attempt, memory = keeper.attempt, keeper.memory
    if memory.pulse_moved_s is None:
        memory.pulse_moved_s = world.mono_s
    if memory.due("pulse", world.mono_s, PULSE_EVERY_S):
        path = os.path.join(_folder(keeper), f"pulse.{attempt.launch}")
        found = store.content(path, 64) or b""
        if found and found != memory.pulse:
            memory.pulse, memory.pulse_moved_s = found, world.mono_s
    return world.mono_s - memory.pulse_moved_s < STILL_FOR_S


def look_for(keeper: Keeper, world: World, *, over: bool = False) -> None:
    """Say once why nothing is restarted inside this launch: batch.sh started an agent that never wrote anything, or it is dead. `over`: the launch is."""
    attempt, memory = keeper.attempt, keeper.memory
    if attempt.no_agent or not attempt.claim_seen or (attempt.inside and (over or _lives(keeper, world))):
        memory.since.pop("no-agent", None)
        return
    if not over:
        waited_s = memory.for_how_long("no-agent", world.mono_s)
        if waited_s < OPENS_WITHIN_S or not memory.due("agent-log", world.mono_s, LOOK_EVERY_S):
            return
    if attempt.inside:
        keeper.record("agent.absent", why="the agent beside the script shows no sign of life any more")
        return
    folder = store.attempt_dir(keeper.run_dir, attempt.number)
    said = store.content(os.path.join(folder, f"agent.{attempt.launch}.log"), LOG_BYTES)
    wrote = store.content(os.path.join(_folder(keeper), f"{attempt.launch}.jsonl"), 1)
    if said is None or wrote is not None:  # none was to be there, or what it wrote is still to be copied
        return
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    if lines or not over:  # a script that is soon over leaves it no time to begin
        words = f": {lines[-1][:200]}" if lines else ""
        keeper.record("agent.absent", why=f"the agent beside the script has not begun its work{words}")


def headless(keeper: Keeper, world: World, row: JobRow) -> None:
    """End a job that goes on without the node of its batch script, whose agent died with it: nobody runs the script any more.

    Slurm takes a lost node out of a job with `--no-kill`, be it the first one, and leaves the job RUNNING to its time limit.
    Slurm confirms the fault (P7). Where the node answers again by then, no step must have been made for a while, and where no agent's
    counter tells that it died, nothing must have been written for longer: a person may have taken the node out of the job.
    """
    attempt, memory = keeper.attempt, keeper.memory
    record = (
        attempts.launch_record(keeper.run_dir, attempt.number, attempt.launch) if attempt.claim_seen else None
    )
    host = record.host if record is not None and record.host in attempt.nodes else ""
    if not attempt.claim_seen:
        host = _batch_host(keeper, world)
    if not host or not row.nodes or host in row.nodes or in_charge(keeper, world):
        memory.since.pop("headless", None)
        return
    node = (world.nodes or {}).get(host)
    if node is not None and node.responding:
        life = (memory.steps_seen, None if attempt.inside else memory.growth_seen_s)
        if memory.headless_life != life:
            memory.headless_life = life
            memory.since["headless"] = world.mono_s
        if memory.for_how_long("headless", world.mono_s) < (STILL_FOR_S if attempt.inside else SILENT_FOR_S):
            return
    keeper.intend_end(f"{host} was lost, which the batch script ran on: {WITHOUT_SCRIPT}")


def _batch_host(keeper: Keeper, world: World) -> str:
    """The node that the script of a job was to begin on, by what Slurm says: asked for where nothing of the script is seen for long. Raises SlurmError.

    A node may be lost before the script has written anything: then no record tells its name.
    """
    memory = keeper.memory
    if memory.for_how_long("unclaimed", world.mono_s) < UNCLAIMED_FOR_S:
        return ""
    if memory.due("batch-host", world.mono_s, UNCLAIMED_FOR_S):
        details = keeper.office.cluster.details(keeper.attempt.job)
        memory.batch_host = details.batch_host if details is not None else ""
    return memory.batch_host


def take(keeper: Keeper) -> None:
    """Copy what the agents of this attempt's launches have journalled and the run does not know. Raises LeaseLost, OSError (journal)."""
    present, read = keeper.attempt.launch, keeper.memory.agent_read
    for launch in range(present + 1):
        if launch == present or launch not in read:
            _take_from(keeper, launch)


def _take_from(keeper: Keeper, launch: int) -> None:
    read, attempt = keeper.memory.agent_read, keeper.attempt
    path = os.path.join(_folder(keeper), f"{launch}.jsonl")
    for end, record in _records(path, read.setdefault(launch, 0)):
        problem = _problem(record)
        if not problem and record["seq"] >= keeper.attempt.copied.get(launch, 0):
            problem = _copy(keeper, launch, record)
        if problem:
            keeper.office.tell(
                "agent.record-left-out",
                run=keeper.run.id,
                attempt=attempt.number,
                launch=launch,
                why=problem,
            )
        read[launch] = end


def _copy(keeper: Keeper, launch: int, record: Mapping[str, Any]) -> str:
    """Journal one record of the agent's. Returns why it was left out; "" where it was not."""
    data = {key: value for key, value in record["data"].items() if key not in _NUMBERS}
    data |= {"agent_seq": record["seq"], "at_s": record["at"]}
    if record["kind"].startswith("companion."):
        data[companion_fold.JOB] = companion_fold.job_of(record["data"])
    number = keeper.attempt.number
    start = record["start"] or 1
    copy = {"kind": record["kind"], "at": record["at"], "attempt": number, "launch": launch, "start": start}
    try:
        keeper.run.after(copy | {"job": keeper.attempt.job, "data": data})
    except (LookupError, TypeError, AttributeError, ValueError, AssertionError) as error:
        return f"{record['kind']}: {type(error).__name__}: {error}"
    keeper.record(record["kind"], attempt=number, launch=launch, start=start, **data)
    return ""


def _folder(keeper: Keeper) -> str:
    return os.path.join(store.attempt_dir(keeper.run_dir, keeper.attempt.number), "agent")


def _records(path: str, start_bytes: int) -> Iterator[tuple[int, Any]]:
    """(offset after the line, its JSON or None) of each whole line from an offset on; nothing where the file cannot be read."""
    content = store.content(path, ROUND_BYTES, start_bytes=start_bytes) or b""
    end = start_bytes
    for line in content.split(b"\n")[
        :-1
    ]:  # what stands behind the last is torn, or not written to its end yet
        end += len(line) + 1
        try:
            yield end, json.loads(line.decode("utf-8", "surrogateescape"))
        except (ValueError, RecursionError):
            yield end, None


def _problem(record: Any) -> str:
    """Why this is no record of an agent's that this release knows; "" where it is one. (pure)"""
    if not isinstance(record, dict) or not isinstance(record.get("data"), dict):
        return "no record"
    if record.get("v") != journal.VERSION:
        return f"version {record.get('v')}"
    numbers = (record.get("seq"), record.get("at"), record.get("start"))
    if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in numbers):
        return "a record without its numbers"
    if not isinstance(record["seq"], int) or not isinstance(record["start"], int):
        return "a record without its numbers"
    return "" if record.get("kind") in INSIDE else f"unknown kind {record.get('kind')!r}"
