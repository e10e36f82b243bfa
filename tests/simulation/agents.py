"""An agent in a world of events: the real one, in a thread that runs only while everything else waits for it. (I/O)

How it thinks. The agent is written to block: it sleeps, and Slurm's answers take their time. So it has a thread; a lock hands it the baton when
its sleep is over, and another hands it back. Never do two threads run. Its sleeps are events of the launch's first
node: on a frozen node it does not wake, with the node it dies. A death is a sleep without an end: no `finally` of a process that was killed runs.

Handing over takes longer than most of what happens meanwhile. So who sleeps keeps the baton and runs the events until its own comes; only what may stand
still itself (`World.aside`: a supervisor, another agent) is left to the main thread, with the baton.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ftrun.slurm.client.cluster import SubmitRequest, Submitted
from ftrun.slurm.commands.spanning import SpanningSteps
from ftrun.supervisor.agent import main
from ftrun.supervisor.agent.batch_channel import BatchChannel
from ftrun.supervisor.agent.context import AgentContext, AgentJournal, JournalClosed, LaunchIdentity
from tests.fake_slurm.cluster import MemoryCluster
from tests.fake_slurm.records import Launch
from tests.fake_slurm.steps import MemorySteps
from tests.simulation import stacks

if TYPE_CHECKING:
    from tests.simulation.inside import Inside
    from tests.simulation.world import World

__all__ = ["Agent"]

OPENS_S = 0.4  # an interpreter with all modules


class _Unwound(BaseException):
    """The life is over: threads of agents that were killed in it may go."""


class _Clock:
    """Time as the agent's node tells it; a sleep hands back the baton."""

    def __init__(self, owner: Agent) -> None:
        self._owner = owner

    def now_s(self) -> float:
        """Unix seconds."""
        return self._owner.world.clock.now()

    def mono_s(self) -> float:
        """Seconds since boot."""
        return self._owner.world.clock.now() - self._owner.world.start_s + 500.0

    def sleep(self, seconds: float) -> None:
        """Wait until the event comes; never, if this agent or its node dies meanwhile."""
        self._owner.sleep(seconds)


