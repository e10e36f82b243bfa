"""Laws of placing: who is left out, who is drained, what every ruling keeps. (pure)"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.supervisor.config.node_counts import Sizes
from ftrun.supervisor.model.run import Exclusion, Launch, LaunchEnd, Start
from ftrun.supervisor.model.types import CLASS_RULES, Action, Blame, Decision, Diagnosis, Source
from ftrun.supervisor.policy.node_placement import nodes_to_exclude, within_cap
from ftrun.supervisor.policy.policy_input import PROOF_SOURCES, ClusterView, PolicyLimits
from tests.unit.cases import NODES, NOW, PARTITION, F, cluster, diagnosis, earlier_exclusions, incident, rule

# ---------------------------------------------------------------------- who is left out

LOGGED, PROVEN = (Source.LOG,), (Source.LOG, Source.SLURM)
BAD = {"nodes": ("n2",)}


@pytest.mark.parametrize("fault", [F.HARDWARE_GPU, F.HARDWARE_OTHER, F.NODE])
def test_a_bad_node_is_left_out_at_once(fault: F) -> None:
    """Hardware and lost nodes are excluded by the first diagnosis that names them, and the reason says so."""
    ruling = rule(diagnosis(fault, **BAD))

    assert ("n2",) == ruling.decision.exclude
    assert ruling.decision.reason.endswith("; without n2")


@pytest.mark.parametrize("fault", [F.NETWORK, F.STORAGE, F.HANG])
def test_a_suspect_is_left_out_when_proven_or_repeated(fault: F) -> None:
    """The log alone is not enough the first time; Slurm's word, or the same culprit again, is."""
    once = rule(diagnosis(fault, **BAD))
    proven = rule(diagnosis(fault, sources=PROVEN, **BAD))
    again = rule(diagnosis(fault, **BAD), run={"incidents": (incident(fault, nodes=("n2",)),)})

    assert [(), ("n2",), ("n2",)] == [r.decision.exclude for r in (once, proven, again)]
    assert any("not surely enough" in note for note in once.decision.notes)


def test_a_diagnosis_may_name_a_node_without_wanting_it_left_out() -> None:
    """What the diagnosis itself does not hold against the node excludes it only when it comes back."""
    found = diagnosis(F.HARDWARE_GPU, exclude=False, **BAD)

    assert () == rule(found).decision.exclude
    again = rule(found, run={"incidents": (incident(F.HARDWARE_GPU, nodes=("n2",)),)})
    assert ("n2",) == again.decision.exclude


@pytest.mark.parametrize(
    "fault", [F.USER_CODE, F.CONFIG, F.PREEMPTED, F.TIMELIMIT, F.PORT_CONFLICT, F.SCHEDULER]
)
def test_what_is_not_a_nodes_fault_excludes_nobody(fault: F) -> None:
    """Even where a diagnosis names a node."""
    ruling = rule(diagnosis(fault, retry=True, exclude=True, sources=PROVEN, **BAD))

    assert ((), ()) == (ruling.decision.exclude, ruling.decision.drain)


def test_what_hits_every_node_is_no_nodes_fault() -> None:
    """One node of one is a culprit; four of four are the job or the cluster."""
    all_of_them = rule(diagnosis(F.HARDWARE_GPU, nodes=NODES, sources=PROVEN))
    the_only_one = rule(diagnosis(F.HARDWARE_GPU, nodes=("n1",)), attempt={"nodes": ("n1",)})

    assert ((), ()) == (all_of_them.decision.exclude, all_of_them.decision.drain)
    assert ("n1",) == the_only_one.decision.exclude


def test_a_node_of_somebody_else_is_never_blamed() -> None:
    """A log can name any host; only one that was allocated to this attempt is touched, and that is noted."""
    ruling = rule(diagnosis(F.NODE, nodes=("n2", "login1", "n17"), sources=PROVEN))

    assert (("n2",), ("n2",)) == (ruling.decision.exclude, ruling.decision.drain)
    assert ["login1 is not of this attempt: not blamed", "n17 is not of this attempt: not blamed"] == list(
        ruling.decision.notes
    )


