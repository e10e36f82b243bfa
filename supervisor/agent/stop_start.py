"""End a live start: at once, or at its next checkpoint. (I/O)

`stop` goes from gentle to hard. It asks once for an emergency checkpoint where most of the start is alive
(`policy.save_request`), then cancels the steps, after which most scripts end by themselves, then sends TERM
and KILL to the script's process group. batch.sh sees the end of the script and asks the agent what comes
next, even if the script exits 0. Each effect is journalled before and after.

`Boundary` waits for the next checkpoint of a start that shall be ended in good order. Its users are:
- `Notice`: preemption that shows only in the job log. Normally the supervisor sees the preemption in Slurm
  and asks the script to save. The supervisor may poll rarely or be gone, and the grace time is short. When
  slurmstepd logs a cancelled step (TERM to the tasks) and the start lives on, the agent gives the supervisor
  time to ask, then queries Slurm once and asks the script itself. Slurm ends the job. Where no supervisor
  lives, the agent asks Slurm by itself now and then (`unattended`).
- `Drained`: somebody drained nodes that this start uses. The supervisor leaves the request in the attempt's
  folder (`flag_files`), because only the agent acts inside a live allocation. The agent asks for a checkpoint
  and ends the start once the checkpoint is complete and the ladder would swap in spares now; recovery then
  goes on as after a fault. A preemption and a lost node (`removed_nodes`) take precedence. If nothing is
  saved or no spare is there, the start goes on and the agent journals why; the supervisor may then start a
  new job.
- `Slow`: a straggler is replaced by a spare at the next checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ftrun.hooks.checkpoints import names as checkpoints_names
from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.commands.steps import StepRow
from ftrun.supervisor.agent.context import AgentContext, Suspicion, log_line
from ftrun.supervisor.agent.removed_nodes import RemovedNodes
from ftrun.supervisor.agent.start_monitor import HangMonitor, StartMonitor
from ftrun.supervisor.agent.unattended import UnattendedJob
from ftrun.supervisor.config.settings import number_of, text_of
from ftrun.supervisor.diagnosis import suspicions
from ftrun.supervisor.model.types import FaultClass
from ftrun.supervisor.policy import save_request
from ftrun.supervisor.policy.save_request import STEPS_CANCELLED, Occasion
from ftrun.supervisor.store import checkpoints, flag_files, submission_context
from ftrun.supervisor.store.flag_files import LeaveRequest

OWN_STEPS = "ftrun"
"""Name of the steps that ftrun itself creates to look after the nodes; they are not the script's."""

STEPS_END_S = 8.0
LOST_END_S = 0.2  # srun would wait for the lost node, up to a minute; slower processes are swept
SIGHT_EVERY_S = 5.0  # between scans of the checkpoint folder while nothing is urgent
WRITING_EVERY_S = 0.5  # while a new one is being written
TERM_S = 10.0
KILL_S = 10.0

SUPERVISORS_S = 6.0  # the supervisor, which polls every few seconds, has so long to ask first
LOOK_EVERY_S = 3.0  # the request is on the shared file system


def stop(ctx: AgentContext, monitor: StartMonitor, found: Suspicion, settings: Mapping[str, Any]) -> None:
    """End the start; returns when it is over or nothing is left to try. Raises OSError (journal), GivenUp."""
    number = monitor.started.number
    ctx.journal.record("start.end.intended", why=found.diagnosis.title, logs=dict(monitor.note_end()))
    ctx.channel.ending(number)
    if not suspicions.is_planned(found.diagnosis):  # a planned end comes just after a save
        _emergency_save(ctx, monitor, found, settings)
    if ctx.channel.over(number) is not None:
        return
    lost = found.diagnosis.signature == suspicions.LOST
    if cancel_steps(ctx) and _over_within(ctx, number, LOST_END_S if lost else STEPS_END_S):
        return
    for name, wait_s in (("TERM", TERM_S), ("KILL", KILL_S)):
        if ctx.channel.over(number) is not None:
            return
        ctx.journal.record("script.end.intended", signal=name, pid=monitor.started.pid)
        ctx.journal.act("script.end", partial(ctx.signal, monitor.started.pid, name))
        ctx.journal.record("script.end.done", signal=name)
        if _over_within(ctx, number, wait_s):
            return
    log_line(f"start {number}: it does not end")


