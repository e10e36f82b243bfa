"""Monitor of one live start: logs, steps, node reports, hangs, stragglers; and when to end the start. (I/O)

`diagnosis.launch_monitor` looks and judges, as it does for the supervisor (P7). A fatal line, or a bad finding of a node check, makes
a start suspect, and a suspect start needs less evidence for a hang. From inside the allocation one fault is
found faster: a node that does not answer confirms its own fault. So the agent asks the nodes when it sees a
fatal line, when srun reports a failed task, when a start that made steps stands still for longer than usual,
and when the ranks of a node stop writing beats (`telemetry.node_silence`). One quick answer is enough while
srun says that it is ending the step, which srun cannot finish on a dead node for many seconds; else several
witnesses must agree, without a sign of life of the start meanwhile.

`HangMonitor` adapts `telemetry.hang_watch` and `telemetry.straggler`. Here too the agent has an advantage: its
steps reach every node at once, it can wait for the stacks, and it asks Slurm itself whether the job runs. It
ends the start when the hang watch says `hung`.

A healthy start costs one read of the log and one stat of a folder at each look.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ftrun.slurm.client.errors import SlurmError
from ftrun.supervisor.agent import node_liveness
from ftrun.supervisor.agent.batch_channel import Started
from ftrun.supervisor.agent.context import AgentContext, LaunchIdentity, Suspicion, log_line
from ftrun.supervisor.agent.node_liveness import QUIET_S, SHUT_S, NodeAnswers, PingRequest
from ftrun.supervisor.config.settings import number_of, text_of
from ftrun.supervisor.diagnosis import inputs, node_findings, suspicions
from ftrun.supervisor.diagnosis.launch_monitor import LaunchMonitor
from ftrun.supervisor.diagnosis.launch_state import LaunchState, StallVerdict, is_found_by_a_check
from ftrun.supervisor.diagnosis.node_findings import NodeFacts
from ftrun.supervisor.model import types
from ftrun.supervisor.model.types import Evidence, Topology
from ftrun.supervisor.signatures.catalog import Catalog
from ftrun.supervisor.store import node_reports, submission_context
from ftrun.supervisor.store.lease import Clock
from ftrun.supervisor.store.run_dir import folder_time_ns
from ftrun.supervisor.telemetry import hang_rules, liveness, log_watcher, node_silence, straggler
from ftrun.supervisor.telemetry.hang_watch import (
    ASK_LIMIT_S,
    ASK_QUIET_S,
    HangWatch,
    StacksAnswer,
    stacks_command,
)
from ftrun.supervisor.telemetry.line_owner import KnownOwners
from ftrun.supervisor.telemetry.log_watcher import WatchReport
from ftrun.supervisor.telemetry.step_logs import Place, StepLogs
from ftrun.supervisor.telemetry.tail import LogPath

ASKED_AGAIN_S = 5.0  # where nothing was learnt, or a node came back
ABSENT_S = 20.0  # after a longer gap between looks the job was suspended, and the agent with it
STEP_ENDS = frozenset(
    {"slurm-task-ended", "slurm-task-exit", "slurm-task-killed"}
)  # messages of srun about its own step
OVERDUE_S = 60.0  # then beats that a node owes are heeded again, if all nodes answered
ENDING_S = 60.0  # they explain a silent node for so long; another step may run by then


class StartMonitor:
    """Monitors one start.

    `ending` asks the nodes once and returns those of the start that do not answer, None if unknown; `lost`
    returns those that are lost (`SilentNodes.ask`). `survived` are findings after which a start of this launch went on; this start adds its own. `log_sizes`: what stood in
    the logs of `--ft-log` before this start (bytes by file). `companions` are the jobs that hold nodes for
    this one.
    """

    def __init__(
        self,
        where: LaunchIdentity,
        started: Started,
        settings: Mapping[str, Any],
        catalog: Callable[[], Catalog],
        ending: Callable[[], tuple[str, ...] | None],
        *,
        lost: Callable[[Callable[[], bool]], tuple[str, ...] | None],
        clock: Clock,
        survived: set[str] | None = None,
        log_sizes: Mapping[str, int] = MappingProxyType({}),
        companions: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self._where = where
        self.started = started
        self._settings, self._catalog, self._ask_ending, self._ask_lost = settings, catalog, ending, lost
        self.hangs: HangMonitor | None = None  # it knows the beats
        self._clock, self._companions = clock, companions
        self._judged_s: float | None = None
        self._log_sizes = log_sizes
        place = Place(where.run_dir, where.attempt, where.launch, started.number)
        self._of_steps = StepLogs(place, started.nodes)
        self.memory = LaunchState(attempt=where.attempt, launch=where.launch)
        if survived is not None:
            self.memory.survived = survived
        self._monitor = LaunchMonitor(self, self.memory, settings, catalog)
        self._suspected = self._ending = False
        self._ending_s = 0.0
        self._began_s = self._quiet_since_s = self._clock.mono_s()
        self.to_first_step_s: float | None = None  # how long this start took to its first step
        self._not_before_s = 0.0  # until then (monotonic) the nodes are left alone, unless the start moves
        self._moved_s = 0.0  # the last movement of beats that was seen, in watched time
        self._overdue_s = self._overdue_rest_s = (
            0.0  # beats of a node: when to heed them again, and the pause
        )
        self.unheard: tuple[str, ...] = ()  # the silent nodes at the last answer
        self.end_offsets: Mapping[str, int] = {}  # log -> its bytes when ftrun began to end the start
        self.first_evidence_s: dict[str, float] = {}  # signature -> first seen (Unix seconds)

    # ------------------------------------------------------------------ what the monitor asks for

    def logs(self) -> list[LogPath]:
        """See `MonitorBackend.logs`."""
        return log_watcher.recorded_logs(self.started.launch)

    def other_logs(self) -> list[LogPath]:
        """See `MonitorBackend.other_logs`."""
        named = sorted(path for path in self.named() if not inputs.is_attachment(path))
        return self._of_steps.find() + [LogPath(path, self._log_sizes.get(path, 0)) for path in named]

    def owners(self) -> KnownOwners:
        """See `MonitorBackend.owners`."""
        return log_watcher.known_owners(self._where.run_dir, self._where.attempt, self._where.launch)

    def family(self) -> tuple[Collection[str], Collection[str]]:
        """See `MonitorBackend.family`."""
        return (self._where.job, *self._companions()), (*self._where.nodes, *self.started.nodes)

    def nodes(self) -> tuple[str, ...]:
        """See `MonitorBackend.nodes`."""
        return self.started.nodes

    def reports_stamp(self) -> int:
        """See `MonitorBackend.reports_stamp`."""
        return folder_time_ns(node_reports.folder(self._where.run_dir, self._where.attempt))

    def node_reports(self) -> NodeFacts:
        """See `MonitorBackend.node_reports`. While the start lives, the checks of its end are left out: some
        nodes may still run them.
        """
        return self._where.node_facts(self.started.nodes, start=self.started.number + 1)

    # ------------------------------------------------------------------ looking

    def look(self, *, fresh: bool = False) -> WatchReport | None:
        """Read new log lines. None if no log is known."""
        memory, mono_s = self.memory, self._clock.mono_s()
        growth, steps_seen = memory.growth, memory.steps_seen
        report = self._monitor.look(self._clock.now_s(), mono_s, fresh=fresh)
        if report is None:
            return None
        for evidence in report.new:
            self.first_evidence_s.setdefault(evidence.signature, evidence.at_s or self._clock.now_s())
        if memory.growth != growth:
            self._quiet_since_s = mono_s
        if memory.step is not None and self.to_first_step_s is None:
            self.to_first_step_s = mono_s - self._began_s
        if memory.steps_seen != steps_seen:
            self._not_before_s, self.unheard, self._ending = 0.0, (), False
        if any(one.signature in STEP_ENDS for one in report.new):
            self._not_before_s, self._ending, self._ending_s = 0.0, True, mono_s
        return report

    def stirs(self) -> bool:
        """Look, and say whether srun has just reported the end of a step, which must not wait for the next
        turn.
        """
        before_s = self._ending_s
        self.look()
        return self._ending and self._ending_s != before_s

    @property
    def is_ending(self) -> bool:
        """srun says that it is ending its step."""
        return self._ending

    def quiet_s(self) -> float:
        """Seconds since a log last grew."""
        return self._clock.mono_s() - self._quiet_since_s

    def named(self) -> list[str]:
        """The files of `--ft-log` that this start has written."""
        if not self._settings.get("log"):
            return []
        since_s = self.started.launch.started_s or 0.0
        return inputs.find_extra_logs(self._settings, submission_context.cwd(self._where.run_dir), since_s)

    def extra_log_sizes(self) -> dict[str, int]:
        """How long each file of `--ft-log` is now, in bytes."""
        return inputs.extra_log_sizes(self._settings, submission_context.cwd(self._where.run_dir))

    def close(self) -> None:
        """Close the log files."""
        self._monitor.close()

    def note_end(self) -> Mapping[str, int]:
        """Note that ftrun begins to end the start: how long each log is now. Once."""
        if not self.end_offsets:
            self.look(fresh=True)
            self.end_offsets = self._monitor.log_sizes(self.named())
        return self.end_offsets

    def evidence(self, *, over: bool = False) -> tuple[Evidence, ...]:
        """The evidence from the logs; at the end also from files that are complete only then."""
        found = self.memory.evidence
        if not over:
            return found
        named = inputs.attachments_before(self.named(), self.end_offsets)
        return (*found, *inputs.extra_evidence(named, self._catalog(), found))

    def topology(self) -> Topology:
        """Which rank runs on which node."""
        return self._monitor.topology()

    def facts(self) -> NodeFacts:
        """The node reports at the end of the start, read anew."""
        return self._where.node_facts(self.started.nodes, start=self.started.number)

    # ------------------------------------------------------------------ judging

    def judge(self) -> Suspicion | None:
        """Look, and say whether and why to end the start."""
        report = self.look()
        if report is None or not report.readable or report.behind:
            return None
        mono_s = self._clock.mono_s()
        if self._judged_s is not None and mono_s - self._judged_s > ABSENT_S:
            self._quiet_since_s, self._not_before_s, self.unheard = mono_s, 0.0, ()
        self._judged_s = mono_s
        seen = self._monitor.judge(self._clock.now_s(), mono_s, suspected=self._suspected)
        if seen is StallVerdict.SUSPECT and not self._suspected:
            self._not_before_s = 0.0
        self._suspected = seen is StallVerdict.SUSPECT
        return self._suspect_silent_nodes(report)

    def suspicious(self) -> hang_rules.HangLimits | None:
        """The limits of the hang watch while a fatal sign was seen and not survived; None otherwise."""
        return self._monitor.suspect_limits()

    def hung(self, verdict: types.HangVerdict) -> Suspicion:
        """The suspicion about a start that hangs. A fault confirmed by a node check explains more than the
        silence.
        """
        found = self.memory.suspicion
        if found is None or not is_found_by_a_check(found):
            found = suspicions.hang_suspicion(verdict, self.started.nodes)
        return Suspicion(found, verdict.quiet_s, verdict.rank_ended)

    def _suspect_silent_nodes(self, report: WatchReport) -> Suspicion | None:
        """A suspicion if the start stands still and nodes of it do not answer."""
        mono_s = self._clock.mono_s()
        self._ending = self._ending and mono_s - self._ending_s < ENDING_S
        quiet_s = self._quiet_to_ask_s(report)
        overdue = quiet_s is None and self._is_overdue(mono_s)
        if overdue:
            quiet_s = self.quiet_s()
        by_beats = overdue or (self.hangs is not None and self.hangs.history.moves.kind == "beats")
        if quiet_s is None or quiet_s < float(self._settings.get("own-restart", 0.0)):
            return None  # what restarts within the job by itself is given its time
        moved = self._signs_of_life()
        # The questions take seconds, in which a stalled node may have come back.
        lost = self._ask_ending() if self._ending else self._ask_lost(lambda: self._signs_of_life() != moved)
        if self._clock.mono_s() - mono_s <= node_liveness.JUDGED_LIMIT_S + ABSENT_S:
            self._judged_s = self._clock.mono_s()  # the question was no absence
        self.unheard = lost or ()
        still = self.look(fresh=True) is not None and self._signs_of_life() == moved
        if lost and still and (self._ending or by_beats or self.quiet_s() >= ASKED_AGAIN_S):
            return Suspicion(suspicions.lost_suspicion(lost), quiet_s)
        pause_s = node_silence.rest_s(quiet_s) if lost == () else ASKED_AGAIN_S
        self._not_before_s = self._clock.mono_s() + pause_s
        if overdue:
            self._overdue_rest_s = min(node_silence.REST_MAX_S, max(OVERDUE_S, 2.0 * self._overdue_rest_s))
            self._overdue_s = self._clock.mono_s() + self._overdue_rest_s
        return None

    def _quiet_to_ask_s(self, report: WatchReport) -> float | None:
        """How long the start has stood still, if it is time to ask its nodes."""
        memory, quiet_s = self.memory, self.quiet_s()
        step_s, history = report.median_step_s or 0.0, self.hangs.history if self.hangs is not None else None
        if history is None or history.moves.kind != "beats" or history.moves.steps < liveness.WARM_STEPS:
            history = None
        suspect = self._ending or self._suspected
        if history is not None and history.moves.at_s != self._moved_s and not suspect:
            self._moved_s, self._not_before_s = history.moves.at_s, 0.0
        if self._clock.mono_s() < self._not_before_s:
            return None
        if suspect and (self._ending or not self._not_before_s or quiet_s >= ASKED_AGAIN_S):
            return quiet_s
        if history is not None:
            beats_s = history.at(self._clock.mono_s()) - history.moves.at_s
            longest_s = max(history.moves.longest_s, history.learnt.get(history.phase, 0.0))
            after_s = node_silence.ask_after_s(beats=True, step_s=step_s, longest_s=longest_s)
            return min(beats_s, quiet_s) if beats_s >= after_s else None
        if memory.steps_seen < 2:
            return None
        after_s = node_silence.ask_after_s(beats=False, step_s=step_s, longest_s=memory.longest_gap_s)
        return quiet_s if quiet_s >= after_s else None

    def _is_overdue(self, mono_s: float) -> bool:
        """Whether the ranks of some node have missed their time to write a beat."""
        if self.hangs is None or mono_s < self._overdue_s:
            return False
        return self.hangs.watch.beats.overdue_nodes(mono_s)

    def _signs_of_life(self) -> tuple[int, int, bool]:
        beats = self.hangs.watch.beats.count if self.hangs is not None else 0
        return self.memory.steps_seen, beats, self._ending


@dataclass
class HangMonitor:
    """The hang watch and straggler watch of one start, and its `WatchBackend`. `read` reads its logs anew."""

    ctx: AgentContext
    started: Started
    settings: Mapping[str, Any]
    spares: Callable[[], int]
    read: Callable[[], WatchReport | None]
    history: liveness.History = field(default_factory=liveness.History)
    slow: straggler.History = field(default_factory=straggler.History)
    watch: HangWatch = field(init=False)
    told: StacksAnswer | None = None
    swap: straggler.StragglerAdvice | None = None  # a node that a spare shall replace
    _seen: set[str] = field(default_factory=set)
    _stamp: int = 0
    _degraded_node: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.watch = HangWatch(
            self,
            self.ctx.where.place,
            self.started.token,
            hang_rules.hang_limits(self.settings),
            self.ctx.clock.mono_s,
            self.history,
            from_begin=True,
        )

    def look(
        self, report: WatchReport | None, suspect: hang_rules.HangLimits | None = None
    ) -> types.HangVerdict | None:
        """Judge what is seen now; `suspect`: see `HangWatch.judge`.

        None if the hang watch is off, or it is too early for the next look. Raises OSError (journal).
        """
        if not self.watch.poll():
            return None
        self._look_for_stragglers(self.ctx.clock.mono_s())
        verdict = self.watch.judge(report, suspect=suspect)
        self.history = self.watch.history
        return verdict

    # ------------------------------------------------------------------ see `WatchBackend`

    def record(self, kind: str, data: Mapping[str, Any]) -> None:
        """See `WatchBackend.record`."""
        if "reason" in data:
            log_line(f"start {self.started.number}: {kind.partition('.')[2]}: {data['reason']}")
        self.ctx.journal.record(kind, **data)

    def runs(self) -> bool | None:
        """See `WatchBackend.runs`."""
        return node_liveness.job_is_running(self.ctx.cluster, self.ctx.where.job)

    def ask(self, folder: str) -> bool:
        """See `WatchBackend.ask`: the agent waits for the stacks."""
        where, nodes = self.ctx.where, self.started.nodes
        line = stacks_command(where.home, where.place, self.started.token, where.job, folder)
        try:
            told = self.ctx.steps.ask(
                where.job, nodes, line, limit_s=ASK_LIMIT_S, quiet_s=ASK_QUIET_S, alive=self.ctx.alive
            )
        except SlurmError as error:
            log_line(f"no stacks: {error.message}")
            return False
        self.told = StacksAnswer(nodes, tuple(node for node in nodes if told.answers.get(node)))
        return True

    def answer(self) -> StacksAnswer | None:
        """See `WatchBackend.answer`."""
        return self.told

    # ------------------------------------------------------------------ stragglers

    def _degraded(self) -> Mapping[str, str]:
        """The one node of this start that its checks call degraded; read again when a report came."""
        where = self.ctx.where
        stamp = folder_time_ns(node_reports.folder(where.run_dir, where.attempt))
        if stamp != self._stamp:
            self._stamp = stamp
            number = self.started.number + 1  # leave out the checks of this start's own end
            facts = where.node_facts(self.ctx.nodes, start=number)
            self._degraded_node = degraded_node(facts, self.started.nodes)
        return self._degraded_node

    def _look_for_stragglers(self, mono_s: float) -> None:
        """Journal each node once that is steadily slower than its peers."""
        wanted = text_of(self.settings, "straggler")
        samples = self.watch.beats.samples()
        degraded = self._degraded()
        if wanted == "never" or not (samples or degraded):
            return
        self.slow = straggler.observe(
            self.slow,
            samples,
            mono_s,
            ratio=number_of(self.settings, "straggler-ratio"),
            window_s=float(self.settings.get("straggler-window", straggler.WINDOW_S)),
        )
        slow = straggler.find_stragglers(self.slow)
        for one in straggler.advise(slow, wanted, spares=self.spares(), degraded=degraded):
            if one.node not in self._seen:
                self._seen.add(one.node)
                self.swap = one if one.act is straggler.StragglerAction.SWAP else self.swap
                log_line(one.reason)
                self.ctx.journal.record(
                    "straggler.seen",
                    node=one.node,
                    ratio=round(one.ratio, 2),
                    act=one.act.value,
                    reason=one.reason,
                )


def degraded_node(facts: NodeFacts, nodes: Sequence[str]) -> dict[str, str]:
    """Node -> message of its check, if exactly one of these nodes is degraded and no worse; {} if several
    are: that is the site. (pure)
    """
    shared = facts.everywhere()
    held = [one for one in facts.findings if one.until_s is None and one.check not in shared]
    bad = {one.node for one in held if one.severity == node_findings.BAD}
    found = {
        one.node: one.message
        for one in held
        if one.severity == node_findings.DEGRADED and one.node in nodes and one.node not in bad
    }
    return found if len(found) == 1 < len(nodes) else {}


def query_all_nodes(
    ctx: AgentContext,
    token: str,
    monitor: StartMonitor | None = None,
    *,
    quiet_s: float = QUIET_S,
    lost: tuple[str, ...] = (),
    doubted: Callable[[tuple[str, ...]], None] = lambda _: None,
    shut_s: float = SHUT_S,
    nodes: tuple[str, ...] = (),
) -> NodeAnswers:
    """Ask all nodes of the job and its companions (or `nodes`), and sweep them of everything older than
    `token`; see `PingRequest`. Raises GivenUp.
    """
    where = ctx.where
    line = node_liveness.sweep_line(where.home, where.place, token, where.job)
    sweep = PingRequest(
        where.job,
        nodes or ctx.nodes,
        where.node,
        line,
        quiet_s,
        lost=lost,
        doubted=doubted,
        shut_s=shut_s,
        spans=ctx.spans,
    )
    return node_liveness.query_nodes(
        ctx.cluster,
        ctx.steps,
        ctx.clock,
        sweep,
        alive=lambda: keep_alive(ctx, monitor),
        own_node=ctx.own_node,
    )


def keep_alive(ctx: AgentContext, monitor: StartMonitor | None) -> None:
    """Keep the heartbeat and the log reader going during a wait. Raises GivenUp, OSError."""
    ctx.alive()
    if monitor is not None:
        monitor.look()
