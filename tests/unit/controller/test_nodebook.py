"""Laws of what a run asks the ledger: is it this node's own fault, whom to avoid, whom a person has released. (I/O)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.client.errors import Unreachable
from ftrun.supervisor.model.node_entry import NodeEntry
from ftrun.supervisor.model.run import Attempt, Exclusion, Launch, LaunchEnd, Run
from ftrun.supervisor.nodes import ledger
from ftrun.supervisor.nodes.ledger import NodeLedger
from tests.unit.cases import DAY, NODES, NOW, F, diagnosis

SWITCHES = {"s0": ("n1", "n2", "n3", "n4"), "s1": ("n5", "n6", "n7", "n8")}


class Context:
    """A run and the ledger of its home."""

    def __init__(self, home: Path, *entries: NodeEntry, domains: Any = None, **run: Any) -> None:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        assert ledger.append_entries(str(home), *entries)
        self.attempt = Attempt(2, NOW - 100, nodes=NODES)
        self.run = Run("r-0009", attempts=(Attempt(1, NOW - 900), self.attempt), **run)
        self.ledger = NodeLedger(
            str(home), lambda: NOW, lambda *_, **__: None, domains=lambda: self._domains(domains)
        )

    @staticmethod
    def _domains(answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer or {}


def fault(node: str, at_s: float = NOW - 60, **changes: Any) -> NodeEntry:
    told = {
        "run": f"r-{node}",
        "signature": "a.signature",
        "id": f"i{node}",
        "detail": {"incident": "1.0"},
    } | changes
    return NodeEntry(at_s, "excluded", (node,), **told)


def common(ctx: Context, *nodes: str, **changes: Any) -> str:
    found = diagnosis(F.HARDWARE_GPU, nodes=nodes or ("n1",), **changes)
    return ctx.ledger.common_cause(ctx.run, found, NOW)


def test_the_fourth_node_in_ten_minutes_has_a_fault_in_common(tmp_path: Path) -> None:
    """Three of other runs and this one; in the ledger, or all in this diagnosis."""
    ctx = Context(tmp_path, fault("n5"), fault("n6"), fault("n17"))

    assert "a.signature on 4 nodes within minutes: held to be the job's or the cluster's fault" == common(ctx)
    assert common(Context(tmp_path / "other"), "n1", "n2", "n3", "n4")


@pytest.mark.parametrize("what", ["long ago", "another fault", "two others", "a node of no attempt"])
def test_else_it_may_be_the_nodes_own(tmp_path: Path, what: str) -> None:
    """An hour before, another signature, too few, or a name that the log made up."""
    odd: dict[str, dict[str, Any]] = {"long ago": {"at_s": NOW - 3600}, "another fault": {"signature": "ecc"}}
    changes = odd.get(what, {})
    others = ["n5", "n6"] if what == "two others" else ["n5", "n6", "n17"]
    ctx = Context(tmp_path, *(fault(name, **changes) for name in others))

    assert "" == common(ctx, "login1" if what == "a node of no attempt" else "n1")


def test_three_below_one_switch_point_at_it(tmp_path: Path) -> None:
    """With Slurm's topology; where Slurm does not answer, three are three."""
    near = (fault("n2"), fault("n3"))

    assert "below s0" in common(Context(tmp_path / "a", *near, domains=SWITCHES))
    assert "" == common(Context(tmp_path / "b", *near, domains=Unreachable("away")))
    assert "" == common(Context(tmp_path / "c", fault("n5"), fault("n6"), domains=SWITCHES))


def test_whom_other_runs_blame_is_kept_away(tmp_path: Path) -> None:
    """Unless the setting says never, or sbatch refused this run with nodes left out."""
    blamed = fault("n7")

    def kept(folder: str, **run: Any) -> tuple[str, ...]:
        ctx = Context(tmp_path / folder, blamed, **run)
        return ctx.ledger.quarantined(ctx.run, NOW)

    assert ("n7",) == kept("a")
    assert () == kept("b", settings={"quarantine": "never"})
    ctx = Context(tmp_path / "c", blamed)
    refused = Attempt(2, NOW, excluded=("n7",), launch=Launch(end=LaunchEnd(state="REFUSED")))
    ctx.run = Run("r-0009", attempts=(refused, Attempt(3, NOW)))
    assert () == ctx.ledger.quarantined(ctx.run, NOW)


def test_a_release_ends_a_runs_own_exclusion_too(tmp_path: Path) -> None:
    """One of before the exclusion does not; others stay, and what has expired is none."""
    own = (
        Exclusion("n1", NOW + DAY - 500, "bad"),
        Exclusion("n2", NOW + DAY - 500, "bad"),
        Exclusion("n3", NOW - 1, "expired"),
    )
    before = NodeEntry(NOW - 600, "released", ("n2",), detail={"by": "ada"})
    after = NodeEntry(NOW - 400, "released", ("n1",), detail={"by": "ada"})
    ctx = Context(tmp_path, before, after, excluded=own)

    assert ("n2",) == ctx.ledger.excluded(ctx.run, NOW)
