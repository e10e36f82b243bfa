"""How a launch ended, from what Slurm says and what the job itself left behind. (I/O)

How it thinks. Slurm's record is believed, but for three ends that are not what they look like. A job that Slurm forgot
ended as its own record says. A controller that lost its memory starts a job a second time under the same id and the
same count; batch.sh refuses that start and leaves `lost.<r>`, so what Slurm calls FAILED is the end of a start that never
ran: the first start's own record counts, and where it left none it was lost. A job that found its attempt closed exits
0 without running the script: that is no verdict of the script's.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ftrun.slurm.parse import bears
from ftrun.supervisor import arrays, attempts
from ftrun.supervisor.model import Action, Diagnosis, FaultClass, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ftrun.supervisor.keeper import Keeper

__all__ = ["CLOSED", "STARTED_TWICE", "end_data", "started_twice"]

STARTED_TWICE = "started twice by Slurm"
CLOSED = "closed before it started"
_ENDED_BY_SLURM = frozenset({9, 15})  # how an abandoned start is removed from its node


def end_data(keeper: Keeper, state: str, reason: str, nodes: Sequence[str], job: str) -> dict[str, Any]:
    """What `job.ended` and `job.requeued` say: state, reason, nodes, exit_code, exit_signal, derived_exit_code.

    `state` and `reason` are Slurm's; `job` is the id to ask Slurm about, "" where it knows none. Raises SlurmError.
    """
    attempt, run_dir = keeper.attempt, keeper.run_dir
    data: dict[str, Any] = {"state": state, "reason": reason, "nodes": list(nodes or attempt.nodes)}
    details = keeper.office.cluster.details(job) if job else None
    written = attempts.exit_record(run_dir, attempt.number, attempt.launch)
    if details is not None and bears(details.comment, attempt.token):
        data |= {
            "exit_code": details.exit_code,
            "exit_signal": details.exit_signal,
            "derived_exit_code": details.derived_exit_code,
        }
    elif written is not None:
        data |= {"exit_code": written.code, "exit_signal": written.signal}
    if state == "GONE" and written is not None and not written.code and not written.signal:
        data["state"] = "COMPLETED"
    if state == "GONE" and arrays.all_went_well(run_dir, attempt):
        data |= {"state": "COMPLETED", "exit_code": 0}
    if state in {"FAILED", "GONE"} and attempts.lost_record(run_dir, attempt.number, attempt.launch):
        data |= _of_the_first_start(keeper, written, data["nodes"])
    if state == "COMPLETED" and written is None and _is_closed(keeper):
        data |= {"state": "FAILED", "reason": CLOSED, "exit_code": None, "exit_signal": None}
    return data


def _of_the_first_start(
    keeper: Keeper, written: attempts.Exit | None, nodes: Sequence[str]
) -> dict[str, Any]:
    if written is not None and not {written.signal, written.code - 128} & _ENDED_BY_SLURM:
        state = "FAILED" if written.code or written.signal else "COMPLETED"
        return {"state": state, "exit_code": written.code, "exit_signal": written.signal}
    first = attempts.launch_record(keeper.run_dir, keeper.attempt.number, keeper.attempt.launch)
    both = {*nodes, *(first.nodes if first is not None else ())}  # it may still run there (P6)
    return {
        "state": "FAILED",
        "reason": STARTED_TWICE,
        "nodes": sorted(both),
        "exit_code": None,
        "exit_signal": None,
    }


def _is_closed(keeper: Keeper) -> bool:
    with contextlib.suppress(OSError):
        return any(claim.closed for claim in attempts.claims(keeper.run_dir, keeper.attempt.number))
    return keeper.attempt.closed


def started_twice() -> Diagnosis:
    """The diagnosis of an end with the reason STARTED_TWICE: nobody's fault but the controller's."""
    return Diagnosis(
        fault=FaultClass.SCHEDULER,
        retry=True,
        action=Action.WAIT,
        nodes=(),
        exclude=False,
        confidence=0.9,
        signature="slurm.started-twice",
        title="Slurm lost track of the job and started it a second time; the second start was refused",
        advice="",
        rests_on=("batch.sh found the launch started by another start of the same job",),
        sources=(Source.SLURM, Source.EXIT),
    )
