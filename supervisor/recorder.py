"""Who did not join: the collectives that PyTorch's flight recorders saw, rank by rank. (pure)

How it thinks. Every rank notes the collectives it enqueued in each process group, numbered from 1 in the same order on all
ranks. A collective that some ranks entered and that is not over is blocked. Who of the group never entered it is
missing; but a rank may be missing here because it waits there, in another group, for somebody else. So waiting is
followed from rank to rank, and only those who wait for nobody are to blame. A rank that left no dump at all waits for
nobody that we know of. If all entered, either they did not call the same thing (the program's fault), or
some devices never began it, or nobody can be told from the rest.

Format: torch.distributed, FlightRecorder dumps of version 2.x (docs.pytorch.org, tutorial "Flight Recorder for Debugging").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ftrun.slurm.records import dataclass

__all__ = ["Collective", "Dump", "Group", "findings"]

NAMED_MAX = 16
"""So many ranks are named by lines of their own; more of them at once are not single ranks that failed."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One call: what was called (name, sizes, types in one text), and how far it came on this rank."""

    sequence: int
    call: str
    started: bool
    completed: bool


@dataclass(frozen=True, slots=True)
class Group:
    """One process group as one rank knows it; `calls` by sequence number, the recorder keeps only the last some thousand."""

    name: str
    members: tuple[int, ...]
    enqueued: int
    completed: int
    calls: Mapping[int, Collective]


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank recorded."""

    rank: int
    groups: Mapping[str, Group]


@dataclass(frozen=True, slots=True)
class _Blocked:
    """A collective of one group that ranks wait in."""

    name: str
    sequence: int
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    size: int
    call: str


def findings(dumps: Sequence[Dump]) -> tuple[str, ...]:
    """What the dumps of one hang say, a sentence a line, culprits first; () where nothing is blocked.

    The sentences are what the catalog's signatures of the flight recorder match.
    """
    by_rank = {dump.rank: dump for dump in dumps}
    blocked = list(_blocked(by_rank))
    if not blocked:
        return ()
    absent = [one for one in blocked if one.missing]
    if not absent:
        return tuple(line for one in blocked for line in _all_joined(one, by_rank))
    return tuple(_missing(absent, by_rank))


def _blocked(by_rank: Mapping[int, Dump]) -> Iterator[_Blocked]:
    """The first collective of each group that somebody has entered and somebody has not finished."""
    for key in sorted({key for dump in by_rank.values() for key in dump.groups}):
        known = {rank: dump.groups[key] for rank, dump in by_rank.items() if key in dump.groups}
        waiting = {rank: group for rank, group in known.items() if group.enqueued > group.completed}
        if not waiting:
            continue
        sequence = min(group.completed for group in waiting.values()) + 1
        inside = tuple(sorted(rank for rank, group in waiting.items() if group.completed < sequence))
        some = known[inside[0]]
        members = some.members or tuple(sorted(known))
        entered = {rank for rank, group in known.items() if group.enqueued >= sequence}
        missing = tuple(rank for rank in members if rank not in entered)
        call = some.calls[sequence].call if sequence in some.calls else "a collective"
        yield _Blocked(some.name, sequence, inside, missing, len(members), call)


def _missing(absent: Sequence[_Blocked], by_rank: Mapping[int, Dump]) -> Iterator[str]:
    waits = {rank for one in absent for rank in one.waiting}
    culprits = sorted({rank for one in absent for rank in one.missing} - waits)
    if not culprits:
        # They wait for each other in a circle: the program enters its groups in different orders.
        ranks = ", ".join(str(rank) for rank in sorted(waits)[:NAMED_MAX])
        yield f"flight recorder: ranks {ranks} wait for each other in {len(absent)} process groups"
        return
    shown = [rank for rank in culprits if rank in by_rank] + [
        rank for rank in culprits if rank not in by_rank
    ]
    for rank in shown[:NAMED_MAX]:
        one = next(blocked for blocked in absent if rank in blocked.missing)
        where = f"collective {one.sequence} ({_short(one.call)}) of group {one.name}"
        told = f"{len(one.waiting)} of {one.size} ranks wait in it"
        left = "" if rank in by_rank else ", and it left no dump"
        yield f"flight recorder: rank {rank} did not join {where}; {told}{left}"


def _all_joined(one: _Blocked, by_rank: Mapping[int, Dump]) -> Iterator[str]:
    where = f"collective {one.sequence} of group {one.name}"
    calls = {
        rank: call
        for rank in one.waiting
        for group in by_rank[rank].groups.values()
        if group.name == one.name and (call := group.calls.get(one.sequence)) is not None
    }
    usual, times = Counter(call.call for call in calls.values()).most_common(1)[0] if calls else ("", 0)
    odd = [rank for rank, call in calls.items() if call.call != usual]
    for rank in odd[:NAMED_MAX]:
        yield (
            f"flight recorder: mismatch at {where}: rank {rank} calls {_short(calls[rank].call)}"
            f" where {times} ranks call {_short(usual)}"
        )
    if odd:
        return
    idle = [rank for rank, call in calls.items() if not call.started]
    if idle and len(idle) < len(calls) - len(idle):
        for rank in idle[:NAMED_MAX]:
            yield (
                f"flight recorder: rank {rank} joined {where}, but its device never began it;"
                f" {len(calls) - len(idle)} of {one.size} did"
            )
        return
    yield f"flight recorder: all ranks joined {where} ({_short(one.call)}) and it never ended"


def _short(call: str) -> str:
    return call if len(call) <= 80 else call[:77] + "..."
