"""A launch is over: wait for late lines, find the cause, decide what comes next. (I/O)

Late lines of other ranks decide who was first, so nothing is judged before the log has been quiet for `settle`
seconds (at most `settle-max`). Then evidence becomes a diagnosis (`diagnose`) and the diagnosis a ruling (`policy`); both are
journalled before anything is done about them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ftrun.slurm.client.cluster import JobRow, JobState, NodeRow, PartitionRow, Rights
from ftrun.slurm.client.errors import RefusedForGood
from ftrun.supervisor import (
    absent,
    arrays,
    beside,
    checkpoints,
    context,
    diagnosis_inputs,
    divergence,
    divergences,
    elastic,
    ends,
    grounds,
    inplace,
    inside,
    loading,
    nodebook,
    nodelook,
    policy,
    preempted,
    queueing,
    recover,
    sense,
    usable,
)
from ftrun.supervisor.diagnosis_rules import diagnose
from ftrun.supervisor.model import Decision, Diagnosis, FaultClass, Topology

if TYPE_CHECKING:
    from ftrun.supervisor.diagnosis_facts import Facts
    from ftrun.supervisor.events import Attempt
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World

__all__ = ["cluster_view", "diagnosis_json", "newest_checkpoint", "settle", "topology", "view_of"]

SILENT_FOR_S = 15.0
PINGED_LATE_S = 15.0  # Slurm pings three times in SlurmdTimeout, and takes its time
_GIVEN_UP = frozenset({"down", "error", "fail"})


def settle(keeper: Keeper, world: World) -> None:
    """One look at a launch that is over. Decides once the log is quiet."""
    beside.take(keeper)  # what an agent decided comes first
    attempt = keeper.attempt
    if attempt.submission != "refused" and not _quiet(keeper, world):
        return
    if attempt.requeued and keeper.row(world) is None and not _unseen_for_long(keeper, world):
        return  # whether Slurm has started it again decides what may be done
    if not nodelook.visited(keeper, world):
        return
    attempt = ends.of_last_start(keeper.attempt)
    attempt = preempted.seen_through(keeper, ends.as_logged(attempt, keeper.memory.evidence))
    incident = ends.incident_id(attempt)
    facts = _facts(keeper, world, attempt, incident)
    diagnosis = diagnose(facts)
    _note_loading(keeper, diagnosis)
    found, loads = divergences.note(keeper, world), divergences.usable(keeper)
    checkpoint = newer_checkpoint(keeper, loads.path)
    case = grounds.Case(
        run=inplace.uncounted(keeper.run, incident),
        attempt=attempt,
        diagnosis=diagnosis,
        cluster=cluster_view(keeper, world),
        limits=grounds.limits_from(keeper.settings),
        now_s=world.now_s,
        step=keeper.memory.step if found is None or found.step is None else found.step,
        checkpoint=checkpoint,
        diverged=divergence.words(found),
        older=loads.back,
        stuck=loads.stuck,
        own=loads.own,
        running_again=_running_again(keeper, world),
        common=nodebook.common(keeper, diagnosis, world.now_s),
        unseen=keeper.run_dir if _unseen(keeper) else "",
    )
    if attempt.submission == "done":
        case = arrays.judged(keeper, case, facts)
        diagnosis = case.diagnosis
    if diagnosis.fault is not FaultClass.HEALTHY:
        told = [e.at_s for e in keeper.memory.evidence if e.signature == diagnosis.signature]
        told += nodelook.first_seen_s(keeper, diagnosis.signature)
        first = min((at for at in told if at is not None), default=None)
        keeper.record(
            "diagnosed",
            incident=incident,
            diagnosis=diagnosis_json(diagnosis),
            step=case.step,
            first_evidence_at_s=first,
        )
    ruling = policy.decide(case)
    _carry(keeper, world, case, ruling, incident)


def _facts(keeper: Keeper, world: World, attempt: Attempt, incident: str) -> Facts:
    """All that is known of the end; of one whose cause stays unknown, with the last lines of its logs."""
    lost = lost_by_then(keeper, world) if attempt.submission == "done" else ()
    facts = diagnosis_inputs.of_end(keeper, world, attempt, incident, topology=topology(keeper), lost=lost)
    return diagnosis_inputs.with_last_words(keeper, facts, diagnose(facts))


def _unseen_for_long(keeper: Keeper, world: World) -> bool:
    if keeper.memory.for_how_long("requeued-unseen", world.mono_s) < absent.ABSENT_FOR_S:
        return False
    return all(row.state.ended for row in keeper.office.cluster.find(keeper.attempt.token))


def _running_again(keeper: Keeper, world: World) -> bool:
    """Slurm has started the job that it requeued."""
    row = keeper.row(world)
    return (
        keeper.attempt.requeued
        and row is not None
        and row.state is JobState.RUNNING
        and keeper.started_again(row)
    )


def _carry(keeper: Keeper, world: World, case: grounds.Case, ruling: grounds.Ruling, incident: str) -> None:
    """Journal the ruling: the record itself moves the run to recovering, finished or stopped."""
    decision = ruling.decision
    wished = bool(keeper.run.wish) and decision.kind == "stop"
    data = decision_json(decision) | {
        "incident": incident,
        "class": (FaultClass.CANCELLED if wished else case.diagnosis.fault).value,
        "signature": case.diagnosis.signature,
        "spent": dict(ruling.spent),
        "retries": ruling.retries,
        "step": case.step,
        "checkpoint": case.checkpoint,
        "used": {} if case.progressed else dict(case.run.rungs),
        "exclude_until_s": case.exclude_until_s,
    }
    if ruling.would is not None and case.limits.observe:
        data["kind"] = ruling.would.kind  # what a user's hook is told would be done
        keeper.record("observed", decision=data | decision_json(ruling.would))
    if decision.kind in ("resubmit", "keep"):
        keeper.record("decided", **data)
        return
    recover.finish(keeper, world, decision, data)


def _unseen(keeper: Keeper) -> bool:
    """The run began, ran for a good while and left no record (P10): exit and progress cannot be known."""
    attempt = keeper.attempt
    if attempt.number > 1 or attempt.launch:  # batch.sh starts no later one where it cannot claim it
        return False
    if attempt.claim_seen or attempt.running_seen_at_s is None or attempt.ended_at_s is None:
        return False
    if beside.WITHOUT_SCRIPT in attempt.end_intended:  # its node was lost before it had written anything
        return False
    return attempt.ended_at_s - attempt.running_seen_at_s > 60.0


def _quiet(keeper: Keeper, world: World) -> bool:
    sense.note_launch(keeper, world)
    memory, settings = keeper.memory, keeper.settings
    waited = memory.for_how_long("settle", world.mono_s)
    report = sense.watch(keeper, world, fresh=True)
    if waited >= float(settings.get("settle-max", 10.0)):
        return True
    quiet_since = memory.growth_seen_s if memory.growth_seen_s is not None else world.mono_s - waited
    quiet_for = min(waited, world.mono_s - quiet_since)
    if report is None:  # no log to wait for: only Slurm and the exit record speak
        quiet_for = waited
    return quiet_for >= float(settings.get("settle", 2.0))


def _lost(keeper: Keeper, world: World) -> tuple[str, ...]:
    """The nodes of the attempt that Slurm has given up, or has not heard for long: a controller that has just come back
    calls every node silent for some seconds, and that is no node's fault."""
    assert world.nodes is not None
    memory, found = keeper.memory, []
    for node in keeper.attempt.reach:
        row = world.nodes.get(node)
        if row is None or row.responding:
            memory.since.pop(f"silent:{node}", None)
        elif memory.for_how_long(f"silent:{node}", world.mono_s) >= SILENT_FOR_S or row.state in _GIVEN_UP:
            found.append(node)
    return tuple(found)


