"""What a start's end means: the facts of the node put before the same judges that the supervisor asks. (pure)

How it thinks. The agent has its own ways of learning (a file on its node for the end, a step of its own for the nodes), but no judgement of
its own: evidence goes to `diagnose`, the nodes' reports to `nodefacts`, the case to `policy`, the ruling to `ladder`. What it adds is one fact that
nobody else has so early: who of the nodes does not answer. Such a node counts as lost, as if Slurm had said so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ftrun.supervisor import grounds, ladder, nodefacts, policy
from ftrun.supervisor.diagnose import Ended, diagnose
from ftrun.supervisor.events import Run
from ftrun.supervisor.model import Diagnosis, Evidence, FaultClass, Source, Topology
from ftrun.supervisor.nodefacts import NodeFacts
from ftrun.supervisor.verdicts import plain

if TYPE_CHECKING:
    from ftrun.supervisor.progress import Progress
    from ftrun.supervisor.signatures import Catalog

__all__ = [
    "LOST",
    "Seen",
    "cannot_load",
    "case_of",
    "decided",
    "judge",
    "lost",
    "place_of",
    "planned",
    "ruled",
    "slow",
    "usable",
]

EXCLUDE_UNTIL_MIN_S = 60.0
LOST, SLOW = "node.silent", "straggler.swap"
_NOTHING_BETTER = frozenset({FaultClass.UNKNOWN, FaultClass.HANG, FaultClass.HEALTHY})


@dataclass(frozen=True, slots=True)
class Seen:
    """All that is known of start `number` at its end.

    `nodes` are those that it used, `code` and `signal` how its script ended. `silent` are active nodes that do not answer; `suspicion` is why we ended it (None = it ended by itself), `facts` what the
    nodes say of themselves, `now_s` Unix seconds.
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
    suspicion: Diagnosis | None = None
    step: int | None = None
    checkpoint: str = ""


def judge(seen: Seen, catalog: Catalog) -> Diagnosis:
    """The cause of the end."""
    ended = Ended(
        state="FAILED",
        exit_code=seen.code,
        exit_signal=seen.signal,
        by_us=seen.suspicion is not None,
        nodes_down=seen.silent,
    )
    found = diagnose(seen.evidence, seen.topology, ended=ended, catalog=catalog, progress=seen.progress)
    why = seen.suspicion
    if why is not None and not seen.silent:
        # What Slurm and the ranks say while we end them is no cause.
        vague = found.fault in _NOTHING_BETTER and (not found.signature or found.fault is FaultClass.UNKNOWN)
        found = why if vague or planned(why) else found
    found = nodefacts.joined(found, seen.facts, seen.now_s)
    missing = tuple(node for node in seen.silent if node not in found.nodes)
    if seen.silent:
        words = f"{', '.join(seen.silent)} did not answer a step that asked every node"
        found = replace(
            found,
            nodes=(*found.nodes, *missing),
            rests_on=(*found.rests_on, words),
            exclude=True,
            # Slurm has said nothing yet. Enough to leave a node; it is drained where Slurm, too, finds it lost.
            sources=tuple(Source.SILENCE if one is Source.SLURM else one for one in found.sources),
        )
    return found


def case_of(run: Run, seen: Seen, diagnosis: Diagnosis, cluster: grounds.ClusterView) -> grounds.Case:
    """The case of this start's end, as the policy takes it."""
    assert run.attempt is not None
    attempt = replace(
        run.attempt,
        nodes=seen.nodes,
        active=seen.nodes,
        start=seen.number,
        end_state="FAILED",
        exit_code=seen.code,
        exit_signal=seen.signal,
        end_intended=seen.suspicion.title if seen.suspicion is not None else "",
        end_done=seen.suspicion is not None,
        requeued=False,
        resume_from=seen.resume_from,
    )
    return grounds.Case(
        run=run,
        attempt=attempt,
        diagnosis=diagnosis,
        cluster=cluster,
        limits=grounds.limits_from(run.settings),
        now_s=seen.now_s,
        step=seen.step,
        checkpoint=seen.checkpoint,
    )


