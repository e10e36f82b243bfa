"""A live attempt that looks broken: when may it be ended? (I/O)

Law P7. Slurm, the node or a process exit confirm a fault by themselves and end the launch without us. Otherwise a fatal
line must be followed by no progress for `max(end-wait, 5 x the median step)` while the log can be read: a line alone
never ends a live run, and a silent log alone is no hang. A script that restarts by itself gets that time: each step that
it makes, be it one that was made before, begins it anew, and a step beyond all others takes the suspicion back.

No progress means longer without a step than this launch is used to. Steps that come in bursts (a buffered log) or a line
every thousand steps make the patience longer; where the pace is not known yet it is ten times `end-wait`, and before
the first step any output is a sign of life: a handled traceback at the start of a slow set-up ends nothing. The time
counts only while Slurm says RUNNING (not suspended) and while all that was written has been read. A line that is a verdict in
itself (`at_once`: a device that left the bus) is not given more than the law's own time.

A node that its watch finds bad (`nodefacts`) is a suspicion as a fatal line is, with one difference: where nothing else speaks against the
run, any output is a sign of life.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ftrun.slurm.client import JobState
from ftrun.supervisor import attempts, nodelook, sense, settle
from ftrun.supervisor.diagnose import diagnose
from ftrun.supervisor.lifecycle import State
from ftrun.supervisor.model import Diagnosis, FaultClass
from ftrun.supervisor.nodefacts import SIGNATURE, while_alive

if TYPE_CHECKING:
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World
    from ftrun.supervisor.sense import Memory
    from ftrun.supervisor.watch import WatchReport

__all__ = ["Look", "alive", "fatal", "judge", "leaves_for_s", "look", "patience_s", "wait_anew"]

PACE_UNKNOWN = 10.0  # times `end-wait`, until three looks saw steps
LEAVING_FOR_S = 60.0
_NOT_FATAL = frozenset(
    {FaultClass.HEALTHY, FaultClass.UNKNOWN, FaultClass.PREEMPTED, FaultClass.TIMELIMIT, FaultClass.CANCELLED}
)


def fatal(diagnosis: Diagnosis) -> bool:
    """A provisional diagnosis that training does not survive, should it be true. (pure)"""
    return diagnosis.fault not in _NOT_FATAL and bool(diagnosis.signature)


def patience_s(
    end_wait_s: float, median_step_s: float | None, longest_gap_s: float = 0.0, *, at_once: bool = False
) -> float:
    """How long no progress must follow a fatal line before a live run may be ended. (pure)

    `at_once`: the line is a verdict in itself, so that no more is waited than P7 asks of every line and this launch once took.
    """
    if at_once:
        return max(end_wait_s, 5.0 * (median_step_s or 0.0), longest_gap_s)
    if median_step_s is None:
        return max(PACE_UNKNOWN * end_wait_s, 2.0 * longest_gap_s)
    return max(end_wait_s, 5.0 * median_step_s, 2.0 * longest_gap_s)


class Look(StrEnum):
    """What one look at a live run means."""

    WELL = "well"  # nothing fatal was seen
    SUSPECT = "suspect"  # something fatal is seen for the first time
    WENT_ON = "went on"  # a step beyond all others was made
    ALIVE = "alive"  # it gives signs of life: the wait begins anew
    STILL = "still"  # it stands still


def look(memory: Memory, mono_s: float, diagnosis: Diagnosis | None, *, suspected: bool) -> Look:
    """What is seen now means, with what `memory` knows; the supervisor and the agent inside a job ask the same.

    `suspected`: the run was under suspicion before. `memory` takes up what the next look needs.
    """
    # A step takes back what was there at an earlier look; what came with the step may have been found after it.
    before, memory.findings_seen = (
        memory.findings_seen,
        {finding.key for finding in memory.node_facts.findings},
    )
    if diagnosis is None or not fatal(diagnosis):
        return Look.WELL
    if not suspected:
        memory.suspect_step = memory.step
        wait_anew(memory, mono_s)
        return Look.SUSPECT
    if memory.step is not None and (memory.suspect_step is None or memory.step > memory.suspect_step):
        if (
            memory.suspect_step is not None
        ):  # else we have just taken over, and do not know when this step was made
            memory.survived |= before
        memory.suspect_step = memory.step
        return Look.WENT_ON
    if alive(memory, diagnosis):
        wait_anew(memory, mono_s)
        return Look.ALIVE
    return Look.STILL


def judge(keeper: Keeper, world: World, report: WatchReport) -> None:
    """Suspect, clear or end the live attempt by what its log says. Nothing while it does not run or cannot be read."""
    memory = keeper.memory
    row = keeper.row(world)
    if not report.readable or report.behind or row is None or row.state is not JobState.RUNNING:
        memory.since.pop("suspect", None)
        return
    diagnosis = _provisional(keeper, world, report)
    seen = look(memory, world.mono_s, diagnosis, suspected=keeper.run.state is not State.RUNNING)
    if seen is Look.WELL:
        _clear(keeper, "what was seen is not fatal")
    elif seen is Look.WENT_ON:
        _clear(keeper, f"training went on to step {memory.step}")
    elif seen is Look.SUSPECT:
        assert diagnosis is not None
        keeper.record(
            "fault.suspected", signature=diagnosis.signature, title=diagnosis.title, step=memory.step
        )
    elif seen is Look.STILL:
        assert diagnosis is not None
        _perhaps_end(keeper, world, report, diagnosis)


def leave_alone(keeper: Keeper) -> None:
    """The agent inside the allocation judges: what was suspected while it could not be seen is its business now (P8)."""
    keeper.memory.since.pop("suspect", None)
    _clear(keeper, "the agent beside the script lives: it judges")


def _provisional(keeper: Keeper, world: World, report: WatchReport) -> Diagnosis | None:
    """What the log and the nodes so far would mean if it were all."""
    memory = keeper.memory
    if report.evidence:
        memory.provisional = diagnose(
            report.evidence,
            settle.topology(keeper),
            ended=None,
            catalog=keeper.office.catalog(),
            progress=report.progress,
        )
    return while_alive(memory.provisional, nodelook.live(keeper, world), memory.survived, world.now_s)


def wait_anew(memory: Memory, mono_s: float) -> None:
    """From now on no progress counts."""
    memory.since["suspect"] = mono_s
    memory.suspect_life = (memory.steps_seen, memory.growth_seen_s)


def alive(memory: Memory, diagnosis: Diagnosis) -> bool:
    """Steps were made since the wait began, even old ones again; before the first step any output counts, and so it does
    where nothing but a node's report speaks against the run: a long evaluation prints no steps."""
    steps_seen, growth_seen_s = memory.suspect_life
    any_output = memory.step is None or diagnosis.signature.startswith(SIGNATURE)
    return memory.steps_seen > steps_seen or (any_output and memory.growth_seen_s != growth_seen_s)


