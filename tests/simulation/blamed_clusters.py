"""Clusters in memory whose jobs fail for reasons of their own, and some with a node that is really bad. (pure)

For `nodes/repeat_failures`: how often a healthy node is excluded, and after how many failed runs a bad one is.

    python -m tests.simulation.blamed_clusters [--clusters 1000] [--runs 300] [--bad 0]

A cluster has one user with several kinds of work beside the load of others. Its jobs fail without a cause that
names a node: flaky programs (up to 30 % of starts), bugs that are mended over several submissions, outages in
which everything dies. Nodes are given out by the first idle one, at random, or the same again. Failed runs are
retried by ftrun on other nodes, or submitted again by the user at once.
"""

from __future__ import annotations

import argparse
import heapq
import multiprocessing
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from ftrun.supervisor.nodes.repeat_failures import SUSPECT_LEAST, Start, Tally

HOUR_S = 3600.0
EXCLUDED_FOR_S = 24 * HOUR_S
SIZES = (8, 64, 512)
EVERYTHING = 0.05
"""How often all nodes are judged, as a share of the starts."""
FLAKY = (0.0, 0.02, 0.05, 0.1, 0.3)


@dataclass(frozen=True)
class Work:
    """One kind of job. `flaky` is the share of its starts that fail for no reason of a node."""

    name: str
    nodes: int
    hours: float
    flaky: float
    buggy: float  # chance of a submission to begin a series of failures that ends when the bug is mended
    placing: str  # first, random, same


@dataclass
class Outcome:
    """What came of one cluster."""

    runs: int = 0
    starts: int = 0
    failed: int = 0
    excluded: list[tuple[int, str]] = field(default_factory=list)  # (runs by then, node)
    suspected: set[str] = field(default_factory=set)
    found_after: int | None = None  # failed runs on the bad node until it was excluded
    suspected_after: int | None = None


