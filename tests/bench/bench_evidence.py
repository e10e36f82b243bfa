"""From a line in a job's log to the evidence in the run's journal, seen from outside. (I/O)

Jobs print steps and, now and then, the line of a link that flaps (it is recorded and nothing is done), and note the time
just before each. The clock stops when another process finds the record in the journal file, after it was synced.
The rival is `tail -F` of the same logs at the same time: nothing that waits for a file to grow is quicker.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path

from tests.bench.figures import Figure, percentiles
from tests.bench.stand import Stand, stand, until

__all__ = ["measure"]

AIM_P99_MS = 500.0
LINES = 20  # of one signature in one file so many are kept
LOOK_EVERY_S = 0.005
WRITER = """#!/usr/bin/env python3
import random, sys, time
random.seed(int(sys.argv[1]))
with open(sys.argv[2] + ".tmp", "w") as ledger:
    for number in range(int(sys.argv[3])):
        for _ in range(random.randint(3, 9)):
            time.sleep(random.uniform(0.05, 0.2))
            print("step", time.monotonic_ns() // 1000000, "loss 2.5", flush=True)
        text = "Nov 21 03:00:00 n0 kernel: mlx5_core 0000:5e:00.0 ibs%d: Link down" % number
        ledger.write("%.6f ibs%d:\\n" % (time.time(), number))
        print(text, flush=True)
        ledger.flush()
time.sleep(600)
"""


class _Lens(threading.Thread):
    """Looks at journals and at tail, and keeps when each line of interest came first."""

    def __init__(self, run_dirs: list[Path]) -> None:
        super().__init__(daemon=True)
        self.seen: dict[tuple[int, str], float] = {}
        self._dirs = run_dirs
        self._read: dict[str, int] = {}
        self.over = threading.Event()

    def run(self) -> None:
        """Until `over`."""
        while not self.over.wait(LOOK_EVERY_S):
            for number, run_dir in enumerate(self._dirs):
                for entry in os.scandir(run_dir / "journal"):
                    if entry.stat().st_size > self._read.get(entry.path, 0):
                        self._take(number, entry.path)

    def _take(self, number: int, path: str) -> None:
        with open(path, "rb") as stream:
            stream.seek(self._read.get(path, 0))
            data = stream.read()
        now = time.time()
        whole = data[: data.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        for line in whole.splitlines():
            record = json.loads(line)
            if record["kind"] == "evidence":
                self.seen.setdefault((number, _name(record["data"]["text"])), now)


def _name(text: str) -> str:
    return next((word for word in text.split() if word.startswith("ibs")), "")


class _Tail(threading.Thread):
    """One `tail -F`, and when each line of interest came out of it."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.seen: dict[str, float] = {}
        self._tail = subprocess.Popen(
            ["tail", "-n", "+1", "-F", str(path)], stdout=subprocess.PIPE, text=True
        )

    def run(self) -> None:
        """Until `close`."""
        assert self._tail.stdout is not None
        for line in self._tail.stdout:
            if "Link down" in line:
                self.seen[_name(line)] = time.time()

    def close(self) -> None:
        """End it."""
        self._tail.terminate()
        self._tail.wait()


def measure(jobs: int) -> Figure:
    """`jobs` jobs of one node, twenty lines each."""
    with stand(nodes=1) as here:
        ours, rival = _watched(here, jobs)
    told = percentiles([took * 1e3 for took in ours], digits=1)
    return Figure(
        name="log line written -> evidence in the journal (synced, seen by another process)",
        unit="ms",
        ours=told,
        rival_name="tail -F",
        rival=percentiles([took * 1e3 for took in rival], digits=1),
        value=told["p99"],
        value_name="p99, ms",
        aim=f"< {AIM_P99_MS:g} ms",
        held=told["p99"] < AIM_P99_MS,
        notes=(
            f"{jobs} jobs at once, one detached supervisor; logs are read every 0.2 s, Slurm is asked every 2 s",
        ),
    )


def _watched(here: Stand, jobs: int) -> tuple[list[float], list[float]]:
    writer = here.work / "writer.py"
    writer.write_text(WRITER)
    writer.chmod(0o755)
    logs = [here.work / f"log.{number}" for number in range(jobs)]
    ledgers = [here.work / f"ledger.{number}" for number in range(jobs)]
    for log in logs:
        log.touch()
    runs = [
        here.ftrun_sbatch("-N1", "-n1", "-o", str(log), str(writer), str(number), str(ledger), str(LINES))
        for number, (log, ledger) in enumerate(zip(logs, ledgers, strict=True))
    ]
    lens, tails = _Lens(runs), [_Tail(log) for log in logs]
    for thread in (lens, *tails):
        thread.start()
    try:
        until(lambda: len(lens.seen) >= jobs * LINES, 120.0, every_s=0.5)
    finally:
        lens.over.set()
        lens.join()
        for tail in tails:
            tail.close()
    ours, rival = [], []
    for number, ledger in enumerate(ledgers):
        for line in Path(f"{ledger}.tmp").read_text().splitlines():
            at, name = line.split()
            ours.append(lens.seen[number, name] - float(at))
            rival.append(tails[number].seen[name] - float(at))
    return ours, rival
