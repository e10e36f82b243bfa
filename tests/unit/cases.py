"""What the tests of the policy are made of: a diagnosis, an earlier incident, a cluster, and one ruling. (pure)"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ftrun.supervisor.diagnosis.class_defaults import CLASS_DEFAULTS
from ftrun.supervisor.model.run import Attempt, Exclusion, Incident, Launch, LaunchEnd, Run
from ftrun.supervisor.model.states import State
from ftrun.supervisor.model.types import Diagnosis, FaultClass, Source
from ftrun.supervisor.policy.decide import decide
from ftrun.supervisor.policy.policy_input import AskedResource, ClusterView, PolicyInput, PolicyLimits, Ruling

F = FaultClass
NODES = ("n1", "n2", "n3", "n4")
PARTITION = tuple(f"n{i}" for i in range(1, 41))
NOW = 1_000_000.0
DAY = 86_400.0


FIRST = {
    F.HARDWARE_GPU: "resubmit",
    F.HARDWARE_OTHER: "resubmit",
    F.NODE: "resubmit",
    F.NETWORK: "resubmit",
    F.STORAGE: "resubmit",
    F.SCHEDULER: "resubmit",
    F.PREEMPTED: "resubmit",
    F.TIMELIMIT: "resubmit",
    F.HANG: "resubmit",
    F.CHECKPOINT: "resubmit",
    F.PORT_CONFLICT: "resubmit",
    F.LIBRARY_BUG: "resubmit",
    F.UNKNOWN: "resubmit",
    F.OOM_GPU: "stop",
    F.OOM_HOST: "stop",
    F.USER_CODE: "stop",
    F.DATA: "stop",
    F.CONFIG: "stop",
    F.CANCELLED: "stop",
}
BUDGETS = {
    F.HARDWARE_GPU: 5,
    F.HARDWARE_OTHER: 5,
    F.NODE: 5,
    F.NETWORK: 5,
    F.STORAGE: 3,
    F.SCHEDULER: 5,
    F.HANG: 3,
    F.PORT_CONFLICT: 3,
    F.LIBRARY_BUG: 1,
    F.UNKNOWN: 1,
}


def diagnosis(fault: F, **changes: Any) -> Diagnosis:
    """A diagnosis as the class gives it by default."""
    default = CLASS_DEFAULTS[fault]
    plain = Diagnosis(
        fault=fault,
        retry=default.retry,
        action=default.action,
        nodes=(),
        exclude=default.exclude,
        confidence=0.9,
        signature="a.signature",
        title="something happened",
        sources=(Source.LOG,),
    )
    return replace(plain, **changes)


def incident(fault: F, attempt: int = 1, **changes: Any) -> Incident:
    """An earlier fault of the run."""
    plain = Incident(
        id=f"{attempt}.0",
        attempt=attempt,
        launch=0,
        fault=fault.value,
        signature="a.signature",
        title="something happened",
        nodes=(),
        attempt_nodes=NODES,
        step=None,
        first_evidence_at_s=None,
        ended_at_s=None,
        diagnosed_at_s=NOW - 100,
        diagnosis={},
    )
    return replace(plain, **changes)


def cluster(**changes: Any) -> ClusterView:
    """Forty nodes; those of the attempt are busy, or lost since a moment (all but n4), the others idle."""
    free = frozenset(PARTITION)
    idle = free - set(NODES)
    plain = ClusterView(PARTITION, free, idle, lost=frozenset(NODES[:3]), nodes_needed=4, may_drain=True)
    return replace(plain, **changes)


def requeued(reason: str = "BeginTime") -> dict[str, Any]:
    """Fields of an attempt whose job waits in the queue again."""
    return {"launch": Launch(requeued=True, end=LaunchEnd("PENDING", reason))}


def rule(
    found: Diagnosis,
    *,
    run: dict[str, Any] | None = None,
    attempt: dict[str, Any] | None = None,
    limits: PolicyLimits | None = None,
    view: ClusterView | None = None,
    step: int | None = None,
    checkpoint: str = "",
    common: str = "",
    unseen: str = "",
    now_s: float = NOW,
    asked: AskedResource | None = None,
    expedited: bool = False,
) -> Ruling:
    """The ruling on a failed second attempt on NODES, unless the test says otherwise."""
    tried = replace(
        Attempt(2, NOW - 1000, nodes=NODES, launch=Launch(end=LaunchEnd(state="FAILED"))), **(attempt or {})
    )
    history = replace(Run("r-0001", State.SETTLING, attempts=(Attempt(1, NOW - 2000), tried)), **(run or {}))
    case = PolicyInput(
        history, tried, found, view or cluster(), limits or PolicyLimits(), now_s, step, checkpoint
    )
    return decide(replace(case, common=common, unseen=unseen, asked=asked, expedited=expedited))


def earlier_exclusions(*names: str) -> tuple[Exclusion, ...]:
    """Exclusions of earlier faults, the first one the oldest."""
    return tuple(Exclusion(name, NOW + DAY - 1000 + age, "earlier") for age, name in enumerate(names))
