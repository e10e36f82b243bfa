"""Drills of runs that went on with fewer nodes and take more while they work. (pure)"""

from __future__ import annotations

from collections.abc import Mapping

from ftrun.supervisor.drill.moves import at_step, crash, occupy, vacate
from ftrun.supervisor.drill.terms import Expect, Scenario

__all__ = ["GROWS"]

QUICK: Mapping[str, str] = {"min-stay": "3s", "checkpoint-marker": ".done"}
"""A size is kept for three seconds only, and a checkpoint is known to be whole at once."""

GROWS: tuple[Scenario, ...] = (
    Scenario(
        "grow-by-companion",
        "A run that went on with two nodes is at full size again at the next checkpoint after strangers have left a node",
        on_loss="wait",
        steps=400,
        every=20,
        settings={**QUICK, "nodes": "2-3"},
        moves=(occupy(1), crash(1, at_step(30)), vacate(at_step(60, start=2))),
        companions=True,
        needs_sandbox=True,
        timeout_s=300.0,
        expect=Expect(
            classes=("node",),
            blamed="hurt",
            avoided=True,
            attempts=1,
            starts=3,
            sizes=(3, 2, 3),
            rungs=("shrink",),
            steps_lost_max=80,
        ),
    ),
    Scenario(
        "grow-by-spare",
        "A unit of two lost a node: its healthy neighbour waits for a node that strangers leave, and both are a unit again",
        ranks=4,
        nodes=5,
        on_loss="wait",
        steps=400,
        every=20,
        settings={**QUICK, "nodes": "2-4:2"},
        moves=(occupy(1), crash(3, at_step(30)), vacate(at_step(60, start=2))),
        companions=True,
        needs_sandbox=True,
        timeout_s=300.0,
        expect=Expect(
            classes=("node",),
            blamed="hurt",
            avoided=True,
            attempts=1,
            starts=3,
            sizes=(4, 2, 4),
            rungs=("shrink",),
            steps_lost_max=80,
        ),
    ),
    Scenario(
        "grow-refused",
        "The same where too little of the job's time is left: growing does not pay, and the run ends with two nodes",
        on_loss="wait",
        sbatch=("--time=2",),
        steps=200,
        every=20,
        settings={**QUICK, "nodes": "2-3"},
        moves=(occupy(1), crash(1, at_step(30)), vacate(at_step(60, start=2))),
        companions=True,
        needs_sandbox=True,
        timeout_s=300.0,
        expect=Expect(
            classes=("node",),
            blamed="hurt",
            avoided=True,
            attempts=1,
            starts=2,
            sizes=(3, 2),
            rungs=("shrink",),
            steps_lost_max=40,
        ),
    ),
)
