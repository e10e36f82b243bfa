"""Laws of the ladder: which rung, in which order, how often, and never in circles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.supervisor.config import settings as config_settings
from ftrun.supervisor.config.recovery_order import RungRules, rung_rules_from
from ftrun.supervisor.config.rungs import DEFAULT_ORDER, IN_PLACE, Rung, parse_order
from ftrun.supervisor.model.errors import SettingError
from ftrun.supervisor.model.run import Attempt, Launch, LaunchEnd, Run, Start
from ftrun.supervisor.model.states import State
from ftrun.supervisor.model.types import Source
from ftrun.supervisor.policy.decide import decide
from ftrun.supervisor.policy.ladder import AllocationState, RecoveryStep, choose_action
from ftrun.supervisor.policy.policy_input import PolicyInput, PolicyLimits, limits_from
from ftrun.supervisor.policy.spare_placement import substitute_nodes
from ftrun.supervisor.policy.what_if import NEVER, what_if
from tests.unit.cases import F, cluster, diagnosis, incident

NOW = 1_000_000.0
ACTIVE = ("n1", "n2", "n3", "n4")
SPARES = ("n5", "n6")
PLACE = AllocationState((*ACTIVE, *SPARES), ACTIVE, SPARES, companion_off="no companion here")
PROVEN: dict[str, Any] = {"sources": (Source.LOG, Source.KERNEL)}


def settings(*rules: str, **changes: Any) -> dict[str, Any]:
    """The settings of a run with spares and a framework that rejoins, unless said otherwise."""
    own = {"spares": 2, "rank-restart": True, "policy": list(rules)}
    return {
        **config_settings.defaults(),
        **own,
        **{key.replace("_", "-"): value for key, value in changes.items()},
    }


def rungs(*rules: str, **changes: Any) -> RungRules:
    return rung_rules_from(settings(*rules, **changes))


def case(
    fault: F,
    *,
    nodes: tuple[str, ...] = (),
    step: int | None = None,
    run: Mapping[str, Any] | None = None,
    **more: Any,
) -> PolicyInput:
    """A start that failed with this class on four active nodes."""
    attempt = Attempt(1, NOW - 1000, nodes=PLACE.nodes, launch=Launch(end=LaunchEnd(state="FAILED")))
    history = replace(Run("r-0001", State.SETTLING, attempts=(attempt,)), **(run or {}))
    found = diagnosis(fault, nodes=nodes, **more)
    return PolicyInput(history, attempt, found, cluster(nodes_needed=4), PolicyLimits(), NOW, step)


def move(
    what: PolicyInput,
    place: AllocationState = PLACE,
    used: Mapping[str, int] | None = None,
    ladder: RungRules | None = None,
) -> RecoveryStep:
    return choose_action(what, decide(what), ladder or rungs(), place, used or {})


@pytest.mark.parametrize(
    ("fault", "more", "rung"),
    [
        (F.HARDWARE_GPU, {"nodes": ("n2",)}, "swap"),
        (F.HARDWARE_OTHER, {"nodes": ("n2",)}, "swap"),
        (F.NODE, {"nodes": ("n2",), **PROVEN}, "swap"),
        (F.HARDWARE_GPU, {}, "resubmit"),
        (F.NODE, {}, "resubmit"),
        (F.NETWORK, {}, "step"),
        (F.NETWORK, {"nodes": ("n2",)}, "step"),
        (F.NETWORK, {"nodes": ("n2",), **PROVEN}, "swap"),
        (F.HANG, {}, "step"),
        (F.HANG, {"nodes": ("n2",), "sources": (Source.CHECK,)}, "swap"),
        (F.STORAGE, {}, "step"),
        (F.STORAGE, {"nodes": ("n2",), **PROVEN}, "swap"),
        (F.SCHEDULER, {}, "step"),
        (F.CHECKPOINT, {}, "step"),
        (F.PORT_CONFLICT, {}, "step"),
        (F.LIBRARY_BUG, {}, "step"),
        (F.UNKNOWN, {}, "step"),
        (F.OOM_GPU, {"nodes": ("n2",), "retry": True, "exclude": True}, "swap"),
        (F.OOM_HOST, {"nodes": ("n2",), "retry": True}, "swap"),
        (F.PREEMPTED, {}, "resubmit"),
        (F.TIMELIMIT, {}, "resubmit"),
        (F.OOM_GPU, {}, "resubmit"),
        (F.USER_CODE, {}, "resubmit"),
        (F.DATA, {}, "resubmit"),
        (F.CONFIG, {}, "resubmit"),
        (F.CANCELLED, {}, "resubmit"),
    ],
)
def test_each_class_has_its_rung(fault: F, more: dict[str, Any], rung: str) -> None:
    """The table of the design: a first fault on a job with two spares."""
    assert move(case(fault, **more)).rung == rung


@pytest.mark.parametrize("fault", [F.USER_CODE, F.DATA, F.CONFIG, F.OOM_GPU, F.CANCELLED])
def test_what_the_policy_stops_is_left_to_it(fault: F) -> None:
    """A stop stays a stop: the ladder says that nothing inside the allocation is to be done."""
    found = move(case(fault))
    assert found.rung is Rung.RESUBMIT
    assert "the decision is to stop" in found.reason
    assert found.nodes == ()


def test_the_same_failure_of_the_jobs_own_at_the_same_step_is_not_started_again() -> None:
    """The deterministic stop comes before every rung."""
    before = incident(F.UNKNOWN, attempt=0, step=7)
    from ftrun.supervisor.model.types import Blame

    what = case(F.UNKNOWN, step=7, run={"incidents": (before,)}, blame=Blame.JOB)
    assert decide(what).decision.kind == "stop"
    assert move(what).rung is Rung.RESUBMIT


def test_one_dead_process_starts_again_alone_where_it_may_join() -> None:
    """Only with the setting, only one, and only where its node is not blamed."""
    dead = replace(PLACE, rejoin=True, dead_rank=3)
    assert move(case(F.UNKNOWN), dead).rung is Rung.RANK
    assert move(case(F.UNKNOWN), dead).nodes == ACTIVE
    assert move(case(F.UNKNOWN), replace(dead, rejoin=False)).rung is Rung.STEP
    assert move(case(F.UNKNOWN), replace(dead, dead_rank=None)).rung is Rung.STEP
    assert move(case(F.NETWORK, nodes=("n2",)), dead).rung is Rung.STEP
    assert move(case(F.HANG), dead).rung is Rung.STEP
    assert move(case(F.UNKNOWN), dead, ladder=rungs(rank_restart=False)).rung is Rung.STEP


def test_a_spare_stands_where_the_bad_node_stood() -> None:
    """The others keep their place, so every rank but the new ones stays on its node."""
    found = move(case(F.HARDWARE_GPU, nodes=("n2",)))
    assert found.nodes == ("n1", "n5", "n3", "n4")
    assert found.aside == ("n2",)
    assert substitute_nodes(ACTIVE, ("n1", "n4"), SPARES) == ("n5", "n2", "n3", "n6")
    assert substitute_nodes(ACTIVE, ("n1", "n4"), ("n5",)) is None


@pytest.mark.parametrize(
    ("changes", "nodes", "says"),
    [
        ({"spares": ()}, ("n2",), "1 spare is wanted, 0 usable"),
        ({"spares": ("n5",)}, ("n2", "n3"), "2 spares are wanted, 1 usable"),
        (
            {"spares": (), "spares_off": "n5: gpu-ecc: broken"},
            ("n2",),
            "1 spare is wanted, 0 usable (n5: gpu-ecc: broken)",
        ),
        ({"aside": SPARES}, ("n2",), "1 spare is wanted, 0 usable"),
        ({"spares": ("n9",)}, ("n2",), "1 spare is wanted, 0 usable"),
        ({}, ACTIVE, "every node is blamed"),
        ({"swap_off": "srun was not asked"}, ("n2",), "srun was not asked"),
        ({"step_off": "srun was not asked"}, ("n2",), "srun was not asked"),
    ],
)
def test_without_a_usable_spare_for_each_bad_node_it_is_a_new_job(
    changes: dict[str, Any], nodes: tuple[str, ...], says: str
) -> None:
    """And the path says why."""
    found = move(case(F.HARDWARE_GPU, nodes=nodes), replace(PLACE, **changes))
    assert found.rung is Rung.RESUBMIT
    assert says in dict(found.path)["swap"]


def test_a_spare_that_is_itself_blamed_takes_nobodys_place() -> None:
    """Whatever fell silent while it waited."""
    assert move(case(F.NODE, nodes=("n2", "n5"), **PROVEN)).nodes == ("n1", "n6", "n3", "n4")


def test_a_blamed_node_that_no_process_uses_is_set_aside_and_the_script_starts_again() -> None:
    """A spare that died needs no other."""
    found = move(case(F.NODE, nodes=("n5",), **PROVEN))
    assert (found.rung, found.nodes, found.aside) == (Rung.STEP, ACTIVE, ("n5",))


def test_a_node_that_is_only_suspected_is_tried_once_more_and_then_replaced() -> None:
    """A restart costs seconds; a second failure makes the suspicion worth a spare, a third a new job."""
    what = case(F.NETWORK, nodes=("n2",))
    first = move(what)
    second = move(what, used=first.used)
    third = move(what, replace(PLACE, spares=()), used=second.used)
    assert [first.rung, second.rung, third.rung] == [Rung.STEP, Rung.SWAP, Rung.RESUBMIT]
    assert "tried already for network" in dict(second.path)["step"]


def test_progress_opens_the_whole_ladder_again() -> None:
    """A fault after new steps is a new one."""
    first = move(case(F.NETWORK))
    assert move(case(F.NETWORK), used=first.used).rung is Rung.RESUBMIT
    assert move(case(F.NETWORK, step=100), used=first.used).rung is Rung.STEP


def test_after_a_rung_failed_for_a_class_it_goes_only_down() -> None:
    """Another class may still begin at the top; the same one may not."""
    swapped = move(case(F.NETWORK, nodes=("n2",), **PROVEN))
    assert swapped.rung is Rung.SWAP
    again = move(
        case(F.NETWORK), replace(PLACE, active=swapped.nodes, aside=swapped.aside), used=swapped.used
    )
    assert again.rung is Rung.RESUBMIT
    assert "only further down" in dict(again.path)["step"]
    assert move(case(F.PORT_CONFLICT), used=swapped.used).rung is Rung.STEP


def test_a_bad_spare_is_replaced_by_the_next() -> None:
    """Swapping again is another try, as long as another node is blamed and a spare is left."""
    first = move(case(F.HARDWARE_GPU, nodes=("n2",)))
    place = replace(PLACE, active=first.nodes, aside=first.aside, spares=("n6",))
    second = move(case(F.HARDWARE_GPU, nodes=("n5",)), place, used=first.used)
    assert (second.rung, second.nodes) == (Rung.SWAP, ("n1", "n6", "n3", "n4"))
    assert second.aside == ("n2", "n5")


def test_older_checkpoints_are_tried_one_after_the_other() -> None:
    """Each is another try, so they stay on one rung until its budget is used up."""
    what = case(F.CHECKPOINT)
    what = replace(what, attempt=replace(what.attempt, launch=Launch(start=Start(resume_from="/c/3"))))
    used: Mapping[str, int] = {}
    seen = []
    for _ in range(5):
        found = move(what, used=used)
        seen.append(found.rung.value)
        used = found.used
    assert seen == ["step", "step", "step", "resubmit", "resubmit"]
    assert "older checkpoint" in move(what).reason


def test_a_pause_longer_than_the_limit_is_not_spent_on_held_nodes() -> None:
    """A short one is: the files answer again soon."""
    found = move(case(F.STORAGE))
    assert (found.rung, found.delay_s) == (Rung.STEP, 10.0)
    late = move(case(F.STORAGE, run={"spent": {"storage": 2}}), ladder=rungs("storage.limit-step=30s"))
    assert late.rung is Rung.RESUBMIT
    assert "longer than limit-step (30 s)" in dict(late.path)["step"]


def test_a_try_in_place_leaves_the_tries_on_other_nodes_as_they_were() -> None:
    """The one try of an unknown fault is kept for other nodes; a fault without that wish pays as ever."""
    what = case(F.UNKNOWN)
    assert move(what).spent == {}
    assert decide(what).spent == {"unknown": 1}
    assert move(case(F.PORT_CONFLICT)).spent == {"port-conflict": 1}
    assert move(what, used=move(what).used).spent == {"unknown": 1}


def test_the_rule_of_a_signature_outweighs_that_of_its_class_and_that_of_the_run() -> None:
    """Order, budget and limit, each by itself."""
    ladder = rungs("network.recover=swap,resubmit", "link-flap.recover=step,resubmit", "network.limit-step=30",
                   "link-flap.limit-step=20", "network.budget-swap=1", "hang.budget-step=0")  # fmt: skip
    assert ladder.order(F.NETWORK, "link-flap") == (Rung.STEP, Rung.RESUBMIT)
    assert ladder.order(F.NETWORK, "x") == (Rung.SWAP, Rung.RESUBMIT)
    assert ladder.order(F.HANG) == tuple(rung for rung in DEFAULT_ORDER if rung is not Rung.SHRINK)
    assert [ladder.limit_s(Rung.STEP, F.NETWORK, s) for s in ("link-flap", "")] == [20, 30]
    assert ladder.limit_s(Rung.STEP, F.HANG) == 120
    assert ladder.budget(Rung.SWAP, F.NETWORK, "link-flap") == (1, "network")
    assert ladder.budget(Rung.SWAP, F.HANG) == (5, "")
    assert move(case(F.HANG), ladder=ladder).rung is Rung.RESUBMIT
    assert move(case(F.NETWORK), ladder=ladder).rung is Rung.RESUBMIT
    assert move(case(F.NETWORK, signature="link-flap"), ladder=ladder).rung is Rung.STEP


def test_a_budget_of_one_class_counts_that_class_only() -> None:
    """Two spares may be used for network faults, however many were used for others."""
    ladder = rungs("network.budget-swap=1", budget_swap=1)
    used = {"swap": 1, "swap:hang": 1}
    assert move(case(F.NETWORK, nodes=("n2",), **PROVEN), used=used, ladder=ladder).rung is Rung.SWAP
    gone = move(case(F.HARDWARE_GPU, nodes=("n2",)), used=used, ladder=ladder)
    assert "budget-swap: 1 of 1 used" in dict(gone.path)["swap"]
    used = {"swap": 1, "swap:network": 1}
    gone = move(case(F.NETWORK, nodes=("n2",), **PROVEN), used=used, ladder=ladder)
    assert "budget-swap for network: 1 of 1 used" in dict(gone.path)["swap"]


def test_the_budget_of_a_class_may_stand_among_its_rules() -> None:
    """`network.budget` is `budget-network`, and it outweighs it."""
    assert limits_from(settings("network.budget=2")).budget(F.NETWORK) == 2
    assert limits_from({**settings("network.budget=2"), "budget-network": 9}).budget(F.NETWORK) == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("stepp,resubmit", "did you mean 'step'?"),
        ("fly,resubmit", "there are rank, step, swap, companion, shrink, resubmit"),
        ("step,step,resubmit", "step stands there twice"),
        ("resubmit,step", "resubmit stands last, what fails above it goes there: step,resubmit"),
        ("step", "resubmit stands last, what fails above it goes there: step,resubmit"),
        ("step,rank,resubmit", "rank is the finest rung and stands first: rank,step,resubmit"),
        ("", "no rung is called ''"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused_with_the_one_that_can(text: str, says: str) -> None:
    """One line."""
    with pytest.raises(SettingError) as refused:
        parse_order("recover", text)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("rung", [one for one in Rung if one is not Rung.RESUBMIT])
def test_every_rung_has_a_budget_and_a_limit_of_its_own_for_a_class(rung: Rung) -> None:
    """A rule of one class may say of each rung what the settings say of it for the run, in every spelling of a rule."""
    rungs = rung_rules_from(settings(f"node.budget-{rung}=2", f"node.limit-{rung}=90s"))
    assert rungs.budget(rung, F.NODE) == (2, "node")
    assert rungs.limit_s(rung, F.NODE) == 90.0
    assert rungs.limit_s(rung, F.HANG) == config_settings.defaults()[f"limit-{rung}"]


@pytest.mark.parametrize(
    ("element", "says"),
    [
        ("network", "NAME.KEY=VALUE is wanted"),
        ("network.recover", "NAME.KEY=VALUE is wanted"),
        ("network=swap", "NAME.KEY=VALUE is wanted"),
        ("network.recovr=step,resubmit", "did you mean 'recover'?"),
        ("network.zzzzzz=1", "there are recover, budget"),
        ("network.budget-swap=many", "network.budget-swap: a whole number"),
        ("network.budget=x", "network.budget: a whole number"),
        ("network.limit-step=0", "at least 1"),
        ("network.budget=", "a value is wanted"),
        ("netwrk.budget=1", "did you mean 'network'?"),
        ("nvidia-xid-97.budget-swap=1", "did you mean 'nvidia-xid-79'?"),
        ("nvidia-xid-79.budget=1", "a signature has budget-RUNG"),
        ("network.limit-step=10m", "at most 9m"),
        ("network.recover=resubmit,step", "policy: network.recover: resubmit stands last"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(element: str, says: str) -> None:
    """By its shape where it is read, by its sense where the rungs are made of it; in one line."""
    with pytest.raises(SettingError) as refused:
        rung_rules_from(
            settings(*config_settings.parse("policy", element)),  # type: ignore[misc]
            signatures=lambda: ("nvidia-xid-79", "nvidia-xid-48"),
        )
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_was_named_for_this_job_must_apply_and_the_default_need_not() -> None:
    """The default loses rank, swap and shrink without a word; whoever names them is told what is missing."""
    plain = {**config_settings.defaults()}
    assert rung_rules_from(plain, meant=("recover",)).order(F.NODE) == (
        Rung.STEP,
        Rung.COMPANION,
        Rung.RESUBMIT,
    )
    assert rung_rules_from({**plain, "recover": "swap,resubmit"}).order(F.NODE) == (Rung.RESUBMIT,)
    with pytest.raises(SettingError, match="--ft-spares=K"):
        rung_rules_from({**plain, "recover": "swap,resubmit"}, meant=("recover",))
    with pytest.raises(SettingError, match="--ft-rank-restart"):
        rung_rules_from({**plain, "recover": "rank,resubmit"}, meant=("recover",))
    with pytest.raises(SettingError, match="--ft-nodes=MIN-MAX"):
        rung_rules_from({**plain, "recover": "shrink,resubmit"}, meant=("recover",))
    with pytest.raises(SettingError, match=r"policy: node\.recover"):
        rung_rules_from({**plain, "policy": ["node.recover=swap,resubmit"]}, meant=("policy",))


def test_runs_of_older_versions_climb_by_the_defaults() -> None:
    """Their journals know none of these settings."""
    assert rung_rules_from({}) == rung_rules_from(config_settings.defaults())


def test_only_lists_with_a_rung_inside_the_allocation_want_an_agent() -> None:
    """`resubmit` alone opts out; one class that asks for more opts in."""
    assert rungs().in_place
    assert not rungs(recover="resubmit").in_place
    assert rungs("node.recover=swap,resubmit", recover="resubmit").in_place


NAMES = st.sampled_from([f"n{i}" for i in range(1, 9)])
FAULTS = st.sampled_from([fault for fault in F if fault is not F.HEALTHY])


@st.composite
def _places(draw: st.DrawFn) -> AllocationState:
    nodes = tuple(f"n{i}" for i in range(1, draw(st.integers(1, 8)) + 1))
    active = nodes[: draw(st.integers(1, len(nodes)))]
    aside = tuple(draw(st.lists(st.sampled_from(nodes), max_size=2, unique=True)))
    return AllocationState(
        nodes,
        active,
        tuple(draw(st.lists(NAMES, max_size=4, unique=True))),
        aside,
        rejoin=draw(st.booleans()),
        dead_rank=draw(st.none() | st.integers(0, 3)),
        step_off=draw(st.sampled_from(["", "", "srun was not asked"])),
    )


@st.composite
def _faults(draw: st.DrawFn) -> dict[str, Any]:
    more = PROVEN if draw(st.booleans()) else {}
    nodes = tuple(draw(st.lists(NAMES, max_size=3, unique=True)))
    return {"fault": draw(FAULTS), "nodes": nodes, "retry": draw(st.booleans()), **more}


ORDERS = st.sampled_from(
    ["resubmit", "step,resubmit", "swap,step,resubmit", "rank,swap,resubmit", "rank,step,swap,resubmit"]
)


@given(_places(), st.lists(_faults(), min_size=1, max_size=25), ORDERS, st.integers(0, 3), st.integers(0, 3))
def test_a_run_of_faults_without_progress_ends_and_breaks_no_law(
    place: AllocationState, faults: list[dict[str, Any]], order: str, steps: int, swaps: int
) -> None:
    """Never a node set aside, the size and the ranks' order kept, budgets kept, never up again for a class, every step told."""
    ladder = rungs(recover=order, budget_step=steps, budget_swap=swaps)
    used: Mapping[str, int] = {}
    lowest: dict[F, int] = {}
    for fault in faults:
        what = case(**fault)
        what = replace(what, attempt=replace(what.attempt, nodes=place.nodes))
        ruling = decide(what)
        found = choose_action(what, ruling, ladder, place, used)
        assert found.path[-1][0] == found.rung
        assert all(why for _, why in found.path)
        assert set(place.aside) <= set(found.aside)
        if found.rung is Rung.RESUBMIT:
            assert found.nodes == ()
            return
        at = ladder.order(what.diagnosis.fault).index(found.rung)
        assert at >= lowest.get(what.diagnosis.fault, -1)
        assert at > lowest.get(what.diagnosis.fault, -1) or found.rung is Rung.SWAP
        lowest[what.diagnosis.fault] = at
        assert ruling.decision.kind == "resubmit"
        assert len(found.nodes) == len(set(found.nodes)) == len(place.active)
        assert set(found.nodes) <= set(place.nodes)
        assert not set(found.nodes) & {*found.aside, *ruling.decision.exclude}
        assert all(
            new == old or old in found.aside for new, old in zip(found.nodes, place.active, strict=True)
        )
        assert found.used["step"] <= steps if found.rung is Rung.STEP else True
        assert found.used["swap"] <= swaps if found.rung is Rung.SWAP else True
        assert 0 <= found.delay_s < found.limit_s
        used = found.used
        place = replace(place, active=found.nodes, aside=found.aside, start=place.start + 1)
    assert len(faults) <= len(F) * len(IN_PLACE) + len(place.nodes)


