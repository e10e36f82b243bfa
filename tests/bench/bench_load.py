"""What the supervisor costs: CPU and memory with 1, 100 and 1,000 runs of one user. (I/O)

Up to a hundred are real running jobs that print a step each second; the rest wait in Slurm's queue (`--hold`), as most of a
thousand would. The CPU is counted for the whole process and the Slurm commands that it calls. The rival is a shell loop
that asks `squeue` about the same jobs every two seconds and understands nothing; for memory, a Python that does nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.figures import Figure
from tests.bench.stand import Stand, stand, until

__all__ = ["measure", "memory_mib", "settled", "submit"]

RUNNING_MAX = 100
JOB = """#!/bin/bash
exec 3<>fifo
while :; do
    echo "step $((++n)) loss 2.5"
    read -t 1 -u 3
done
"""
LOOP = "while :; do squeue -h -a -r -t all -j {ids} -O JobID,State >/dev/null; sleep 2; done"
TICKS = os.sysconf("SC_CLK_TCK")
AIM_CPU_PERCENT = 10.0


def measure(counts: tuple[int, ...], seconds: float) -> list[Figure]:
    """One figure for each number of runs; each measured over `seconds` once all are known to the supervisor."""
    figures, ids = [], list[str]()
    with stand(nodes=16) as here:
        os.mkfifo(here.work / "fifo")
        (here.work / "job.sh").write_text(JOB)
        bare_mib = _python_alone_mib()
        for count in counts:
            ids += submit(here, len(ids), count)
            settled(here, count)
            ours = _observed(here.supervisor(), seconds)
            rival = _loop(here, ids, seconds)
            figures.append(_figure(count, ours, rival, bare_mib))
    return figures


def _figure(count: int, ours: dict[str, float], rival: float, bare_mib: float) -> Figure:
    running = min(count, RUNNING_MAX)
    return Figure(
        name=f"supervisor with {count:,} run{'s' * (count > 1)} ({running} running, {count - running} queued; real Slurm)",
        unit="",
        ours=ours,
        rival_name="squeue loop; bare Python",
        rival={"CPU %": rival, "RSS MiB": bare_mib},
        value=ours["CPU %"],
        value_name="share of one core, %",
        aim=f"<= {AIM_CPU_PERCENT:g} %",
        held=ours["CPU %"] <= AIM_CPU_PERCENT,
    )


def submit(here: Stand, have: int, want: int, options: str = "") -> list[str]:
    """Up to a hundred that run; the rest is held."""
    words = (f"-n1 -t 60 -o log.%j {options} job.sh", f"-n1 -t 60 -o log.%j --hold {options} job.sh")
    return here.ftrun_sbatches([words[number >= RUNNING_MAX] for number in range(have, want)], within_s=900.0)


def settled(here: Stand, count: int) -> None:
    """All jobs that can run do, their logs are being read, and nothing is in motion any more."""
    running = min(count, RUNNING_MAX)

    def read() -> bool:
        opened = list((here.home / "runs").glob("*/journal/000001-*.jsonl"))
        return sum(b'"launch.progress"' in path.read_bytes() for path in opened) >= running

    until(read, 600.0, every_s=1.0)
    time.sleep(
        22.0 if count > running else 3.0
    )  # a queued job just submitted is asked for more often for 20 s


def _cpu_s(pid: int) -> float:
    """CPU of a process and of the children that it has waited for, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def memory_mib(pid: int) -> dict[str, float]:
    """RSS and PSS of a process."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return {
        f"{name.upper()} MiB": round(int(re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)[1]) / 1024, 1)  # type: ignore[index]
        for name in ("Rss", "Pss")
    }


def _own_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / TICKS


def _observed(pid: int, seconds: float) -> dict[str, float]:
    started, cpu, own = time.monotonic(), _cpu_s(pid), _own_cpu_s(pid)
    time.sleep(seconds)
    took = time.monotonic() - started
    whole = (_cpu_s(pid) - cpu) / took * 100
    alone = (_own_cpu_s(pid) - own) / took * 100
    return {"CPU %": round(whole, 1), "of it Slurm's commands %": round(whole - alone, 1), **memory_mib(pid)}


def _loop(here: Stand, ids: list[str], seconds: float) -> float:
    loop = subprocess.Popen(["sh", "-c", LOOP.format(ids=",".join(ids))], env=here.env, cwd=here.work)
    try:
        started = time.monotonic()
        time.sleep(seconds)
        return round(_cpu_s(loop.pid) / (time.monotonic() - started) * 100, 1)
    finally:
        loop.kill()
        loop.wait()


def _python_alone_mib() -> float:
    idle = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=subprocess.PIPE
    )
    try:
        assert idle.stdout is not None
        idle.stdout.readline()
        return memory_mib(idle.pid)["RSS MiB"]
    finally:
        idle.kill()
        idle.wait()
