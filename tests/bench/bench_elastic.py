"""From a lost node to the first new step: with a spare, with a companion, smaller in place, smaller by a new job, and by a new job of full size. (I/O)

How it thinks. The same job of three nodes loses the same node each time, and the clock is that of `bench_inplace`: it starts when the node crashes and stops when rank 0
makes its first step again. All ways are measured in turns on one sandbox, so that ratios are of one run. `swap` is the measure of what is done in place, the new job
of full size is what a user has without any of it.

The queue is of three kinds. `idle`: a node is free. `taken`: strangers have all other nodes, and nobody waits. `busy`: strangers have them, and more strangers wait; a node that is
given back goes to these. A real queue is longer by far: what is measured here for a job that has to stand in it is a lower bound.

SlurmdTimeout is short here (sites have 300 s); whoever waits for Slurm to notice a lost node, all that need a new job, is favoured by that.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ftrun.supervisor.model import events
from ftrun.supervisor.store import journal
from tests.bench import bench_inplace as inplace
from tests.bench.figures import Figure, percentiles, ratio
from tests.bench.stand import FTRUN, Stand, stand, until

__all__ = ["WAYS", "Way", "measure"]

NODES = 5
SLURMD_TIMEOUT_S = 20
FULL, SMALLER = 3, 2
BACKLOG, EACH_S = 3, 20.0
AIM = 1.5
AT_MOST_S = 24 * 60.0
LIMIT_S = 240.0
SHAPE = (f"-N{FULL}", "--ntasks-per-node=1", "-t", "10", "-o", "log.%j")
SIZES = f"--ft-nodes={SMALLER}-{FULL}"
NEW_JOB = ("--ft-recover=resubmit", f"--ft-fence-wait={inplace.FENCE_WAIT_S:g}")
SMALLER_JOB = (*NEW_JOB, SIZES, "--ft-resize-after=5")
SCRIPT = """#!/bin/bash
srun --kill-on-bad-exit=1 {python} -I -S {trainer} {folder} "$SLURM_JOB_ID.$FTRUN_START" 100000 {step_s} 0
"""


@dataclass(frozen=True, slots=True)
class Way:
    """One way back: settings of the run, the queue it meets, the rung that must have been taken, and how many ranks may go on."""

    name: str
    words: tuple[str, ...]
    queue: str
    rung: str
    ranks: tuple[int, ...]


@dataclass
class Taken:
    """Seconds from the crash to the first new step, round by round, and of these until the rung was decided on."""

    all_s: list[float] = field(default_factory=list)
    decided_s: list[float] = field(default_factory=list)


SWAP = Way(
    "swap: a spare of its own", ("--ft-spares=1", "--ft-recover=swap,resubmit"), "idle", "swap", (FULL,)
)
IDLE = Way("new job, full size", NEW_JOB, "idle", "resubmit", (FULL,))
BUSY = Way("new job, full size", NEW_JOB, "busy", "resubmit", (FULL,))
WAYS = (
    SWAP,
    Way("companion: the missing node only", (SIZES,), "idle", "companion", (FULL,)),
    Way("smaller, in place", (SIZES,), "taken", "shrink", (SMALLER,)),
    Way("smaller, in place", (SIZES,), "busy", "shrink", (SMALLER,)),
    Way("smaller, new job", SMALLER_JOB, "taken", "resubmit", (SMALLER,)),
    # What is given back goes to those who wait: its turn may come only when there is room for the full size again.
    Way("smaller, new job", SMALLER_JOB, "busy", "resubmit", (SMALLER, FULL)),
    IDLE,
    BUSY,
)


def measure(rounds: int, *, ways: Sequence[Way] = WAYS) -> list[Figure]:
    """A figure for each way, of so many rounds, fewer where they would take longer than AT_MOST_S."""
    taken = {way: Taken() for way in ways}
    began, longest_s = time.monotonic(), 0.0
    with stand(nodes=NODES, slurmd_timeout_s=SLURMD_TIMEOUT_S) as here:
        (here.work / "queue").mkdir()
        (here.work / "queue").chmod(0o777)  # strangers write there
        for turn in range(rounds):
            at = time.monotonic()
            if at - began + longest_s > AT_MOST_S:
                print(f"  {turn} of {rounds} rounds: the next one would take too long", flush=True)
                break
            for way in ways:
                _one(here, way, taken[way])
                after = time.monotonic() - began
                print(
                    f"  {after:5.0f} s  round {turn + 1} of {rounds}  {way.name} ({way.queue}): {taken[way].all_s[-1]:.1f} s",
                    flush=True,
                )
            longest_s = max(longest_s, time.monotonic() - at)
    return [_figure(way, taken) for way in ways]


def _one(here: Stand, way: Way, taken: Taken) -> None:
    run_dir = here.ftrun_sbatch(*way.words, *SHAPE, _script(here))
    job = next(record["job"] for record in journal.read_run(str(run_dir)) if record["kind"] == "submit.done")
    nodes = _trains(here, job)
    strangers = _strangers(here, way.queue)
    at_s = time.time()
    here.box.break_node(nodes[1], "crash")
    token, first_s = until(lambda: _newer(here.work, at_s), LIMIT_S)
    taken.all_s.append(first_s - at_s)
    _check(here, run_dir, way, token)
    taken.decided_s.append(_decided(run_dir) - at_s)
    if strangers:
        here.call("scancel", *strangers)
    inplace.mended(here, nodes, FTRUN, "cancel", run_dir.name)


def _script(here: Stand) -> str:
    path = here.work / "elastic.sh"
    words = {"python": sys.executable, "trainer": inplace.TRAINER, "folder": here.work}
    path.write_text(SCRIPT.format(**words, step_s=inplace.STEP_S))
    return str(path)


def _trains(here: Stand, job: str) -> list[str]:
    """The active nodes, in the order of ranks, once it has trained for a while."""
    return inplace.trains(here, job)[:FULL]


def _newer(work: Path, at_s: float) -> tuple[str, float] | None:
    """(token, Unix seconds) of the first step of a start after that moment."""
    for path in work.glob("first.*"):
        if path.suffix != ".tmp" and (first_s := float(path.read_text())) > at_s:
            return path.name.removeprefix("first."), first_s
    return None


def _check(here: Stand, run_dir: Path, way: Way, token: str) -> None:
    """What went on is what this way is about. Raises RuntimeError."""
    run = events.fold(run_dir.name, journal.read_run(str(run_dir)))
    rungs = until(lambda: _rungs(run_dir), 20.0)
    ranks = len([path for path in here.work.glob(f"rank.{token}.*") if path.suffix != ".tmp"])
    if rungs[-1] != way.rung or ranks not in way.ranks:
        raise RuntimeError(f"{way.name} ({way.queue}): {rungs}, {ranks} ranks, {run.state.value}")


def _rungs(run_dir: Path) -> list[str]:
    """The rungs decided on, by the agent or by the supervisor."""
    return [rung for rung, _ in _decisions(run_dir)]


def _decisions(run_dir: Path) -> list[tuple[str, float]]:
    records = list(journal.read_run(str(run_dir)))
    told = [(r["data"]["rung"], r["data"]["at_s"]) for r in records if r["kind"] == "start.decided"]
    return told or [(r["data"]["kind"], r["at"]) for r in records if r["kind"] == "decided"]


def _decided(run_dir: Path) -> float:
    """Unix seconds of the last decision."""
    return _decisions(run_dir)[-1][1]


# ---------------------------------------------------------------------------- the queue


def _strangers(here: Stand, queue: str) -> list[str]:
    """Jobs of others, the first of which has all nodes that are left; nobody's where nodes are idle."""
    if queue == "idle":
        return []
    folder = here.work / "queue" / str(time.time_ns())
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    rest = len(here.call("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split())
    others = [_stranger(here, rest, f"until [ $(ls {folder} | wc -l) = {BACKLOG} ]; do sleep 0.2; done")]
    until(lambda: "RUNNING" in here.call("squeue", "-h", "-o", "%T", "-j", others[0]), 30.0)
    if queue == "busy":
        others += [_stranger(here, 1, f"sleep {EACH_S:g}; touch {folder}/{n}") for n in range(BACKLOG)]
    return others


def _stranger(here: Stand, nodes: int, line: str) -> str:
    """Of another user, where we may be one."""
    who = ["--uid=nobody", "--chdir=/"] if os.geteuid() == 0 else []
    return here.sbatch(*who, f"-N{nodes}", "--exclusive", "-t", "10", "--output=/dev/null", f"--wrap={line}")


# ---------------------------------------------------------------------------- figures


def _figure(way: Way, taken: dict[Way, Taken]) -> Figure:
    ours = taken[way].all_s
    swap = ratio(ours, taken[SWAP].all_s)
    aimed = way.rung in {"companion", "shrink"}
    rivals = {one: taken[one].all_s for one in (IDLE, BUSY) if one is not way and one in taken}
    notes = [
        f"{one.name} ({one.queue}) takes {statistics.median(times) / statistics.median(ours):.1f} times as long"
        for one, times in rivals.items()
    ]
    if way is BUSY:
        notes.append(f"{BACKLOG} jobs of {EACH_S:g} s wait in front of it; each more of them makes it longer")
    return Figure(
        name=f"node lost -> first new step, {way.name} (queue: {way.queue})",
        unit="s",
        ours=percentiles(ours, digits=1),
        rival_name="swap in the same run",
        rival=percentiles(taken[SWAP].all_s, digits=1),
        value=swap,
        value_name="in times of swap (medians)",
        aim=f"<= {AIM:g}" if aimed else "",
        held=swap <= AIM if aimed else None,
        parts={"until decided": percentiles(taken[way].decided_s, digits=1)},
        notes=tuple(notes),
    )
