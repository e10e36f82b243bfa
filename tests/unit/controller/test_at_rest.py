"""Laws of rounds over many runs: what nothing has happened to is left out, and whatever happens is seen at once. (I/O)"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ftrun.slurm.client.errors import Unreachable
from ftrun.slurm.records import replace
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.controller import at_rest
from ftrun.supervisor.controller.reconcile import RunReconciler
from ftrun.supervisor.model.stop_conditions import HALT_FILE
from ftrun.supervisor.store import run_dir
from tests.unit.lives import Life


@pytest.fixture
def resting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Life, list[str]]:
    """A running run that may rest for long, as one of thousands does, and the steps made of it."""
    monkeypatch.setattr(at_rest, "SHARE", 1e9)
    monkeypatch.setattr(at_rest, "REST_MAX_S", 1000.0)
    monkeypatch.setattr(run_dir, "_SETTLED_S", 0.0)
    steps: list[str] = []
    step = RunReconciler.step

    def noted(self: RunReconciler, *args: object) -> None:
        steps.append(self.ctx.run.id)
        step(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(RunReconciler, "step", noted)
    life = Life(tmp_path)
    life.until("running")
    life.live(30)
    return life, steps


def _rounds(life: Life, steps: list[str], count: int = 5) -> int:
    steps.clear()
    for _ in range(count):
        life.supervisor.tick()
    return len(steps)


def test_a_run_to_which_nothing_happens_is_left_out(resting: tuple[Life, list[str]]) -> None:
    """But for a step after its rest."""
    assert _rounds(*resting) == 0


def _request(life: Life) -> None:
    (Path(life.run_dir) / "requests" / "1-pause.json").write_text("{}")


def _halt(life: Life) -> None:
    (Path(life.run_dir) / HALT_FILE).write_text("{}")


def _leave_a_record(life: Life) -> None:
    (Path(life.run_dir) / "attempts" / "1" / "exit.0").write_text("code=1\n")


def _journal(life: Life) -> None:
    life.supervisor.reconcilers[life.run_dir].ctx.record("warned", message="by a glance")


@pytest.mark.parametrize("deed", [_request, _halt, _leave_a_record, _journal])
def test_whatever_happens_to_a_run_is_looked_at_in_the_next_round(
    resting: tuple[Life, list[str]], deed: Callable[[Life], None]
) -> None:
    """A request, a condition of stop, what its job leaves in its folder, a record of a glance."""
    life, steps = resting
    assert _rounds(life, steps) == 0
    deed(life)
    assert _rounds(life, steps, 1) == 1


def test_what_slurm_shows_otherwise_is_looked_at_in_the_next_round(
    resting: tuple[Life, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the job, or of one of its nodes; a Slurm that does not answer leaves out nothing."""
    life, steps = resting
    world = life.supervisor._look()
    assert world.jobs is not None
    assert world.nodes is not None
    job, node = next(iter(world.jobs)), life.launches[0].nodes[0]
    other_row = replace(world.jobs[job], reason="other")
    other_node = replace(world.nodes[node], reason="other")
    others = (
        replace(world, jobs={job: other_row}, families={job: (other_row,)}),
        replace(world, nodes={**world.nodes, node: other_node}, mono_s=world.mono_s + 1),
        replace(world, jobs=None, nodes=None),
    )
    for other in others:
        monkeypatch.setattr(life.supervisor, "_look", lambda: world)
        _rounds(life, steps)
        assert _rounds(life, steps) == 0
        monkeypatch.setattr(life.supervisor, "_look", lambda other=other: other)
        assert _rounds(life, steps, 1) == 1


def test_a_step_that_failed_is_made_again(
    resting: tuple[Life, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run rests after a whole step only."""
    life, steps = resting

    def fails(_: RunContext) -> None:
        raise Unreachable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(RunContext, "catch_up", fails)
        _request(life)
        assert _rounds(life, steps) == 5
    assert _rounds(life, steps, 1) == 1