def test_the_newest_culprit_pushes_the_oldest_out() -> None:
    """At the cap (10 % of 40 = 4) the exclusions that are oldest are given up."""
    ruling = rule(diagnosis(F.NODE, **BAD), run={"excluded": earlier_exclusions("n11", "n12", "n13", "n14")})

    assert (("n2",), ("n11",)) == (ruling.decision.exclude, ruling.decision.relax)


def test_an_exclusion_that_costs_nothing_is_kept() -> None:
    """A node that is down anyway takes no place under the cap, and an expired one is none."""
    gone = Exclusion("n15", NOW - 1, "expired")
    view = cluster(available=frozenset(PARTITION) - {"n11"})

    ruling = rule(
        diagnosis(F.NODE, **BAD),
        run={"excluded": (gone, *earlier_exclusions("n11", "n12", "n13", "n14"))},
        view=view,
    )

    assert () == ruling.decision.relax


def test_the_job_stays_schedulable() -> None:
    """In a partition of five that needs four, one node can be left out, and of two culprits one stays."""
    small = PARTITION[:5]
    view = cluster(partition=small, available=frozenset(small), idle=frozenset())

    ruling = rule(diagnosis(F.NODE, nodes=("n1", "n2")), view=view, limits=PolicyLimits(exclude_cap=1.0))

    assert ("n1",) == ruling.decision.exclude
    assert "not excluded, to keep the job schedulable: n2" in ruling.decision.notes


def test_where_every_node_is_needed_none_is_left_out() -> None:
    """A run that can only ever have these four nodes keeps them; the next failure is its budget's matter."""
    view = cluster(partition=NODES, available=frozenset(NODES), idle=frozenset())

    assert () == rule(diagnosis(F.NODE, **BAD), view=view).decision.exclude


# ---------------------------------------------------------------------- draining, law P9


@pytest.mark.parametrize("source", sorted(PROOF_SOURCES))
def test_a_drain_needs_a_source_that_no_user_can_write(source: Source) -> None:
    """Slurm's record, the kernel's log by a probe, a check of ftrun's own: each is enough beside the log."""
    ruling = rule(diagnosis(F.HARDWARE_GPU, sources=(Source.LOG, source), **BAD))

    assert ("n2",) == ruling.decision.drain


@pytest.mark.parametrize("source", sorted(PROOF_SOURCES))
def test_slurms_word_counts_for_the_nodes_that_it_has_lost(source: Source) -> None:
    """That a job failed is Slurm's word on the job; a probe or a check speaks of the node itself."""
    found = diagnosis(F.HARDWARE_GPU, nodes=("n2", "n3"), sources=(source,))

    decision = rule(found, view=cluster(lost=frozenset({"n3"}))).decision

    assert ("n2", "n3") == decision.exclude
    assert (("n3",) if source is Source.SLURM else ("n2", "n3")) == decision.drain


@pytest.mark.parametrize("source", sorted(set(Source) - PROOF_SOURCES))
def test_what_a_user_can_write_drains_nothing(source: Source) -> None:
    """Log, exit record, silence and checkpoints are the job's own: excluded, not drained, and noted."""
    ruling = rule(diagnosis(F.HARDWARE_GPU, sources=(Source.LOG, source), **BAD))

    assert (("n2",), ()) == (ruling.decision.exclude, ruling.decision.drain)
    own = "log and its nodes' reports say" if source is Source.REPORT else "log says"
    assert f"not drained: only the job's own {own} so" in ruling.decision.notes


