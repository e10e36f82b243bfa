"""From the facts of an ended start to its diagnosis, decision and recovery step, for the agent. (pure)

The agent has its own sources (a file on its node for the end, its own step for the nodes) but no judgement of
its own: it passes the facts to the rules of the diagnosis, the case to `decide`, and the ruling to `ladder`.
It adds one fact that nobody else knows so early: which nodes do not answer. Such a node counts as lost, as if
Slurm had said so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.config import recovery_order
from ftrun.supervisor.diagnosis import node_findings
from ftrun.supervisor.diagnosis.checkpoint_blame import ResumedCheckpoint, ResumePoint, is_set_aside
from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.diagnosis.facts import Facts, LostCompanion
from ftrun.supervisor.diagnosis.node_findings import NodeFacts
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.diagnosis.suspicions import GROWN
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.model.types import Diagnosis, Evidence, Topology
from ftrun.supervisor.policy import decide, ladder, policy_input
from ftrun.supervisor.telemetry import divergence

if TYPE_CHECKING:
    from ftrun.hooks.checkpoints.diverged import Divergence
    from ftrun.supervisor.signatures.catalog import Catalog
    from ftrun.supervisor.telemetry.divergence import DivergenceSign
    from ftrun.supervisor.telemetry.progress import Progress


@dataclass(frozen=True, slots=True)
class StartFacts:
    """All facts about start `number` at its end.

    `nodes` are those that it used, `code` and `signal` how its script ended. `silent` are active nodes that
    do not answer, `gone` those of a companion that is over. `suspicion` is why the agent ended it (None = it
    ended by itself); `rank_ended`: one of its ranks had ended, `end_offsets`, `forgotten`: see `Facts`. `facts` are the node reports, `now_s` Unix
    seconds. `diverged` is the sign of divergence, `spoilt` the checkpoints that it affects, `loads` what the
    next start would load, `resumed` what is known of the checkpoint that this start loaded.
    """

    number: int
    nodes: tuple[str, ...]
    resume_from: str
    code: int
    signal: int
    now_s: float
    evidence: tuple[Evidence, ...] = ()
    topology: Topology = field(default_factory=Topology)
    progress: Progress | None = None
    facts: NodeFacts = field(default_factory=NodeFacts)
    silent: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    suspicion: Diagnosis | None = None
    rank_ended: bool = False
    end_offsets: Mapping[str, int] = field(default_factory=dict)
    forgotten: bool = False
    step: int | None = None
    checkpoint: str = ""
    diverged: DivergenceSign | None = None
    spoilt: Divergence | None = None
    loads: ResumePoint = field(default_factory=ResumePoint)
    resumed: ResumedCheckpoint | None = None


def diagnose_start(seen: StartFacts, catalog: Catalog) -> Diagnosis:
    """The diagnosis of the end."""
    return diagnose(diagnosis_facts(seen, catalog))


def diagnosis_facts(seen: StartFacts, catalog: Catalog) -> Facts:
    """The facts of this start for the rules. Only the agent knows so early which nodes do not answer; these
    count as lost.
    """
    ended = Ended(
        state="FAILED",
        exit_code=seen.code,
        exit_signal=seen.signal,
        by_us=seen.suspicion is not None,
        nodes_down=seen.silent,
    )
    gone = LostCompanion(seen.gone, f"the companion that held {', '.join(seen.gone)} is over")
    return Facts(
        evidence=seen.evidence,
        topology=seen.topology,
        catalog=catalog,
        ended=ended,
        progress=seen.progress,
        resumed=seen.resumed,
        nodes=seen.facts,
        now_s=seen.now_s,
        silent=seen.silent,
        gone=(gone,) if seen.gone else (),
        suspicion=seen.suspicion,
        rank_ended=seen.rank_ended,
        end_offsets=seen.end_offsets,
        forgotten=seen.forgotten,
    )


def policy_input_of(
    run: Run, seen: StartFacts, diagnosis: Diagnosis, cluster: policy_input.ClusterView
) -> policy_input.PolicyInput:
    """The case of this end for the policy."""
    assert run.attempt is not None
    loads = seen.resumed.without if seen.resumed is not None and is_set_aside(diagnosis) else seen.loads
    launch = run.attempt.launch
    attempt = replace(
        run.attempt,
        nodes=seen.nodes,
        launch=replace(
            launch,
            end=replace(launch.end, state="FAILED", exit_code=seen.code, exit_signal=seen.signal),
            requeued=False,
            start=replace(launch.start, number=seen.number, nodes=seen.nodes, resume_from=seen.resume_from),
        ),
        end_intended=seen.suspicion.title if seen.suspicion is not None else "",
        end_done=seen.suspicion is not None,
    )
    return policy_input.PolicyInput(
        run=run,
        attempt=attempt,
        diagnosis=diagnosis,
        cluster=cluster,
        limits=policy_input.limits_from(run.settings),
        now_s=seen.now_s,
        step=seen.step,
        checkpoint=seen.checkpoint,
        diverged=divergence.describe_divergence(seen.diverged),
        older=loads.back,
        no_checkpoint=loads.stuck,
        own_checkpoints=loads.own,
    )


def decide_start(
    case: policy_input.PolicyInput, place: ladder.AllocationState
) -> tuple[policy_input.Ruling, ladder.RecoveryStep]:
    """The policy's ruling, and the ladder's move. Raises SettingError for settings that no submission
    accepts.
    """
    ruling = decide.decide(case)
    rungs = recovery_order.rung_rules_from(case.run.settings)
    return ruling, ladder.choose_action(case, ruling, rungs, place, dict(case.run.rungs))


def decision_record(
    incident: str, case: policy_input.PolicyInput, ruling: policy_input.Ruling, move: ladder.RecoveryStep
) -> dict[str, Any]:
    """The journal record of a decision to recover inside the allocation."""
    decision = ruling.decision
    return {
        "incident": incident,
        "rung": move.rung.value,
        "nodes": list(move.nodes),
        "aside": list(move.aside),
        "exclude": list(decision.exclude),
        "drain": list(decision.drain),
        "ask": list(decision.ask),
        "reason": move.reason,
        "spent": dict(move.spent),
        "retries": ruling.retries,
        "progress_at_s": case.progress_at_s,
        "used": dict(move.used),
        "step": case.step,
        "checkpoint": case.checkpoint,
        "class": case.diagnosis.fault.value,
        "signature": case.diagnosis.signature,
        "path": [list(one) for one in move.path],
        "exclude_until_s": case.exclude_until_s,
        "older_checkpoint": decision.older_checkpoint,
        "fresh": decision.fresh,
        "taken_back": list(case.diagnosis.loading.back) if case.diagnosis.loading is not None else [],
        "sizes_aside": [decision.aside] if decision.aside else [],
    }


def growth_record(
    incident: str, case: policy_input.PolicyInput, nodes: Sequence[str], aside: Sequence[str], reason: str
) -> dict[str, Any]:
    """The record of a start that begins again though nothing failed: no node blamed, no budget spent, and a
    refill after progress.
    """
    return {
        "incident": incident,
        "reason": reason,
        "nodes": list(nodes),
        "aside": list(aside),
        "exclude": [],
        "drain": [],
        "ask": [],
        "spent": dict(case.spent),
        "retries": case.retries,
        "progress_at_s": case.progress_at_s,
        "used": {} if case.progressed else dict(case.run.rungs),
        "step": case.step,
        "checkpoint": case.checkpoint,
        "class": "",
        "signature": GROWN,
        "path": [],
        "exclude_until_s": 0.0,
        "older_checkpoint": False,
        "set_aside": [],
    }


def usable_spares(
    nodes: Sequence[str],
    *,
    active: Collection[str],
    aside: Collection[str],
    answered: Collection[str],
    unfit: Mapping[str, str],
    facts: NodeFacts,
    excluded: Collection[str] = (),
) -> tuple[str, ...]:
    """The spares for a start: they answer and no check calls them bad. Degraded ones and those that the run
    avoids come last.
    """
    bad, degraded = _bad(facts), degraded_nodes(facts)
    free = [
        node
        for node in nodes
        if node not in {*active, *aside} and node in answered and node not in bad and node not in unfit
    ]
    return tuple(sorted(free, key=lambda node: (node in degraded, node in excluded)))


def degraded_nodes(facts: NodeFacts) -> frozenset[str]:
    """The nodes of which a check says something now, but none that they are bad."""
    bad = _bad(facts)
    return frozenset(one.node for one in facts.findings if one.until_s is None and one.node not in bad)


def spares_objection(nodes: Iterable[str], unfit: Mapping[str, str], facts: NodeFacts) -> str:
    """Why those of `nodes` that answer are no spares; "" if there are none."""
    bad = _bad(facts)
    why = {node: unfit.get(node) or bad.get(node, "") for node in nodes}
    return "; ".join(f"{node}: {words}" for node, words in why.items() if words)


def _bad(facts: NodeFacts) -> dict[str, str]:
    """The nodes that a check calls bad now, with the first such check. What every node shows is the site's
    matter and rules out no spare.
    """
    shared = facts.everywhere()
    bad: dict[str, str] = {}
    for one in facts.findings:
        if one.until_s is None and one.severity == node_findings.BAD and one.check not in shared:
            bad.setdefault(one.node, f"{one.check}: {one.message}")
    return bad


def allocation_state(
    seen: StartFacts,
    nodes: tuple[str, ...],
    spares: tuple[str, ...],
    aside: tuple[str, ...],
    *,
    batch_node: str,
    culprits: Collection[str],
    called: bool,
    stuck: Mapping[str, str],
    off: str,
) -> ladder.AllocationState:
    """The position of the job.

    `stuck` are nodes that answer but cannot take part; like silent ones they are not used again, whatever the
    fault was. `called`: this start called srun through the shim. A script that never does runs its processes
    on the batch node, and no spare can replace that one.
    """
    unusable = (node for node in seen.nodes if node in stuck or node in seen.silent)
    gone = tuple(dict.fromkeys((*aside, *unusable)))
    swap_off = off
    if not off and batch_node in {*culprits, *gone} and not called:
        swap_off = f"the script runs its own processes on {batch_node}, which no spare can replace"
    return ladder.AllocationState(
        nodes=nodes,
        active=seen.nodes,
        spares=spares,
        aside=gone,
        start=seen.number,
        step_off=off,
        swap_off=swap_off,
        batch_node=batch_node,
    )
