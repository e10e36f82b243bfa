"""Companions asked for: what of it is no question to Slurm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ftrun.slurm.client.cluster import ClusterFacts
from ftrun.slurm.commands.spanning import Span
from ftrun.supervisor.agent import companion_jobs, companion_prefetch
from ftrun.supervisor.agent.batch_channel import BatchChannel
from ftrun.supervisor.agent.companion_jobs import FAILED, READY, WAITING, Companion, never_starts_reason
from ftrun.supervisor.agent.companion_prefetch import SpareRefill
from ftrun.supervisor.agent.context import AgentContext, LaunchIdentity
from ftrun.supervisor.agent.spanning_limits import SPANNING_FAILED, SpanningLimits
from ftrun.supervisor.config.node_counts import Pool
from ftrun.supervisor.model.events import fold
from ftrun.supervisor.submission import companion
from tests.fake_slurm.cluster import MemoryCluster
from tests.fake_slurm.engine import Engine


@pytest.mark.parametrize(
    ("reason", "waits"),
    [
        ("AssocMaxJobsLimit", False),
        ("QOSMaxNodePerUserLimit", False),
        ("AssocGrpNodeLimit", False),
        ("PartitionTimeLimit", False),
        ("JobHeldAdmin", False),
        ("JobHeldUser", False),
        ("launch failed requeued held", False),
        ("Resources", True),
        ("Priority", True),
        ("None", True),
        ("ReqNodeNotAvail, UnavailableNodes:n3", True),
    ],
)
def test_what_waits_for_the_main_jobs_own_end_is_not_waited_for(reason: str, waits: bool) -> None:
    """Limits of users, accounts and QOS, what never resolves, and what a site or a person holds; busy nodes are waited for."""
    assert (never_starts_reason(reason) == "") is waits


def test_a_companion_that_did_not_come_is_paid_for_once() -> None:
    """The same incident is decided twice, first for a companion and then for what stands below: one fault, one retry, and one state of things before it."""
    place = {"attempt": 1, "job": "7", "launch": 0, "start": 1}
    found = {
        "incident": "1.0.1",
        "spent": {"node": 1},
        "retries": 1,
        "class": "node",
        "reason": "a node was lost",
        "nodes": [],
    }
    kinds = [
        ("run.created", {"settings": {"nodes": "2-3"}}),
        ("attempt.opened", {}),
        ("submit.done", {}),
        ("job.started", {"nodes": ["a", "b", "c"]}),
        ("start.begun", {"nodes": ["a", "b", "c"]}),
        ("start.diagnosed", {"incident": "1.0.1", "diagnosis": {"class": "node", "signature": "", "title": "", "nodes": ["b"]}, "step": 3}),
        ("start.decided", {**found, "rung": "companion", "used": {"companion": 1}}),
        ("start.decided", {**found, "rung": "shrink", "used": {"companion": 1, "shrink": 1}}),
    ]  # fmt: skip
    run = fold(
        "x", ({"kind": kind, "at": float(at), "data": data, **place} for at, (kind, data) in enumerate(kinds))
    )

    (incident,) = run.incidents
    assert (run.retries, run.spent) == (1, {"node": 1})
    assert run.rungs == {"companion": 1, "shrink": 1}
    assert incident.decision["kind"] == "shrink"
    assert incident.decided_at_s == 6.0
    assert incident.before is not None
    assert (incident.before.spent, incident.before.retries) == ({}, 0)


def test_a_spare_that_still_queues_gives_its_place_to_what_is_needed_now(tmp_path: Path) -> None:
    """It delays no other request, and what needs as many nodes takes it over, so that no place in the queue is lost."""
    spare = Companion(WAITING, 1, count=1, spare=True)
    ctx = _ctx(tmp_path)
    companions = companion_jobs.Companions(ctx, {}, [spare])

    assert not companions.expected
    assert spare is companions.take(1, frozenset())
    assert (companions.expected, spare.spare) == (True, False)


# ---------------------------------------------------------------------- where no start can lie in two jobs


class _Fabric(MemoryCluster):
    """A virtual Slurm with four nodes, whose configuration names this fabric."""

    def __init__(self, switch: str) -> None:
        super().__init__(Engine({"main": ["n0", "n1", "n2", "n3"]}))
        self._switch = switch

    def facts(self) -> ClusterFacts:
        return replace(super().facts(), switch=self._switch)


def _ctx(folder: Path, *, calls: bool = True, no_span: str = "", switch: str = "switch/none") -> AgentContext:
    """The context of a launch whose first start is over."""
    channel = folder / "talk"
    channel.mkdir()
    if calls:
        (channel / "calls.1").write_text("1700000000 4711 -N2 train\n")
    if no_span:
        (channel / "nospan.1").write_text(no_span + "\n")
    where = LaunchIdentity(str(folder), str(folder), 1, 0, "7", "", "n0", ("n0", "n1"))
    return AgentContext(where, BatchChannel(str(channel)), None, _Fabric(switch), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({}, ""),
        ({"calls": False}, "starts nothing by srun"),
        ({"no_span": "--mpi=pmi2 needs one world"}, "--mpi=pmi2 needs one world"),
        ({"switch": "switch/hpe_slingshot"}, "keys of its own"),
        ({"switch": "switch/nvidia_imex"}, "keys of its own"),
    ],
)
def test_what_cannot_lie_in_two_jobs_is_known_before_anybody_asks(
    tmp_path: Path, what: dict[str, Any], words: str
) -> None:
    """No srun, an srun that needs one world of processes, a fabric that gives each job its keys; all others may."""
    told = SpanningLimits(_ctx(tmp_path, **what)).against(1, end_s=None, limit_s=300.0)
    assert words in told if words else told == ""


def test_a_job_whose_time_is_nearly_up_asks_for_nobody(tmp_path: Path) -> None:
    """What would come at the end of the wait would have no time left."""
    ctx = _ctx(tmp_path)
    now_s = ctx.clock.now_s()
    assert "of the job's time" in SpanningLimits(ctx).against(1, end_s=now_s + 310, limit_s=300.0)
    assert SpanningLimits(ctx).against(1, end_s=now_s + 600, limit_s=300.0) == ""


def test_a_first_start_over_both_jobs_that_comes_to_nothing_is_the_last_one(tmp_path: Path) -> None:
    """With all its nodes well and not one step; one that made steps, or lost a node, proves nothing."""
    ctx = _ctx(tmp_path)
    ctx.spans = (Span("8", ("n2",)),)
    both = ("n0", "n2")
    for nodes, step, well in ((("n0", "n1"), None, True), (both, None, False)):
        apart = SpanningLimits(ctx)
        apart.note(nodes, step, well=well)
        assert apart.against(1, end_s=None, limit_s=300.0) == ""
    apart.note(both, None, well=True)
    assert apart.against(1, end_s=None, limit_s=300.0) == SPANNING_FAILED
    worked = SpanningLimits(ctx)
    worked.note(both, 5, well=True)
    worked.note(both, None, well=True)
    assert worked.against(1, end_s=None, limit_s=300.0) == ""


class _Refusing:
    """Companions of which the pool has none."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def take(self, count: int, exclude: set[str]) -> None:
        return None

    def end_waiting(self, why: str) -> None:
        pass

    def ask(
        self, count: int, exclude: set[str], left_s: float | None, why: str, *, pool: Pool | None
    ) -> Companion:
        self.asked.append(str(pool or ""))
        return (
            Companion(FAILED, reason="Requested time limit is invalid")
            if pool
            else Companion(READY, 2, ("n2",))
        )


