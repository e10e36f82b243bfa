"""What ftrun costs a job in which nothing goes wrong: its steps, its start, its length, its nodes' memory and processor. (I/O)

How it thinks. Two jobs of the same trainer stand side by side on one sandbox, one submitted by sbatch, one by `ftrun sbatch` with everything on: agent, watch, guard, beats,
labels. They make their steps in turns of some tenths of a second, first plain, then ours, ours, plain, so that what else the machine does, and whether it grows or fades, hits both. While it is the plain job's turn, all
processes of ftrun are stopped; so all that they do falls into the turns of its own job, on whose cores they have to find room: the trainer uses all of them.
What is told is the median of the blocks of four turns and the interval in which it lies by drawing them anew (bootstrap): an aim inside of it is not decided. What
decides on any machine is counted beside it, by bench_quiet.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.bench.bench_quiet import quiet
from tests.bench.figures import Figure, percentiles, ratio
from tests.bench.stand import Stand, stand, until

__all__ = ["costs", "interval", "length", "measure", "start", "steps"]

TRAINER = Path(__file__).with_name("steps.py")
PYTHON = os.environ.get("FTRUN_PROOF_PYTHON") or str(
    Path(__file__).resolve().parents[2] / ".tools" / "proofs" / "bin" / "python"
)
TURN = 10  # steps
ORDER = (False, True, True, False)  # whose turn it is: ours or not
SETTLE_S = 40.0  # until the watch of the nodes has begun
AIM_STEP = 0.005
AIM_START_S = 3.0
AIM_LENGTH = 0.05
AIM_AGENT_MB = 60.0
JOB = """#!/bin/bash
export PYTHONPATH={folder}/lib
srun {python} {trainer} {folder} "$SLURM_JOB_ID" "{beat}"
"""
SHORT = """#!/bin/bash
srun bash -c 'for i in {{1..{seconds}}}; do [ $SLURM_PROCID = 0 ] && echo "step $i loss 2.5"; sleep 1; done'
"""
BEGINS = """#!/bin/bash
srun true
echo $EPOCHREALTIME >{folder}/began.$SLURM_JOB_ID
"""
TICKS = os.sysconf("SC_CLK_TCK")


def measure(*, few: bool) -> list[Figure]:
    """All of it."""
    return [
        *steps(5 if few else 100),
        quiet(_ours, 20 if few else 120),
        start(8 if few else 64, 1 if few else 3),
        length(1 if few else 3),
    ]


def _python() -> str:
    return PYTHON if os.path.exists(PYTHON) else sys.executable


# ---------------------------------------------------------------------------- the steps, and what ftrun's processes use meanwhile


def steps(blocks: int) -> list[Figure]:
    """So many blocks of two turns of each job; then what each process of ftrun has used."""
    with stand(nodes=4) as here:
        jobs = [_trainer(here, mine=False), _trainer(here, mine=True)]
        time.sleep(SETTLE_S)
        taken: tuple[list[float], list[float]] = ([], [])
        for _ in range(blocks):
            for mine in ORDER:
                with contextlib.nullcontext() if mine else _stopped(here):
                    taken[mine].append(_turn(here, jobs[mine]))
        used = costs(here)
        for job in jobs:
            _say(here, job, 0)
    half = len(ORDER) // 2
    sums = [[sum(one[at : at + half]) for at in range(0, len(one), half)] for one in taken]
    ratios = [ours / theirs for theirs, ours in zip(*sums, strict=True)]
    more = statistics.median(ratios) - 1
    low, high = (end - 1 for end in interval(ratios))
    held = True if high <= AIM_STEP else False if low > AIM_STEP else None
    return [
        Figure(
            name=f"step time of a healthy job, everything on ({'torch DDP, gloo' if _has_torch() else 'without torch'})",
            unit="ms",
            ours=percentiles([one * 1e3 for one in taken[1]]),
            rival_name="plain sbatch, in turns",
            rival=percentiles([one * 1e3 for one in taken[0]]),
            value=round(more * 100, 2),
            value_name="added, % (median of blocks of turns)",
            aim=f"<= {AIM_STEP * 100:g} %",
            held=held,
            parts={"blocks, ratio": percentiles(ratios, digits=4)},
            notes=(
                f"turns of {TURN} steps; with 95 % between {low * 100:+.2f} % and {high * 100:+.2f} %{': no verdict' if held is None else ''}",
                "both cores are the trainer's: on a node with a core to spare ftrun's processes take nothing from it",
            ),
        ),
        used,
    ]


def interval(samples: Sequence[float], rounds: int = 2000) -> tuple[float, float]:
    """Where the median lies with a probability of 95 %, by drawing as many samples anew, with repetition. (pure)"""
    lots = random.Random(1)
    medians = [statistics.median(lots.choices(samples, k=len(samples))) for _ in range(rounds)]
    marks = statistics.quantiles(medians, n=40, method="inclusive")
    return marks[0], marks[-1]


def _trainer(here: Stand, *, mine: bool) -> str:
    script = here.work / f"steps.{mine}.sh"
    (here.work / "lib").mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (here.work / "lib" / "ftrun").symlink_to(Path(__file__).resolve().parents[2])
    script.write_text(
        JOB.format(python=_python(), trainer=TRAINER, folder=here.work, beat="beat" if mine else "")
    )
    words = ("-N2", "-n2", "--ntasks-per-node=1", "-t", "30", "-o", "log.%j", str(script))
    job = here.sbatch(*words) if not mine else _job_of(here.ftrun_sbatch(*words))
    os.mkfifo(here.work / f"do.{job}")
    _turn(here, job)
    return job


def _job_of(run_dir: Path) -> str:
    return next(link.name for link in (run_dir.parents[1] / "index").iterdir() if link.resolve() == run_dir)


def _say(here: Stand, job: str, number: int) -> None:
    def told() -> bool:  # a trainer that is not there must not hold us
        with contextlib.suppress(OSError):
            pipe = os.open(here.work / f"do.{job}", os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, b"%d\n" % number)
            os.close(pipe)
            return True
        return False

    until(told, 120.0, every_s=0.01)


def _turn(here: Stand, job: str) -> float:
    """Seconds of a step, the mean of one turn."""
    took = here.work / f"took.{job}"
    before = len(took.read_text().splitlines()) if took.exists() else 0
    _say(here, job, TURN)
    lines = until(
        lambda: took.exists() and (found := took.read_text().splitlines())[before:] and found,
        120.0,
        every_s=0.01,
    )
    return statistics.fmean(float(word) for word in lines[before].split())


def _has_torch() -> bool:
    return not subprocess.run(
        [_python(), "-W", "ignore", "-c", "import torch"], capture_output=True, check=False
    ).returncode


# ---------------------------------------------------------------------------- ftrun's processes


def _ours(here: Stand) -> dict[str, list[int]]:
    """What runs of ftrun for the jobs of this stand."""
    found: dict[str, list[int]] = {"agent": [], "guard": [], "watch": [], "supervisor": []}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            line, pid = b" ".join(words), int(path.parent.name)
            if str(here.folder).encode() not in line and pid != here.supervisor():
                continue
            if pid == here.supervisor():
                found["supervisor"].append(pid)
            elif b"ftrun.supervisor.agent" in words:
                found["agent"].append(pid)
            elif any(word.endswith(b".pyz") for word in words[:6]) and b"srun" not in words[0]:
                kind = "guard" if b"guard" in words[:8] else "watch" if b"watch" in words[:8] else ""
                if kind:
                    found[kind].append(pid)
    return found


@contextlib.contextmanager
def _stopped(here: Stand) -> Iterator[None]:
    pids = [pid for several in _ours(here).values() for pid in several]
    _signal(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def costs(here: Stand) -> Figure:
    """Memory and processor of ftrun's processes since each began."""
    told: dict[str, list[float]] = {}
    shares: dict[str, list[float]] = {}
    for kind, pids in _ours(here).items():
        for pid in pids:
            with contextlib.suppress(OSError):
                told.setdefault(f"{kind} MB", []).append(_rss_mb(pid))
                shares.setdefault(f"{kind} CPU %", []).append(_share(pid))
    most = {name: round(max(values), 1) for name, values in told.items()}
    return Figure(
        name="ftrun's processes of a job of two nodes, the most of any node",
        unit="",
        ours=most | {name: round(max(values), 2) for name, values in shares.items()},
        rival_name="(none: plain sbatch has none)",
        rival={},
        value=most.get("agent MB", float("inf")),
        value_name="agent, MB",
        aim=f"< {AIM_AGENT_MB:g} MB",
        held=most.get("agent MB", float("inf")) < AIM_AGENT_MB,
        notes=("CPU: share of one core since the process began, its start and its children included",),
    )


