"""Laws of the policy's small print: time limits, deterministic failures, elsewhere first, checkpoints, pauses. (pure)"""

from __future__ import annotations

from typing import Any

import pytest

from ftrun.slurm.records import replace
from ftrun.supervisor.config.node_counts import Sizes
from ftrun.supervisor.model.run import Incident, Launch, LaunchEnd, Start
from ftrun.supervisor.model.types import Blame, Diagnosis
from ftrun.supervisor.policy.policy_input import Ruling
from tests.unit.cases import BUDGETS, FIRST, NODES, PARTITION, F, cluster, diagnosis, incident, requeued, rule

# ---------------------------------------------------------------------- small print (P11)

SAVES = {"settings": {"checkpoint": "ck/step-*"}}


@pytest.mark.parametrize("attempt", [{}, requeued()])
def test_a_time_limit_without_a_newer_checkpoint_comes_once(attempt: dict[str, Any]) -> None:
    """The first is tried again, the second stops with advice; by Slurm's own requeue as well."""
    first = rule(diagnosis(F.TIMELIMIT), run=SAVES, attempt=attempt, step=7)
    second = rule(
        diagnosis(F.TIMELIMIT), run=SAVES | {"spent": first.spent, "best_step": 7}, attempt=attempt, step=9
    )

    assert first.decision.kind in {"resubmit", "keep"}
    assert "stop" == second.decision.kind
    assert "--time" in second.decision.advice


def test_a_time_limit_after_a_fruitful_one_gets_its_second_try() -> None:
    """Two time limits in a row are no pattern when the first one saved something."""
    first = rule(diagnosis(F.TIMELIMIT), run=SAVES, checkpoint="/ck/step-5")
    second = rule(
        diagnosis(F.TIMELIMIT),
        run=SAVES | {"spent": first.spent, "incidents": (incident(F.TIMELIMIT),)},
        attempt={"number": 3},
    )

    assert ["resubmit", "resubmit"] == [first.decision.kind, second.decision.kind]


def test_a_job_that_slurm_puts_first_is_left_to_slurm() -> None:
    """An expedited requeue without the bad node comes before any job of ours; not while that node could be used again, and not if Slurm holds it."""
    found = diagnosis(F.HARDWARE_GPU, nodes=("n1",))
    away = cluster(available=frozenset(PARTITION) - {"n1"})
    kinds = [
        rule(found, attempt=requeued(), view=view, expedited=expedited).decision.kind
        for view, expedited in ((away, True), (away, False), (cluster(), True))
    ]
    held = {"launch": Launch(requeued=True, end=LaunchEnd("REQUEUE_HOLD", "JobHeldUser"))}

    assert ["keep", "resubmit", "resubmit"] == kinds
    assert "resubmit" == rule(found, attempt=held, view=away, expedited=True).decision.kind


def test_steps_count_as_progress_where_ftrun_knows_of_no_checkpoints() -> None:
    """A script that resumes by itself gets further with each time limit, and goes on."""
    ruling = rule(diagnosis(F.TIMELIMIT), run={"spent": {"timelimit": 1}, "best_step": 10}, step=20)

    assert "resubmit" == ruling.decision.kind


@pytest.mark.parametrize(
    ("began_at", "kind"), [(1, "stop"), (40, "stop"), (101, "resubmit"), (None, "resubmit")]
)
def test_a_script_that_begins_anew_is_not_run_into_its_time_limit_again(
    began_at: int | None, kind: str
) -> None:
    """A second start that gets a few steps further than the first has saved nothing, if it began at the beginning."""
    first = rule(diagnosis(F.TIMELIMIT), step=100)
    before = replace(incident(F.TIMELIMIT), step=100, first_step=began_at)
    second = rule(
        diagnosis(F.TIMELIMIT),
        run={"spent": first.spent, "best_step": 100, "incidents": (before,)},
        attempt={"number": 3},
        step=103,
    )

    assert ("resubmit", kind) == (first.decision.kind, second.decision.kind)
    assert kind == "resubmit" or "ftrun init" in second.decision.advice


def _again(found: Diagnosis, before: Incident, **changes: Any) -> Ruling:
    return rule(found, run={"incidents": (before,), "best_step": 14}, step=14, **changes)


DETERMINISTIC = [f for f in BUDGETS if f is not F.SCHEDULER]


@pytest.mark.parametrize("fault", DETERMINISTIC)
def test_the_same_failure_at_the_same_step_on_disjoint_nodes_is_not_the_nodes(fault: F) -> None:
    """Same signature, same step, other culprits: going on cannot help, and the reason says so."""
    before = incident(fault, nodes=("n9",), step=14)

    ruling = _again(diagnosis(fault, nodes=("n2",)), before)

    assert "stop" == ruling.decision.kind
    assert "twice at step 14, on different nodes" in ruling.decision.reason