def lost_by_then(keeper: Keeper, world: World) -> tuple[str, ...]:
    """The lost nodes less those that Slurm gave up so long after the job's end that they still lived then. Both times are Slurm's."""
    assert world.nodes is not None
    end_s, timeout_s = keeper.attempt.slurm_end_s, keeper.office.facts().slurmd_timeout_s
    rows = {node: world.nodes[node] for node in _lost(keeper, world) if node in keeper.attempt.used}
    alive_s = timeout_s + timeout_s / 3 + PINGED_LATE_S  # before Slurm gives a node up, at most
    return tuple(
        node
        for node, row in rows.items()
        if end_s is None
        or row.spoken_for
        or row.reason_time_s is None
        or row.reason_time_s - alive_s <= end_s
    )


def _note_loading(keeper: Keeper, diagnosis: Diagnosis) -> None:
    """Set the checkpoint aside that could not be loaded, be it that something else ended the launch or is blamed first; take back those that are not to blame."""
    told = keeper.memory.step is None and loading.cannot_load(
        keeper.memory.evidence, keeper.office.catalog(), keeper.attempt.resume_from
    )
    is_program = diagnosis.loading is not None and diagnosis.loading.verdict == loading.PROGRAM
    if loading.is_aside(diagnosis) or (told and not is_program):
        recover.set_aside(keeper)
    back = diagnosis.loading.back if diagnosis.loading is not None else ()
    known = {path for path, _ in keeper.run.set_aside}
    if any(path in known for path in back):
        keeper.record("checkpoint.taken-back", paths=[path for path in back if path in known])


def topology(keeper: Keeper) -> Topology:
    """Who sits where in this attempt, as far as it is known. Block distribution of ranks is Slurm's default and is not assumed."""
    known, report = Topology(nodes=keeper.attempt.used), keeper.memory.report
    return report.seats.added_to(known) if report is not None else known


