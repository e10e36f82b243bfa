"""`make straggler-alarms`: jobs without a straggler, and jobs with one of known slowness. (I/O)

    python -m tests.falsealarms.stragglers [--runs N] [--seed N]

A job is some nodes of some ranks, watched for some hours, window by window. Own times differ by chance from window to window, by rank for good (one
device of a batch is a little slower), by stage where the job is a pipeline, and now and then a node has a bad minute, or some. A node that was told
though nothing is wrong with it is a false alarm; of those the ones that would cost it anything (no "from the start") are counted apart.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from random import Random

from ftrun.supervisor.telemetry import straggler

RATIOS = (1.1, 1.2, 1.3, 1.4, 1.5, 2.0, 4.0)
SETTING = 1.3
WINDOWS = 120  # two hours
STEPS = 20


def job(seed: int, ratio: float, begins: int) -> Iterator[list[straggler.Sample]]:
    """What a look at the end of each window shows. One rank is `ratio` times slower from window `begins` on; 1.0 = none is."""
    chance = Random(seed)
    nodes, per_node = chance.choice((2, 4, 8, 16, 32)), chance.choice((1, 4, 8))
    noise, spread = chance.uniform(0.002, 0.08), chance.uniform(0.0, 0.04)
    stages = chance.choice((1, 1, 1, 2, 4))
    usual = [chance.gauss(1.0, spread) for _ in range(nodes * per_node)]
    if stages > 1:  # the last stage has the head of the model to do, too
        more = chance.uniform(1.0, 1.4)
        usual = [
            one * (more if rank * stages // len(usual) == stages - 1 else 1.0)
            for rank, one in enumerate(usual)
        ]
    bad_share, slow_rank = chance.choice((0.0, 0.01, 0.05)), chance.randrange(len(usual))
    own_s = [0.0] * len(usual)
    for window in range(WINDOWS):
        bad = {node for node in range(nodes) if chance.random() < bad_share}
        for rank, one in enumerate(usual):
            took = one * chance.lognormvariate(0.0, noise)
            took *= chance.uniform(1.2, 3.0) if rank // per_node in bad else 1.0
            took *= ratio if rank == slow_rank and window >= begins else 1.0
            own_s[rank] += took * STEPS
        yield [
            straggler.Sample(rank, f"n{rank // per_node}", one, (window + 1) * STEPS)
            for rank, one in enumerate(own_s)
        ]


def judged(seed: int, ratio: float, begins: int) -> Iterator[tuple[int, straggler.Straggler]]:
    """(window, node told) of one job, each node once."""
    history, told = straggler.History(), set[str]()
    for window, samples in enumerate(job(seed, ratio, begins)):
        history = straggler.observe(history, samples, window * straggler.WINDOW_S, SETTING)
        for one in straggler.find_stragglers(history):
            if one.node not in told:
                told.add(one.node)
                yield window, one


def alarms(runs: int, seed: int) -> tuple[int, int]:
    """Of so many jobs without a straggler: how many told of one, and how many would have cost a node something."""
    found = [[one for _, one in judged(seed + place, 1.0, 0)] for place in range(runs)]
    return sum(bool(one) for one in found), sum(any(not slow.since_start for slow in one) for one in found)


def delays(runs: int, seed: int, ratio: float) -> list[int]:
    """After how many windows a straggler that begins in window 40 is told, of the jobs in which it is."""
    found = (
        next((w for w, one in judged(seed + place, ratio, 40) if w >= 40), None) for place in range(runs)
    )
    return sorted(window - 40 + 1 for window in found if window is not None)


def main() -> int:
    """Print both, and say whether too many healthy nodes were told."""
    parser = argparse.ArgumentParser(
        prog="make straggler-alarms", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--runs", type=int, default=2000, help="so many jobs without a straggler (default: 2000)"
    )
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    told, cost = alarms(asked.runs, asked.seed)
    hours = asked.runs * WINDOWS / 60.0
    print(
        f"{asked.runs} jobs without a straggler, {hours:.0f} hours: {told} told of one, {cost} would have cost a node something"
    )
    few = max(20, asked.runs // 20)
    for ratio in RATIOS:
        after = delays(few, asked.seed + 1_000_000, ratio)
        when = f"after {after[len(after) // 2]} windows (median), {after[-1]} (longest)" if after else ""
        print(f"one rank {ratio} times slower: {len(after)} of {few} told {when}")
    return int(cost > asked.runs // 1000)


if __name__ == "__main__":
    sys.exit(main())
