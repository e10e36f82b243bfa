"""Whether a start hangs, and who is slow in it: the agent's shell around `hangwatch` and `straggler`. (I/O)

How it thinks. The agent is inside: its steps reach every node at once, it may wait for the stacks, and it asks Slurm itself whether the job runs. Once
the watch says `hung` the start may be ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftrun.slurm.client.errors import SlurmError
from ftrun.supervisor import agent_reach, hang, hang_verdict, nodefacts, nodereports, straggler
from ftrun.supervisor.agent_desk import Desk, say
from ftrun.supervisor.agent_talk import Started
from ftrun.supervisor.hangwatch import ASK_LIMIT_S, ASK_QUIET_S, Answer, HangWatch, stacks_line
from ftrun.supervisor.nodefacts import NodeFacts
from ftrun.supervisor.watch import WatchReport

__all__ = ["Hangs", "poor"]


@dataclass
class _Hands:
    """What the agent does for its watch."""

    desk: Desk
    started: Started
    read: Callable[[], WatchReport | None]
    told: Answer | None = None
    report: WatchReport | None = None  # what the logs told at this look

    def record(self, kind: str, data: Mapping[str, Any]) -> None:
        """See `Hands.record`."""
        if "reason" in data:
            say(f"start {self.started.number}: {kind.partition('.')[2]}: {data['reason']}")
        self.desk.book.record(kind, **data)

    def stands(self) -> bool | None:
        """See `Hands.stands`. A network file system may have kept the last lines from us."""
        runs = agent_reach.runs(self.desk.cluster, self.desk.where.job)
        if not runs or self.report is None:
            return runs
        fresh = self.read()
        if fresh is None or not fresh.readable or fresh.behind:
            return None
        return True if fresh.last_growth_s == self.report.last_growth_s else None

    def ask(self, folder: str) -> bool:
        """See `Hands.ask`: they are waited for."""
        where, nodes = self.desk.where, self.started.nodes
        line = stacks_line(where.home, where.place, self.started.token, where.job, folder)
        try:
            told = self.desk.steps.ask(
                where.job, nodes, line, limit_s=ASK_LIMIT_S, quiet_s=ASK_QUIET_S, alive=self.desk.alive
            )
        except SlurmError as error:
            say(f"no stacks: {error.message}")
            return False
        self.told = Answer(nodes, tuple(node for node in nodes if told.answers.get(node)))
        return True

    def answer(self) -> Answer | None:
        """See `Hands.answer`."""
        return self.told


@dataclass
class Hangs:
    """What is known of one start's life. `read` reads its logs anew."""

    desk: Desk
    started: Started
    settings: Mapping[str, Any]
    spares: Callable[[], int]
    read: Callable[[], WatchReport | None]
    history: hang.History = field(default_factory=hang.History)
    slow: straggler.History = field(default_factory=straggler.History)
    watch: HangWatch = field(init=False)
    _hands: _Hands = field(init=False)
    swap: straggler.Advice | None = None  # a node whose place a spare is to take
    _seen: set[str] = field(default_factory=set)
    _stamp: int = 0
    _poor: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._hands = _Hands(self.desk, self.started, self.read)
        self.watch = HangWatch(
            self._hands,
            self.desk.where.place,
            self.started.token,
            hang.limits_from(self.settings),
            self.desk.clock.mono_s,
            self.history,
        )

    def look(
        self, report: WatchReport | None, suspect: hang.Limits | None = None
    ) -> hang_verdict.Verdict | None:
        """Take up what is seen now and judge; `suspect`: see `HangWatch.judge`.

        None where hangs are not looked for, or it is too early for another look. Raises OSError (journal).
        """
        if not self.watch.poll():
            return None
        self._look_for_stragglers(self.desk.clock.mono_s())
        self._hands.report = report
        verdict = self.watch.judge(report, suspect=suspect)
        self.history = self.watch.history
        return verdict

    # ------------------------------------------------------------------ stragglers

    def _degraded(self) -> Mapping[str, str]:
        """The node of this start that its checks call degraded; looked at anew when a report came."""
        where = self.desk.where
        stamp = nodereports.stamp(where.run_dir, where.attempt)
        if stamp != self._stamp:
            self._stamp = stamp
            number = self.started.number + 1  # the checks of this start's own end say nothing of it yet
            facts = nodereports.read(
                where.run_dir, where.attempt, where.launch, self.desk.nodes, start=number
            )
            self._poor = poor(facts, self.started.nodes)
        return self._poor

    def _look_for_stragglers(self, mono_s: float) -> None:
        """Tell once of each node that is steadily slower than its peers."""
        wanted = str(self.settings.get("straggler", "tell"))
        samples = self.watch.beats.samples()
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
