"""Which record of a run gives which notice: what happened and where, what was done, what it cost, what to do. (pure)

A notice has an id made of the run and of what it is about, so the same record told twice is one notice. Its texts
hold words of logs, which anybody can write: each is one printable line of bounded length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ftrun.hooks.runtime.formats import counted, duration_text
from ftrun.slurm.client import nodeset
from ftrun.slurm.records import dataclass
from ftrun.supervisor.model.run import Incident, Record, Run
from ftrun.supervisor.model.states import State
from ftrun.supervisor.model.types import UNLIMITED, FaultClass
from ftrun.supervisor.policy.policy_input import limits_from
from ftrun.supervisor.reports.statistics import FaultCost

KINDS: Mapping[str, str] = {
    "gave-up": "ftrun stopped the run for good",
    "stalled": "the run should train and has made no step for notify-stalled-after",
    "finished": "the script came to its end",
    "fault": "a fault was diagnosed and the run goes on",
    "recovered": "the run makes new steps after a fault",
    "budget": "one more such fault, or restart, and ftrun gives up",
    "drained": "a node was drained",
}
"""Kind of a notice -> when it is given. A test message has the kind `test`."""

LINE_CHARS = 300
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")
_PEOPLE = frozenset({"cancelled"})  # classes of stops that a person asked for

Costs = Callable[[], Sequence[FaultCost] | None]
"""What each fault of the run cost, None where that cannot be known; it reads the whole journal, so it is called where a notice says a cost."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell. `what` and `then` are its two lines; `at_s`: when it happened, Unix seconds."""

    id: str
    kind: str
    run: str
    at_s: float
    what: str
    then: str
    nodes: tuple[str, ...] = ()
    fault: str = ""

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> Notice:
        """The notice of `facts`. Raises KeyError, TypeError, ValueError."""
        texts = {key: str(told[key]) for key in ("id", "kind", "run", "what", "then", "fault")}
        return cls(at_s=float(told["at_s"]), nodes=tuple(map(str, told["nodes"])), **texts)

    @property
    def facts(self) -> dict[str, Any]:
        """The same as JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"nodes": list(self.nodes)}


def one_line(text: object, chars: int = LINE_CHARS) -> str:
    """One printable line: no control characters, no sequences for terminals, no marks that turn the direction."""
    bare = _ESCAPE.sub(" ", str(text)[: 4 * chars])
    bare = " ".join("".join(sign if sign.isprintable() else " " for sign in bare).split())
    return bare if len(bare) <= chars else bare[: chars - 4] + " ..."


def notices_of(run: Run, record: Record, costs: Costs) -> Iterator[Notice]:
    """The notices of one record. `run`: the fold of all records up to it, or beyond."""
    kind, data = record["kind"], record["data"]
    if kind in ("decided", "start.decided"):
        incident = _incident(run, data.get("incident"))
        if incident is not None and incident.decision.get("kind") != "stop":
            yield _fault(run, incident, record)
            yield from _budget(run, incident, record)
    elif kind == "launch.progress" and data.get("first_step"):
        yield from _recovered(run, run.incidents[-1] if run.incidents else None, record, costs)
    elif kind == "start.first-step":
        yield from _recovered(run, _incident(run, data.get("incident")), record, costs)
    elif kind == "drain.done":
        yield _drained(run, record)
    elif kind == "run.finished":
        lost = _sum_of(costs())
        then = f"Done: {_starts(run)}. Cost: {lost}. You: nothing, it is over."
        yield _notice(f"finished {record['at']:.3f}", run, record, (f"finished {_reached(run)}", then))
    elif kind == "run.stopped" and not (run.wish or run.paused or data.get("class") in _PEOPLE):
        yield _gave_up(run, record, costs)


def stalled_notice(run: Run, now_s: float, after_s: float) -> Notice | None:
    """The run should train and does not: since its last step, or since it lost its job.

    Its first wait in the queue is none, and a run whose steps nobody can see never stalls while it runs.
    """
    attempt = run.attempt
    if attempt is None or run.state in (State.NEW, State.FINISHED, State.STOPPED) or run.wish == "pause":
        return None
    if run.state in (State.RUNNING, State.SUSPECT):
        times_s = (attempt.stepped_at_s, attempt.launch.running_seen_at_s, attempt.launch.started_at_s)
        stepped = any(one.last_step is not None for one in run.attempts)
        since_s = max((one for one in times_s if one is not None), default=None) if stepped else None
        where = f"runs as job {attempt.job} and made no step"
    else:
        started = any(one.starts or one.launch.running_seen_at_s is not None for one in run.attempts)
        since_s = (attempt.submitted_at_s or attempt.opened_at_s) if started else None
        where = f"waits to start again (job {attempt.job or 'none yet'}, {run.state.value})"
    if since_s is None or now_s - since_s < after_s:
        return None
    what = f"{run.id} {where} for {duration_text(now_s - since_s)} (last step: {_step(run)})"
    then = f"Done: nothing yet. Cost: {duration_text(now_s - since_s)} so far. You: look at `ftrun show {run.id}`."
    about = f"stalled {attempt.number}.{attempt.launch.number}.{int(since_s)}"
    return Notice(
        _id(run, about),
        "stalled",
        run.id,
        now_s,
        one_line(what),
        one_line(then),
        _nodes(attempt.reach),
    )


def test_notice(now_s: float, by: str) -> Notice:
    """What `ftrun notify --test` sends."""
    then = "Done: one message to each address. Cost: nothing. You: nothing, notices reach you here."
    return Notice(f"test {now_s:.3f}", "test", "", now_s, one_line(f"this is a test by {by}"), then)


def _incident(run: Run, wanted: object) -> Incident | None:
    return next((one for one in reversed(run.incidents) if one.id == wanted), None)


def _notice(
    about: str, run: Run, record: Record, texts: tuple[str, str], incident: Incident | None = None
) -> Notice:
    what, then = texts
    kind = about.partition(" ")[0]
    nodes = incident.nodes if incident is not None else ()
    fault = incident.fault if incident is not None else ""
    return Notice(
        _id(run, about),
        kind,
        run.id,
        float(record["at"]),
        one_line(f"{run.id}: {what}"),
        one_line(then),
        _nodes(nodes),
        one_line(fault, 40),
    )


def _id(run: Run, about: str) -> str:
    """The same for the same thing; a run of the same name after this one was removed is another one."""
    return f"{run.id} {run.created_at_s:.0f} {one_line(about, 120)}"


def _nodes(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(one_line(name, 64) for name in names[:64])


def _on(nodes: Sequence[str]) -> str:
    return f" on {nodeset.fold(nodes)}" if nodes else ""


def _title(incident: Incident) -> str:
    return f"{incident.fault}{_on(incident.nodes)}: {one_line(incident.title, 160)}"


def _fault(run: Run, incident: Incident, record: Record) -> Notice:
    decision = incident.decision
    without = nodeset.fold(decision["exclude"]) if decision.get("exclude") else ""
    did = f"{decision.get('rung') or decision.get('kind', '')}{f', without {without}' if without else ''}"
    then = f"Done: {did} ({one_line(decision.get('reason', ''), 120)}). Cost: known when it trains again. You: nothing."
    return _notice(f"fault {incident.id}", run, record, (_title(incident), then), incident)


def _budget(run: Run, incident: Incident, record: Record) -> Iterator[Notice]:
    limit = limits_from(run.settings).budget(FaultClass(incident.fault))
    most = int(run.settings.get("retries") or 0)
    if 1 < limit < UNLIMITED and run.spent.get(incident.fault, 0) == limit:
        what = f"all {limit} retries without progress after {incident.fault} are used"
    elif most > 1 and run.retries == most:
        what = f"all {most} retries of the run are used"
    else:
        return
    then = (
        f"Done: it goes on once more. Cost: the run, at the next such fault. You: `ftrun explain {run.id}`."
    )
    yield _notice(f"budget {incident.id}", run, record, (what, then), incident)


def _recovered(run: Run, incident: Incident | None, record: Record, costs: Costs) -> Iterator[Notice]:
    if incident is None or incident.first_step_at_s is None:
        return
    known = costs()
    cost = None if known is None else [one for one in known if one.incident == incident.id]
    then = f"Done: {incident.rung or 'started again'}. Cost: {_sum_of(cost)}. You: nothing."
    what = f"trains again after {_title(incident)}"
    yield _notice(f"recovered {incident.id}", run, record, (what, then), incident)


def _drained(run: Run, record: Record) -> Notice:
    node, reason = (
        one_line(record["data"].get("node", ""), 64),
        one_line(record["data"].get("reason", ""), 160),
    )
    what = f"node {node} was drained: {reason}"
    then = f"Done: drained, and the run goes on without it. Cost: one node. You: have {node} repaired; `ftrun recheck` gives it back."
    return Notice(
        _id(run, f"drained {node} {record['at']:.3f}"),
        "drained",
        run.id,
        float(record["at"]),
        one_line(f"{run.id}: {what}"),
        one_line(then),
        (node,),
    )


def _gave_up(run: Run, record: Record, costs: Costs) -> Notice:
    last = run.incidents[-1] if run.incidents else None
    advice = one_line((last.diagnosis.get("advice") if last is not None else "") or "", 120)
    advice = advice.rstrip(".") or f"read `ftrun explain {run.id}`, mend it, then `ftrun resume {run.id}`"
    reason = one_line(record["data"].get("reason", ""), 200)
    then = f"Done: {_starts(run)}, then stopped. Cost: {_sum_of(costs())}. You: {advice}."
    return _notice(f"gave-up {record['at']:.3f}", run, record, (f"gave up: {reason}", then), last)


def _sum_of(costs: Sequence[FaultCost] | None) -> str:
    if costs is None:
        return "unknown"
    if not costs:
        return "no fault"
    repair_s, steps = sum(one.repair_s for one in costs), sum(one.steps_lost for one in costs)
    hours = sum(one.node_hours for one in costs)
    found = f"{duration_text(repair_s)}, {hours:.1f} node-hours"
    return f"{found}, {counted(steps, 'step')} done again" if steps else found


def _starts(run: Run) -> str:
    count = len(run.attempts)
    return f"{count} attempt{'s' if count != 1 else ''}, {len(run.incidents)} fault{'s' if len(run.incidents) != 1 else ''}"


def _step(run: Run) -> int | None:
    return max((one.last_step for one in run.attempts if one.last_step is not None), default=run.best_step)


def _reached(run: Run) -> str:
    step = _step(run)
    return f"at step {step}" if step is not None else "well"
