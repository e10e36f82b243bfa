"""A live attempt that looks broken: when it is suspected, and what confirms the fault. (I/O)

Law P7. Slurm, a node or a process exit confirm a fault by themselves and end the launch without us. A fatal
line is no proof: users' programs print such lines and go on, as after a batch that did not fit, an upload
that failed or a helper that was killed. So a fatal line alone ends nothing. It makes the run suspect, and
while it is suspect, hang detection (`hang`, `telemetry.hang_watch`) needs less silence: `fault-grace` and
five median steps, if every rank is seen to wait. Signs of life are a step, a heartbeat, a changing stack,
CPU, file and accelerator activity and, for all but the surest evidence, output.

A step beyond all earlier ones clears the suspicion. A node that its monitor finds bad (`gather_facts`) or
that does not respond to Slurm is confirmation: then `fault-grace` without any sign of life is enough. If the
script has ended by itself and its job does not end, the supervisor ends the job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftrun.slurm.client.cluster import JobState
from ftrun.supervisor.controller import end_attempt, gather_facts
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model.states import State
from ftrun.supervisor.model.timers import Stopwatch
from ftrun.supervisor.model.types import Diagnosis
from ftrun.supervisor.policy.stall import StallVerdict, assess_launch, exit_grace_s
from ftrun.supervisor.store import attempt_dir

if TYPE_CHECKING:
    from ftrun.supervisor.context.cluster_snapshot import ClusterSnapshot
    from ftrun.supervisor.context.run_context import RunContext
    from ftrun.supervisor.telemetry.log_watcher import WatchReport

__all__ = ["hand_over_to_agent", "update_suspicion"]


@dataclass
class _OverdueJob:
    """The script of a suspected start is over, and its job is not."""

    over: Stopwatch = field(default_factory=Stopwatch)


def update_suspicion(ctx: RunContext, snapshot: ClusterSnapshot, report: WatchReport) -> None:
    """Suspect or clear the live attempt by its log. Does nothing while it does not run or cannot be read."""
    row = ctx.row(snapshot)
    if not report.readable or report.behind or row is None or row.state is not JobState.RUNNING:
        ctx.observations.per_start(_OverdueJob).over.stop()
        return
    facts = gather_facts.facts_of_live(ctx, snapshot, report)
    diagnosis = diagnose(facts) if facts.evidence or facts.nodes.findings else None
    if report.evidence:
        ctx.observations.provisional = diagnosis
    seen = assess_launch(ctx.observations, diagnosis, suspected=ctx.run.state is not State.RUNNING)
    ctx.observations.suspicion = diagnosis if seen is StallVerdict.SUSPECT else None
    if seen is StallVerdict.WELL:
        _clear(ctx, "what was seen is not fatal")
    elif seen is StallVerdict.WENT_ON:
        _clear(ctx, f"training went on to step {ctx.observations.step}")
    elif diagnosis is not None:
        if ctx.run.state is State.RUNNING:
            cause = {"signature": diagnosis.signature, "title": diagnosis.title}
            ctx.record("fault.suspected", step=ctx.observations.step, **cause)
        _end_where_the_script_is_over(ctx, snapshot, diagnosis)


def hand_over_to_agent(ctx: RunContext) -> None:
    """Clear what was suspected while the agent could not be seen.

    An agent that lives judges by itself (P8).
    """
    ctx.observations.per_start(_OverdueJob).over.stop()
    ctx.observations.suspicion = None
    _clear(ctx, "the agent beside the script lives: it judges")


def _end_where_the_script_is_over(ctx: RunContext, snapshot: ClusterSnapshot, diagnosis: Diagnosis) -> None:
    """The script's own end confirms the suspicion.

    Its job should end soon after checks and hooks, else end it.
    """
    attempt, over = ctx.attempt, ctx.observations.per_start(_OverdueJob).over
    if attempt_dir.exit_record(ctx.run_dir, attempt.number, attempt.launch.number) is None:
        over.stop()
        return
    waited_s = over.held_s(snapshot.mono_s)
    if waited_s >= float(ctx.settings.get("fault-grace", 60.0)) + exit_grace_s(ctx.settings):
        end_attempt.announce_end(
            ctx, f"{diagnosis.title}; its script ended {waited_s:.0f} s ago, and the job has not"
        )


def _clear(ctx: RunContext, why: str) -> None:
    if ctx.run.state is State.SUSPECT:
        ctx.record("fault.survived", why=why)