class _Shared(main.Watchdog):
    """What gives itself up without standing still has made a mistake."""

    owner: Agent

    def give_up(self, talk: BatchChannel) -> None:
        """See `agent.Shared`."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, OSError | JournalClosed):
            self.owner.world.laws.breach(f"the agent made a mistake: {type(error).__name__}: {error}")
        super().give_up(talk)


class _Book(AgentJournal):
    """A journal in a folder that the node may not see."""

    owner: Agent

    def run(self) -> Any:
        """See `Book.run`."""
        self.owner.needs_folder()
        return super().run()

    def beat(self) -> None:
        """See `Book.beat`."""
        self.owner.needs_folder()
        super().beat()


class _Cluster(MemoryCluster):
    """A client whose companions the laws see."""

    world: World

    def submit(self, request: SubmitRequest) -> Submitted:
        """See `Cluster.submit`."""
        self.world.laws.companion_asked(request)
        return super().submit(request)

    def cancel(
        self, job_id: str, *, signal: str | None = None, full: bool = False, batch: bool = False
    ) -> None:
        """See `Cluster.cancel`."""
        self.world.laws.companion_ends(self.engine.jobs.get(int(job_id)), "the agent")
        super().cancel(job_id, signal=signal, full=full, batch=batch)


class Agent:
    """One agent process; `gone` once it can answer nothing any more."""

    def __init__(self, inside: Inside) -> None:
        self.inside = inside
        self.world = inside.world
        self.launch: Launch = inside.launch
        self.gone = False
        self.began_s = self.world.clock.now()
        self.frozen_until_s = self.stuck_until_s = float("-inf")
        # Bare locks, held while nobody has handed them over: a semaphore of Python's own costs three of them a turn.
        self._baton, self._back = threading.Lock(), threading.Lock()
        self._baton.acquire()
        self._back.acquire()
        self._closing = False
        self._awake = False  # its sleep is over, and it has the baton
        self._told = io.StringIO()
        self._talk = BatchChannel(str(inside.talk))
        self._clock = _Clock(self)
        self._shared = _Shared(self._clock)
        self._shared.owner = self
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread_began = False
        self.world.agents.append(self)
        self.launch.after(OPENS_S, self._wake)
        self.launch.after(OPENS_S, self._watch)

    def __str__(self) -> str:
        return f"agent of {self.inside.start}"

    @property
    def seen_for_s(self) -> float:
        """For how long its pulse has gone on without a break, up to now."""
        now = self.world.clock.now()
        since_s = max(
            self.began_s,
            self.frozen_until_s,
            self.stuck_until_s,
            self.world.mended_s.get(self.launch.head, 0.0),
        )
        return now - since_s if self.acts else 0.0

    @property
    def acts(self) -> bool:
        """It lives and is awake, and the shared folder can show it."""
        awake = max(self.frozen_until_s, self.stuck_until_s) <= self.world.clock.now()
        return not self.gone and awake and self.launch.running()

    # ------------------------------------------------------------------ the baton

    def sleep(self, seconds: float) -> None:
        """Called by the agent's own thread."""
        # The virtual clock counts from 1970, so it cannot tell apart what is less than a microsecond apart.
        self._awake = False
        self.launch.after(max(seconds, 0.001), self._wake)
        self._tell()
        if not self._goes_by():
            self._pass_on()

    def _goes_by(self) -> bool:
        """Run what happens meanwhile. False where it is not over when somebody else has to go on."""
        world, clock = self.world, self.world.clock
        world.driver = self
        with _Carried(world.left):
            while not (self._awake or self.gone or world.left or world.at_rest()):
                if not clock.step():
                    break
        world.driver = None
        return self._awake and not world.left

    def _pass_on(self) -> None:
        self._back.release()
        self._baton.acquire()
        if self._closing:
            raise _Unwound

    def _wake(self) -> None:
        now = self.world.clock.now()
        if self.gone:
            return
        late_s = max(self.frozen_until_s, self.stuck_until_s) - now
        if late_s > 0:
            self.launch.after(late_s, self._wake)
        elif self.world.driver is self:
            self._awake = True
        else:  # an event of its own: a node that thaws wakes it in the middle of another
            self.world.clock.after(0.0, lambda: self.world.aside(self._go_on))

    def _go_on(self) -> None:
        """Called by the main thread."""
        if self.gone:
            return
        with contextlib.redirect_stderr(self._told):
            if not self._thread_began:
                self._thread_began = True
                self._thread.start()
            else:
                self._baton.release()
            self._back.acquire()
        self._tell()

    def _tell(self) -> None:
        """What it has written into its log becomes part of the story."""
        for line in self._told.getvalue().splitlines():
            self.world.trace(f"  agent: {line[20:]}")
        self._told.seek(0)
        self._told.truncate()

    def _main(self) -> None:
        try:
            with contextlib.suppress(_Unwound):
                main.run_worker(self._desk, self._talk, self._shared)
        finally:
            self.gone = True
            self._back.release()

    def _watch(self) -> None:
        """The watchdog, which shares nothing with the work but the process."""
        if self.gone:
            return
        late_s = self.frozen_until_s - self.world.clock.now()
        if late_s > 0:
            self.launch.after(late_s, self._watch)
            return
        with contextlib.redirect_stderr(io.StringIO()):
            if not self._shared.watch(self._talk):
                self.world.trace("  agent: the watchdog answers")
                self.gone = True
                return
        self.launch.after(main.BEAT_EVERY_S, self._watch)

    # ------------------------------------------------------------------ its end

    def dismiss(self) -> None:
        """batch.sh kills it."""
        self.gone = True

    def die(self) -> None:
        """Called by the agent's own thread: it was killed here."""
        self.gone = True
        self._pass_on()

    def close(self) -> None:
        """The life is over."""
        self.gone = self._closing = True
        if self._thread.is_alive():
            with contextlib.redirect_stderr(io.StringIO()):
                self._baton.release()
                self._thread.join()

    # ------------------------------------------------------------------ what it works with

    def needs_folder(self) -> None:
        """Raises OSError where the node does not see the run's folder."""
        if self.world.nodes_blind:
            raise OSError(5, "Input/output error")

    def point(self, name: str) -> None:
        """A place where this agent may be hurt."""
        self.world.laws.agent_acts(self, name)
        fault = self.world.agent_fault_at(name)
        if fault is None:
            return
        now = self.world.clock.now()
        self.world.trace(f"  agent: {fault.kind} at {name} for {fault.for_s:.0f} s")
        if fault.kind == "kill":
            self.die()
        elif fault.kind == "freeze":
            self.frozen_until_s = now + fault.for_s
        else:
            self.stuck_until_s = now + fault.for_s
        self.sleep(0.0)

    def _desk(self) -> AgentContext:
        inside, world = self.inside, self.world
        where = LaunchIdentity(
            run_dir=world.run_dir,
            place=str(inside.place),
            attempt=inside.start.attempt,
            launch=self.launch.restarts,
            job=self.launch.job_id,
            cluster=world.cluster_name,
            node=self.launch.head,
            nodes=self.launch.nodes,
        )
        holder: list[AgentContext] = []

        def may_write() -> None:
            if holder:
                holder[0].alive()
            self.needs_folder()

        self.needs_folder()
        book = _Book(
            where.run_dir,
            where.place,
            attempt=where.attempt,
            launch=where.launch,
            job=where.job,
            may_write=may_write,
            crash=self.point,
            now=self._clock.now_s,
        )
        book.owner = self
        cluster = _Cluster(
            world.engine,
            faults=world.agent_luck(),
            seed=world.plan.seed * 1000 + 500 + len(world.agents),
            spend=self.sleep,
        )
        cluster.world = world
        steps = SpanningSteps(
            MemorySteps(cluster, self.sleep, self._play, releases=world.plan.releases),
            where.job,
            lambda: (*holder[0].spans, *holder[0].coming),
            self._clock.mono_s,
        )
        holder.append(
            AgentContext(
                where,
                self._talk,
                book,
                cluster,
                steps,
                self._clock,
                lambda _, name: inside.signal_script(name),
                lambda line, job, node, limit_s: tuple(self._play(self.launch, node, line)),
            )
        )
        return holder[0]

    def _play(self, launch: Launch, node: str, script: str) -> list[str]:
        """What a task of the agent's own step does and says on a node."""
        if answer := stacks.write_stacks(self.world, launch, node, script):
            return answer
        found = re.search(r" sweep .*--token (\S+)", script)
        if found is None:
            return re.findall(r'"\$SLURMD_NODENAME" "(\w+)"', script)  # with a fixed word, once it has ended
        from tests.simulation.inside import sweep

        mine = [rank for rank in self.world.orphans if rank.inside.place == self.inside.place]
        killed = sweep(mine, node, found[1])
        unfit = "its /tmp is read-only" if self.world.unfit(node) else ""
        return [json.dumps({"node": node, "killed": killed, "left": [], "unfit": unfit})]


class _Carried:
    """What an event raises is no mistake of the agent on whose thread it runs: the main thread raises it."""

    def __init__(self, left: list[Callable[[], None]]) -> None:
        self._left = left

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if error is not None:
            self._left.append(functools.partial(_raise, error))
        return True


def _raise(error: BaseException) -> None:
    raise error