def cancel_steps(ctx: AgentContext) -> bool:
    """Cancel all steps of the script; True if there were any. If Slurm does not answer, ending the script
    must do.
    """
    try:
        running = script_steps(ctx.steps.steps(ctx.where.job))
    except SlurmError as error:
        log_line(f"steps unknown: {error.message}")
        return False
    if not running:
        return False
    names = [step.id for step in running]
    ctx.journal.record("steps.cancel.intended", steps=names)
    ctx.journal.act("steps.cancel", lambda: _cancel(ctx, names))
    ctx.journal.record("steps.cancel.done", steps=names)
    return True


def script_steps(steps: tuple[StepRow, ...]) -> tuple[StepRow, ...]:
    """The steps of the script among these. (pure)"""
    return tuple(step for step in steps if step.name != OWN_STEPS)


def _cancel(ctx: AgentContext, names: list[str]) -> None:
    for name in names:
        try:
            ctx.steps.end_step(name)
        except SlurmError as error:
            log_line(f"step {name}: {error.message}")


def _over_within(ctx: AgentContext, number: int, limit_s: float) -> bool:
    until_s = ctx.clock.mono_s() + limit_s
    while ctx.channel.over(number) is None:
        if ctx.clock.mono_s() > until_s:
            return False
        ctx.rest(0.05)
    return True


# ---------------------------------------------------------------------- the dying gasp


def _emergency_save(
    ctx: AgentContext, monitor: StartMonitor, found: Suspicion, settings: Mapping[str, Any]
) -> None:
    """Ask the surviving processes for an emergency checkpoint, once, and wait a short time for it."""
    nodes = monitor.started.nodes
    signal_name, to_script = save_request.parse_save_signal(text_of(settings, "save-signal"))
    gone = [node for node in nodes if node in found.diagnosis.nodes]
    reads = found.diagnosis.fault is not FaultClass.HANG  # a process that hangs reads no file
    wanted, why = save_request.emergency_save(
        total=len(nodes),
        alive=len(nodes) - len(gone),
        listens=bool(signal_name)
        or (reads and flag_files.script_reads_save_file(ctx.where.place, monitor.started.token)),
        asked=False,
        gasp_wait_s=number_of(settings, "fault-save-timeout"),
    )
    if not wanted:
        log_line(f"no last checkpoint is asked for: {why}")
        return
    wait_s = number_of(settings, "fault-save-timeout")
    known = checkpoint_state(ctx, monitor, settings, ctx.clock.mono_s(), None)
    ask = save_request.SaveRequest(save_request.Occasion.GASP, known[0], wait_s)
    ctx.journal.record("save.asked", occasion="gasp", why=why, known=known[0].to_json(), wait_s=wait_s)
    token = _new_token(ctx, monitor)
    try:
        ctx.journal.act("save", lambda: _ask(ctx, monitor, token, signal_name, to_script=to_script))
        began_s = ctx.clock.mono_s()
        seen = known
        while True:
            monitor.look()
            seen = checkpoint_state(ctx, monitor, settings, ctx.clock.mono_s(), seen)
            verdict = save_request.save_verdict(ask, seen[0], ctx.clock.mono_s() - began_s)
            if verdict.end or ctx.channel.over(monitor.started.number) is not None:
                break
            ctx.rest(0.5)
    finally:
        flag_files.withdraw_save(ctx.where.run_dir, token)
    ctx.journal.record("save.done" if verdict.saved else "save.missed", why=verdict.reason)


