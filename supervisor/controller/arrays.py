"""The tasks of an array, assessed one by one: which to repeat, which have failed for good. (I/O)

Each failed task's own log and exit record are diagnosed, and the same rules decide on each; attempts and
budgets are those of the whole run. Tasks that may be repeated go into the next attempt together; the rest is
given up and reported. The run goes on while any task may; at its end it is finished only if none was given
up.

If tasks write into one log, their lines cannot be told apart: then one diagnosis stands for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ftrun.slurm.records import replace
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.controller import gather_facts
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model import job_rows
from ftrun.supervisor.model.types import Diagnosis
from ftrun.supervisor.policy import decide
from ftrun.supervisor.policy.policy_input import PolicyInput
from ftrun.supervisor.store import attempt_dir
from ftrun.supervisor.store.attempt_dir import LaunchRecord
from ftrun.supervisor.submission import array_spec


def note_failed(ctx: RunContext) -> None:
    """Journal failed tasks: Slurm forgets those of a long array before its last task ends. Raises OSError."""
    ended = job_rows.failed_tasks(ctx.rows(), ctx.attempt.ended_tasks)
    failed = sorted(set(ended) - set(ctx.attempt.failed_tasks))
    if failed:
        ctx.record("tasks.failed", tasks=failed, states={str(task): ended[task] for task in failed})


def task_diagnoses(ctx: RunContext, facts: Facts, whole: Diagnosis) -> dict[int, Diagnosis]:
    """The diagnosis of each failed task; {} if one stands for all. Raises OSError.

    `whole`, the diagnosis of all, is used where nothing is known of a task alone.
    """
    attempt, run_dir = ctx.attempt, ctx.run_dir
    launches = attempt_dir.task_records(run_dir, attempt.number, attempt.failed_tasks)
    unstarted = _facts_of_unstarted(ctx, facts, launches)
    share = _share_a_log(launches.values())
    if share and not unstarted:
        return {}
    found = {}
    for task in attempt.failed_tasks:
        known = unstarted.get(task)
        if known is None and not share:
            known = gather_facts.facts_of_task(facts, attempt, task, run_dir, launches.get(task))
        found[task] = diagnose(known) if known is not None else whole
    return found


def with_task_diagnoses(ctx: RunContext, case: PolicyInput, facts: Facts) -> PolicyInput:
    """The case with the diagnosis of the tasks that may be repeated; the others are journalled as given up.

    If none may be repeated it has the diagnosis of the first failed task; without failed tasks it is
    unchanged. Raises OSError (journal).
    """
    found = task_diagnoses(ctx, facts, case.diagnosis)
    if not found:
        return case
    stops = {task for task, cause in found.items() if _stops(case, cause)}
    again = tuple(cause for task, cause in found.items() if task not in stops)
    if not again:
        first = (found[case.attempt.failed_tasks[0]],)
        return replace(case, diagnosis=diagnose(replace(facts, tasks=first)))
    for cause in {(found[task].fault, found[task].title): found[task] for task in sorted(stops)}.values():
        same = [
            task
            for task in sorted(stops)
            if (found[task].fault, found[task].title) == (cause.fault, cause.title)
        ]
        ctx.record(
            "tasks.given-up",
            tasks=same,
            signature=cause.signature,
            title=cause.title,
            **{"class": cause.fault.value},
        )
    return replace(case, run=ctx.run, diagnosis=diagnose(replace(facts, tasks=again)))


def _share_a_log(launches: Iterable[LaunchRecord]) -> bool:
    logs = [launch.stdout for launch in launches]
    return len(set(logs)) < len(logs)


def _facts_of_unstarted(
    ctx: RunContext, facts: Facts, launches: Mapping[int, LaunchRecord]
) -> dict[int, Facts]:
    """The failed tasks whose script did not run, and why, by their own records."""
    attempt, found = ctx.attempt, {}
    for task in attempt.failed_tasks:
        place = ctx.run_dir, attempt.number, task
        if attempt.task_states.get(task, "FAILED") != "FAILED" or attempt_dir.task_exit(*place) is not None:
            continue
        held, file = attempt_dir.prelaunch_hold_of_task(
            *place, launches[task].nodes if task in launches else ()
        )
        stuck, hook_hold = (
            attempt_dir.why_no_checkpoint_for_task(*place),
            attempt_dir.hook_hold_of_task(*place),
        )
        if held is not None or stuck or hook_hold:
            found[task] = Facts(
                (),
                facts.topology,
                facts.catalog,
                held=held,
                held_file=file,
                unloadable=stuck,
                hook_hold=hook_hold,
            )
    return found


def _stops(case: PolicyInput, cause: Diagnosis) -> bool:
    ruling = decide.decide(replace(case, diagnosis=cause))
    return (ruling.would or ruling.decision).kind == "stop"


def tasks_to_repeat(ctx: RunContext) -> tuple[int, ...]:
    """The tasks that the next attempt runs; empty if the job is no array."""
    previous, asked = ctx.attempt, tasks_of(ctx)
    over = {task for lot in ctx.run.given_up for task in lot.tasks}
    if previous.submission == "done":
        failed = previous.failed_tasks
        if not failed or previous.launch.end.state == "GONE":
            # Even Slurm does not know: repeat every task without a record of a good end.
            failed = tuple(task for task in asked if not _went_well(ctx, task))
        asked = failed
    return tuple(task for task in asked if task not in over)


def all_went_well(ctx: RunContext) -> bool:
    """Whether every task of the attempt has a record of a good end; False if the job is no array."""
    asked = tasks_of(ctx)
    return bool(asked) and all(_went_well(ctx, task) for task in asked)


def tasks_of(ctx: RunContext) -> tuple[int, ...]:
    """The tasks that the present attempt is for; empty if the job is no array."""
    spec = str(ctx.submission.get("array", ""))
    return (ctx.attempt.tasks or array_spec.array_tasks(spec)) if spec else ()


def _went_well(ctx: RunContext, task: int) -> bool:
    written = attempt_dir.task_exit(ctx.run_dir, ctx.attempt.number, task)
    return written is not None and not written.code and not written.signal
