"""What the agent learns when a start is over: live nodes, findings of checks, last log lines. (I/O)

Late log lines decide which fault came first, so the diagnosis waits until the log has been quiet for
`log-quiet`, or for `CLOSED_QUIET_S` once every rank has ended. The agent uses that time: it asks all nodes whether they answer, kills what the start left there,
and runs the failure checks (`node_checks`) on them, spares included. A sick node is not used again, and a
sick spare is no spare. The checks are skipped where no finding could change what the log already says, and
for a start that failed at once, which is a mistake in the script (batch.sh does the same).

`check_ended_start` collects the answers, `collect_facts` puts all facts together for the diagnosis.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from ftrun.supervisor.agent import resize, spanning_limits, start_monitor
from ftrun.supervisor.agent.batch_channel import Started, StartEnd
from ftrun.supervisor.agent.context import AgentContext, Suspicion
from ftrun.supervisor.agent.node_checks import FailureChecks
from ftrun.supervisor.agent.node_liveness import QUIET_S, SHUT_LONG_S, SHUT_S, NodeAnswers
from ftrun.supervisor.agent.start_monitor import StartMonitor
from ftrun.supervisor.config.settings import number_of
from ftrun.supervisor.diagnosis import checkpoint_blame, node_findings, resumable, suspicions
from ftrun.supervisor.diagnosis.evidence import written_before
from ftrun.supervisor.diagnosis.node_findings import NodeFacts
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.model.types import Diagnosis
from ftrun.supervisor.nodes import from_runs, ledger
from ftrun.supervisor.policy import policy_input, start_decision
from ftrun.supervisor.store import checkpoints, submission_context
from ftrun.supervisor.telemetry import diverged_checkpoints, divergence

LOOK_S = 0.1
KNOWN_QUIET_S = 1.0  # for nodes that were silent while the start lived
SHORT_S = 5.0  # as in batch.sh
CLOSED_QUIET_S = 0.5  # what srun and the file system take to carry the last lines
USUAL_QUIET_S = 2.0  # the default of `log-quiet`

WORTH_S = 30.0
"""A start needs at least this time, and at least what the last one took to its first step."""


def check_ended_start(
    ctx: AgentContext,
    monitor: StartMonitor,
    suspicion: Suspicion | None,
    settings: Mapping[str, Any],
    checks: FailureChecks,
    *,
    aside: tuple[str, ...],
    judged: Callable[[NodeAnswers], Diagnosis],
    heard: Callable[[NodeAnswers], None] = lambda _: None,
) -> tuple[NodeAnswers, bool]:
    """Ask and check the nodes while the last log lines come in, then wait until the log is quiet. Returns which
    nodes answer, and whether they were checked.

    `aside` are nodes that no later start uses, `judged` is the diagnosis so far, `heard` is called as soon as
    it is known which nodes answer. Raises OSError (journal), GivenUp.
    """
    began_s = ctx.clock.mono_s()
    lived_s = ctx.clock.now_s() - (monitor.started.launch.started_s or 0.0)
    worth = settings.get("after-checks") != "never" and lived_s >= SHORT_S
    lost = suspicion.diagnosis.nodes if suspicion is not None and _lost(suspicion) else ()
    hopeless = {*aside, *lost, *monitor.unheard}
    hopeful = tuple(node for node in ctx.nodes if node not in hopeless)
    if worth and node_findings.worth_checking(judged(NodeAnswers(answered=hopeful, silent=lost))):
        checks.begin(hopeful)
    reach = _swept(ctx, monitor, lost, refusal_limit_s(ctx, monitor.started, settings, aside))
    heard(reach)
    nodes = tuple(node for node in reach.answered if node not in aside)
    worth = worth and reach.known and bool(nodes) and node_findings.worth_checking(judged(reach))
    checked = worth and checks.finish(nodes, lambda: start_monitor.keep_alive(ctx, monitor))
    quiet_s, longest_s = _quiet_s(settings, monitor.started, reach), number_of(settings, "log-quiet-max")
    if lost:  # the log has long been quiet; later lines come from our own sweep
        return reach, checked
    while True:
        ctx.rest(LOOK_S)
        known = monitor.look(fresh=True) is not None
        waited_s = ctx.clock.mono_s() - began_s
        if waited_s >= longest_s or (min(waited_s, monitor.quiet_s()) if known else waited_s) >= quiet_s:
            return reach, checked


def _quiet_s(settings: Mapping[str, Any], started: Started, reach: NodeAnswers) -> float:
    """How long the log must be quiet. Late lines come from ranks that are still there, and from what carries them: where
    every node of the start has answered that nothing of it is left, little is awaited, unless the user asks for more than usual.
    """
    wanted_s = number_of(settings, "log-quiet")
    over = reach.known and set(started.nodes) <= {*reach.answered} - {*reach.unfit}
    return min(wanted_s, CLOSED_QUIET_S) if over and wanted_s <= USUAL_QUIET_S else wanted_s


def refusal_limit_s(
    ctx: AgentContext, started: Started, settings: Mapping[str, Any], aside: tuple[str, ...]
) -> float:
    """How long to wait for a slurmd that refuses connections. Longer where no spare, companion or smaller
    size can replace its node, so that its loss costs the job.
    """
    spare = not {*ctx.nodes} <= {*started.nodes, *aside}
    replaceable = spare or resize.shrink_is_possible(settings, len(started.nodes))
    return (
        SHUT_S
        if replaceable or spanning_limits.companion_is_possible(ctx, settings, started.number)
        else SHUT_LONG_S
    )


def _lost(suspicion: Suspicion) -> bool:
    return suspicion.diagnosis.signature == suspicions.LOST


def _swept(ctx: AgentContext, monitor: StartMonitor, lost: tuple[str, ...], wait_s: float) -> NodeAnswers:
    where = ctx.where
    token = f"{where.launch}.{monitor.started.number + 1}"
    ctx.journal.record("sweep.intended", nodes=list(ctx.nodes), token=token)
    quiet_s = KNOWN_QUIET_S if monitor.unheard and not lost else QUIET_S
    reach = ctx.journal.act(
        "sweep",
        lambda: start_monitor.query_all_nodes(ctx, token, monitor, quiet_s=quiet_s, lost=lost, shut_s=wait_s),
    )
    ctx.journal.record(
        "sweep.done",
        answered=list(reach.answered),
        silent=list(reach.silent),
        unfit=reach.unfit,
        why=reach.why,
    )
    return reach


def note_swept_caches(ctx: AgentContext) -> None:
    """Note that each node which this launch used was swept of what it left, torn entries of its caches included.

    So the next launch need not ask the nodes before its script (`batch_caches.sh`).
    """
    where = ctx.where
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(where.run_dir, "caches", f"unswept.{where.attempt}.{where.launch}"))


def begin_record(started: Started) -> dict[str, Any]:
    """The journal record of a start that began."""
    launch = started.launch
    return {
        "nodes": list(started.nodes),
        "token": started.token,
        "resume_from": launch.resume_from,
        "passed": launch.passed,
        "pid": started.pid,
    }


def collect_facts(
    ctx: AgentContext,
    settings: Mapping[str, Any],
    run: Run,
    monitor: StartMonitor,
    *,
    over: StartEnd,
    suspicion: Suspicion | None,
    reach: NodeAnswers,
) -> start_decision.StartFacts:
    """All facts about a start that is over: logs, exit, live nodes, and whether there is a new checkpoint."""
    started = monitor.started
    report, resumed = monitor.memory.report, started.launch.resume_from
    spoilt = None
    found = (
        divergence.find_divergence(report.evidence, report.health)
        if report is not None and settings.get("checkpoint")
        else None
    )
    if found is not None:
        name = incident_name(ctx, started)
        now_s = ctx.clock.now_s()
        spoilt = diverged_checkpoints.poison_of(
            found, settings, ctx.where.run_dir, name=name, resumed_from=resumed, now_s=now_s
        )
    cwd = submission_context.cwd(ctx.where.run_dir)
    loads = resumable.find_resume_point(
        settings, run, cwd, more=[spoilt] if spoilt is not None else [], run_dir=ctx.where.run_dir
    )
    newest, since_s = loads.path, started.launch.started_s or 0.0
    # What it began from counts for the launch before, which the supervisor may judge later.
    before = (run.best_checkpoint, os.path.join(cwd, resumed) if resumed else "")
    return start_decision.StartFacts(
        number=started.number,
        nodes=started.nodes,
        resume_from=started.launch.resume_from,
        code=over.code,
        signal=over.signal,
        now_s=ctx.clock.now_s(),
        evidence=monitor.evidence(over=True),
        topology=monitor.topology(),
        progress=report.progress if report is not None else None,
        facts=_facts(ctx, run, monitor),
        silent=tuple(node for node in started.nodes if node in reach.silent),
        gone=tuple(node for node in started.nodes if node in reach.gone),
        suspicion=suspicion.diagnosis if suspicion is not None else None,
        rank_ended=suspicion is not None and suspicion.rank_ended,
        end_offsets=monitor.end_offsets,
        forgotten=not reach.shown,
        step=monitor.memory.step if found is None or found.step is None else found.step,
        diverged=found,
        spoilt=spoilt,
        loads=loads,
        resumed=resumable.resumed_checkpoint(
            settings, run, resumed, incident_name(ctx, started), run_dir=ctx.where.run_dir, cwd=cwd
        ),
        checkpoint=newest if all(checkpoints.is_newer(newest, one, since_s) for one in before) else "",
    )


def _facts(ctx: AgentContext, run: Run, monitor: StartMonitor) -> NodeFacts:
    """The node reports, less what was there before; the ledger is read only if something is left."""
    facts, where, now_s = monitor.facts().survived(monitor.memory.survived), ctx.where, ctx.clock.now_s()
    if not facts.odd(now_s):
        return facts
    launch = from_runs.entry_prefix(run, where.attempt, where.launch)
    return facts.noted_before(ledger.read_entries(where.home), run.id, launch, now_s)


def journal_diagnosis(
    ctx: AgentContext,
    monitor: StartMonitor,
    seen: start_decision.StartFacts,
    incident: str,
    diagnosis: Diagnosis,
) -> None:
    """Journal the diagnosis of a start that is over and, once, that its training had diverged. Raises
    OSError, JournalClosed.
    """
    ctx.journal.record(
        "start.diagnosed",
        incident=incident,
        diagnosis=diagnosis.to_json(),
        step=seen.step,
        first_evidence_at_s=monitor.first_evidence_s.get(diagnosis.signature),
    )
    spoilt, found = seen.spoilt, seen.diverged
    if spoilt is None or found is None:
        return
    if not any(one.name == spoilt.name for one in ctx.journal.run().poisoned):
        ctx.journal.record("checkpoint.poisoned", **divergence.divergence_data(found, spoilt))
        resumable.write_divergence_files(ctx.where.run_dir, [spoilt])


def checkpoints_to_skip(
    ctx: AgentContext, monitor: StartMonitor, case: policy_input.PolicyInput, *, older: bool
) -> list[tuple[str, str]]:
    """The checkpoint that this start could not load, with its stamp. No later start loads it unless it is
    written anew.
    """
    path = monitor.started.launch.resume_from
    path = os.path.normpath(os.path.join(submission_context.cwd(ctx.where.run_dir), path)) if path else ""
    if not path or path in checkpoints.unchanged_since_set_aside(case.run.set_aside):
        return []
    found = case.diagnosis.loading
    told = monitor.memory.step is None and checkpoint_blame.is_reported_broken(
        written_before(monitor.evidence(), monitor.end_offsets), ctx.catalog(), path
    )
    told = told and (found is None or found.verdict != checkpoint_blame.PROGRAM)
    return (
        [(path, checkpoints.content_stamp(path))]
        if older or told or checkpoint_blame.is_set_aside(case.diagnosis)
        else []
    )


def incident_name(ctx: AgentContext, started: Started) -> str:
    """The journal's name for the end of a start."""
    return f"{ctx.where.attempt}.{ctx.where.launch}.{started.number}"


def time_objection(ctx: AgentContext, monitor: StartMonitor, reach: NodeAnswers) -> str:
    """Why another start would not get far in the job's remaining time; "" if it would."""
    if reach.end_s is None:
        return ""
    left_s = reach.end_s - ctx.clock.now_s()
    needed_s = max(WORTH_S, monitor.to_first_step_s or 0.0)
    return f"only {left_s:.0f} s are left of the job's time" if left_s < needed_s else ""
