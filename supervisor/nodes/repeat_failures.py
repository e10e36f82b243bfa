"""Failures that follow one node: an exact test of whether a node fails jobs more often than chance. (pure)

Some faults show in no log and in no check: silent corruption, a device that is there for nobody's job, jobs
that die without a word. Each such failure looks like the program's own. What gives the node away is that the
same work passes elsewhere.

The unit is a *start*: one launch of a script on its nodes that either `failed` without a cause that names a
node, or passed. Starts are alike (the same *work*) if they have the same job name (numbers apart), partition
and number of nodes. For one node and one work with n starts, of which k failed and m used the node, the null
hypothesis says that the failures would have come at the same starts wherever these were placed. The number of
failed starts on the node is then hypergeometric(n, k, m). Different works are independent, so the sum over
all works has the convolution of their distributions, and

    p = P(sum >= number of failed starts on the node)

This is the exact conditional test of several 2 x 2 tables (Cochran 1954, Mantel and Haenszel 1959; for one
table it is Fisher's exact test, one-sided). A work that fails everywhere, or never, or that used the node
always, or never, tells nothing and adds nothing. p is multiplied by the number of nodes that were used
(Bonferroni), since each of them could have been the one. See docs/nodes.md.

Starts are not independent of each other, so what speaks against a node is counted once and what speaks for it
is counted in full:

- Failures on the node with no success of that work in between count as one: a bug that is being mended, an
  outage. So do failures of different works within `WINDOW_S`.
- Successes elsewhere, one after the other on the same nodes, count as one.
- Successes on the node, and failures elsewhere, count each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.model.node_entry import NodeEntry

ENDED = "ended"
"""The kind of ledger entry that holds a start."""

SIGNATURE = "follows-the-node"
"""The signature of a strike that rests on this test."""

SUSPECT_BELOW = 0.05
EXCLUDE_BELOW = 0.001
"""Corrected probabilities from which a node is a suspect, and from which runs avoid it."""

SUSPECT_LEAST, EXCLUDE_LEAST = 2, 3
"""The least number of failures on the node, each counted as above, for the same."""

KEPT_S = 28 * 86_400.0
WINDOW_S = 600.0


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a script that is over. `at_s` is when it ended (Unix seconds)."""

    at_s: float
    work: str
    nodes: frozenset[str]
    failed: bool
    run: str = ""


@dataclass(frozen=True, slots=True)
class Association:
    """How failures go with one node. Counts are of starts, after the rules above.

    `failed` of `starts` on the node failed, and `failed_elsewhere` of `starts_elsewhere` of the same works.
    `chance`: how likely at least so many are if the node is like all others. `tested`: how many nodes could
    have been the one. `failed_at_s`: when the failures on it ended (Unix seconds), `runs` whose they were.
    """

    node: str
    failed: int
    starts: int
    failed_elsewhere: int
    starts_elsewhere: int
    chance: float
    tested: int
    failed_at_s: tuple[float, ...] = ()
    runs: tuple[str, ...] = ()

    @property
    def corrected(self) -> float:
        """The probability that some node of all looks like this by chance, at most."""
        return min(1.0, self.chance * self.tested)

    @property
    def suspect(self) -> bool:
        """Whether the node is worth doubting."""
        return self.failed >= SUSPECT_LEAST and self.corrected < SUSPECT_BELOW

    @property
    def excluded(self) -> bool:
        """Whether runs should avoid the node."""
        return self.failed >= EXCLUDE_LEAST and self.corrected < EXCLUDE_BELOW

    @property
    def sentence(self) -> str:
        """The arithmetic, for people."""
        return (
            f"{self.failed} of {self.starts} starts on {self.node} failed for no known cause,"
            f" {self.failed_elsewhere} of {self.starts_elsewhere} of the same work elsewhere:"
            f" by chance {odds(self.chance)}, {odds(self.corrected)} among {self.tested} nodes"
        )


def odds(probability: float) -> str:
    """A probability as people say it: `1 in 2,300`."""
    if probability >= 0.5:
        return "likely"
    one_in = 1.0 / max(probability, 1e-12)
    digits = max(0, math.floor(math.log10(one_in)) - 1)
    return f"1 in {math.floor(one_in / 10**digits) * 10**digits:,}"


def starts_of(entries: Iterable[NodeEntry], since_s: float = float("-inf")) -> list[Start]:
    """The starts in the ledger's entries that ended after `since_s`, oldest first."""
    found = [
        Start(
            entry.at_s,
            str(entry.detail.get("work", "")),
            frozenset(entry.nodes),
            entry.detail.get("result") == "failed",
            entry.run,
        )
        for entry in entries
        if entry.what == ENDED and entry.at_s > since_s
    ]
    return sorted(found, key=lambda start: (start.at_s, start.run, sorted(start.nodes)))


class Tally:
    """Starts, counted as they come, the oldest first."""

    def __init__(self, starts: Iterable[Start] = ()) -> None:
        self._works: dict[str, _Work] = {}
        self.nodes: set[str] = set()
        for start in starts:
            self.add(start)

    def add(self, start: Start) -> None:
        """Count one more."""
        self._works.setdefault(start.work, _Work()).add(start)
        self.nodes |= start.nodes

    def association(self, node: str) -> Association | None:
        """How failures go with the node; None where no work can tell."""
        return _association(self._works.values(), node, len(self.nodes))