class CheckpointWait:
    """Waits for the next checkpoint of a live start. Asks for one if the script can be asked; otherwise waits
    as long as it takes.
    """

    def __init__(
        self,
        ctx: AgentContext,
        monitor: StartMonitor,
        settings: Mapping[str, Any],
        occasion: save_request.Occasion = save_request.Occasion.SWAP,
        why: str = "a spare is to take a slow node's place",
    ) -> None:
        self._ctx, self._monitor, self._settings = ctx, monitor, settings
        self._warned = False
        self._began_s = self._looked_s = ctx.clock.mono_s()
        self._seen = checkpoint_state(ctx, monitor, settings, self._began_s, None)
        signal_name, to_script = save_request.parse_save_signal(text_of(settings, "save-signal"))
        asks = bool(signal_name) or flag_files.script_reads_save_file(ctx.where.place, monitor.started.token)
        wait_s = number_of(settings, "save-wait") if asks else None
        self._ask = save_request.SaveRequest(occasion, self._seen[0], wait_s)
        self._token = _new_token(ctx, monitor)
        if asks:
            known = self._seen[0].to_json()
            ctx.journal.record("save.asked", occasion=occasion.value, why=why, known=known, wait_s=wait_s)
            ctx.journal.act("save", lambda: _ask(ctx, monitor, self._token, signal_name, to_script=to_script))

    def look(self) -> save_request.SaveVerdict:
        """Whether the checkpoint is complete, or will not come. Raises OSError (journal)."""
        mono_s, seen = self._ctx.clock.mono_s(), self._seen[0]
        fresh = save_request.is_new(self._ask.known, seen) or self._monitor.memory.saved_step != seen.logged
        if mono_s - self._looked_s < (WRITING_EVERY_S if fresh else SIGHT_EVERY_S):
            return save_request.SaveVerdict(False, False, "a new checkpoint is awaited")
        self._looked_s = mono_s
        self._seen = checkpoint_state(self._ctx, self._monitor, self._settings, mono_s, self._seen)
        verdict = save_request.save_verdict(self._ask, self._seen[0], mono_s - self._began_s)
        if verdict.still_written and not self._warned:
            self._warned = True
            log_line(save_request.still_written_warning(verdict))
        if verdict.end and self._ask.wait_s is not None:
            self.close()
            self._ctx.journal.record("save.done" if verdict.saved else "save.missed", why=verdict.reason)
        return verdict

    def close(self) -> None:
        """Withdraw the request, also when the start has ended meanwhile."""
        if self._ask.wait_s is not None:
            flag_files.withdraw_save(self._ctx.where.run_dir, self._token)


def checkpoint_state(
    ctx: AgentContext,
    monitor: StartMonitor,
    settings: Mapping[str, Any],
    mono_s: float,
    before: tuple[save_request.CheckpointState, float] | None,
) -> tuple[save_request.CheckpointState, float]:
    """What is known of checkpoints now, and since when (monotonic) it has been so."""
    marker = text_of(settings, "checkpoint-marker")
    path = checkpoints.newest_checkpoint(
        text_of(settings, "checkpoint"), marker=marker, cwd=submission_context.cwd(ctx.where.run_dir)
    )
    stamp = checkpoints.content_stamp(path) if path else ""
    same = before is not None and (before[0].path, before[0].stamp) == (path, stamp)
    since_s = before[1] if same and before is not None else mono_s
    step = checkpoints_names.step_of(path) if path else None
    cwd, logged = submission_context.cwd(ctx.where.run_dir), monitor.memory.saved_step
    pattern = text_of(settings, "checkpoint")
    older = "" if marker else checkpoints.overtaken_checkpoint(path, pattern, cwd=cwd)
    overtaken = save_request.CheckpointState(
        older, checkpoints.content_stamp(older), checkpoints_names.step_of(older)
    )
    now = save_request.CheckpointState(
        path,
        stamp,
        step,
        logged,
        mono_s - since_s,
        marked=bool(marker),
        overtaken=overtaken if older else None,
    )
    return now, since_s


