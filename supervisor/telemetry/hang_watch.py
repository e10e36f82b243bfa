"""The watch over one start for a hang: feeds beats and log to `hang_rules`, and asks for stacks. (I/O)

The agent beside the script and the supervisor on the login node watch in the same way. They differ in how
they get stacks, who knows whether the job runs, and where records go (`Hands`). Ranks write beats anyway, so
reading them costs little; with many ranks they are read less often. Stacks cost a step on every node, so they
are taken only when `hang_rules` asks for them, and not if beating ranks report their own stacks while they
stand still. Stacks may take a while; if the start moved meanwhile, they are dropped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, Protocol

from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.model import types
from ftrun.supervisor.model.types import Evidence, HangState
from ftrun.supervisor.store.node_reports import read_json
from ftrun.supervisor.store.node_tools import node_command
from ftrun.supervisor.telemetry import hang_rules, liveness
from ftrun.supervisor.telemetry.heartbeats import BeatReader, Pulse
from ftrun.supervisor.telemetry.liveness import LivenessSample, Stacks
from ftrun.supervisor.telemetry.log_watcher import WatchReport
from ftrun.supervisor.telemetry.stack_samples import RankSample, stack_sample

__all__ = [
    "ASK_LIMIT_S",
    "ASK_QUIET_S",
    "HangWatch",
    "StacksAnswer",
    "WatchBackend",
    "stacks_command",
    "task_exited",
]

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
_TASK_EXIT = re.compile(r"(?:srun|yhrun): error: [\w.\-\[\],]+: tasks? [\d,\-\[\]]+: ")


@dataclass(frozen=True, slots=True)
class StacksAnswer:
    """The result of asking for stacks: the nodes that were asked, and those that answered."""

    asked: tuple[str, ...]
    answered: tuple[str, ...]


class WatchBackend(Protocol):
    """What differs between the watchers."""

    def record(self, kind: str, data: Mapping[str, Any]) -> None:
        """Journal `hang.suspected`, `hang.decided` or `stacks.taken`. Raises OSError."""
        ...

    def runs(self) -> bool | None:
        """Just before a decision: whether the job runs and is not suspended. None where that is unknown."""
        ...

    def read(self) -> WatchReport | None:
        """Read the logs of the start again, opened anew: a network file system may have held lines back."""
        ...

    def ask(self, folder: str) -> bool:
        """Begin to take the stacks of all ranks into `folder`. False where that is impossible."""
        ...

    def answer(self) -> StacksAnswer | None:
        """The result; None while it is under way. It may have no node."""
        ...


@dataclass
class HangWatch:
    """The watch over start `token`. `place` is the folder of its attempt or task; `limits` None: no hang
    detection; `from_begin`: it watches from the begin of the start on.
    """

    hands: WatchBackend
    place: str
    token: str
    limits: hang_rules.HangLimits | None
    mono_s: Callable[[], float]
    history: liveness.History = field(default_factory=liveness.History)
    from_begin: bool = False
    beats: BeatReader = field(init=False)
    _pulse: Pulse = field(default_factory=Pulse)
    _polled_s: float = float("-inf")
    _suspected: bool = False
    _decided: bool = False
    _taken: int = 0
    _before: Mapping[str, RankSample] = field(default_factory=dict)
    _moves: int = 0
    _asked_s: float = float("-inf")
    _folder: str = ""  # the folder of the awaited stacks; "" = none awaited
    _asked_at: int = 0  # movements seen when they were asked for
    _told_s: float = float("-inf")  # when all ranks last reported their own stacks

    def __post_init__(self) -> None:
        self.beats = BeatReader(os.path.join(self.place, "beats", self.token))

    def poll(self) -> bool:
        """Read the beats; False where it is too early for another look."""
        mono_s = self.mono_s()
        every_s = MANY_EVERY_S if len(self.beats.beats) > MANY_RANKS else 0.0
        if mono_s - self._polled_s < every_s:
            return False
        self._polled_s = mono_s
        self._pulse = self.beats.poll(mono_s)
        return True

    def judge(
        self,
        report: WatchReport | None,
        *,
        running: bool = True,
        suspect: hang_rules.HangLimits | None = None,
    ) -> types.HangVerdict | None:
        """Add what `report` and the last poll saw, and judge. None where there is nothing to say. Raises
        OSError (journal).

        `suspect`: the limits while a fatal line is not survived (`after_fatal_line`); None = no such line.
        """
        if report is None:
            return None
        mono_s, pulse = self.mono_s(), self._pulse
        sight = LivenessSample(
            life=self.token,
            from_begin=self.from_begin,
            steps_seen=report.progress.steps_seen if report.progress is not None else 0,
            growth=report.last_growth_s,
            median_step_s=report.median_step_s,
            phase=report.phase,
            readable=report.readable and not report.behind and pulse.readable,
            running=running,
            ranks=pulse.ranks,
            stacks=self._numbered(pulse.stacks),
            activity=pulse.activity,
        )
        self.history = liveness.observe(self.history, sight, mono_s)
        self.from_begin = False
        limits = suspect or self.limits
        if limits is None:
            return None
        verdict = hang_rules.hang_verdict(self.history, mono_s, limits)
        if verdict.state is HangState.SUSPECT and not self._suspected:
            self.hands.record("hang.suspected", types.hang_verdict_to_json(verdict))
        self._suspected = verdict.state in (HangState.SUSPECT, HangState.HUNG)
        if pulse.stacks is not None:
            self._told_s = mono_s
        beside_s = ASK_BESIDE_S if mono_s - self._told_s < TELLS_S else 0.0
        due = pulse.stacks is None and mono_s - self._asked_s >= beside_s
        if verdict.wants_stacks and due and not self._folder:
            self._ask(mono_s)
        verdict = self._answered(sight, limits, exited=task_exited(report.evidence)) or verdict
        if verdict.state is HangState.HUNG:
            verdict = replace(verdict, rank_ended=task_exited(report.evidence))
        return self._stands(verdict, report) if verdict.state is HangState.HUNG else self._goes_on(verdict)

    def _goes_on(self, verdict: types.HangVerdict) -> types.HangVerdict:
        self._decided = False
        return verdict

    def _stands(self, verdict: types.HangVerdict, report: WatchReport) -> types.HangVerdict | None:
        """The verdict, journalled once, if the job is seen to run and its logs to stand still."""
        running = self.hands.runs()
        if running is False:  # suspended: its silence meanwhile does not count when it goes on
            self.history = replace(self.history, life="")
        if not running:
            return None
        fresh = self.hands.read()
        if fresh is None or not fresh.readable or fresh.behind or fresh.last_growth_s != report.last_growth_s:
            return None
        if not self._decided:
            self._decided = True
            self.hands.record("hang.decided", types.hang_verdict_to_json(verdict))
        return verdict

    def _numbered(self, stacks: Stacks | None) -> Stacks | None:
        """Samples come from two places and are counted together."""
        if stacks is None:
            return None
        self._taken += 1
        return replace(stacks, taken=self._taken)

    # ------------------------------------------------------------------ stacks

    def _ask(self, mono_s: float) -> None:
        self._asked_s, self._asked_at = mono_s, self.history.moves.count
        folder = os.path.join(self.place, "stacks", self.token)
        folder = os.path.join(folder, str(max(self._taken, _newest(folder)) + 1))
        if self.hands.ask(folder):
            self._folder = folder

    def _answered(
        self, sight: LivenessSample, limits: hang_rules.HangLimits, *, exited: bool
    ) -> types.HangVerdict | None:
        """Judge with the awaited stacks, once they are there. `exited`: srun reports that a task ended by
        itself.
        """
        if not self._folder or (answer := self.hands.answer()) is None:
            return None
        folder, self._folder = self._folder, ""
        if not answer.asked:
            return None
        self.hands.record("stacks.taken", {"folder": folder, "nodes": list(answer.answered)})
        if self._asked_at != self.history.moves.count:
            self._before = {}
            return None
        if self._moves != self.history.moves.count:  # samples of an earlier silence do not count for this one
            self._before, self._moves = {}, self.history.moves.count
        tables = {node: read_json(os.path.join(folder, f"{node}.json")) for node in answer.asked}
        self._taken += 1
        stacks, activity, self._before = stack_sample(tables, self._before, self._taken, exited=exited)
        mono_s = self.mono_s()
        self.history = liveness.observe(
            self.history, replace(sight, stacks=stacks, activity=activity), mono_s
        )
        return hang_rules.hang_verdict(self.history, mono_s, limits)


def task_exited(evidence: Iterable[Evidence]) -> bool:
    """Whether srun reports that a task of a step ended by itself. (pure)"""
    return any(_TASK_EXIT.search(one.text) for one in evidence)


def stacks_command(home: str, place: str, token: str, job: str, folder: str) -> str:
    """The sh line that makes a node write the stacks of the start's ranks into `folder`. `home` is
    $FTRUN_HOME.
    """
    words = ["stacks", "--attempt-folder", place, "--token", token, "--job", job]
    words += ["--out", folder, "--limit", f"{STACKS_LIMIT_S:g}", "--apart", f"{APART_S:g}"]
    return node_command(home, words, told="taken")


def _newest(folder: str) -> int:
    """The highest number that an earlier watcher of this start used for its stacks; 0 for none."""
    try:
        return max((int(name) for name in os.listdir(folder) if name.isdigit()), default=0)
    except OSError:
        return 0
