"""Whether a start hangs, and who is slow in it: beats and log put before `hang` and `straggler`, stacks fetched when they are wanted. (I/O)

How it thinks. Beats are files that ranks write anyway, so reading them costs little; with many ranks they are read less often. Stacks cost a step
on every node, so they are taken only when `hang` asks for them: where ranks that beat say themselves where they stand still, nobody else is asked.
Everything that is seen goes into the memory of `hang`; what it says is told, and once it says `hung` the start may be ended.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ftrun.slurm.errors import SlurmError
from ftrun.supervisor import agent_reach, hang, nodefacts, nodereports, straggler
from ftrun.supervisor.agent_desk import Desk, say
from ftrun.supervisor.agent_line import node_line
from ftrun.supervisor.agent_talk import Started
from ftrun.supervisor.beats import BeatReader
from ftrun.supervisor.hang import Sight, Stacks, State
from ftrun.supervisor.model import Diagnosis, FaultClass, Source
from ftrun.supervisor.nodefacts import NodeFacts
from ftrun.supervisor.sampled import Seen, sample_of
from ftrun.supervisor.verdicts import plain
from ftrun.supervisor.watch import WatchReport

__all__ = ["Hangs", "hung", "poor"]

MANY_RANKS = 32
MANY_EVERY_S = 5.0
STACKS_LIMIT_S = 10.0
ASK_LIMIT_S = 20.0
ASK_QUIET_S = 5.0
APART_S = 3.0
ASK_BESIDE_S = (
    60.0  # ranks that beat tell their own stacks, but neither of accelerators nor of ranks that cannot answer
)
TELLS_S = 15.0
_NODE = re.compile(r"\((\S+)\)$")


@dataclass
class Hangs:
    """What is known of one start's life. `limits` None: hangs are not looked for."""

    desk: Desk
    started: Started
    settings: Mapping[str, Any]
    spares: Callable[[], int]
    history: hang.History = field(default_factory=hang.History)
    slow: straggler.History = field(default_factory=straggler.History)
    limits: hang.Limits | None = field(init=False)
    _beats: BeatReader = field(init=False)
    _polled_s: float = float("-inf")
    _suspected: bool = False
    _taken: int = 0
    _before: Mapping[str, Seen] = field(default_factory=dict)
    _moves: int = 0
    _asked_s: float = float("-inf")
    _told_s: float = float("-inf")  # when all ranks told their own stacks
    swap: straggler.Advice | None = None  # a node whose place a spare is to take
    _seen: set[str] = field(default_factory=set)
    _stamp: int = 0
    _poor: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.limits = hang.limits_from(self.settings)
        self._beats = BeatReader(os.path.join(self.desk.where.place, "beats", self.started.token))

    def look(self, report: WatchReport | None) -> hang.Verdict | None:
        """Take up what is seen now and judge. None where hangs are not looked for, or it is too early for another look. Raises OSError (journal)."""
        mono_s = self.desk.clock.mono_s()
        every_s = MANY_EVERY_S if len(self._beats.beats) > MANY_RANKS else 0.0
        if mono_s - self._polled_s < every_s:
            return None
        self._polled_s = mono_s
        pulse = self._beats.poll(mono_s)
        self._look_for_stragglers(mono_s)
        if self.limits is None or report is None:
            return None
        sight = Sight(
            life=self.started.token,
            steps_seen=report.progress.steps_seen if report.progress is not None else 0,
            growth=report.last_growth_s,
            median_step_s=report.median_step_s,
            phase=report.phase,
            readable=report.readable and not report.behind,
            ranks=pulse.ranks,
            stacks=self._numbered(pulse.stacks),
            activity=pulse.activity,
        )
        self.history = hang.observe(self.history, sight, mono_s)
        verdict = hang.judge(self.history, mono_s, self.limits)
        if verdict.state is State.SUSPECT and not self._suspected:
            self._tell("hang.suspected", verdict)
        self._suspected = verdict.state in (State.SUSPECT, State.HUNG)
        if pulse.stacks is not None:
            self._told_s = mono_s
        beside_s = ASK_BESIDE_S if mono_s - self._told_s < TELLS_S else 0.0
        if verdict.wants_stacks and pulse.stacks is None and mono_s - self._asked_s >= beside_s:
            self._asked_s = mono_s
            verdict = self._sampled(sight) or verdict
        if verdict.state is State.HUNG:
            running = agent_reach.runs(self.desk.cluster, self.desk.where.job)
            if running is False:  # it is suspended: what it did not do meanwhile says nothing when it goes on
                self.history = replace(self.history, life="")
            if not running:
                return None
            self._tell("hang.decided", verdict)
        return verdict

    def _tell(self, kind: str, verdict: hang.Verdict) -> None:
        say(f"start {self.started.number}: {verdict.state.value}: {verdict.reason}")
        self.desk.book.record(
            kind,
            quiet_s=round(verdict.quiet_s, 1),
            threshold_s=verdict.threshold_s,
            behind=list(verdict.behind),
            reason=verdict.reason,
        )

    def _numbered(self, stacks: Stacks | None) -> Stacks | None:
        """Samples come from two places and are counted together."""
        if stacks is None:
            return None
        self._taken += 1
        return replace(stacks, taken=self._taken)

    # ------------------------------------------------------------------ stacks

    def _sampled(self, sight: Sight) -> hang.Verdict | None:
        """Fetch the stacks of all ranks, and judge with them."""
        assert self.limits is not None
        where, nodes = self.desk.where, self.started.nodes
        folder = os.path.join(where.place, "stacks", self.started.token, str(self._taken + 1))
        words = ["stacks", "--attempt-folder", where.place, "--token", self.started.token, "--job", where.job]
        words += ["--out", folder, "--limit", f"{STACKS_LIMIT_S:g}", "--apart", f"{APART_S:g}"]
        line = node_line(where.home, words, told="taken")
        try:
            told = self.desk.steps.ask(
                where.job, nodes, line, limit_s=ASK_LIMIT_S, quiet_s=ASK_QUIET_S, alive=self.desk.alive
            )
        except SlurmError as error:
            say(f"no stacks: {error.message}")
            return None
        taken = [node for node in nodes if told.answers.get(node)]
        self.desk.book.record("stacks.taken", folder=folder, nodes=taken)
        tables = {node: nodereports.json_of(os.path.join(folder, f"{node}.json")) for node in nodes}
        if (
            self._moves != self.history.moves.count
        ):  # what an earlier silence was like says nothing of this one
            self._before, self._moves = {}, self.history.moves.count
        stacks, activity, self._before = sample_of(tables, self._before, self._taken + 1)
        self._taken += 1
        mono_s = self.desk.clock.mono_s()
        seen = replace(sight, stacks=stacks, activity=activity)
        self.history = hang.observe(self.history, seen, mono_s)
        return hang.judge(self.history, mono_s, self.limits)

    # ------------------------------------------------------------------ stragglers

    def _degraded(self) -> Mapping[str, str]:
        """The node of this start that its checks call degraded; looked at anew when a report came."""
        where = self.desk.where
        stamp = nodereports.stamp(where.run_dir, where.attempt)
        if stamp != self._stamp:
            self._stamp = stamp
            facts = nodereports.read(
                where.run_dir, where.attempt, where.launch, where.nodes, start=self.started.number
            )
            self._poor = poor(facts, self.started.nodes)
        return self._poor

    def _look_for_stragglers(self, mono_s: float) -> None:
        """Tell once of each node that is steadily slower than its peers."""
        wanted = str(self.settings.get("straggler", "tell"))
        samples = self._beats.samples()
        degraded = self._degraded()
        if wanted == "never" or not (samples or degraded):
            return
        self.slow = straggler.observe(
            self.slow,
            samples,
            mono_s,
            ratio=float(self.settings.get("straggler-ratio", 1.3)),
            window_s=float(self.settings.get("straggler-window", straggler.WINDOW_S)),
        )
        slow = straggler.slow(self.slow)
        for one in straggler.advise(slow, wanted, spares=self.spares(), degraded=degraded):
            if one.node not in self._seen:
                self._seen.add(one.node)
                self.swap = one if one.act is straggler.Act.SWAP else self.swap
                say(one.reason)
                self.desk.book.record(
                    "straggler.seen",
                    node=one.node,
                    ratio=round(one.ratio, 2),
                    act=one.act.value,
                    reason=one.reason,
                )


