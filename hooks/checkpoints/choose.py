"""The checkpoint that a start resumes from. (pure)

How it thinks. The order is that of hooks/batch.sh: the highest step, then the youngest, then the last by name; one without a step comes
after all that have one. From there downwards the first is taken that is complete, was not set aside (a start failed to load it) and is
older than the first sign of divergence. Both bounds of divergence must hold where both are given; a bound that cannot be compared,
because no step is known, does not count as long as the other can be, and a checkpoint that neither bound can speak for is passed
over: to load poisoned weights costs all steps from there on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Optional

from ftrun.hooks.checkpoints.model import COMPLETE, Choice, Judged

__all__ = ["choose", "rank"]


def choose(
    judged: Iterable[Judged],
    *,
    aside: Collection[str] = (),
    before_step: Optional[int] = None,
    before_s: Optional[float] = None,
    trusted: Collection[str] = (COMPLETE,),
) -> Choice:
    """Choose the newest that may be loaded; every newer one is named in `passed` with its reason.

    `aside`: paths that a start failed to load. `before_step`, `before_s` (Unix seconds): a checkpoint must have a lower step and have
    been written earlier. `trusted`: the states that may be loaded, for a caller that mends what is missing in a view of its own.
    """
    passed: list[tuple[str, str]] = []
    for one in sorted(judged, key=rank, reverse=True):
        why_not = _against(one, aside, before_step, before_s, trusted)
        if not why_not:
            return Choice(one, _said(one), tuple(passed))
        passed.append((one.found.path, why_not))
    return Choice(None, "none of them may be loaded" if passed else "there is no checkpoint", tuple(passed))


def rank(judged: Judged) -> tuple[int, float, str]:
    """Its place in the order; the highest is the newest."""
    step = judged.found.step
    return (-1 if step is None else step, judged.written_s, judged.found.path)


def _against(
    one: Judged,
    aside: Collection[str],
    before_step: Optional[int],
    before_s: Optional[float],
    trusted: Collection[str],
) -> str:
    if one.found.path in aside:
        return "set aside: a start failed to load it"
    if one.state not in trusted:
        return f"{one.state}: {one.why}"
    step = one.found.step
    if before_step is not None and step is not None and step >= before_step:
        return f"its step {step} is not before step {before_step}, where the run began to diverge"
    if before_s is not None and one.written_s >= before_s:
        return "it was written after the run began to diverge"
    if before_step is not None and step is None and before_s is None:
        return f"its step is not known, and the run began to diverge at step {before_step}"
    return ""


def _said(one: Judged) -> str:
    step = "" if one.found.step is None else f"step {one.found.step}, "
    return f"the newest that may be loaded: {step}{one.state}: {one.why}"
