"""From evidence to decision, and from decision to the next attempt on the nodes. (I/O)

The clock of a start stops when the first line of the user's script runs, for ftrun and for the rival alike: that is what a
user waits for, and Slurm's own start times are whole seconds.

The rival is what a person does who knows already what to do: `scancel` and `sbatch` of a job of the same shape, in turns with
ours on the same sandbox and after the same fault: of a job that has failed by itself, or of a job on the same two nodes that
the same break has hit, with `--exclude`. slurmctld starts waiting jobs once a second, which would drown everything
else; so the rival begins in the same part of that second in which ours decided.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from pathlib import Path

from ftrun.supervisor.store import journal
from tests.bench.figures import Figure, percentiles, ratio
from tests.bench.stand import FTRUN, Stand, moments, stand, until

__all__ = ["broken", "healthy"]

AIM_RATIO = 1.5
AIM_HANDED_OVER_RATIO = 1.2
AIM_DECIDED_MS = 2600
FENCE_WAIT_S = 5.0
# The second attempt, and a plain job, only say that they began.
JOB = """#!/bin/bash
echo $EPOCHREALTIME >{work}/began.$SLURM_JOB_ID
if [ "${{FTRUN_ATTEMPT:-2}}" = 1 ] && [ -n "$FAIL" ]; then
    echo "step 1 loss 2.5"
    sleep 1
    echo "[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2021, remote process exited or there was a network error, ncclRemoteError"
    exit 1