def _is_over(keeper: Keeper) -> bool:
    """The script has ended by itself: its nodes are checked, or a hook of the user's runs, before the job ends."""
    attempt = keeper.attempt
    return attempts.exit_record(keeper.run_dir, attempt.number, attempt.launch) is not None


def leaves_for_s(settings: Mapping[str, Any]) -> float:
    """How long a job may take to end once its script has: it publishes what is staged, and runs a hook of the user's. (pure)"""
    hook_s = float(settings.get("hook-limit", 60.0)) if settings.get("post-hook") else 0.0
    return (
        LEAVING_FOR_S + hook_s + (float(settings.get("stage-wait", 120.0)) if settings.get("stage") else 0.0)
    )


def _perhaps_end(keeper: Keeper, world: World, report: WatchReport, diagnosis: Diagnosis) -> None:
    memory = keeper.memory
    waited = memory.for_how_long("suspect", world.mono_s)
    end_wait_s = float(keeper.settings.get("end-wait", 60.0))
    known = keeper.office.catalog().by_id
    at_once = diagnosis.signature in known and known[diagnosis.signature].at_once
    patience = patience_s(end_wait_s, report.median_step_s, memory.longest_gap_s, at_once=at_once)
    if waited < patience or (_is_over(keeper) and waited < patience + leaves_for_s(keeper.settings)):
        return
    fresh = sense.watch(
        keeper, world, fresh=True
    )  # a network file system may have kept the last steps from us
    if fresh is None or not fresh.readable or fresh.behind or alive(memory, diagnosis):
        return
    keeper.intend_end(f"{diagnosis.title}; no progress for {waited:.0f} s since")


def _clear(keeper: Keeper, why: str) -> None:
    if keeper.run.state is State.SUSPECT:
        keeper.record("fault.survived", why=why)
