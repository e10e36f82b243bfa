"""Asking a start for a checkpoint before ending it: what to ask, how long to wait, when to end. (pure)

Before ending a working start, ftrun asks it for a checkpoint: by the file `save-now` in the run's folder and,
where `save-signal` is set, by that signal. It then waits for a *new complete* checkpoint for as long as the
occasion allows, and ends the start in any case. `decide` is that rule. It keeps no state and is called at
each poll with the facts of that moment, so supervisor and agent share it and a successor can continue
halfway.

A checkpoint is new if its step is higher than that of the newest one known when ftrun asked, or if it is the
same one written anew; an older one that remains after a newer one was removed is not new. It is complete if
it has the marker or, without a marker, if it has not changed for `QUIET_S`, or if a newer one is being written
while it rests: a script that saves every few seconds never pauses for so long. If no file was ever seen, a log
line that says "saved" counts. A start that ftrun ends by its own choice (`_BY_CHOICE`) loses nothing by it: what it
saves after it diverged is not counted, since no later start loads that.

The emergency checkpoint (`gasp`) is the short form: after a fault that left most processes alive they are
asked once, for a short time.
"""

from __future__ import annotations

from enum import StrEnum

from ftrun.slurm.records import dataclass
from ftrun.supervisor.model.stop_conditions import TIME_LIMIT_MARGIN_S
from ftrun.supervisor.model.types import CheckpointState

STEPS_CANCELLED = "slurm-cancelled"  # signature of what slurmstepd logs when the tasks get TERM
QUIET_S = 5.0  # a checkpoint without a marker is complete after so long without a change
STILL_WRITTEN_S = 60.0  # after so long without a complete one a person is told
LIMIT_SHARE = 4  # 1/4 of a short time limit is reserved for saving
LIMIT_MIN_S = 240.0  # below, the signal, which may come a minute early, could precede the script's handler
EARLY_S = 60.0  # Slurm may send its warning so much early
PACE_ERROR = 0.1  # relative error of the estimated remaining time
SIGNAL_AHEAD_MAX_S = 65_535  # limit of sbatch


class Occasion(StrEnum):
    """Why a start of the script is ended."""

    STOP = "stop"
    PAUSE = "pause"
    SWAP = "swap"
    DRAIN = "drain"
    GROW = "grow"
    TIMELIMIT = "timelimit"
    PREEMPT = "preempt"
    GASP = "gasp"


_BY_CHOICE = frozenset({Occasion.SWAP, Occasion.DRAIN, Occasion.GROW})


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """A checkpoint was requested. `known`: the state at that time; `wait_s`: the longest wait, None = until
    there is one.
    """

    occasion: Occasion
    known: CheckpointState
    wait_s: float | None


@dataclass(frozen=True, slots=True)
class SaveVerdict:
    """Whether to end now or to wait. `saved`: a new checkpoint is complete, `path`; `reason` is for people.

    `still_written`: something new is there, and it does not come to rest.
    """

    end: bool
    saved: bool
    reason: str
    path: str = ""
    still_written: bool = False


def save_verdict(
    ask: SaveRequest, now: CheckpointState, waited_s: float, *, diverged: bool = False
) -> SaveVerdict:
    """Whether the wait for a new complete checkpoint is over. `waited_s` is from the caller's monotonic
    clock; `diverged`: the log shows that the training has.
    """
    if diverged and ask.occasion in _BY_CHOICE:
        late = ask.wait_s is not None and waited_s >= ask.wait_s
        return SaveVerdict(late, False, "the training has diverged: what it saves now is not loaded again")
    fresh = is_new(ask.known, now)
    if fresh and _complete(now):
        return SaveVerdict(True, True, f"a new checkpoint is complete: {_name(now)}", now.path)
    if (before := now.overtaken) is not None and is_new(ask.known, before):
        why = f"a new checkpoint is complete: {_name(before)}, since {_name(now)} is being written"
        return SaveVerdict(True, True, why, before.path)
    if ask.wait_s is not None and waited_s >= ask.wait_s:
        half = f"; {_name(now)} is still being written" if fresh else ""
        return SaveVerdict(True, False, f"no new complete checkpoint within {ask.wait_s:g} s{half}")
    if fresh:
        still_written = waited_s > STILL_WRITTEN_S
        return SaveVerdict(False, False, f"{_name(now)} is being written", still_written=still_written)
    return SaveVerdict(False, False, "a new checkpoint is awaited")


