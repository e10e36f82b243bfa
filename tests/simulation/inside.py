"""What batch.sh does around the starts of one launch, and the ranks that they leave behind. (I/O)

How it thinks. The folder that batch.sh and the agent share is real, and so are the records of the starts; what the shell does with them
(hooks/bundle/batch_starts.sh) is played here, on the first node of the launch. A rank whose node is frozen, or whose node's daemon is away, hears of
nothing: it outlives its start and goes on writing when it thaws, until the guard on its node sees that `current` names another start.

A start may lie in companions, too (`holder`): its ranks there live in the companion's job and die with it, and when batch.sh dies nobody tells them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ftrun.slurm.client import nodeset
from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.commands.spanning import Span
from tests.fake_slurm.records import Launch, Step
from tests.simulation.agents import Agent
from tests.simulation.holder import word

if TYPE_CHECKING:
    from tests.simulation.trainer import Start
    from tests.simulation.world import World

__all__ = ["Inside", "Rank", "inside_of"]

ASKS_EVERY_S = 0.25
PULSE_STILL_S = 20.0
ANSWER_WITHIN_S = 600.0
SRUN_RETURNS_S = 0.3
SRUN_WAITS_S = 4.0  # for a node that does not say that its task is gone
SPAN_GRACE_S = 10.0  # for the others, when the part of a start in one job has failed
COUNTS_EVERY_S = 10.0
GUARD_S = 1.0
RANK_EVERY_S = 0.5
SCRIPT_PID = 2**30  # no process of the machine that this runs on


def inside_of(start: Start) -> Inside | None:
    """What the composed file says of recovery inside the allocation; None where it says nothing."""
    composed = (start.folder / "submitted" / "train.sh").read_bytes()
    agent, spares, active = (word(composed, name) for name in ("agent", "spares", "active_n"))
    wanted = int(active or 0) if int(spares or 0) else 0
    return Inside(start, with_agent=bool(agent), width=wanted) if agent or wanted else None


class Inside:
    """The starts of one launch, one after the other; `width` is how many nodes each uses (0 = all)."""

    def __init__(self, first: Start, *, with_agent: bool, width: int) -> None:
        self.world: World = first.world
        self.launch: Launch = first.launch
        self.place: Path = first.folder
        self.number = 1
        self.start = first
        self.nodes = self.launch.nodes[: width or None]
        self.sick: set[str] = set()  # nodes that said so
        self.added: list[str] = []  # checkpoints that the agent has set aside
        self.poison: list[str] = []  # what it says of divergence
        self.had = False  # the run has had a checkpoint
        self.ended_by_others = False
        self.with_agent = with_agent
        self.agent: Agent | None = None
        self.ranks: list[Rank] = []
        self.steps: list[tuple[Launch, Step]] = []  # of the present start, one in each job
        self.spans: tuple[Span, ...] = ()  # its parts in companions
        self._far: dict[str, Launch] = {}  # node of a companion -> its launch
        self._attended = False  # batch.sh looks after the ranks
        self.over_s = 0.0
        self._token_told = ""
        self.talk: Path = (
            Path(self.world.talks) / f"{first.attempt}.{self.launch.job_id}.{self.launch.restarts}.{id(self)}"
        )
        self.talk.mkdir(parents=True)

    @property
    def token(self) -> str:
        """The name of the present start."""
        return f"{self.launch.restarts}.{self.number}"

    def host(self, node: str) -> Launch:
        """The launch by which the present start has this node."""
        return self._far.get(node, self.launch)

    # ------------------------------------------------------------------ a start

    def make_current(self) -> int:
        """As `_ft_make_current`: 0 = done, 1 = the attempt is closed, 2 = it cannot be done."""
        if self.world.nodes_blind:
            return 2
        current = self.place / "current"
        if self.number > 1 and _readlink(current) == "closed":
            return 1
        self._point(current, self.token)
        self.world.current_s = self.world.clock.now()
        if _readlink(self.place / f"claim.{self.launch.restarts + 1}").startswith("closed."):
            self._point(current, "closed")
            return 1
        return 0

    def _point(self, current: Path, token: str) -> None:
        draft = self.place / f"current.{id(self)}"
        draft.symlink_to(token)
        draft.rename(current)

    def begins(self, start: Start, record: dict[str, object]) -> None:
        """The script of a start was forked."""
        self.start = start
        mine = {"start": self.number, "nnodes": len(self.nodes), "token": self.token}
        lines = "".join(
            f"{key}={value}\n"
            for key, value in (record | mine | {"pid": SCRIPT_PID, "nodes": ",".join(self.nodes)}).items()
        )
        self._write(self.talk / f"started.{self.number}", lines)
        if not self.world.nodes_blind:
            self._write(self.place / f"begun.{self.token}", lines)
        with open(self.talk / f"calls.{self.number}", "a", encoding="utf-8") as calls:
            calls.write(f"{int(self.world.clock.now())} {SCRIPT_PID + 1} srun python3 train.py\n")
        if self.world.plan.no_span:
            told = "srun: --mpi=pmix: each job would be a world of its own\n"
            self._write(self.talk / f"nospan.{self.number}", told)
        self._begin_steps(start)
        if self.with_agent and self.agent is None:
            self.agent = Agent(self)

    def _begin_steps(self, start: Start) -> None:
        """As the srun in front of Slurm's: a step in each job, and none where a companion is over by now."""
        self.steps = []
        for launch in dict.fromkeys((self.launch, *self._far.values())):
            nodes = tuple(node for node in self.nodes if self.host(node) is launch)
            if launch is self.launch or _runs(launch):
                self.steps.append((launch, launch.begin_step("train.py", nodes, self._signalled)))
        self.ranks = [Rank(self, start, node) for node in self.nodes]
        self.launch.on_gone, self._attended = self._gone, True
        if self._far:
            self._watch_spans(start)

    def _watch_spans(self, start: Start) -> None:
        """The part of a start in one job has failed: the others are ended a little later, and the script with them."""
        if start.over:
            return
        if all(map(_runs, self._far.values())):
            self.launch.after(1.0, lambda: self._watch_spans(start))
        else:
            self.world.trace(f"  {start} has lost a companion")
            self.launch.after(SPAN_GRACE_S, lambda: start._exit(1))

    def _gone(self, node: str) -> None:
        """The processes of this job on a node are gone; with those of the first one nobody is left to tell the ranks in companions."""
        if node == self.launch.head and self._attended:
            for rank in self.ranks:
                if rank.host is not self.launch:
                    rank.goes_on()

    def _count(self, spans: tuple[Span, ...], number: int = 1) -> None:
        """As `_ft_post_counter`: where there are none, it is said once."""
        if spans is not self.spans:
            return
        folder = self.place / "companions"
        if not self.world.nodes_blind and folder.exists():
            jobs = "".join(f" {span.job}" for span in spans)
            self._write(folder / f"alive.{self.launch.restarts}", f"{number:020d}{jobs}\n")
        if spans:
            self.launch.after(COUNTS_EVERY_S, lambda: self._count(spans, number + 1))

    def _write(self, path: Path, text: str) -> None:
        draft = path.with_name(f".{path.name}.{id(self)}")
        draft.write_text(text)
        os.utime(draft, (self.world.clock.now(), self.world.clock.now()))
        draft.rename(path)

    # ------------------------------------------------------------------ signals

    def _signalled(self, node: str, name: str) -> None:
        """A step of the present start was cancelled, or its tasks got a signal."""
        if name not in ("", "KILL", "TERM"):
            return
        for rank in self.ranks:
            rank.alive = rank.alive and rank.node != node
        if self.start.over or self.start.cancelled:
            return
        self.start.cancelled = True
        waits = any(self.launch.world.silent(node) for node in self.nodes)
        start = self.start
        self.launch.after(SRUN_WAITS_S if waits else SRUN_RETURNS_S, lambda: start._exit(0, 9))

    def signal_script(self, name: str) -> None:
        """The agent signals the script's process group."""
        self.world.trace(f"  agent: SIG{name} to the script of {self.start}")
        if not self.start.over and self.launch.running():
            self.start._exit(0, {"TERM": 15, "KILL": 9}[name])

    # ------------------------------------------------------------------ what comes next

    def over(self, start: Start, code: int, signal: int) -> None:
        """As `_ft_next`: the script ended; who is asked, and who is not."""
        self.over_s = self.world.clock.now()
        self._attended = False
        for rank in self.ranks:
            rank.left()
        for launch, step in self.steps:
            launch.end_step(step)
        status = 128 + signal if signal else code
        lines = f"code={status}\nsignal={signal or ''}\nended_s={int(self.world.clock.now())}\n"
        if self.agent is not None:
            self._write(self.talk / f"over.{self.number}", lines)
        ending = (self.talk / f"ending.{self.number}").exists()
        if self.agent is None or (not status and not ending):
            self._finish(start, code, signal)
            return
        self.world.trace(f"  {start} ends with {status}; the agent is asked")
        self._asked_s = self._beaten_s = self.world.clock.now()
        self._pulse = b""
        self._hear(start, code, signal)

    def _hear(self, start: Start, code: int, signal: int) -> None:
        """As `_ft_hear_agent`."""
        now, agent = self.world.clock.now(), self.agent
        assert agent is not None
        answer = self.talk / f"next.{self.number}"
        if self.ended_by_others:
            self._finish(start, code, signal)
            return
        if answer.exists():
            if not self._again(start, answer.read_text()):
                self._finish(start, code, signal)
            return
        pulse = b""
        with contextlib.suppress(OSError):
            pulse = (self.talk / "pulse").read_bytes()
        if pulse != self._pulse:
            self._beaten_s, self._pulse = now, pulse
        still = now - self._beaten_s >= PULSE_STILL_S or now - self._asked_s >= ANSWER_WITHIN_S
        if agent.gone or still:
            self.world.trace("  the agent does not answer")
            self._finish(start, code, signal)
            return
        self.launch.after(ASKS_EVERY_S, lambda: self._hear(start, code, signal))

    def _again(self, before: Start, answer: str) -> bool:
        """As `_ft_take_answer`. False: the job ends."""
        lines = answer.splitlines()
        told = dict(line.partition("=")[::2] for line in lines)
        wanted = nodeset.expand(told.get("nodes", ""))
        words = (line.removeprefix("span=").partition(":") for line in lines if line.startswith("span="))
        spans = tuple(Span(job, nodeset.expand(nodes)) for job, _, nodes in words)
        far = [node for span in spans for node in span.nodes]
        own = tuple(node for node in self.launch.nodes if node in wanted and node not in far)
        if lines[:1] != ["again"] or not own or not set(wanted) <= {*self.launch.nodes, *far}:
            return False
        held, self.nodes, self.spans = self.spans, (*own, *far), spans
        self._far = {node: launch for span in spans for node, launch in self._in(span)}
        if spans or held:
            self._count(spans)
        self.added = [line.partition("=")[2] for line in lines if line.startswith("skip=")]
        self.poison = [line.partition("=")[2] for line in lines if line.startswith("poison=")]
        self.had = self.had or "had=1" in lines
        self.number += 1
        if self.make_current() == 1:
            return False
        self.launch.after(0.5, lambda: self._start_again(before))
        return True

    def _in(self, span: Span) -> list[tuple[str, Launch]]:
        """The nodes of a span, with the launch that has them; a companion that Slurm has forgotten has none."""
        job = self.world.engine.jobs.get(int(span.job))
        launch = job.launch if job is not None else None
        gone = Launch(self.world.engine, self.launch.job, span.nodes, -1, 0.0, self.launch.request)
        return [(node, launch if launch is not None else gone) for node in span.nodes]

    def _start_again(self, before: Start) -> None:
        from tests.simulation.trainer import Start

        if not self.ended_by_others:
            Start(self.world, self.launch, inside=self, number=self.number)
        else:
            self._finish(before, 0, 15)

    def _finish(self, start: Start, code: int, signal: int) -> None:
        if self.agent is not None:
            self.agent.dismiss()
        start.ends_job(code, signal)


