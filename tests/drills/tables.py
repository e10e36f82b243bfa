"""Every drill there is: those of `ftrun drill`, then those that only these tests hold. (I/O)"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ftrun.slurm.client.topology import parse_topology
from ftrun.slurm.records import replace
from ftrun.supervisor.drill.runner import load, user_scenarios
from ftrun.supervisor.drill.scenario import Scenario

__all__ = ["BLOCKS", "all_scenarios", "by_name", "with_blocks"]

BLOCKS = " with blocks"  # behind the name of a drill


@cache
def all_scenarios() -> tuple[Scenario, ...]:
    """The users' table, then the tables beside this file."""
    tables = sorted(Path(__file__).parent.glob("*.toml"))
    return (*user_scenarios(), *(one for table in tables for one in load(table)))


def by_name(name: str) -> Scenario:
    """The drill of that name, or `with_blocks`."""
    found = next(one for one in all_scenarios() if one.name == name.removesuffix(BLOCKS))
    return with_blocks(found) if name.endswith(BLOCKS) else found


def with_blocks(one: Scenario) -> Scenario:
    """The same drill on topology/block: a block for each leaf switch."""
    leaves = parse_topology(one.topology).leaves
    lines = [f"BlockName={leaf} Nodes={','.join(nodes)}" for leaf, nodes in leaves.items()]
    lines.append(f"BlockSizes={min(map(len, leaves.values()))}")
    return replace(one, name=one.name + BLOCKS, topology="\n".join(lines) + "\n")
