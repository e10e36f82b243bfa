"""Which nodes share a leaf switch or an NVLink block, from `scontrol show topology`. (pure)

topology/tree prints `SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[0-1]` for each switch (seen on 22.05), with a
higher level above the leaves; topology/block prints `BlockName=b0 BlockIndex=0 Nodes=n[0-17] BlockSize=18`,
and `AggregatedBlock=` for blocks of blocks (Slurm's source, src/plugins/topology). A cluster without topology
prints `No topology information available` on stderr.
"""

from __future__ import annotations

import re

from ftrun.slurm.client.nodeset import expand

_LEAF = re.compile(r"^(?:SwitchName=(\S+) Level=0|BlockName=(\S+))\b.*? Nodes=(\S+)", re.MULTILINE)


def parse_topology(text: str) -> dict[str, tuple[str, ...]]:
    """Leaf switch or block -> its nodes; {} without topology. Other lines are skipped."""
    found = {}
    for switch, block, nodes in _LEAF.findall(text):
        try:
            found[switch or block] = expand(nodes)
        except ValueError:
            continue
    return found


def is_none(stderr: str) -> bool:
    """Whether the controller answered that there is no topology."""
    return "No topology information available" in stderr