def ruled(case: grounds.Case, place: ladder.Place) -> tuple[grounds.Ruling, ladder.Move]:
    """What the policy says, and the rung that it comes to. Raises SettingError for settings that no submission lets through."""
    ruling = policy.decide(case)
    rungs = ladder.rungs_from(case.run.settings)
    return ruling, ladder.climb(case, ruling, rungs, place, dict(case.run.rungs))


def decided(incident: str, case: grounds.Case, ruling: grounds.Ruling, move: ladder.Move) -> dict[str, Any]:
    """What the journal says of a decision to go on inside the allocation."""
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
        "used": dict(move.used),
        "step": case.step,
        "checkpoint": case.checkpoint,
        "class": case.diagnosis.fault.value,
        "signature": case.diagnosis.signature,
        "path": [list(one) for one in move.path],
        "exclude_until_s": case.now_s + max(case.limits.exclude_for_s, EXCLUDE_UNTIL_MIN_S),
        "older_checkpoint": decision.older_checkpoint,
    }


def usable(
    nodes: Sequence[str],
    *,
    active: Collection[str],
    aside: Collection[str],
    answered: Collection[str],
    unfit: Mapping[str, str],
    facts: NodeFacts,
    excluded: Collection[str] = (),
) -> tuple[str, ...]:
    """The spares that a start may use: they answer and no check calls them bad; degraded ones and those that the run avoids come last."""
    held = [one for one in facts.findings if one.until_s is None]
    shared = facts.everywhere()  # what every node shows is the site's, and spares none
    bad = {one.node for one in held if one.severity == nodefacts.BAD and one.check not in shared}
    degraded = {one.node for one in held} - bad
    free = [
        node
        for node in nodes
        if node not in {*active, *aside} and node in answered and node not in bad and node not in unfit
    ]
    return tuple(sorted(free, key=lambda node: (node in degraded, node in excluded)))


def place_of(
    seen: Seen,
    nodes: tuple[str, ...],
    spares: tuple[str, ...],
    aside: tuple[str, ...],
    *,
    batch_node: str,
    culprits: Collection[str],
    called: bool,
    stuck: Mapping[str, str],
    off: str,
) -> ladder.Place:
    """Where the job stands.

    `stuck` are nodes that answer and cannot take part; they and silent ones are used no more, whatever the fault was. `called`: this
    start called srun through the shim. A script that never does runs its processes where it runs itself, on the batch node, and
    no spare can take that one's place.
    """
    unusable = (node for node in seen.nodes if node in stuck or node in seen.silent)
    gone = tuple(dict.fromkeys((*aside, *unusable)))
    swap_off = off
    if not off and batch_node in {*culprits, *gone} and not called:
        swap_off = f"the script runs its own processes on {batch_node}, which no spare can replace"
    return ladder.Place(
        nodes=nodes,
        active=seen.nodes,
        spares=spares,
        aside=gone,
        start=seen.number,
        step_off=off,
        swap_off=swap_off,
    )


def lost(nodes: tuple[str, ...]) -> Diagnosis:
    """The suspicion that a live start has lost nodes: they do not answer."""
    words = "a node does not answer, and the script stands still"
    return replace(
        plain(FaultClass.NODE, words, [words], names=nodes, confidence=0.8, sources=(Source.SILENCE,)),
        signature=LOST,
    )


def slow(node: str, reason: str) -> Diagnosis:
    """Why a start is left for a spare that is to take a slow node's place."""
    found = plain(
        FaultClass.NODE, "a node is slow", [reason], names=(node,), confidence=0.7, sources=(Source.SILENCE,)
    )
    return replace(found, signature=SLOW)


def planned(found: Diagnosis) -> bool:
    """Whether a start that was left for this was well: what its end printed is the end's own doing."""
    return found.signature == SLOW


def cannot_load(evidence: Sequence[Evidence], catalog: Catalog) -> bool:
    """A line says that a checkpoint could not be loaded."""
    known = catalog.by_id
    told = (known[one.signature] for one in evidence if one.signature in known)
    return any(signature.fault is FaultClass.CHECKPOINT for signature in told)
