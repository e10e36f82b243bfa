"""Restart of a single rank while the other ranks live. (I/O)

Where the framework lets a process join again, each rank has a parent (`hooks.ranks.rank_wrapper`) that
reports its death and waits for `again` or `end`. Diagnosis and policy are the same as for a whole start,
applied to the lines printed since the last such death. A rank is restarted only if it died alone: if others
die before the log is quiet, the whole start is affected. After `end` the other ranks would wait forever, so
the agent ends the start and diagnoses it as any other; a process that ended confirms the fault (P7).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor.agent.context import AgentContext, Suspicion, log_line
from ftrun.supervisor.agent.start_monitor import StartMonitor
from ftrun.supervisor.config import home, rungs
from ftrun.supervisor.config.settings import number_of
from ftrun.supervisor.diagnosis import suspicions
from ftrun.supervisor.policy import ladder, start_decision
from ftrun.supervisor.policy.policy_input import ClusterView
from ftrun.supervisor.store import run_dir

QUIET_MAX_S = 20.0  # the parent waits a minute for the answer
_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class RankDeath:
    """One process that died: the file that reports it, its rank, its node, and how it ended."""

    name: str
    rank: int
    node: str
    pid: int
    code: int
    signal: int


@dataclass
class RankRestart:
    """The deaths of ranks in one start. `off`: why no rank is restarted."""

    ctx: AgentContext
    monitor: StartMonitor
    settings: Mapping[str, Any]
    off: Callable[[], str]
    number: int = 0
    _known: set[str] = field(default_factory=set)
    _mark: int = -1  # order of the last log line that explained an earlier death

    @property
    def _folder(self) -> str:
        return os.path.join(self.ctx.where.place, "ranks", self.monitor.started.token)

    def look(self) -> Suspicion | None:
        """Answer the parents that ask. A suspicion if the whole start must be ended. Raises OSError
        (journal), GivenUp.
        """
        if not self.settings.get("rank-restart"):
            return None
        dead = self._new_deaths()
        if not dead:
            return None
        first_s = self.ctx.clock.mono_s()
        wait_s = min(number_of(self.settings, "log-quiet"), QUIET_MAX_S)
        while self.ctx.clock.mono_s() - first_s < wait_s:
            self.ctx.rest(0.1)
            self.monitor.look()
        dead += self._new_deaths()
        for one in dead:
            self.ctx.journal.record("rank.died", **_record_fields(one))
        return self._judge(dead)

    def _new_deaths(self) -> list[RankDeath]:
        try:
            names = set(os.listdir(self._folder))
        except OSError:
            return []
        new = [
            name
            for name in sorted(names - self._known)
            if not name.startswith(".") and not name.endswith(".next")
        ]
        self._known |= set(new)
        found = (
            parse_death(name, run_dir.read_untrusted(os.path.join(self._folder, name), _BYTES_MAX) or b"")
            for name in new
        )
        return [one for one in found if one is not None]

    def _judge(self, dead: list[RankDeath]) -> Suspicion | None:
        self.number += 1
        where, started, first = self.ctx.where, self.monitor.started, dead[0]
        incident = f"{where.attempt}.{where.launch}.{started.number}.r{self.number}"
        run = self.ctx.journal.run()
        report = self.monitor.memory.report
        lines = tuple(one for one in self.monitor.evidence() if one.order > self._mark)
        self._mark = max((one.order for one in self.monitor.evidence()), default=self._mark)
        seen = start_decision.StartFacts(
            number=started.number,
            nodes=started.nodes,
            resume_from=started.launch.resume_from,
            code=first.code,
            signal=first.signal,
            now_s=self.ctx.clock.now_s(),
            evidence=lines,
            topology=self.monitor.topology(),
            progress=report.progress if report is not None else None,
            facts=self.monitor.facts(),
            step=self.monitor.memory.step,
        )
        diagnosis = start_decision.diagnose_start(seen, self.ctx.catalog())
        self.ctx.journal.record(
            "start.diagnosed",
            incident=incident,
            diagnosis=diagnosis.to_json(),
            step=seen.step,
            first_evidence_at_s=self.monitor.first_evidence_s.get(diagnosis.signature),
        )
        case = start_decision.policy_input_of(self.ctx.journal.run(), seen, diagnosis, ClusterView())
        off = self.off()
        place = ladder.AllocationState(
            nodes=self.ctx.nodes,
            active=started.nodes,
            start=started.number,
            rejoin=not off,
            dead_rank=first.rank if len(dead) == 1 else None,
            step_off=off,
            swap_off=off,
        )
        ruling, move = start_decision.decide_start(case, place)
        if move.rung is not rungs.Rung.RANK or run.wish:
            for one in dead:
                self.ctx.journal.record("rank.left", **_record_fields(one), reason=move.reason)
                self._answer(one, "end")
            return Suspicion(suspicions.rank_died(diagnosis, first.rank), 0.0)
        self.ctx.journal.record(
            "start.decided", **start_decision.decision_record(incident, case, ruling, move)
        )
        log_line(f"start {started.number}: rank {first.rank}: {move.reason}")
        self.ctx.rest(min(move.delay_s, QUIET_MAX_S))
        self.ctx.journal.act("rank", lambda: self._answer(first, "again"))
        self.ctx.journal.record("rank.again", **_record_fields(first), incident=incident)
        return None

    def _answer(self, one: RankDeath, word: str) -> None:
        path = os.path.join(self._folder, f"{one.name}.next")
        with contextlib.suppress(OSError):  # without an answer the parent ends as its rank did
            home.write_atomically(path, f"{word}\n".encode(), sync=False)


def parse_death(name: str, content: bytes) -> RankDeath | None:
    """The report of a parent; None if it is malformed. (pure)"""
    try:
        told = json.loads(content)
        return RankDeath(
            name,
            int(told["rank"]),
            str(told.get("host", "")),
            int(told.get("pid", 0)),
            int(told["code"]),
            int(told["signal"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _record_fields(one: RankDeath) -> dict[str, Any]:
    return {"rank": one.rank, "node": one.node, "pid": one.pid, "code": one.code, "signal": one.signal}
