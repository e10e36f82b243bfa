"""A launch is over: wait for late lines, find the cause, decide what comes next. (I/O)

Late lines of other ranks decide which fault was first, so nothing is diagnosed before the log has been quiet
for `log-quiet` seconds (at most `log-quiet-max`), by us or by the agent that left the decision to us. Then evidence becomes a diagnosis (`diagnosis.rules`) and
the diagnosis a ruling (`policy.decide`); both are journalled before anything is done about them. Signs of
divergence in the log mark the checkpoints that the run must not resume from.
"""

from __future__ import annotations

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.records import replace
from ftrun.supervisor.config.settings import number_of
from ftrun.supervisor.context.cluster_view import asked_resource, cluster_view, newer_checkpoint
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.controller import agent_link, arrays, finish, gather_facts, missing_jobs, observe
from ftrun.supervisor.diagnosis import checkpoint_blame
from ftrun.supervisor.diagnosis.checkpoint_blame import ResumePoint
from ftrun.supervisor.diagnosis.evidence import written_before
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.resumable import find_resume_point, write_divergence_files
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model import agent_events
from ftrun.supervisor.model.types import WITHOUT_SCRIPT, Diagnosis, FaultClass
from ftrun.supervisor.policy import decide, policy_input
from ftrun.supervisor.submission import plan
from ftrun.supervisor.telemetry import divergence
from ftrun.supervisor.telemetry.diverged_checkpoints import poison_of
from ftrun.supervisor.telemetry.divergence import DivergenceSign
from ftrun.supervisor.telemetry.log_watcher import WatchReport


def assess_launch(ctx: RunContext) -> None:
    """Assess a launch that is over: one pass per snapshot; decides once the log is quiet."""
    agent_link.copy_journal(ctx)  # the agent's decisions come first
    attempt = ctx.attempt
    if attempt.submission != "refused" and not _log_is_quiet(ctx):
        return
    if attempt.launch.requeued and ctx.row() is None and not _unseen_for_long(ctx):
        return  # first see whether Slurm has started it again
    if not gather_facts.ssh_checks_over(ctx):
        return
    facts, diagnosis = _diagnosis(ctx)
    with_opinion = gather_facts.with_opinion(ctx, facts, diagnosis)
    if with_opinion is None:
        return  # it is awaited, for seconds at most
    if with_opinion.second_opinion is not None:
        facts, diagnosis = with_opinion, diagnose(with_opinion)
    _note_loading(ctx, diagnosis)
    case = _case(ctx, facts, diagnosis)
    if case.diagnosis.fault is not FaultClass.HEALTHY:
        ctx.record(
            "diagnosed",
            incident=case.attempt.incident,
            diagnosis=case.diagnosis.to_json(),
            step=case.step,
            first_evidence_at_s=gather_facts.first_evidence_s(ctx, case.diagnosis.signature),
        )
    _journal_ruling(ctx, case, decide.decide(case))


def _case(ctx: RunContext, facts: Facts, diagnosis: Diagnosis) -> policy_input.PolicyInput:
    """What the policy decides on: the diagnosis, the run's history, the cluster, the checkpoints."""
    attempt = facts.attempt
    assert attempt is not None
    found, loads = note_divergence(ctx), checkpoint_to_load(ctx)
    case = policy_input.PolicyInput(
        run=agent_events.without_last_decision(ctx.run, attempt.incident),
        attempt=attempt,
        diagnosis=diagnosis,
        checkpoint=newer_checkpoint(ctx, loads.path),
        cluster=cluster_view(ctx, ctx.snapshot),
        limits=policy_input.limits_from(ctx.settings),
        now_s=ctx.snapshot.now_s,
        step=ctx.observations.step if found is None or found.step is None else found.step,
        diverged=divergence.describe_divergence(found),
        older=loads.back,
        no_checkpoint=loads.stuck,
        own_checkpoints=loads.own,
        running_again=_running_again(ctx),
        common=ctx.services.ledger.common_cause(ctx.run, diagnosis, ctx.snapshot.now_s),
        unseen=ctx.run_dir if _unseen(ctx) else "",
        expedited=attempt.launch.requeued and plan.is_expedited(ctx.run_dir, known=ctx.submission),
    )
    if key := decide.wanted_more(case.limits.escalate, diagnosis, saved=case.saved):
        case = replace(case, asked=asked_resource(ctx, key))
    return arrays.with_task_diagnoses(ctx, case, facts) if attempt.failed_tasks else case


def _log_is_quiet(ctx: RunContext) -> bool:
    """Read the log again. True once it has been quiet for long enough."""
    observe.note_launch(ctx)
    seen, settings = ctx.observations, ctx.settings
    waited = seen.per_start(observe.EndedScript).log_quiet.held_s(ctx.snapshot.mono_s)
    report = observe.read_logs(ctx, fresh=True)
    if waited >= number_of(settings, "log-quiet-max") or _settled_inside(ctx, report):
        return True
    quiet_since = seen.growth_seen_s if seen.growth_seen_s is not None else ctx.snapshot.mono_s - waited
    quiet_for = min(waited, ctx.snapshot.mono_s - quiet_since)
    if report is None:  # no log to wait for: only Slurm and the exit record count
        quiet_for = waited
    return quiet_for >= number_of(settings, "log-quiet")


