"""Slurm's prolog by ftrun against an empty shell script, call by call in turns. (I/O)

`python` is what an interpreter costs that does nothing, started as the prolog starts it. Nothing is to be done where the job has no
device and a health check has just found nothing, and where the hooks are switched off.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from ftrun.hooks.health import install
from tests.bench.figures import Figure, percentiles, ratio

__all__ = ["measure"]

WARM_UP = 3
AIM_MS = 100.0
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1000", "SLURMD_NODENAME": "gpu001"}


def measure(calls: int) -> Figure:
    """`calls` of each."""
    folder = Path(tempfile.mkdtemp(prefix="ftrun-bench-"))
    try:
        taken = _taken(folder, calls)
    finally:
        shutil.rmtree(folder)
    ours, empty = taken["nothing to do"], taken["empty script"]
    value = round(statistics.median(ours), 1)
    parts = ("switched off", "a Python that does nothing", "a job with nothing known of the node")
    return Figure(
        name="prolog with nothing to do",
        unit="ms",
        ours=percentiles(ours, digits=1),
        rival_name="an empty sh script",
        rival=percentiles(empty, digits=1),
        value=value,
        value_name="median, ms",
        aim=f"< {AIM_MS:g} ms",
        held=value < AIM_MS,
        parts={name: percentiles(taken[name], digits=1) for name in parts},
        notes=(
            (
                f"ratio of medians {ratio(ours, empty):g}, switched off {ratio(taken['switched off'], empty):g},"
                f" to the bare Python {ratio(ours, taken['a Python that does nothing']):g}"
            ),
        ),
    )


def _taken(folder: Path, calls: int) -> dict[str, list[float]]:
    empty = folder / "empty"
    empty.write_text("#!/bin/sh\nexit 0\n")
    empty.chmod(0o755)
    known, unknown = (_installed(folder / name) for name in ("known", "unknown"))
    rivals = {
        "empty script": ([str(empty)], {}),
        "nothing to do": ([str(known / "prolog")], {}),
        "switched off": ([str(known / "prolog")], {"FTRUN_HOOKS": "off"}),
        "a Python that does nothing": ([_python(known), "-I", "-S", "-c", "pass"], {}),
        "a job with nothing known of the node": ([str(unknown / "prolog")], {}),
    }
    subprocess.run([known / "health"], env=JOB, check=True)
    taken: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(calls + WARM_UP):
        for name, (command, more) in rivals.items():
            started = time.perf_counter()
            subprocess.run(command, env=JOB | more, check=True, stdout=subprocess.DEVNULL)
            if turn >= WARM_UP:
                taken[name].append((time.perf_counter() - started) * 1e3)
    return taken


def _installed(folder: Path) -> Path:
    with contextlib.redirect_stdout(io.StringIO()):
        install.main(
            [str(folder), "--settings", str(folder / "checks.json"), "--state", str(folder / "state")]
        )
    return folder


def _python(folder: Path) -> str:
    """The interpreter that was chosen for the hooks."""
    lines = (folder / "prolog").read_text().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("python="))