fi
exec sleep 300
"""
SHAPE = ("-N2", "--ntasks-per-node=1", "-t", "10", "-o", "log.%j")
PARTS = (
    ("decided", "attempt.over", "the old attempt proven over"),
    ("attempt.over", "submit.intended", "strays looked for, next attempt opened"),
    ("submit.intended", "submit.done", "sbatch"),
    ("submit.done", "started", "Slurm starts it"),
    ("started", "began", "Slurm and batch.sh until the script begins"),
)


SETTLED = (
    ("evidence", "start.left", "evidence -> the agent leaves it to the supervisor"),
    ("start.left", "ended", "left -> the job's end seen in Slurm"),
)


class _Round:
    """What one recovery took: moment -> Unix seconds."""

    def __init__(self, here: Stand, run_dir: Path) -> None:
        began = _began(here, run_dir)
        first = moments(run_dir)
        for record in journal.read_run(
            str(run_dir)
        ):  # of the last start: the agent may have tried one in place
            if record["attempt"] == 1 and record["kind"] in ("evidence", "start.left"):
                first[record["kind"], 1] = record["data"].get("at_s", record["at"])
        self.at = {
            kind: first[kind, attempt]
            for kind, attempt in (
                ("job.ended", 1),
                ("job.requeued", 1),
                ("evidence", 1),
                ("start.left", 1),
                ("decided", 1),
                ("attempt.over", 1),
                ("submit.intended", 2),
                ("submit.done", 2),
            )
            if (kind, attempt) in first
        }
        self.at["began"] = began
        self.at["started"] = _started(here, _job_of(run_dir, 2))
        self.at["ended"] = self.ended_s

    def between(self, earlier: str, later: str) -> float:
        """Milliseconds."""
        return (self.at[later] - self.at[earlier]) * 1e3

    @property
    def ended_s(self) -> float:
        """When the end of the launch was noted."""
        return min(self.at[kind] for kind in ("job.ended", "job.requeued") if kind in self.at)


def _began(here: Stand, run_dir: Path) -> float:
    """When the script of attempt 2 began."""

    def start() -> str:
        job = _job_of(run_dir, 2)
        path = here.work / f"began.{job}"
        return path.read_text().strip() if job and path.exists() else ""

    return float(until(start, 120.0))


def _started(here: Stand, job: str) -> float:
    """When slurmctld started the job, Unix seconds by its log."""
    log = (here.box.log / "slurmctld.log").read_text()
    found = re.search(rf"^\[(\S+)\] .*(?:Started|Allocate) JobId={job} ", log, re.MULTILINE)
    assert found is not None, f"slurmctld tells of no start of job {job}"
    return datetime.fromisoformat(found[1]).timestamp()


def _job_of(run_dir: Path, attempt: int) -> str:
    done = [
        r["job"]
        for r in journal.read_run(str(run_dir))
        if r["kind"] == "submit.done" and r["attempt"] == attempt
    ]
    return str(done[0]) if done else ""


def _failed(here: Stand, job: str) -> bool:
    return "FAILED" in here.call("squeue", "-h", "-t", "all", "-o", "%T", "-j", job)


def _script(here: Stand) -> str:
    path = here.work / "job.sh"
    path.write_text(JOB.format(work=here.work))
    return str(path)


def _plain_begun(here: Stand, *words: str) -> tuple[str, float]:
    job = here.sbatch(*SHAPE, *words, _script(here))
    path = here.work / f"began.{job}"
    return job, float(until(lambda: path.exists() and path.read_text().strip(), 60.0, every_s=0.01))


def _bare(here: Stand, job: str, *words: str, like_s: float) -> tuple[str, float, float]:
    """Milliseconds from `scancel` of a job to the first line of the job that `sbatch` put in its place, and from its start by Slurm.
    It begins in the same part of the second as the moment `like_s`.
    """
    time.sleep((like_s - time.time()) % 1.0)
    asked = time.time()
    here.call("scancel", job)
    again, began = _plain_begun(here, *words)
    return again, (began - asked) * 1e3, (began - _started(here, again)) * 1e3


def _why_missed(held: bool, parts: Mapping[str, Mapping[str, float]]) -> tuple[str, ...]:
    """The part that took longest, where an aim is missed."""
    longest = max(parts, key=lambda title: parts[title].get("p50", 0.0))
    return () if held else (f"missed: most of it is '{longest}', p50 {parts[longest]['p50']:g} ms",)


def _figure(
    name: str,
    rounds: list[_Round],
    rival: list[float],
    rival_name: str,
    notes: tuple[str, ...],
    aim: float = AIM_RATIO,
) -> Figure:
    ours = [one.between("decided", "began") for one in rounds]
    measured = ratio(ours, rival)
    parts = {
        title: percentiles([one.between(a, b) for one in rounds if a in one.at and b in one.at], digits=0)
        for a, b, title in PARTS
    }
    return Figure(
        name=name,
        unit="ms",
        ours=percentiles(ours, digits=0),
        rival_name=rival_name,
        rival=percentiles(rival, digits=0),
        value=measured,
        value_name="ratio of medians",
        aim=f"<= {aim:g}",
        held=measured <= aim,
        notes=(*notes, *_why_missed(measured <= aim, parts)),
        parts=parts,
    )


# ---------------------------------------------------------------------------- the job fails by itself


def healthy(rounds: int) -> list[Figure]:
    """The job ends by itself with a network error of NCCL; its nodes are well. A figure of deciding and one of acting."""
    done, bare, bare_ends = [], [], []
    with stand(nodes=4) as here:
        here.env["FAIL"] = "1"
        for _ in range(rounds):
            run_dir = here.ftrun_sbatch(*SHAPE, _script(here))
            done.append(_Round(here, run_dir))
            job = here.sbatch("--export=ALL,FTRUN_ATTEMPT=1", *SHAPE, _script(here))
            until(partial(_failed, here, job), 30.0)
            job, took, end = _bare(here, job, like_s=done[-1].at["decided"])
            bare.append(took)
            bare_ends.append(end)
            here.call(
                FTRUN, "cancel", _job_of(run_dir, 2)
            )  # not before: the end of a job makes Slurm look at its queue
            here.call("scancel", job)
    deciding = [one.between("evidence", "decided") for one in done]
    told = percentiles(deciding, digits=0)
    parts = {
        title: percentiles([one.between(a, b) for one in done if a in one.at and b in one.at], digits=0)
        for a, b, title in SETTLED
    }
    parts["its end seen -> decided"] = percentiles(
        [(one.at["decided"] - one.ended_s) * 1e3 for one in done], digits=0
    )
    held = told["p50"] <= AIM_DECIDED_MS
    return [
        Figure(
            name="last evidence -> decision (the job ended by itself)",
            unit="ms",
            ours=told,
            rival_name="log-quiet time (setting)",
            rival={"p50": 2000},
            value=round(told["p50"] / 2000, 2),
            value_name="median over the log-quiet time",
            aim=f"<= {AIM_DECIDED_MS} ms",
            held=held,
            parts=parts,
            notes=(
                "the agent settles: 0.5 s without a line once all nodes answered that nothing is left, 2 s else",
                *_why_missed(held, parts),
            ),
        ),
        _figure(
            "decision -> script of the next attempt runs, healthy nodes",
            done,
            bare,
            "scancel + sbatch",
            (
                f"the rival, from its start by Slurm until its script begins: p50 {percentiles(bare_ends, digits=0)['p50']:g} ms",
            ),
            AIM_HANDED_OVER_RATIO,
        ),
    ]


# ---------------------------------------------------------------------------- a node crashes or freezes


def broken(rounds: int) -> list[Figure]:
    """One of two nodes crashes, or freezes; both kinds side by side on one sandbox, each on nodes of its own."""
    found: dict[str, tuple[list[_Round], list[float]]] = {how: ([], []) for how in ("crash", "freeze")}
    with stand(nodes=4 * rounds + 2) as here:
        lanes = [
            threading.Thread(target=_lane, args=(here, how, number, rounds, *found[how]))
            for number, how in enumerate(found)
        ]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
    return [_broken_figure(how, *found[how]) for how in found]


def _lane(here: Stand, how: str, number: int, rounds: int, done: list[_Round], bare: list[float]) -> None:
    for turn in range(rounds):
        first = 2 * (number * rounds + turn)
        pair, victim = f"n{first},n{first + 1}", f"n{first + 1}"
        plain, _ = _plain_begun(here, "-w", pair)
        run_dir = here.ftrun_sbatch(f"--ft-fence-wait={FENCE_WAIT_S:g}", *SHAPE, "-w", pair, _script(here))
        until((here.work / f"began.{_job_of(run_dir, 1)}").exists, 60.0)
        here.box.break_node(victim, how)
        done.append(_Round(here, run_dir))
        again, took, _ = _bare(here, plain, f"--exclude={victim}", like_s=done[-1].at["attempt.over"])
        bare.append(took)
        here.call(FTRUN, "cancel", _job_of(run_dir, 2))
        here.call("scancel", again)


def _broken_figure(how: str, done: list[_Round], bare: list[float]) -> Figure:
    word = {"crash": "a crashed", "freeze": "a frozen"}[how]
    beyond = [one.between("attempt.over", "began") for one in done]
    waited = percentiles([took + FENCE_WAIT_S * 1e3 for took in bare], digits=0)
    return _figure(
        f"decision -> script of the next attempt runs, {word} node",
        done,
        [took + FENCE_WAIT_S * 1e3 for took in bare],
        f"scancel + sbatch --exclude + {FENCE_WAIT_S:g} s",
        (
            f"fence-wait={FENCE_WAIT_S:g} s here (default SlurmdTimeout + 30 s), a law: what a node may still write must be over",
            "ours counts it from the first silence of the node; to the measured time of the rival the whole wait is added",
            f"the rival as measured: p50 {waited['p50'] - FENCE_WAIT_S * 1e3:g} ms",
            f"once the node is fenced: p50 {percentiles(beyond, digits=0)['p50']:g} ms, ratio {ratio(beyond, bare):g}",
        ),
    )
