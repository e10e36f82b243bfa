"""How simulated nodes answer who asks for the stacks of their ranks: the supervisor, or the agent in the job. (I/O)

A node writes the table that `ftrun-hook stacks` writes: ranks of a start that stands still wait in a collective, where they waited; those of any other
are elsewhere at each look. A node that does not answer has no table. What takes the supervisor seconds is an event of its own, so the tick goes on meanwhile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fake_slurm.cluster import MemoryCluster
from tests.fake_slurm.records import Launch
from tests.fake_slurm.steps import MemorySteps

if TYPE_CHECKING:
    from tests.simulation.world import World

TAKES_S = 4.0
WAITS = "all_reduce (distributed/distributed_c10d.py:2488)"


def beside(world: World) -> Callable[[Callable[[], None]], None]:
    """What a supervisor has done beside its loop happens some seconds later."""
    return lambda deed: world.clock.after(TAKES_S, deed)


def steps_of(world: World) -> MemorySteps:
    """Steps that nothing of a plan's client befalls."""
    cluster = MemoryCluster(world.engine, seed=world.plan.seed)
    return MemorySteps(
        cluster, lambda _seconds: None, lambda launch, node, script: write_stacks(world, launch, node, script)
    )


def write_stacks(world: World, launch: Launch, node: str, script: str) -> list[str]:
    """Write the node's table if `script` asks for stacks, and return the node's answer; [] for any other script and from a blind node."""
    found = re.search(r" stacks .*--out (\S+)", script)
    if found is None or world.nodes_blind:
        return []
    start = next((one for one in reversed(world.laws.starts) if one.host(node) is launch), None)
    stands = start is not None and (start.hung or start.stuck_s is not None)
    row = {
        "rank": str((start.nodes if start is not None and node in start.nodes else launch.nodes).index(node)), "pid": 1, "digest": "same" if stands else str(world.clock.now()),
        "moved": not stands, "state": "S", "cpu_s": 0.0, "bytes": 0, "cpu_all_s": 1.0, "bytes_all": 0, "top": [WAITS],
    }  # fmt: skip
    folder = Path(found[1])
    folder.mkdir(parents=True, exist_ok=True)
    table = {"at_s": world.clock.now(), "apart_s": 3.0, "ranks": [row]}
    (folder / f"{node}.json").write_text(json.dumps(table))
    return ["taken"]