class Rank:
    """The process of a start on one of its nodes, once the script no longer looks after it."""

    def __init__(self, inside: Inside, start: Start, node: str) -> None:
        self.inside, self.start, self.node = inside, start, node
        self.token = inside.token
        self.host = inside.host(node)
        self.alive = _runs(self.host)
        self._since_s: float | None = None  # that it runs on by itself

    def left(self) -> None:
        """The script is over: who can be told ends now."""
        inside = self.inside
        if not self.alive or not inside.launch.world.silent(self.node):
            self.alive = False
            return
        self.goes_on()

    def goes_on(self) -> None:
        """Nobody looks after it any more."""
        self.inside.world.orphans.append(self)
        self.host.after(0.0, self._turn, self.node)

    def _turn(self) -> None:
        """Half a second in the life of a rank that nobody reached; while its node is frozen there are none."""
        if not self.alive:
            return
        world, now = self.inside.world, self.inside.world.clock.now()
        if self._since_s is None:
            self._since_s = now
        thawed_s = max(self._since_s, world.mended_s.get(self.node, 0.0))
        if now - thawed_s >= GUARD_S and not world.nodes_blind:
            current = _readlink(self.inside.place / "current")
            if current not in ("", self.token):
                self.alive = False
                world.trace(f"  the guard on {self.node} ends a rank of {self.start}")
                return
        world.laws.orphan_acts(self, thawed_s)
        self.host.after(RANK_EVERY_S, self._turn, self.node)


def _runs(launch: Launch) -> bool:
    return launch.job.launch is launch and launch.job.state is JobState.RUNNING


def sweep(ranks: Sequence[Rank], node: str, token: str) -> list[int]:
    """As `ftrun-hook sweep` on a node: what is of an earlier start of the attempt ends."""
    mine = tuple(map(int, token.split(".")))
    found = [r for r in ranks if r.alive and r.node == node and tuple(map(int, r.token.split("."))) < mine]
    for rank in found:
        rank.alive = False
    return [SCRIPT_PID for _ in found]


def _readlink(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
