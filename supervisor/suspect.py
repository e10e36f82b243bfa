"""A live attempt that looks broken: whether it is under suspicion, and what confirms it. (I/O)

Law P7. Slurm, the node or a process exit confirm a fault by themselves and end the launch without us. A fatal line is no witness: users' programs
print such lines and go on, as after a batch that did not fit, an upload that failed, a helper that was killed. So a fatal line alone ends nothing. It
makes the run suspect, and while it is, the witnesses of a hang (`hang`, `hangwatch`) need a shorter silence: `end-wait` and five median steps, where
every rank is seen to wait. What moves lives: a step, a beat, a stack, processors, files, accelerators, and for all but the surest witnesses output.

A step beyond all others takes the suspicion back. A node that its watch finds bad (`nodefacts`), or that does not answer Slurm, is confirmation: then
`end-wait` without any sign of life is enough. A script that has ended by itself, in a job that does not end, is not waited for without end.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ftrun.slurm.client.cluster import JobState
from ftrun.supervisor import attempts, diagnosis_inputs, hang, settle
from ftrun.supervisor.diagnosis_rules import diagnose
from ftrun.supervisor.lifecycle import State
from ftrun.supervisor.model import Diagnosis, FaultClass
from ftrun.supervisor.nodefacts import SIGNATURE

if TYPE_CHECKING:
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World
    from ftrun.supervisor.sense import Memory
    from ftrun.supervisor.signatures import Catalog
    from ftrun.supervisor.watch import WatchReport

__all__ = ["Look", "fatal", "is_found_by_a_check", "judge", "leaves_for_s", "limits_while_suspect", "look"]

LEAVING_FOR_S = 60.0
_NOT_FATAL = frozenset(
    {FaultClass.HEALTHY, FaultClass.UNKNOWN, FaultClass.PREEMPTED, FaultClass.TIMELIMIT, FaultClass.CANCELLED}
)


def fatal(diagnosis: Diagnosis) -> bool:
    """A provisional diagnosis that training does not survive, should it be true. (pure)"""
    return diagnosis.fault not in _NOT_FATAL and bool(diagnosis.signature)


def is_found_by_a_check(diagnosis: Diagnosis) -> bool:
    """A check of a node found the fault; no line of a log bears such a signature. (pure)"""
    return diagnosis.signature.startswith(SIGNATURE)


class Look(StrEnum):
    """What one look at a live run means."""

    WELL = "well"  # nothing fatal was seen
    SUSPECT = "suspect"  # something fatal is seen, and no new step was made since
    WENT_ON = "went on"  # a step beyond all others was made


def look(memory: Memory, diagnosis: Diagnosis | None, *, suspected: bool) -> Look:
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
        return Look.SUSPECT
    if memory.step is not None and (memory.suspect_step is None or memory.step > memory.suspect_step):
        # Where we have just taken over we do not know when this step was made.
        if memory.suspect_step is not None:
            memory.survived |= before
        memory.suspect_step = memory.step
        return Look.WENT_ON
    return Look.SUSPECT


def limits_while_suspect(
    settings: Mapping[str, Any],
    diagnosis: Diagnosis,
    catalog: Catalog,
    *,
    lost: bool = False,
    from_afar: bool = False,
) -> hang.Limits:
    """What the witnesses of a hang need while this is suspected. `lost`: Slurm hears nothing of a node of the run.

    Where hangs are not looked for (`hang=never`), a fatal line still is followed up. Raises nothing.
    """
    known = catalog.by_id
    return hang.after_fatal_line(
        hang.limits_from(settings, from_afar=from_afar) or hang.Limits(afar=from_afar),
        diagnosis.title,
        float(settings.get("end-wait", 60.0)),
        at_once=diagnosis.signature in known and known[diagnosis.signature].at_once,
        confirmed=lost or is_found_by_a_check(diagnosis),
    )


def judge(keeper: Keeper, world: World, report: WatchReport) -> None:
    """Suspect or clear the live attempt by what its log says. Nothing while it does not run or cannot be read."""
    row = keeper.row(world)
    if not report.readable or report.behind or row is None or row.state is not JobState.RUNNING:
        keeper.memory.since.pop("suspect", None)
        return
    facts = diagnosis_inputs.of_live(keeper, world, report, settle.topology(keeper))
    diagnosis = diagnose(facts) if facts.evidence or facts.nodes.findings else None
    if report.evidence:
        keeper.memory.provisional = diagnosis
    seen = look(keeper.memory, diagnosis, suspected=keeper.run.state is not State.RUNNING)
    keeper.memory.suspicion = diagnosis if seen is Look.SUSPECT else None
    if seen is Look.WELL:
        _clear(keeper, "what was seen is not fatal")
    elif seen is Look.WENT_ON:
        _clear(keeper, f"training went on to step {keeper.memory.step}")
    elif diagnosis is not None:
        if keeper.run.state is State.RUNNING:
            told = {"signature": diagnosis.signature, "title": diagnosis.title}
            keeper.record("fault.suspected", step=keeper.memory.step, **told)
        _end_where_the_script_is_over(keeper, world, diagnosis)


def leave_alone(keeper: Keeper) -> None:
    """The agent inside the allocation judges: what was suspected while it could not be seen is its business now (P8)."""
    keeper.memory.since.pop("suspect", None)
    keeper.memory.suspicion = None
    _clear(keeper, "the agent beside the script lives: it judges")


def leaves_for_s(settings: Mapping[str, Any]) -> float:
    """How long a job may take to end once its script has: it publishes what is staged, and runs a hook of the user's. (pure)"""
    hook_s = float(settings.get("hook-limit", 60.0)) if settings.get("post-hook") else 0.0
    return (
        LEAVING_FOR_S + hook_s + (float(settings.get("stage-wait", 120.0)) if settings.get("stage") else 0.0)
    )


def _end_where_the_script_is_over(keeper: Keeper, world: World, diagnosis: Diagnosis) -> None:
    """The script has ended by itself, which confirms what is suspected; its job should end soon after checks and hooks."""
    attempt, memory = keeper.attempt, keeper.memory
    if attempts.exit_record(keeper.run_dir, attempt.number, attempt.launch) is None:
        memory.since.pop("suspect", None)
        return
    waited_s = memory.for_how_long("suspect", world.mono_s)
    if waited_s >= float(keeper.settings.get("end-wait", 60.0)) + leaves_for_s(keeper.settings):
        keeper.intend_end(f"{diagnosis.title}; its script ended {waited_s:.0f} s ago, and the job has not")


def _clear(keeper: Keeper, why: str) -> None:
    if keeper.run.state is State.SUSPECT:
        keeper.record("fault.survived", why=why)
