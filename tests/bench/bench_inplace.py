"""From a fault to the first new step, rung by rung: ftrun inside its allocation, a hand that knows everything, and a new job. (I/O)

How it thinks. The clock starts when the fault is injected, and stops when rank 0 of the same trainer makes its first step again; the trainer itself writes that
moment, so nobody's way of noticing it counts. All contenders meet the same fault in turns on one sandbox.

The bare relaunch is what nobody can do: a script written for this one fault, which is told by the bench, at the moment of the fault, what happened and on which nodes to
go on, cancels the step and calls `srun --overlap` at once. What ftrun needs beyond it is the price of finding out. `resubmit` is ftrun itself, told to
recover by new jobs only, once with idle nodes at hand and once with a job before it in the queue.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftrun.supervisor.store import journal
from tests.bench.figures import Figure, percentiles, ratio
from tests.bench.stand import FTRUN, Stand, stand, until

__all__ = ["measure", "mended", "trains"]

TRAINER = Path(__file__).with_name("pair.py")
STEP_S = 0.2
BEFORE_S = 6.0  # of training, before the fault
PATIENCE_S = 5.0  # of a collective, where a node freezes
FENCE_WAIT_S = 5.0
QUEUE_S = 30.0  # how long the job in front of ours runs
AIM_BEYOND_S = 3.0
AIM_TIMES = 5.0
LIMIT_S = 180.0
SHAPE = ("-N2", "-n2", "--ntasks-per-node=1", "-t", "10", "-o", "log.%j")
MINE = """#!/bin/bash
srun --kill-on-bad-exit=1 {python} {trainer} {folder} "$SLURM_JOB_ID.$FTRUN_START" 100000 {step_s} {patience_s}
"""
BARE = """#!/bin/bash
go() {{ srun --overlap --no-kill --kill-on-bad-exit=1 -N2 -n2 -x "$2" {python} {trainer} {folder} "$SLURM_JOB_ID.$1" 100000 {step_s} {patience_s}; }}
nodes=($(scontrol show hostnames))
go 1 "${{nodes[2]}}" &
read -r how <told.$SLURM_JOB_ID
scancel "$SLURM_JOB_ID.0"
if [ "$how" = swap ]; then go 2 "${{nodes[1]}}"; else go 2 "${{nodes[2]}}"; fi
"""
PHASES = (
    ("fault", "start.over", "the script has ended (detected)"),
    ("start.over", "start.diagnosed", "log quiet, nodes asked, cause told"),
    ("start.diagnosed", "start.decided", "decided"),
    ("start.decided", "start.stopped", "old step cancelled (stopped)"),
    ("start.stopped", "start.placed", "nodes placed"),
    ("start.placed", "start.begun", "script starts again (restarted)"),
    ("start.begun", "first", "first new step"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One fault: how it is done to rank 1, the rung that is to follow, how long a collective waits for a peer (seconds, 0 = for ever)."""

    name: str
    rung: str
    how: str
    patience_s: float = 0.0


CASES = (
    Case("step: a rank is killed", "step", "kill"),
    Case("swap: a node crashes", "swap", "crash"),
    Case(f"swap: a node freezes, its peers give up after {PATIENCE_S:g} s", "swap", "freeze", PATIENCE_S),
    Case("swap: a node freezes, its peers wait for ever", "swap", "freeze"),
)


@dataclass
class Taken:
    """Seconds from fault to first new step by each contender, and the phases of ftrun's own."""

    inplace: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    resubmit: list[float] = field(default_factory=list)
    queued: list[float] = field(default_factory=list)
    phases: dict[str, list[float]] = field(default_factory=dict)


def measure(rounds: int, *, cases: Sequence[Case] = CASES, resubmits: bool = True) -> list[Figure]:
    """A figure for each fault, of so many rounds; nodes are mended between two contenders."""
    taken = {case.name: Taken() for case in cases}
    with stand(nodes=5, slurmd_timeout_s=60) as here:
        for turn in range(rounds):
            for case in cases:
                one = taken[case.name]
                _inplace(here, case, one)
                one.bare.append(_bare(here, case))
                if resubmits and (case.patience_s or case.how != "freeze"):
                    one.resubmit.append(_resubmit(here, case))
                    if turn == 0 or rounds > 2:
                        one.queued.append(_resubmit(here, case, queued=True))
    return [_figure(case, taken[case.name]) for case in cases]


