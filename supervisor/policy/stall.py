"""Whether a live launch is healthy, suspect or recovered, for supervisor and agent alike. (pure)

Law P7. A fatal line alone ends nothing: it makes a launch suspect, and a suspect launch needs a shorter
silence to count as hung. A step beyond all earlier ones clears the suspicion.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ftrun.supervisor.diagnosis.node_findings import SIGNATURE
from ftrun.supervisor.model.types import Diagnosis, FaultClass
from ftrun.supervisor.telemetry import hang_rules

if TYPE_CHECKING:
    from ftrun.supervisor.diagnosis.launch_state import LaunchState
    from ftrun.supervisor.signatures.catalog import Catalog

__all__ = ["Look", "fatal", "is_found_by_a_check", "leaves_for_s", "limits_while_suspect", "look"]

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


def look(state: LaunchState, diagnosis: Diagnosis | None, *, suspected: bool) -> Look:
    """What is seen now means, with what `state` knows; the supervisor and the agent inside a job ask the same.

    `suspected`: the run was under suspicion before. `state` takes up what the next look needs.
    """
    # A step takes back what was there at an earlier look; what came with the step may have been found after it.
    before, state.findings_seen = (
        state.findings_seen,
        {finding.key for finding in state.node_facts.findings},
    )
    if diagnosis is None or not fatal(diagnosis):
        return Look.WELL
    if not suspected:
        state.suspect_step = state.step
        return Look.SUSPECT
    if state.step is not None and (state.suspect_step is None or state.step > state.suspect_step):
        # Where we have just taken over we do not know when this step was made.
        if state.suspect_step is not None:
            state.survived |= before
        state.suspect_step = state.step
        return Look.WENT_ON
    return Look.SUSPECT


def limits_while_suspect(
    settings: Mapping[str, Any],
    diagnosis: Diagnosis,
    catalog: Catalog,
    *,
    lost: bool = False,
    from_afar: bool = False,
) -> hang_rules.Limits:
    """What the witnesses of a hang need while this is suspected. `lost`: Slurm hears nothing of a node of the run.

    Where hangs are not looked for (`hang=never`), a fatal line still is followed up. Raises nothing.
    """
    known = catalog.by_id
    return hang_rules.after_fatal_line(
        hang_rules.limits_from(settings, from_afar=from_afar) or hang_rules.Limits(afar=from_afar),
        diagnosis.title,
        float(settings.get("fault-grace", 60.0)),
        at_once=diagnosis.signature in known and known[diagnosis.signature].at_once,
        confirmed=lost or is_found_by_a_check(diagnosis),
    )


def leaves_for_s(settings: Mapping[str, Any]) -> float:
    """How long a job may take to end once its script has: it publishes what is staged, and runs a hook of the user's. (pure)"""
    hook_s = float(settings.get("hook-limit", 60.0)) if settings.get("post-hook") else 0.0
    return (
        LEAVING_FOR_S
        + hook_s
        + (float(settings.get("stage-flush-timeout", 120.0)) if settings.get("stage") else 0.0)
    )
