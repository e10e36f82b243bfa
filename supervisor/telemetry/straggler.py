"""Which nodes are steadily slower than their peers. (pure)

Ranks that train together step together, at the pace of the slowest, so the step time accuses nobody. What
differs is a rank's *own* time, from the begin of a step until it begins to wait for the others; the straggler
has the most. Own times are differences of one clock, so the nodes' clocks need not agree. Ranks that do not
wait for each other can be judged by their pace in the same way.

Time is cut into windows of WINDOW_S (a setting) with at least STEPS_MIN steps. A rank is slow in a window if
its own time per step is `ratio` times the median of all ranks and SCORE robust deviations above it (median of
absolute deviations, but at least NOISE of the median: where all are alike, the smallest difference would be
far outside). A node is slow in a window if one of its ranks is. It becomes a straggler after SLOW_OF slow
windows of the last KEPT, and stays one until CLEAR_OF or fewer of them are slow.

Doubtful cases are not reported. If half of all ranks are slow, none is an outlier. Many slow nodes at once
(more than SHARE of all, and more than one) are the job's shape. And a rank that had half of its excess
already in its first KEPT windows may be slow by design, as the last stage of a pipeline is: it is reported
and costs the node nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import StrEnum
from statistics import median
from types import MappingProxyType

from ftrun.slurm.records import dataclass, replace

WINDOW_S = 60.0
STEPS_MIN = 5
RANKS_MIN = 3
KEPT = 10
SLOW_OF = 8
CLEAR_OF = 3
SCORE = 6.0
NOISE = 0.02
MAD = 1.4826  # makes the median of absolute deviations a standard deviation, were the times normal
SHARE = 0.1


class StragglerAction(StrEnum):
    """What to do about a straggler."""

    WARN = "warn"
    EXCLUDE = "exclude"  # softly, at the next start, where others are free
    SWAP = "swap"  # at the next checkpoint


@dataclass(frozen=True, slots=True)
class Sample:
    """A rank's own seconds so far, and over how many steps. Both only grow; smaller values mean a new
    process.
    """

    rank: int
    node: str
    own_s: float
    own_n: int


@dataclass(frozen=True, slots=True)
class Straggler:
    """A straggler: its slowest rank, that rank's time in medians, its slow windows of the last KEPT, and
    whether it always was so.
    """

    node: str
    rank: int
    ratio: float
    windows: int
    since_start: bool


@dataclass(frozen=True, slots=True)
class StragglerAdvice:
    """What to do about a node, and why. `ratio` is 0.0 where a check, and no step time, accuses it."""

    act: StragglerAction
    node: str
    ratio: float
    reason: str


@dataclass(frozen=True, slots=True)
class _Node:
    votes: tuple[bool, ...] = ()
    times: tuple[
        float, ...
    ] = ()  # the median that its slowest rank took, in the last windows in which it was slow
    rank: int = -1
    flagged: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """What the windows have shown. Starts empty; `observe` returns the next one.

    `first`: rank -> its times in medians in its first windows, summed, and their number.
    """

    since_s: float | None = None
    base: Mapping[int, Sample] = field(default_factory=lambda: MappingProxyType({}))
    nodes: Mapping[str, _Node] = field(default_factory=lambda: MappingProxyType({}))
    first: Mapping[int, tuple[float, int]] = field(default_factory=lambda: MappingProxyType({}))
    windows: int = 0


def observe(
    history: History,
    samples: Iterable[Sample],
    now_s: float,
    ratio: float = 1.3,
    window_s: float = WINDOW_S,
) -> History:
    """The history after a look. Until a window is full, this only compares times.

    `ratio`, `window_s`: the settings straggler-ratio and straggler-window.
    """
    if history.since_s is not None and now_s - history.since_s < window_s:
        return history
    latest = {one.rank: one for one in samples}
    base = history.base
    if history.since_s is None or any(
        rank not in base or base[rank].node != one.node or one.own_n < base[rank].own_n
        for rank, one in latest.items()
    ):
        return replace(history, since_s=now_s, base=MappingProxyType(latest))
    took = {
        rank: (one.own_s - base[rank].own_s) / (one.own_n - base[rank].own_n)
        for rank, one in latest.items()
        if one.own_n - base[rank].own_n >= STEPS_MIN
    }
    if len(took) < max(RANKS_MIN, 0.75 * len(latest)):
        return history  # the window goes on until nearly all ranks have enough steps
    nodes = _judged(history.nodes, _found(latest, took, ratio))
    return History(now_s, MappingProxyType(latest), nodes, _first(history.first, took), history.windows + 1)


def _first(
    before: Mapping[int, tuple[float, int]], took: Mapping[int, float]
) -> Mapping[int, tuple[float, int]]:
    usual_s = median(took.values())
    after = dict(before)
    for rank, one_s in took.items():
        total, count = after.get(rank, (0.0, 0))
        if count < KEPT and usual_s > 0:
            after[rank] = (total + one_s / usual_s, count + 1)
    return MappingProxyType(after)


def _found(
    latest: Mapping[int, Sample], took: Mapping[int, float], ratio: float
) -> dict[str, tuple[float, int] | None]:
    """Each node's slowest slow rank in this window as (ratio, rank); None = the node was not slow."""
    usual_s = median(took.values())
    spread_s = max(MAD * median(abs(one - usual_s) for one in took.values()), NOISE * usual_s)
    found: dict[str, tuple[float, int] | None] = {latest[rank].node: None for rank in took}
    slow_n = 0
    for rank, one_s in took.items():
        if usual_s > 0 and one_s >= ratio * usual_s and one_s - usual_s >= SCORE * spread_s:
            slow_n += 1
            node = latest[rank].node
            before = found[node]
            times = one_s / usual_s
            found[node] = (times, rank) if before is None or times > before[0] else before
    if 2 * slow_n >= len(took):
        return dict.fromkeys(found)
    return found