@pytest.mark.parametrize("fault", DETERMINISTIC)
@pytest.mark.parametrize(
    "before",
    [
        {"nodes": ("n2",), "step": 14},  # the same node: it is the node
        {"nodes": ("n9",), "step": 13},  # another step
        {"nodes": ("n9",), "step": 14, "signature": "another.signature"},
        {"nodes": (), "attempt_nodes": ("n2", "n9"), "step": 14},  # n2 could have been it
    ],
)
def test_a_coincidence_is_not_deterministic(fault: F, before: dict[str, Any]) -> None:
    """Another signature or step, or a node that could be guilty of both: tried again."""
    ruling = _again(diagnosis(fault, nodes=("n2",)), incident(fault, **before))

    assert "resubmit" == ruling.decision.kind


@pytest.mark.parametrize("fault", [F.PREEMPTED, F.TIMELIMIT, F.SCHEDULER, F.CHECKPOINT])
def test_what_comes_from_outside_is_never_deterministic(fault: F) -> None:
    """Being preempted twice at one step says nothing about the program."""
    before = incident(fault, step=14, attempt_nodes=("n9",))

    assert "resubmit" == _again(diagnosis(fault), before).decision.kind


def test_what_is_the_jobs_own_needs_no_other_nodes() -> None:
    """Where no node can be at fault, the same failure at the same step is enough."""
    ruling = _again(diagnosis(F.PORT_CONFLICT, blame=Blame.JOB), incident(F.PORT_CONFLICT, step=14))

    assert "stop" == ruling.decision.kind
    assert "different nodes" not in ruling.decision.reason


ELSEWHERE = {F.HANG, F.NETWORK, F.HARDWARE_GPU, F.HARDWARE_OTHER, F.UNKNOWN}


@pytest.mark.parametrize("fault", [f for f, kind in FIRST.items() if kind == "resubmit"])
def test_without_a_culprit_the_second_try_goes_elsewhere_first(fault: F) -> None:
    """For hang, network, hardware and unknown, and for no other class, where enough others are idle."""
    ruling = rule(diagnosis(fault))

    assert (NODES if fault in ELSEWHERE else ()) == ruling.decision.avoid
    assert ("on other nodes first" in ruling.decision.reason) == (fault in ELSEWHERE)


@pytest.mark.parametrize("fault", sorted(ELSEWHERE))
@pytest.mark.parametrize("idle", [frozenset(), frozenset({"n5", "n6"}), frozenset(NODES)])
def test_elsewhere_is_never_a_longer_queue(fault: F, idle: frozenset[str]) -> None:
    """Where fewer nodes are left than the job needs, of the idle ones and of its own that are well, its own are as good as any, and the reason says so."""
    decision = rule(diagnosis(fault), view=cluster(idle=idle)).decision

    assert () == decision.avoid
    assert "too few other nodes are idle" in decision.reason


@pytest.mark.parametrize("fault", sorted(ELSEWHERE))
def test_in_an_almost_full_partition_a_job_goes_elsewhere_with_what_is_idle(fault: F) -> None:
    """It keeps as many of its own nodes as it lacks, those that are well, and of these the suspects last."""
    few = cluster(idle=frozenset({"n5", "n6"}), lost=frozenset())
    decision = rule(diagnosis(fault), view=few).decision
    suspect = rule(diagnosis(fault, nodes=("n1",), exclude=False), view=few).decision

    assert (NODES[2:], True) == (decision.avoid, "as far as they are idle" in decision.reason)
    grows = replace(few, sizes=Sizes((2, 4, 6)))  # six nodes are there, and a larger size is worth more
    assert () == rule(diagnosis(fault, nodes=("n1",), exclude=False), view=grows).decision.avoid
    if not suspect.exclude:
        assert {"n1"} < set(suspect.avoid)
        assert 2 == len(suspect.avoid)


def test_a_checkpoint_that_cannot_be_loaded_is_set_aside() -> None:
    """The next attempt takes the next older one; that costs nothing but the ceiling."""
    ruling = rule(
        diagnosis(F.CHECKPOINT),
        attempt={"launch": Launch(end=LaunchEnd("FAILED"), start=Start(resume_from="/ck/step-9"))},
        run={"retries": 3},
    )

    assert ruling.decision.older_checkpoint
    assert (4, {}) == (ruling.retries, dict(ruling.spent))


def test_a_checkpoint_that_ftrun_did_not_choose_is_tried_once_more() -> None:
    """Then it stops: it cannot choose another one."""
    first = rule(diagnosis(F.CHECKPOINT))
    second = rule(diagnosis(F.CHECKPOINT), run={"spent": first.spent})

    assert ("resubmit", False) == (first.decision.kind, first.decision.older_checkpoint)
    assert "stop" == second.decision.kind


@pytest.mark.parametrize(
    ("fault", "spent", "delay_s"),
    [
        (F.HARDWARE_GPU, 0, 0.0),
        (F.HARDWARE_GPU, 1, 10.0),
        (F.HARDWARE_GPU, 2, 20.0),
        (F.SCHEDULER, 0, 30.0),
        (F.STORAGE, 0, 10.0),
        (F.STORAGE, 2, 40.0),
        (F.PREEMPTED, 0, 0.0),
    ],
)
def test_waiting_where_waiting_helps(fault: F, spent: int, delay_s: float) -> None:
    """A first failure with a named cause is answered at once; a repeated one, or one that time heals, after a pause."""
    ruling = rule(diagnosis(fault), run={"spent": {fault.value: spent}})

    assert delay_s == ruling.decision.delay_s
