"""Laws of the policy: a history, a diagnosis and a cluster in, a ruling with its reason out. (pure)"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.supervisor.config.settings import defaults
from ftrun.supervisor.model.run import Launch, LaunchEnd, Run, Start
from ftrun.supervisor.model.types import CLASS_RULES, UNLIMITED, Action, Source
from ftrun.supervisor.policy.decide import requested_stop
from ftrun.supervisor.policy.policy_input import PolicyLimits, limits_from
from tests.unit.cases import BUDGETS, FIRST, F, diagnosis, requeued, rule

# ---------------------------------------------------------------------- every class (DESIGN's table)


def test_every_class_has_a_rule_and_a_test() -> None:
    """No fault class is forgotten: neither by the table of rules nor by the table of this file."""
    assert set(F) == set(CLASS_RULES)
    assert set(F) - {F.HEALTHY} == set(FIRST)


@pytest.mark.parametrize("fault", FIRST)
def test_the_first_failure_of_a_class_is_ruled_by_the_design(fault: F) -> None:
    """What can pass is tried again, what cannot is stopped at once, and the reason names the class or the person."""
    ruling = rule(diagnosis(fault))

    assert FIRST[fault] == ruling.decision.kind
    assert fault.value in ruling.decision.reason or fault is F.CANCELLED
    assert (ruling.retries == 1) == (ruling.decision.kind == "resubmit" and fault is not F.PREEMPTED)


@pytest.mark.parametrize("fault", BUDGETS)
def test_a_budget_lasts_for_so_many_failures_and_not_one_more(fault: F) -> None:
    """N retries without progress, then a stop that says how many were used."""
    spent: dict[str, int] = {}
    for used in range(BUDGETS[fault]):
        ruling = rule(diagnosis(fault), run={"spent": spent})
        assert "resubmit" == ruling.decision.kind, used
        assert ruling.spent[fault.value] == used + 1
        spent = dict(ruling.spent)

    last = rule(diagnosis(fault), run={"spent": spent})

    assert "stop" == last.decision.kind
    assert f"{BUDGETS[fault]} of {BUDGETS[fault]} retries" in last.decision.reason


@pytest.mark.parametrize("fault", BUDGETS)
@pytest.mark.parametrize("how", [{"step": 11}, {"checkpoint": "/ck/step-11"}])
def test_progress_refills_the_budgets_of_all_classes(fault: F, how: dict[str, Any]) -> None:
    """A higher step or a newer checkpoint, not time, gives a used-up budget back."""
    spent = {f.value: n for f, n in BUDGETS.items()}

    ruling = rule(diagnosis(fault), run={"spent": spent, "best_step": 10}, **how)

    assert "resubmit" == ruling.decision.kind
    assert {fault.value: 1} == dict(ruling.spent)


@pytest.mark.parametrize("step", [None, 3, 10])
def test_a_step_that_was_reached_before_is_no_progress(step: int | None) -> None:
    """Getting as far as before refills nothing."""
    ruling = rule(diagnosis(F.UNKNOWN), run={"spent": {"unknown": 1}, "best_step": 10}, step=step)

    assert "stop" == ruling.decision.kind


def test_a_preemption_and_a_time_limit_with_progress_spend_no_budget() -> None:
    """The one counts for nothing at all, the other is a restart after net progress."""
    for fault, after in ((F.PREEMPTED, 7), (F.TIMELIMIT, 1)):
        checkpoint = "/ck/step-5" if fault is F.TIMELIMIT else ""
        ruling = rule(diagnosis(fault), run={"retries": 7}, checkpoint=checkpoint)

        assert ("resubmit", "", after) == (ruling.decision.kind, ruling.decision.spends, ruling.retries)


# ---------------------------------------------------------------------- budgets by the settings


@pytest.mark.parametrize("fault", [f for f in BUDGETS if f is not F.SCHEDULER])
def test_a_budget_of_zero_in_the_settings_means_never(fault: F) -> None:
    """`budget-CLASS = 0` is obeyed even where a diagnosis would try again, and the stop names the setting."""
    ruling = rule(diagnosis(fault, retry=True), limits=PolicyLimits(budgets={fault.value: 0}))

    assert "stop" == ruling.decision.kind
    assert f"budget-{fault.value}=0" in ruling.decision.reason


@pytest.mark.parametrize("fault", [F.USER_CODE, F.DATA, F.CONFIG, F.OOM_GPU, F.OOM_HOST])
def test_a_user_may_give_a_hopeless_class_a_budget(fault: F) -> None:
    """`budget-user-code = 2` tries twice: the user knows the script better than the table."""
    limits = PolicyLimits(budgets={fault.value: 2})

    kinds = [
        rule(diagnosis(fault), limits=limits, run={"spent": {fault.value: used}}).decision.kind
        for used in (0, 1, 2)
    ]

    assert ["resubmit", "resubmit", "stop"] == kinds


@pytest.mark.parametrize("fault", [F.PREEMPTED, F.CHECKPOINT])
def test_a_user_may_limit_what_is_free(fault: F) -> None:
    """A class without a limit of its own gets the one of the settings, and spends it."""
    limits = PolicyLimits(budgets={fault.value: 1})
    attempt = {"launch": Launch(end=LaunchEnd("FAILED"), start=Start(resume_from="/ck/step-4"))}

    first = rule(diagnosis(fault), limits=limits, attempt=attempt)
    second = rule(diagnosis(fault), limits=limits, attempt=attempt, run={"spent": first.spent})

    assert ("resubmit", fault.value) == (first.decision.kind, first.decision.spends)
    assert "stop" == second.decision.kind


def test_nothing_brings_back_what_a_person_cancelled() -> None:
    """No budget and no retry flag outranks a scancel by a person."""
    ruling = rule(diagnosis(F.CANCELLED, retry=True), limits=PolicyLimits(budgets={"cancelled": 9}))

    assert ("stop", "the job was cancelled by a person") == (ruling.decision.kind, ruling.decision.reason)


@pytest.mark.parametrize("fault", [F.OOM_GPU, F.OOM_HOST, F.USER_CODE])
def test_a_proven_exception_is_tried_once(fault: F) -> None:
    """A class of budget 0 whose diagnosis proves that another try makes sense (a neighbour's memory) gets one."""
    found = diagnosis(fault, retry=True, action=Action.RESUBMIT)

    assert "resubmit" == rule(found).decision.kind
    assert "stop" == rule(found, run={"spent": {fault.value: 1}}).decision.kind


@pytest.mark.parametrize("fault", [F.STORAGE, F.SCHEDULER, F.LIBRARY_BUG, F.NETWORK])
def test_a_diagnosis_that_says_stop_stops_within_the_budget(fault: F) -> None:
    """A full disk or a permanent refusal is not retried for all that its class has a budget."""
    ruling = rule(diagnosis(fault, retry=False, action=Action.STOP, advice="make room"))

    assert ("stop", "make room") == (ruling.decision.kind, ruling.decision.advice)


# ---------------------------------------------------------------------- guesses


NEVER = [F.USER_CODE, F.DATA, F.CONFIG, F.OOM_GPU, F.OOM_HOST, F.LIBRARY_BUG, F.STORAGE]


@pytest.mark.parametrize("fault", NEVER)
@pytest.mark.parametrize(
    ("how", "run"), [({"step": 25}, {}), ({"checkpoint": "/ck/25"}, {}), ({}, {"best_step": 500})]
)
def test_a_guess_after_progress_is_tried_once(fault: F, how: dict[str, Any], run: dict[str, Any]) -> None:
    """An exception after 25 good steps, at 0.34 to 0.45: one try, then a stop that says how sure it was and names the setting."""
    guess = diagnosis(fault, retry=False, action=Action.STOP, confidence=0.45)
    first = rule(guess, run=run, **how)
    second = rule(guess, run={"best_step": 25, **run, "spent": first.spent}, step=3)

    assert ("resubmit", 1) == (first.decision.kind, first.spent[fault.value])
    assert "only 0.45 sure" in first.decision.reason
    assert "stop" == second.decision.kind
    assert f"1 of 1 retries for {fault.value}" in second.decision.reason
    assert f"--ft-budget-{fault.value}" in second.decision.reason
    assert "cannot succeed" not in second.decision.reason


def test_the_words_of_a_spent_budget_count_the_restarts_in_the_job() -> None:
    """They cost none of the class's retries, but a person who counts the starts of the script sees them."""
    used = {"spent": {"unknown": 1}, "rungs": {"step": 2, "step:unknown": 1, "step:hang": 1}}
    reason = rule(diagnosis(F.UNKNOWN), run=used).decision.reason
    plain = rule(diagnosis(F.UNKNOWN), run={"spent": {"unknown": 1}}).decision.reason

    assert "1 of 1 retries for unknown and 1 restart in the same job used without progress" in reason
    assert "1 of 1 retries for unknown used without progress" in plain


@pytest.mark.parametrize("fault", NEVER)
def test_a_guess_before_any_step_stops_without_a_verdict(fault: F) -> None:
    """What never made a step is not tried again for a guess, and the last line does not claim more than is known."""
    guess = diagnosis(fault, retry=False, action=Action.STOP, confidence=0.49)

    found = rule(guess).decision
    allowed = rule(guess, limits=PolicyLimits(budgets={fault.value: 1})).decision

    assert "stop" == found.kind
    assert "only 0.49 sure" in found.reason
    assert f"--ft-budget-{fault.value}=1" in found.reason
    assert "cannot succeed" not in found.reason
    assert "resubmit" == allowed.kind  # the setting that it names does what it says


@pytest.mark.parametrize("fault", NEVER)
@pytest.mark.parametrize("confidence", [0.5, 0.9])
def test_what_is_more_than_a_guess_stops_at_once(fault: F, confidence: float) -> None:
    """From 0.5 on a verdict is one, after progress as well."""
    found = rule(diagnosis(fault, retry=False, action=Action.STOP, confidence=confidence), step=25).decision

    assert ("stop", True) == (found.kind, found.reason.endswith("trying again cannot succeed"))


@pytest.mark.parametrize("fault", NEVER)
def test_a_user_who_allows_no_try_is_obeyed_for_a_guess(fault: F) -> None:
    """`budget-CLASS = 0` means never."""
    guess = diagnosis(fault, retry=False, action=Action.STOP, confidence=0.4)

    found = rule(guess, limits=PolicyLimits(budgets={fault.value: 0}), step=25).decision

    assert ("stop", True) == (found.kind, f"budget-{fault.value}=0" in found.reason)


@given(
    st.sampled_from([fault for fault in F if fault is not F.CANCELLED]),
    st.floats(0.05, 0.499),
    st.booleans(),
    st.sampled_from(list(Action)),
    st.none() | st.integers(0, 30),
    st.dictionaries(st.sampled_from([fault.value for fault in F]), st.integers(0, 6)),
)
def test_nothing_below_half_says_that_all_hope_is_lost(
    fault: F, confidence: float, retry: bool, action: Action, step: int | None, spent: dict[str, int]
) -> None:
    """Whatever the class, the signature and the history: a guess is never called a certainty."""
    found = diagnosis(fault, confidence=confidence, retry=retry, action=action)

    assert (
        "cannot succeed" not in rule(found, run={"spent": spent, "best_step": 10}, step=step).decision.reason
    )


def test_the_settings_of_a_run_become_limits() -> None:
    """Defaults are the design's numbers; a budget that is set counts, one that is not falls back to its class."""
    limits = limits_from(
        defaults() | {"budget-hang": 7, "drain-cap": 0.2, "exclude-cap": 0.5, "drain": "never"}
    )

    assert (20, 7, 1) == (limits.retries, limits.budget(F.HANG), limits.budget(F.UNKNOWN))
    assert (0.2, 0.5, False) == (limits.drain_cap, limits.exclude_cap, limits.drain)
    assert UNLIMITED == limits.budget(F.PREEMPTED)


# ---------------------------------------------------------------------- persons and scripts first


@pytest.mark.parametrize("wish", ["cancel", "stop"])
@pytest.mark.parametrize("fault", list(F))
def test_a_wish_comes_before_everything(wish: str, fault: F) -> None:
    """Whatever happened, a person who said cancel or stop is obeyed, and named."""
    ruling = rule(diagnosis(fault, retry=True), run={"wish": wish, "wish_by": "anna"})

    assert "stop" == ruling.decision.kind
    assert ruling.decision.reason in {"cancelled by anna", "stopped by anna"}


@pytest.mark.parametrize("fault", [F.HEALTHY, F.HARDWARE_GPU, F.USER_CODE])
def test_a_script_that_exits_0_is_finished(fault: F) -> None:
    """The script's verdict wins over every line and every failed step; the step is noted as a warning."""
    ruling = rule(
        diagnosis(fault), attempt={"launch": Launch(end=LaunchEnd("COMPLETED", derived_exit_code=1))}
    )

    assert "finish" == ruling.decision.kind
    assert "a step exited 1" in ruling.decision.notes[0]


@pytest.mark.parametrize("fault", [f for f in F if f is not F.CANCELLED])
def test_retries_0_watches_and_diagnoses_only(fault: F) -> None:
    """With retries=0 nothing is ever submitted, whatever the class."""
    ruling = rule(diagnosis(fault, retry=True), limits=PolicyLimits(retries=0))

    assert "stop" == ruling.decision.kind
    assert "retries=0" in ruling.decision.reason


def test_retries_0_leaves_a_requeued_job_to_slurm() -> None:
    """What Slurm starts again by itself is neither cancelled nor replaced; only a launch it gave up on is over."""
    none, held = PolicyLimits(retries=0), requeued("launch_failed_requeued_held")

    assert "keep" == rule(diagnosis(F.NODE), limits=none, attempt=requeued("")).decision.kind
    assert "stop" == rule(diagnosis(F.NODE), limits=none, attempt=held).decision.kind


# ---------------------------------------------------------------------- requeues, law P5


@pytest.mark.parametrize("fault", [F.HEALTHY, F.PREEMPTED, F.TIMELIMIT, F.UNKNOWN])
def test_a_harmless_requeue_is_kept(fault: F) -> None:
    """Where no node is to blame, the job that Slurm put back is followed, and no second one submitted."""
    ruling = rule(diagnosis(fault), attempt=requeued())

    assert "keep" == ruling.decision.kind
    assert () == ruling.decision.exclude


@pytest.mark.parametrize(("fault", "retries"), [(F.HEALTHY, 0), (F.PREEMPTED, 0), (F.UNKNOWN, 1)])
def test_a_requeue_without_a_fault_costs_nothing(fault: F, retries: int) -> None:
    """A script that requeues itself, or is preempted, spends nothing."""
    assert retries == rule(diagnosis(fault), attempt=requeued()).retries


def test_a_requeue_spends_the_budget_of_its_class() -> None:
    """An unexplained requeue is kept once; after that it is as used up as any other failure."""
    first = rule(diagnosis(F.UNKNOWN), attempt=requeued())
    second = rule(diagnosis(F.UNKNOWN), attempt=requeued(), run={"spent": first.spent})

    assert ("keep", {"unknown": 1}) == (first.decision.kind, dict(first.spent))
    assert "stop" == second.decision.kind


def test_a_requeue_for_a_bad_node_is_not_waited_for() -> None:
    """Slurm would start the job on the same node again: a new attempt without it is better."""
    found = diagnosis(F.NODE, nodes=("n2",), sources=(Source.SLURM,))

    ruling = rule(found, attempt=requeued())

    assert ("resubmit", ("n2",)) == (ruling.decision.kind, ruling.decision.exclude)


@pytest.mark.parametrize("reason", ["launch failed requeued held", "launch_failed_requeued_held"])
def test_a_job_held_after_a_failed_launch_is_not_waited_on(reason: str) -> None:
    """Slurm never starts such a job by itself, however its reason is spelt."""
    ruling = rule(diagnosis(F.NODE), attempt=requeued(reason))

    assert "resubmit" == ruling.decision.kind


@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin"])
def test_a_persons_hold_is_respected(reason: str) -> None:
    """`scontrol requeuehold` is a wish: the job stays where the person put it."""
    assert "keep" == rule(diagnosis(F.HEALTHY), attempt=requeued(reason)).decision.kind


def test_the_ceiling_ends_no_job_that_had_no_fault() -> None:
    """A script that requeues itself, or is preempted, goes on after however many recoveries."""
    used_up = {"retries": 20}

    for fault in (F.HEALTHY, F.PREEMPTED):
        assert "keep" == rule(diagnosis(fault), attempt=requeued(), run=used_up).decision.kind
    assert "stop" == rule(diagnosis(F.UNKNOWN), attempt=requeued(), run=used_up).decision.kind


# ---------------------------------------------------------------------- the last word


def test_where_ftrun_may_only_watch_a_new_attempt_is_told_and_not_made() -> None:
    """What would be done stands beside what is done; a job that Slurm starts again goes on."""
    watched = rule(diagnosis(F.HARDWARE_GPU, nodes=("n1",)), limits=PolicyLimits(observe=True))
    assert watched.would is not None
    assert ("stop", "resubmit") == (watched.decision.kind, watched.would.kind)
    assert f"observe: would resubmit: {watched.would.reason}" == watched.decision.reason

    kept = rule(diagnosis(F.PREEMPTED), limits=PolicyLimits(observe=True), attempt=requeued())
    assert kept.would == kept.decision
    assert "keep" == kept.decision.kind

    stopped = rule(diagnosis(F.USER_CODE), limits=PolicyLimits(observe=True))
    assert stopped == rule(diagnosis(F.USER_CODE))


def test_what_ran_and_left_no_record_is_not_tried_again() -> None:
    """P10: exit and progress cannot be known where the nodes never saw the run's folder."""
    blind = rule(diagnosis(F.NODE), unseen="/home/ann/.ftrun/runs/r")

    assert ("stop", True) == (blind.decision.kind, blind.would is not None)
    assert blind.decision.reason.endswith(
        "not resubmitted: /home/ann/.ftrun/runs/r was never seen from the nodes"
    )
    died = rule(diagnosis(F.NODE, nodes=("n1",)), unseen="/home/ann/.ftrun/runs/r")
    assert died.decision.kind == "resubmit"  # the node may have died before the script began
    assert (
        "finish"
        == rule(
            diagnosis(F.HEALTHY), unseen="/r", attempt={"launch": Launch(end=LaunchEnd("COMPLETED"))}
        ).decision.kind
    )


@pytest.mark.parametrize("wish", ["cancel", "stop", "pause"])
def test_a_wish_comes_to_the_same_before_and_after_the_decision(wish: str) -> None:
    """Also where another attempt had been decided already."""
    asked = {"wish": wish, "wish_by": "anna"}
    before = rule(diagnosis(F.NODE), run=asked).decision

    after = requested_stop(Run("r", **asked))  # type: ignore[arg-type]
    assert after is not None
    assert (before.kind, before.reason) == (after.kind, after.reason)
    assert requested_stop(Run("r")) is None
