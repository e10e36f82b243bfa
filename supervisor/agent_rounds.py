"""One start of the script after the other: look on, and say what comes next when it failed. (I/O)

How it thinks. A start is looked at until batch.sh says that it is over. A failed one is judged as soon as its log is quiet and its nodes have
been asked (`agent_after`). Then the decision is journalled, what still runs is stopped,
and batch.sh is answered: `again` on these nodes, or `end`. Where anything is unclear, where Slurm or the journal does not answer, and
where a rung took longer than its limit, the answer is `end`: the job ends as its script ended, and the supervisor goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ftrun.slurm.errors import SlurmError
from ftrun.supervisor import (
    agent_after,
    agent_case,
    agent_reach,
    agent_shim,
    agent_stop,
    agent_waiting,
    checkpoints,
    context,
    grounds,
    ladder,
    nodereports,
    settle,
)
from ftrun.supervisor.agent_desk import Desk, say
from ftrun.supervisor.agent_eye import Eye, Suspicion
from ftrun.supervisor.agent_hang import Hangs, hung
from ftrun.supervisor.agent_ranks import Ranks
from ftrun.supervisor.agent_reach import Reach
from ftrun.supervisor.agent_talk import Over, Started
from ftrun.supervisor.events import Run
from ftrun.supervisor.hang import History, State
from ftrun.supervisor.model import Diagnosis

__all__ = ["Rounds"]

TICK_S = 0.2
LOOK_EVERY_S = 1.0
FIRST_STEP_LOOK_S = 0.2  # while a phase of an incident is still to be timed
SHIM_LOOKS_S = (1.0, 3.0, 8.0, 20.0)  # after a start began; then once a minute
SHIM_EVERY_S = 60.0
BEGINS_WITHIN_S = 120.0
WORTH_S = 30.0
"""Less time than this is left to no start, nor less than the last one took to its first step."""


@dataclass
class Rounds:
    """The starts of one launch. `aside` are nodes that no later one may use, `off` is why nothing is started again here."""

    desk: Desk
    settings: dict[str, Any]
    off: str = ""
    aside: tuple[str, ...] = ()
    incident: str = ""  # the one that this start followed from, until its first step
    _shim_looks: list[float] = field(default_factory=list)
    _boundary: agent_stop.Boundary | None = None
    _habits: History = field(default_factory=History)  # what earlier starts showed of their silences
    _checked: bool = False  # the nodes were, after the start that failed last

    def run(self) -> None:
        """All starts, to the last. Raises OSError (journal), GivenUp."""
        number = 1
        while (started := self._begun(number)) is not None:
            self.desk.book.start = number
            self.desk.book.record(
                "start.begun",
                nodes=list(started.nodes),
                token=started.token,
                resume_from=started.launch.resume_from,
                pid=started.pid,
            )
            eye = self._eye(started)
            try:
                over, suspicion = self._attend(eye)
                self.desk.book.record(
                    "start.over", code=over.code, signal=over.signal, by_us=suspicion is not None
                )
                asked = over.failed or suspicion is not None
                if not asked or not self._next(eye, over, suspicion):
                    return
            finally:
                eye.close()
            number += 1

    def _begun(self, number: int) -> Started | None:
        """Start `number`, once it has begun; None where it does not."""
        give_up_s = self.desk.clock.mono_s() + BEGINS_WITHIN_S
        while (started := self.desk.talk.started(number)) is None:
            if self.desk.clock.mono_s() > give_up_s:
                say(f"start {number} did not begin")
                return None
            self.desk.rest(TICK_S / 4)
        return started

    def _eye(self, started: Started) -> Eye:
        self._shim_looks = [self.desk.clock.mono_s() + after_s for after_s in SHIM_LOOKS_S]
        return Eye(
            self.desk.where,
            started,
            self.settings,
            self.desk.catalog,
            lambda: self._silent(started),
            clock=self.desk.clock,
            runs=lambda: agent_reach.runs(self.desk.cluster, self.desk.where.job),
        )

    # ------------------------------------------------------------------ while it runs

    def _attend(self, eye: Eye) -> tuple[Over, Suspicion | None]:
        """Look on until the start is over; end it where it must be ended, and say why."""
        number, suspicion, next_s = eye.started.number, None, 0.0
        ranks = Ranks(self.desk, eye, self.settings, lambda: self.off)
        hangs = Hangs(self.desk, eye.started, self.settings, lambda: self._free(eye.started), self._habits)
        while (over := self.desk.talk.over(number)) is None:
            self.desk.rest(TICK_S)
            if self.desk.clock.mono_s() < next_s:
                continue
            next_s = self.desk.clock.mono_s() + (FIRST_STEP_LOOK_S if self.incident else LOOK_EVERY_S)
            self._check_shim(eye.started)
            found = ranks.look() or eye.judge()
            self._first_step(eye)
            verdict = hangs.look(eye.memory.report)
            if found is None and verdict is not None and verdict.state is State.HUNG:
                found = Suspicion(hung(verdict, eye.started.nodes), verdict.quiet_s)
            found = found or self._slow_node(eye, hangs)
            if found is not None and suspicion is None:
                suspicion = found
                say(f"start {number}: {found.diagnosis.title}; no progress for {found.waited_s:.0f} s")
                agent_stop.stop(self.desk, eye, found, self.settings)
        if self._boundary is not None:
            self._boundary.close()
            self._boundary = None
        self._habits = hangs.history
        eye.look(fresh=True)
        self._first_step(eye)
        return over, suspicion

    def _slow_node(self, eye: Eye, hangs: Hangs) -> Suspicion | None:
        """A steadily slow node is left behind at the next checkpoint, where a spare can take its place then."""
        if hangs.swap is None:
            self._boundary = None
            return None
        wanted = Suspicion(agent_case.slow(hangs.swap.node, hangs.swap.reason), 0.0)
        if self._boundary is None:
            self._boundary = agent_stop.Boundary(self.desk, eye, self.settings)
        verdict = self._boundary.look()
        if not verdict.end:
            return None
        hangs.swap = None
        if not verdict.saved:
            say(f"{wanted.diagnosis.nodes[0]} stays: {verdict.reason}")
            return None
        reach = agent_after.reach_all(self.desk, eye.started.token, eye)
        _, _, move = self._ruled(eye, Over(0, 0), wanted, reach)
        if not reach.known or move.rung is not ladder.Rung.SWAP:
            say(f"{wanted.diagnosis.nodes[0]} stays: {move.reason}")
            return None
        return wanted

    def _first_step(self, eye: Eye) -> None:
        if self.incident and eye.memory.step is not None:
            self.desk.book.record("start.first-step", incident=self.incident, step=eye.memory.step)
            self.incident = ""

    def _check_shim(self, started: Started) -> None:
        """A script whose srun goes around the shim would start its ranks on nodes that were set aside."""
        if self.off or self.desk.clock.mono_s() < self._shim_looks[0]:
            return
        self._shim_looks = self._shim_looks[1:] or [self.desk.clock.mono_s() + SHIM_EVERY_S]
        pid = agent_shim.around(started.pid, self.desk.where.job)
        if pid:
            self.off = "the script calls srun by a way around ftrun's own (a full path, or a PATH set anew)"
            self.desk.book.record("ladder.off", why=self.off)

    def _free(self, started: Started) -> int:
        """How many nodes no start has used yet."""
        return len([node for node in self.desk.where.nodes if node not in {*started.nodes, *self.aside}])

    def _silent(self, started: Started) -> tuple[str, ...] | None:
        """The nodes of a live start that do not answer; None where that cannot be told."""
        found = agent_after.reach_all(self.desk, f"{self.desk.where.launch}.{started.number}")
        return tuple(node for node in started.nodes if node in found.silent) if found.known else None

    # ------------------------------------------------------------------ when it failed

    def _next(self, eye: Eye, over: Over, suspicion: Suspicion | None) -> bool:
        """Answer batch.sh. True = there is another start."""
        incident = f"{self.desk.where.attempt}.{self.desk.where.launch}.{eye.started.number}"
        after = agent_after.settled(
            self.desk,
            eye,
            suspicion,
            self.settings,
            aside=self.aside,
            judged=lambda reach: self._judged(eye, over, suspicion, reach)[1],
        )
        reach, self._checked = after.reach, after.checked
        if not reach.running:
            return self._leave(eye, incident, reach.why)
        case, ruling, move = self._ruled(eye, over, suspicion, reach, incident)
        again = ruling.decision.kind == "resubmit" and not case.run.wish
        if move.rung not in (ladder.Rung.STEP, ladder.Rung.SWAP):
            return self._leave(eye, incident, move.reason, path=move.path, again=again)
        if (why := self._too_late(eye, reach)) != "":
            return self._leave(eye, incident, why, path=move.path, again=again)
        return self._again(eye, incident, case, ruling, move)

    def _ruled(
        self, eye: Eye, over: Over, suspicion: Suspicion | None, reach: Reach, incident: str = ""
    ) -> tuple[grounds.Case, grounds.Ruling, ladder.Move]:
        """What the end means and what comes of it; with `incident`, the diagnosis is journalled under that name."""
        seen, diagnosis, run = self._judged(eye, over, suspicion, reach)
        if incident:
            self.desk.book.record(
                "start.diagnosed",
                incident=incident,
                diagnosis=settle.diagnosis_json(diagnosis),
                step=seen.step,
                first_evidence_at_s=eye.first_evidence_s.get(diagnosis.signature),
            )
            run = self.desk.book.run()
        case = agent_case.case_of(run, seen, diagnosis, self._view())
        return case, *agent_case.ruled(case, self._place(seen, reach, diagnosis, run))

    def _judged(
        self, eye: Eye, over: Over, suspicion: Suspicion | None, reach: Reach
    ) -> tuple[agent_case.Seen, Diagnosis, Run]:
        run = self.desk.book.run()
        seen = self._seen(eye, over, suspicion, reach, run)
        return seen, agent_case.judge(seen, self.desk.catalog()), run

    def _seen(
        self, eye: Eye, over: Over, suspicion: Suspicion | None, reach: Reach, run: Run
    ) -> agent_case.Seen:
        started, settings = eye.started, self.settings
        cwd = context.cwd(self.desk.where.run_dir)
        newest = checkpoints.newest(
            str(settings.get("checkpoint", "")),
            marker=str(settings.get("checkpoint-marker", "")),
            set_aside=checkpoints.still_aside(run.set_aside),
            cwd=cwd,
        )
        before = run.best_checkpoint or started.launch.resume_from
        since_s = started.launch.started_s or 0.0
        report = eye.memory.report
        return agent_case.Seen(
            number=started.number,
            nodes=started.nodes,
            resume_from=started.launch.resume_from,
            code=over.code,
            signal=over.signal,
            now_s=self.desk.clock.now_s(),
            evidence=eye.evidence(over=True),
            topology=eye.topology(),
            progress=report.progress if report is not None else None,
            facts=eye.facts(),
            silent=tuple(node for node in started.nodes if node in reach.silent),
            suspicion=suspicion.diagnosis if suspicion is not None else None,
            step=eye.memory.step,
            checkpoint=newest if newest and checkpoints.newer(newest, before, since_s) else "",
        )

    def _place(self, seen: agent_case.Seen, reach: Reach, diagnosis: Diagnosis, run: Run) -> ladder.Place:
        where = self.desk.where
        facts = nodereports.read(where.run_dir, where.attempt, where.launch, where.nodes, start=seen.number)
        spares = agent_case.usable(
            where.nodes,
            active=seen.nodes,
            aside=self.aside,
            answered=reach.answered,
            unfit=reach.unfit,
            facts=facts,
            excluded=run.excluded_at(seen.now_s),
        )
        return agent_case.place_of(
            seen,
            where.nodes,
            spares,
            self.aside,
            batch_node=where.node,
            culprits=diagnosis.nodes,
            called=bool(self.desk.talk.calls(seen.number)),
            stuck=reach.unfit,
            off=self.off or ("" if reach.known else f"it is not known which nodes are well: {reach.why}"),
        )

    def _view(self) -> grounds.ClusterView:
        """What Slurm says of the cluster; empty where it says nothing."""
        cluster, where = self.desk.cluster, self.desk.where
        try:
            row = cluster.jobs((where.job,)).get(where.job)
            nodes = cluster.nodes()
            return settle.view_of(
                cluster.partitions(),
                nodes,
                cluster.rights(),
                names=row.partition.split(",") if row is not None else (),
                lost=[node for node in where.nodes if node in nodes and not nodes[node].responding],
                nodes_needed=len(where.nodes),
                may_ask=bool(self.settings.get("operator-spool")),
            )
        except SlurmError:
            return grounds.ClusterView()

    def _too_late(self, eye: Eye, reach: Reach) -> str:
        """Why another start in what is left of the job's time would not get far; "" where it would."""
        if reach.end_s is None:
            return ""
        left_s = reach.end_s - self.desk.clock.now_s()
        needed_s = max(WORTH_S, eye.to_first_step_s or 0.0)
        return f"only {left_s:.0f} s are left of the job's time" if left_s < needed_s else ""

    # ------------------------------------------------------------------ the answer

    def _leave(
        self,
        eye: Eye,
        incident: str,
        why: str,
        path: tuple[tuple[str, str], ...] = (),
        *,
        again: bool = False,
    ) -> bool:
        """The job ends as its script ended, and the supervisor decides; `again`: another attempt will follow."""
        say(f"start {eye.started.number}: end: {why}")
        self.desk.book.record("start.left", incident=incident, reason=why, path=[list(one) for one in path])
        if again:
            agent_waiting.hold(self.desk)
        self.desk.book.act("answer", lambda: _answer(self.desk, eye.started.number, checked=self._checked))
        return False

    def _again(
        self,
        eye: Eye,
        incident: str,
        case: grounds.Case,
        ruling: grounds.Ruling,
        move: ladder.Move,
    ) -> bool:
        """Go on inside the allocation: decide, stop what is left, wait where waiting helps, answer."""
        began_s = self.desk.clock.mono_s()
        number, decision = eye.started.number, ruling.decision
        skip = self._set_aside(eye, case, older=decision.older_checkpoint)
        told = agent_case.decided(incident, case, ruling, move)
        self.desk.book.record("start.decided", **told, set_aside=[list(one) for one in skip])
        say(f"start {number}: {move.rung.value}: {move.reason}")
        self.aside = move.aside
        agent_stop.cancel_steps(self.desk)
        self.desk.book.record("start.stopped", incident=incident)
        self.desk.rest(move.delay_s)
        if self.desk.clock.mono_s() - began_s > move.limit_s:
            why = f"it took longer than limit-{move.rung.value}"
            return self._leave(eye, incident, why, move.path, again=True)
        self.desk.book.record("start.placed", incident=incident, nodes=list(move.nodes))
        aside = [*(path for path, _ in skip), *checkpoints.still_aside(case.run.set_aside)]
        fault = case.diagnosis.fault.value
        self.desk.book.act(
            "answer",
            lambda: _answer(
                self.desk, number, nodes=move.nodes, fault=fault, skip=list(dict.fromkeys(aside))
            ),
        )
        self.incident = incident
        return True

    def _set_aside(self, eye: Eye, case: grounds.Case, *, older: bool) -> list[tuple[str, str]]:
        """The checkpoint that this start could not load, with its stamp; no later start loads it unless it is written anew."""
        path = eye.started.launch.resume_from
        if not path or path in checkpoints.still_aside(case.run.set_aside):
            return []
        told = agent_case.cannot_load(eye.evidence(), self.desk.catalog()) and eye.memory.step is None
        return [(path, checkpoints.stamp(path))] if older or told else []


def _answer(desk: Desk, number: int, **words: Any) -> None:
    if not desk.talk.answer(number, **words):
        say(f"start {number}: answered already")
