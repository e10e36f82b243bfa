"""Companion jobs: submit them, wait for them, check their nodes, end them. (I/O)

A companion is a small job of the same user that holds nodes for the starts of this job. The agent journals it
before it submits it, so any later agent or supervisor finds it by its token. A companion ends itself when no
job needs it any more, so it depends on no agent. `Companions` never blocks, because a script may be running.
A companion is ready when its own script says so, or when Slurm has shown it as running for a while, since a
shared file system may deliver that message late. A companion that waits for a limit of its user, account or
QOS waits for this very job to end. That counts as a failure at once, as does every reason that time alone
does not resolve.

`join` is the recovery rung: it waits, within the rung's time limit, and the heartbeat goes on meanwhile. The
agent sweeps and checks the new nodes like spares before a start uses them. It excludes a node that is bad or
silent and asks once more, twice in all. A companion that does not come in time is cancelled, so it cannot
come later and hold nodes that nobody uses.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any

from ftrun.slurm.client import nodeset
from ftrun.slurm.client.cluster import JobRow, JobState
from ftrun.slurm.client.errors import OutcomeUnknown, SlurmError
from ftrun.slurm.client.topology import by_leaf
from ftrun.slurm.commands.node_queries import NodeQuery
from ftrun.slurm.commands.spanning import Span
from ftrun.slurm.records import dataclass
from ftrun.supervisor.agent import node_liveness, start_monitor
from ftrun.supervisor.agent.batch_channel import Started
from ftrun.supervisor.agent.context import AgentContext, log_line
from ftrun.supervisor.agent.node_checks import FailureChecks
from ftrun.supervisor.agent.spanning_limits import pool_with_idle_nodes
from ftrun.supervisor.config.node_counts import Pool
from ftrun.supervisor.model.errors import SubmitImpossible
from ftrun.supervisor.policy import queue, start_decision
from ftrun.supervisor.policy.spare_placement import in_rank_order
from ftrun.supervisor.store import attempt_dir, node_reports
from ftrun.supervisor.submission import companion

WAITING, READY, FAILED = "waiting", "here", "failed"

LOOKS_S = ((3.0, 0.2), (10.0, 0.5), (60.0, 2.0))
"""(time since the submission, poll interval of Slurm until then); later `LATER_EVERY_S`."""

LATER_EVERY_S = 5.0
SPEAKS_S = 3.0  # after Slurm shows it running, do not wait longer for its script's message
FOUND_S = 30.0  # a submission without an answer is searched for so long
UNSEEN_S = 20.0  # a job that Slurm does not show for so long does not exist

TRIES = 2
LOOK_EVERY_S = 0.1
NOT_KNOWN = "it is not known whether it is well"
SWEPT_S = 2.0  # wait so long for a sweep that was started ahead


@dataclass
class Companion:
    """One companion as the agent tracks it: `waiting`, `here` (`nodes` in Slurm's order) or `failed` (`reason`;
    `lasts`: for as long as this job runs). `number` 0: none was submitted.
    """

    state: str
    number: int = 0
    nodes: tuple[str, ...] = ()
    job: str = ""
    reason: str = ""
    lasts: bool = False
    count: int = 0  # of the nodes that were asked for
    mark: str = ""
    asked_s: float = 0.0  # monotonic, as all of these
    next_s: float = 0.0
    running_s: float | None = None
    unseen_s: float | None = None
    ahead: bool = False
    spare: bool = False  # asked for before it is needed: its nodes are spares
    over: bool = False


@dataclass
class Companions:
    """The companions of one launch. `ctx.spans` are the ones that are ready."""

    ctx: AgentContext
    settings: Mapping[str, Any]
    _known: list[Companion] = field(default_factory=list)

    def ask(
        self,
        count: int,
        exclude: Collection[str],
        left_s: float | None,
        why: str,
        *,
        pool: Pool | None = None,
        ahead: bool = False,
        spare: bool = False,
    ) -> Companion:
        """Submit a companion with `count` nodes, none of this job's or of `exclude`.

        `left_s` limits its time (None = as long as this job has time), `pool` names where the nodes come
        from. Only one companion waits at a time: if there is one, it is returned instead, unless it waits as
        a `spare`: what is needed now goes first. `ahead`: nothing is decided yet, and the nodes do not belong
        to the run before `take`. Raises OSError (journal), GivenUp.
        """
        self._end_waiting_spare()
        last = self._last
        if last is not None and last.state == WAITING:
            return last
        away = tuple(dict.fromkeys((*self.ctx.nodes, *sorted(exclude))))
        try:
            number = self._claim_number()
            request = self._request(number, count, away, left_s, pool)
        except (SlurmError, SubmitImpossible, OSError) as error:
            said = getattr(error, "message", "") or str(error)
            log_line(f"no companion: {said}")
            return Companion(FAILED, reason=said)
        mark, now_s = request.token, self.ctx.clock.mono_s()
        one = Companion(WAITING, number, count=count, mark=mark, asked_s=now_s, ahead=ahead, spare=spare)
        self._known.append(one)
        self.ctx.expected = count if ahead else 0
        self.ctx.journal.record(
            "companion.intended",
            number=number,
            nodes=count,
            exclude=list(away),
            mark=one.mark,
            why=why,
            **({"pool": str(pool)} if pool is not None else {}),
        )
        self.ctx.journal.act("companion.submit", lambda: self._submit(one, request))
        if one.job:
            self.ctx.journal.record("companion.submitted", number=number, job=one.job)
        elif one.reason:
            self._fail(one, one.reason)
        return one

    def look(self) -> Companion:
        """The state of the latest companion; does not wait. Raises OSError (journal), GivenUp."""
        one = self._last
        if one is None:
            return Companion(FAILED, reason="none was asked for")
        if one.state == WAITING:
            self._look(one)
        return one

    @property
    def expected(self) -> bool:
        """A companion is on its way for a fault, or was requested ahead."""
        one = self._last
        return one is not None and not one.over and not one.spare and (one.state == WAITING or one.ahead)

    def take(self, count: int, exclude: Collection[str]) -> Companion | None:
        """The companion that was requested ahead, or that waits as a spare, if it is what is wanted now; otherwise it is
        ended. Raises OSError (journal), GivenUp.
        """
        one = self._last
        if one is None or one.over or not (one.ahead or (one.spare and one.state == WAITING)):
            return None
        if one.count != count or not {*one.nodes}.isdisjoint(exclude):
            self.end(one.number, "another companion is wanted")
            return None
        one.ahead = one.spare = False
        self.ctx.coming, self.ctx.expected = (), 0
        if one.state == READY:
            self.ctx.spans = (*self.ctx.spans, Span(one.job, one.nodes))
        return one

    def end_ahead(self, why: str) -> None:
        """End a companion that was requested ahead, because the decision is another one. Raises OSError
        (journal), GivenUp.
        """
        if self._last is not None and self._last.ahead:
            self.end(self._last.number, why)

    def end(self, number: int, why: str) -> None:
        """End this companion, unless it has ended. Raises OSError (journal), GivenUp."""
        one = next((one for one in self._known if one.number == number), None)
        if one is None or one.over:
            return
        one.over = True
        if one.ahead:
            self.ctx.expected = 0
        if one.state == WAITING:
            one.state, one.reason = FAILED, why
        self.ctx.spans = tuple(span for span in self.ctx.spans if span.job != one.job)
        self.ctx.coming = tuple(span for span in self.ctx.coming if span.job != one.job)
        self.ctx.journal.record("companion.ended.intended", number=number, job=one.job, reason=why)
        self.ctx.journal.act("companion.end", lambda: self._end(one))
        self.ctx.journal.record("companion.ended", number=number, job=one.job, reason=why)

    def end_waiting(self, why: str) -> None:
        """End the latest companion if it still waits. Raises OSError (journal), GivenUp."""
        if self._last is not None and self._last.state == WAITING:
            self.end(self._last.number, why)

    def _end_waiting_spare(self) -> None:
        if self._last is not None and self._last.spare:
            self.end_waiting("another companion is wanted")

    def end_all(self, why: str) -> None:
        """End all companions: the launch is over. Raises OSError (journal), GivenUp."""
        for one in list(self._known):
            self.end(one.number, why)

    def end_broken(self, lost: Collection[str]) -> tuple[int, ...]:
        """End the companions that have one of these nodes: a companion that lost a node is over as a whole,
        even if Slurm does not know yet. Returns their numbers.
        """
        jobs = {span.job: node for span in self.ctx.spans for node in span.nodes if node in lost}
        broken = [one for one in self._known if not one.over and one.job in jobs]
        for one in broken:
            self.end(one.number, f"{jobs[one.job]} is lost")
        return tuple(one.number for one in broken)

    # ------------------------------------------------------------------ asking

    @property
    def _last(self) -> Companion | None:
        return self._known[-1] if self._known else None

    def _path(self, number: int, what: str) -> str:
        return os.path.join(self.ctx.where.place, "companions", f"{number}.{what}")

    def _claim_number(self) -> int:
        """A number that no companion of this attempt has, earlier launches included. Raises OSError."""
        os.makedirs(os.path.join(self.ctx.where.place, "companions"), mode=0o700, exist_ok=True)
        number = self._known[-1].number if self._known else 0
        while True:
            number += 1
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self._path(number, "asked"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
                return number

    def _request(
        self, number: int, count: int, away: tuple[str, ...], left_s: float | None, pool: Pool | None
    ) -> Any:
        """Raises SlurmError, SubmitImpossible."""

        where = self.ctx.where
        row = self.ctx.cluster.jobs((where.job,)).get(where.job)
        if row is None or row.state is not JobState.RUNNING:
            raise SubmitImpossible(f"Slurm does not call job {where.job} running")
        end_s, now_s = row.limit_end_s, self.ctx.clock.now_s()
        lefts = [left for left in (left_s, end_s - now_s if end_s is not None else None) if left is not None]
        return companion.companion_request(
            where.run_dir,
            where.attempt,
            launch=where.launch,
            number=number,
            nodes=count,
            limit_s=min(lefts, default=None),
            main_job=where.job,
            main_started=row.start_time_s,
            main_host=where.node,
            exclude=away,
            partition=row.partition,
            pool=pool.option if pool is not None else "",
        )

    def _submit(self, one: Companion, request: Any) -> None:
        try:
            one.job = self.ctx.cluster.submit(request).job_id
        except OutcomeUnknown as error:
            log_line(f"companion {one.number}: {error.message}; it is looked up by its mark")
        except SlurmError as error:
            one.reason = f"Slurm takes no companion: {error.message}"

    # ------------------------------------------------------------------ waiting

    def _look(self, one: Companion) -> None:
        mono_s = self.ctx.clock.mono_s()
        if one.job and (nodes := self._announced(one)):
            self._is_here(one, nodes)
            return
        if mono_s < one.next_s:
            return
        waited_s = mono_s - one.asked_s
        one.next_s = mono_s + next((every for until, every in LOOKS_S if waited_s < until), LATER_EVERY_S)
        try:
            row = self._row(one)
        except SlurmError as error:
            log_line(f"companion {one.number}: {error.message}")
            return
        if not one.job:
            if waited_s > FOUND_S:
                self._fail(one, "Slurm did not say what became of its submission", unanswered=True)
        elif row is None:
            one.unseen_s = one.unseen_s or mono_s
            if mono_s - one.unseen_s > UNSEEN_S:
                self._fail(one, f"Slurm does not show job {one.job}")
        else:
            one.unseen_s = None
            self._judge(one, row, mono_s)

    def _row(self, one: Companion) -> JobRow | None:
        """Raises SlurmError."""
        if one.job:
            return self.ctx.cluster.jobs((one.job,)).get(one.job)
        found = self.ctx.cluster.find(one.mark)
        if found:
            one.job = found[0].job_id
            self.ctx.journal.record("companion.submitted", number=one.number, job=one.job)
        return found[0] if found else None

    def _judge(self, one: Companion, row: JobRow, mono_s: float) -> None:
        if row.state.ended or row.state is JobState.COMPLETING:
            self._fail(one, f"Slurm calls job {one.job} {row.state.value}")
        elif row.state.pending and (why := never_starts_reason(row.reason)):
            one.lasts = True
            self._fail(one, why)
        elif row.state is JobState.RUNNING:
            one.running_s = one.running_s or mono_s
            if row.nodes and mono_s - one.running_s >= SPEAKS_S:
                self._is_here(one, row.nodes)

    def _announced(self, one: Companion) -> tuple[str, ...]:
        """The nodes that the companion's script reports; () if it has reported none."""
        told = attempt_dir.read_key_values(self._path(one.number, "here"))
        if told is None or told.get("job") != one.job:
            return ()
        with contextlib.suppress(ValueError):
            return nodeset.expand(told.get("nodes", ""))
        return ()

    def _is_here(self, one: Companion, nodes: tuple[str, ...]) -> None:
        back = [node for node in nodes if node in self.ctx.where.nodes]
        if back:  # earlier findings may be repaired: check it anew
            node_reports.set_aside_reports(
                self.ctx.where.run_dir, self.ctx.where.attempt, back, str(one.number)
            )
        nodes = by_leaf(nodes, self.ctx.cluster.topology())
        one.state, one.nodes = READY, nodes
        if one.ahead:
            self.ctx.coming = (Span(one.job, nodes),)
        else:
            self.ctx.spans = (*self.ctx.spans, Span(one.job, nodes))
        self.ctx.journal.record("companion.here", number=one.number, job=one.job, nodes=list(nodes))

    # ------------------------------------------------------------------ its end

    def _fail(self, one: Companion, reason: str, *, unanswered: bool = False) -> None:
        one.state, one.reason = FAILED, reason
        log_line(f"companion {one.number}: {reason}")
        self.ctx.journal.record(
            "companion.failed", number=one.number, job=one.job, reason=reason, unanswered=unanswered
        )
        self.end(one.number, reason)

    def _end(self, one: Companion) -> None:
        """Tell the script by a file, and Slurm by `cancel`. If one fails the other works, and the script ends
        by its own rules anyway.
        """
        with contextlib.suppress(OSError):
            os.close(os.open(self._path(one.number, "over"), os.O_WRONLY | os.O_CREAT, 0o600))
        try:
            jobs = [one.job] if one.job else [row.job_id for row in self.ctx.cluster.find(one.mark)]
            for job in jobs:
                self.ctx.cluster.cancel(job)
        except SlurmError as error:
            log_line(f"companion {one.number}: {error.message}; it ends by itself")