def _settled_inside(ctx: RunContext, report: WatchReport | None) -> bool:
    """Whether the agent has settled this end and left the next step to us.

    It waited until the log was quiet before it made its diagnosis, and the job then ended as its script had. What was
    written since, by batch.sh or Slurm, has just been read.
    """
    attempt, known = ctx.attempt, ctx.run.incidents[-1] if ctx.run.incidents else None
    return (
        known is not None
        and attempt.launch.inside
        and known.id == attempt.incident
        and not known.decision
        and attempt.launch.end.state == JobState.FAILED.value
        and not (report is not None and report.behind)
    )


def _unseen_for_long(ctx: RunContext) -> bool:
    if (
        ctx.observations.stopwatches["requeued, unseen"].held_s(ctx.snapshot.mono_s)
        < missing_jobs.ABSENT_FOR_S
    ):
        return False
    return all(row.state.ended for row in ctx.services.cluster.find(ctx.attempt.token))


def _diagnosis(ctx: RunContext) -> tuple[Facts, Diagnosis]:
    """The facts of the end and their cause; the last lines of the logs count only if the cause is unknown."""
    facts = gather_facts.facts_of_end(ctx)
    found = diagnose(facts)
    if found.fault is FaultClass.UNKNOWN:
        facts = gather_facts.with_last_lines(ctx, facts)
        found = diagnose(facts)
    return facts, found


def note_divergence(ctx: RunContext) -> DivergenceSign | None:
    """Journal, once, that the training of the last start had diverged; its agent may have done so before.

    Returns the sign of divergence, None if training was healthy.
    """
    report, attempt = ctx.observations.report, ctx.attempt
    if report is None or attempt.submission != "done" or not ctx.settings.get("checkpoint"):
        return None
    found = divergence.find_divergence(report.evidence, report.health)
    if found is None:
        return None
    name = f"{attempt.number}.{attempt.launch.number}.{attempt.launch.start.number}"
    if not any(one.name == name for one in ctx.run.poisoned):
        spoilt = poison_of(
            found,
            ctx.settings,
            ctx.run_dir,
            name=name,
            resumed_from=attempt.launch.start.resume_from,
            now_s=ctx.snapshot.now_s,
        )
        ctx.record("checkpoint.poisoned", **divergence.divergence_data(found, spoilt))
        write_divergence_files(ctx.run_dir, ctx.run.poisoned)
    return found


def checkpoint_to_load(ctx: RunContext) -> ResumePoint:
    """The checkpoint that a start would load now."""
    if ctx.attempt.submission != "done":
        return ResumePoint()
    return find_resume_point(ctx.settings, ctx.run, ctx.cwd, run_dir=ctx.run_dir)


def _note_loading(ctx: RunContext, diagnosis: Diagnosis) -> None:
    """Exclude a checkpoint that could not be loaded, even if another fault ended the launch or ranks higher.

    Checkpoints that turn out not to be at fault are taken back.
    """
    lines = written_before(ctx.observations.evidence, ctx.attempt.end_offsets)
    failed_to_load = ctx.observations.step is None and checkpoint_blame.is_reported_broken(
        lines, ctx.services.catalog(), ctx.attempt.launch.start.resume_from
    )
    is_program = diagnosis.loading is not None and diagnosis.loading.verdict == checkpoint_blame.PROGRAM
    if checkpoint_blame.is_set_aside(diagnosis) or (failed_to_load and not is_program):
        finish.exclude_checkpoint(ctx)
    back = diagnosis.loading.back if diagnosis.loading is not None else ()
    known = {path for path, _ in ctx.run.set_aside}
    if any(path in known for path in back):
        ctx.record("checkpoint.taken-back", paths=[path for path in back if path in known])


def _running_again(ctx: RunContext) -> bool:
    row = ctx.row()
    return (
        ctx.attempt.launch.requeued
        and row is not None
        and row.state is JobState.RUNNING
        and ctx.started_again(row)
    )


def _unseen(ctx: RunContext) -> bool:
    """Whether the first launch ran for a good while and left no record (P10).

    Exit and progress are unknown.
    """
    attempt = ctx.attempt
    if attempt.number > 1 or attempt.launch.number:  # batch.sh starts no later launch that it cannot claim
        return False
    if (
        attempt.launch.claim_seen
        or attempt.launch.running_seen_at_s is None
        or attempt.launch.end.at_s is None
    ):
        return False
    if WITHOUT_SCRIPT in attempt.end_intended:  # its node was lost before it had written anything
        return False
    return attempt.launch.end.at_s - attempt.launch.running_seen_at_s > 60.0


def _journal_ruling(ctx: RunContext, case: policy_input.PolicyInput, ruling: policy_input.Ruling) -> None:
    """Journal the ruling: the record itself moves the run to recovering, finished or stopped."""
    decision = ruling.decision
    wished = bool(ctx.run.wish) and decision.kind == "stop"
    data = decision.to_json() | {
        "incident": case.attempt.incident,
        "class": (FaultClass.CANCELLED if wished else case.diagnosis.fault).value,
        "signature": case.diagnosis.signature,
        "spent": dict(ruling.spent),
        "retries": ruling.retries,
        "progress_at_s": case.progress_at_s,
        "step": case.step,
        "checkpoint": case.checkpoint,
        "used": {} if case.progressed else dict(case.run.rungs),
        "exclude_until_s": case.exclude_until_s,
    }
    if ruling.would is not None and case.limits.observe:
        data["kind"] = ruling.would.kind  # a user's hook gets the decision that would be carried out
        ctx.record("observed", decision=data | ruling.would.to_json())
    if decision.kind in ("resubmit", "keep"):
        ctx.record("decided", **data)
        return
    finish.end_run(ctx, decision, data)
