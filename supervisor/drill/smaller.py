"""Drills of runs that go on with fewer nodes. (pure)

The ranks that are left take over the shares of the lost one, as FTRUN_GRAD_ACCUM has real ranks do: so the weights are the same as those of an
undisturbed training of the full size, to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping

from ftrun.supervisor.drill.moves import (
    after,
    at_step,
    both,
    crash,
    in_state,
    node_of,
    occupy,
    on_attempt,
    struck,
    vacate,
)
from ftrun.supervisor.drill.terms import Expect, Fault, Move, Scenario

__all__ = ["SMALLER"]

QUICK_FENCE: Mapping[str, str] = {"fence-wait": "8s"}
QUICK: Mapping[str, str] = {**QUICK_FENCE, "spare-wait": "5s"}
ANEW: Mapping[str, str] = {**QUICK, "recover": "step,resubmit"}
"""Smaller by a new job only."""

AWAY = node_of(0)

SMALLER: tuple[Scenario, ...] = (
    Scenario(
        "shrink-no-spare",
        "A node loses power, strangers have all others: the run waits for a while and goes on with two",
        on_loss="wait",
        settings={**ANEW, "nodes": "2-3"},
        moves=(occupy(1), crash(1, at_step(10))),
        needs_sandbox=True,
        expect=Expect(
            classes=("node",),
            blamed="hurt",
            avoided=True,
            attempts=2,
            starts=2,
            sizes=(3, 2),
            steps_lost_max=8,
        ),
    ),
    Scenario(
        "shrink-rank-0",
        "The node of rank 0 loses power in a partition that has no other: the run goes on smaller at once",
        ranks=4,
        on_loss="wait",
        settings={**QUICK, "nodes": "2-4", "global-batch": "12", "micro-batch": "1"},
        moves=(crash(0, at_step(10)),),
        needs_sandbox=True,
        expect=Expect(
            classes=("node",),
            blamed="hurt",
            avoided=True,
            attempts=2,
            starts=2,
            sizes=(4, 3),
            steps_lost_max=8,
        ),
    ),
    Scenario(
        "shrink-unit",
        "A node of a unit of two loses power: the whole unit is done without",
        ranks=4,
        on_loss="wait",
        settings={**ANEW, "nodes": "2-4:2"},
        moves=(crash(1, at_step(10)),),
        needs_sandbox=True,
        expect=Expect(
            classes=("node",), blamed="hurt", avoided=True, attempts=2, sizes=(4, 2), steps_lost_max=8
        ),
    ),
    Scenario(
        "shrink-provokes",
        "At three nodes the script cannot divide its batch: that size is put aside, and the run goes on with two",
        ranks=4,
        on_loss="wait",
        settings={**ANEW, "nodes": "2-4"},
        faults=(Fault("user-bug", tuple(range(1, 31)), rank=-1, starts=(2,)),),
        moves=(crash(3, at_step(10)),),
        needs_sandbox=True,
        expect=Expect(classes=("node", "user-code"), attempts=3, starts=3, sizes=(4, 3, 2), steps_lost_max=8),
    ),
    Scenario(
        "shrink-inside",
        "A node crashes, with no spare and no idle node: the others go on within seconds in the same job",
        on_loss="wait",
        nodes=3,
        settings={"nodes": "2-3"},
        moves=(crash(1, at_step(10)),),
        needs_sandbox=True,
        expect=Expect(
            classes=("node",),
            blamed="hurt",
            avoided=True,
            attempts=1,
            starts=2,
            sizes=(3, 2),
            rungs=("shrink",),
            again_within_s=30.0,
            steps_lost_max=8,
        ),
    ),
    Scenario(
        "shrink-inside-unit",
        "A node of a unit of two crashes: its neighbour is a spare from then on, and takes the place of the next one that crashes",
        ranks=4,
        on_loss="wait",
        steps=60,
        settings={"nodes": "2-4:2"},
        moves=(crash(1, at_step(10)), crash(1, at_step(20, start=2), start=2)),
        needs_sandbox=True,
        expect=Expect(
            classes=("node", "node"),
            avoided=True,
            attempts=1,
            starts=3,
            sizes=(4, 2, 2),
            rungs=("shrink", "swap"),
            steps_lost_max=16,
        ),
    ),
    Scenario(
        "shrink-inside-two-units",
        "A node of each of two units crashes at once: the whole unit goes on, and their neighbours form another",
        ranks=6,
        nodes=6,
        on_loss="wait",
        settings={"nodes": "2-6:2"},
        moves=(crash(1, at_step(10)), crash(3, at_step(10))),
        needs_sandbox=True,
        expect=Expect(
            classes=("node",),
            blamed="hurt",
            avoided=True,
            attempts=1,
            starts=2,
            sizes=(6, 4),
            rungs=("shrink",),
            steps_lost_max=8,
        ),
    ),
    Scenario(
        "shrink-inside-provokes",
        "At three nodes the script cannot divide its batch: that size is put aside, and two nodes of the same job go on",
        ranks=4,
        on_loss="wait",
        settings={"nodes": "2-4"},
        faults=(Fault("user-bug", tuple(range(1, 31)), rank=-1, starts=(2,)),),
        moves=(crash(3, at_step(10)),),
        needs_sandbox=True,
        expect=Expect(
            classes=("node", "user-code"),
            attempts=1,
            starts=3,
            sizes=(4, 3, 2),
            rungs=("shrink", "shrink"),
            steps_lost_max=8,
        ),
    ),
    Scenario(
        "queue-stop",
        "A node loses power, strangers have all others, and the run may not wait for long: it stops and says why",
        on_loss="wait",
        settings={**QUICK_FENCE, "queue-timeout": "6s", "on-queue-timeout": "stop"},
        moves=(occupy(1), crash(1, at_step(10))),
        needs_sandbox=True,
        linger_s=3.0,
        expect=Expect(
            end="stopped",
            classes=("node",),
            blamed="hurt",
            attempts=2,
            starts=1,
            reason="longer than queue-timeout",
        ),
    ),
    Scenario(
        "queue-wait",
        "A node loses power, strangers have all others: the run waits, is told to have waited, and goes on when they leave",
        on_loss="wait",
        settings={**QUICK_FENCE, "queue-timeout": "5s", "on-queue-timeout": "notify"},
        moves=(occupy(1), crash(1, at_step(10)), vacate(lambda sight: len(sight.run.warnings) >= 2)),
        needs_sandbox=True,
        expect=Expect(
            classes=("node",),
            blamed="hurt",
            avoided=True,
            attempts=2,
            starts=2,
            sizes=(3, 3),
            steps_lost_max=8,
        ),
    ),
    Scenario(
        "queue-starved",
        "The node that the run avoids is the last one that it could have: it is given back, and the run goes on",
        faults=(Fault("gpu-lost", (10,), rank=1, starts=(1,)),),
        settings={**QUICK_FENCE, "queue-timeout": "5s"},
        moves=(
            occupy(1),
            Move(
                "an administrator drains another node",
                both(struck, in_state("queued")),
                lambda hands, sight: hands.drain(AWAY(sight)),
            ),
            vacate(after(1.0)),
        ),
        needs_sandbox=True,
        expect=Expect(classes=("hardware-gpu",), attempts=2, starts=2, sizes=(3, 3), steps_lost_max=8),
    ),
    Scenario(
        "shrink-and-grow",
        "A run that went on smaller is at full size again after the next fault, when a node has come free",
        on_loss="wait",
        kill_on_bad_exit=True,
        steps=60,
        settings={**QUICK, "nodes": "2-3", "recover": "resubmit"},
        faults=(Fault("killed", (40,), rank=1, starts=(2,)),),
        moves=(
            occupy(1),
            crash(1, at_step(10)),
            vacate(both(in_state("running", "suspect"), both(on_attempt(2), at_step(20, start=2)))),
        ),
        needs_sandbox=True,
        timeout_s=240.0,
        # Slurm 26.05 says DUE TO TASK FAILURE of a step whose task was killed, 24.11 does not.
        expect=Expect(
            classes=("node", "unknown|network|user-code"), attempts=3, sizes=(3, 2, 3), steps_lost_max=12
        ),
    ),
)
