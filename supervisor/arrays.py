"""An array's tasks, judged one by one: which are repeated, which have failed for good. (I/O)

How it thinks. A task is a run of its own that shares attempts and budgets with the others. So each failed task's own log and
exit record are diagnosed, and the same rules are asked for each. What may be repeated goes into the next attempt
together; the rest is given up and told. The run goes on while any task may; at its end it is finished only if none was given up.

Where tasks write into one log nobody can tell whose a line is: then one diagnosis stands for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ftrun.slurm.records import replace
from ftrun.supervisor import arrayspec, attempts, context, divergences, hung, policy, rows
from ftrun.supervisor.diagnose import Ended, diagnose
from ftrun.supervisor.model import Action, Diagnosis, FaultClass, Topology
from ftrun.supervisor.run_types import Attempt, Run

if TYPE_CHECKING:
    from ftrun.supervisor.attempts import LaunchRecord
    from ftrun.supervisor.grounds import Case
    from ftrun.supervisor.run_context import RunContext
    from ftrun.supervisor.world import ClusterSnapshot

__all__ = ["all_went_well", "given_up", "judged", "note_failed", "tasks_of", "wanted"]


def note_failed(ctx: RunContext, world: ClusterSnapshot) -> None:
    """Slurm forgets the failed tasks of a long array before its last one ends; the journal does not. Raises OSError."""
    ended = rows.failed_tasks(ctx.rows(world), ctx.attempt.ended_tasks)
    failed = sorted(set(ended) - set(ctx.attempt.failed_tasks))
    if failed:
        ctx.record("tasks.failed", tasks=failed, states={str(task): ended[task] for task in failed})


def judged(ctx: RunContext, case: Case, lost: Sequence[str]) -> Case:
    """The case with the diagnosis that stands for the tasks that may be repeated; tasks that may not are journalled as given
    up. Without such tasks it is that of the first failed task; a run without failed tasks keeps its own.

    `lost` are the nodes of the attempt that Slurm has given up. Raises OSError (journal).
    """
    attempt = case.attempt
    launches = attempts.task_records(ctx.run_dir, attempt.number, attempt.failed_tasks)
    found = _unable_to_load(ctx)
    if not attempt.failed_tasks or (_share_a_log(launches.values()) and not found):
        return case
    for task in attempt.failed_tasks:
        if task not in found:
            found[task] = (
                case.diagnosis
                if _share_a_log(launches.values())
                else _diagnosed(ctx, task, launches.get(task), case.diagnosis, lost)
            )
    stops = {task for task, cause in found.items() if _stops(case, cause)}
    again = [cause for task, cause in found.items() if task not in stops]
    if not again:
        return replace(case, diagnosis=found[attempt.failed_tasks[0]])
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
    return replace(case, run=ctx.run, diagnosis=_of_all(again))


def _share_a_log(launches: Iterable[LaunchRecord]) -> bool:
    logs = [launch.stdout for launch in launches]
    return len(set(logs)) < len(logs)


def _unable_to_load(ctx: RunContext) -> dict[int, Diagnosis]:
    """The failed tasks that found nothing which they may load, as their own records say; their script did not run."""
    attempt, found = ctx.attempt, {}
    for task in attempt.failed_tasks:
        is_over = attempts.task_exit(ctx.run_dir, attempt.number, task) is not None
        if attempt.task_states.get(task, "FAILED") == "FAILED" and not is_over:
            why = attempts.task_stuck(ctx.run_dir, attempt.number, task)
            if why:
                found[task] = divergences.none_usable(why)
    return found


def _diagnosed(
    ctx: RunContext, task: int, launch: LaunchRecord | None, otherwise: Diagnosis, lost: Sequence[str]
) -> Diagnosis:
    attempt = ctx.attempt
    state = attempt.task_states.get(task, "FAILED")
    written = attempts.task_exit(ctx.run_dir, attempt.number, task)
    if launch is None and written is None and state == "FAILED":
        return otherwise  # nothing of its own is known
    logs = {launch.stdout, launch.stderr} if launch is not None else set()
    nodes = launch.nodes if launch is not None else ()
    ended = Ended(
        state=state,
        exit_code=written.code if written is not None else None,
        exit_signal=written.signal if written is not None else None,
        by_us=task in attempt.ended_tasks,
        nodes_down=tuple(node for node in lost if node in nodes),
    )
    evidence = [line for line in ctx.observations.evidence if line.file in logs]
    found = diagnose(evidence, Topology(nodes=nodes), ended=ended, catalog=ctx.services.catalog())
    why = attempt.hung_tasks.get(task) if task in attempt.ended_tasks else None
    return hung.better(found, hung.hung(why.verdict, nodes)) if why is not None else found


def _stops(case: Case, cause: Diagnosis) -> bool:
    return policy.decide(replace(case, diagnosis=cause)).decision.kind == "stop"


def _of_all(causes: Sequence[Diagnosis]) -> Diagnosis:
    """The surest of those that accuse a node, else the surest; it accuses the nodes of all of its kind."""
    main = max(causes, key=lambda cause: (cause.exclude, cause.confidence))
    same = [cause for cause in causes if (cause.fault, cause.action) == (main.fault, main.action)]
    return replace(main, nodes=tuple(sorted({node for cause in same for node in cause.nodes})))


def given_up(run: Run) -> Diagnosis | None:
    """What the run ends with when all else is done; None where no task was given up."""
    if not run.given_up:
        return None
    first = run.given_up[0]
    tasks = ",".join(str(task) for lot in run.given_up for task in lot.tasks)
    return Diagnosis(
        fault=FaultClass(first.fault),
        retry=False,
        action=Action.STOP,
        nodes=(),
        exclude=False,
        confidence=0.9,
        signature=first.signature,
        title=f"{first.title} (task {tasks})",
        rests_on=(f"tasks {tasks} were given up; all others are done",),
    )


def wanted(run_dir: str, run: Run, previous: Attempt) -> tuple[int, ...]:
    """The tasks that the attempt after `previous` runs; empty for what is no array."""
    asked = tasks_of(run_dir, previous)
    over = {task for lot in run.given_up for task in lot.tasks}
    if previous.submission == "done":
        failed = previous.failed_tasks
        if (
            not failed or previous.launch.end.state == "GONE"
        ):  # not even Slurm knows: what left no good end is repeated
            failed = tuple(task for task in asked if not _went_well(run_dir, previous, task))
        asked = failed
    return tuple(task for task in asked if task not in over)


def all_went_well(run_dir: str, attempt: Attempt) -> bool:
    """Every task of the attempt has left a record of a good end; False for what is no array."""
    asked = tasks_of(run_dir, attempt)
    return bool(asked) and all(_went_well(run_dir, attempt, task) for task in asked)


def tasks_of(run_dir: str, attempt: Attempt) -> tuple[int, ...]:
    """The tasks that this attempt is for; empty for what is no array."""
    try:
        spec = str(context.load(run_dir).get("array", ""))
    except context.ContextError:
        return ()
    return (attempt.tasks or arrayspec.tasks(spec)) if spec else ()


def _went_well(run_dir: str, attempt: Attempt, task: int) -> bool:
    written = attempts.task_exit(run_dir, attempt.number, task)
    return written is not None and not written.code and not written.signal