def test_what_the_pool_refuses_is_asked_of_the_jobs_own_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partition may allow less time, or its reservation not this user: the other nodes are not given back for that."""
    ctx, asked = _ctx(tmp_path), _Refusing()
    monkeypatch.setattr(companion_jobs, "unfit_nodes", lambda *_, **__: {})
    monkeypatch.setattr(companion, "idle_pool_nodes", lambda *_: frozenset({"n2", "n3"}))
    wanted = companion_jobs.CompanionRequest(
        None,  # type: ignore[arg-type]
        1,
        frozenset(),
        None,
        ctx.clock.mono_s() + 60.0,
        "n1 is lost",
    )
    found = companion_jobs.join(ctx, asked, {"pool": "partition:spares"}, wanted)  # type: ignore[arg-type]

    assert found.nodes == ("n2",)
    assert asked.asked == ["partition:spares", ""]


class _Refill:
    """A refill of one spare, and what it asks for."""

    def __init__(self, folder: Path, answer: Companion) -> None:
        self.now_s, self.asked_s, self.end_s, self.away = 1000.0, list[float](), 1e9, set[str]()
        self.answer, self.ended = answer, list[str]()
        ctx = _ctx(folder)
        run = SimpleNamespace(wish=None, halt=None, excluded_at=lambda at_s: ())
        row = SimpleNamespace(is_cut_short=False, limit_end_s=None)
        jobs = SimpleNamespace(jobs=lambda ids: {"7": row}, facts=ctx.cluster.facts)
        clock = SimpleNamespace(mono_s=lambda: self.now_s, now_s=lambda: self.now_s)
        ctx = replace(ctx, clock=cast("Any", clock), cluster=cast("Any", jobs))
        ctx.journal = cast("Any", SimpleNamespace(run=lambda: run))
        self.row = row
        settings = {"spares-refill": "auto", "spares": 1}
        self.refill = SpareRefill(ctx, cast("Any", self), SpanningLimits(ctx), settings)
        started = SimpleNamespace(number=1, nodes=("n0", "n1"))
        self.monitor = cast("Any", SimpleNamespace(started=started, memory=SimpleNamespace(step=5)))

    def ask(self, count: int, exclude: set[str], *_: object, **__: object) -> Companion:
        self.asked_s.append(self.now_s)
        self.away = exclude
        return replace(self.answer)

    def look(self) -> Companion:
        return replace(self.answer)

    def end(self, number: int, why: str) -> None:
        self.ended.append(why)

    def lives(self, seconds: int) -> int:
        for _ in range(seconds):
            self.now_s += 1.0
            self.refill.look(self.monitor, (), busy=False)
        return len(self.asked_s)


def test_spares_that_slurm_refuses_are_asked_for_ever_more_rarely(tmp_path: Path) -> None:
    """Down to once an hour; and not where the job's time is nearly up."""
    refill = _Refill(tmp_path, Companion(FAILED, reason="Slurm takes no companion"))
    assert refill.lives(86_400) < 40
    assert refill.asked_s[-1] - refill.asked_s[-2] >= 3600.0

    refill.row.limit_end_s = refill.now_s + 3600.0 + 20.0
    asked = refill.lives(1)
    refill.now_s += 3600.0
    assert refill.lives(19) == asked


def test_a_spare_of_which_nothing_is_known_is_not_called_unfit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm did not answer, or its companion ended: it may come again; who was found bad does not."""
    refill = _Refill(tmp_path, Companion(READY, 1, ("n2", "n3"), "8", spare=True))
    found = {"n2": f"{companion_jobs.NOT_KNOWN}: no answer", "n3": "its checks call it bad"}
    monkeypatch.setattr(companion_prefetch, "unfit_nodes", lambda *_, **__: found)

    assert refill.lives(100) > 1
    assert refill.away == {"n3"}
    assert refill.ended