def _new_token(ctx: AgentContext, monitor: StartMonitor) -> str:
    return f"{monitor.started.token} {ctx.clock.now_s():.3f}"


def _ask(ctx: AgentContext, monitor: StartMonitor, token: str, signal_name: str, *, to_script: bool) -> None:
    flag_files.request_save(ctx.where.run_dir, token, beside=True)
    if signal_name and to_script:
        with contextlib.suppress(ProcessLookupError, AttributeError):
            os.kill(monitor.started.pid, getattr(signal, f"SIG{signal_name}"))
    elif signal_name:
        try:
            for step in script_steps(ctx.steps.steps(ctx.where.job)):
                ctx.steps.end_step(step.id, signal=signal_name)
        except SlurmError as error:
            log_line(f"{signal_name} could not be sent: {error.message}")


class PreemptionNotice:
    """Watches one start for a preemption that nobody else handles."""

    def __init__(
        self, ctx: AgentContext, monitor: StartMonitor, settings: Mapping[str, Any], unattended: UnattendedJob
    ) -> None:
        self._ctx, self._monitor, self._settings = ctx, monitor, settings
        self._unattended = unattended
        self._seen_s: float | None = None
        self._over = False
        self._boundary: CheckpointWait | None = None

    def look(self) -> None:
        """Ask the script once to save, if Slurm preempts the job and nobody has asked. Raises OSError
        (journal), GivenUp.
        """
        if self._boundary is not None:
            if self._boundary.look().end:
                self._boundary = None
            return
        report, mono_s = self._monitor.memory.report, self._ctx.clock.mono_s()
        if self._over:
            return
        if self._seen_s is None:
            if self._unattended.cut_short:  # nobody else asks first
                self._seen_s = mono_s - SUPERVISORS_S
            elif report and any(one.signature == STEPS_CANCELLED for one in report.evidence):
                self._seen_s = mono_s
        elif mono_s - self._seen_s >= SUPERVISORS_S:
            self._over = True
            if self._preempted() and not self._asked():
                why = "Slurm wants the nodes for another job"
                self._boundary = CheckpointWait(
                    self._ctx, self._monitor, self._settings, Occasion.PREEMPT, why
                )

    def _preempted(self) -> bool:
        job = self._ctx.where.job
        try:
            row = self._ctx.cluster.jobs((job,)).get(job)
            details = self._ctx.cluster.details(job) if row is not None and row.is_cut_short else None
        except SlurmError as error:
            log_line(f"a step was cancelled, and Slurm does not say why: {error.message}")
            return False
        return details is not None and details.is_preempted  # otherwise its end is nearer for another reason

    def _asked(self) -> bool:
        told, where = self._ctx.journal.run().leaving, self._ctx.where
        place = (told.get("occasion"), told.get("attempt"), told.get("launch"))
        return place == (Occasion.PREEMPT.value, where.attempt, where.launch)

    def close(self) -> None:
        """Withdraw the request."""
        if self._boundary is not None:
            self._boundary.close()
            self._boundary = None


