"""Which nodes share a leaf switch or an NVLink block, from `scontrol show topology`. (pure)

topology/tree prints `SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[0-1]` for each switch (seen on 22.05), the switches above the leaves with a
higher level; topology/block prints `BlockName=b0 BlockIndex=0 Nodes=n[0-17] BlockSize=18`, and `AggregatedBlock=` for blocks of
blocks (Slurm's source, src/plugins/topology). A cluster without topology says `No topology information available` on stderr.
"""

from __future__ import annotations

import re

from ftrun.slurm.client.nodeset import expand

__all__ = ["is_none", "leaves"]

_LEAF = re.compile(r"^(?:SwitchName=(\S+) Level=0|BlockName=(\S+))\b.*? Nodes=(\S+)", re.MULTILINE)


def leaves(text: str) -> dict[str, tuple[str, ...]]:
    """Leaf switch or block -> its nodes; {} where there is no topology. A line that is no topology is passed over."""
    found = {}
    for switch, block, nodes in _LEAF.findall(text):
        try:
            found[switch or block] = expand(nodes)
        except ValueError:
            continue
    return found


def is_none(stderr: str) -> bool:
    """The controller did answer: there is no topology."""
    return "No topology information available" in stderr