@pytest.mark.parametrize("fault", [f for f in F if not CLASS_RULES[f].drain])
def test_only_broken_hardware_and_lost_nodes_are_drained(fault: F) -> None:
    """A link, a file system or a hang is never a drain."""
    assert () == rule(diagnosis(fault, retry=True, sources=PROVEN, **BAD)).decision.drain


def test_no_drain_without_the_right_or_the_wish() -> None:
    """Who may not drain excludes only, and says so; `drain=never` is obeyed."""
    found = diagnosis(F.NODE, sources=PROVEN, **BAD)

    no_right = rule(found, view=cluster(may_drain=False)).decision
    no_wish = rule(found, limits=PolicyLimits(drain=False)).decision

    assert [((), ("n2",)), ((), ("n2",))] == [(d.drain, d.exclude) for d in (no_right, no_wish)]
    assert "not drained: this user may not" in no_right.notes


@pytest.mark.parametrize(("drained", "more"), [(0, 2), (1, 1), (2, 0), (5, 0)])
def test_drains_stay_under_the_cap_of_all_supervisors_together(drained: int, more: int) -> None:
    """Five percent of forty are two, and those that bear ftrun's reason already count."""
    found = diagnosis(F.NODE, nodes=("n1", "n2", "n3"), sources=PROVEN)

    assert more == len(rule(found, view=cluster(ftrun_drains=drained)).decision.drain)


def test_one_drain_is_always_allowed() -> None:
    """In a partition of eight, five percent are less than one: one it is."""
    small = PARTITION[:8]
    view = cluster(partition=small, available=frozenset(small))

    assert ("n2",) == rule(diagnosis(F.NODE, sources=PROVEN, **BAD), view=view).decision.drain


# ---------------------------------------------------------------------- for every case there is

_NAMES = st.sampled_from((*PARTITION[:12], "login1", "rank 3"))
_DIAGNOSES = st.builds(
    diagnosis,
    st.sampled_from(list(F)),
    retry=st.booleans(),
    action=st.sampled_from(list(Action)),
    exclude=st.booleans(),
    blame=st.sampled_from(list(Blame)),
    nodes=st.lists(_NAMES, max_size=5, unique=True).map(tuple),
    sources=st.lists(st.sampled_from(list(Source)), max_size=3, unique=True).map(tuple),
)
_RUNS = st.fixed_dictionaries(
    {
        "wish": st.sampled_from(["", "", "", "cancel", "stop"]),
        "retries": st.integers(0, 21),
        "spent": st.dictionaries(st.sampled_from([f.value for f in F]), st.integers(0, 6)),
        "best_step": st.one_of(st.none(), st.integers(0, 20)),
        "excluded": st.lists(_NAMES, max_size=6, unique=True).map(lambda names: earlier_exclusions(*names)),
        "incidents": st.lists(
            st.builds(incident, st.sampled_from(list(F)), step=st.integers(0, 20), nodes=st.just(("n1",))),
            max_size=2,
        ).map(tuple),
        "settings": st.sampled_from([{}, {"checkpoint": "ck/*"}]),
    }
)
_ATTEMPTS = st.fixed_dictionaries(
    {
        "nodes": st.lists(st.sampled_from(PARTITION[:12]), max_size=6, unique=True).map(tuple),
        "end_intended": st.sampled_from(["", "it hung"]),
        "launch": st.builds(
            Launch,
            end=st.builds(
                LaunchEnd,
                st.sampled_from(["FAILED", "COMPLETED", "CANCELLED", "NODE_FAIL", "PENDING", "GONE"]),
                st.sampled_from(["", "launch failed requeued held", "JobHeldUser"]),
            ),
            requeued=st.booleans(),
            start=st.builds(Start, resume_from=st.sampled_from(["", "/ck/step-3"])),
        ),
    }
)
_VIEWS = st.builds(
    lambda size, up, needed, drains, may, less, more: ClusterView(
        PARTITION[:size],
        frozenset(up) & set(PARTITION[:size]),
        frozenset(up) & set(PARTITION[:size]),
        frozenset(PARTITION[:size:2]),
        needed,
        drains,
        may,
        sizes=Sizes(range(max(1, needed - less), needed + more + 1)) if less else None,
    ),
    st.integers(0, 12),
    st.sets(st.sampled_from(PARTITION[:12])),
    st.integers(1, 6),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 3),
    st.integers(0, 3),
)
_LIMITS = st.builds(
    PolicyLimits,
    retries=st.integers(0, 20),
    budgets=st.dictionaries(st.sampled_from([f.value for f in F]), st.integers(0, 3)),
    exclude_cap=st.floats(0, 1),
    drain_cap=st.floats(0, 1),
    drain=st.booleans(),
)


