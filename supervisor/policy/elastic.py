"""Elastic size: when a run below its full size grows, and which size is excluded after a fault. (pure)

Growing is never necessary, since the run works as it is. Any unknown fact or concurrent operation vetoes
growth, and a restart must pay: the new nodes, for as long as they are expected to be useful, must bring
`MARGIN` times the cost of the standstill of all nodes. They are useful until the job's time is up or the next
fault, whichever comes first, because a fault brings a restart of its own.

No thrashing. The run keeps a size for `grow-min-interval`, however it got there. A growth that did not last
until it had paid was in vain and doubles the wait before the next one, up to a day. An attempt that failed
before the run was touched (no job with the nodes, a sick node) costs the run nothing; it is repeated sooner,
with the same doubling. One growth that paid resets all waits. The history is folded from the run's own
starts, so every supervisor and agent sees the same one.

Faults of a size. A batch that cannot be divided, a model that no longer fits into memory: such faults belong
to the size, although they look like faults of the script. So where the run made steps at another size, and
its first start at this one ends in a fault of the script, of the configuration or of memory before any
progress, the size is excluded, once. The full size is what the user asked for, and a fault there is the
user's. The exception is a healthy start that was ended only to grow: the run never grows to that size again,
whatever the size is and even if it worked before (some of its nodes are others now).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from ftrun.hooks.runtime.formats import counted, duration_text
from ftrun.slurm.records import dataclass
from ftrun.supervisor.config.node_counts import Sizes
from ftrun.supervisor.model.run import Attempt, Run
from ftrun.supervisor.model.types import FaultClass
from ftrun.supervisor.policy.policy_input import PolicyInput

MARGIN = 2.0
"""A growth must bring so many times its price: rates are uncertain, and a restart may fail."""

ASK_AGAIN_S = 300.0
"""Wait after the first attempt that failed before the run was touched; it doubles with each further one."""

WAIT_MAX_S = 86_400.0
"""Upper limit of a doubled wait."""

HOLD_S = 300.0
"""No companion is requested while the next checkpoint is further away: its nodes would idle until then."""

CHANGES_MAX = 64
"""How many of the last changes of size are considered."""

STANDSTILL_S = 60.0
"""Default cost of a restart inside the allocation, before one was measured."""

LOST_S = 10.0
"""Training between a checkpoint and the end that follows it is repeated."""

SIZE_FAULTS = frozenset(
    {FaultClass.USER_CODE, FaultClass.CONFIG, FaultClass.DATA, FaultClass.OOM_GPU, FaultClass.OOM_HOST}
)


@dataclass(frozen=True, slots=True)
class ResizeHistory:
    """What earlier changes of size came to.

    `stayed_s`: time since the last change. `in_vain`: growths in a row that did not last until they had paid.
    `failed`: attempts in a row that failed before the run was touched; `failed_s`: time since the last of
    them.
    """

    stayed_s: float
    in_vain: int = 0
    failed: int = 0
    failed_s: float = math.inf


@dataclass(frozen=True, slots=True)
class GrowthInput:
    """What is known at one moment; `size` nodes are at work, times are seconds.

    `free`: healthy nodes of the allocation that no start uses; `idle`: idle healthy nodes of the same kind
    elsewhere, None if unknown; `alone`: why no other job can provide them ("" = one can); `others_wait`:
    other jobs wait for nodes. `left_s` until the job's time is up, None = no known end. `between_s`: expected
    time between two faults. `restart_s`: from the end of a start to the first new step of the next. `saved`:
    this start has written a checkpoint; `next_save_s`: time to its next one, 0 = on request. `busy`: what
    else is in progress for the run.
    """

    size: int
    sizes: Sizes
    past: ResizeHistory
    free: int = 0
    idle: int | None = None
    alone: str = ""
    others_wait: bool = False
    left_s: float | None = None
    between_s: float = math.inf
    restart_s: float = STANDSTILL_S
    min_stay_s: float = 1800.0
    saved: bool = True
    next_save_s: float = 0.0
    busy: str = ""
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class GrowthDecision:
    """Grow to `size` with `missing` nodes of another job or, if `size` is 0, why not. `word` names the kind
    of reason.
    """

    size: int
    missing: int
    word: str
    reason: str


def decide_growth(scene: GrowthInput) -> GrowthDecision:
    """Whether the run grows now, to what size, and why (not)."""
    if scene.size >= scene.sizes.full:
        return _no("full", "it is at full size")
    if not scene.wanted:
        return _no("never", "grow=never")
    if scene.busy:
        return _no("busy", scene.busy)
    if not scene.saved:
        return _no("unsaved", "this start has written no checkpoint yet")
    past = scene.past
    stay_s = min(scene.min_stay_s * 2.0**past.in_vain, max(WAIT_MAX_S, scene.min_stay_s))
    if past.stayed_s < stay_s:
        vain = f": {_growths(past.in_vain)} before did not last" if past.in_vain else ""
        return _no(
            "stays",
            f"it came to {counted(scene.size, 'node')} {duration_text(past.stayed_s)} ago and keeps a size for {duration_text(stay_s)}{vain}",
        )
    own = scene.sizes.at_most(scene.size + scene.free)
    most, why = _reach(scene)
    if most > max(own, scene.size) and (held := _held(scene)) is not None:
        most, why = own, held
    if most <= scene.size:
        return why or _no("nodes", _short(scene))
    return _paid(scene, most) if most == own else _either(scene, most, own)


def usable_sizes(sizes: Sizes, aside: Collection[int]) -> Sizes:
    """The sizes to which the run may grow: none that failed, the full one included."""
    left = [size for size in sizes.all if size not in aside]
    return type(sizes)(left or sizes.all[:1], sizes.unit)


def _reach(scene: GrowthInput) -> tuple[int, GrowthDecision | None]:
    """(the largest available size, why it is not larger)."""
    own = scene.sizes.at_most(scene.size + scene.free)
    if scene.alone:
        return own, _no("alone", f"{_short(scene)}, and no other job can lend any: {scene.alone}")
    if scene.idle is None:
        return own, _no("unknown", "it is not known how many nodes are idle")
    most = scene.sizes.at_most(scene.size + scene.free + scene.idle)
    if most > own and scene.others_wait:
        return own, _no("others", "other jobs wait for the idle nodes")
    return most, None


def _held(scene: GrowthInput) -> GrowthDecision | None:
    """Why no other job is asked for nodes just now; None = it may be."""
    past = scene.past
    again_s = min(ASK_AGAIN_S * 2.0 ** (past.failed - 1), WAIT_MAX_S) if past.failed else 0.0
    if past.failed_s < again_s:
        tries = "try" if past.failed == 1 else f"{past.failed} tries"
        return _no(
            "failed",
            f"the last {tries} came to nothing: the next one is in {duration_text(again_s - past.failed_s)}",
        )
    if scene.next_save_s > HOLD_S:
        return _no(
            "far",
            f"the next checkpoint is {duration_text(scene.next_save_s)} away, and nodes are not held idle until then",
        )
    return None


def _either(scene: GrowthInput, most: int, own: int) -> GrowthDecision:
    """With nodes of another job if that pays, otherwise with the free nodes of the allocation if these do."""
    found = _paid(scene, most)
    return found if found.size or own <= scene.size else _paid(scene, own)


def _paid(scene: GrowthInput, size: int) -> GrowthDecision:
    """The growth to this size, if it is worth its price."""
    more = size - scene.size
    missing = max(0, more - scene.free)
    ready_s = scene.next_save_s + scene.restart_s
    left_s = math.inf if scene.left_s is None else scene.left_s
    if left_s <= ready_s:
        return _no("limit", f"the job's time is up in {duration_text(left_s)}")
    use_s, until = min(
        (left_s - ready_s, "of the job's time are left then"),
        (scene.between_s * scene.size / size, "until a fault is to be expected"),
    )
    brought = more * use_s
    price = scene.size * (scene.restart_s + LOST_S) + missing * scene.next_save_s
    sum_ = f"{more} more {'node' if more == 1 else 'nodes'} for {duration_text(use_s)} ({until}) bring {_hours(brought)}, the restart costs {_hours(price)}"
    if brought < MARGIN * price:
        return _no("price", f"it does not pay: {sum_}")
    return GrowthDecision(size, missing, "grow", f"from {scene.size} to {size} nodes: {sum_}")


def resize_history(run: Run, now_s: float, min_stay_s: float, restart_s: float) -> ResizeHistory:
    """What the changes of size of this run came to, from its starts."""
    changes = _changes(run)
    told = sorted(
        found
        for number in range(1, len(changes))
        if changes[number][1] > changes[number - 1][1]
        and (found := _came_to(changes, number, now_s, min_stay_s, restart_s)) is not None
    )
    good = [at_s for at_s, paid in told if paid]
    good_s = good[-1] if good else -math.inf
    failed = [at_s for one in run.attempts for at_s in one.growth_failed if at_s > good_s]
    return ResizeHistory(
        stayed_s=max(0.0, now_s - changes[-1][0]) if changes else 0.0,
        in_vain=sum(at_s > good_s for at_s, _ in told),
        failed=len(failed),
        failed_s=max(0.0, now_s - failed[-1]) if failed else math.inf,
    )


def _came_to(
    changes: list[tuple[float, int]], number: int, now_s: float, min_stay_s: float, restart_s: float
) -> tuple[float, bool] | None:
    """(when the result was known, whether it paid) of the growth that is change `number`; None while it is
    open.

    It paid if its nodes brought `MARGIN` times the cost of its own restart and of those after lost nodes, and
    if it lasted for `min_stay_s`. It was in vain if nothing of it was left before that.
    """
    before = changes[number - 1][1]
    brought = price = 0.0
    for at, (at_s, size) in enumerate(changes[number:], start=number):
        if size <= before:
            return at_s, False
        until_s = changes[at + 1][0] if at + 1 < len(changes) else now_s
        if at == number or size < changes[at - 1][1]:
            price += MARGIN * before * (restart_s + LOST_S)
        more = size - before
        due_s = max(at_s + (price - brought) / more, changes[number][0] + min_stay_s)
        if due_s <= until_s:
            return due_s, True
        brought += more * (until_s - at_s)
    return None


def _changes(run: Run) -> list[tuple[float, int]]:
    """(since when, how many nodes) of each size of the run, in order."""
    found: list[tuple[float, int]] = []
    for attempt in run.attempts:
        starts = [(one.begun_at_s, len(one.nodes)) for one in attempt.begun if one.nodes]
        if not starts and attempt.launch.running_seen_at_s is not None:
            starts = [(attempt.launch.running_seen_at_s, len(attempt.used))]
        for at_s, size in starts:
            if not found or found[-1][1] != size:
                found.append((at_s, size))
    return found[-CHANGES_MAX:]


def _no(word: str, reason: str) -> GrowthDecision:
    return GrowthDecision(0, 0, word, reason)


def _short(scene: GrowthInput) -> str:
    elsewhere = f", {scene.idle} elsewhere" if scene.idle is not None and not scene.alone else ""
    return f"too few nodes are free for a larger size: {scene.free} of the allocation{elsewhere}"


def _growths(count: int) -> str:
    return "the growth" if count == 1 else f"the {count} growths"


def _hours(node_s: float) -> str:
    hours = node_s / 3600.0
    return f"{hours:,.0f} node-hours" if hours >= 10.0 else f"{hours:.2g} node-hours"


def size_to_exclude(case: PolicyInput, sizes: Sizes | None) -> int:
    """The size that caused this fault; 0 if none did."""
    if sizes is None or case.diagnosis.fault not in SIZE_FAULTS or case.progressed:
        return 0
    size, now = (
        start_size(case.attempt, sizes),
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


def _grew(case: PolicyInput) -> bool:
    """The start before this one was healthy and was ended to grow."""
    before = (case.attempt.launch.number, case.attempt.launch.start.number - 1)
    return any(one.grown for one in case.attempt.begun if (one.launch, one.number) == before)


def start_size(attempt: Attempt, sizes: Sizes) -> int:
    """How many nodes the present start uses, or will use: a later start of the same job has its own size."""
    return (
        len(attempt.launch.start.nodes)
        if attempt.launch.start.number > 1 and attempt.launch.start.nodes
        else attempt.size or sizes.full
    )


def sizes_tried(run: Run, sizes: Sizes) -> Iterator[tuple[tuple[int, int, int], int, bool]]:
    """((attempt, launch, start), its size, whether it made steps) of all known starts, in order."""
    stepped = {(one.attempt, one.launch, one.start) for one in run.incidents if one.step is not None}
    for attempt in run.attempts:
        begun = [(attempt.number, one.launch, one.number) for one in attempt.begun]
        last = (attempt.number, attempt.launch.number, attempt.launch.start.number)
        for place, one in zip(begun, attempt.begun, strict=True):
            size = len(one.nodes) if one.number > 1 and one.nodes else attempt.size or sizes.full
            if place != last:
                yield place, size, place in stepped or one.grown
        yield last, start_size(attempt, sizes), last in stepped or attempt.last_step is not None
