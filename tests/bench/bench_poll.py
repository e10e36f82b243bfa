"""One poll of a supervisor by pyslurm in its child against one by Slurm's commands, and what another thread sees of it while the controller hangs. (I/O)

A poll asks for N jobs of N that the controller knows: with fewer of ours among as many, both ways still load them all. Jobs are held, one sbatch each.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ftrun.slurm.client.cluster import Cluster
from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.commands.cluster import CommandCluster
from ftrun.slurm.native.cluster import NativeCluster
from tests.bench.figures import Figure, percentiles, ratio
from tests.bench.stand import Stand, stand
from tests.slurm import has_pyslurm

__all__ = ["measure"]

CONF = {"MessageTimeout": "5", "MaxJobCount": "20000"}
TICK_S = 0.01
HELD_UP_MS = 1000.0  # an interpreter that is held stands still for the whole time-out
IN_PROCESS = """
import sys, threading, time
import pyslurm
gaps, last = [], time.monotonic()
def tick():
    global last
    while True:
        time.sleep(0.01); now = time.monotonic(); gaps.append(now - last); last = now
threading.Thread(target=tick, daemon=True).start()
try: pyslurm.Jobs.load()
except pyslurm.RPCError: pass
time.sleep(0.1)
print(max(gaps))
"""


def measure(sizes: Sequence[int], turns: int) -> list[Figure]:
    """For each number of jobs, and for a controller that hangs. Nothing where pyslurm is not here; why is said."""
    if has_pyslurm.why_not():
        print(has_pyslurm.why_not(), file=sys.stderr)
        return []
    figures, jobs = [], 0
    with stand(nodes=1, conf=CONF) as here:
        commands = CommandCluster(here.env)
        native = NativeCluster(commands, here.env, python=has_pyslurm.PYTHON)
        try:
            print(f"asked by {native.probe().by}", file=sys.stderr)
            for size in sorted(sizes):
                _submit(here, size - jobs)
                jobs = size
                figures.append(_poll(native, commands, size, turns))
            figures += [_nodes(native, commands, turns), _hang(here, native)]
            assert native.speaking.by.startswith("pyslurm"), native.speaking
        finally:
            native.close()
    return figures


def _submit(here: Stand, count: int) -> None:
    command = ["sbatch", "-H", "-Q", "-o", "/dev/null", "--wrap", "true"]

    def one(_: int) -> None:
        subprocess.run(command, env=here.env, cwd=here.work, check=True, stdout=subprocess.DEVNULL)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(count)))


def _in_turns(turns: int, *deeds: Callable[[], object]) -> list[list[float]]:
    taken: list[list[float]] = [[] for _ in deeds]
    for turn in range(turns + 1):
        for deed, times in zip(deeds, taken, strict=True):
            began = time.perf_counter()
            deed()
            if turn:  # the first fills caches
                times.append((time.perf_counter() - began) * 1e3)
    return taken


def _poll(native: Cluster, commands: Cluster, size: int, turns: int) -> Figure:
    ids = [str(number) for number in range(1, size + 1)]
    assert native.jobs(ids) == commands.jobs(ids)
    assert len(native.jobs(ids)) == size
    ours, rival = _in_turns(turns, lambda: native.jobs(ids), lambda: commands.jobs(ids))
    return _figure(f"a poll of {size:,} jobs", ours, rival)


def _nodes(native: Cluster, commands: Cluster, turns: int) -> Figure:
    ours, rival = _in_turns(turns, native.nodes, commands.nodes)
    return _figure("a look at the nodes", ours, rival)


def _figure(name: str, ours: list[float], rival: list[float]) -> Figure:
    value = ratio(ours, rival)
    return Figure(
        name=name,
        unit="ms",
        ours=percentiles(ours, digits=2),
        rival_name="commands",
        rival=percentiles(rival, digits=2),
        value=value,
        value_name="pyslurm / commands (medians)",
    )


def _hang(here: Stand, native: Cluster) -> Figure:
    """The longest standstill of a second thread while one asks a controller that does not answer."""
    gaps: list[float] = []
    over = threading.Event()

    def tick() -> None:
        last = time.monotonic()
        while not over.wait(TICK_S):
            now = time.monotonic()
            gaps.append(now - last)
            last = now

    here.box.pause_controller()
    try:
        thread = threading.Thread(target=tick)
        thread.start()
        began = time.monotonic()
        try:
            native.jobs(["1"])
        except SlurmError as told:
            said = told.message
        waited_s = time.monotonic() - began
        over.set()
        thread.join()
        done = subprocess.run(
            [has_pyslurm.PYTHON, "-c", IN_PROCESS], env=here.env, capture_output=True, text=True, check=True
        )
    finally:
        here.box.continue_controller()
    most_ms = round(max(gaps) * 1e3, 1)
    return Figure(
        name="another thread while the controller hangs",
        unit="ms",
        ours={"longest standstill": most_ms},
        rival_name="pyslurm in the same process",
        rival={"longest standstill": round(float(done.stdout) * 1e3, 1)},
        value=most_ms,
        value_name="longest standstill of the other thread, ms",
        aim=f"< {HELD_UP_MS:g} ms",
        held=most_ms < HELD_UP_MS,
        notes=(f"the question came back after {waited_s:.1f} s: {said}",),
    )
