"""What a person wants of a run, and the tasks of an array that wait for a person, folded. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ftrun.slurm.records import replace
from ftrun.supervisor.parts import GivenUp

if TYPE_CHECKING:
    from ftrun.supervisor.events import Run

__all__ = ["request", "resumed", "task_ending", "tasks_failed", "tasks_given_up"]

Record = Mapping[str, Any]


def tasks_failed(run: Run, record: Record) -> Run:
    """Tasks of an array failed: they are to be repeated."""
    data, attempt = record["data"], run.attempts[-1]
    states = {int(task): state for task, state in data.get("states", {}).items()}
    return run.with_attempt(
        failed_tasks=tuple(sorted({*attempt.failed_tasks, *data["tasks"]})),
        task_states={**attempt.task_states, **states},
    )


def task_ending(run: Run, record: Record) -> Run:
    """A task that hangs is about to be ended by ftrun: its scancel is no person's."""
    task = int(record["data"]["task"])
    return run.with_attempt(ended_tasks=tuple(sorted({*run.attempts[-1].ended_tasks, task})))


def tasks_given_up(run: Run, record: Record) -> Run:
    """Tasks of an array are not tried again, unless a person resumes the run."""
    data = record["data"]
    lot = GivenUp(tuple(data["tasks"]), data["class"], data["signature"], data["title"])
    return replace(run, given_up=(*run.given_up, lot))


def resumed(run: Run, record: Record) -> Run:
    """A person mended something: budgets are fresh, and what was given up is tried again, too. A pause was no fault."""
    decision = record["data"]["decision"]
    run = replace(run, wish="", wish_by="", halt={}, leaving={}, decision=decision, final_reason="")
    if decision.get("paused"):
        return run
    if run.given_up and run.attempts:
        again = {task for lot in run.given_up for task in lot.tasks}
        run = run.with_attempt(failed_tasks=tuple(sorted({*run.attempts[-1].failed_tasks, *again})))
    return replace(
        run,
        given_up=(),
        spent={},
        rungs={},
        retries=0,
    )


def given_up(run: Run, record: Record) -> Run:
    """A person does not want a paused run to come back: it is as if that had been said at once."""
    data = record["data"]
    return replace(
        run, wish=data["want"], wish_by=data["by"], halt={}, leaving={}, final_reason=data["reason"]
    )


def request(run: Run, record: Record) -> Run:
    """Somebody asked for something; what ends the run stays the wish until it is taken back.

    A request that points at `halt.json` is no wish by itself: conditions stand there.
    """
    data = record["data"]
    seen = (*run.requests_seen, data["name"])
    wants = data["want"] in ("cancel", "stop") and run.wish != "cancel"  # who cancels does not take less
    if wants and not run.final and not data.get("halt"):
        return replace(run, requests_seen=seen, wish=data["want"], wish_by=data.get("by", ""))
    return replace(run, requests_seen=seen)
