"""What the supervisor found and decided, folded: incidents, budgets, exclusions, the end. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ftrun.slurm.records import replace
from ftrun.supervisor.parts import Exclusion, Incident, reached

if TYPE_CHECKING:
    from ftrun.supervisor.events import Run

__all__ = ["decided", "diagnosed", "final"]

Record = Mapping[str, Any]


def diagnosed(run: Run, record: Record) -> Run:
    """A launch was judged: an incident; one of the same id is judged anew, and what it cost before is remembered."""
    data = record["data"]
    diagnosis = data["diagnosis"]
    attempt = run.attempt
    assert attempt is not None
    known = next((i for i in run.incidents if i.id == data["incident"]), None)
    incident = Incident(
        id=data["incident"],
        attempt=record["attempt"],
        launch=record["launch"],
        fault=diagnosis["class"],
        signature=diagnosis["signature"],
        title=diagnosis["title"],
        nodes=tuple(diagnosis["nodes"]),
        attempt_nodes=attempt.used,
        step=data.get("step"),
        first_evidence_at_s=data.get("first_evidence_at_s"),
        ended_at_s=attempt.ended_at_s,
        diagnosed_at_s=record["at"],
        diagnosis=diagnosis,
        start=attempt.start,
        path=known.path if known is not None else (),
        before=known.before if known is not None else None,
    )
    earlier = tuple(i for i in run.incidents if i.id != incident.id)
    return replace(run, incidents=(*earlier, incident))


def decided(run: Run, record: Record) -> Run:
    """What is done about it, and the budgets and exclusions from now on."""
    data = record["data"]
    spent = dict(data["spent"])  # the budgets after this decision, written out: the fold needs no policy
    # What is over by the clock of who decides stays over, whatever another host's clock says.
    excluded = {e.node: e for e in run.excluded if e.until_s > record["at"]}
    for node in data.get("exclude", ()):
        excluded[node] = Exclusion(node, data["exclude_until_s"], data["reason"])
    for node in data.get("relax", ()):
        excluded.pop(node, None)
    run = replace(
        run,
        decision=data,
        spent=spent,
        retries=data["retries"],
        rungs=data.get("used", run.rungs),
        **reached(run.best_step, run.best_checkpoint, data),
        excluded=tuple(excluded[node] for node in sorted(excluded)),
        sizes_aside=(*run.sizes_aside, data["aside"]) if data.get("aside") else run.sizes_aside,
    )
    if run.attempts:
        run = run.with_attempt(judged=record["launch"])
    return _incident_decided(_at_step(run, data), record)


def _at_step(run: Run, data: Mapping[str, Any]) -> Run:
    return run if data.get("step") is None or not run.attempts else run.with_attempt(last_step=data["step"])


def _incident_decided(run: Run, record: Record) -> Run:
    data = record["data"]
    if not run.incidents or run.incidents[-1].id != data.get("incident"):
        return run
    incident = replace(run.incidents[-1], decision=data, decided_at_s=record["at"])
    return replace(run, incidents=(*run.incidents[:-1], incident))


def final(run: Run, record: Record) -> Run:
    """The run is over."""
    data = record["data"]
    run = replace(
        run,
        final_reason=data["reason"],
        final_class=data.get("class", ""),
        exit_code=data.get("exit_code"),
        decision={},
    )
    return _incident_decided(_at_step(run, data), record)
