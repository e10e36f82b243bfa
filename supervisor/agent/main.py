"""Entry point of the agent: it runs beside the user's script on the batch node, for one launch. (I/O)

batch.sh starts the agent and asks it after each failed start what to do next. The agent may be killed at any
moment; the job then ends as it would without an agent. Its only obligation is an answer in time, and the
watchdog (the main thread) guarantees that one. The watchdog touches only files on the node and the clock. It
shows batch.sh that the agent is alive, exits when batch.sh is gone, and answers `end` when the worker thread
has stalled, crashed or cannot write its journal. After such an answer the worker does nothing more. The agent
ignores signals that are sent to the job; its child processes do not inherit that.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable

from ftrun.hooks.runtime.parent import Parent
from ftrun.slurm.client import nodeset
from ftrun.slurm.commands.cluster import CommandCluster
from ftrun.slurm.commands.spanning import SpanningSteps
from ftrun.slurm.commands.steps import CommandSteps
from ftrun.supervisor.agent import checkpoint_reader
from ftrun.supervisor.agent.batch_channel import BatchChannel
from ftrun.supervisor.agent.context import (
    AgentContext,
    AgentJournal,
    GivenUp,
    JournalClosed,
    LaunchIdentity,
    log_line,
)
from ftrun.supervisor.agent.slurm_answers import unanswered_message, with_failures_reported
from ftrun.supervisor.agent.start_loop import StartLoop
from ftrun.supervisor.config import recovery_order
from ftrun.supervisor.store import run_dir
from ftrun.supervisor.store.crash_points import crash_plan
from ftrun.supervisor.store.lease import Clock, SystemClock

BEAT_EVERY_S = 1.0
STANDSTILL_S = 45.0
"""The worker may stall so long while batch.sh waits for an answer: longer than any call to Slurm."""

SLURM_TIMEOUT_S = 10.0
SUBMIT_TIMEOUT_S = 20.0  # for a companion, while the script may be running


def main(words: list[str] | None = None) -> int:
    """Run to the end of the launch. Returns the exit status, which batch.sh ignores."""
    parent, asked = Parent(), _arguments().parse_args(words)
    _ignore_signals()
    channel = BatchChannel(asked.talk)
    shared = Watchdog(SystemClock())
    worker = threading.Thread(
        target=run_worker,
        args=(lambda: _build_context(asked, channel, shared.clock), channel, shared),
        daemon=True,
    )
    worker.start()
    while worker.is_alive():
        if parent.is_gone:
            break
        if not shared.watch(channel):
            break
        worker.join(BEAT_EVERY_S)
    sys.stderr.flush()
    os._exit(0)  # a worker blocked in a file system would block a normal exit


class Watchdog:
    """What the watchdog (main thread) and the worker thread share."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.ctx: AgentContext | None = None
        self.began_s = clock.mono_s()

    def watch(self, channel: BatchChannel) -> bool:
        """One look of the watchdog: write the heartbeat. False once it has answered instead of the worker."""
        with contextlib.suppress(OSError):  # no space for a heartbeat: batch.sh rightly takes us for dead
            channel.beat()
        if not self.is_stalled(channel):
            return True
        log_line(f"nothing has moved for {self._still_s():.0f} s: the job ends as its script did")
        self.give_up(channel)
        return False

    def unanswered_start(self, channel: BatchChannel) -> int:
        """The failed start for which batch.sh waits for an answer; 0 = none."""
        number = 1
        while channel.over(number) is not None:
            if channel.asked(number) and not channel.answered(number):
                return number
            number += 1
        return 0

    def is_stalled(self, channel: BatchChannel) -> bool:
        """An answer is due, and the worker has made no progress for long."""
        return self._still_s() > STANDSTILL_S and self.unanswered_start(channel) > 0

    def _still_s(self) -> float:
        """How long the worker has made no progress."""
        moved_s = self.ctx.alive_s if self.ctx is not None else self.began_s
        return self.clock.mono_s() - moved_s

    def give_up(self, channel: BatchChannel) -> None:
        """Answer `end` instead of the worker, which does nothing more."""
        if self.ctx is not None:
            self.ctx.given_up = True
        number = self.unanswered_start(channel)
        if number:
            with contextlib.suppress(OSError):
                channel.answer(number)