def never_starts_reason(reason: str) -> str:
    """Why a companion with this pending reason cannot start while the main job runs; "" = it may. (pure)"""
    words = reason.lower().replace(" ", "").replace("_", "")
    if queue.never_starts(reason):
        return f"the companion can never start: Slurm says {reason}"
    if words.startswith(("jobheld", "launchfailed")):
        return f"the companion is held: Slurm says {reason}"
    if words.startswith(("assoc", "qos")):
        return f"a limit lets no companion start beside this job: Slurm says {reason}"
    return ""


@dataclass(frozen=True, slots=True)
class CompanionRequest:
    """A request for `count` nodes, none of `exclude`, needed until `end_s` (Unix seconds, None = no limit)
    and ready before `until_s` (monotonic). `started` is the start that failed, `why` goes to the journal.
    """

    started: Started
    count: int
    exclude: frozenset[str]
    end_s: float | None
    until_s: float
    why: str


@dataclass(frozen=True, slots=True)
class JoinResult:
    """The nodes that joined; () with the reason if none did. `lasts`: a further request is of no use in this
    launch.
    """

    nodes: tuple[str, ...] = ()
    why: str = ""
    lasts: bool = False


def join(
    ctx: AgentContext,
    companions: Companions,
    settings: Mapping[str, Any],
    wanted: CompanionRequest,
    *,
    checks: FailureChecks | None = None,
    swept: NodeQuery | None = None,
) -> JoinResult:
    """Get a companion whose nodes are well.

    For a companion that was requested ahead, `checks` may already run and `swept` is the question that sweeps
    it. Raises OSError (journal), GivenUp.
    """
    exclude, why = set(wanted.exclude), ""
    early = companions.take(wanted.count, exclude)
    if early is None:
        companions.end_waiting("its nodes are needed otherwise")
    for last in range(1 - TRIES, 1):
        pool = None if early else pool_with_idle_nodes(ctx, settings, wanted.count, exclude)
        found = early or _asked(ctx, companions, wanted, exclude, pool)
        early = None
        while found.state == WAITING:
            if ctx.clock.mono_s() > wanted.until_s:
                companions.end(found.number, "it did not come in time")
                return JoinResult(why="no companion came within limit-companion")
            ctx.rest(LOOK_EVERY_S)
            found = companions.look()
        if found.state != READY and pool is not None and last < 0:
            settings = {**settings, "pool": ""}  # the job's own partition may have what the pool lacks
            continue
        if found.state != READY:
            return JoinResult(why=found.reason, lasts=found.lasts)
        unfit = unfit_nodes(ctx, settings, wanted.started, found, checks, swept=swept)
        swept = None
        if not unfit:
            return JoinResult(found.nodes[: wanted.count])
        why = "; ".join(f"{node}: {told}" for node, told in sorted(unfit.items()))
        companions.end(found.number, why)
        exclude |= set(unfit)
    return JoinResult(why=f"the companion's nodes are unfit: {why}")


