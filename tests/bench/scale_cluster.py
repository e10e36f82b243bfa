"""A cluster of thousands of nodes and jobs on one machine, and what its controller counts of who asks it. (I/O)

How it thinks. The nodes that work are a sandbox's own; all others stand in slurm.conf alone, at an address where nobody answers. With SlurmdTimeout=0 the controller leaves
these in peace: it packs and sends them like any other, which is what a look at the nodes costs, and starts nothing there. Jobs of others are submitted as their own users
where root may (`sbatch --uid`), one call each but for a tenth that are tasks of arrays, and wait for nodes that never come.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.bench.stand import Stand, stand

__all__ = ["ROOM", "Asked", "asked", "controller_s", "crowd", "large", "reset", "user"]

CPUS = 16  # of a node of a sandbox
ROOM = 256  # so many jobs of one processor can run, unless more are asked for
TASKS_PER_ARRAY = 100
BLOCK = 250
CPUCLOCK_SCHED = 2  # linux/posix-timers_types.h: with a process's number, its processor time in nanoseconds
USERS = ("daemon", "bin", "sys", "man", "lp", "mail", "news", "nobody")
OURS = "games"  # whose runs they are: of root squeue never asks for its own jobs alone
NOT_OURS = "REQUEST_STATS_INFO"  # sdiag's own
ROW = re.compile(
    r"^\s+(REQUEST_\w+)\s+\(\s*\d+\)\s+count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)", re.MULTILINE
)


class Asked(NamedTuple):
    """How often the controller answered one kind of question, and how long it worked on that in all, in microseconds."""

    number: int
    total_us: int


@contextlib.contextmanager
def large(nodes: int, room: int = ROOM) -> Iterator[Stand]:
    """A stand with so many nodes, of which as many work as `room` jobs of one processor need."""
    working = -(-room // CPUS)
    idle = _blocks(max(0, nodes - working))
    conf = {
        "MaxJobCount": "50000",
        "MaxArraySize": "1001",
        "MessageTimeout": "30",
        "SchedulerParameters": "sched_interval=5,bf_interval=30,batch_sched_delay=0,default_queue_depth=100",
    } | ({"NodeName": "\nNodeName=".join(idle)} if idle else {})
    with stand(nodes=working, slurmd_timeout_s=0, conf=conf) as here:
        if not os.geteuid():
            ours = pwd.getpwnam(OURS)
            here.prefix = ("setpriv", f"--reuid={ours.pw_uid}", f"--regid={ours.pw_gid}", "--clear-groups")
            here.env |= {"HOME": str(here.folder), "USER": OURS, "LOGNAME": OURS}
            here.home.mkdir()
            for folder in (here.home, here.work):
                os.chown(folder, ours.pw_uid, ours.pw_gid)
        yield here


def user(here: Stand) -> str:
    """Whose the runs are."""
    return here.env["USER"] if here.prefix else pwd.getpwuid(os.geteuid()).pw_name


def _blocks(count: int) -> list[str]:
    """The lines of nodes that are not there, a few hundred each: a line for each node would cost every command of Slurm 130 ms."""
    lines = []
    for block, first in enumerate(range(0, count, BLOCK)):
        last = min(count, first + BLOCK) - 1
        lines.append(
            f"f[{first}-{last}] NodeAddr=127.0.{3 + block}.[1-{last - first + 1}] Port=1 CPUs=16 RealMemory=64000 State=UNKNOWN"
        )
    return lines


def crowd(here: Stand, count: int) -> None:
    """So many jobs of others that wait."""
    arrays = count // 10 // TASKS_PER_ARRAY
    singles = count - arrays * TASKS_PER_ARRAY
    calls = [[f"--array=1-{TASKS_PER_ARRAY}"]] * arrays + [[]] * singles
    users = [[f"--uid={name}"] for name in USERS] if not os.geteuid() else [[]]

    def one(number: int) -> None:
        words = [
            "sbatch",
            "-Q",
            "-w",
            "f0",
            "-o",
            "/dev/null",
            "-t",
            "60",
            *users[number % len(users)],
            *calls[number],
            "--wrap",
            "true",
        ]
        subprocess.run(words, env=here.env, cwd="/tmp", check=True, stdout=subprocess.DEVNULL)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(len(calls))))


def reset(here: Stand) -> None:
    """The controller counts from nothing again; SlurmUser and root may ask for that."""
    subprocess.run(["sdiag", "-r"], env=here.env, check=True, stdout=subprocess.DEVNULL)


def controller_s(here: Stand) -> float:
    """Processor time that slurmctld has used, in seconds. Its own count of an answer is time on the wall, locks and all."""
    pid = int(Path(here.box.plan.run_dir, "run", "slurmctld.pid").read_text())
    return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)


def asked(text: str) -> dict[str, Asked]:
    """Kind of question -> what `sdiag` counts of it, its own left out. (pure)"""
    rows = ROW.findall(text.partition("by user")[0])
    return {name: Asked(int(count), int(total)) for name, count, total in rows if name != NOT_OURS}