def run_worker(opened: Callable[[], AgentContext], channel: BatchChannel, shared: Watchdog) -> None:
    """The worker thread: everything except the watchdog."""
    try:
        shared.ctx = opened()
        _open_loop(shared.ctx).run()
    except GivenUp:
        return
    except Exception:  # noqa: BLE001  our own defect: it may cost the ladder, never the job
        log_line(traceback.format_exc())
        shared.give_up(channel)


def _build_context(asked: argparse.Namespace, channel: BatchChannel, clock: Clock) -> AgentContext:
    where = LaunchIdentity(
        run_dir=asked.run_dir,
        place=asked.place,
        attempt=asked.attempt,
        launch=asked.launch,
        job=asked.job,
        cluster=asked.cluster,
        node=os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0],
        nodes=nodeset.expand(os.environ.get("SLURM_JOB_NODELIST", "")),
    )
    holder: list[AgentContext] = []

    def may_write() -> None:
        if holder:
            holder[0].alive()

    journal = AgentJournal(
        where.run_dir,
        where.place,
        attempt=where.attempt,
        launch=where.launch,
        job=where.job,
        may_write=may_write,
        crash=crash_plan(os.environ.get("FTRUN_AGENT_CRASH_AT", "")),
    )
    told: list[str] = []

    def tell(words: str) -> None:
        if told:
            return
        told.append(words)
        message = unanswered_message(where.node, words)
        log_line(message)
        with contextlib.suppress(OSError, JournalClosed):
            journal.record("slurm.unanswered", message=message)

    holder.append(
        AgentContext(
            where,
            channel,
            journal,
            with_failures_reported(
                CommandCluster(timeout_s=SLURM_TIMEOUT_S, submit_timeout_s=SUBMIT_TIMEOUT_S), tell
            ),
            SpanningSteps(
                with_failures_reported(CommandSteps(timeout_s=SLURM_TIMEOUT_S), tell),
                where.job,
                lambda: (*holder[0].spans, *holder[0].coming),
            ),
            clock,
            reader=checkpoint_reader.start_reader,
        )
    )
    return holder[0]


def _open_loop(ctx: AgentContext) -> StartLoop:
    """Read the run and write the first record. Raises what reading the journal of the run raises."""
    run = ctx.journal.run()
    settings = dict(run.settings)
    _install_node_tools(ctx.where.home)
    off = next((one.launch.ladder_off for one in reversed(run.attempts) if one.launch.ladder_off), "")
    if not ctx.where.nodes:
        off = off or "the nodes of the job are not known"
    first = ctx.channel.started(1)
    active = first.nodes if first is not None else ()
    ctx.journal.record(
        "agent.opened",
        pid=os.getpid(),
        host=ctx.where.node,
        nodes=list(ctx.where.nodes),
        active=list(active),
        spares=[node for node in ctx.where.nodes if active and node not in active],
        rungs=[rung.value for rung in recovery_order.rung_rules_from(settings).orders[""]],
        off=off,
    )
    return StartLoop(ctx, settings, off=off)


def _install_node_tools(home: str) -> None:
    """Install the node tools where no supervisor has done so; without them no node can be swept."""
    if not os.path.exists(os.path.join(home, run_dir.TOOLS_LINK)):
        from ftrun.supervisor.store import node_tools

        with contextlib.suppress(OSError):
            node_tools.install_node_tools(home)


def _ignore_signals() -> None:
    """Ignore signals: they are meant for the script. A handler of our own, because SIG_IGN is inherited by
    child processes.
    """
    kept = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGFPE, signal.SIGILL}
    kept |= {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGTRAP}
    for number in signal.valid_signals() - kept:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, lambda *_: None)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ftrun-agent", description="Started by batch.sh beside a job's script."
    )
    for name in ("run-dir", "job", "cluster", "talk", "place"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--launch", type=int, required=True)
    return parser


if __name__ == "__main__":
    os.umask(0o077)  # the job has the umask of the user
    sys.exit(main())
