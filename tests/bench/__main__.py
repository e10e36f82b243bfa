"""`make bench`: every figure that ftrun states about its own speed and cost, each beside a rival of the same run. (I/O)

    python -m tests.bench [PART...] [--few] [--gib GIB...] [--jobs N...] [--nodes N] [--runs N] [--running N] [--hosts N] [--json FILE]

The parts are scan, tail, sbatch, evidence, recovery, nodes, load, preflight, hooks, watch, inplace, elastic, stage, caches, poll, metrics, healthy, agent, scale, cluster, torchrun; all but the last four by default. `--few` is a try in less time, whose figures mean little.
Exit 1 where an aim is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench import (
    bench_caches,
    bench_cluster,
    bench_elastic,
    bench_evidence,
    bench_healthy,
    bench_hooks,
    bench_inplace,
    bench_load,
    bench_metrics,
    bench_nodes,
    bench_poll,
    bench_preflight,
    bench_recovery,
    bench_sbatch,
    bench_scale,
    bench_scan,
    bench_stage,
    bench_tail,
    bench_torchrun,
    bench_watch,
)
from tests.bench.figures import Figure, table
from tests.bench.scale_cluster import ROOM

POLLED = (1, 100, 1000)
SCALE = (2000, 10_000, 1000)  # nodes, jobs, runs
PARTS: dict[str, Callable[[bool], list[Figure]]] = {
    "scan": lambda few: bench_scan.measure(2 if few else 5),
    "tail": lambda few: bench_tail.measure(10.0 if few else 30.0),
    "sbatch": lambda few: [bench_sbatch.measure(10 if few else 40)],
    "evidence": lambda few: [bench_evidence.measure(2 if few else 5)],
    "recovery": lambda few: bench_recovery.healthy(2 if few else 5),
    "nodes": lambda few: bench_recovery.broken(1 if few else 3),
    "load": lambda few: bench_load.measure((1, 20) if few else (1, 100, 1000), 4.0 if few else 10.0),
    "preflight": lambda few: bench_preflight.measure(*((8, 80) if few else (64, 1000))),
    "hooks": lambda few: [bench_hooks.measure(10 if few else 40)],
    "watch": lambda few: bench_watch.measure(3 if few else 9),
    "inplace": lambda few: bench_inplace.measure(1 if few else 3),
    "elastic": lambda few: bench_elastic.measure(1 if few else 3),
    "stage": lambda few: bench_stage.measure((0.5,) if few else (1.0, 2.0), 1 if few else 3),
    "caches": lambda few: bench_caches.measure(1 if few else 3),
    "metrics": lambda few: bench_metrics.measure(*((20, 20.0, 1) if few else (100, 60.0, 2))),
    "poll": lambda few: bench_poll.measure((1, 100) if few else POLLED, 3 if few else 9),
    "healthy": lambda few: bench_healthy.measure(few=few),
    "cluster": lambda few: bench_cluster.measure(*((4, 1) if few else (bench_cluster.HOSTS, 3))),
    "torchrun": lambda few: bench_torchrun.measure(*((360.0, 45.0) if few else (1200.0, 120.0))),
    "agent": lambda few: bench_nodes.measure((16, 64) if few else bench_nodes.SIZES),
    "scale": lambda few: bench_scale.measure(*((200, 400, 60, 10.0) if few else (*SCALE, 120.0))),
}
ASKED_FOR = frozenset(
    {"agent", "scale", "cluster", "torchrun"}
)  # only where they are named: many minutes of submissions; root and an sshd for each host; 512 processes


def main() -> int:
    """Measure, print, and say whether all aims were held."""
    parser = argparse.ArgumentParser(prog="make bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--few", action="store_true", help="a try in less time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--gib", type=float, nargs="+", metavar="GIB", help="sizes of what is staged")
    parser.add_argument(
        "--jobs", type=int, nargs="+", metavar="N", help="numbers of jobs in a poll; thousands take minutes"
    )
    parser.add_argument(
        "--nodes", type=int, default=SCALE[0], metavar="N", help="scale: nodes of the cluster"
    )
    parser.add_argument(
        "--runs", type=int, default=SCALE[2], metavar="N", help="scale: how many of the jobs are runs"
    )
    parser.add_argument(
        "--running", type=int, default=ROOM, metavar="N", help="scale: for so many runs at once there is room"
    )
    parser.add_argument("--hosts", type=int, metavar="N", help="cluster: how many hosts")
    asked = parser.parse_args()
    began, load = time.monotonic(), os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f} at the start\n", flush=True)
    figures: list[Figure] = []
    for part in asked.parts or [part for part in PARTS if part not in ASKED_FOR]:
        if part == "stage" and asked.gib:
            measured = bench_stage.measure(asked.gib, 1 if asked.few else 3)
        elif part == "poll" and asked.jobs:
            measured = bench_poll.measure(asked.jobs, 3 if asked.few else 9)
        elif part == "cluster" and asked.hosts:
            measured = bench_cluster.measure(asked.hosts, 1 if asked.few else 3)
        elif part == "scale" and not asked.few:
            measured = bench_scale.measure(
                asked.nodes, max(asked.jobs or [SCALE[1]]), asked.runs, 120.0, asked.running
            )
        else:
            measured = PARTS[part](asked.few)
        print(table(measured), flush=True)
        figures += measured
    missed = [figure.name for figure in figures if figure.held is False]
    print(f"{time.monotonic() - began:.0f} s; aims missed: {', '.join(missed) or 'none'}")
    if asked.json is not None:
        facts = {"cores": os.cpu_count(), "load": load, "figures": [figure.as_json() for figure in figures]}
        asked.json.write_text(json.dumps(facts, indent=1) + "\n")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