def poor(facts: NodeFacts, nodes: Sequence[str]) -> dict[str, str]:
    """Node -> what its checks say, where one of these nodes alone is degraded and no worse; {} where several are: that is the site's. (pure)"""
    shared = facts.everywhere()
    held = [one for one in facts.findings if one.until_s is None and one.check not in shared]
    bad = {one.node for one in held if one.severity == nodefacts.BAD}
    found = {
        one.node: one.message
        for one in held
        if one.severity == nodefacts.DEGRADED and one.node in nodes and one.node not in bad
    }
    return found if len(found) == 1 < len(nodes) else {}


def hung(verdict: hang.Verdict, nodes: Sequence[str]) -> Diagnosis:
    """The diagnosis of a start that was ended because it hung: whoever is behind is named, by what the ranks themselves said. (pure)"""
    named = [match[1] for one in verdict.behind if (match := _NODE.search(one))]
    known = {node.split(".")[0]: node for node in nodes}
    culprits = tuple(dict.fromkeys(known[n.split(".")[0]] for n in named if n.split(".")[0] in known))
    words = [verdict.reason, *(f"behind: {one}" for one in verdict.behind)]
    found = plain(
        FaultClass.HANG, "it hung", words, names=culprits, confidence=0.7, sources=(Source.SILENCE,)
    )
    return replace(found, signature="hang.no-progress")