class Cluster:
    """One cluster by its seed; `bad`: chance that a start on its bad node fails, 0 = it has none.

    `quiet`: programs fail seldom, and nodes are given out at random.
    """

    def __init__(
        self, seed: int, nodes: int, *, bad: float = 0.0, job_nodes: int = 0, quiet: bool = False
    ) -> None:
        self.dice = random.Random(seed)
        self.quiet = quiet
        self.names = [f"n{number}" for number in range(nodes)]
        self.bad_node = self.dice.choice(self.names) if bad else ""
        self.bad = bad
        self.load = self.dice.uniform(0.1, 0.8)  # of other users
        self.works = [self._work(number, job_nodes) for number in range(self.dice.randint(1, 6))]
        self.bugs = dict.fromkeys((work.name for work in self.works), 0)
        self.last: dict[str, tuple[str, ...]] = {}
        self.outages = sorted(self.dice.uniform(0, 2000) * HOUR_S for _ in range(self.dice.randint(0, 8)))
        self.until_s: dict[str, float] = {}  # excluded nodes
        self.failures: dict[str, int] = {}
        self.busy: list[tuple[float, tuple[str, ...]]] = []

    def _work(self, number: int, job_nodes: int) -> Work:
        most = max(1, len(self.names) // 4)
        sizes = [size for size in (1, 1, 2, 4, 8, 16, 64) if size <= most]
        return Work(
            f"work{number}",
            job_nodes or self.dice.choice(sizes),
            self.dice.choice((0.1, 1.0, 8.0)),
            self.dice.choice(FLAKY[:3] if self.quiet else FLAKY),
            self.dice.choice((0.0, 0.03) if self.quiet else (0.0, 0.1, 0.3)),
            "random" if self.quiet else self.dice.choice(("first", "random", "same")),
        )

    def place(self, work: Work, now_s: float, without: Sequence[str] = ()) -> tuple[str, ...]:
        """The nodes of a start: never too few, as Slurm would let it wait for the rest."""
        self.busy = [(end_s, nodes) for end_s, nodes in self.busy if end_s > now_s]
        taken = {node for _, nodes in self.busy for node in nodes}
        away = {node for node, until_s in self.until_s.items() if until_s > now_s}
        others = {node for node in self.names if self.dice.random() < self.load}
        shuffled = self.names[:]
        if work.placing == "random":
            self.dice.shuffle(shuffled)
        last = set(self.last.get(work.name, ())) if work.placing == "same" else set()
        shuffled.sort(
            key=lambda node: (node in away, node in without, node in taken, node not in last and node in others, node not in last)
        )  # fmt: skip
        return tuple(shuffled[: work.nodes])

    def ends(self, work: Work, nodes: tuple[str, ...], now_s: float, *, buggy: bool) -> tuple[float, bool]:
        """When a start ends, and whether it failed."""
        end_s = now_s + HOUR_S * work.hours * self.dice.uniform(0.5, 1.5)
        early_s = now_s + (end_s - now_s) * self.dice.random()
        if (
            buggy
            or self.dice.random() < work.flaky
            or (self.bad_node in nodes and self.dice.random() < self.bad)
        ):
            return early_s, True
        outage = next((at_s for at_s in self.outages if now_s <= at_s <= end_s), None)
        return (end_s, False) if outage is None else (outage + self.dice.uniform(0, 60), True)

    def live(self, runs: int, *, enough: bool = False) -> Outcome:
        """Let so many runs be submitted. `enough`: until the bad node is excluded."""
        out, order = Outcome(), count()
        tally = Tally()
        on_bad: set[str] = set()
        events: list[tuple[float, int, Work, int, str]] = []  # time, order, work, attempt, run
        for work in self.works:
            heapq.heappush(events, (self.dice.uniform(0, 10) * HOUR_S, next(order), work, 1, ""))
        ended: list[tuple[float, int, Start]] = []
        while events and out.runs < runs:
            now_s, _, work, attempt, run = heapq.heappop(events)
            while ended and ended[0][0] <= now_s:
                self._look(heapq.heappop(ended)[2], tally, out, on_bad)
            if enough and out.found_after is not None:
                break
            if attempt == 1:
                out.runs += 1
                run = f"run{out.runs}"
                if self.bugs[work.name]:
                    self.bugs[work.name] -= 1
                elif self.dice.random() < work.buggy:
                    self.bugs[work.name] = self.dice.randint(1, 8)
            nodes = self.place(work, now_s, self.last.get(work.name, ()) if attempt > 1 else ())
            end_s, failed = self.ends(work, nodes, now_s, buggy=bool(self.bugs[work.name]))
            self.last[work.name] = nodes
            self.busy.append((end_s, nodes))
            heapq.heappush(
                ended, (end_s, next(order), Start(end_s, work.name, frozenset(nodes), failed, run))
            )
            out.starts += 1
            out.failed += failed
            if failed and attempt == 1 and self.dice.random() < 0.5:
                heapq.heappush(events, (end_s + 60, next(order), work, 2, run))
            else:
                pause_h = 0.05 if failed and self.dice.random() < 0.7 else self.dice.expovariate(0.3)
                heapq.heappush(events, (end_s + pause_h * HOUR_S, next(order), work, 1, ""))
        return out

    def _look(self, last: Start, tally: Tally, out: Outcome, on_bad: set[str]) -> None:
        """What a supervisor does whenever a start has ended.

        A supervisor judges all nodes each time. Here those of a start that failed are judged, and now and then
        all, since successes elsewhere move little: else a thousand clusters take hours.
        """
        tally.add(last)
        for node in last.nodes if last.failed else ():
            self.failures[node] = self.failures.get(node, 0) + 1
        if last.failed and self.bad_node in last.nodes:
            on_bad.add(last.run)
        everything = not self.bad and self.dice.random() < EVERYTHING
        for node in self.names if everything else last.nodes if last.failed else ():
            if self.failures.get(node, 0) < SUSPECT_LEAST or (self.bad and node != self.bad_node):
                continue
            found = tally.association(node)
            if found is None:
                continue
            if found.suspect and node == self.bad_node and out.suspected_after is None:
                out.suspected_after = len(on_bad)
            if found.suspect:
                out.suspected.add(node)
            if found.excluded and self.until_s.get(node, 0.0) <= last.at_s:
                if node == self.bad_node:
                    out.found_after = out.found_after or len(on_bad)
                elif found.failed_at_s[-1] + EXCLUDED_FOR_S > last.at_s:
                    out.excluded.append((out.runs, node))
                    self.until_s[node] = found.failed_at_s[-1] + EXCLUDED_FOR_S


def healthy(seed_runs: tuple[int, int]) -> Outcome:
    """A cluster without a bad node."""
    seed, runs = seed_runs
    return Cluster(seed, SIZES[seed % len(SIZES)]).live(runs)


def with_bad_node(case: tuple[int, int, int, float, bool]) -> Outcome:
    """A cluster with one: (seed, nodes, nodes of a job, chance of failing, quiet)."""
    seed, nodes, job_nodes, bad, quiet = case
    return Cluster(seed, nodes, bad=bad, job_nodes=job_nodes, quiet=quiet).live(3_000, enough=True)


def main() -> None:
    """Print the rate of false exclusions, or the power."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clusters", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--power", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    with multiprocessing.Pool(options.jobs) as pool:
        if options.power:
            print(
                "cluster  nodes  of a job  fails there  clusters  found"
                "  failed runs until excluded (median, 90 %)  until suspect"
            )
            for quiet in (True, False):
                for nodes in SIZES:
                    for job_nodes in (1, max(2, nodes // 8)):
                        for bad in (1.0, 0.5):
                            cases = [(seed, nodes, job_nodes, bad, quiet) for seed in range(options.clusters)]
                            _power(cases[0], pool.map(with_bad_node, cases, chunksize=1))
            return
        outcomes: list[Outcome] = []
        for seed in range(0, options.clusters, 100):
            seeds = range(seed, min(seed + 100, options.clusters))
            outcomes += pool.map(healthy, [(one, options.runs) for one in seeds], chunksize=4)
            _rate(f"the first {len(outcomes)}", outcomes)
    for place, size in enumerate(SIZES):
        _rate(f"{size} nodes", outcomes[place :: len(SIZES)])
    _rate("all", outcomes)


def _rate(name: str, outcomes: Sequence[Outcome]) -> None:
    runs, bad = sum(one.runs for one in outcomes), sum(len(one.excluded) for one in outcomes)
    clusters = sum(bool(one.excluded) for one in outcomes)
    failed = sum(one.failed for one in outcomes) / max(1, sum(one.starts for one in outcomes))
    suspects = sum(len(one.suspected) for one in outcomes)
    print(
        f"{name}: {len(outcomes)} clusters, {runs} runs, {failed:.0%} of starts failed; {bad} false exclusions in"
        f" {clusters} clusters ({1000 * bad / max(1, runs):.3f} per 1,000 runs); {suspects} nodes ever suspect",
        flush=True,
    )


def _power(case: tuple[int, int, int, float, bool], outcomes: Sequence[Outcome]) -> None:
    _, nodes, job_nodes, bad, quiet = case
    found = sorted(one.found_after for one in outcomes if one.found_after is not None)
    first = sorted(one.suspected_after for one in outcomes if one.suspected_after is not None)
    needed = f"{statistics.median(found):g}, {found[int(0.9 * (len(found) - 1))]}" if found else "-"
    doubted = f"{statistics.median(first):g}" if first else "-"
    print(
        f"{'quiet' if quiet else 'rough':7s}  {nodes:5d}  {job_nodes:8d}  {bad:11.0%}  {len(outcomes):8d}"
        f"  {len(found):5d}  {needed:41s}  {doubted}",
        flush=True,
    )


if __name__ == "__main__":
    main()