def _rss_mb(pid: int) -> float:
    found = re.search(r"^VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 / 1e6 if found else 0.0


def _share(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    up_s = float(Path("/proc/uptime").read_text().split()[0]) - int(fields[19]) / TICKS
    return sum(map(int, fields[11:15])) / TICKS / max(up_s, 1.0) * 100


# ---------------------------------------------------------------------------- the start, and a short job


def start(nodes: int, rounds: int) -> Figure:
    """From submission until a step has run on all nodes, with the fast checks before the script."""
    plain: list[float] = []
    mine: list[float] = []
    with stand(nodes=nodes) as here:
        script = here.work / "begins.sh"
        script.write_text(BEGINS.format(folder=here.work))
        words = (f"-N{nodes}", "-t", "10", "-o", "log.%j", str(script))

        def began(submit: Callable[[], str]) -> float:
            at_s = time.time()
            path = here.work / f"began.{submit()}"
            took = float(until(lambda: path.exists() and path.read_text(), 120.0)) - at_s
            until(lambda: not here.call("squeue", "-h").strip(), 60.0, every_s=0.5)
            return took

        for _ in range(rounds):
            plain.append(began(lambda: here.sbatch(*words)))
            mine.append(began(lambda: _job_of(here.ftrun_sbatch("--ft-preflight", *words))))
    added = round(statistics.median(mine) - statistics.median(plain), 2)
    return Figure(
        name=f"submission -> a step has run on all of {nodes} nodes, the fast checks before it",
        unit="s",
        ours=percentiles(mine, digits=2),
        rival_name="plain sbatch, no checks",
        rival=percentiles(plain, digits=2),
        value=added,
        value_name="added, s",
        aim=f"<= {AIM_START_S:g} s",
        held=added <= AIM_START_S,
        notes=(f"{os.cpu_count()} cores do the checks of all {nodes} nodes",),
    )


def length(rounds: int, seconds: int = 60) -> Figure:
    """From submission until Slurm has the job no more; both kinds run at the same time."""
    plain: list[float] = []
    mine: list[float] = []
    with stand(nodes=4) as here:
        script = here.work / "short.sh"
        script.write_text(SHORT.format(seconds=seconds))
        words = ("-N2", "-n2", "-t", "10", "-o", "log.%j", str(script))
        for _ in range(rounds):
            began: dict[str, tuple[list[float], float]] = {}
            at_s = time.monotonic()
            began[here.sbatch(*words)] = (plain, at_s)
            at_s = time.monotonic()
            began[_job_of(here.ftrun_sbatch(*words))] = (mine, at_s)
            time.sleep(seconds)
            while began:
                left = here.call("squeue", "-h", "-o", "%i").split()
                for job in [job for job in began if job not in left]:
                    taken, at_s = began.pop(job)
                    taken.append(time.monotonic() - at_s)
                time.sleep(0.05)
    more = ratio(mine, plain) - 1
    return Figure(
        name=f"a job of {seconds} s, submission to end",
        unit="s",
        ours=percentiles(mine, digits=2),
        rival_name="plain sbatch, at the same time",
        rival=percentiles(plain, digits=2),
        value=round((statistics.median(mine) / statistics.median(plain) - 1) * 100, 2),
        value_name="longer, %",
        aim=f"<= {AIM_LENGTH * 100:g} %",
        held=more <= AIM_LENGTH,
    )
