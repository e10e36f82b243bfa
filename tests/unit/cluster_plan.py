"""The plan of a small cluster of a user's own: what tests of `ftrun cluster` begin with. (pure)"""

from __future__ import annotations

from ftrun.slurm.cluster.plan import Host, Plan


def plan_of(*addresses: str) -> Plan:
    """A cluster `mine` of hosts h1, h2, ..., reached over SSH at these addresses; nothing is optional in it."""
    return Plan(
        name="mine",
        token="t",
        user="alice",
        uid=1000,
        folder="/var/tmp/ftrun-1000/mine",
        base_port=17817,
        version=(24, 11),
        bound=True,
        hosts=tuple(
            Host(f"h{n}", address, f"10.0.0.{n}", 8, (1, 4, 2), 1000)
            for n, address in enumerate(addresses, 1)
        ),
        programs={},
        subreaper=(),
    )