def newest_checkpoint(keeper: Keeper) -> str:
    """The newest checkpoint of the run now, by its name; "" where none is known. Cheap: it is asked while the run writes them."""
    return usable.by_rule(keeper.settings, keeper.run, context.cwd(keeper.run_dir))


def newer_checkpoint(keeper: Keeper, newest: str) -> str:
    """The newest usable checkpoint where it is newer than all that were known when this launch began; else ""."""
    run, attempt = keeper.run, keeper.attempt
    resumed = os.path.join(context.cwd(keeper.run_dir), attempt.resume_from) if attempt.resume_from else ""
    before = run.best_checkpoint or resumed
    since = attempt.started_at_s or attempt.opened_at_s
    return newest if checkpoints.newer(newest, before, since) else ""


def cluster_view(keeper: Keeper, world: World) -> grounds.ClusterView:
    """What the policy may know of the cluster now. Raises SlurmError where Slurm cannot be heard: then nothing is decided yet."""
    assert world.nodes is not None
    row = keeper.row(world)
    try:
        partitions = keeper.office.cluster.partitions()
        rights = keeper.office.cluster.rights()
    except RefusedForGood:  # a site may hide its partitions
        return grounds.ClusterView(nodes_needed=_nodes_needed(keeper, row))
    names = _partition(keeper, row).split(",")
    return view_of(
        partitions,
        world.nodes,
        rights,
        names=names,
        lost=_lost(keeper, world),
        nodes_needed=_nodes_needed(keeper, row),
        nodes_least=queueing.least(keeper.run, elastic.of_settings(keeper.settings)),
        may_ask=bool(keeper.settings.get("operator-spool")),
    )


def view_of(
    partitions: Mapping[str, PartitionRow],
    nodes: Mapping[str, NodeRow],
    rights: Rights,
    *,
    names: Sequence[str],
    lost: Iterable[str],
    nodes_needed: int,
    may_ask: bool,
    nodes_least: int = 0,
) -> grounds.ClusterView:
    """The view from Slurm's answers; `names` are the job's partitions, and where Slurm knows none of them its default one counts. (pure)"""
    if not any(name in partitions for name in names):
        names = [p.name for p in partitions.values() if p.default]
    members = tuple(sorted({node for name in names if name in partitions for node in partitions[name].nodes}))
    return grounds.ClusterView(
        partition=members,
        available=frozenset(node for node in members if node in nodes and nodes[node].available),
        lost=frozenset(lost),
        idle=frozenset(n for n in members if n in nodes and _idle(nodes[n])),
        nodes_needed=nodes_needed,
        nodes_least=nodes_least,
        ftrun_drains=sum(1 for node in members if node in nodes and nodes[node].reason.startswith("ftrun:")),
        may_drain=rights.may_drain,
        may_ask=may_ask,
    )


def _nodes_needed(keeper: Keeper, row: JobRow | None) -> int:
    """As many as the last attempt that ran had; the present one may never have come to be. Spares are not needed."""
    if (sizes := elastic.of_settings(keeper.settings)) is not None:
        return queueing.present(keeper.run, sizes)
    if keeper.settings.get("spares") and (asked := inside.active_of(keeper.run_dir)):
        return int(asked)
    had = next((len(attempt.nodes) for attempt in reversed(keeper.run.attempts) if attempt.nodes), 1)
    return max(had, row.node_count if row is not None else 1)


def _partition(keeper: Keeper, row: JobRow | None) -> str:
    """Where the run belongs: what Slurm shows of its job, or showed while it still knew it; "" where nobody ever saw it."""
    if row is not None and row.partition:
        return row.partition
    told = [keeper.memory.partition, *(attempt.partition for attempt in reversed(keeper.run.attempts))]
    return next((name for name in told if name), "")


def _idle(row: NodeRow) -> bool:
    return row.available and row.state == "idle"


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """A diagnosis as the surface of `diagnose --json` names its parts."""
    return {
        "class": diagnosis.fault.value,
        "retry": diagnosis.retry,
        "action": diagnosis.action.value,
        "nodes": list(diagnosis.nodes),
        "exclude": diagnosis.exclude,
        "confidence": round(diagnosis.confidence, 3),
        "signature": diagnosis.signature,
        "title": diagnosis.title,
        "because": [dataclasses.asdict(proof) for proof in diagnosis.because or diagnosis.suspicious],
        "consequences": diagnosis.consequences,
        "advice": diagnosis.advice,
        "rests_on": list(diagnosis.rests_on),
        "sources": [source.value for source in diagnosis.sources],
        **({"loading": dataclasses.asdict(diagnosis.loading)} if diagnosis.loading is not None else {}),
    }


def decision_json(decision: Decision) -> dict[str, Any]:
    """A decision as journal data."""
    plain: Mapping[str, Any] = dataclasses.asdict(decision)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()}
