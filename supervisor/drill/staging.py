"""Drills of checkpoints that are staged in the memory of the nodes. (pure)

How it thinks. Where something is to happen between the end of a save and its arrival on disk, publishing is slowed down (`stage-rate`), so that the moment is seconds
long; and the move is made when the drill sees the copies in the memory of the nodes, and nothing on disk.
"""

from __future__ import annotations

from collections.abc import Mapping

from ftrun.supervisor.drill.moves import (
    after,
    at_step,
    both,
    crash,
    fill_disk,
    free_disk,
    held_once,
    held_twice,
    kill_staging_daemons,
    published,
)
from ftrun.supervisor.drill.terms import Expect, Fault, Scenario, Staging

__all__ = ["STAGED"]

SLOW: Mapping[str, str] = {"stage-rate": "64K"}
"""A part of 256 KiB takes four seconds."""

STAGED: tuple[Scenario, ...] = (
    Scenario(
        "stage-node-lost",
        "A node loses power between the save and the disk: its partner has the copy, and no saved step is lost",
        spares=1,
        on_loss="wait",
        steps=60,
        every=20,
        stage=Staging(),
        settings=SLOW,
        moves=(crash(1, held_twice(20, 0, 1, 2)),),
        needs_sandbox=True,
        expect=Expect(
            classes=("node",),
            blamed="hurt",
            avoided=True,
            attempts=1,
            starts=2,
            rungs=("swap",),
            resumed_min=(0, 20),
            published=(20, 40, 60),
        ),
    ),
    Scenario(
        "stage-partner-lost",
        "A node and the one that has its copy lose power at once: the checkpoint before, which is on disk, is taken",
        spares=2,
        nodes=6,
        on_loss="wait",
        steps=100,
        every=40,
        stage=Staging(),
        settings=SLOW,
        moves=(crash(1, both(published(40), held_once(80, 0, 1, 2))), crash(2, after(0.0))),
        needs_sandbox=True,
        timeout_s=300.0,
        expect=Expect(
            classes=("node",),
            avoided=True,
            attempts=(1, 2),
            resumed_min=(0, 40),
            published=(40, 80),
        ),
    ),
    Scenario(
        "stage-memory-full",
        "Staged checkpoints have used up what they may take of the memory: older ones go, saving goes on, and nothing is lost",
        faults=(Fault("killed", (34,), rank=1, starts=(1,)),),
        steps=48,
        stage=Staging(pad_kib=20480),
        settings={"stage-limit": "72M"},
        expect=Expect(
            classes=("unknown",), attempts=1, starts=2, rungs=("step",), steps_lost_max=16, published=(48,)
        ),
        needs_sandbox=True,
    ),
    Scenario(
        "stage-flusher-killed",
        "What publishes is killed again and again: it comes back, and what is on disk is whole at any moment",
        faults=(Fault("killed", (60,), rank=1, starts=(1,)),),
        steps=100,
        every=10,
        stage=Staging(pad_kib=1024),
        moves=(kill_staging_daemons(both(at_step(10), after(1.7)), repeats=True),),
        expect=Expect(classes=("unknown",), attempts=1, starts=2, rungs=("step",), steps_lost_max=40),
        needs_sandbox=True,
    ),
    Scenario(
        "stage-disk-full",
        "The disk is full while it is published to: it waits in memory, and arrives when there is room",
        steps=100,
        every=10,
        stage=Staging(pad_kib=512, disk_mib=32),
        moves=(fill_disk(published(10)), free_disk(both(at_step(50), after(5.0)))),
        expect=Expect(attempts=1, starts=1, steps_lost_max=0, published=(10, 100)),
        needs_sandbox=True,
    ),
    Scenario(
        "stage-spare-receives",
        "A spare takes the place of a node that lost its GPU, and gets its files from memory: nobody reads the disk",
        spares=1,
        faults=(Fault("gpu-lost", (18,), rank=1, sticky=True),),
        stage=Staging(pad_kib=1024),
        expect=Expect(
            classes=("hardware-gpu",),
            blamed="hurt",
            avoided=True,
            attempts=1,
            starts=2,
            rungs=("swap",),
            resumed_min=(0, 12),
            read_from="memory",
            published=(28,),
        ),
        needs_sandbox=True,
    ),
)
