"""A thousand runs in a cluster of thousands of nodes and ten thousand jobs: what ftrun costs the controller, the login node and whoever waits. (I/O)

The cluster is one real slurmctld (`scale_cluster`), the runs are made by the real `ftrun sbatch`, and looked after by one real `ftrun supervise` with the usual soft limit of 1,024
open files. As many of them run as the nodes that work have room for, all without an agent, since a thousand of those belong on a thousand nodes; the rest waits for nodes. The
rival is what people write first: one question for each job, round after round at ftrun's own pace. Costs are processor time, which other work on the machine hardly bends,
and the controller's own count of what it was asked and how long it took.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ftrun.slurm.client import parse
from ftrun.slurm.commands.cluster import CommandCluster
from tests.bench.figures import Figure, percentiles, ratio
from tests.bench.scale_cluster import ROOM, Asked, asked, controller_s, crowd, large, reset, user
from tests.bench.stand import FTRUN, Stand, until

__all__ = ["measure"]

JOB = """#!/bin/bash
exec 3<>fifo || exit 1
while :; do
    echo "step $((++n)) loss 2.5"
    read -t 10 -u 3
done
"""
WORDS = "-n1 -t 600 -o log.%j --ft-recover=resubmit --ft-agent=never --ft-watch=never job.sh"
HANDS = 4  # submissions at a time
OPEN_FILES = 1024  # the usual soft limit of a login node
POLL_S = 2.0
SAMPLED = 40  # questions from which a round of a question for each job is told
SETTLED_S = 30.0  # a job just submitted or started is looked at more often for 20 s
TICKS = os.sysconf("SC_CLK_TCK")
LISTED = ("squeue", "-h", "-a", "-r", "-t", "all", "-O", parse.JOB_FORMAT)


def measure(nodes: int, jobs: int, runs: int, seconds: float, room: int = ROOM) -> list[Figure]:
    """All figures; each is looked at over so many seconds where it is a rate. There is room for `room` runs at once."""
    with large(nodes, room) as here:
        here.env["FTRUN_SUPERVISOR"] = "none"
        os.mkfifo(here.work / "fifo")
        (here.work / "fifo").chmod(0o666)  # the runs may be another user's
        (here.work / "job.sh").write_text(JOB)
        began = time.monotonic()
        ids = _runs(here, runs)
        _say(f"{runs} runs submitted in {time.monotonic() - began:.0f} s")
        began = time.monotonic()
        crowd(here, jobs - runs)
        _say(f"{jobs - runs} jobs of others submitted in {time.monotonic() - began:.0f} s")
        figures = [*_polls(here, ids), *_supervised(here, ids, seconds)]
    where = f"{nodes:,} nodes, {jobs:,} jobs, {runs:,} of them runs"
    return [_named(figure, where) for figure in figures]


def _say(text: str) -> None:
    print(f"{text}; load {os.getloadavg()[0]:.0f}", file=sys.stderr, flush=True)


def _named(figure: Figure, where: str) -> Figure:
    return Figure(
        **{**{name: getattr(figure, name) for name in Figure.__slots__}, "name": f"{figure.name} ({where})"}
    )


def _runs(here: Stand, count: int) -> list[str]:
    share, rest = divmod(count, HANDS)
    with ThreadPoolExecutor(HANDS) as pool:
        parts = pool.map(
            lambda hand: here.ftrun_sbatches([WORDS] * (share + (hand < rest)), within_s=3600.0), range(HANDS)
        )
        return [job for part in parts for job in part]


# ------------------------------------------------------------------ questions


class Cost:
    """Of each turn: processor time of this process and its children and time on the wall, in ms; and the controller's processor time, in ms."""

    def __init__(self, here: Stand, turns: int, deed: Callable[[], object]) -> None:
        self.cpu_ms, self.wall_ms, self.controller_ms = list[float](), list[float](), list[float]()
        reset(here)
        for _ in range(turns):
            began, cpu, worked = time.perf_counter(), _processor_s(), controller_s(here)
            deed()
            self.cpu_ms.append((_processor_s() - cpu) * 1e3)
            self.wall_ms.append((time.perf_counter() - began) * 1e3)
            self.controller_ms.append((controller_s(here) - worked) * 1e3)
        told = asked(here.call("sdiag"))
        self.questions = round(sum(one.number for one in told.values()) / turns, 1)

    def told(self, times: float = 1.0) -> dict[str, float]:
        """Medians, for so many such turns."""
        cpu, wall, controller = (
            percentiles(values)["p50"] for values in (self.cpu_ms, self.wall_ms, self.controller_ms)
        )
        return {
            "processor ms": round(cpu * times, 1),
            "wall ms": round(wall * times, 1),
            "controller's processor ms": round(controller * times, 1),
            "questions": round(self.questions * times, 1),
        }


