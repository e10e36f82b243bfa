"""The facts of a run's launches, gathered in one place for the rules of the diagnosis. (I/O)

Everything that a rule may use is read here, once, and judged nowhere here. The last lines of the logs are
read only if the rules find no cause without them: that costs more than all the rest.

Once a launch is over, all reports of its nodes are read, with those of the checks after the failure. Where
`after-checks` is `ssh`, nodes that their own checks do not cover are checked over SSH first.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from ftrun.slurm.client.errors import OptionError
from ftrun.slurm.records import replace
from ftrun.supervisor.config.settings import text_of
from ftrun.supervisor.context.cluster_view import lost_nodes
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.controller import checkpoint_request, observe
from ftrun.supervisor.diagnosis import inputs, log_text, resumable, suspicions, unknown_cause
from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.diagnosis.facts import Facts, LostCompanion, SbatchRefusal
from ftrun.supervisor.diagnosis.known_ends import slurmstepd_reason
from ftrun.supervisor.diagnosis.node_findings import SIGNATURE, NodeFacts
from ftrun.supervisor.diagnosis.second_opinion import is_open
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.model.run import Attempt
from ftrun.supervisor.model.timers import Interval, Stopwatch
from ftrun.supervisor.model.types import (
    UNKNOWN_TO_SLURM,
    UNWATCHED,
    Diagnosis,
    Evidence,
    FaultClass,
    Opinion,
    Topology,
)
from ftrun.supervisor.nodes.from_runs import entry_prefix
from ftrun.supervisor.nodes.remote_checks import GIVEN_UP_AFTER_S, SshVisit
from ftrun.supervisor.policy.save_request import STEPS_CANCELLED, Occasion
from ftrun.supervisor.signatures.grammar_file import load_grammar
from ftrun.supervisor.store import attempt_dir
from ftrun.supervisor.store.attempt_dir import LaunchRecord
from ftrun.supervisor.store.submission_context import ContextError
from ftrun.supervisor.submission import in_allocation, plan, script_check
from ftrun.supervisor.telemetry import log_watcher
from ftrun.supervisor.telemetry.line_owner import LineOwner, owner_of

if TYPE_CHECKING:
    from ftrun.supervisor.opinion.endpoint import Endpoint, Request
    from ftrun.supervisor.opinion.question import Question

HEALTHY_MAX = 4  # earlier launches whose logs show what is normal
PINGED_LATE_S = 15.0  # Slurm pings three times in SlurmdTimeout, and takes its time
_WORTH_SSH_CHECKS = frozenset({"FAILED", "NODE_FAIL", "CANCELLED", "OUT_OF_MEMORY", "BOOT_FAIL", "GONE"})


@dataclass
class _SshChecks:
    """Of one start, after its end."""

    visit: SshVisit | None = None
    waited: Stopwatch = field(default_factory=Stopwatch)
    told: Interval = field(default_factory=Interval)


@dataclass
class _Asking:
    """Of one start: the question that is under way."""

    asked: tuple[Request, Question, Endpoint] | None = None


def facts_of_end(ctx: RunContext) -> Facts:
    """The facts of a launch that is over; their `attempt` is the attempt as its last start alone made it.

    Raises OSError.
    """
    run, run_dir, seen = ctx.run, ctx.run_dir, ctx.observations
    attempt = _attempt_as_ended(ctx)
    lost = _lost_before_end(ctx) if attempt.submission == "done" else ()
    end = attempt.launch.end
    place = run_dir, attempt.number, attempt.launch.number
    found = Facts(
        evidence=seen.evidence,
        topology=observe.monitor_of(ctx).topology(),
        catalog=ctx.services.catalog(),
        ended=_ended(ctx, attempt, lost),
        attempt=attempt,
        wish=run.wish,
        end_offsets=attempt.end_offsets,
        forgotten=(end.state, end.reason) == ("GONE", UNKNOWN_TO_SLURM),
        now_s=ctx.snapshot.now_s,
    )
    if attempt.submission == "refused":
        return replace(found, refusal=_refusal(ctx))
    if attempt.launch.end.state in ("FAILED", "GONE"):
        held = attempt_dir.prelaunch_hold(*place, attempt.nodes)
        found = replace(found, held=held, held_file=attempt_dir.prelaunch_path(*place))
    if attempt.launch.end.state == "FAILED" and attempt.launch.start.number <= 1:
        found = replace(
            found,
            unloadable=attempt_dir.why_no_checkpoint(*place),
            hook_hold=attempt_dir.hook_hold(*place),
        )
    if "joblaunchfailure" in end.reason.lower():
        found = replace(found, no_log_folder=_missing_log_folder(ctx))
    if found.held is not None or found.unloadable or found.hook_hold:
        return found  # the script was not started: there is nothing else to read
    if attempt.launch.end.state == "COMPLETED":
        found = replace(found, given_up=run.given_up)
    if attempt.launch.end.reason == UNWATCHED:  # the log tells of a requeue at most
        otherwise = ctx.services.facts().requeue_default
        found = replace(found, requeues=plan.is_requeued(run_dir, otherwise=otherwise, known=ctx.submission))
    suspicion, rank_ended = suspicions.recorded_hang(attempt)
    return replace(
        found,
        evidence=(*seen.evidence, *_attached_evidence(ctx)),
        progress=seen.report.progress if seen.report is not None else None,
        resumed=resumable.resumed_checkpoint(
            ctx.settings,
            run,
            attempt.launch.start.resume_from,
            attempt.incident,
            run_dir=run_dir,
            cwd=ctx.cwd,
        ),
        # A start that left no record may not have seen the request; nobody knows why it left.
        near_limit=attempt.launch.claim_seen and checkpoint_request.was_requested(ctx, Occasion.TIMELIMIT),
        nodes=_nodes_of_end(ctx, lost),
        gone=_gone(attempt),
        suspects=ctx.services.ledger.suspects(run) if end.state != "COMPLETED" else {},
        suspicion=suspicion,
        rank_ended=rank_ended,
        told_inside=next((one.diagnosis for one in run.incidents if one.id == attempt.incident), {}),
    )


def with_last_lines(ctx: RunContext, facts: Facts) -> Facts:
    """The same facts, with the lines of the logs as they stand, and those of them that are new or odd: for an
    end without a cause.
    """
    attempt, report = ctx.attempt, ctx.observations.report
    progress = report.progress if report is not None else None
    place = ctx.run_dir, attempt.number, attempt.launch.number
    explained = [
        (incident.attempt, incident.launch, incident.start)
        for incident in ctx.run.incidents
        if incident.fault != FaultClass.UNKNOWN
    ]
    healthy = (log for one in explained[-HEALTHY_MAX:] for log in log_watcher.start_logs(ctx.run_dir, *one))
    logs = log_watcher.launch_logs(*place) + observe.extra_logs(ctx)
    ours = log_watcher.known_owners(*place).having(*attempt.family)
    last = unknown_cause.suspicious_lines(
        logs,
        facts.topology,
        step_offset_bytes=progress.offset_bytes if progress is not None else 0,
        healthy=list(healthy),
        ours=ours,
    )
    text = log_text.read_log_text(logs)
    mine = tuple(
        line
        for line in text
        if owner_of(line.text, ours) is not LineOwner.FOREIGN
        and line.offset_bytes < facts.end_offsets.get(line.file, line.offset_bytes + 1)
    )
    return replace(facts, last_words=last, text=mine, grammar=load_grammar())


def with_opinion(ctx: RunContext, facts: Facts, found: Diagnosis) -> Facts | None:
    """The facts with a second opinion, where the user wants one and `found` is open; None while it is awaited.

    The journal has question and answer, so that no supervisor asks about an incident again.
    """
    attempt, run = ctx.attempt, ctx.run
    single = attempt.submission == "done" and not attempt.launch.requeued and not attempt.failed_tasks
    if not ctx.settings.get("second-opinion") or not is_open(found) or not single or run.wish:
        return facts
    from ftrun.supervisor.opinion import inquiry  # a tenth of a supervisor's start, for those who want one
    from ftrun.supervisor.opinion.answer import BadAnswer
    from ftrun.supervisor.opinion.endpoint import NoAnswer

    asking, known = ctx.observations.per_start(_Asking), run.opinions.get(attempt.incident)
    try:
        if known is None:
            _ask(ctx, facts, found, asking)
            return None
        if known["over"]:
            return replace(facts, second_opinion=Opinion.from_json(known)) if "class" in known else facts
        if asking.asked is None:
            raise NoAnswer("an earlier supervisor asked and ended before the answer; nobody is asked twice")
        if not asking.asked[0].over:
            return None
        opinion = inquiry.opinion_of(*asking.asked)
    except (NoAnswer, BadAnswer, UserError) as error:
        ctx.record("opinion.answered", incident=attempt.incident, error=str(error))
        return facts
    ctx.record("opinion.answered", incident=attempt.incident, **opinion.to_json())
    return replace(facts, second_opinion=opinion)


def _ask(ctx: RunContext, facts: Facts, found: Diagnosis, asking: _Asking) -> None:
    """Announce a question and send it beside the loop. Raises NoAnswer where nobody may be asked."""
    from ftrun.supervisor.opinion import inquiry
    from ftrun.supervisor.opinion.endpoint import Endpoint, NoAnswer, Request

    endpoint = Endpoint.of(ctx.settings)
    assert endpoint is not None
    place = ctx.run_dir, ctx.attempt.number, ctx.attempt.launch.number
    logs = log_watcher.launch_logs(*place) + observe.extra_logs(ctx)
    users = (str(ctx.run.submitter.get("user", "")),)
    question = inquiry.question_of_end(facts, found, logs, users=users)
    ctx.fresh()
    if not inquiry.spend_one(ctx.services.home, endpoint.per_day, ctx.snapshot.now_s):
        raise NoAnswer(inquiry.budget_used_up(endpoint))
    ctx.record(
        "opinion.asked",
        incident=ctx.attempt.incident,
        by=endpoint.by,
        question=question.digest,
        lines=question.lines,
    )
    send = partial(Request, endpoint, question.body(endpoint.model), os.environ)
    asking.asked = ctx.act("opinion", send), question, endpoint


def facts_of_task(
    facts: Facts, attempt: Attempt, task: int, run_dir: str, launch: LaunchRecord | None
) -> Facts | None:
    """The facts of one failed task of an array, taken from those of all; None if nothing is known of it
    alone.

    Raises OSError.
    """
    state = attempt.task_states.get(task, "FAILED")
    written = attempt_dir.task_exit(run_dir, attempt.number, task)
    if launch is None and written is None and state == "FAILED":
        return None
    logs = {launch.stdout, launch.stderr} if launch is not None else set()
    nodes = launch.nodes if launch is not None else ()
    by_us = task in attempt.ended_tasks
    ended = Ended(
        state=state,
        exit_code=written.code if written is not None else None,
        exit_signal=written.signal if written is not None else None,
        by_us=by_us,
        nodes_down=tuple(node for node in facts.ended.nodes_down if node in nodes) if facts.ended else (),
    )
    hung = attempt.hung_tasks.get(task) if by_us else None
    return Facts(
        evidence=tuple(line for line in facts.evidence if line.file in logs),
        topology=Topology(nodes=nodes),
        catalog=facts.catalog,
        ended=ended,
        end_offsets=facts.end_offsets if by_us else {},
        suspicion=suspicions.hang_suspicion(hung.verdict, nodes) if hung is not None else None,
        rank_ended=hung is not None and hung.verdict.rank_ended,
    )


def first_evidence_s(ctx: RunContext, signature: str) -> float | None:
    """When the first line or finding behind a diagnosis with this signature was written (Unix seconds)."""
    lines = [one.at_s for one in ctx.observations.evidence if one.signature == signature]
    found = [one.at_s for one in ctx.observations.node_facts.findings if SIGNATURE + one.check == signature]
    return min((at for at in (*lines, *found) if at is not None), default=None)


def ssh_checks_over(ctx: RunContext) -> bool:
    """False while the nodes of an ended start are being checked over SSH."""
    attempt, after = ctx.attempt, ctx.observations.per_start(_SshChecks)
    if ctx.settings.get("after-checks") != "ssh" or attempt.launch.end.state not in _WORTH_SSH_CHECKS:
        return True
    if attempt.launch.end.state == "CANCELLED" and not attempt.ended_by_us:
        return True
    if (
        attempt_dir.prelaunch_hold(ctx.run_dir, attempt.number, attempt.launch.number, attempt.nodes)
        is not None
    ):
        return True  # the preflight checks have just reported
    if after.visit is None:
        asked = observe.read_node_reports(ctx).asked
        missing = [node for node in attempt.used if node not in asked]
        if not missing or attempt_dir.has_tasks(ctx.run_dir, attempt.number):
            return True
        after.visit = SshVisit(missing, text_of(ctx.settings, "ssh-config"))
    waited_s = after.waited.held_s(ctx.snapshot.mono_s)
    if not after.visit.over and waited_s < GIVEN_UP_AFTER_S:
        return False
    if after.told.first():
        outcome = {"answered": ",".join(sorted(after.visit.reports)), "why": after.visit.why}
        ctx.services.tell("nodes.visited", run=ctx.run.id, attempt=attempt.number, **outcome)
    return True


# ---------------------------------------------------------------------- the end


def _attempt_as_ended(ctx: RunContext) -> Attempt:
    """The present attempt as its last start made it, with what the log and a preemption say of its end."""
    attempt = corrected_by_log(ctx.attempt.of_last_start(), ctx.observations.evidence)
    asked = checkpoint_request.was_requested(ctx, Occasion.PREEMPT)
    return as_preempted(attempt, ctx.observations.step, told=_told_to_leave(ctx), asked=asked)


def corrected_by_log(attempt: Attempt, evidence: Sequence[Evidence]) -> Attempt:
    """`attempt`, corrected by what slurmstepd wrote into its log where no supervisor saw the end. (pure)

    A script that exits 0 because it was told to leave has not finished; nor has a start that the agent ended.
    """
    last = next((one for one in reversed(attempt.begun) if one.launch == attempt.launch.number), None)
    # The agent of a later start may be dead.
    by_us = last is not None and last.by_us and last.number == attempt.launch.start.number
    if attempt.launch.end.state == "COMPLETED" and by_us:
        return replace(attempt.ended_as(state="FAILED"), end_intended="ended from inside", end_done=True)
    left = attempt.launch.end.state == "COMPLETED" and attempt.launch.end.reason == UNWATCHED
    return (
        attempt.ended_as(state="GONE")
        if left and slurmstepd_reason(attempt, evidence) is not None
        else attempt
    )


def as_preempted(attempt: Attempt, step: int | None, *, told: bool, asked: bool) -> Attempt:
    """`attempt`, as PREEMPTED if it left by itself because Slurm wanted its nodes. (pure)

    `step` is its last one; `told`: the script was told to leave; `asked`: it was asked to save for this, in
    case Slurm has forgotten the job.
    """
    if attempt.ended_by_us or attempt.launch.requeued or not (attempt.launch.end.preempted or asked):
        return attempt
    if attempt.launch.end.state == "COMPLETED":
        known = step is not None and attempt.total_steps is not None
        if not told or (known and (step or 0) >= (attempt.total_steps or 0)):
            return attempt
    elif attempt.launch.end.state not in ("FAILED", "GONE"):
        return attempt
    return attempt.ended_as(state="PREEMPTED")


def _told_to_leave(ctx: RunContext) -> bool:
    """Whether the preempted script was told to leave: by Slurm's TERM, or by a signal or file of ours."""
    if any(one.signature == STEPS_CANCELLED for one in ctx.observations.evidence):
        return True
    request = ctx.run.leaving
    return checkpoint_request.was_requested(ctx, Occasion.PREEMPT) and bool(
        request.get("signal") or request.get("stage") == "saved"
    )


