"""`make node-alarms`: healthy runs whose nodes are silent for a while in one way or another, and frozen nodes. (I/O)

    python -m tests.falsealarms.silences [--runs N] [--seed N]

A run is a life of `lives`, on 2 to 64 nodes. Its nodes have troubles that a healthy cluster has (`KINDS`), far more often than
it has them, and half of them begin while the run is silent. Each standstill is asked about as the agent does it: by its own
`SilentNodes` and roll call, on a clock of the test. Time is virtual, and jumps to the next standstill.

A node that stands still as a whole for 6 s is healthy here; for how long it may do so is printed as a curve. Exit 1 where a
healthy run would have lost a node.
"""

from __future__ import annotations

import argparse
import bisect
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.commands.node_queries import QueryAnswers
from ftrun.supervisor.agent import silent_nodes
from ftrun.supervisor.telemetry import node_silence
from tests.falsealarms import lives

WRITES_EVERY_S = 6.0  # of a rank that stands still
LOOKS_EVERY_S = 1.0
WHOLE_S = 6.0
CURVE_S = (6.0, 8.0, 10.0, 12.0, 15.0, 20.0, 30.0)
EACH_HOUR = 1.0  # troubles of a run
SILENT_ROWS = 0.5  # so many of them begin in a silence


@dataclass(frozen=True, slots=True)
class Kind:
    """What a trouble silences, and from how many to how many seconds. `halts`: the run waits for the node; `slurm`: it is the
    controller's, which begins no step meanwhile, and a slurmd is busy beside it.
    """

    steps: bool = False
    beats: bool = False
    guard: bool = False
    refuses: bool = False
    halts: bool = False
    slurm: bool = False
    low_s: float = 1.0
    high_s: float = 300.0


KINDS = {
    "slurmd is busy": Kind(steps=True),
    "slurmd restarts": Kind(steps=True, refuses=True, high_s=15.0),
    "the file system stalls on a node": Kind(beats=True, guard=True, halts=True, high_s=1200.0),
    "the same, and the training goes on": Kind(beats=True, guard=True, high_s=1200.0),
    "the guard was killed": Kind(guard=True, low_s=600.0, high_s=9000.0),
    "a call holds the interpreter": Kind(beats=True, halts=True, high_s=600.0),
    "the whole node stands still": Kind(
        steps=True, beats=True, guard=True, halts=True, low_s=0.3, high_s=WHOLE_S
    ),
    "a node is cut off": Kind(
        steps=True, beats=True, guard=True, halts=True, low_s=0.3, high_s=0.75 * WHOLE_S
    ),
    "Slurm begins no step": Kind(slurm=True),
}
WEIGHTS = (6, 2, 3, 2, 1, 3, 6, 3, 3)
GIVES_UP_S = (4.0, (10.0, 40.0))  # srun: a node whose port refuses, one that is silent
REFUSED = 0.5  # so many steps are refused while Slurm begins none; the others wait


@dataclass(frozen=True, slots=True)
class Trouble:
    """One node's trouble."""

    node: str
    kind: Kind
    begins_s: float
    ends_s: float

    def holds(self, at_s: float) -> bool:
        """Whether it goes on."""
        return self.begins_s <= at_s < self.ends_s


