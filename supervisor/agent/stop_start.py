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

from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.commands.steps import StepRow
from ftrun.supervisor.agent import batch_channel
from ftrun.supervisor.agent.context import AgentContext, Suspicion, log_line
from ftrun.supervisor.agent.removed_nodes import RemovedNodes
from ftrun.supervisor.agent.start_monitor import HangMonitor, StartMonitor
from ftrun.supervisor.agent.unattended import UnattendedJob
from ftrun.supervisor.config.settings import number_of, text_of
from ftrun.supervisor.diagnosis import suspicions
from ftrun.supervisor.model.types import CheckpointState, FaultClass
from ftrun.supervisor.policy import save_request
from ftrun.supervisor.policy.save_request import STEPS_CANCELLED, Occasion
from ftrun.supervisor.store import checkpoints, flag_files, submission_context
from ftrun.supervisor.store.flag_files import LeaveRequest

OWN_STEPS = "ftrun"
"""Name of the steps that ftrun itself creates to look after the nodes; they are not the script's."""

STEPS_END_S = 8.0
LOST_END_S = 0.2  # slower processes are swept
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
        if lost and name == "TERM":
            _kill_sruns(ctx, monitor.started.pid)
        ctx.journal.record("script.end.intended", signal=name, pid=monitor.started.pid)
        ctx.journal.act("script.end", partial(ctx.signal, monitor.started.pid, name))
        ctx.journal.record("script.end.done", signal=name)
        if _over_within(ctx, number, wait_s):
            return
    log_line(f"start {number}: it does not end")