def _ended(ctx: RunContext, attempt: Attempt, lost: Sequence[str]) -> Ended:
    written = attempt_dir.exit_record(ctx.run_dir, attempt.number, attempt.launch.number)
    code, signal = attempt.launch.end.exit_code, attempt.launch.end.exit_signal
    return Ended(
        state=attempt.launch.end.state,
        reason=attempt.launch.end.reason,
        exit_code=written.code if code is None and written is not None else code,
        exit_signal=written.signal if signal is None and written is not None else signal,
        derived_exit_code=attempt.launch.end.derived_exit_code,
        by_us=attempt.ended_by_us,
        nodes_down=tuple(lost),
        requeued=attempt.launch.requeued,
        unused=len(ctx.attempt.nodes) > len(attempt.nodes),
    )


def _missing_log_folder(ctx: RunContext) -> str:
    """See `script_check.missing_log_folder`; "" where the submission context cannot be read."""
    try:
        context, given = plan.load_options(ctx.run_dir, ctx.submission)
    except (ContextError, OptionError):
        return ""
    names = {"x": str(context["job_name"]), "u": str(context["user"]), "j": ctx.attempt.job}
    return script_check.missing_log_folder(given, str(context["cwd"]), {**names, "A": ctx.attempt.job})


def _refusal(ctx: RunContext) -> SbatchRefusal:
    """Why sbatch refused. If ftrun's own exclusions or spares may be the reason, the refusal is not final."""
    ours = ctx.attempt.excluded or in_allocation.spares_of(ctx.settings, ctx.attempt)
    for_good = ctx.attempt.launch.end.state == "REFUSED" and not ours
    return SbatchRefusal(ctx.attempt.refusal, for_good, ctx.run.id)


