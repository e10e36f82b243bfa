"""Whether a live launch is healthy, suspect or recovered, for supervisor and agent alike. (pure)

Law P7. A fatal line alone ends nothing: it makes a launch suspect, and a suspect launch needs a shorter
silence to count as hung. A step beyond all earlier ones clears the suspicion.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ftrun.supervisor.diagnosis.node_findings import SIGNATURE
from ftrun.supervisor.diagnosis.rank_deaths import is_rank_death
from ftrun.supervisor.model.types import Diagnosis, FaultClass
from ftrun.supervisor.telemetry import hang_rules

if TYPE_CHECKING:
    from ftrun.supervisor.diagnosis.launch_state import LaunchState
    from ftrun.supervisor.signatures.catalog import Catalog

__all__ = [
    "StallVerdict",
    "assess_launch",
    "exit_grace_s",
    "is_fatal",
    "is_found_by_a_check",
    "limits_while_suspect",
]

LEAVING_FOR_S = 60.0
_NOT_FATAL = frozenset(
    {FaultClass.HEALTHY, FaultClass.UNKNOWN, FaultClass.PREEMPTED, FaultClass.TIMELIMIT, FaultClass.CANCELLED}
)


def is_fatal(diagnosis: Diagnosis) -> bool:
    """Whether training cannot survive this provisional diagnosis, if it is right. (pure)"""
    return (diagnosis.fault not in _NOT_FATAL and bool(diagnosis.signature)) or is_rank_death(diagnosis)


def is_found_by_a_check(diagnosis: Diagnosis) -> bool:
    """A node check found the fault; no log line has such a signature. (pure)"""
    return diagnosis.signature.startswith(SIGNATURE)


class StallVerdict(StrEnum):
    """The judgement of one look at a live launch."""

    WELL = "well"  # nothing fatal was seen
    SUSPECT = "suspect"  # a fatal sign, and no new step since
    WENT_ON = "went on"  # a new highest step


def assess_launch(state: LaunchState, diagnosis: Diagnosis | None, *, suspected: bool) -> StallVerdict:
    """Judge what is seen now together with what `state` knows; supervisor and agent both call it.

    `suspected`: the launch was suspect before. `state` is updated for the next look.
    """
    # A new step clears findings of earlier looks; what came with the step may have been found after it.
    before, state.findings_seen = (
        state.findings_seen,
        {finding.key for finding in state.node_facts.findings},
    )
    if diagnosis is None or not is_fatal(diagnosis):
        return StallVerdict.WELL
    if not suspected:
        state.suspect_step = state.step
        return StallVerdict.SUSPECT
    if state.step is not None and (state.suspect_step is None or state.step > state.suspect_step):
        # Just after a takeover it is unknown when this step was made.
        if state.suspect_step is not None:
            state.survived |= before
        state.suspect_step = state.step
        return StallVerdict.WENT_ON
    return StallVerdict.SUSPECT


def limits_while_suspect(
    settings: Mapping[str, Any],
    diagnosis: Diagnosis,
    catalog: Catalog,
    *,
    lost: bool = False,
    from_afar: bool = False,
) -> hang_rules.HangLimits:
    """The limits of the hang watch while this is suspected. `lost`: Slurm does not hear a node of the run.

    With `hang=never` a fatal line is still followed up. Raises nothing.
    """
    known = catalog.by_id
    return hang_rules.after_fatal_line(
        hang_rules.hang_limits(settings, from_afar=from_afar) or hang_rules.HangLimits(afar=from_afar),
        diagnosis.title,
        float(settings.get("fault-grace", 60.0)),
        at_once=diagnosis.signature in known and known[diagnosis.signature].at_once,
        confirmed=lost or is_found_by_a_check(diagnosis),
    )


def exit_grace_s(settings: Mapping[str, Any]) -> float:
    """How long a job may take to end after its script: it publishes staged checkpoints and runs the user's
    hook. (pure)
    """
    hook_s = float(settings.get("hook-limit", 60.0)) if settings.get("post-hook") else 0.0
    return (
        LEAVING_FOR_S
        + hook_s
        + (float(settings.get("stage-flush-timeout", 120.0)) if settings.get("stage") else 0.0)
    )