def associations(
    starts: Sequence[Start], since_s: Mapping[str, float] | None = None
) -> dict[str, Association]:
    """Each node with at least `SUSPECT_LEAST` failures that count, and how these go with it.

    `starts` are oldest first. `since_s`: node -> only starts after this time (Unix seconds) count for it.
    """
    since_s, every = since_s or {}, Tally(starts)
    found: dict[str, Association] = {}
    for node in sorted({node for start in starts if start.failed for node in start.nodes}):
        tally = every
        if node in since_s:
            tally = Tally(start for start in starts if start.at_s > since_s[node])
        known = tally.association(node)
        if known is not None and known.failed >= SUSPECT_LEAST:
            found[node] = known
    return found


def strike_times_s(starts: Sequence[Start], found: Association, since_s: float) -> tuple[float, ...]:
    """When the failures ended from which on the node was to be avoided, oldest first (Unix seconds).

    The first is the one with which the probability fell below the limit.
    """
    if not found.excluded:
        return ()
    times = found.failed_at_s
    for place in range(EXCLUDE_LEAST - 1, len(times) - 1):
        known = Tally(one for one in starts if since_s < one.at_s < times[place + 1])
        then = known.association(found.node)
        if then is not None and replace(then, tested=found.tested).excluded:
            return times[place:]
    return times[-1:]


class _Work:
    """The starts of one work: its counts, and those of each node. Fed oldest first."""

    def __init__(self) -> None:
        self.failed = 0
        self.passed = 0  # of successes that follow each other on the same nodes, one
        self._successes = 0
        self._last = frozenset[str]()  # the nodes of the start before, if that passed
        self._of: dict[str, list[tuple[Start, bool, int]]] = {}

    def add(self, start: Start) -> None:
        """Count one more start."""
        again = not start.failed and start.nodes == self._last
        if start.failed:
            self.failed += 1
        else:
            self._successes += 1
            self.passed += not again
        self._last = frozenset() if start.failed else start.nodes
        for node in start.nodes:
            self._of.setdefault(node, []).append((start, again, self._successes))

    def table(self, node: str) -> _Table:
        """The counts with and without the node."""
        own = self._of.get(node, ())
        failures: dict[int, Start] = {}  # the first of those that have no success in between
        for start, _, successes in own:
            if start.failed:
                failures.setdefault(successes, start)
        failed = sum(start.failed for start, _, _ in own)
        passed_once = sum(not start.failed and not again for start, again, _ in own)
        return _Table(
            tuple(failures.values()),
            len(own) - failed,
            self.failed - failed,
            self.passed - passed_once,
        )


@dataclass(frozen=True, slots=True)
class _Table:
    """The 2 x 2 table of one work and one node, as it is counted."""

    failures: tuple[Start, ...]
    passed: int
    failed_elsewhere: int
    passed_elsewhere: int

    @property
    def tells(self) -> bool:
        """Whether placement could have made a difference: no row and no column is empty."""
        failed, passed = len(self.failures) + self.failed_elsewhere, self.passed + self.passed_elsewhere
        here, elsewhere = len(self.failures) + self.passed, self.failed_elsewhere + self.passed_elsewhere
        return bool(failed and passed and here and elsewhere)

    @property
    def distribution(self) -> list[float]:
        """P(so many failures on the node) for 0, 1, ..., had they come wherever the starts were."""
        failed, here = len(self.failures) + self.failed_elsewhere, len(self.failures) + self.passed
        passed = self.passed + self.passed_elsewhere
        ways = math.comb(failed + passed, here)
        most = min(failed, here)
        return [math.comb(failed, n) * math.comb(passed, here - n) / ways for n in range(most + 1)]


def _association(works: Iterable[_Work], node: str, tested: int) -> Association | None:
    """How failures go with the node; None where no work can tell."""
    tables = [table for work in works if (table := work.table(node)).tells]
    kept = _apart([one for table in tables for one in table.failures])
    if len(tables) > 1:  # failures of several works at a time are one event
        tables = [replace(one, failures=tuple(f for f in one.failures if f in kept)) for one in tables]
        tables = [table for table in tables if table.tells]
        kept = [start for start in kept if any(start in table.failures for table in tables)]
    if not kept:
        return None
    return Association(
        node=node,
        failed=len(kept),
        starts=len(kept) + sum(table.passed for table in tables),
        failed_elsewhere=sum(table.failed_elsewhere for table in tables),
        starts_elsewhere=sum(table.failed_elsewhere + table.passed_elsewhere for table in tables),
        chance=_tail([table.distribution for table in tables], len(kept)),
        tested=tested,
        failed_at_s=tuple(start.at_s for start in kept),
        runs=tuple(sorted({start.run for start in kept if start.run})),
    )


def _apart(failures: Iterable[Start]) -> list[Start]:
    """The failures, oldest first, without those of another work soon after one."""
    kept: list[Start] = []
    for one in sorted(failures, key=lambda start: start.at_s):
        if not kept or one.work == kept[-1].work or one.at_s - kept[-1].at_s > WINDOW_S:
            kept.append(one)
    return kept


def _tail(distributions: Iterable[Sequence[float]], least: int) -> float:
    """P(the sum of these numbers is at least `least`)."""
    total = [1.0]
    for one in distributions:
        longer = [0.0] * (len(total) + len(one) - 1)
        for place, value in enumerate(total):
            for more, chance in enumerate(one):
                longer[place + more] += value * chance
        total = longer
    return min(1.0, math.fsum(total[least:]))
