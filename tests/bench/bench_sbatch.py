"""`ftrun sbatch` against plain `sbatch`, call by call in turns on one sandbox; and where the difference goes. (I/O)

`python` is what an interpreter costs that does nothing: nothing written in Python can be quicker.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from tests.bench.figures import Figure, percentiles, ratio
from tests.bench.stand import FTRUN, Stand, stand

__all__ = ["measure"]

WARM_UP = 3  # calls that fill caches
AIM_ADDED_MS = 40.0


def measure(calls: int) -> Figure:
    """`calls` held jobs by each."""
    with stand(nodes=1) as here:
        taken = _taken(here, calls)
    ours, plain, bare = taken["ftrun sbatch"], taken["sbatch"], taken["python"]
    added = [mine - theirs for mine, theirs in zip(ours, plain, strict=True)]
    beyond = [more - start for more, start in zip(added, bare, strict=True)]
    value = round(statistics.median(added), 1)
    return Figure(
        name="ftrun sbatch",
        unit="ms",
        ours=percentiles(ours, digits=1),
        rival_name="sbatch",
        rival=percentiles(plain, digits=1),
        value=value,
        value_name="added to sbatch (median), ms",
        aim=f"<= {AIM_ADDED_MS:g} ms",
        held=value <= AIM_ADDED_MS,
        parts={
            "added, turn by turn": percentiles(added, digits=1),
            "a Python that does nothing": percentiles(bare, digits=1),
            "added beyond that": percentiles(beyond, digits=1),
        },
        notes=(f"ratio of medians {ratio(ours, plain):g}; the supervisor is not started by these calls",),
    )


def _taken(here: Stand, calls: int) -> dict[str, list[float]]:
    script = here.work / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH -N1\n#SBATCH -t 5\nhostname\n")
    rivals = {
        "sbatch": ["sbatch", "-H", str(script)],
        "ftrun sbatch": [FTRUN, "sbatch", "-H", str(script)],
        "python": [sys.executable, "-c", "pass"],
    }
    env = here.env | {"FTRUN_SUPERVISOR": "none"}
    taken: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(calls + WARM_UP):
        for name, command in rivals.items():
            started = time.perf_counter()
            subprocess.run(command, env=env, cwd=here.work, check=True, stdout=subprocess.DEVNULL)
            if turn >= WARM_UP:
                taken[name].append((time.perf_counter() - started) * 1e3)
    return taken
