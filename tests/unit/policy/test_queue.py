"""Laws of waiting in the queue: when a run goes on smaller, what is given back, told or given up; and how large a start may be. (pure)"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.slurm.client.cluster import NodeRow
from ftrun.supervisor.config.node_counts import Sizes
from ftrun.supervisor.model.run import Attempt, Exclusion, Run
from ftrun.supervisor.policy.policy_input import ClusterView
from ftrun.supervisor.policy.queue import (
    NEVER_FOR_S,
    NEVER_STARTS,
    RELAX_EVERY_S,
    TOO_LARGE,
    PendingJob,
    QueueAction,
    WaitSettings,
    decide_wait,
    next_size,
    release_order,
    run_size,
    with_same_devices,
)
from tests.unit.cases import F, incident

NODES = tuple(f"n{i}" for i in range(8))
FOUR = Sizes((1, 2, 4), 1)


def moved(
    waited_s: float,
    *,
    ready: int = 0,
    sizes: Sizes | None = FOUR,
    on_timeout: str = "",
    reason: str = "Resources",
    **changes: Any,
) -> QueueAction:
    """What is done about a job of four nodes that waited so long."""
    values: dict[str, Any] = {"reason": reason, "waited_s": waited_s, "size": 4} | changes
    pending = PendingJob(**values)
    return decide_wait(pending, ready, sizes, WaitSettings(270.0, 1800.0, on_timeout))


@pytest.mark.parametrize(
    ("waited_s", "ready", "kind", "size"),
    [
        (0.0, 3, "stay", 0),
        (269.0, 3, "stay", 0),
        (270.0, 3, "shrink", 2),
        (270.0, 1, "shrink", 1),
        (270.0, 0, "stay", 0),
        (270.0, 9, "stay", 0),  # nodes are not what it lacks
        (5000.0, 2, "shrink", 2),
    ],
)
def test_a_job_that_waits_goes_on_with_the_largest_size_that_can_start(
    waited_s: float, ready: int, kind: str, size: int
) -> None:
    """After `resize-after`, never at its own size again, never at one that is none."""
    move = moved(waited_s, ready=ready)
    assert (move.kind, move.size) == (kind, size)


@pytest.mark.parametrize(
    ("starts_in_s", "shrinks_after_s"),
    [(None, 270.0), (-5.0, 270.0), (0.0, 540.0), (270.0, 540.0), (600.0, 270.0), (1081.0, 67.5)],
)
def test_a_start_that_slurm_expects_is_a_hint(starts_in_s: float | None, shrinks_after_s: float) -> None:
    """Soon: it is waited for, up to twice as long. Far away: a quarter of the wait is enough. The unknown changes nothing."""
    before = moved(shrinks_after_s - 1, ready=3, starts_in_s=starts_in_s)
    after = moved(shrinks_after_s, ready=3, starts_in_s=starts_in_s)
    assert (before.kind, after.kind, after.size) == ("stay", "shrink", 2)


def test_a_job_that_was_made_smaller_waits_anew_at_its_new_size() -> None:
    """But its time-out goes on: it is the same wait."""
    assert moved(500.0, ready=1, sized_s=100.0).kind == "stay"
    assert moved(500.0, ready=1, sized_s=270.0).size == 1
    assert moved(1800.0, ready=1, sized_s=100.0).kind == "notify"


@pytest.mark.parametrize(("never_s", "kind"), [(0.0, "stay"), (5.0, "anew")])
def test_what_slurm_does_not_take_after_the_change_is_submitted_anew(never_s: float, kind: str) -> None:
    """At the same size; its nodes are not given back, and it is no smaller size that it needs."""
    move = moved(300.0, reason="BadConstraints", resized=True, never_s=never_s, kept_off=(("n1",),))
    assert (move.kind, move.size) == (kind, 4 if kind == "anew" else 0)


def test_a_spare_is_not_waited_for() -> None:
    """Where the nodes are there without it, the run goes on at its size."""
    assert moved(300.0, ready=4, spares=1).size == 4
    assert moved(300.0, ready=5, spares=1).kind == "stay"
    assert moved(300.0, ready=3, spares=1).size == 2
    assert moved(10.0, ready=4, spares=1).kind == "stay"


@pytest.mark.parametrize(
    "reason", ["JobHeldUser", "JobHeldAdmin", "BeginTime", "Dependency", "JobArrayTaskLimit"]
)
def test_what_somebody_wants_is_no_waiting_for_nodes(reason: str) -> None:
    """Nothing is done, however long it takes."""
    assert moved(1e6, ready=3, reason=reason, on_timeout="stop").kind == "stay"


@pytest.mark.parametrize(
    "reason",
    [
        *(
            "AssocMaxJobsLimit",
            "AssocGrpNodeLimit",
            "AssocGrpCPUMinutesLimit",
            "QOSMaxNodePerUserLimit",
            "QOSGrpGRES",
            "MaxCpuPerAccount",
        ),
        *("QOSMaxJobsPerUserLimit", "AssocMaxSubmitJobLimit", "Licenses", "PartitionDown", "Priority", ""),
    ],
)
def test_what_passes_with_time_is_waited_for(reason: str) -> None:
    """Until the time-out."""
    assert moved(1000.0, reason=reason, never_s=0.0).kind == "stay"
    assert moved(1800.0, reason=reason).kind == "notify"


@pytest.mark.parametrize(
    "reason",
    [
        *("PartitionConfig", "InvalidQOS", "DependencyNeverSatisfied", "ReservationDeleted"),
        *(
            "AssocMaxWallDurationPerJobLimit",
            "QOSMinGRES",
            "QOSMaxMemoryPerNode",
            "AssocMaxCpuMinutesPerJobLimit",
        ),
    ],
)
def test_what_time_does_not_resolve_is_an_error(reason: str) -> None:
    """Once it stood for a while; a first start is told only."""
    assert moved(40.0, reason=reason, never_s=NEVER_FOR_S - 1).kind == "stay"
    assert moved(40.0, reason=reason, never_s=NEVER_FOR_S).kind == "hopeless"
    assert moved(40.0, reason=reason, never_s=NEVER_FOR_S, first=True).kind == "notify"
    assert reason in moved(40.0, reason=reason, never_s=NEVER_FOR_S).reason


def test_what_is_in_the_way_is_given_back_softest_first() -> None:
    """Suspects at once; a smaller size before a proven one; then the error."""
    both: dict[str, Any] = {"reason": "BadConstraints", "kept_off": (("n1", "n2"), ("n3",)), "never_s": 100.0}
    proven: dict[str, Any] = {**both, "kept_off": ((), ("n3",), ("n4",))}

    assert moved(1.0, ready=2, **both).nodes == ("n1", "n2")
    assert moved(1.0, **proven).size == 2
    assert moved(1.0, sizes=None, **proven).nodes == ("n3",)
    assert moved(1.0, sizes=None, **proven, relaxed_s=RELAX_EVERY_S - 1).kind != "relax"
    assert moved(1.0, sizes=None, **{**both, "kept_off": ((),)}).kind == "hopeless"
    assert moved(1.0, ready=0, **both, first=True).kind == "notify"


def test_a_node_whose_exclusion_is_over_is_given_back_whatever_slurm_says() -> None:
    """The list of a waiting job would else outlive the exclusion, and a run that needs the node waits for ever."""
    over: dict[str, Any] = {"reason": "Resources", "expired": ("n3",), "kept_off": (("n3",),)}

    assert moved(40.0, **over).nodes == ("n3",)
    assert moved(40.0, **over, first=True).kind == "stay"
    assert moved(40.0, **over, relaxed_s=RELAX_EVERY_S - 1).kind != "relax"
    assert moved(40.0, reason="Resources", kept_off=(("n3",),)).kind != "relax"


def test_a_proven_node_is_not_given_back_because_others_are_down_for_a_moment() -> None:
    """Only once the run has waited for as long as it may, or where Slurm says never."""
    down: dict[str, Any] = {
        "reason": "ReqNodeNotAvail, UnavailableNodes:n5",
        "kept_off": ((), ("n3",)),
        "sizes": None,
    }
    assert moved(1799.0, **down).kind == "stay"
    assert moved(1800.0, **down).nodes == ("n3",)


def test_a_size_that_is_too_large_for_ever_gives_way_at_once() -> None:
    """The next smaller one is asked for, whatever is idle."""
    assert moved(6.0, reason="PartitionNodeLimit", never_s=1.0).size == 2
    assert moved(6.0, reason="QOSMaxNodePerJobLimit", never_s=1.0).size == 2
    assert moved(6.0, reason="PartitionConfig", never_s=NEVER_FOR_S).kind == "hopeless"


def test_idle_nodes_with_other_devices_are_none_for_this_run() -> None:
    """A run on GPUs does not go on with nodes that have none."""
    rows = {
        name: NodeRow(name, "idle", frozenset(), "", None, ("main",), gres="gpu:8" if name < "n4" else "")
        for name in NODES
    }
    run = Run("r", attempts=(Attempt(1, 0.0, nodes=("n0",)),))
    assert with_same_devices(view(8), rows, run).idle == {"n0", "n1", "n2", "n3"}
    assert with_same_devices(view(8), rows, Run("r")).idle == set(NODES)


@pytest.mark.parametrize(
    ("on_timeout", "waited_s", "kind"),
    [
        ("", 1799.0, "stay"),
        ("", 1800.0, "notify"),
        ("wait", 9999.0, "notify"),
        ("notify", 9999.0, "notify"),
        ("shrink", 1800.0, "notify"),
        ("stop", 1799.0, "stay"),
        ("stop", 1800.0, "stop"),
    ],
)
def test_the_time_out_does_what_was_chosen(on_timeout: str, waited_s: float, kind: str) -> None:
    """And for a first start nothing."""
    assert moved(waited_s, on_timeout=on_timeout).kind == kind
    assert moved(waited_s, on_timeout=on_timeout, first=True).kind == "stay"


def test_a_notice_that_was_given_is_the_same_again() -> None:
    """So it is told once; with `notify` there is a new one for each time-out."""
    assert moved(1800.0).reason == moved(99_999.0).reason
    assert moved(1800.0, on_timeout="notify").reason == moved(3599.0, on_timeout="notify").reason
    assert moved(1800.0, on_timeout="notify").reason != moved(3600.0, on_timeout="notify").reason


@given(
    st.sets(st.integers(1, 12), min_size=1),
    st.integers(1, 12),
    st.integers(0, 12),
    st.floats(0, 1e5),
    st.booleans(),
    st.sampled_from(("Resources", "Priority", "BadConstraints", *NEVER_STARTS)),
)
def test_a_size_in_the_queue_only_goes_down_and_is_always_one_of_the_run(
    known: set[int], size: int, ready: int, waited_s: float, first: bool, reason: str
) -> None:
    """So a run that waits comes to rest after as many moves as it has sizes; and a first start is never changed."""
    sizes = Sizes(sorted(known))
    move = moved(waited_s, ready=ready, sizes=sizes, reason=reason, first=first, size=size)
    if move.kind == "shrink":
        assert not first
        assert move.size in sizes.all
        assert move.size < size
        assert move.size <= ready or reason.lower().startswith(TOO_LARGE)
    if first:
        assert move.kind in ("stay", "notify")


# ---------------------------------------------------------------------- the next start


def view(idle: int, available: int = 8, size: int = 8) -> ClusterView:
    """So many nodes; so many of them up, the first ones; so many of those idle, the last ones."""
    up = NODES[:available]
    return ClusterView(NODES[:size], frozenset(up), frozenset(up[available - idle :]), nodes_needed=4)


@pytest.mark.parametrize(
    ("now", "idle", "own", "exclude", "size"),
    [
        (4, 0, (), (), 4),  # it waits
        (2, 4, (), (), 4),  # it grows
        (2, 3, (), (), 2),  # not enough to grow
        (2, 2, ("n0", "n1"), (), 4),  # its own nodes come free
        (4, 8, (), NODES[:5], 2),  # the partition could never give four
        (2, 8, (), NODES[:7], 1),
    ],
)
def test_a_start_that_must_be_made_takes_what_is_there(
    now: int, idle: int, own: tuple[str, ...], exclude: tuple[str, ...], size: int
) -> None:
    """More where it is there, the same where that may come, less only where it never can."""
    assert next_size(FOUR, now, view(idle), own, exclude) == size


def test_a_partition_that_is_not_shown_changes_nothing() -> None:
    """Blindness is no reason."""
    assert next_size(FOUR, 2, ClusterView(), (), ()) == 2


@given(
    st.sets(st.integers(1, 8), min_size=1),
    st.sets(st.sampled_from(NODES)),
    st.sets(st.sampled_from(NODES)),
    st.sets(st.sampled_from(NODES)),
    st.data(),
)
def test_the_next_size_is_always_one_of_the_run(
    known: set[int], up: set[str], idle: set[str], exclude: set[str], data: st.DataObject
) -> None:
    """Never above the full size, never below the least, never more than could ever be had unless even the least cannot."""
    sizes = Sizes(sorted(known))
    now = data.draw(st.sampled_from(sizes.all))
    seen = ClusterView(NODES, frozenset(up), frozenset(idle & up))
    size = next_size(sizes, now, seen, (), sorted(exclude))
    assert size in sizes.all
    assert size <= max(len(up - exclude), sizes.all[0])
    if size > now:
        assert size <= len((idle & up) - exclude)


def test_the_present_size_is_the_last_one_that_was_not_put_aside() -> None:
    """After a size that did not work: back to the last that made steps."""
    attempts = (Attempt(1, 0.0, last_step=9), Attempt(2, 0.0, size=2, last_step=12), Attempt(3, 0.0, size=1))
    assert run_size(Run("r"), FOUR) == 4
    assert run_size(Run("r", attempts=attempts), FOUR) == 1
    assert run_size(Run("r", attempts=attempts, sizes_aside=(1,)), FOUR) == 2
    assert run_size(Run("r", attempts=attempts, sizes_aside=(1, 2)), FOUR) == 4


def test_nodes_are_given_back_in_the_order_of_what_is_known_of_them() -> None:
    """Suspects, then what was blamed by the log, then the proven ones, the oldest first; what is over or not kept off is not named."""
    out = tuple(
        Exclusion(node, until, "") for node, until in (("a", 90.0), ("b", 80.0), ("c", 70.0), ("d", 5.0))
    )
    proof: dict[str, Any] = {"diagnosis": {"sources": ["log", "slurm"]}}
    found = (
        incident(F.NODE, nodes=("a", "b"), **proof),
        incident(F.HANG, nodes=("c",), diagnosis={"sources": ["log"]}),
    )
    run = Run("r", excluded=out, incidents=found)
    assert release_order(run, ("a", "b", "c", "d", "e"), 10.0) == (("c", "d", "e"), ("b",), ("a",))
    assert release_order(run, (), 10.0) == ((),)
