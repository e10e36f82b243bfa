"""Drills of checkpoints that must not be taken: torn ones, poisoned ones. (pure)"""

from __future__ import annotations

from ftrun.supervisor.drill.terms import Expect, Fault, Scenario

__all__ = ["CHECKPOINTING"]

CHECKPOINTING: tuple[Scenario, ...] = (
    Scenario(
        "torn-newest",
        "The newest checkpoint is torn, which is seen before a start tries it",
        faults=(Fault("torn-save", (14,), rank=0, starts=(1,)),),
        expect=Expect(classes=("hardware-gpu",), attempts=2, starts=2, resumed_min=(0, 12), steps_lost_max=4),
    ),
    Scenario(
        "poisoned-nan",
        "The loss becomes NaN, two checkpoints are saved with it, then a GPU is lost: none of the two is taken",
        faults=(
            Fault("poisoned", (18,), starts=(1,)),
            Fault("gpu-lost", (26,), rank=1, starts=(1,)),
        ),
        steps=40,
        expect=Expect(
            classes=("hardware-gpu",), attempts=2, starts=2, resumed_min=(0, 12), steps_lost_max=16
        ),
    ),
)