def _kill_sruns(ctx: AgentContext, script_pid: int) -> None:
    """End the script's sruns. Their steps are cancelled, but they would wait for the lost node, KillWait and
    two seconds more, and the script for them.
    """
    for pid in batch_channel.running_sruns(script_pid, ctx.where.job):
        ctx.journal.record("script.end.intended", signal="KILL", pid=pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        ctx.journal.record("script.end.done", signal="KILL")


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
    gone = [node for node in nodes if node in found.diagnosis.nodes]
    # A process that hangs, or waits for a lost node, reads no file.
    reads = found.diagnosis.fault is not FaultClass.HANG and found.diagnosis.signature != suspicions.LOST
    wanted, why = save_request.emergency_save(
        total=len(nodes),
        alive=len(nodes) - len(gone),
        listens=_listens(ctx, monitor, settings, reads=reads),
        gasp_wait_s=number_of(settings, "fault-save-timeout"),
    )
    if not wanted:
        log_line(f"no last checkpoint is asked for: {why}")
        return
    wait = CheckpointWait(ctx, monitor, settings, Occasion.GASP, why)
    with contextlib.closing(wait):
        while True:
            monitor.look()
            verdict = wait.look()
            if verdict.end:
                return
            if ctx.channel.over(monitor.started.number) is not None:
                break
            ctx.rest(0.5)
    ctx.journal.record("save.missed", why=verdict.reason)


class CheckpointWait:
    """Waits for the next checkpoint of a live start. Asks for one if the script can be asked; otherwise waits
    as long as it takes.
    """

    def __init__(
        self,
        ctx: AgentContext,
        monitor: StartMonitor,
        settings: Mapping[str, Any],
        occasion: Occasion,
        why: str,
    ) -> None:
        self._ctx, self._monitor, self._settings = ctx, monitor, settings
        self._warned = False
        self._watch = checkpoints.CheckpointWatch()
        self._gasp = occasion is Occasion.GASP
        self._seen = known = checkpoint_state(ctx, monitor, settings, self._watch)
        asks = self._gasp or _listens(ctx, monitor, settings)
        wait_s = number_of(settings, "fault-save-timeout" if self._gasp else "save-wait") if asks else None
        self._request = save_request.SaveRequest(occasion, known, wait_s)
        self._token = f"{monitor.started.token} {ctx.clock.now_s():.3f}"
        if asks:
            ctx.journal.record(
                "save.asked", occasion=occasion.value, why=why, known=known.to_json(), wait_s=wait_s
            )
            ctx.journal.act("save", self._ask)
        self._began_s = self._looked_s = ctx.clock.mono_s()

    def _ask(self) -> None:
        ctx, pid = self._ctx, self._monitor.started.pid
        name, to_script = save_request.parse_save_signal(text_of(self._settings, "save-signal"))
        flag_files.request_save(ctx.where.run_dir, self._token, beside=True)
        if name and to_script:
            with contextlib.suppress(ProcessLookupError, AttributeError):
                os.kill(pid, getattr(signal, f"SIG{name}"))
        elif name:
            try:
                for step in script_steps(ctx.steps.steps(ctx.where.job)):
                    ctx.steps.end_step(step.id, signal=name)
            except SlurmError as error:
                log_line(f"{name} could not be sent: {error.message}")

    def look(self) -> save_request.SaveVerdict:
        """Whether the checkpoint is complete, or will not come. Raises OSError (journal)."""
        mono_s, seen = self._ctx.clock.mono_s(), self._seen
        fresh = (
            save_request.is_new(self._request.known, seen) or self._monitor.memory.saved_step != seen.logged
        )
        every_s = 0.0 if self._gasp else WRITING_EVERY_S if fresh else SIGHT_EVERY_S
        if mono_s - self._looked_s < every_s:
            return save_request.SaveVerdict(False, False, "a new checkpoint is awaited")
        self._looked_s = mono_s
        self._seen = checkpoint_state(self._ctx, self._monitor, self._settings, self._watch)
        verdict = save_request.save_verdict(
            self._request, self._seen, mono_s - self._began_s, diverged=self._monitor.memory.diverged
        )
        if verdict.still_written and not self._warned:
            self._warned = True
            log_line(save_request.still_written_warning(verdict))
        if verdict.end and self._request.wait_s is not None:
            self.close()
            self._ctx.journal.record("save.done" if verdict.saved else "save.missed", why=verdict.reason)
        return verdict

    def close(self) -> None:
        """Withdraw the request, also when the start has ended meanwhile."""
        if self._request.wait_s is not None:
            flag_files.withdraw_save(self._ctx.where.run_dir, self._token)


def checkpoint_state(
    ctx: AgentContext, monitor: StartMonitor, settings: Mapping[str, Any], watch: checkpoints.CheckpointWatch
) -> CheckpointState:
    """What is known of checkpoints now."""
    pattern, marker = text_of(settings, "checkpoint"), text_of(settings, "checkpoint-marker")
    cwd, logged = submission_context.cwd(ctx.where.run_dir), monitor.memory.saved_step
    path, mono_s = checkpoints.newest_checkpoint(pattern, marker=marker, cwd=cwd), ctx.clock.mono_s()
    return watch.look(path, pattern, marked=bool(marker), cwd=cwd, logged=logged, mono_s=mono_s)


def _listens(
    ctx: AgentContext, monitor: StartMonitor, settings: Mapping[str, Any], *, reads: bool = True
) -> bool:
    """Whether the script can be asked for a checkpoint: it handles a signal, or `reads` the file."""
    if save_request.parse_save_signal(text_of(settings, "save-signal"))[0]:
        return True
    return reads and flag_files.script_reads_save_file(ctx.where.place, monitor.started.token)


class _Watcher:
    """Watches one start, and may wait for its next checkpoint."""

    def __init__(self, ctx: AgentContext, monitor: StartMonitor, settings: Mapping[str, Any]) -> None:
        self._ctx, self._monitor, self._settings = ctx, monitor, settings
        self._wait: CheckpointWait | None = None

    def _checkpoint(self, occasion: Occasion, why: str) -> save_request.SaveVerdict:
        """Whether the next checkpoint is complete; the wait for it begins at the first call."""
        if self._wait is None:
            self._wait = CheckpointWait(self._ctx, self._monitor, self._settings, occasion, why)
        return self._wait.look()

    def close(self) -> None:
        """Withdraw the request."""
        if self._wait is not None:
            self._wait.close()
            self._wait = None


class PreemptionNotice(_Watcher):
    """Watches one start for a preemption that nobody else handles."""

    def __init__(
        self, ctx: AgentContext, monitor: StartMonitor, settings: Mapping[str, Any], unattended: UnattendedJob
    ) -> None:
        super().__init__(ctx, monitor, settings)
        self._unattended = unattended
        self._seen_s: float | None = None
        self._over = False

    def look(self) -> None:
        """Ask the script once to save, if Slurm preempts the job and nobody has asked. Raises OSError
        (journal), GivenUp.
        """
        if self._wait is not None:
            if self._wait.look().end:
                self._wait = None
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
                self._checkpoint(Occasion.PREEMPT, "Slurm wants the nodes for another job")

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


class DrainMonitor(_Watcher):
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
        super().__init__(ctx, monitor, settings)
        self._against = against
        self._next_s = 0.0
        self._request: LeaveRequest | None = None
        self._answered: set[str] = set()
        self._unattended = UnattendedJob(ctx, monitor.started, settings)
        self._notice = PreemptionNotice(ctx, monitor, settings, self._unattended)
        self._taken = RemovedNodes(ctx, monitor.started)

    @property
    def waits(self) -> bool:
        """Nodes shall be replaced at the next checkpoint."""
        return self._request is not None

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
            if found is None or (self._request is not None and found.token != self._request.token):
                super().close()
            self._request = found
        if self._request is None:
            return None
        verdict = self._checkpoint(Occasion.DRAIN, self._request.why)
        if not verdict.end:
            return None
        found = flag_files.read_leave(where.place, where.launch)
        if found is None or found.token != self._request.token:  # the request changed since the last look
            super().close()
            self._request = None
            return None
        return self._decide_move(self._request, verdict.reason, saved=verdict.saved)

    def _decide_move(self, wish: LeaveRequest, reason: str, *, saved: bool) -> Suspicion | None:
        self._answered.add(wish.token)
        self._request = self._wait = None
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
        super().close()
        self._notice.close()


class StragglerSwap(_Watcher):
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
        super().__init__(ctx, monitor, settings)
        self._hangs, self._against = hangs, against

    @property
    def waits(self) -> bool:
        """A node shall be replaced at the next checkpoint."""
        return self._hangs.swap is not None

    def look(self) -> Suspicion | None:
        """Why to end this start now; None = go on. Raises OSError (journal), GivenUp."""
        swap = self._hangs.swap
        if swap is None:
            self._wait = None
            return None
        wanted = Suspicion(suspicions.slow_suspicion(swap.node, swap.reason), 0.0)
        verdict = self._checkpoint(Occasion.SWAP, "a spare is to take a slow node's place")
        if not verdict.end:
            return None
        self._hangs.swap = None
        if (why := self._against(wanted) if verdict.saved else verdict.reason) != "":
            log_line(f"{wanted.diagnosis.nodes[0]} stays: {why}")
            return None
        return wanted