def is_new(known: CheckpointState, now: CheckpointState) -> bool:
    """Something was saved since `known`. Files decide; the log counts only if no file was ever seen."""
    if not now.path and not known.path:
        return now.logged is not None and (known.logged is None or now.logged > known.logged)
    if not now.path:
        return False
    if now.path == known.path:
        return bool(now.stamp) and now.stamp != known.stamp
    return known.step is None or now.step is None or now.step > known.step


def still_written_warning(verdict: SaveVerdict) -> str:
    """What a person is told where no checkpoint ever comes to rest."""
    return (
        f"no checkpoint counts as complete: {verdict.reason} again and again, never {QUIET_S:g} s without a change."
        " Set checkpoint-marker, or keep more than one checkpoint"
    )


def _complete(now: CheckpointState) -> bool:
    return not now.path or now.marked or now.quiet_s >= QUIET_S


def _name(now: CheckpointState) -> str:
    return now.path.rstrip("/").rpartition("/")[2] if now.path else f"step {now.logged}, as the log says"


def emergency_save(*, total: int, alive: int, listens: bool, gasp_wait_s: float) -> tuple[bool, str]:
    """Whether to ask the survivors of a fault for an emergency checkpoint, and why (not).

    `total` and `alive` count ranks, or nodes where ranks are unknown. `listens`: `save-signal` is set or a
    heartbeat reads `save-now`. The wait is `gasp_wait_s`; 0 = never.
    """
    if gasp_wait_s <= 0:
        return False, "fault-save-timeout=0: nobody is asked"
    if not listens:
        return False, "nobody listens: neither save-signal nor a beat"
    if alive * 2 <= total:
        return False, f"{alive} of {total} are alive: too few to save"
    if alive >= total:
        return True, f"all {total} are alive"
    return True, f"{alive} of {total} are alive"


def parse_save_signal(save_signal: str) -> tuple[str, bool]:
    """(signal name without SIG, whether it goes to the batch script instead of the steps); ("", False) for
    none.
    """
    to_script = save_signal[:2].upper() == "B:"
    name = save_signal[2:] if to_script else save_signal
    return name.strip().upper().removeprefix("SIG"), to_script and bool(name.strip())


def warning_s(limit_s: float | None, save_wait_s: float) -> int:
    """How long before a time limit Slurm sends its warning, whole seconds; 0 = never, the limit is unknown or
    too short.
    """
    if limit_s is None or limit_s < LIMIT_MIN_S:
        return 0
    return int(min(save_wait_s + TIME_LIMIT_MARGIN_S, limit_s / LIMIT_SHARE, SIGNAL_AHEAD_MAX_S))


def warning_is_due(ahead_s: float, left_s: float) -> bool:
    """Whether Slurm may have sent the warning that it sends `ahead_s` before the limit: a save from now on
    may be the answer.
    """
    return left_s <= ahead_s + EARLY_S


def work_is_lost(*, work_s: float | None, left_s: float, unasked: bool) -> bool:
    """Whether all work between the requested checkpoint and the time limit will be lost.

    The script cannot finish by then (`work_s` seconds of steps are left, None = unknown), and it does not
    save on its own (`unasked`).
    """
    return work_s is not None and not unasked and work_s * (1.0 - PACE_ERROR) > left_s > 0.0


def limit_is_near(limit_s: float, left_s: float, save_wait_s: float) -> bool:
    """Whether it is time to save before the limit. Most of a short limit is reserved for work."""
    return left_s <= min(save_wait_s + TIME_LIMIT_MARGIN_S, limit_s / LIMIT_SHARE)