def _gone(attempt: Attempt) -> tuple[LostCompanion, ...]:
    """The companions that this start used and that were lost."""
    lost = (one for one in attempt.companions if one.launch == attempt.launch.number and one.lost)
    return tuple(
        LostCompanion(
            one.nodes, f"Slurm: companion job {one.job} on {','.join(one.nodes)} is {one.end_state}"
        )
        for one in lost
        if set(one.nodes) & set(attempt.used)
    )


def _lost_before_end(ctx: RunContext) -> tuple[str, ...]:
    """The lost nodes, less those that Slurm gave up so late that they were still alive when the job ended.

    Both times are by Slurm's clock.
    """
    assert ctx.snapshot.nodes is not None
    end_s, timeout_s = ctx.attempt.launch.end.slurm_at_s, ctx.services.facts().slurmd_timeout_s
    rows = {
        node: ctx.snapshot.nodes[node] for node in lost_nodes(ctx, ctx.snapshot) if node in ctx.attempt.used
    }
    alive_s = timeout_s + timeout_s / 3 + PINGED_LATE_S  # the longest time before Slurm gives a node up
    return tuple(
        node
        for node, row in rows.items()
        if end_s is None
        or row.spoken_for
        or row.reason_time_s is None
        or row.reason_time_s - alive_s <= end_s
    )


