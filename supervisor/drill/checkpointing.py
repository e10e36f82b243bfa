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
    Scenario(
        "torn-checkpoint-own-words",
        "The newest checkpoint cannot be loaded, and the program says so in words of its own",
        faults=(Fault("nonsense-save", (14,), rank=0, starts=(1,)),),
        loader="own",
        expect=Expect(
            classes=("hardware-gpu", "checkpoint"),
            attempts=2,
            rungs=("resubmit", "step"),
            steps_lost_max=8,
        ),
    ),
    Scenario(
        "loader-bug",
        "A program that cannot load any of its checkpoints: none of them is to blame",
        faults=(Fault("gpu-lost", (14,), rank=1, starts=(1,)),),
        loader="bug",
        expect=Expect(
            end="stopped",
            classes=("hardware-gpu", "user-code", "checkpoint", "user-code"),
            attempts=2,
            rungs=("resubmit", "step", "step", "stop"),
        ),
    ),
)