def _asked(
    ctx: AgentContext, companions: Companions, wanted: CompanionRequest, exclude: set[str], pool: Pool | None
) -> Companion:
    left_s = wanted.end_s - ctx.clock.now_s() if wanted.end_s is not None else None
    return companions.ask(wanted.count, exclude, left_s, wanted.why, pool=pool)


def unfit_nodes(
    ctx: AgentContext,
    settings: Mapping[str, Any],
    started: Started,
    found: Companion,
    begun: FailureChecks | None = None,
    *,
    lives: bool = False,
    swept: NodeQuery | None = None,
) -> dict[str, str]:
    """Node of this companion -> why no start should use it; nodes that are well are left out.

    `begun` are checks that may already run. If the start still `lives`, nothing of it is swept. Raises
    OSError (journal), GivenUp.
    """
    where, nodes = ctx.where, found.nodes
    checks = begun or FailureChecks(ctx, started, settings)
    wants_checks = settings.get("after-checks") != "never"
    try:
        if wants_checks:
            checks.begin(nodes)
        token = f"{where.launch}.{started.number + (not lives)}"
        unfit: dict[str, str] = {}
        if not _all_swept(ctx, nodes, swept):
            reach = start_monitor.query_all_nodes(ctx, token, nodes=(where.node, *nodes))
            if not reach.known:
                return dict.fromkeys(nodes, f"{NOT_KNOWN}: {reach.why}")
            unfit = {node: "it does not answer" for node in reach.silent if node in nodes}
            unfit |= {node: f"{NOT_KNOWN}: its companion is over" for node in reach.gone if node in nodes}
            unfit |= {node: why for node, why in reach.unfit.items() if node in nodes}
        if wants_checks and not unfit:
            checks.finish(nodes, ctx.alive)
    finally:
        checks.let_go()
    facts = where.node_facts(nodes, start=started.number)
    usable = start_decision.usable_spares(
        nodes, active=(), aside=(), answered=nodes, unfit=unfit, facts=facts
    )
    return unfit | {node: "its checks call it bad" for node in nodes if node not in {*usable, *unfit}}


