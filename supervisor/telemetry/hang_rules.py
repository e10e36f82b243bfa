"""Does a start hang? (pure)

Silence proves nothing (law P7): a healthy run is silent while it evaluates, saves or compiles, and some print
a line in an hour. So silence only raises a suspicion. Then ftrun asks for stacks, and a second witness must
agree before it decides that a start hangs. How long the silence must last depends on how sure the witnesses
are:

| witness | threshold |
|---|---|
| some ranks, not all, are stopped by a signal or frozen | the first sample that shows it |
| all ranks wait in a collective, no stack moved in some samples | `min_s`, ten steps, or the usual gap |
| the same where every rank waits for its accelerator, and that moves no memory, as it did before | the same |
| accelerators of all ranks are busy, move no memory, and no stack moves | five times that (five minutes) |
| for five times `min_s`, only ranks in a collective used processor, files, network, accelerator | the same |
| no node has a rank any more, and their launcher waits for them | the same |
| all stacks are the same in many samples, all wait as in the first two rows | `max_s` and the usual gap |
| there were beats and they have stopped, and nothing contradicts | the same |
| half of the ranks wait, and the others do nothing but use their processors | the same, or twice that |
| all stacks are the same in many samples, anywhere: one long call into C looks so, too | twice that |
| a process waits in the kernel all the time, as for a lost file system, and no stack moves | twice that |
| none (a silent log alone) | never |

The number of pairs depends on the number of ranks: a single one is found at the same place by chance, many
are not.

**A fatal line is no witness** (P7). It shortens what the sure witnesses need (`after_fatal_line`:
`fault-grace` replaces `min_s`, five steps replace ten, and warm-up and phases give less), and by itself it
ends nothing. Where Slurm or a check of the node confirms the fault, silence of everything that can be seen is
enough, for as long as `fault-grace` and the habit say.

Signs of life end nothing and keep the suspicion: a stack that moved in the second half of the silence, files
that are read or written, and (except in the first two rows) output that goes on. An announced phase
(evaluation, checkpoint, compiling, data) has its own allowance: three times its longest so far, `max_s` the
first time. Before a habit is known (warm-up), everything gets `grace_s`. The run's own habit lengthens
thresholds and never shortens them below `min_s`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.model.types import HangState, HangVerdict
from ftrun.supervisor.telemetry.liveness import HOLDS_S, NEVER, WARM_STEPS, History, Rank, Witness

__all__ = [
    "HangLimits",
    "after_fatal_line",
    "hang_limits",
    "hang_verdict",
    "ranks_behind",
]

STEPS = 10.0  # median steps without one ...
STEPS_FATAL = 5.0  # ... and after a fatal line
WARM_UP_FATAL = 10.0  # times `fault-grace`: allowance after a fatal line while the pace is unknown
RUNS_OFF = 3.0  # times `min_s`: when all wait in a collective, any other work ends within this time
WORST = 5.0  # times `min_s`: allowance for a start whose ranks do nothing at all
PHASE_TIMES = 3.0  # the longest so far of an announced phase
UNSEEN_TIMES = 2.0  # from afar, where activity is unknown
SURE_PAIRS, SURE_ALONE = (
    5,
    7,
)  # a fast loop may be met at the same line some times in a row: pairs, and so many more for one rank alone
MANY_PAIRS, MANY_ALONE = 20, 60
QUICK_S = 3.0  # between samples while nobody is seen to move
STEADY_S, STEADY_FEW_S, FEW = (
    30.0,
    10.0,
    8,
)  # between those after them; of few ranks they are cheap, and prove less
PAUSES_S = (
    10.0,
    20.0,
    40.0,
    80.0,
    120.0,
)  # after a sample that moved, or enough of those that did not
ASK_FROM = 0.25  # stacks are asked for from this share of the threshold ...
ASK_FROM_USUAL = 0.85  # ... of the usual gap ...
ASK_FROM_ALLOWED = 0.125  # ... and of a phase's allowance
QUIET_FROM = 0.25
LAG_S = 3.0  # ranks write beats once a second
TOLD_MAX = 1024  # with more ranks, beats are too rare to show who stopped first
NAMED_MAX = 8
ABSENT_SAMPLES = 2
_NO_WITNESS = Witness()


@dataclass(frozen=True, slots=True)
class HangLimits:
    """Seconds: the settings hang-min, hang-max, hang-grace.

    `afar`: the watcher is not on the job's nodes. Then verdicts by beats alone, or by stacks without known
    activity, need more time, and for a script that has shown neither step nor beat only sure witnesses count:
    it may be waiting for a request. `fatal`: the title of a fatal line that was not survived; "" = none.
    `confirmed`: Slurm or a check of the node confirms it.
    """

    min_s: float = 60.0
    max_s: float = 1800.0
    grace_s: float = 1800.0
    afar: bool = False
    fatal: str = ""
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class _Case:
    """What the witnesses say together."""

    quiet_s: float
    ask_s: float
    fast_s: float
    worst_s: float
    allowed_s: float  # the allowance of the phase or warm-up, 0 = none
    most_s: float  # what weak witnesses need
    talks: bool  # output goes on
    idle_s: float  # how long nothing was used; 0 = something is, or unknown
    unseen_times: float  # > 1 where the watcher is afar and activity is unknown
    works: bool  # lately files or accelerators worked, as in no hang
    stirs: bool  # lately anything at all moved
    device_rests: bool
    device_spins: bool
    stuck_long: bool  # some process waited in the kernel all the time
    peers_long: bool  # half of the ranks or more waited for the same few all that time
    frozen_long: bool  # no stack moved in the second half of the silence
    sure_long: bool  # nor in the last minutes, in which nothing worked


def hang_limits(settings: Mapping[str, Any], *, from_afar: bool = False) -> HangLimits | None:
    """The limits by the settings; None where hang detection is off. `from_afar`: the watcher is not on the
    job's nodes.
    """
    if settings.get("hang", "auto") == "never":
        return None
    usual = HangLimits()
    return HangLimits(
        min_s=float(settings.get("hang-min", usual.min_s)),
        max_s=max(float(settings.get("hang-max", usual.max_s)), float(settings.get("hang-min", usual.min_s))),
        grace_s=float(settings.get("hang-grace", usual.grace_s)),
        afar=from_afar,
    )


def after_fatal_line(
    limits: HangLimits, title: str, end_wait_s: float, *, at_once: bool = False, confirmed: bool = False
) -> HangLimits:
    """The limits after a fatal line that was not survived; never longer than `limits`.

    `at_once`: the line is a verdict in itself, such as a device that left the bus. Then the warm-up gets
    nothing more.
    """
    warm_up_s = end_wait_s if at_once else WARM_UP_FATAL * end_wait_s
    return replace(
        limits,
        min_s=min(limits.min_s, end_wait_s),
        grace_s=min(limits.grace_s, warm_up_s),
        fatal=title,
        confirmed=confirmed,
    )


def hang_verdict(history: History, now_s: float, limits: HangLimits) -> HangVerdict:
    """The verdict on the start with this `history`. Cheap enough for every second."""
    case = _case(history, history.at(now_s), limits)
    quiet_s = case.quiet_s
    if not history.counts:
        return HangVerdict(
            HangState.HEALTHY, quiet_s, None, "not watched: suspended, or a log cannot be read"
        )
    if quiet_s < case.ask_s:
        quiet = quiet_s >= QUIET_FROM * case.fast_s
        state = HangState.QUIET if quiet else HangState.HEALTHY
        return HangVerdict(state, quiet_s, None, _since(history, quiet_s, limits) if quiet else "it goes on")
    threshold_s, why = _threshold(history, case, limits)
    named = ranks_behind(history.ranks, history.witness)
    wants = _sample_due(history, history.at(now_s))
    if threshold_s is not None and quiet_s >= threshold_s:
        return HangVerdict(
            HangState.HUNG, quiet_s, threshold_s, f"{_since(history, quiet_s, limits)}; {why}", named
        )
    return HangVerdict(
        HangState.SUSPECT, quiet_s, threshold_s, f"{_since(history, quiet_s, limits)}; {why}", named, wants
    )


def _case(history: History, at_s: float, limits: HangLimits) -> _Case:
    moves, witness = history.moves, history.witness
    quiet_s = at_s - moves.at_s
    fast_s = max(limits.min_s, (STEPS_FATAL if limits.fatal else STEPS) * (moves.step_s or 0.0))
    # Taking stacks stops the ranks for a moment, so a log with few lines must not trigger it at each gap.
    ask_s = max(ASK_FROM * fast_s, ASK_FROM_USUAL * moves.usual_s)
    fast_s = max(fast_s, moves.usual_s)
    if moves.kind in {"", "output"}:
        fast_s = max(fast_s, min(limits.max_s, limits.grace_s) if limits.fatal else limits.max_s)
    worst_s = max(fast_s, WORST * limits.min_s)
    allowed_s = 0.0
    if moves.steps < WARM_STEPS:
        allowed_s = max(limits.grace_s, fast_s if limits.fatal else worst_s)
    elif history.phase:
        learnt = history.learnt.get(history.phase)
        allowed_s = max(worst_s, limits.max_s if learnt is None else PHASE_TIMES * learnt)
    known = at_s - witness.knows_s <= HOLDS_S
    known_gpu = at_s - witness.knows_gpu_s <= HOLDS_S
    holds_s = min(HOLDS_S, limits.min_s)
    resting = at_s - max(holds_s, 0.5 * quiet_s)  # work that outlasts a hang ends within this time
    lately = max(resting, at_s - max(holds_s, RUNS_OFF * limits.min_s))
    used_s = max(witness.cpu_s, witness.io_s, witness.gpu_s, witness.knows_from_s, moves.at_s)
    stirred_s = max(witness.cpu_s, witness.io_s, witness.gpu_s, witness.moved_s)
    rests = known_gpu and witness.gpu_s < lately
    return _Case(
        quiet_s=quiet_s,
        ask_s=max(ask_s, ASK_FROM_ALLOWED * allowed_s),
        fast_s=fast_s,
        worst_s=worst_s,
        allowed_s=allowed_s,
        most_s=_most_s(history, allowed_s, limits),
        talks=at_s - history.output_s < min(limits.min_s, 0.5 * quiet_s),
        idle_s=at_s - used_s if known else 0.0,
        unseen_times=UNSEEN_TIMES if limits.afar and not known else 1.0,
        works=max(witness.io_s, witness.gpu_s) >= resting,
        stirs=stirred_s >= resting,
        device_rests=rests and (history.device_moves or not witness.spins),
        device_spins=rests and witness.spins,
        stuck_long=known and witness.free_s < resting,
        peers_long=NEVER < witness.peers_from_s < resting,
        frozen_long=witness.moved_s < resting,
        sure_long=max(witness.moved_s, witness.io_s, witness.gpu_s) < lately,
    )


def _most_s(history: History, allowed_s: float, limits: HangLimits) -> float:
    """The threshold for weak witnesses.

    A long phase may begin when the usual gap is over, and an unknown phase or warm-up gets as much again.
    """
    moves = history.moves
    known_s = max(limits.max_s, allowed_s, 2.0 * moves.longest_s, 2.0 * history.before_s)
    again_s = limits.max_s if history.phase or moves.steps < WARM_STEPS else 0.0
    return known_s + moves.usual_s + again_s


def _pairs(least: int, alone: int, ranks: int) -> int:
    return least + math.ceil(alone / max(1, ranks))


def _threshold(history: History, case: _Case, limits: HangLimits) -> tuple[float | None, str]:
    """How long the silence must last by the witnesses, and what they say. None: no length is enough.
    Seconds.
    """
    witness, moves = history.witness, history.moves
    if witness.stopped:
        held = ", ".join(map(str, witness.stopped[:NAMED_MAX]))
        return case.ask_s, f"rank {held} is stopped by a signal or frozen, and others are not"
    if witness.absent >= ABSENT_SAMPLES and moves.kind in {"steps", "beats"}:
        return case.worst_s, "no rank is left on any node, and srun still waits for them"
    least = _pairs(SURE_PAIRS, SURE_ALONE, witness.ranks)
    frozen = witness.frozen >= least
    warm_s = case.allowed_s if moves.steps < WARM_STEPS else 0.0
    sure = frozen and case.sure_long and witness.steady >= least
    if sure and (witness.waiting == "collective" or (witness.waiting == "device" and case.device_rests)):
        where = (
            "in a collective" if witness.waiting == "collective" else "for an accelerator that does nothing"
        )
        least_s = case.worst_s if history.phase and not limits.fatal else case.fast_s
        return max(least_s, warm_s), f"every rank waits {where}, and no stack moves"
    if case.talks:
        return None, "output goes on without steps"
    if (limits.confirmed or (limits.fatal and witness.ended)) and not case.stirs:
        least_s = max(case.fast_s, warm_s, 2.0 * moves.longest_s)
        what = "ranks have ended" if witness.ended else "its node is found bad"
        return least_s, f"{what}, and nothing is seen to move"
    if frozen and case.device_spins and case.sure_long:
        return max(
            case.worst_s, case.allowed_s
        ), "accelerators spin without moving memory, and no stack moves"
    return _weakly(history, case, limits, frozen and case.frozen_long)


def _weakly(history: History, case: _Case, limits: HangLimits, frozen: bool) -> tuple[float | None, str]:
    """The same where no rank is seen to wait for the others."""
    witness, moves = history.witness, history.moves
    if limits.afar and moves.kind in {"", "output"}:
        return None, "it has shown neither step nor beat"
    moved = witness.moved_s > NEVER
    if case.idle_s > HOLDS_S and (not moved or frozen):
        still = "no processor, file or accelerator is used" + (", no stack moves" if witness.frozen else "")
        rest_s = case.quiet_s - case.idle_s + WORST * limits.min_s
        return max(case.worst_s, case.allowed_s, rest_s), still
    if case.stuck_long and frozen:
        return 2.0 * case.most_s, "a process waits in the kernel for a file system, and no stack moves"
    if case.works:
        return None, "files or accelerators are at work"
    if case.peers_long:
        times = case.unseen_times * (1.0 if witness.peers == "collective" else 2.0)
        return times * case.most_s, "the others wait for ranks that do nothing but use their processors"
    if witness.frozen >= _pairs(MANY_PAIRS, MANY_ALONE, witness.ranks) and case.frozen_long:
        times = case.unseen_times * (1.0 if witness.waiting else 2.0)
        return times * case.most_s, "all stacks were the same in many samples"
    if moved:
        return None, "stacks move: it works on something"
    if moves.kind == "beats":
        least_s = max(case.most_s, PHASE_TIMES * moves.longest_s)
        return case.unseen_times * least_s, "the beats of all ranks have stopped"
    return None, "nothing but silence speaks of a hang"


def _sample_due(history: History, at_s: float) -> bool:
    witness = history.witness
    if not witness.samples:
        return True
    least = _pairs(SURE_PAIRS, SURE_ALONE, witness.ranks)
    came = witness.waiting == "collective" and witness.steady <= 2  # look again: they may stay there
    quick = witness.samples == 1 or came or 0 < witness.frozen < least
    pause_s = QUICK_S if quick else PAUSES_S[min(witness.samples, len(PAUSES_S)) - 1]
    if witness.frozen >= least:
        pause_s = min(pause_s, STEADY_S if witness.ranks >= FEW else STEADY_FEW_S)
    return at_s - witness.sampled_s >= pause_s


def _since(history: History, quiet_s: float, limits: HangLimits) -> str:
    what = {"beats": "no beat and no step", "steps": "no step", "output": "no output"}.get(
        history.moves.kind, "no sign of life"
    )
    within = f" in {history.phase}" if history.phase else ""
    after = f' after "{limits.fatal}"' if limits.fatal else ""
    return f"{what}{within} for {quiet_s:.0f} s{after}"


def ranks_behind(ranks: tuple[Rank, ...], witness: Witness = _NO_WITNESS) -> tuple[str, ...]:
    """The ranks that are behind, most certain first: ranks that are stopped, ranks that do not wait where the
    others do, ranks at a lower step, ranks that do not report waiting ("sync") where most do, ranks whose beat
    stopped earlier.

    Nobody is named where half of all or more are behind, nor by the beats of more than TOLD_MAX. Names are
    "rank 3 (node)", at most NAMED_MAX.
    """
    nodes = {**witness.places, **{rank.rank: rank.node for rank in ranks}}
    late: list[int] = list(witness.stopped or witness.elsewhere)
    stepping = [rank for rank in ranks if rank.step is not None]
    if not late and 1 < len(stepping) <= TOLD_MAX:
        highest = max(rank.step or 0 for rank in stepping)
        late = [rank.rank for rank in stepping if (rank.step or 0) < highest]
        if not late:  # ranks that have not reached the place where the others wait
            late = [rank.rank for rank in stepping if rank.phase != "sync"]
        if not late or 2 * len(late) >= len(stepping):
            last_s = sorted(rank.moved_s for rank in stepping)[len(stepping) // 2]
            late = [rank.rank for rank in stepping if rank.moved_s < last_s - _lag_s(len(ranks))]
        late = [] if 2 * len(late) >= len(stepping) else late
    return tuple(
        f"rank {rank} ({nodes[rank]})" if nodes.get(rank) else f"rank {rank}"
        for rank in sorted(late)[:NAMED_MAX]
    )


def _lag_s(ranks: int) -> float:
    """How far apart two ranks that stopped together may appear: beats of many ranks are read in turn, every
    few seconds.
    """
    return LAG_S if ranks <= 32 else LAG_S + 5.0 * math.ceil(ranks / 256) + ranks / 512