# ---------------------------------------------------------------------- logs and nodes


def _attached_evidence(ctx: RunContext) -> tuple[Evidence, ...]:
    """The evidence in the other files of `--ft-log`, ordered after all evidence of the logs."""
    if not ctx.settings.get("log"):
        return ()
    named = inputs.attachments_before(observe.written_extra_files(ctx), ctx.attempt.end_offsets)
    return inputs.extra_evidence(named, ctx.services.catalog(), ctx.observations.evidence)


def _nodes_of_end(ctx: RunContext, lost: Collection[str] = ()) -> NodeFacts:
    """What the nodes report once the launch is over, less what was there before. `lost` nodes report
    nothing.
    """
    attempt, seen = ctx.attempt, ctx.observations
    if attempt_dir.has_tasks(ctx.run_dir, attempt.number):
        return NodeFacts()  # each task has nodes of its own
    visit = seen.per_start(_SshChecks).visit
    told = observe.read_node_reports(ctx, visit.reports if visit is not None else {})
    facts = replace(told.survived(seen.survived), silent=frozenset(lost))
    if not facts.odd(ctx.snapshot.now_s):
        return facts
    entries = ctx.services.ledger.entries()
    launch = entry_prefix(ctx.run, attempt.number, attempt.launch.number)
    return facts.noted_before(entries, ctx.run.id, launch, ctx.snapshot.now_s)
