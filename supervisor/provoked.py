"""A fault that a new size of the run provokes: the run goes back, and the size is put aside. (pure)

How it thinks. A batch that cannot be divided, a model that no longer fits into memory: such faults belong to the size and not to the script, though
they look like the script's own. So where a run made steps at another size, and its first start at this one ends in a fault of the script, of the
configuration or of memory before it got any further, the size is to blame. Each size is put aside once. The full one is what the user asked for, and a
fault there is the user's; but a start that worked and was ended only to grow is never the price of it: whatever the size, and though it worked
before (some of its nodes are others now), it is not grown to again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrun.supervisor.model import FaultClass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftrun.supervisor.grounds import Case
    from ftrun.supervisor.run_types import Attempt, Run
    from ftrun.supervisor.sizes import Sizes

__all__ = ["FAULTS", "size_now", "size_to_put_aside", "sizes_tried"]

FAULTS = frozenset(
    {FaultClass.USER_CODE, FaultClass.CONFIG, FaultClass.DATA, FaultClass.OOM_GPU, FaultClass.OOM_HOST}
)


def size_to_put_aside(case: Case, sizes: Sizes | None) -> int:
    """The size that provoked this fault; 0 where none did."""
    if sizes is None or case.diagnosis.fault not in FAULTS or case.progressed:
        return 0
    size, now = (
        size_now(case.attempt, sizes),
        (case.attempt.number, case.attempt.launch.number, case.attempt.launch.start.number),
    )
    if size in case.run.sizes_aside:
        return 0
    if _grew(case):
        return size
    if size == sizes.full:
        return 0
    worked = {tried for place, tried, stepped in sizes_tried(case.run, sizes) if stepped and place < now}
    return size if worked - {size} and size not in worked else 0


def _grew(case: Case) -> bool:
    """The start before this one was well, and was ended for this one's nodes."""
    before = (case.attempt.launch.number, case.attempt.launch.start.number - 1)
    return any(one.grown for one in case.attempt.begun if (one.launch, one.number) == before)


def size_now(attempt: Attempt, sizes: Sizes) -> int:
    """How many nodes the present start of an attempt uses, or is to use: a later one has its own, inside the same job."""
    return (
        len(attempt.launch.start.nodes)
        if attempt.launch.start.number > 1 and attempt.launch.start.nodes
        else attempt.size or sizes.full
    )


def sizes_tried(run: Run, sizes: Sizes) -> Iterator[tuple[tuple[int, int, int], int, bool]]:
    """((attempt, launch, start), its size, whether it made steps) of all starts that are known, in their order."""
    stepped = {(one.attempt, one.launch, one.start) for one in run.incidents if one.step is not None}
    for attempt in run.attempts:
        begun = [(attempt.number, one.launch, one.number) for one in attempt.begun]
        last = (attempt.number, attempt.launch.number, attempt.launch.start.number)
        for place, one in zip(begun, attempt.begun, strict=True):
            size = len(one.nodes) if one.number > 1 and one.nodes else attempt.size or sizes.full
            if place != last:
                yield place, size, place in stepped or one.grown
        yield last, size_now(attempt, sizes), last in stepped or attempt.last_step is not None