def _processor_s() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _polls(here: Stand, ids: Sequence[str]) -> list[Figure]:
    cluster = CommandCluster(here.env, user=user(here))
    assert len(cluster.jobs(ids)) == len(ids)
    polled = Cost(here, 7, lambda: cluster.jobs(ids))
    by_ids = Cost(here, 7, lambda: parse.parse_jobs(here.call(*LISTED, "-j", ",".join(ids))))
    each = itertools.cycle(ids)
    one = Cost(here, SAMPLED, lambda: here.call("scontrol", "-o", "show", "job", next(each)))
    looked = Cost(here, 7, cluster.nodes)
    by_node = Cost(
        here, 7, lambda: parse.parse_nodes(here.call("sinfo", "-h", "-N", "-a", "-O", parse.NODE_FORMAT))
    )
    return [
        _cost(
            "one poll of all runs",
            polled,
            "scontrol show job for each",
            one.told(len(ids)),
            {"squeue with all ids": by_ids.told()},
        ),
        _cost("one look at all nodes", looked, "sinfo -N", by_node.told(), {}),
    ]


def _cost(
    name: str,
    ours: Cost,
    rival_name: str,
    rival: Mapping[str, float],
    parts: Mapping[str, Mapping[str, float]],
) -> Figure:
    mine = ours.told()
    return Figure(
        name=name,
        unit="",
        ours=mine,
        rival_name=rival_name,
        rival=rival,
        value=round(mine["controller's processor ms"] / max(rival["controller's processor ms"], 0.1), 3),
        value_name="controller's processor time, ours / rival's",
        parts=parts,
    )


# ------------------------------------------------------------------ the supervisor


def _supervised(here: Stand, ids: Sequence[str], seconds: float) -> list[Figure]:
    (here.work / "empty.log").touch()
    here.call(FTRUN, "diagnose", "empty.log")  # the catalog is compiled once for each edition
    began = time.monotonic()
    child = subprocess.Popen(
        ["prlimit", f"--nofile={OPEN_FILES}:", *here.prefix, FTRUN, "supervise"],
        env=here.env,
        cwd=here.work,
        stderr=(here.folder / "supervise.log").open("wb"),
    )
    try:
        until(lambda: _known(here) == len(ids), 600.0, every_s=0.1)
        known_s, known_cpu_s = time.monotonic() - began, _used_s(child.pid)
        until(lambda: _followed(here) >= _running(here), 600.0, every_s=2.0)
        followed_s = time.monotonic() - began
        _say(
            f"{_running(here)} of the runs run; known after {known_s:.1f} s, all followed after {followed_s:.0f} s"
        )
        time.sleep(SETTLED_S)
        steady = _steady(here, child.pid, seconds)
        figures = [
            Figure(
                name="start of the supervisor",
                unit="s",
                ours={
                    "all runs known": round(known_s, 1),
                    "processor time": round(known_cpu_s, 2),
                    "running ones followed": round(followed_s, 1),
                },
                rival_name="(none)",
                rival={},
                value=round(known_cpu_s / len(ids) * 1e3, 2),
                value_name="processor ms a run",
            ),
            *_latencies(here),
        ]
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(timeout=120)
    _say("the loop of a question for each job")
    return [_beside(steady, _naive(here, ids, seconds)), *figures]


def _known(here: Stand) -> int:
    try:
        return int(json.loads((here.home / "supervisor.json").read_text())["runs"])
    except (OSError, ValueError):
        return 0


