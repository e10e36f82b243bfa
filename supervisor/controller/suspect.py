"""A live attempt that no agent looks after: when it is suspected, and what confirms the fault. (I/O)

Law P7. Slurm, a node or a process exit confirm a fault by themselves and end the launch without us. A fatal
line is no proof: users' programs print such lines and go on, as after a batch that did not fit, an upload
that failed or a helper that was killed. So a fatal line alone ends nothing. It makes the run suspect, and
while it is suspect, hang detection (`hang`, `telemetry.hang_watch`) needs less silence: `fault-grace` and
five median steps, if every rank is seen to wait. Signs of life are a step, a heartbeat, a changing stack,
CPU, file and accelerator activity and, for all but the surest evidence, output.

A step beyond all earlier ones clears the suspicion. A node that its monitor finds bad (`diagnosis.launch_monitor`) or
that does not respond to Slurm is confirmation: then `fault-grace` without any sign of life is enough. If the
script has ended by itself and its job does not end, the supervisor ends the job.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ftrun.slurm.client.cluster import JobState
from ftrun.supervisor.config.settings import number_of
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.controller import end_attempt, observe
from ftrun.supervisor.controller.hang import HangTarget, RemoteHangWatch
from ftrun.supervisor.diagnosis.launch_state import StallVerdict, exit_grace_s
from ftrun.supervisor.model.states import State
from ftrun.supervisor.model.timers import Interval, Stopwatch
from ftrun.supervisor.model.types import Diagnosis
from ftrun.supervisor.store import attempt_dir, run_dir
from ftrun.supervisor.telemetry import hang_rules
from ftrun.supervisor.telemetry.log_watcher import WatchReport

LOOK_EVERY_S = 2.0  # of the hang watch


@dataclass
class _OverdueJob:
    """The script of a suspected start is over, and its job is not."""

    over: Stopwatch = field(default_factory=Stopwatch)


@dataclass
class _HangWatch:
    """Of one start of the script."""

    afar: RemoteHangWatch | None = None
    looked: Interval = field(default_factory=Interval)


def judge_live_start(ctx: RunContext, report: WatchReport) -> None:
    """One pass over a live launch: suspect it or clear it, end it if it hangs. Raises OSError (journal),
    LeaseLost.
    """
    _update_suspicion(ctx, report)
    if ctx.run.state in (State.RUNNING, State.SUSPECT):
        _detect_hang(ctx, report)


def _update_suspicion(ctx: RunContext, report: WatchReport) -> None:
    """Suspect or clear the live attempt by its log. Does nothing while it does not run or cannot be read."""
    row = ctx.row()
    if not report.readable or report.behind or row is None or row.state is not JobState.RUNNING:
        ctx.observations.per_start(_OverdueJob).over.stop()
        return
    suspected = ctx.run.state is not State.RUNNING
    seen = observe.monitor_of(ctx).judge(ctx.snapshot.now_s, ctx.snapshot.mono_s, suspected=suspected)
    found = ctx.observations.suspicion
    if seen is StallVerdict.WELL:
        _clear(ctx, "what was seen is not fatal")
    elif seen is StallVerdict.WENT_ON:
        _clear(ctx, f"training went on to step {ctx.observations.step}")
    elif found is not None:
        if not suspected:
            cause = {"signature": found.signature, "title": found.title}
            ctx.record("fault.suspected", step=ctx.observations.step, **cause)
        _end_where_the_script_is_over(ctx, found)


def hand_over_to_agent(ctx: RunContext) -> None:
    """Clear what was suspected while the agent could not be seen.

    An agent that lives judges by itself (P8).
    """
    ctx.observations.per_start(_HangWatch).afar = None
    ctx.observations.per_start(_OverdueJob).over.stop()
    ctx.observations.suspicion = None
    _clear(ctx, "the agent beside the script lives: it judges")


def _end_where_the_script_is_over(ctx: RunContext, diagnosis: Diagnosis) -> None:
    """The script's own end confirms the suspicion.

    Its job should end soon after checks and hooks, else end it.
    """
    attempt, over = ctx.attempt, ctx.observations.per_start(_OverdueJob).over
    if attempt_dir.exit_record(ctx.run_dir, attempt.number, attempt.launch.number) is None:
        over.stop()
        return
    waited_s = over.held_s(ctx.snapshot.mono_s)
    if waited_s >= number_of(ctx.settings, "fault-grace") + exit_grace_s(ctx.settings):
        end_attempt.announce_end(
            ctx, f"{diagnosis.title}; its script ended {waited_s:.0f} s ago, and the job has not"
        )


def _clear(ctx: RunContext, why: str) -> None:
    if ctx.run.state is State.SUSPECT:
        ctx.record("fault.survived", why=why)


def _detect_hang(ctx: RunContext, report: WatchReport) -> None:
    seen, attempt = ctx.observations, ctx.attempt
    watch = seen.per_start(_HangWatch)
    if not watch.looked.due(ctx.snapshot.mono_s, LOOK_EVERY_S):
        return
    if watch.afar is None:
        watched = HangTarget(
            run_dir.attempt_dir(ctx.run_dir, attempt.number),
            f"{attempt.launch.number}.{attempt.launch.start.number}",
            attempt.used,
            tuple,
            lambda: observe.read_logs(ctx, fresh=True),
        )
        watch.afar = RemoteHangWatch(ctx, watched, hang_rules.hang_limits(ctx.settings, from_afar=True))
    lost = any(node in seen.silent for node in attempt.used)
    suspect = observe.monitor_of(ctx).suspect_limits(lost=lost, from_afar=True)
    over = attempt_dir.script_has_ended(ctx.run_dir, attempt.number, attempt.launch.number)
    verdict = watch.afar.look(report, over=over, suspect=suspect)
    if verdict is not None:
        end_attempt.announce_end(ctx, f"it hangs: {verdict.reason}")