class DrainMonitor:
    """Watches one start for drained nodes.

    `against` says why no spare can replace these nodes now ("" = one can); its second argument are spares
    that are drained themselves.
    """

    def __init__(
        self,
        ctx: AgentContext,
        monitor: StartMonitor,
        settings: Mapping[str, Any],
        against: Callable[[Suspicion, tuple[str, ...]], str],
    ) -> None:
        self._ctx, self._monitor, self._settings, self._against = ctx, monitor, settings, against
        self._next_s = 0.0
        self._new_token: LeaveRequest | None = None
        self._boundary: CheckpointWait | None = None
        self._answered: set[str] = set()
        self._unattended = UnattendedJob(ctx, monitor.started, settings)
        self._notice = PreemptionNotice(ctx, monitor, settings, self._unattended)
        self._taken = RemovedNodes(ctx, monitor.started)

    @property
    def waits(self) -> bool:
        """Nodes shall be replaced at the next checkpoint."""
        return self._new_token is not None

    def look(self) -> Suspicion | None:
        """Why to end this start now; None = go on. Raises OSError (journal), GivenUp."""
        self._unattended.look()
        self._notice.look()
        if (lost := self._taken.look()) is not None:
            return lost
        where, mono_s = self._ctx.where, self._ctx.clock.mono_s()
        if mono_s >= self._next_s:
            self._next_s = mono_s + LOOK_EVERY_S
            found = flag_files.read_leave(where.place, where.launch)
            if found is not None and (found.token in self._answered or not self._used_nodes(found)):
                found = None
            if found is None or (self._new_token is not None and found.token != self._new_token.token):
                self._withdraw()
            self._new_token = found
        if self._new_token is None:
            return None
        if self._boundary is None:
            self._boundary = CheckpointWait(
                self._ctx, self._monitor, self._settings, Occasion.DRAIN, self._new_token.why
            )
        verdict = self._boundary.look()
        if not verdict.end:
            return None
        found = flag_files.read_leave(where.place, where.launch)
        if found is None or found.token != self._new_token.token:  # the request changed since the last look
            self._withdraw()
            self._new_token = None
            return None
        return self._decide_move(self._new_token, verdict.reason, saved=verdict.saved)

    def _decide_move(self, wish: LeaveRequest, reason: str, *, saved: bool) -> Suspicion | None:
        self._answered.add(wish.token)
        self._new_token = self._boundary = None
        nodes = self._used_nodes(wish)
        found = Suspicion(suspicions.drained_suspicion(nodes, f"{', '.join(nodes)}: {wish.why}"), 0.0)
        out = tuple(node for node in wish.aside if node not in self._monitor.started.nodes)
        why = self._against(found, out) if saved else reason
        if not why:
            return found
        log_line(f"{', '.join(nodes)} stays: {why}")
        self._ctx.journal.record("start.stays", token=wish.token, nodes=list(nodes), why=why, saved=saved)
        return None

    def _used_nodes(self, wish: LeaveRequest) -> tuple[str, ...]:
        return tuple(node for node in self._monitor.started.nodes if node in wish.nodes)

    def close(self) -> None:
        """Withdraw all requests."""
        self._withdraw()
        self._notice.close()

    def _withdraw(self) -> None:
        if self._boundary is not None:
            self._boundary.close()
            self._boundary = None


class StragglerSwap:
    """Watches one start for a straggler to replace. `against` says why no spare can replace it now ("" = one
    can).
    """

    def __init__(
        self,
        ctx: AgentContext,
        monitor: StartMonitor,
        settings: Mapping[str, Any],
        hangs: HangMonitor,
        against: Callable[[Suspicion], str],
    ) -> None:
        self._ctx, self._monitor, self._settings = ctx, monitor, settings
        self._hangs, self._against = hangs, against
        self._boundary: CheckpointWait | None = None

    @property
    def waits(self) -> bool:
        """A node shall be replaced at the next checkpoint."""
        return self._hangs.swap is not None

    def look(self) -> Suspicion | None:
        """Why to end this start now; None = go on. Raises OSError (journal), GivenUp."""
        swap = self._hangs.swap
        if swap is None:
            self._boundary = None
            return None
        wanted = Suspicion(suspicions.slow_suspicion(swap.node, swap.reason), 0.0)
        if self._boundary is None:
            self._boundary = CheckpointWait(self._ctx, self._monitor, self._settings)
        verdict = self._boundary.look()
        if not verdict.end:
            return None
        self._hangs.swap = None
        if (why := self._against(wanted) if verdict.saved else verdict.reason) != "":
            log_line(f"{wanted.diagnosis.nodes[0]} stays: {why}")
            return None
        return wanted

    def close(self) -> None:
        """Withdraw the request."""
        if self._boundary is not None:
            self._boundary.close()
            self._boundary = None