def _running(here: Stand) -> int:
    return len(here.call("squeue", "-h", "-u", user(here), "-t", "R", "-o", "%i").split())


def _followed(here: Stand) -> int:
    opened = (here.home / "runs").glob("*/journal/000001-*.jsonl")
    return sum(b'"launch.progress"' in path.read_bytes() for path in opened)


def _used_s(pid: int, *, own: bool = False) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 13 if own else 15])) / TICKS


def _memory_mib(pid: int) -> dict[str, float]:
    facts = dict(re.findall(r"^(\w+):\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE))
    return {f"{name} MiB": round(int(facts[name]) / 1024, 1) for name in ("VmHWM", "VmRSS")}


def _rates(told: Mapping[str, Asked], took_s: float) -> dict[str, float]:
    """Questions a minute, by kind and in all."""
    rates = {
        name.removeprefix("REQUEST_"): round(one.number / took_s * 60, 1)
        for name, one in told.items()
        if "INFO" in name
    }
    return {"questions a minute": round(sum(rates.values()), 1)} | rates


def _steady(here: Stand, pid: int, seconds: float) -> dict[str, float]:
    reset(here)
    began, used, own, worked = time.monotonic(), _used_s(pid), _used_s(pid, own=True), controller_s(here)
    time.sleep(seconds)
    worked, told, took_s = controller_s(here) - worked, asked(here.call("sdiag")), time.monotonic() - began
    whole, alone = _used_s(pid) - used, _used_s(pid, own=True) - own
    polls = sum(
        one.number for name, one in told.items() if name in ("REQUEST_JOB_INFO", "REQUEST_JOB_USER_INFO")
    )
    return {
        "processor ms a poll": round(whole / max(polls, 1) * 1e3, 1),
        "processor %": round(whole / took_s * 100, 1),
        "of it Slurm's commands %": round((whole - alone) / took_s * 100, 1),
        **_memory_mib(pid),
        "controller's processor %": round(worked / took_s * 100, 1),
        "open files": len(os.listdir(f"/proc/{pid}/fd")),
        **_rates(told, took_s),
    }


def _naive(here: Stand, ids: Sequence[str], seconds: float) -> dict[str, float]:
    """`squeue -j ID` for each run, one after another, again after 2 s: what it costs while it lasts, and how long one round takes."""
    reset(here)
    began, cpu, worked, asked_for = time.monotonic(), _processor_s(), controller_s(here), 0
    deadline = began + seconds
    while time.monotonic() < deadline:
        here.call("squeue", "-h", "-o", "%i %T", "-j", ids[asked_for % len(ids)])
        asked_for += 1
        if not asked_for % len(ids):
            time.sleep(POLL_S)
    took_s = time.monotonic() - began
    return {
        "processor %": round((_processor_s() - cpu) / took_s * 100, 1),
        "controller's processor %": round((controller_s(here) - worked) / took_s * 100, 1),
        "one round s": round(took_s / asked_for * len(ids), 1),
        **_rates(asked(here.call("sdiag")), took_s),
    }


def _beside(ours: Mapping[str, float], rival: Mapping[str, float]) -> Figure:
    return Figure(
        name="the supervisor while nothing happens",
        unit="",
        ours=ours,
        rival_name="squeue for each job",
        rival=rival,
        value=round(ours["questions a minute"] / rival["questions a minute"], 4),
        value_name="questions to the controller, ours / rival's",
    )


def _latencies(here: Stand) -> list[Figure]:
    """What a person waits for, beside squeue's list of the same jobs."""
    run = sorted(path.name for path in (here.home / "runs").iterdir())[-1]
    rival = Cost(here, 3, lambda: here.call("squeue", "-u", user(here)))
    figures = []
    for words in (("status",), ("status", "--json"), ("show", run)):
        ours = Cost(here, 3, lambda w=words: here.call(FTRUN, *w))  # type: ignore[misc]
        figures.append(
            Figure(
                name=f"ftrun {' '.join(word for word in words if word != run)}",
                unit="",
                ours=ours.told(),
                rival_name="squeue -u",
                rival=rival.told(),
                value=ratio(ours.cpu_ms, rival.cpu_ms),
                value_name="processor time, ours / rival's",
            )
        )
    return figures
