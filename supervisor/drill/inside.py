"""Drills of what goes on inside one allocation: restarts in place, spares, hangs, leaving in good order. (pure)"""

from __future__ import annotations

from collections.abc import Mapping

from ftrun.supervisor.drill.moves import (
    after,
    at_step,
    both,
    crash,
    crash_node,
    freeze,
    ftrun_command,
    in_state,
    kill_agent,
    saved,
    saving,
    spare,
    started,
    thaw,
)
from ftrun.supervisor.drill.terms import Expect, Fault, Scenario

__all__ = ["INSIDE"]

BAD_FIRST_GPU = Fault("gpu-lost", (10,), rank=0, sticky=True)
KILLED = Fault("killed", (14,), rank=1, starts=(1,))
QUICK_HANGS: Mapping[str, str] = {"hang-min": "5s", "hang-max": "20s", "end-wait": "4s"}

INSIDE: tuple[Scenario, ...] = (
    Scenario(
        "rank-killed",
        "A rank is killed, and the script starts again in place",
        faults=(KILLED,),
        quick=True,
        expect=Expect(
            classes=("unknown|node|user-code|killed",),
            attempts=1,
            starts=2,
            rungs=("step",),
            steps_lost_max=4,
        ),
    ),
    Scenario(
        "swap-crash",
        "A node loses power, and a spare takes its place",
        spares=1,
        on_loss="wait",
        moves=(crash(1, at_step(10)),),
        needs_sandbox=True,
        quick=True,
        expect=Expect(
            classes=("node",),
            blamed="hurt",
            avoided=True,
            attempts=1,
            starts=2,
            rungs=("swap",),
            steps_lost_max=8,
        ),
    ),
    Scenario(
        "swap-rank-0",
        "The node of rank 0 loses its GPU while the script goes on there, and a spare takes its place",
        spares=1,
        faults=(BAD_FIRST_GPU,),
        expect=Expect(
            classes=("hardware-gpu",),
            blamed="hurt",
            avoided=True,
            attempts=1,
            starts=2,
            rungs=("swap",),
            steps_lost_max=4,
        ),
    ),
    Scenario(
        "swap-twice",
        "Two faults in a row: rank 0 loses its GPU, then the node of the next rank 0 loses power",
        ranks=2,
        spares=2,
        on_loss="wait",
        faults=(BAD_FIRST_GPU,),
        moves=(crash(0, at_step(14, start=2), start=2),),
        settings={"end-wait": "4s"},
        needs_sandbox=True,
        expect=Expect(
            classes=("hardware-gpu", "node"),
            avoided=True,
            attempts=1,
            starts=3,
            rungs=("swap", "swap"),
            steps_lost_max=12,
        ),
    ),
    Scenario(
        "fault-in-recovery",
        "A node loses power, and the spare that takes its place does so before its first step",
        ranks=2,
        spares=2,
        on_loss="wait",
        moves=(crash(1, at_step(10)), crash(1, started(2), start=2)),
        needs_sandbox=True,
        expect=Expect(
            classes=("node", "node"), avoided=True, attempts=1, rungs=("swap", "swap"), steps_lost_max=12
        ),
    ),
    Scenario(
        "spare-bad-too",
        "A spare is dead before it is needed: the next one is taken",
        ranks=2,
        spares=2,
        on_loss="wait",
        moves=(crash_node(spare(0), at_step(6)), crash(1, at_step(12))),
        needs_sandbox=True,
        expect=Expect(
            classes=("node",), avoided=True, attempts=1, starts=2, rungs=("swap",), steps_lost_max=8
        ),
    ),
    Scenario(
        "no-spare-left",
        "The only spare is dead when it is needed: a new job",
        spares=1,
        on_loss="wait",
        moves=(crash_node(spare(0), at_step(6)), crash(1, at_step(12))),
        settings={"fence-wait": "8s"},
        nodes=6,
        needs_sandbox=True,
        expect=Expect(
            classes=("node",), avoided=True, attempts=2, starts=2, rungs=("resubmit",), steps_lost_max=8
        ),
    ),
    Scenario(
        "batch-node-crash",
        "The node on which the script itself runs loses power, and Slurm lets the job go on without it",
        spares=1,
        on_loss="wait",
        moves=(crash(0, at_step(10)),),
        settings={"fence-wait": "8s"},
        nodes=6,
        needs_sandbox=True,
        timeout_s=240.0,
        expect=Expect(
            classes=("node",), blamed="hurt", avoided=True, attempts=2, rungs=("resubmit",), steps_lost_max=8
        ),
    ),
    Scenario(
        "swap-frozen",
        "A node freezes, a spare takes its place, and the node wakes up beside it",
        spares=1,
        on_loss="wait",
        moves=(freeze(1, at_step(10)), thaw(1, saved(2))),
        steps=60,
        needs_sandbox=True,
        linger_s=2.0,
        expect=Expect(classes=("node",), blamed="hurt", avoided=True, attempts=1, starts=2, rungs=("swap",)),
    ),
    Scenario(
        "swap-frozen-writer",
        "Rank 0, away from the batch node, freezes while it writes a checkpoint, and wakes up beside its successor",
        ranks=2,
        spares=2,
        on_loss="wait",
        save_s=1.5,
        steps=40,
        faults=(BAD_FIRST_GPU,),
        moves=(freeze(0, lambda sight: saving(sight, start=2), start=2), thaw(0, saved(3), start=2)),
        settings={"end-wait": "4s"},
        needs_sandbox=True,
        linger_s=2.0,
        timeout_s=240.0,
        expect=Expect(
            classes=("hardware-gpu", "node"), avoided=True, attempts=1, starts=3, rungs=("swap", "swap")
        ),
    ),
    Scenario(
        "hang-silent",
        "A rank hangs in front of a collective, and nothing says so",
        faults=(Fault("hang", (30,), rank=1, starts=(1,)),),
        beat=True,
        steps=40,
        settings=QUICK_HANGS,
        expect=Expect(
            classes=("hang",),
            blamed="hurt",
            attempts=1,
            starts=2,
            rungs=("step",),
            steps_lost_max=4,
            ended_by_us=True,
        ),
    ),
    Scenario(
        "straggler",
        "A node becomes slow, and a spare takes its place at a checkpoint",
        spares=1,
        beat=True,
        faults=(Fault("slow", (30,), rank=1, sticky=True),),
        steps=300,
        every=20,
        step_s=0.1,
        settings={"straggler": "swap", "save-signal": "USR1"},
        timeout_s=240.0,
        expect=Expect(
            avoided=True,
            attempts=1,
            starts=2,
            classes=("hardware-other|node|unknown",),
            rungs=("swap",),
            steps_lost_max=2,
        ),
    ),
    Scenario(
        "dying-gasp",
        "A rank is lost, the others are asked for a last checkpoint, and no step is lost",
        faults=(Fault("hang", (30,), rank=1, starts=(1,)),),
        beat=True,
        steps=40,
        every=1000,
        settings={**QUICK_HANGS, "save-signal": "USR1", "gasp-wait": "15s"},
        expect=Expect(classes=("hang",), attempts=1, starts=2, rungs=("step",), steps_lost_max=0),
    ),
    Scenario(
        "time-limit-saved",
        "The time limit is near: a checkpoint is asked for, and the run goes on in a new job",
        sbatch=("--time=5",),
        steps=1100,
        every=5000,
        step_s=0.3,
        settings={"save-signal": "USR1", "save-wait": "20s"},
        expect=Expect(classes=("timelimit",), blamed="nobody", attempts=2, steps_lost_max=300),
        timeout_s=600.0,
    ),
    Scenario(
        "maintenance-pause",
        "A run is paused: it saves, gives its nodes back, and comes back later without losing a step",
        steps=60,
        every=1000,
        settings={"save-signal": "USR1", "save-wait": "20s"},
        moves=(
            ftrun_command("an operator says ftrun pause", "pause", "{run}", when=at_step(12)),
            ftrun_command(
                "an operator says ftrun resume", "resume", "{run}", when=both(in_state("stopped"), after(2.0))
            ),
        ),
        expect=Expect(attempts=2, steps_lost_max=40),
    ),
    Scenario(
        "link-flap-stopped",
        "A link goes down and up, and training does not go on",
        faults=(Fault("link-lost", (14,), rank=1, starts=(1,)),),
        settings={"end-wait": "4s"},
        expect=Expect(
            classes=("network",), attempts=1, starts=2, rungs=("step",), steps_lost_max=4, ended_by_us=True
        ),
    ),
    Scenario(
        "agent-killed",
        "The agent is killed, then a rank: the supervisor resubmits",
        faults=(KILLED,),
        moves=(kill_agent(at_step(6)),),
        settings={"fence-wait": "8s"},
        expect=Expect(
            classes=("unknown|node|user-code|killed",), attempts=2, rungs=("resubmit",), steps_lost_max=4
        ),
    ),
    Scenario(
        "rank-rejoins",
        "A rank is killed and comes back alone; the others keep their processes",
        rejoin=True,
        faults=(Fault("killed", (14,), rank=1, once=True),),
        expect=Expect(
            classes=("unknown|node|user-code|killed",),
            attempts=1,
            starts=1,
            rungs=("rank",),
            stayed=True,
            steps_lost_max=0,
        ),
    ),
    Scenario(
        "rank-0-rejoins",
        "The first rank is killed and comes back alone",
        rejoin=True,
        faults=(Fault("killed", (14,), rank=0, once=True),),
        expect=Expect(
            classes=("unknown|node|user-code|killed",),
            attempts=1,
            starts=1,
            rungs=("rank",),
            stayed=True,
            steps_lost_max=0,
        ),
    ),
)
