"""How a launch ended, from what Slurm says and what the job itself left behind. (I/O)

Slurm's record counts, but for three ends that are not what they look like. A job that Slurm forgot ended as
its own record says. A controller that lost its memory starts a job a second time under the same id and the
same restart count; batch.sh refuses that start and leaves `lost.<r>`, or slurmd refuses it (24.11: the
credential was revoked with the first start) and only Slurm's start time shows it. What Slurm calls FAILED, or
CANCELLED though ftrun cancelled nothing, then is the end of a start that never ran: the first start's own record
counts, and without one the first start was lost. Whether a person cancelled, the log tells (`known_ends`). Slurm
moves the start time of one start, too, where it powers the job's nodes up (slurmctld/job_mgr.c, job_config_fini): so
a cancel is Slurm's only where batch.sh's record says that the launch began at the first of the two times. A job that
found its attempt closed exits 0 without running the script: that is no result of the script.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from ftrun.slurm.client.cluster import JobRow
from ftrun.slurm.client.parse import has_token
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.controller import accounting, arrays, observe
from ftrun.supervisor.model.types import CLOSED, STARTED_TWICE
from ftrun.supervisor.store import attempt_dir

_ENDED_BY_SLURM = frozenset({9, 15})  # the signals that remove an abandoned start from its node


def record_end(
    ctx: RunContext,
    kind: str,
    state: str,
    reason: str,
    nodes: Sequence[str],
    *,
    launch: int | None = None,
    row: JobRow | None = None,
) -> None:
    """Journal the end of a launch (by default the present one).

    `row` is the ended job's if Slurm still shows it.
    """
    number = ctx.attempt.launch.number if launch is None else launch
    job, started_at_s = (row.raw_job_id or row.job_id, row.start_time_s) if row is not None else ("", None)
    data = launch_exit(ctx, state, reason, nodes, job=job, launch=number, started_at_s=started_at_s)
    if row is not None:  # a short job is over before it is seen running
        data |= {"slurm_start_s": row.start_time_s if nodes else None, "slurm_end_s": row.end_time_s}
    ctx.observations.per_start(observe.EndedScript).log_quiet.stop()
    ctx.record(kind, launch=number, **data)


def launch_exit(
    ctx: RunContext,
    state: str,
    reason: str,
    nodes: Sequence[str],
    *,
    job: str,
    launch: int,
    started_at_s: float | None = None,
) -> dict[str, Any]:
    """What `job.ended` and `job.requeued` say: state, reason, nodes, exit_code, exit_signal,
    derived_exit_code, preempted; partition where no record has told it.

    `state`, `reason` and `started_at_s` are Slurm's; `job` is the id to ask Slurm about, "" if it knows none.
    Raises SlurmError.
    """
    attempt, run_dir = ctx.attempt, ctx.run_dir
    if not nodes and launch != attempt.launch.number:
        unseen = attempt_dir.launch_record(run_dir, attempt.number, launch)
        nodes = unseen.nodes if unseen is not None else ()
    data: dict[str, Any] = {"state": state, "reason": reason, "nodes": list(nodes or attempt.nodes)}
    if not attempt.partition and ctx.observations.partition:  # it was over before it was seen running
        data["partition"] = ctx.observations.partition
    details = ctx.services.cluster.details(job) if job else None
    written = attempt_dir.exit_record(run_dir, attempt.number, launch)
    if details is not None and has_token(details.comment, attempt.token):
        data |= {
            "exit_code": details.exit_code,
            "exit_signal": details.exit_signal,
            "derived_exit_code": details.derived_exit_code,
            "preempted": details.is_preempted,
        }
    elif (kept := accounting.exit_of(ctx, job, launch)) and job:
        data |= kept
    elif written is not None:
        data |= {"exit_code": written.code, "exit_signal": written.signal}
    if state == "GONE" and written is not None and not written.code and not written.signal:
        data["state"] = "COMPLETED"
    if state == "GONE" and arrays.all_went_well(ctx):
        data |= {"state": "COMPLETED", "exit_code": 0}
    odd = {"FAILED", "GONE"}
    if not (attempt.cancel_intended or attempt.ended_by_us) and _began_first(ctx, launch, started_at_s):
        odd.add("CANCELLED")
    if state in odd and _second_start(ctx, launch, started_at_s):
        data |= _of_the_first_start(ctx, written, data["nodes"], launch, state)
    if state == "COMPLETED" and written is None and _was_turned_away(ctx):
        data |= {"state": "FAILED", "reason": CLOSED, "exit_code": None, "exit_signal": None}
    return data


def _second_start(ctx: RunContext, launch: int, started_at_s: float | None) -> bool:
    """Whether this end is that of a second start of one launch.

    Either batch.sh says so, or Slurm shows another start time.
    """
    attempt, run_dir = ctx.attempt, ctx.run_dir
    if attempt_dir.second_start_job(run_dir, attempt.number, launch):
        return True
    first, last = attempt.starts.get(launch), started_at_s or attempt.launch.started_at_s
    if first is None or last is None or ctx.submission.get("array"):
        return False  # an array has as many starts as tasks
    return last > first + 1 and attempt_dir.exit_record(run_dir, attempt.number, launch) is None


def _began_first(ctx: RunContext, launch: int, started_at_s: float | None) -> bool:
    """Whether batch.sh says that the launch began at the first of two times of start, or that the second one was refused.

    Slurm moves the time of one start, too, once the job's nodes are powered up: then the launch began at the later
    time, or not at all. The clocks of controller and node may differ, so the nearer of the two times is the one.
    """
    attempt, run_dir = ctx.attempt, ctx.run_dir
    if attempt_dir.second_start_job(run_dir, attempt.number, launch):
        return True
    record = attempt_dir.launch_record(run_dir, attempt.number, launch)
    began_s = record.started_s if record is not None else None
    first, last = attempt.starts.get(launch), started_at_s or attempt.launch.started_at_s
    if began_s is None or first is None or last is None:
        return False
    return abs(began_s - first) < abs(began_s - last)


def _of_the_first_start(
    ctx: RunContext, written: attempt_dir.ExitRecord | None, nodes: Sequence[str], launch: int, state: str
) -> dict[str, Any]:
    if written is not None and not {written.signal, written.code - 128} & _ENDED_BY_SLURM:
        state = "FAILED" if written.code or written.signal else "COMPLETED"
        return {"state": state, "exit_code": written.code, "exit_signal": written.signal}
    first = attempt_dir.launch_record(ctx.run_dir, ctx.attempt.number, launch)
    both = {*nodes, *(first.nodes if first is not None else ())}  # it may still run there (P6)
    return {
        "state": "CANCELLED" if state == "CANCELLED" else "FAILED",
        "reason": STARTED_TWICE,
        "nodes": sorted(both),
        "exit_code": None,
        "exit_signal": None,
    }


def _was_turned_away(ctx: RunContext) -> bool:
    """Whether the attempt was closed, or claimed by two jobs at once, so that neither began (P4)."""
    place = ctx.run_dir, ctx.attempt.number
    with contextlib.suppress(OSError):
        claims = attempt_dir.claims(*place)
        return any(one.closed for one in claims) or (
            bool(claims) and attempt_dir.claim_holder(*place) is None
        )
    return ctx.attempt.closed


def may_be_forgotten(known_s: float | None, looked_s: float, min_job_age_s: float) -> bool:
    """Whether a job that existed at `known_s` (None: unknown) could end and be forgotten by Slurm before this
    look. (pure)

    The two times may come from two hosts: if their clocks differ by that much, the answer is yes.
    """
    return known_s is None or abs(looked_s - known_s) >= min_job_age_s