@given(_DIAGNOSES, _RUNS, _ATTEMPTS, _VIEWS, _LIMITS, st.one_of(st.none(), st.integers(0, 25)))
@settings(max_examples=150, deadline=None)
def test_no_ruling_breaks_a_law(
    found: Diagnosis,
    run: dict[str, Any],
    attempt: dict[str, Any],
    view: ClusterView,
    limits: PolicyLimits,
    step: int | None,
) -> None:
    """Whatever the case: a reason, no foreign node, no drain by the log alone, every cap and budget kept."""
    ruling = rule(found, run=run, attempt=attempt, limits=limits, view=view, step=step)
    decision = ruling.decision

    assert decision.kind in {"resubmit", "keep", "finish", "stop"}
    assert decision.reason.strip()
    assert "\n" not in decision.reason
    _nodes_are_treated_lawfully(decision.exclude, decision.drain, decision.avoid, found, attempt, view, run)
    if decision.drain:
        assert view.may_drain
        assert limits.drain
        assert len(decision.drain) + view.ftrun_drains <= limits.drains(len(view.partition))
    since_progress = {run["retries"], 0 if step is not None else run["retries"]}
    counts = found.fault not in (F.PREEMPTED, F.HEALTHY)
    if decision.kind == "resubmit":
        assert min(since_progress) < limits.retries or found.fault is F.PREEMPTED
        assert ruling.retries - (found.fault is not F.PREEMPTED) in since_progress
        _the_job_stays_schedulable(found, attempt, decision, run, view, limits)
    else:
        assert ruling.retries - (decision.kind == "keep" and counts) in since_progress
        assert () == (*decision.exclude, *decision.drain, *decision.avoid)
    if run["wish"]:
        assert decision.kind == ("finish" if attempt["launch"].end.state == "COMPLETED" else "stop")
    if found.fault is F.CANCELLED and not attempt["end_intended"]:
        assert decision.kind in {"stop", "finish"}


def _nodes_are_treated_lawfully(
    exclude: tuple[str, ...],
    drain: tuple[str, ...],
    avoid: tuple[str, ...],
    found: Diagnosis,
    attempt: dict[str, Any],
    view: ClusterView,
    run: dict[str, Any],
) -> None:
    assert set(exclude) <= set(found.nodes) & set(attempt["nodes"])
    assert set(drain) <= set(exclude)
    assert not drain or set(found.sources) & PROOF_SOURCES
    assert set(drain) <= view.lost or set(found.sources) & PROOF_SOURCES - {Source.SLURM}
    assert set(avoid) <= set(attempt["nodes"])
    own = set(attempt["nodes"]) & view.available - view.lost
    assert not avoid or len((view.idle | own) - set(avoid)) >= view.nodes_needed
    if avoid and not exclude and view.sizes is not None:  # what is only suspect costs no size
        excluded = {one.node for one in run["excluded"]}
        free = view.idle - set(attempt["nodes"]) | own  # a lost node of the attempt adds to no size
        with_them, without = len(free - excluded), len(free - excluded - set(avoid))
        assert view.sizes.at_most(with_them) <= max(view.nodes_needed, view.sizes.at_most(without))


