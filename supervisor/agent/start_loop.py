"""The main loop of the agent: watch each start of the script, and answer batch.sh when one failed. (I/O)

The agent watches a start until batch.sh reports its end. It diagnoses a failed start once the log is quiet
and the nodes have answered (`start_outcome`). It then journals the decision, stops what still runs, and
answers batch.sh: `again` on these nodes, or `end`. The answer is `end` whenever something is unclear, Slurm
or the journal fails, or a rung exceeds its time limit. The job then ends as its script ended, and the
supervisor takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.records import replace
from ftrun.supervisor.agent import (
    allocation,
    batch_channel,
    companion_jobs,
    release_nodes,
    start_monitor,
    start_outcome,
    stop_start,
)
from ftrun.supervisor.agent.batch_channel import Started, StartEnd
from ftrun.supervisor.agent.checkpoint_reader import ChecksumReader
from ftrun.supervisor.agent.checkpoint_staging import StagingCoordinator
from ftrun.supervisor.agent.companion_jobs import Companions
from ftrun.supervisor.agent.companion_prefetch import CompanionPrefetch, SpareRefill
from ftrun.supervisor.agent.context import AgentContext, Suspicion, log_line
from ftrun.supervisor.agent.node_checks import FailureChecks
from ftrun.supervisor.agent.node_liveness import NodeAnswers
from ftrun.supervisor.agent.rank_restart import RankRestart
from ftrun.supervisor.agent.resize import GrowContext, GrowMonitor
from ftrun.supervisor.agent.silent_nodes import SilentNodes
from ftrun.supervisor.agent.spanning_limits import SpanningLimits
from ftrun.supervisor.agent.start_monitor import HangMonitor, StartMonitor
from ftrun.supervisor.agent.stop_start import DrainMonitor, StragglerSwap
from ftrun.supervisor.config import recovery_order
from ftrun.supervisor.config import rungs as config_rungs
from ftrun.supervisor.diagnosis import resumable, suspicions
from ftrun.supervisor.model.agent_events import GROW_RUNG
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.model.types import Diagnosis, HangState, cause_line
from ftrun.supervisor.policy import ladder, policy_input, start_decision
from ftrun.supervisor.store import checkpoints
from ftrun.supervisor.submission import dependent_jobs
from ftrun.supervisor.telemetry.liveness import History

TICK_S = 0.2
LOOK_EVERY_S = 1.0
FIRST_STEP_LOOK_S = 0.2  # while the time to the first step after an incident is measured
SHIM_LOOKS_S = (1.0, 3.0, 8.0, 20.0)  # after a start began; then once a minute
SHIM_EVERY_S = 60.0
BEGINS_WITHIN_S = 120.0

HERE = (config_rungs.Rung.STEP, config_rungs.Rung.SWAP, config_rungs.Rung.COMPANION, config_rungs.Rung.SHRINK)
_Diagnosed = tuple[start_decision.StartFacts, Diagnosis, Run]
COMES_S = 8.0  # a companion must be ready so long before the limit, to check its nodes


@dataclass(frozen=True, slots=True)
class _Cause:
    """Why the script starts again: the class of the fault ("" for none), and it in words for the job's log."""

    fault: str
    why: str


@dataclass(frozen=True, slots=True)
class _Decision:
    """What follows from a failed start: the case, the policy's ruling, the position of the job, and the
    ladder's move.
    """

    case: policy_input.PolicyInput
    ruling: policy_input.Ruling
    place: ladder.AllocationState
    move: ladder.RecoveryStep


