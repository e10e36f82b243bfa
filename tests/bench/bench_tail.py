"""How soon a line is found in one of 10,000 logs that all grow, and what the watching costs. (I/O)

One process appends steps to all files in turn and, now and then, the line of a link that flaps, and notes the time just before each.
Another follows the files as the supervisor does, on a core of its own where there is one: the clock stops when the evidence is there.
The rival reads each open file once a round and looks at nothing.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.figures import Figure, percentiles

__all__ = ["measure", "read", "write"]

FILES = 10_000
EVERY_S = 0.25  # from the beginning of one round to that of the next
GROW_S = 10.0  # each file gets a line in this time
FAULTS_HZ = 20
AIM_P99_MS = 500.0
AIM_CPU_PERCENT = 20.0
_CODE = """
import os, resource
os.sched_setaffinity(0, {{{core}}})
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
from tests.bench import bench_tail
bench_tail.{part}({folder!r}, {seconds})
"""


def measure(seconds: float) -> list[Figure]:
    """The latency and the cost, over `seconds`."""
    with tempfile.TemporaryDirectory(prefix="ftrun-tail-") as folder:
        for number in range(FILES):
            (Path(folder) / f"rank{number}.log").touch()
        cores = sorted(os.sched_getaffinity(0))
        reader = _start("read", folder, seconds, cores[-1])
        writer = _start("write", folder, seconds, cores[0])
        told, _ = reader.communicate(timeout=10 * seconds + 120)
        writer.communicate(timeout=60)
    cpu, bare_cpu, *took = map(float, told.split())
    latencies = percentiles([one * 1e3 for one in took], digits=0)
    name = f"{FILES:,} growing logs, a look every {EVERY_S:g} s"
    return [
        Figure(
            name=f"{name}: line written -> evidence",
            unit="ms",
            ours=latencies,
            rival_name="half a round",
            rival={"p50": EVERY_S * 500},
            value=latencies["p99"],
            value_name="p99, ms",
            aim=f"< {AIM_P99_MS:g} ms",
            held=latencies["p99"] < AIM_P99_MS,
        ),
        Figure(
            name=f"{name}: cost",
            unit="",
            ours={"CPU %": cpu},
            rival_name="one read of each file a round, nothing else",
            rival={"CPU %": bare_cpu},
            value=cpu,
            value_name="share of one core, %",
            aim=f"< {AIM_CPU_PERCENT:g} %",
            held=cpu < AIM_CPU_PERCENT,
        ),
    ]


def _start(part: str, folder: str, seconds: float, core: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _CODE.format(part=part, folder=folder, seconds=seconds, core=core)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )


def write(folder: str, seconds: float) -> None:
    """Let all files grow until the reader is done; the time of each fault stands in its line."""
    draw = random.Random(1)
    files = [os.open(Path(folder) / f"rank{n}.log", os.O_WRONLY | os.O_APPEND) for n in range(FILES)]
    done = Path(folder) / "done"
    step = at = 0
    began = time.monotonic()
    while not done.exists() and time.monotonic() - began < 10 * seconds + 60:
        for _ in range(int(FILES / GROW_S / FAULTS_HZ)):
            at = (at + 1) % FILES
            step += at == 0
            os.write(files[at], f"step {step} loss {draw.uniform(1, 3):.4f} tokens/s 9120\n".encode())
        line = f"n0 kernel: mlx5_core 0000:5e:00.0 ibs0: Link down ({time.time():.6f})\n"
        os.write(files[draw.randrange(FILES)], line.encode())
        time.sleep(1 / FAULTS_HZ)


def read(folder: str, seconds: float) -> None:
    """Follow all files; print the share of a core of this and of bare reads, then how long each fault took to be seen (s)."""
    from ftrun.supervisor.telemetry.log_watcher import LogWatcher
    from ftrun.supervisor.telemetry.tail import LogPath

    paths = [str(Path(folder) / f"rank{number}.log") for number in range(FILES)]
    watcher = LogWatcher([LogPath(path) for path in paths])
    took: list[float] = []

    def look() -> None:
        report = watcher.poll(time.time())
        now = time.time()
        took.extend(now - float(one.text.rsplit("(", 1)[1][:-1]) for one in report.new)

    for _ in range(4):  # what is made at first use is made now
        look()
        time.sleep(EVERY_S)
    took.clear()
    cpu = _share(look, seconds)
    watcher.close()
    files = [os.open(path, os.O_RDONLY) for path in paths]

    def bare() -> None:
        for file in files:
            os.pread(file, 4096, 0)

    bare_cpu = _share(bare, seconds / 4)
    (Path(folder) / "done").touch()
    print(round(cpu, 1), round(bare_cpu, 1), *took)


def _share(look: Callable[[], None], seconds: float) -> float:
    """Return the share of a core, in percent, of a look every `EVERY_S`."""
    began, cpu = time.monotonic(), time.process_time()
    rounds = max(1, int(seconds / EVERY_S))
    for number in range(1, rounds + 1):
        look()
        time.sleep(max(0.0, began + number * EVERY_S - time.monotonic()))
    return 100 * (time.process_time() - cpu) / (time.monotonic() - began)