def _the_job_stays_schedulable(
    found: Diagnosis,
    attempt: dict[str, Any],
    decision: Decision,
    run: dict[str, Any],
    view: ClusterView,
    limits: PolicyLimits,
) -> None:
    if not view.partition:
        return  # Slurm could not be asked
    culprits = set(found.nodes) & set(attempt["nodes"]) & set(view.partition)
    usable = set(view.available) | culprits
    kept = {e.node for e in run["excluded"]} & set(view.available)
    left_out = (kept | set(decision.exclude)) - set(decision.relax)
    assert len(left_out) <= max(1, int(limits.exclude_cap * len(view.partition)))
    if len(usable) >= view.least:
        assert len(usable - left_out) >= view.least


@given(
    st.sets(st.sampled_from(PARTITION[:8])),
    st.sets(st.sampled_from(PARTITION[:8])),
    st.sets(st.sampled_from(PARTITION[:8])),
    st.integers(1, 8),
)
def test_what_is_named_in_exclude_leaves_the_job_enough(
    excluded: set[str], avoided: set[str], silent: set[str], needed: int
) -> None:
    """As many nodes as the job needs stay unnamed; where not all fit, those that are blamed are named first."""
    view = ClusterView(PARTITION[:6], nodes_needed=needed)

    named = nodes_to_exclude(view, excluded, avoided, silent)

    assert set(named) <= (excluded | avoided | silent) & set(view.partition)
    assert len(set(view.partition) - set(named)) >= min(needed, 6)
    if set(named) - excluded:
        assert excluded & set(view.partition) <= set(named)


def test_of_exclusions_made_inside_an_allocation_the_newest_stay_within_the_cap() -> None:
    """A run that a person resumes was under no cap while its spares stood in; what nobody can be placed on takes no room."""
    view = ClusterView(PARTITION[:6], nodes_needed=1, available=frozenset(PARTITION[:4]))
    newest, older, drained = PARTITION[1], PARTITION[0], PARTITION[5]

    assert (newest, drained) == within_cap(view, (newest, drained, older), 0.10)
    assert (newest, older) == within_cap(view, (newest, older), 0.50)
    assert (newest, older) == within_cap(ClusterView(nodes_needed=1), (newest, older), 0.10)


@pytest.mark.parametrize("fault", [F.HARDWARE_GPU, F.HARDWARE_OTHER, F.NODE])
def test_who_may_not_drain_asks_the_service_where_there_is_one(fault: F) -> None:
    """The log alone is enough to ask, since the service looks for itself; who may drain asks nobody, nor does who never drains."""
    found = diagnosis(fault, sources=LOGGED, **BAD)
    asking = {"may_drain": False, "may_ask": True}

    asked = rule(found, view=cluster(**asking)).decision
    assert (("n2",), (), ("n2",)) == (asked.exclude, asked.drain, asked.ask)
    assert any("the site's service is asked to drain n2" in note for note in asked.notes)
    assert () == rule(found, view=cluster(may_drain=False)).decision.ask
    assert () == rule(found, view=cluster(may_ask=True)).decision.ask
    only = rule(found, view=cluster(may_ask=True), limits=PolicyLimits(ask_only=True)).decision
    assert ((), ("n2",)) == (only.drain, only.ask)
    assert () == rule(found, view=cluster(**asking), limits=PolicyLimits(drain=False)).decision.ask


@pytest.mark.parametrize("fault", [F.NETWORK, F.STORAGE, F.HANG, F.OOM_GPU, F.UNKNOWN, F.USER_CODE])
def test_the_service_is_asked_for_nothing_that_a_drain_does_not_mend(fault: F) -> None:
    """As for drains: hardware and lost nodes only."""
    found = diagnosis(fault, retry=True, exclude=True, sources=PROVEN, **BAD)
    assert () == rule(found, view=cluster(may_drain=False, may_ask=True)).decision.ask