@dataclass
class StartLoop:
    """The starts of one launch, and the companions that hold nodes for them.

    `aside` are nodes that no later start may use; `off` is why nothing is restarted inside the allocation.
    """

    ctx: AgentContext
    settings: dict[str, Any]
    off: str = ""
    aside: tuple[str, ...] = ()
    incident: str = ""  # the incident before this start, until the first step
    _shim_looks: list[float] = field(default_factory=list)
    _growth: GrowMonitor | None = None
    _silences: History = field(default_factory=History)  # log silences of earlier starts
    _survived: set[str] = field(default_factory=set)  # findings after which some start went on
    _log_sizes: Mapping[str, int] = field(default_factory=dict)  # of --ft-log, as the start before left them
    _checked: bool = False  # the nodes were checked after the last failed start
    _used: set[str] = field(default_factory=set)  # the nodes of all starts of this launch
    _swept_all: bool = False  # they were all swept after the last failed start
    _checks: FailureChecks | None = None  # the checks after the present start
    companions: Companions = field(init=False)
    early: CompanionPrefetch = field(init=False)
    refill: SpareRefill = field(init=False)
    apart: SpanningLimits = field(init=False)
    mending: release_nodes.DrainedNodeRelease = field(init=False)
    stage: StagingCoordinator = field(init=False)
    deep: ChecksumReader = field(init=False)

    def __post_init__(self) -> None:
        self.companions = Companions(self.ctx, self.settings)
        self.apart = SpanningLimits(self.ctx)
        self.mending = release_nodes.DrainedNodeRelease(self.ctx, self.settings)
        self.early = CompanionPrefetch(self.ctx, self.companions, self.apart, self.settings)
        self.refill = SpareRefill(self.ctx, self.companions, self.apart, self.settings)
        self.stage = StagingCoordinator(self.ctx, self.settings)
        where = self.ctx.where
        self.deep = ChecksumReader(where.home, where.run_dir, self.settings, self.ctx.reader)

    def run(self) -> None:
        """Run all starts, to the last. Raises OSError (journal), GivenUp."""
        self._run_all()
        self.stage.leave()
        self.deep.close()
        self.companions.end_all("the launch is over")

    def _run_all(self) -> None:
        number = 1
        while (started := self._await_start(number)) is not None:
            self.ctx.journal.start = number
            self._used |= {*started.nodes}
            self.ctx.journal.record("start.begun", **start_outcome.begin_record(started))
            self.stage.begun(started)
            self.deep.begun(self.ctx.journal.run)
            checks = self._checks = FailureChecks(self.ctx, started, self.settings)
            monitor = self._monitor(started, checks)
            try:
                over, suspicion = self._watch_start(monitor)
                why = {"by_us": True, "why": suspicion.diagnosis.title} if suspicion else {"by_us": False}
                self.ctx.journal.record("start.over", code=over.code, signal=over.signal, **why)
                if not (over.failed or suspicion) or not self._handle_failure(
                    monitor, over, suspicion, checks
                ):
                    return
                self._log_sizes = monitor.extra_log_sizes()
            finally:
                monitor.close()
                checks.let_go()
            number += 1

    def _await_start(self, number: int) -> Started | None:
        """Wait for start `number`; None if it does not begin."""
        give_up_s = self.ctx.clock.mono_s() + BEGINS_WITHIN_S
        while (started := self.ctx.channel.started(number)) is None:
            if self.ctx.clock.mono_s() > give_up_s:
                log_line(f"start {number} did not begin")
                return None
            self.ctx.rest(TICK_S / 4)
        return started

    def _monitor(self, started: Started, checks: FailureChecks) -> StartMonitor:
        self._shim_looks = [self.ctx.clock.mono_s() + after_s for after_s in SHIM_LOOKS_S]

        def doubted(heard: tuple[str, ...]) -> None:
            if monitor.is_ending and self.settings.get("after-checks") != "never":
                checks.begin(tuple(node for node in heard if node not in self.aside))

        silent = SilentNodes(self.ctx, started)

        def lost(moves: Callable[[], bool]) -> tuple[str, ...] | None:
            def stop() -> bool:
                monitor.look()
                return moves() or self.ctx.channel.over(started.number) is not None

            silent.beats = monitor.hangs.watch.beats if monitor.hangs is not None else None
            return silent.ask(stop)

        monitor = StartMonitor(
            self.ctx.where,
            started,
            self.settings,
            self.ctx.catalog,
            lambda: self._silent_nodes(started, doubted),
            lost=lost,
            clock=self.ctx.clock,
            survived=self._survived,
            log_sizes=self._log_sizes if started.number > 1 else self._sizes_before(),
            companions=lambda: tuple(span.job for span in (*self.ctx.spans, *self.ctx.coming)),
        )
        return monitor

    def _sizes_before(self) -> Mapping[str, int]:
        """How long the logs of `--ft-log` were before this attempt."""
        attempt = self.ctx.journal.run().attempt
        ours = attempt is not None and attempt.number == self.ctx.where.attempt
        return attempt.launch.log_sizes if attempt is not None and ours else {}

    # ------------------------------------------------------------------ while it runs

    def _watch_start(self, monitor: StartMonitor) -> tuple[StartEnd, Suspicion | None]:
        """Watch the start until it is over, and end it where necessary. Returns how it ended and why the
        agent ended it.
        """
        number, suspicion, next_s = monitor.started.number, None, 0.0
        ranks = RankRestart(self.ctx, monitor, self.settings, lambda: self.off)
        hangs = HangMonitor(
            self.ctx,
            monitor.started,
            self.settings,
            lambda: self._unused_count(monitor.started),
            lambda: monitor.look(fresh=True),
            self._silences,
        )
        monitor.hangs = hangs
        drained = DrainMonitor(
            self.ctx, monitor, self.settings, lambda found, out: self._swap_objection(monitor, found, out)
        )
        slow = StragglerSwap(
            self.ctx, monitor, self.settings, hangs, lambda found: self._swap_objection(monitor, found)
        )
        room = self._grow_context(lambda: slow.waits or drained.waits or monitor.is_ending)
        growth = self._growth = GrowMonitor(self.ctx, monitor, self.settings, room)
        while (over := self.ctx.channel.over(number)) is None:
            self.ctx.rest(TICK_S)
            if self.ctx.clock.mono_s() < next_s and not monitor.stirs():
                continue
            next_s = self.ctx.clock.mono_s() + (FIRST_STEP_LOOK_S if self.incident else LOOK_EVERY_S)
            self._check_shim(monitor.started)
            found = ranks.look() or monitor.judge()
            self._note_first_step(monitor)
            verdict = hangs.look(monitor.memory.report, monitor.suspicious()) if found is None else None
            if verdict is not None and verdict.state is HangState.HUNG:
                found = monitor.hung(verdict)
            found = found or slow.look() or drained.look() or growth.look()
            busy = bool(found or suspicion or growth.busy or room.busy())
            self.aside = self.mending.look(monitor.started.nodes, self.aside, busy=busy)
            self.refill.look(monitor, self.aside, busy=busy)
            if found is not None and suspicion is None:
                suspicion = found
                log_line(f"start {number}: {found.diagnosis.title}; no progress for {found.waited_s:.0f} s")
                if found.diagnosis.signature == suspicions.LOST:
                    self.early.ask(monitor.started, found.diagnosis.nodes, self.aside, self._checks)
                stop_start.stop(self.ctx, monitor, found, self.settings)
        drained.close()
        growth.close()
        slow.close()
        self._silences = hangs.history
        monitor.look(fresh=True)
        self._note_first_step(monitor)
        return over, suspicion

    def _swap_objection(self, monitor: StartMonitor, wanted: Suspicion, out: tuple[str, ...] = ()) -> str:
        """Why no spare can replace these nodes now, `out` counting as unusable; "" = one can."""
        self.aside = tuple(dict.fromkeys((*self.aside, *out)))
        reach = start_monitor.query_all_nodes(self.ctx, monitor.started.token, monitor)
        move = self._decide(monitor, StartEnd(0, 0), wanted, reach).move
        return "" if reach.known and move.rung is config_rungs.Rung.SWAP else move.reason

    def _grow_context(self, leaves: Callable[[], bool]) -> GrowContext:
        left = "a node of the run is being left"
        return GrowContext(
            self.companions, self.apart, lambda: self.aside, lambda: left if leaves() else self.off
        )

    def _note_first_step(self, monitor: StartMonitor) -> None:
        if self.incident and monitor.memory.step is not None:
            self.ctx.journal.record("start.first-step", incident=self.incident, step=monitor.memory.step)
            self.incident = ""

    def _check_shim(self, started: Started) -> None:
        """Turn recovery off if the script bypasses the srun shim: its srun would start ranks on excluded
        nodes.
        """
        if self.off or self.ctx.clock.mono_s() < self._shim_looks[0]:
            return
        self._shim_looks = self._shim_looks[1:] or [self.ctx.clock.mono_s() + SHIM_EVERY_S]
        pid = batch_channel.unshimmed_srun(started.pid, self.ctx.where.job)
        if pid:
            self.off = "the script calls srun by a way around ftrun's own (a full path, or a PATH set anew)"
            self.ctx.journal.record("ladder.off", why=self.off)

    def _unused_count(self, started: Started) -> int:
        return len({*self.ctx.nodes} - {*started.nodes, *self.aside})

    def _silent_nodes(
        self, started: Started, doubted: Callable[[tuple[str, ...]], None]
    ) -> tuple[str, ...] | None:
        """The nodes of a live start that do not answer; None if unknown."""
        token = f"{self.ctx.where.launch}.{started.number}"
        wait_s = start_outcome.refusal_limit_s(self.ctx, started, self.settings, self.aside)
        found = start_monitor.query_all_nodes(self.ctx, token, doubted=doubted, shut_s=wait_s)
        return tuple(node for node in started.nodes if node in found.silent) if found.known else None

    # ------------------------------------------------------------------ when it failed

    def _handle_failure(
        self, monitor: StartMonitor, over: StartEnd, suspicion: Suspicion | None, checks: FailureChecks
    ) -> bool:
        """Answer batch.sh. True = there is another start."""
        incident = start_outcome.incident_name(self.ctx, monitor.started)
        reach, self._checked = start_outcome.check_ended_start(
            self.ctx,
            monitor,
            suspicion,
            self.settings,
            checks,
            aside=self.aside,
            judged=lambda reach: self._diagnose(monitor, over, suspicion, reach)[1],
            heard=lambda reach: self.early.ask(monitor.started, reach.silent, self.aside, checks),
        )
        self.stage.heard(monitor.started, reach)
        self._swept_all = reach.known and self._used <= {*reach.answered} - {*reach.unfit}
        if not reach.running:
            return self._end_job(monitor, incident, reach.why)
        if self._growth is not None and self._growth.nodes and suspicion is not None:
            if nodes := self._growth.nodes_after_end(reach):
                return self._start_grown(
                    monitor, incident, nodes, self._diagnose(monitor, over, suspicion, reach)
                )
            suspicion = Suspicion(
                suspicions.lost_before_growth(monitor.started.nodes, reach.answered, reach.unfit), 0.0
            )
        self.apart.note(
            monitor.started.nodes, monitor.memory.step, well=reach.known and not {*reach.silent, *reach.gone}
        )
        ruled = self._decide(monitor, over, suspicion, reach, incident)
        move = ruled.move
        again = ruled.ruling.decision.kind == "resubmit" and not ruled.case.run.wish
        if move.rung not in HERE:
            return self._end_job(monitor, incident, move.reason, path=move.path, again=again)
        if (why := start_outcome.time_objection(self.ctx, monitor, reach)) != "":
            return self._end_job(monitor, incident, why, path=move.path, again=again)
        return self._recover(monitor, incident, ruled, reach)

    def _decide(
        self,
        monitor: StartMonitor,
        over: StartEnd,
        suspicion: Suspicion | None,
        reach: NodeAnswers,
        incident: str = "",
    ) -> _Decision:
        """Diagnose the end and decide; with `incident`, the diagnosis is journalled under that name."""
        seen, diagnosis, run = self._diagnose(monitor, over, suspicion, reach)
        if incident:
            start_outcome.journal_diagnosis(self.ctx, monitor, seen, incident, diagnosis)
            # A finding that blamed no node explains no later start either.
            self._survived |= {one.key for one in seen.facts.findings if one.node not in diagnosis.nodes}
            run = self.ctx.journal.run()
        around = allocation.view_cluster(self.ctx, self.settings, run)
        case = start_decision.policy_input_of(run, seen, diagnosis, around)
        place = allocation.describe_allocation(
            self.ctx,
            seen,
            reach,
            diagnosis,
            run,
            aside=(*self.aside, *self.apart.useless),
            off=self.off,
            around=around,
            companion_off=self.apart.after(seen.number, self.settings, diagnosis, reach.end_s),
        )
        ruling, move = start_decision.decide_start(case, place)
        return _Decision(case, ruling, place, move)

    def _diagnose(
        self, monitor: StartMonitor, over: StartEnd, suspicion: Suspicion | None, reach: NodeAnswers
    ) -> _Diagnosed:
        run = self.ctx.journal.run()
        seen = start_outcome.collect_facts(
            self.ctx, self.settings, run, monitor, over=over, suspicion=suspicion, reach=reach
        )
        return seen, start_decision.diagnose_start(seen, self.ctx.catalog()), run

    # ------------------------------------------------------------------ the answer

    def _end_job(
        self,
        monitor: StartMonitor,
        incident: str,
        why: str,
        path: tuple[tuple[str, str], ...] = (),
        *,
        again: bool = False,
    ) -> bool:
        """End the job as its script ended, so that the supervisor decides. `again`: another attempt will
        follow.
        """
        log_line(f"start {monitor.started.number}: end: {why}")
        self.ctx.journal.record("start.left", incident=incident, reason=why, path=[list(one) for one in path])
        if again:
            _hold_dependents(self.ctx)
        self.stage.leave()
        self.companions.end_all("the job ends")
        if self._swept_all:
            start_outcome.note_swept_caches(self.ctx)
        self.ctx.journal.act("answer", lambda: self.ctx.answer(monitor.started.number, checked=self._checked))
        return False

    def _recover(self, monitor: StartMonitor, incident: str, ruled: _Decision, reach: NodeAnswers) -> bool:
        """Recover inside the allocation: journal the decision, stop what is left, get a companion or wait if
        necessary, answer.
        """
        began_s, case, move = self.ctx.clock.mono_s(), ruled.case, ruled.move
        skip = start_outcome.checkpoints_to_skip(
            self.ctx, monitor, case, older=ruled.ruling.decision.older_checkpoint
        )
        told = start_decision.decision_record(incident, case, ruled.ruling, move)
        self.ctx.journal.record("start.decided", **told, set_aside=[list(one) for one in skip])
        log_line(f"start {monitor.started.number}: {move.rung.value}: {move.reason}")
        self.aside = move.aside
        if why := release_nodes.release_silent_nodes(self.ctx, reach.silent):
            return self._end_job(monitor, incident, why, move.path, again=True)
        stop_start.cancel_steps(self.ctx)
        self.ctx.journal.record("start.stopped", incident=incident)
        self.companions.end_broken({*reach.silent, *reach.gone, *self.apart.useless})
        nodes = move.nodes
        if move.rung is config_rungs.Rung.COMPANION:
            joined = self._join_companion(monitor, ruled, reach, began_s + move.limit_s - COMES_S)
            if not joined.nodes:
                return self._next_rung(monitor, incident, ruled, reach, joined)
            nodes += joined.nodes
        self.companions.end_ahead("another rung is taken")
        self.ctx.rest(max(0.0, began_s + move.delay_s - self.ctx.clock.mono_s()))
        if self.ctx.clock.mono_s() - began_s > move.limit_s:
            why = f"it took longer than limit-{move.rung.value}"
            return self._end_job(monitor, incident, why, move.path, again=True)
        skipped = [*(path for path, _ in skip), *checkpoints.unchanged_since_set_aside(case.run.set_aside)]
        skipped = [path for path in skipped if path not in told["taken_back"]]
        cause = _Cause(case.diagnosis.fault.value, cause_line(case.diagnosis.to_json()))
        self._answer_again(monitor, incident, nodes, cause, skipped, fresh=ruled.ruling.decision.fresh)
        return True

    def _answer_again(
        self,
        monitor: StartMonitor,
        incident: str,
        nodes: tuple[str, ...],
        cause: _Cause,
        skip: list[str],
        *,
        fresh: bool = False,
    ) -> None:
        nodes, spans = companion_jobs.rank_order(self.ctx, nodes)
        self.aside = tuple(node for node in self.aside if node in self.ctx.nodes)
        self.ctx.journal.record("start.placed", incident=incident, nodes=list(nodes))
        words = {"nodes": nodes, "spans": spans, "skip": list(dict.fromkeys(skip))}
        words |= {"fault": cause.fault, "why": cause.why}
        words |= resumable.restart_answer(self.ctx.where.run_dir, self.ctx.journal.run()) | {"fresh": fresh}
        found = self.stage.resume(monitor.started, nodes, skip)
        self.ctx.journal.act("answer", lambda: self.ctx.answer(monitor.started.number, resume=found, **words))
        self.incident = incident

    def _start_grown(
        self, monitor: StartMonitor, incident: str, nodes: tuple[str, ...], judged: _Diagnosed
    ) -> bool:
        """Start again on more nodes after a planned end. Nothing had failed: no budget is spent, and there is
        no incident.
        """
        (seen, why, run), around = judged, policy_input.ClusterView()
        if run.wish:
            return self._end_job(monitor, incident, f"a person said {run.wish}")
        self.aside = tuple(node for node in self.aside if node not in nodes)
        case, reason = (
            start_decision.policy_input_of(run, seen, why, around),
            f"{why.title} {why.rests_on[0]}",
        )
        told = start_decision.growth_record(incident, case, nodes, self.aside, reason)
        self.ctx.journal.record("start.decided", **told, rung=GROW_RUNG)
        stop_start.cancel_steps(self.ctx)
        self.ctx.journal.record("start.stopped", incident=incident)
        self._answer_again(
            monitor,
            incident,
            nodes,
            _Cause("", reason),
            list(checkpoints.unchanged_since_set_aside(run.set_aside)),
        )
        return True

    def _join_companion(
        self, monitor: StartMonitor, ruled: _Decision, reach: NodeAnswers, until_s: float
    ) -> companion_jobs.JoinResult:
        run, now_s = ruled.case.run, self.ctx.clock.now_s()
        away = {*run.excluded_at(now_s), *ruled.ruling.decision.exclude, *reach.silent, *reach.unfit}
        if ruled.move.within:
            away |= set(ruled.case.cluster.partition) - set(ruled.move.within)
        count, why = ruled.move.missing, ruled.move.reason
        wanted = companion_jobs.CompanionRequest(
            monitor.started, count, frozenset(away), reach.end_s, until_s, why
        )
        return companion_jobs.join(
            self.ctx, self.companions, self.settings, wanted, checks=self._checks, swept=self.early.taken()
        )

    def _next_rung(
        self,
        monitor: StartMonitor,
        incident: str,
        ruled: _Decision,
        reach: NodeAnswers,
        joined: companion_jobs.JoinResult,
    ) -> bool:
        """No companion came: take the next rung for the same incident."""
        self.apart.why = self.apart.why or (joined.why if joined.lasts else "")
        place, rungs = (
            replace(ruled.place, companion_off=joined.why),
            recovery_order.rung_rules_from(self.settings),
        )
        move = ladder.choose_action(ruled.case, ruled.ruling, rungs, place, ruled.move.used)
        if move.rung not in HERE:
            return self._end_job(monitor, incident, move.reason, path=move.path, again=True)
        return self._recover(monitor, incident, replace(ruled, place=place, move=move), reach)


def _hold_dependents(ctx: AgentContext) -> None:
    """Hold the jobs that depend on this one before it ends, so that its end starts none of them (P5).

    The agent stands between the end of the script and the end of the job, so it is the last that can do this.
    The journal names the jobs before they are held. The supervisor lets them wait for the next attempt, or
    releases them if there is none. If Slurm does not answer or refuses, the job ends all the same, and its
    dependents see that end as they would without ftrun. Raises OSError (journal), GivenUp.
    """
    try:
        waiting, since = dependent_jobs.holdable(ctx.cluster, ctx.where.job)
    except SlurmError as error:
        log_line(f"what waits for this job is not known: {error.message}")
        return
    if not waiting:
        return
    ctx.journal.record("dependents.held", jobs=sorted(waiting), waits=waiting, since=since)
    for job in sorted(waiting):
        try:
            ctx.journal.act("hold", partial(ctx.cluster.hold, job))
        except SlurmError as error:
            log_line(f"job {job}, which waits for this one, could not be held: {error.message}")