@dataclass
class World:
    """One run on its nodes, as the agent asks it. It is its own clock, steps, beats and guards."""

    seed: int
    life: lives.Life
    nodes: tuple[str, ...]
    troubles: Sequence[Trouble]
    now_s: float = 0.0
    silent_from_s: float = 0.0
    moves_s: float = 0.0
    answer_s: float = 0.0  # what each step takes besides
    asked: int = 0
    chance: Random = field(init=False)
    beats: range = field(init=False)

    def __post_init__(self) -> None:
        self.chance = Random(self.seed + 9)
        self.beats = range(self.life.ranks)
        place = SimpleNamespace(job="1", node=self.nodes[0], place="")
        row = SimpleNamespace(
            job_id="1",
            state=JobState.RUNNING,
            is_cut_short=False,
            nodes=self.nodes,
            limit_end_s=None,
            comment="",
        )
        cluster = SimpleNamespace(jobs=lambda ids: {"1": row})
        ctx = SimpleNamespace(
            where=place, spans=(), cluster=cluster, steps=self, clock=self, alive=lambda: None, own_node=None
        )
        self.silent = silent_nodes.SilentNodes(
            cast("Any", ctx), cast("Any", SimpleNamespace(nodes=self.nodes))
        )
        self.silent._guards = cast("Any", _Guards(self))
        self.silent.beats = cast("Any", self) if self.life.beats else None

    def mono_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def held(self, node: str, what: str, at_s: float) -> Trouble | None:
        """The trouble that silences this side of the node."""
        return next(
            (t for t in self.troubles if t.node == node and t.holds(at_s) and getattr(t.kind, what)), None
        )

    def begin(self, job: str, nodes: Sequence[str], script: str) -> _Question:
        return _Question(self, nodes)

    def doors(self, nodes: Sequence[str]) -> _Doors:
        return _Doors(self, nodes)

    def wrote_s(self, node: str) -> float:
        """When the ranks of the node last wrote."""
        at_s = self.silent_from_s + WRITES_EVERY_S * ((self.now_s - self.silent_from_s) // WRITES_EVERY_S)
        while (one := self.held(node, "beats", at_s)) is not None:
            at_s = min(at_s - WRITES_EVERY_S, one.begins_s - 0.5 * LOOKS_EVERY_S)
        return at_s

    def unwritten_s(self, nodes: Mapping[str, float], now_s: float) -> dict[str, float]:
        since_s = now_s - node_silence.unwritten_limit_s(self.life.ranks)
        if all(self.wrote_s(node) <= since_s for node in self.nodes if node not in nodes):
            return {}
        return {node: now_s - self.wrote_s(node) for node in nodes}

    def lost(self, at_s: float, silent_from_s: float, moves_s: float) -> tuple[str, ...] | None:
        """Ask at this time of a silence that ends at `moves_s`."""
        self.now_s, self.silent_from_s, self.moves_s = at_s, silent_from_s, moves_s
        self.asked += 1
        found = self.silent.ask(lambda: self.now_s >= moves_s)
        return found if self.now_s < moves_s else None


class _Question:
    def __init__(self, world: World, nodes: Sequence[str]) -> None:
        self.nodes, self.over, self.reached, self._world = tuple(nodes), False, QueryAnswers(), world
        begins_s = world.now_s
        while (
            one := next((t for t in world.troubles if t.kind.slurm and t.holds(begins_s)), None)
        ) is not None:
            self.over = self.over or world.chance.random() < REFUSED
            begins_s = one.ends_s
        self._due_s = {node: self._answers_s(node, begins_s) for node in self.nodes}
        port_s, silent_s = GIVES_UP_S
        shut = math.inf in self._due_s.values()
        self._gives_up_s = begins_s + (port_s if shut else world.chance.uniform(*silent_s))

    def _answers_s(self, node: str, begins_s: float) -> float:
        world = self._world
        at_s = begins_s + world.answer_s + world.chance.lognormvariate(-1.6, 0.6)
        began_s = at_s
        while (one := world.held(node, "steps", at_s)) is not None:
            if one.kind.refuses:
                return math.inf
            at_s = one.ends_s + world.chance.uniform(0.1, 1.0)
        if (
            at_s > began_s and world.held(node, "beats", began_s) is not None
        ):  # packets are sent again ever more rarely
            at_s += world.chance.uniform(0.0, 0.5) * (at_s - began_s)
        return at_s

    def listen(self, wait_s: float) -> None:
        world = self._world
        world.sleep(0.0 if self.over else wait_s)
        if self.over:
            return
        heard = [node for node, due_s in self._due_s.items() if due_s <= world.now_s]
        if len(heard) != len(self.reached.answers):
            self.reached = QueryAnswers(dict.fromkeys(heard, ()), ended=frozenset(heard))
        self.over = len(heard) == len(self.nodes) or world.now_s >= self._gives_up_s

    def let_go(self) -> None:
        self.over = True


class _Doors:
    def __init__(self, world: World, nodes: Sequence[str]) -> None:
        self._world, self._nodes = world, nodes

    def refused(self) -> frozenset[str]:
        held = ((node, self._world.held(node, "steps", self._world.now_s)) for node in self._nodes)
        return frozenset(node for node, one in held if one is not None and one.kind.refuses)

    def close(self) -> None:
        self._nodes = ()


class _Guards:
    """Guards look once a second, and answer if nothing holds them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.begin()

    def begin(self) -> None:
        self.asked_s = self._at_s = 0.0
        self._named: tuple[str, ...] = ()
        self._missing: tuple[str, ...] = ()
        self.heard: frozenset[str] = frozenset()

    @property
    def works(self) -> bool:
        return any(node in self.heard for node in self._named)

    def ask(self, missing: tuple[str, ...], heard: str, at_s: float) -> None:
        if not self.asked_s and missing:
            self.asked_s, self._missing = at_s, missing
            self._named = (self._world.nodes[0], heard)
            self._at_s = self._world.now_s

    def look(self, asked_s: float) -> None:
        world = self._world
        if self.asked_s and world.now_s - self._at_s > 1.2:
            named = (*self._named, *self._missing)
            self.heard |= {node for node in named if world.held(node, "guard", world.now_s) is None}


def draw(seed: int, whole_s: float = 0.0) -> World:
    """A healthy run; with `whole_s` a node of it stands still as a whole for so long, once."""
    life, chance = lives.draw(seed), Random(seed + 7)
    nodes = tuple(f"n{place}" for place in range(chance.choice((2, 2, 4, 8, 16, 64))))
    silences = [one for one in life.segments if one.inside.name != "training"]
    troubles = []
    for _ in range(1 + int(EACH_HOUR * life.ends_s / 3600.0 * 2.0 * chance.random())):
        kind = chance.choices(list(KINDS.values()), WEIGHTS)[0]
        begins_s = chance.uniform(0.0, life.ends_s)
        if chance.random() < SILENT_ROWS:
            within = chance.choice(silences)
            begins_s = chance.uniform(within.begins_s - 5.0, within.ends_s)
        length_s = math.exp(chance.uniform(math.log(kind.low_s), math.log(kind.high_s)))
        troubles.append(
            Trouble("" if kind.slurm else chance.choice(nodes), kind, begins_s, begins_s + length_s)
        )
        if kind.slurm:
            busy_s = begins_s + chance.uniform(-10.0, length_s)
            ends_s = busy_s + chance.uniform(0.0, 60.0)
            troubles.append(Trouble(chance.choice(nodes), KINDS["slurmd is busy"], busy_s, ends_s))
    if whole_s:
        at_s = chance.uniform(0.3, 0.9) * life.ends_s
        kind = KINDS["the whole node stands still"]
        troubles = [Trouble(chance.choice(nodes[1:]), kind, at_s, at_s + whole_s)]
    return World(seed, life, nodes, troubles)


def standstills(world: World) -> Iterator[tuple[float, float, float]]:
    """(from, to, asked at) of the silences of a run, by what the agent sees of it."""
    life = world.life
    seen = life.steps if life.beats else sorted([*life.prints, *life.chatter])
    halts = sorted((t.begins_s, t.ends_s) for t in world.troubles if t.kind.halts)
    longest_s, step_s, before = 0.0, life.step_s, 0.0
    for count, at_s in enumerate(seen):
        gap_from_s, gap_to_s = before, at_s
        for begins_s, ends_s in halts:  # no step ends while a node holds the others up
            if begins_s <= gap_to_s and ends_s > gap_from_s:
                gap_to_s = max(gap_to_s, ends_s + step_s)
        before = at_s
        if count < 5:
            continue
        after_s = node_silence.ask_after_s(beats=life.beats, step_s=step_s, longest_s=longest_s)
        asked_s = gap_from_s + after_s
        while asked_s < gap_to_s:
            yield gap_from_s, gap_to_s, asked_s
            asked_s += node_silence.rest_s(asked_s - gap_from_s)
        longest_s = max(longest_s, gap_to_s - gap_from_s)
    if life.beats:  # ranks that owe a line are asked for while the run goes on
        limit_s = node_silence.unwritten_limit_s(life.ranks)
        for one in world.troubles:
            if one.kind.beats and not one.kind.halts and one.ends_s - one.begins_s > limit_s:
                at_s = one.begins_s + limit_s
                place = bisect.bisect_right(seen, at_s)
                if 0 < place < len(seen):
                    yield seen[place - 1], seen[place], at_s


def watch(world: World) -> tuple[float, str] | None:
    """When the run would have lost a node, and which."""
    spans = sorted((t.begins_s, t.ends_s) for t in world.troubles)
    for from_s, to_s, asked_s in standstills(world):
        late_s = min(to_s, asked_s + node_silence.PATIENCE_MAX_S)
        if not any(begins_s < late_s and ends_s > asked_s for begins_s, ends_s in spans):
            continue
        found = world.lost(asked_s, from_s, to_s)
        if found:
            return world.now_s, found[0]
    return None


def why(world: World, at_s: float, node: str) -> str:
    """The troubles of a node that was given up, at that time."""
    names = {id(kind): name for name, kind in KINDS.items()}
    return ", ".join(names[id(t.kind)] for t in world.troubles if t.node == node and t.holds(at_s)) or "none"


def frozen(seeds: Sequence[int], whole_s: float) -> tuple[int, int]:
    """Of runs in which one node stands still as a whole: how many lose it, with and without beats."""
    lost = {True: 0, False: 0}
    for seed in seeds:
        world = draw(seed, whole_s)
        lost[world.life.beats] += watch(world) is not None
    return lost[True], lost[False]


def main() -> int:
    """Print both sides, and say whether a healthy run would have lost a node."""
    parser = argparse.ArgumentParser(prog="make node-alarms", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000, help="so many healthy runs (default: 10000)")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    began_s, ended, hours, calls = time.monotonic(), list[str](), 0.0, 0
    kinds: Counter[str] = Counter()
    for seed in range(asked.seed, asked.seed + asked.runs):
        world = draw(seed)
        found = watch(world)
        hours, calls = hours + world.life.ends_s / 3600.0, calls + world.asked
        if found is not None:
            told = why(world, *found)
            kinds[told] += 1
            ended.append(f"{seed} ({'beats' if world.life.beats else 'no beats'}: {told})")
    print(
        f"{len(ended)} of {asked.runs} healthy runs lost a node; {hours:.0f} hours, {calls} roll calls beside a trouble; "
        f"{time.monotonic() - began_s:.0f} s"
    )
    for told, count in kinds.most_common():
        print(f"  {count} x {told}")
    for line in ended[:20]:
        print(f"  seed {line}")
    few = range(asked.seed, asked.seed + max(20, asked.runs // 20))
    beats = sum(draw(seed).life.beats for seed in few)
    for whole_s in CURVE_S:
        with_beats, without = frozen(few, whole_s)
        print(
            f"a node that stands still for {whole_s:4.0f} s: lost in {with_beats:4} of {beats} runs with beats, "
            f"{without:4} of {len(few) - beats} without"
        )
    return int(bool(ended))


if __name__ == "__main__":
    sys.exit(main())
