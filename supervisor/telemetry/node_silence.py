"""When a start that stands still asks its nodes, and which of them count as lost. (pure)

A lost node leaves its peers waiting, often for ever, and Slurm notices it after SlurmdTimeout only. So the
agent asks the nodes when no step, beat or line has come for longer than is usual for this start, or when the
ranks of a node stop writing beats while others write.

No single witness is enough, since each has healthy reasons for its silence:

| witness | silent on a healthy node while |
|---|---|
| a step over all nodes | slurmd is busy, restarts, or looks a user up; Slurm forwards it through a lost node |
| a step to that node alone | the same, but not the last |
| the beats of its ranks, written at least every 6 s | all ranks are in a call that holds the interpreter |
| its guard (`hooks.ranks.fence_daemon`), asked by a file | the shared file system stalls; it was killed |

Both steps are always needed and stay open, so that a late answer counts. How long they must stay without an
answer depends on the other witnesses (`is_lost`). A beat or a guard that is heard proves the node alive. A
node that came back from a silence gets twice that silence from then on.
"""

from __future__ import annotations

from ftrun.slurm.records import dataclass

ASK_S, ASK_BEATS_S = 10.0, 3.5  # without a step; without a beat
STEPS, STEPS_BEATS = 10.0, 3.0  # median steps
GAPS, GAPS_BEATS = 2.0, 1.5  # the longest gap so far
REST_S, REST_MAX_S = 15.0, 600.0  # before nodes that all answered are asked again

PATIENCE_S = 14.0  # by two steps alone
PATIENCE_GUARDED_S = 10.0  # its guard is silent, and others answer
PATIENCE_BEATS_S = 6.5  # so are its ranks
DIRECT_SHARE = 0.6  # of the patience: the step to that node alone
GUARD_S = 4.0  # guards look once a second
LATER_THAN = 3.0  # or so many times what the slowest answer took
BACK_TIMES = 2.0  # the longest silence that the node came back from
PATIENCE_MAX_S = 30.0

STILL_S = 5.0  # ranks without progress write so often, apart from `every_s` (`hooks.beat`)
RANKS_EVERY_S, EVERY_S_MAX = 512, 15.0
MISSED_S = 2.0


@dataclass(frozen=True, slots=True)
class NodeSilence:
    """What is known of a node that has not answered. Seconds; None = not known.

    `asked_s`, `direct_s`: for how long any step to it, and one to it alone, was open. `slowest_s`: what the slowest
    answer of another node took. `unwritten_s`: since its ranks last wrote, where others' ranks do. `guard_s`:
    since its guard was asked, where others' guards have answered. `back_s`: the longest silence that it came
    back from. `ranks`: of the whole start. `since_s`: since the first step began.
    """

    asked_s: float
    direct_s: float | None = None
    slowest_s: float = 0.0
    unwritten_s: float | None = None
    guard_s: float | None = None
    back_s: float = 0.0
    ranks: int = 1
    since_s: float = 0.0


def ask_after_s(*, beats: bool, step_s: float, longest_s: float) -> float:
    """After how long a silence the nodes are asked. `beats`: it is a silence of beats, else of the log."""
    if beats:
        return max(ASK_BEATS_S, STEPS_BEATS * step_s, GAPS_BEATS * longest_s)
    return max(ASK_S, STEPS * step_s, GAPS * longest_s)


def rest_s(quiet_s: float) -> float:
    """How long to leave the nodes alone after all of them answered."""
    return min(REST_MAX_S, max(REST_S, 2.0 * quiet_s))


def unwritten_limit_s(ranks: int) -> float:
    """After how long without a line a rank has missed its time to write one."""
    return STILL_S + min(EVERY_S_MAX, max(1.0, ranks / RANKS_EVERY_S)) + MISSED_S


def is_lost(one: NodeSilence) -> bool:
    """Whether a node that has not answered counts as lost."""
    limit_s = unwritten_limit_s(one.ranks)
    if one.unwritten_s is not None and one.unwritten_s < limit_s:
        return False
    if one.guard_s is not None and one.guard_s < GUARD_S:
        return False
    patience_s = PATIENCE_S if one.guard_s is None else PATIENCE_GUARDED_S
    patience_s = patience_s if one.unwritten_s is None else PATIENCE_BEATS_S
    patience_s = max(patience_s, LATER_THAN * one.slowest_s, BACK_TIMES * one.back_s)
    patience_s = min(patience_s, PATIENCE_MAX_S)
    return (
        one.direct_s is not None and one.asked_s >= patience_s and one.direct_s >= DIRECT_SHARE * patience_s
    )