def _all_swept(ctx: AgentContext, nodes: tuple[str, ...], swept: NodeQuery | None) -> bool:
    """Whether all of these nodes report that they are swept and usable. Otherwise they are asked anew."""
    if swept is None:
        return False
    give_up_s = ctx.clock.mono_s() + SWEPT_S
    while not swept.over and len(swept.reached.ended) < len(nodes) and ctx.clock.mono_s() < give_up_s:
        ctx.alive()
        swept.listen(LOOK_EVERY_S)
    answers = swept.reached.answers
    return all(node in answers and not node_liveness.unfit_reason(answers[node]) for node in nodes)


def rank_order(ctx: AgentContext, nodes: Collection[str]) -> tuple[tuple[str, ...], tuple[Span, ...]]:
    """(these nodes in the order of the ranks, the part of them in each companion). The job's own nodes come
    first, as srun ranks them whatever order they are asked for in.
    """
    wanted = frozenset(nodes)
    parts = (Span(span.job, tuple(node for node in span.nodes if node in wanted)) for span in ctx.spans)
    spans = tuple(part for part in parts if part.nodes)
    apart = {node for span in spans for node in span.nodes}
    own = in_rank_order((node for node in nodes if node not in apart), ctx.nodes)
    return (*own, *(node for span in spans for node in span.nodes)), spans