def _judged(
    before: Mapping[str, _Node], found: Mapping[str, tuple[float, int] | None]
) -> Mapping[str, _Node]:
    after: dict[str, _Node] = {}
    for node, seen in found.items():
        one = before.get(node, _Node())
        votes = (*one.votes[-KEPT + 1 :], seen is not None)
        count = sum(votes)
        flagged = count > CLEAR_OF if one.flagged else count >= SLOW_OF
        times, rank = one.times, one.rank
        if seen is not None:
            times, rank = (*times[-KEPT + 1 :], seen[0]), seen[1]
        after[node] = _Node(votes, times, rank, flagged)
    return MappingProxyType(after)


def find_stragglers(history: History) -> tuple[Straggler, ...]:
    """The stragglers, slowest first; () where so many nodes are slow that none is an outlier."""
    found = [
        Straggler(node, one.rank, median(one.times), sum(one.votes), since_start=_always(history, one))
        for node, one in history.nodes.items()
        if one.flagged
    ]
    if len(found) > max(1.0, SHARE * len(history.nodes)):
        return ()
    return tuple(sorted(found, key=lambda one: (-one.ratio, one.node)))


def _always(history: History, one: _Node) -> bool:
    total, count = history.first.get(one.rank, (0.0, 0))
    return count > 0 and total / count - 1.0 >= 0.5 * (median(one.times) - 1.0)


def advise(
    stragglers: Iterable[Straggler], setting: str, *, spares: int, degraded: Mapping[str, str] | None = None
) -> tuple[StragglerAdvice, ...]:
    """What to do, by the setting `straggler` (warn, swap, never). `degraded`: node -> what its checks report.
    Rank 0's node is treated like any other.
    """
    if setting == "never":
        return ()
    advice: list[StragglerAdvice] = []
    for one in stragglers:
        what = (
            f"rank {one.rank} on {one.node} takes {one.ratio:.2f} times its peers' own time in {one.windows} of the last "
            f"{KEPT} windows"
        )
        if one.since_start:
            advice.append(
                StragglerAdvice(
                    StragglerAction.WARN, one.node, one.ratio, f"{what}, from the start: perhaps by design"
                )
            )
        else:
            advice.append(_advice(one.node, one.ratio, what, setting, spares - _swaps(advice)))
    told = {one.node for one in advice}
    for node, why in sorted((degraded or {}).items()):
        if node not in told:
            advice.append(_advice(node, 0.0, f"{node} is degraded: {why}", setting, spares - _swaps(advice)))
    return tuple(advice)


def _swaps(advice: Iterable[StragglerAdvice]) -> int:
    return sum(one.act is StragglerAction.SWAP for one in advice)


def _advice(node: str, ratio: float, what: str, setting: str, spares: int) -> StragglerAdvice:
    if setting != "swap":
        return StragglerAdvice(
            StragglerAction.EXCLUDE,
            node,
            ratio,
            f"{what}; it is avoided at the next start where others are free",
        )
    if spares > 0:
        return StragglerAdvice(
            StragglerAction.SWAP, node, ratio, f"{what}; a spare takes its place at the next checkpoint"
        )
    return StragglerAdvice(StragglerAction.EXCLUDE, node, ratio, f"{what}; there is no spare, so it goes on")
