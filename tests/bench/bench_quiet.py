"""What ftrun takes from a run in which nothing happens: processor time, wakeups, and what it asks of Slurm's controller. (I/O)

How it thinks. On a machine that does other work the time of a step spreads by far more than ftrun could add, and no number of turns decides. What its processes run on the
processors is counted by the kernel to the nanosecond, whatever else goes on: a trainer whose ranks wait for each other cannot lose more than the node that loses most,
and that node not more than ftrun runs there, were all of it on the one core that the others wait for. So this bounds the price of a step from above.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.bench.figures import Figure
from tests.bench.stand import Stand, stand

__all__ = ["Used", "quiet", "used"]

AIM_CORE = 0.005
SETTLE_S = 45.0  # until the watch of the nodes has begun
TICKS = os.sysconf("SC_CLK_TCK")
JOB = """#!/bin/bash
srun bash -c 'for i in {{1..{seconds}}}; do [ $SLURM_PROCID = 0 ] && echo "step $i loss 2.5"; sleep 1; done'
"""
ON_NODES = ("agent", "guard", "watch")
# Of sdiag: what tools of users ask; nodes, steps and the job's own end are not among it.
ASKED = re.compile(r"^\s+(REQUEST_\w*(?:INFO|STATS)\w*)\s+\(\s*\d+\)\s+count:(\d+)", re.MULTILINE)
NOT_OURS = "REQUEST_STATS_INFO"  # sdiag's own


class Used:
    """What one process and its children have used: seconds on a processor, and how often it was woken."""

    def __init__(self, seconds: float, wakeups: int) -> None:
        self.seconds, self.wakeups = seconds, wakeups


def used(pid: int) -> Used:
    """Since it began; its threads are counted, and of its children those that have ended. Raises OSError where it is gone."""
    run_ns = wakeups = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        run_ns += int((task / "schedstat").read_text().split()[0])
        wakeups += sum(map(int, re.findall(r"ctxt_switches:\s+(\d+)", (task / "status").read_text())))
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Used(run_ns / 1e9 + sum(map(int, fields[13:15])) / TICKS, wakeups)


def quiet(ours: Callable[[Stand], Mapping[str, list[int]]], seconds: int) -> Figure:
    """A window of so many seconds in the middle of a job of two nodes; `ours` finds ftrun's processes by kind."""
    with stand(nodes=2) as here:
        script = here.work / "quiet.sh"
        script.write_text(JOB.format(seconds=int(SETTLE_S) + seconds + 60))
        here.ftrun_sbatch("-N2", "-n2", "-t", "30", "-o", "log.%j", str(script))
        time.sleep(SETTLE_S)
        pids = {kind: list(found) for kind, found in ours(here).items()}
        before, asked_before, began = _all(pids), _asked(here), time.monotonic()
        time.sleep(seconds)
        after, asked, took_s = _all(pids), _asked(here), time.monotonic() - began
    shares, wakeups = {}, {}
    for kind, found in pids.items():
        there = [pid for pid in found if pid in before and pid in after]
        if there:
            shares[f"{kind}, % of a core"] = round(
                max(after[pid].seconds - before[pid].seconds for pid in there) / took_s * 100, 3
            )
            wakeups[f"{kind}, wakeups/s"] = round(
                max(after[pid].wakeups - before[pid].wakeups for pid in there) / took_s, 2
            )
    rpcs = sum(asked.values()) - sum(asked_before.values())
    node = sum(value for name, value in shares.items() if name.startswith(ON_NODES))
    return Figure(
        name=f"what ftrun takes from a quiet run of two nodes, {seconds} s of it",
        unit="",
        ours=shares | wakeups | {"questions to slurmctld a minute": round(rpcs / took_s * 60, 1)},
        rival_name="(none: plain sbatch has none of it)",
        rival={},
        value=round(node, 3),
        value_name="on the busiest node (agent, guard, watch), % of a core",
        aim=f"<= {AIM_CORE * 100:g} %",
        held=node <= AIM_CORE * 100 if "agent, % of a core" in shares else False,
        notes=(
            "counted by the kernel, whatever else the machine does: no step can be slower by more than this share of a core",
            "the supervisor runs on the login node, one for all runs of a user; so do its questions",
        ),
    )


def _all(pids: Mapping[str, list[int]]) -> dict[int, Used]:
    found = {}
    for several in pids.values():
        for pid in several:
            with contextlib.suppress(OSError):
                found[pid] = used(pid)
    return found


def _asked(here: Stand) -> dict[str, int]:
    rows = ASKED.findall(here.call("sdiag").partition("by user")[0])
    return {name: int(count) for name, count in rows if name != NOT_OURS}
