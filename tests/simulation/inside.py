"""What batch.sh does around the starts of one launch, and the ranks that they leave behind. (I/O)

How it thinks. The folder that batch.sh and the agent share is real, and so are the records of the starts; what the shell does with them
(hooks/batch_starts.sh) is played here, on the first node of the launch. A rank whose node is frozen, or whose node's daemon is away, hears of
nothing: it outlives its start and goes on writing when it thaws, until the guard on its node sees that `current` names another start.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ftrun.slurm import nodeset
from ftrun.slurm.memory_records import Launch, Step
from tests.simulation.agents import Agent

if TYPE_CHECKING:
    from tests.simulation.trainer import Start
    from tests.simulation.world import World

__all__ = ["Inside", "Rank", "inside_of"]

ASKS_EVERY_S = 0.25
PULSE_STILL_S = 20.0
ANSWER_WITHIN_S = 600.0
SRUN_RETURNS_S = 0.3
SRUN_WAITS_S = 4.0  # for a node that does not say that its task is gone
GUARD_S = 1.0
RANK_EVERY_S = 0.5
SCRIPT_PID = 2**30  # no process of the machine that this runs on


def inside_of(start: Start) -> Inside | None:
    """What the composed file says of recovery inside the allocation; None where it says nothing."""
    composed = (start.folder / "submitted" / "train.sh").read_bytes()
    agent, spares, active = (_word(composed, name) for name in ("agent", "spares", "active_n"))
    wanted = int(active or 0) if int(spares or 0) else 0
    return Inside(start, with_agent=bool(agent), width=wanted) if agent or wanted else None


def _word(composed: bytes, name: str) -> str:
    found = re.search(rb"^_ft_%s='?([^'\n]*)'?$" % name.encode(), composed, re.MULTILINE)
    return found[1].decode() if found else ""


class Inside:
    """The starts of one launch, one after the other; `width` is how many nodes each uses (0 = all)."""

    def __init__(self, first: Start, *, with_agent: bool, width: int) -> None:
        self.world: World = first.world
        self.launch: Launch = first.launch
        self.place: Path = first.folder
        self.number = 1
        self.start = first
        self.nodes = self.launch.nodes[: width or None]
        self.added: list[str] = []  # checkpoints that the agent has set aside
        self.ended_by_others = False
        self.with_agent = with_agent
        self.agent: Agent | None = None
        self.ranks: list[Rank] = []
        self.step: Step | None = None
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
        self.step = self.launch.begin_step("train.py", self.nodes, self._signalled)
        self.ranks = [Rank(self, start, node) for node in self.nodes]
        if self.with_agent and self.agent is None:
            self.agent = Agent(self)

    def _write(self, path: Path, text: str) -> None:
        draft = path.with_name(f".{path.name}.{id(self)}")
        draft.write_text(text)
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
        for rank in self.ranks:
            rank.left()
        if self.step is not None:
            self.launch.end_step(self.step)
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
        if lines[:1] != ["again"] or not wanted or not set(wanted) <= set(self.launch.nodes):
            return False
        self.nodes = tuple(node for node in self.launch.nodes if node in wanted)
        self.added = [line.partition("=")[2] for line in lines if line.startswith("skip=")]
        self.number += 1
        if self.make_current() == 1:
            return False
        self.launch.after(0.5, lambda: self._start_again(before))
        return True

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
        self.alive = True
        self._since_s: float | None = None  # that it runs on by itself

    def left(self) -> None:
        """The script is over: who can be told ends now."""
        inside = self.inside
        if not self.alive or not inside.launch.world.silent(self.node):
            self.alive = False
            return
        inside.world.orphans.append(self)
        inside.launch.after(0.0, self._turn, self.node)

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
        self.inside.launch.after(RANK_EVERY_S, self._turn, self.node)


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