# ---------------------------------------------------------------------------- the contenders


def _inplace(here: Stand, case: Case, one: Taken) -> None:
    spares = ["--ft-spares=1"] if case.rung == "swap" else []
    run_dir = here.ftrun_sbatch(*spares, *SHAPE, _script(here, MINE, case))
    job = _job(run_dir)
    nodes = trains(here, job)
    at_s = _break(here, case, f"{job}.1", nodes)
    first_s = _first(here, f"{job}.2")
    one.inplace.append(first_s - at_s)
    begun = 0
    at = {"fault": at_s, "first": first_s}
    for record in _agent_records(run_dir):
        begun += record["kind"] == "start.begun"
        if record["kind"] != "start.begun" or begun == 2:
            at.setdefault(record["kind"], record["at"])
    rung = next(r["data"]["rung"] for r in _agent_records(run_dir) if r["kind"] == "start.decided")
    if rung != case.rung:
        raise RuntimeError(f"{case.name}: {rung}")
    for earlier, later, title in PHASES:
        one.phases.setdefault(title, []).append(at[later] - at[earlier])
    mended(here, nodes, FTRUN, "cancel", job)


def _bare(here: Stand, case: Case) -> float:
    spare = ["-N3", "-n3", "--no-kill"] if case.rung == "swap" else []
    job = here.sbatch(*SHAPE, *spare, _script(here, BARE, case))
    os.mkfifo(here.work / f"told.{job}")
    nodes = trains(here, job)
    at_s = _break(here, case, f"{job}.1", nodes)
    (here.work / f"told.{job}").write_text(f"{case.rung}\n")
    took = _first(here, f"{job}.2") - at_s
    mended(here, nodes, "scancel", job)
    return took


def _resubmit(here: Stand, case: Case, *, queued: bool = False) -> float:
    """With `queued`, every other node has a job on it, and one more waits in front of the new one."""
    words = ["--ft-recover=resubmit", f"--ft-fence-wait={FENCE_WAIT_S:g}"]
    run_dir = here.ftrun_sbatch(*words, *SHAPE, _script(here, MINE, case))
    job = _job(run_dir)
    nodes = trains(here, job)
    others = _in_line(here) if queued else []
    at_s = _break(here, case, f"{job}.1", nodes)
    again = str(until(lambda: _submitted(run_dir, 2), LIMIT_S))
    took = _first(here, f"{again}.1") - at_s
    for other in others:
        here.call("scancel", other)
    mended(here, nodes, FTRUN, "cancel", again)
    return took


def _in_line(here: Stand) -> list[str]:
    """Every other node is taken, and a job waits in front of ours: it begins on the first node that ours leaves, and when it is done all are free."""
    over = here.work / f"over.{time.time_ns()}"
    for name, line in (
        ("others", f"until [ -e {over} ]; do sleep 0.1; done"),
        ("next", f"sleep {QUEUE_S:g}; touch {over}"),
    ):
        (here.work / f"{name}.sh").write_text(f"#!/bin/bash\n{line}\n")
    running = here.sbatch("-N3", "--exclusive", "-t", "10", "-o", "/dev/null", str(here.work / "others.sh"))
    until(lambda: "RUNNING" in here.call("squeue", "-h", "-o", "%T", "-j", running), 30.0)
    return [
        running,
        here.sbatch("-N1", "--exclusive", "-t", "10", "-o", "/dev/null", str(here.work / "next.sh")),
    ]


# ---------------------------------------------------------------------------- what they share


def _script(here: Stand, text: str, case: Case) -> str:
    path = here.work / f"{'bare' if text is BARE else 'mine'}.{case.rung}.{case.patience_s:g}.sh"
    path.write_text(
        text.format(
            python=sys.executable,
            trainer=f"-I -S {TRAINER}",
            folder=here.work,
            step_s=STEP_S,
            patience_s=case.patience_s,
        )
    )
    return str(path)


