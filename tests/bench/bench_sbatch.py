"""`ftrun sbatch` against plain `sbatch`, call by call in turns on one sandbox; and where the difference goes.

    python tests/bench/bench_sbatch.py [CALLS]

Prints one JSON object: percentiles in milliseconds of each rival, and what ftrun adds to sbatch. `python` is what an
interpreter costs that does nothing: nothing written in Python can be quicker.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ftrun.slurm.sandbox import up

CALLS = 40


def main(calls: int) -> None:
    """Measure and print."""
    folder = Path(tempfile.mkdtemp(prefix="ftrun-b-"))
    folder.chmod(0o755)
    box = up(folder / "box", nodes=1)
    try:
        script = folder / "job.sh"
        script.write_text("#!/bin/bash\n#SBATCH -N1\n#SBATCH -t 5\nhostname\n")
        env = {**box.env(), "FTRUN_HOME": str(folder / "home"), "FTRUN_SUPERVISOR": "none"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # users have compiled modules
        ftrun = str(Path(sys.executable).with_name("ftrun"))
        rivals = {
            "sbatch": ["sbatch", "-H", str(script)],
            "ftrun sbatch": [ftrun, "sbatch", "-H", str(script)],
            "python": [sys.executable, "-c", "pass"],
        }
        taken: dict[str, list[float]] = {name: [] for name in rivals}
        for turn in range(calls + 3):
            for name, command in rivals.items():
                started = time.perf_counter()
                subprocess.run(command, env=env, cwd=folder, check=True, stdout=subprocess.DEVNULL)
                if turn >= 3:  # the first calls fill caches
                    taken[name].append((time.perf_counter() - started) * 1e3)
        print(json.dumps(report(taken), indent=1))
    finally:
        box.down()
        shutil.rmtree(folder, ignore_errors=True)


def report(taken: dict[str, list[float]]) -> dict[str, object]:
    """Percentiles of each, and the differences of each turn."""
    added = [ours - plain for ours, plain in zip(taken["ftrun sbatch"], taken["sbatch"], strict=True)]
    beyond = [more - bare for more, bare in zip(added, taken["python"], strict=True)]
    rows = {**taken, "added to sbatch": added, "of which not the interpreter": beyond}
    ratio = statistics.median(taken["ftrun sbatch"]) / statistics.median(taken["sbatch"])
    return {
        **{f"{name}, ms": percentiles(values) for name, values in rows.items()},
        "ratio of medians": round(ratio, 1),
    }


def percentiles(values: list[float]) -> dict[str, float]:
    """The least, the 50th, 90th and 99th in a hundred."""
    marks = statistics.quantiles(values, n=100, method="inclusive")
    return {
        "least": round(min(values), 1),
        "p50": round(marks[49], 1),
        "p90": round(marks[89], 1),
        "p99": round(marks[98], 1),
    }


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else CALLS)
