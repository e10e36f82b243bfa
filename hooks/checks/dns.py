"""`dns`: every host of the job resolves. (I/O)

How it thinks. A rank that cannot resolve the first host of the job never joins it, and all the others wait for it until they time out. A
name that no node can resolve is the site's affair, which shows when nodes are compared; here it is bad. An address that is a
loopback is worse than none: the rank then talks to itself.

Thresholds: `hosts` (a list, or Slurm's list of nodes; "" for those of the job around us), `hosts_file` with more, one a line; `limit_s` (4).

Checked against: getaddrinfo of glibc on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks import hosts
from ftrun.hooks.findings import BAD, DEGRADED, OK, SKIPPED, Check, Finding
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "judge"]

NAME = "dns"
FAULT = "network"
NAMED_MAX = 5


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> dict[str, str]:
    """What the resolver says of each host."""
    return hosts.asked(machine, hosts.all_of(machine, thresholds), hosts.resolve, thresholds["limit_s"])


def judge(found: Mapping[str, str], _thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad when a host has no address; degraded when it has this node's loopback only, which is right for this node alone."""
    if not found:
        return [Finding(NAME, SKIPPED, "no hosts are named, and no job is around")]
    lost = [
        f"{host}: {told.lstrip('!')}"
        for host, told in found.items()
        if told == hosts.NO_ANSWER or told[:1] in ("!", "")
    ]
    if lost:
        message = f"{len(lost)} of {len(found)} host(s) do not resolve: {'; '.join(lost[:NAMED_MAX])}"
        return [Finding(NAME, BAD, message, FAULT, "", tuple(lost[:NAMED_MAX]), float(len(lost)), "hosts")]
    selves = [
        host for host, told in found.items() if host != "localhost" and all(map(_is_loopback, told.split()))
    ]
    if len(selves) > 1:
        message = f"{len(selves)} hosts resolve to this node's loopback: {', '.join(selves[:NAMED_MAX])}"
        return [Finding(NAME, DEGRADED, message, FAULT, "", tuple(selves[:NAMED_MAX]))]
    return [Finding(NAME, OK, f"{len(found)} host(s) resolve")]


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


CHECK = Check(
    name=NAME,
    title="Every host of the job resolves",
    tier="fast",
    fault=FAULT,
    needs=(),
    limit_s=10.0,
    thresholds={"hosts": "", "hosts_file": "", "limit_s": 4.0},
    probe=probe,
    judge=judge,
)
