"""Lives of runs in a simulated world: thousands of faults and crashes, and the laws that hold through all of them.

`--seeds N` says how many lives, `--from K` with which seed they begin, `--seed K` replays one of them and tells its story.
Whoever waits for thousands of them is told now and then how far they are, and of each that broke a law as soon as it did.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import pytest

from tests.simulation.plan import Plan, draw
from tests.simulation.world import live

REPLAY = "python -m pytest -s tests/simulation --seed"
TOLD_EVERY_S = 20.0


# Each broke a law once, and says which; what mended it has a law of its own beside the code.
BROKEN_ONCE = {
    600225: "a launch that nobody followed could not load a checkpoint, and the next attempt was given it again",
    600320: "an end that was only meant for a launch counted for the next one, which a person had resumed",
    601199: "a companion that Slurm made minutes after its sbatch, which gave no answer, waited although its run was over",
    602483: "a start was moved off a drained node at a checkpoint that it wrote after it had diverged",
    710164: "a resumed run stopped once more for a cancel that was older than the resume",
    710393: "a resumed run waited for ever for a second job of its token, which nobody followed",
    800549: "a launch that was judged after the next one had ended counted what that one had saved",
    810097: "the same, and the next one's agent counted it, too",
    830383: "a companion that Slurm made twice was not ended, since its known half was forgotten before its end was seen",
    840473: "a late companion was not looked for by a supervisor whose clock was an hour off",
    840646: "a person's cancel that Slurm had shown was forgotten as the lease was lost, and undone",
}


@pytest.mark.parametrize("seed", BROKEN_ONCE)
def test_a_life_that_broke_a_law_keeps_them_now(seed: int) -> None:
    """The same plan again."""
    assert not _broken(draw(seed)), BROKEN_ONCE[seed]


def test_every_life_keeps_the_laws(request: pytest.FixtureRequest) -> None:
    """Whatever fails and whoever dies: one attempt trains, no budget is overspent, no healthy job is ended, nothing is lost."""
    chosen = request.config.getoption("--seed")
    first, count = request.config.getoption("--from"), request.config.getoption("--seeds")
    seeds = [chosen] if chosen is not None else range(first, first + count)
    failed: list[str] = []
    progress = _Progress(seeds)
    for seed in seeds:
        broken = _broken(draw(seed), show=chosen is not None)
        if broken:
            failed.append(f"{broken[0]}\n    replay: {REPLAY} {seed}")
            progress.tell(failed[-1])
        progress.lived(seed, len(failed))

    assert not failed, f"{len(failed)} of {len(seeds)} lives:\n" + "\n".join(failed[:20])


class _Progress:
    """Lines for whoever waits, past pytest, which would keep them to the end."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self._seeds = seeds
        self._began_s = self._told_s = time.monotonic()

    def tell(self, line: str) -> None:
        """A line now."""
        print(f"\nsimulation: {line}", end="", file=sys.__stderr__, flush=True)

    def lived(self, seed: int, failed: int) -> None:
        """How many lives are over, if nobody was told for a while."""
        now_s = time.monotonic()
        if now_s - self._told_s < TOLD_EVERY_S:
            return
        self._told_s, done = now_s, self._seeds.index(seed) + 1
        left_s = (now_s - self._began_s) / done * (len(self._seeds) - done)
        self.tell(f"{done} of {len(self._seeds)} lives, {failed} broke a law, {left_s / 60:.0f} min left")


def _broken(plan: Plan, *, show: bool = False) -> list[str]:
    """The laws that a life broke; a life in which only supervisors died ends as it does without their deaths, or better:
    what Slurm repeats by itself while nobody watches spends no budget.
    """
    if show:
        print(plan)
    outcome, broken, world = live(plan, show=show)
    if not broken and plan.crash_only and not world.laws.stopped_for_possible_cancel:
        undisturbed, _, other = live(plan.without_supervisor_faults())
        if undisturbed != outcome and not (outcome == "finished" and other.laws.used_up):
            broken = [f"the run is {outcome}; where no supervisor dies, it is {undisturbed}"]
    return broken
