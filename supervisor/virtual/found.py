"""What a virtual fault looks like to the judges, and what is kept of it. (pure)"""

from __future__ import annotations

from typing import Any

from ftrun.slurm.records import replace
from ftrun.supervisor.grounds import Case
from ftrun.supervisor.model import Blame, Decision, Diagnosis, Source
from ftrun.supervisor.verdicts import plain
from ftrun.supervisor.virtual.life import Fault

__all__ = ["diagnosis", "short", "told"]


def diagnosis(fault: Fault) -> Diagnosis:
    """What ftrun would say of it: by the log and, where the node answers, by its own checks of the node."""
    cause = fault.cause
    found = plain(
        cause.fault,
        cause.name,
        (),
        confidence=0.9,
        names=(fault.node,) if fault.named else (),
        sources=(Source.SILENCE,) if cause.lost else (Source.LOG, Source.REPORT),
    )
    blame = found.blame if cause.of_a_node else Blame.JOB
    return replace(found, signature=f"virtual-{cause.name}", blame=blame)


def told(found: Diagnosis) -> dict[str, Any]:
    """What the journal keeps of it."""
    return {
        "class": found.fault.value,
        "signature": found.signature,
        "title": found.title,
        "nodes": list(found.nodes),
    }


def short(decision: Decision, case: Case) -> str:
    """Why it stopped, without nodes and steps, so that seeds can be summed up."""
    last = decision.reason.rpartition("; ")[2]
    return last if "retries" in last else f"{case.diagnosis.fault.value}: not tried again"
