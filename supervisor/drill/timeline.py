"""The events of a drill: lines while it runs, a table of faults and times at the end. (pure)

The lines come from the difference of two folds of the same run, so only `model.events` knows the records of
the journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.drill.observation import Outcome, Trace
from ftrun.supervisor.model.run import Attempt, Incident, Run
from ftrun.supervisor.model.states import State


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the live view. A passing one shows the present state and is not kept."""

    drill: str
    after_s: float
    text: str
    passing: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One fault in the table at the end; None where a value is unknown."""

    fault: str
    detected_after_s: float | None = None
    diagnosed_as: str | None = None
    node_blamed: str | None = None
    action: str | None = None
    running_after_s: float | None = None
    steps_lost: int | None = None
    finished: str | None = None
    phases: Mapping[str, float] = field(default_factory=dict)  # phase -> seconds after the fault


# ---------------------------------------------------------------------------- lines


class Timeline:
    """Produces the lines; it remembers what it has reported."""

    def __init__(self) -> None:
        self._runs: Mapping[str, Run] = {}
        self._faults: dict[int, int] = {}
        self._refused: dict[int, int] = {}

    def news(self, runs: Sequence[Run], traces: Sequence[Trace]) -> list[str]:
        """Lines about what is new in these runs and in the logs of the trainers."""
        lines: list[str] = []
        for number, trace in enumerate(traces):
            lines += _faults(trace, self._faults.get(number, 0))
            lines += [
                f"attempt {line['attempt']} woke up and left its checkpoint of step {line['step']} unwritten"
                for line in trace.refused[self._refused.get(number, 0) :]
            ]
            self._faults[number], self._refused[number] = len(trace.faults), len(trace.refused)
        for run in runs:
            before = self._runs.get(run.id)
            name = f"{run.id}: " if len(runs) > 1 else ""
            lines += [name + line for line in _news(before, run)]
        self._runs = {run.id: run for run in runs}
        return lines


def _faults(trace: Trace, told: int) -> Iterator[str]:
    seen: set[tuple[str, int]] = {(line["what"], line["start"]) for line in trace.faults[:told]}
    for line in trace.faults[told:]:
        key = (line["what"], line["start"])
        if key not in seen:
            seen.add(key)
            yield f"!! {line['what']} strikes rank {line['rank']} on {line['node']} at step {line['step']}"


def _news(before: Run | None, now: Run) -> Iterator[str]:
    for number, attempt in enumerate(now.attempts):
        old = before.attempts[number] if before and len(before.attempts) > number else None
        yield from _attempt(old, attempt)
    told = {i.id: i for i in before.incidents} if before else {}
    for incident in now.incidents:
        yield from _incident(told.get(incident.id), incident)
    if before is None or now.state is not before.state:
        yield from _state(now)
    for message in now.warnings[len(before.warnings) if before else 0 :]:
        yield f"warning: {message}"


def _attempt(old: Attempt | None, now: Attempt) -> Iterator[str]:
    old = old or Attempt(now.number, now.opened_at_s)
    was, launch = old.launch, now.launch
    if now.job and old.job != now.job:
        without = f", without {', '.join(now.excluded)}" if now.excluded else ""
        size = f" of {now.size} nodes" if now.size else ""
        yield f"attempt {now.number} is job {now.job}{size}{without}"
    if launch.running_seen_at_s and was.running_seen_at_s != launch.running_seen_at_s:
        yield f"attempt {now.number} runs on {','.join(now.nodes)}"
    if launch.start.resume_from and was.start.resume_from != launch.start.resume_from:
        yield f"attempt {now.number} resumes from {launch.start.resume_from.rpartition('/')[2]}"
    if now.end_intended and old.end_intended != now.end_intended:
        yield f"attempt {now.number} is to be ended: {now.end_intended}"
    if launch.end.state and launch.end.at_s and was.end.at_s != launch.end.at_s:
        reason = launch.end.reason.replace("None", "")  # Slurm's word for no reason
        yield f"attempt {now.number}: {launch.end.state} {reason}".rstrip()
    if launch.over and not was.over:
        yield f"attempt {now.number} is over for certain"


def _incident(old: Incident | None, now: Incident) -> Iterator[str]:
    if old is None:
        blamed = f", to blame: {', '.join(now.nodes)}" if now.nodes else ""
        yield f"diagnosed as {now.fault} ({now.signature or 'no signature'}): {now.title}{blamed}"
    if now.decision and not (old and old.decision):
        yield f"decided: {now.decision.get('kind')}, {now.decision.get('reason')}"


def _state(run: Run) -> Iterator[str]:
    if run.state is State.SUSPECT:
        yield "suspected: a fatal line was seen; waiting whether training continues"
    elif run.state is State.FINISHED:
        yield "finished"
    elif run.state is State.STOPPED:
        yield f"stopped: {run.final_reason}"


# ---------------------------------------------------------------------------- the table at the end


def rows(outcome: Outcome) -> tuple[Row, ...]:
    """A row for each diagnosed fault, in order; if none was diagnosed, one for the first that struck."""
    run, trace = outcome.runs[0], outcome.traces[0]
    faults = sorted((*trace.faults, *outcome.faults), key=lambda line: float(line["at"]))
    finished = "yes" if run.state is State.FINISHED else "stopped" if run.final else "no"
    if not run.incidents:
        what = str(faults[0]["what"]) if faults else "-"
        return (Row(what, action=_action(run), steps_lost=trace.steps_lost, finished=finished),)
    table = [_row(incident, faults, trace) for incident in run.incidents]
    return (*table[:-1], replace(table[-1], finished=finished))


def _row(incident: Incident, faults: Sequence[Mapping[str, Any]], trace: Trace) -> Row:
    ours = [line for line in faults if float(line["at"]) <= incident.diagnosed_at_s]
    mine = [line for line in ours if line.get("start") in (None, incident.attempt)] or ours
    at = float(mine[0]["at"]) if mine else None
    seen = [
        t
        for t in (incident.first_evidence_at_s, incident.ended_at_s, incident.diagnosed_at_s)
        if t is not None
    ]
    detected = min((t for t in seen if at is None or t >= at - 0.5), default=incident.diagnosed_at_s)
    again = _again_at_s(incident, trace)
    return Row(
        fault=str(mine[0]["what"]) if mine else incident.title,
        detected_after_s=round(max(0.0, detected - at), 1) if at is not None else None,
        diagnosed_as=incident.fault + (f" ({incident.signature})" if incident.signature else ""),
        node_blamed=",".join(incident.nodes) or None,
        action=_decision_in_words(incident.decision),
        running_after_s=round(again - at, 1) if at is not None and again is not None else None,
        steps_lost=_lost_after(incident, trace),
        phases=_phases(incident, trace, at),
    )


def _again_at_s(incident: Incident, trace: Trace) -> float | None:
    """When the failed part ran again: the script, or the rank where only that was restarted."""
    if incident.decision.get("kind") != "rank":
        return incident.running_again_at_s
    begun = (float(line["at"]) for line in trace.ranks)
    return min((at_s for at_s in begun if at_s >= incident.diagnosed_at_s), default=None)


def _phases(incident: Incident, trace: Trace, at: float | None) -> dict[str, float]:
    """Phase of the recovery -> seconds after the fault. The first new step is from the trainer's log."""
    again = _again_at_s(incident, trace)
    steps = (float(line["at"]) for line in trace.steps)
    first = min((step_at for step_at in steps if again is not None and step_at >= again), default=None)
    times = {
        "diagnosed": incident.diagnosed_at_s,
        "decided": incident.decided_at_s,
        "stopped": incident.stopped_at_s,
        "placed": incident.placed_at_s,
        "restarted": again,
        "first step": first,
    }
    if at is None:
        return {}
    return {phase: round(time_s - at, 1) for phase, time_s in times.items() if time_s is not None}


def _lost_after(incident: Incident, trace: Trace) -> int | None:
    """Steps before the incident that were repeated after it; None if nothing was trained after it."""
    before = [int(line["step"]) for line in trace.steps if float(line["at"]) <= incident.diagnosed_at_s]
    after = [int(line["step"]) for line in trace.steps if float(line["at"]) > incident.diagnosed_at_s]
    return max(0, max(before, default=0) - after[0] + 1) if after else None


def _action(run: Run) -> str:
    if run.state is State.FINISHED:
        return "left to Slurm's requeue" if any(attempt.launch.number for attempt in run.attempts) else "none"
    return run.final_reason or "none"


def _decision_in_words(decision: Mapping[str, Any]) -> str | None:
    if not decision:
        return None
    kind = str(decision.get("kind", ""))
    if decision.get("exclude"):
        kind += f" without {','.join(decision['exclude'])}"
    elif decision.get("avoid"):
        kind += " elsewhere"
    if decision.get("older_checkpoint"):
        kind += " from an older checkpoint"
    return kind
