"""Which nodes are tried with which, and what the tries say of each node, in two rounds. (pure)

How it thinks. A try between two nodes that fails says that one of them is ill, not which. So in the first round each node is tried with one other; both nodes of a good try
are proven good. In the second round each suspect is tried with a proven good node, and now a failure has a name. What the good nodes reach is the measure: a try is bad where no
connection came about, or where it is much slower than most of the others; so where most of the network is slow alike, nobody is named. Where no try is good there is nobody to
test the suspects with: a matter of the site, and nobody is named either. Two suspects that are both well with a third have something wrong between them.

A node is in one try at a time: the tries of a round that share a node stand in different steps. With an odd number of nodes the last is tried with the first, in a step of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_high, median_low
from typing import NamedTuple

__all__ = ["Measured", "Outcome", "Pair", "first_round", "judged", "second_round"]


class Pair(NamedTuple):
    """A try: `client` opens the connection to `server`; tries of the same step have no node in common."""

    client: str
    server: str
    step: int = 0


class Measured(NamedTuple):
    """What came of a try: bytes a second of the slower direction, seconds of a round trip; `why` it failed, "" where it did not."""

    bytes_per_s: float = 0.0
    round_trip_s: float = 0.0
    why: str = ""


class Outcome(NamedTuple):
    """`bad`: node -> why; `between`: pairs that fail together and are well with others; `untried`: nodes of which nothing is known;
    `site`: why nobody is named although something failed, or "".
    """

    bad: Mapping[str, str]
    between: tuple[tuple[str, str], ...]
    untried: tuple[str, ...]
    site: str


def first_round(nodes: Sequence[str]) -> tuple[Pair, ...]:
    """Every node with one other; none for fewer than two nodes."""
    if len(nodes) < 2:
        return ()
    pairs = [Pair(nodes[place], nodes[place + 1]) for place in range(0, len(nodes) - 1, 2)]
    if len(nodes) % 2:
        pairs.append(Pair(nodes[0], nodes[-1], step=1))
    return tuple(pairs)


def second_round(first: Mapping[Pair, Measured], share: float, slower: float) -> tuple[Pair, ...]:
    """Every suspect of the first round with a proven good node; none where there is nobody of either kind."""
    good, suspects = _sorted_out(first, share, slower)
    if not good:
        return ()
    return tuple(
        Pair(good[number % len(good)], suspect, step=number // len(good))
        for number, suspect in enumerate(suspects)
    )


def judged(
    first: Mapping[Pair, Measured],
    second: Mapping[Pair, Measured],
    *,
    share: float = 0.5,
    slower: float = 10.0,
) -> Outcome:
    """What both rounds say. A try is bad below `share` of the usual bandwidth or above `slower` times the usual round trip.

    A planned try without an answer belongs into `first` with a `why`, and is left out of `second`: there it says nothing of the suspect.
    """
    good, suspects = _sorted_out(first, share, slower)
    if suspects and not good:
        return Outcome(
            {},
            (),
            tuple(suspects),
            f"no try of {len(first)} went well: a matter of the network, or of all nodes",
        )
    limits = _limits(first, share, slower)
    well = {pair: found for pair, found in first.items() if not _why(found, limits)}
    measure = _limits(well, share, slower)
    told = {pair.server: _why(found, measure) for pair, found in second.items()}
    bad = {node: why for node, why in told.items() if why}
    untried = tuple(node for node in suspects if node not in told)
    between = tuple(
        (pair.client, pair.server)
        for pair, found in first.items()
        if _why(found, limits) and not {pair.client, pair.server} & {*bad, *untried}
    )
    return Outcome(bad, between, untried, "")


def _sorted_out(first: Mapping[Pair, Measured], share: float, slower: float) -> tuple[list[str], list[str]]:
    """Proven good nodes, and those that were in no good try; each in the order of the plan."""
    nodes = list(dict.fromkeys(node for pair in first for node in (pair.client, pair.server)))
    limits = _limits(first, share, slower)
    good = [pair for pair, found in first.items() if not _why(found, limits)]
    proven = {node for pair in good for node in (pair.client, pair.server)}
    return [node for node in nodes if node in proven], [node for node in nodes if node not in proven]


class _Limits(NamedTuple):
    """What a try must reach: bytes a second at least, seconds of a round trip at most, and the usual of both."""

    bytes_per_s: float
    round_trip_s: float
    usual: Measured


def _limits(tries: Mapping[Pair, Measured], share: float, slower: float) -> _Limits:
    """By what most of the tries that worked have reached; anything goes where none did."""
    # A node that is in two tries, since their number is odd, must not count twice.
    once = [one for pair, one in tries.items() if not one.why and not pair.step]
    working = once or [one for one in tries.values() if not one.why]
    if not working:
        return _Limits(0.0, float("inf"), Measured())
    usual = Measured(
        median_high(one.bytes_per_s for one in working), median_low(one.round_trip_s for one in working)
    )
    return _Limits(usual.bytes_per_s * share, usual.round_trip_s * slower, usual)


def _why(found: Measured, limits: _Limits) -> str:
    """Why a try is bad, in comparison with all; "" where it is not."""
    if found.why:
        return found.why
    if found.bytes_per_s < limits.bytes_per_s:
        return f"{found.bytes_per_s * 8 / 1e9:.2f} Gb/s, most others have {limits.usual.bytes_per_s * 8 / 1e9:.2f}"
    if found.round_trip_s > limits.round_trip_s:
        return f"{found.round_trip_s * 1e6:.0f} us for a round trip, most others need {limits.usual.round_trip_s * 1e6:.0f}"
    return ""
