"""Requests to the script of a live launch to save a checkpoint, by file, by signal or by Slurm. (I/O)

A request is an effect like any other: intent, act, fact. A supervisor that takes over in between repeats it,
which costs the script one more checkpoint at worst. The wait is measured by the clock of the process that
waits, so a takeover makes it longer and never shorter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.slurm.client.errors import RefusedForGood
from ftrun.supervisor.config.settings import number_of, text_of
from ftrun.supervisor.context.cluster_view import newest_checkpoint
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.model.types import CheckpointState
from ftrun.supervisor.policy import save_request
from ftrun.supervisor.policy.save_request import Occasion, SaveRequest, SaveVerdict
from ftrun.supervisor.store import checkpoints, flag_files, run_dir, submission_context

SLURM = "slurm"


def request_checkpoint(
    ctx: RunContext,
    occasion: Occasion,
    wait_s: float | None,
    *,
    by_signal: bool = True,
    halt: str = "",
    known: Mapping[str, Any] | None = None,
    unasked: bool = True,
    by: str = "",
    nodes: Sequence[str] = (),
) -> None:
    """Ask the present launch to save a checkpoint, and wait for it for `wait_s` seconds (None = without
    limit).

    `known` is the state before, if it is not the present one; `unasked`: the script may save by itself; `by`:
    SLURM if Slurm asks; `nodes` are the nodes that the job is to leave. Raises SlurmError: then the intent
    stays and `awaited` asks again.
    """
    signal = text_of(ctx.settings, "save-signal") if by_signal else ""
    ctx.fresh()
    withdraw_node_request(ctx)
    ctx.record(
        "leave.intended",
        token=str(int(ctx.snapshot.now_s * 1000)),
        occasion=occasion.value,
        wait_s=wait_s,
        signal=signal,
        halt=halt,
        known=known if known is not None else newest_sight(ctx).to_json(),
        unasked=unasked,
        by=by,
        nodes=list(nodes),
    )
    if by != SLURM:
        _deliver_request(ctx)


def _deliver_request(ctx: RunContext) -> None:
    """Write the file for scripts that poll, send the signal to scripts that handle it."""
    request = ctx.run.leaving
    try:
        ctx.act("save-now", lambda: flag_files.request_save(ctx.run_dir, request["token"]))
    except OSError as error:
        ctx.record(
            "warned", message=f"{ctx.run_dir}/{flag_files.SAVE_FILE} cannot be written: {error.strerror}"
        )
    name, to_script = save_request.parse_save_signal(request["signal"])
    if name:
        attempt, cluster = ctx.attempt, ctx.services.cluster
        jobs = (attempt.job,) if to_script else (attempt.job, *attempt.joined)

        def send() -> None:
            for job in jobs:
                cluster.cancel(job, signal=name, batch=to_script)

        try:
            ctx.act("signal", send)
        except RefusedForGood as error:
            ctx.record("warned", message=f"the signal {request['signal']} cannot be sent: {error.message}")
    ctx.record("leave.asked", token=request["token"])


def awaited_verdict(ctx: RunContext) -> SaveVerdict:
    """What has become of the requested checkpoint; the end of the wait is journalled, once. Raises
    SlurmError.
    """
    request = ctx.run.leaving
    if request["stage"] in ("saved", "missed"):
        return SaveVerdict(True, request["stage"] == "saved", str(request.get("why", "")))
    if request["stage"] == "intended" and request.get("by") != SLURM:
        _deliver_request(ctx)
    asking = SaveRequest(
        Occasion(request["occasion"]), CheckpointState.from_json(request["known"]), request["wait_s"]
    )
    now = newest_sight(ctx)
    waited_s = ctx.observations.stopwatches["save asked", request["token"]].held_s(ctx.snapshot.mono_s)
    verdict = save_request.save_verdict(asking, now, waited_s, diverged=ctx.observations.diverged)
    if not verdict.end:
        if verdict.still_written and ctx.observations.intervals["save warned", request["token"]].first():
            ctx.record("warned", message=save_request.still_written_warning(verdict))
        return verdict
    if verdict.saved:
        ctx.record("leave.saved", why=verdict.reason, path=verdict.path, waited_s=round(waited_s, 1))
    else:
        ctx.record("leave.missed", why=verdict.reason, waited_s=round(waited_s, 1))
        if asking.occasion is not Occasion.GASP:
            ctx.record("warned", message=f"attempt {ctx.attempt.number}: {verdict.reason}")
    withdraw_request(ctx)
    return verdict


def newest_sight(ctx: RunContext) -> CheckpointState:
    """The newest checkpoint as it is now, and for how long this process has seen it unchanged."""
    return ctx.observations.per_launch(checkpoints.CheckpointWatch).look(
        newest_checkpoint(ctx),
        text_of(ctx.settings, "checkpoint"),
        marked=bool(ctx.settings.get("checkpoint-marker")),
        set_aside=checkpoints.unchanged_since_set_aside(ctx.run.set_aside),
        cwd=submission_context.cwd(ctx.run_dir),
        logged=ctx.observations.saved_step,
        mono_s=ctx.snapshot.mono_s,
    )


def withdraw_request(ctx: RunContext) -> None:
    """Withdraw the request."""
    flag_files.withdraw_save(ctx.run_dir, str(ctx.run.leaving.get("token", "")))


def withdraw_node_request(ctx: RunContext) -> None:
    """Withdraw the request to the agent to leave nodes: the script gets another one."""
    flag_files.remove_leave(run_dir.attempt_dir(ctx.run_dir, ctx.attempt.number), ctx.attempt.launch.number)


def was_requested(ctx: RunContext, occasion: Occasion) -> bool:
    """Whether this launch was asked for a checkpoint on this occasion."""
    request, attempt = ctx.run.leaving, ctx.attempt
    place = (request.get("occasion"), request.get("attempt"), request.get("launch"))
    return place == (occasion.value, attempt.number, attempt.launch.number)


def save_wait_s(ctx: RunContext) -> float:
    """How long to wait for a new checkpoint."""
    return number_of(ctx.settings, "save-wait")


def handles_signal(ctx: RunContext) -> bool:
    """Whether the script is known to save on a signal."""
    return bool(ctx.settings.get("save-signal"))


def reads_save_file(ctx: RunContext) -> bool:
    """Whether the present start of the script polls the file of requests."""
    attempt = ctx.attempt
    token = f"{attempt.launch.number}.{attempt.launch.start.number}"
    return flag_files.script_reads_save_file(run_dir.attempt_dir(ctx.run_dir, attempt.number), token)