@given(
    _places(),
    _faults(),
    ORDERS,
    st.dictionaries(st.sampled_from(["rank", "step", "swap"]), st.integers(0, 9)),
)
def test_the_same_question_has_the_same_answer(
    place: AllocationState, fault: dict[str, Any], order: str, used: dict[str, int]
) -> None:
    """No clock, no state: and what was handed in is left as it was."""
    before = dict(used)
    what, ladder = case(**fault), rungs(recover=order)
    assert choose_action(what, decide(what), ladder, place, used) == choose_action(
        what, decide(what), ladder, place, used
    )
    assert used == before


@given(_places(), _faults(), ORDERS, st.integers(0, 1), st.booleans())
def test_what_if_and_the_climb_agree(
    place: AllocationState, fault: dict[str, Any], order: str, budget: int, spare: bool
) -> None:
    """A rung that is never taken by the one is not taken by the other."""
    chosen = settings(recover=order, budget_step=budget, spares=int(spare))
    told = dict(what_if(chosen, fault["fault"], retry=fault["retry"]))
    what = case(**fault)
    place = replace(place, aside=())  # what is set aside is in no start's hands
    found = choose_action(what, decide(what), rung_rules_from(chosen), place, {})
    if found.rung is not Rung.RESUBMIT:
        assert not told[found.rung].startswith(NEVER)


@pytest.mark.parametrize("fault", [fault for fault in F if fault is not F.HEALTHY])
def test_what_if_has_an_answer_for_each_class(fault: F) -> None:
    """The rungs in their order, then the new job, then the end."""
    rows = what_if(settings(nodes="2-4"), fault)
    assert [name for name, _ in rows] in (
        ["stop"],
        ["resubmit", "stop"],
        ["rank", "step", "swap", "companion", "shrink", "resubmit", "stop"],
    )
    assert all(why for _, why in rows)


def test_what_if_shows_what_the_settings_took_away() -> None:
    """And the order that they chose."""
    rows = dict(what_if(settings(spares=0), F.NETWORK))
    assert rows["swap"].startswith(NEVER)
    assert "spares" in rows["swap"]
    order = [name for name, _ in what_if(settings("network.recover=swap,step,resubmit"), F.NETWORK)]
    assert order.index("swap") < order.index("step")
    assert what_if(settings(retries=0), F.NETWORK)[0][0] == "stop"
    assert what_if(settings(budget_user_code=2), F.USER_CODE)[-2][0] == "resubmit"