def _job(run_dir: Path) -> str:
    """The job of a run's first attempt."""
    return str(_submitted(run_dir, 1))


def _submitted(run_dir: Path, attempt: int) -> str:
    found = [
        record["job"]
        for record in journal.read_run(str(run_dir))
        if record["kind"] == "submit.done" and record["attempt"] == attempt
    ]
    return str(found[0]) if found else ""


def _agent_records(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / "attempts" / "1" / "agent" / "0.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def _first(here: Stand, token: str) -> float:
    """Unix seconds of the first step of one start."""
    path = here.work / f"first.{token}"
    return float(until(lambda: path.exists() and path.read_text(), LIMIT_S))


def trains(here: Stand, job: str) -> list[str]:
    """Its nodes, once it has trained for a while."""
    _first(here, f"{job}.1")
    time.sleep(BEFORE_S)
    listed = here.call("squeue", "-h", "-o", "%N", "-j", job).strip()
    return here.call("scontrol", "show", "hostnames", listed).split()


def _break(here: Stand, case: Case, token: str, nodes: Sequence[str]) -> float:
    """Unix seconds of the fault that hits rank 1, which runs on the second node."""
    pid = int((here.work / f"rank.{token}.1").read_text())
    at_s = time.time()
    if case.how == "kill":
        os.kill(pid, signal.SIGKILL)
    else:
        here.box.break_node(nodes[1], case.how)
    return at_s


def mended(here: Stand, nodes: Sequence[str], *cancel: str) -> None:
    """The nodes first: a job is not over while Slurm waits for a dead one."""
    for node in nodes:
        here.box.mend(node)
    here.call(*cancel)
    until(lambda: not here.call("squeue", "-h", "-t", "all", "-o", "%i %T").count("COMPLETING"), 60.0)


# ---------------------------------------------------------------------------- figures


def _figure(case: Case, taken: Taken) -> Figure:
    beyond = round(statistics.median(taken.inplace) - statistics.median(taken.bare) - case.patience_s, 2)
    aimed = bool(case.patience_s) or case.how != "freeze"
    times = ratio(taken.queued, taken.inplace) if taken.queued else None
    held = beyond <= AIM_BEYOND_S and (times is None or times >= AIM_TIMES)
    notes = [f"in bare relaunches: {ratio(taken.inplace, taken.bare):g}"]
    if case.patience_s:
        notes.append(f"the {case.patience_s:g} s in which no collective could know are taken off")
    if times is not None:
        notes.append(
            f"resubmit with a queue (one job of {QUEUE_S:g} s in front) takes {times:g} times as long"
        )
        notes.append(f"resubmit onto idle nodes takes {ratio(taken.resubmit, taken.inplace):g} times as long")
    medians = {title: statistics.median(values) for title, values in taken.phases.items()}
    bare = statistics.median(taken.bare)
    notes.append(
        "phases in bare relaunches: "
        + ", ".join(f"{title} {took / bare:.1f}" for title, took in medians.items())
    )
    return Figure(
        name=f"fault -> first new step, {case.name}",
        unit="s",
        ours=percentiles(taken.inplace, digits=2),
        rival_name="bare relaunch, told at once",
        rival=percentiles(taken.bare, digits=2),
        value=beyond,
        value_name="seconds beyond the bare relaunch (medians)",
        aim=f"<= {AIM_BEYOND_S:g} s, and {AIM_TIMES:g} times quicker than resubmit with a queue"
        if aimed
        else "",
        held=held if aimed else None,
        parts={
            **{f"ftrun: {title}": percentiles(values, digits=2) for title, values in taken.phases.items()},
            **({"resubmit, idle nodes": percentiles(taken.resubmit, digits=2)} if taken.resubmit else {}),
            **({"resubmit with a queue": percentiles(taken.queued, digits=2)} if taken.queued else {}),
        },
        notes=tuple(notes),
    )
