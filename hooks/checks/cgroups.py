"""`cgroups`: the kernel's control groups that Slurm needs are there and not used up. (I/O)

How it thinks. A node that was booted with another kernel command line has no memory controller, and slurmd there starts jobs without limits, or none.
What is needed is read from Slurm's own cgroup.conf where it lies on the node. The kernel has numbers for 65,535 memory groups; groups that ended and
whose memory is still in the cache keep theirs, so a node may run out of them after months and then refuses every job with "No space left on device".

Thresholds: `expected` controllers (none: those that `conf` asks for); `conf` ("": /etc/slurm/cgroup.conf); `percent` 80 of the groups is degraded, `bad_percent` 99 bad.

Files: the kernel's cgroup-v2 and cgroup-v1 documents: cgroup.controllers, cgroup.stat (nr_descendants, nr_dying_descendants), cgroup.max.descendants, /proc/cgroups; cgroup.conf(5) of Slurm.

Checked against: /proc/cgroups of Linux 6.18 (version 1); trees built after the kernel's documents (version 2); cgroup.conf(5) of Slurm 22.05.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks.findings import BAD, DEGRADED, OK, SKIPPED, Check, Finding
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "Facts", "judge"]

NAME = "cgroups"
FAULT = "node"
TREE = "/sys/fs/cgroup"
USUAL_CONF = "/etc/slurm/cgroup.conf"
MEMORY_GROUPS_MAX = 65_535
# What cgroup.conf calls it, and the controller behind it. Devices have no controller in version 2.
NEEDED = {"constraincores": "cpuset", "constrainramspace": "memory", "constrainswapspace": "memory", "constraindevices": "devices"}  # fmt: skip


class Facts(NamedTuple):
    """The hierarchy's version, its controllers, groups that count against the limit, the limit, and the text of cgroup.conf."""

    version: int
    controllers: tuple[str, ...]
    groups: int
    groups_max: int
    conf: str


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> Facts:
    """Version 2 where its root has controllers, else version 1."""
    conf = machine.read(thresholds["conf"] or USUAL_CONF) or ""
    unified = machine.peek(f"{TREE}/cgroup.controllers")
    if unified is not None:
        counts = dict(re.findall(r"^(nr_\w+) (\d+)", machine.peek(f"{TREE}/cgroup.stat") or "", re.MULTILINE))
        groups = int(counts.get("nr_descendants", 0)) + int(counts.get("nr_dying_descendants", 0))
        told = (machine.peek(f"{TREE}/cgroup.max.descendants") or "").strip()
        limit = min(int(told), MEMORY_GROUPS_MAX) if told.isdigit() else MEMORY_GROUPS_MAX
        return Facts(2, tuple(unified.split()), groups, limit, conf)
    rows = [line.split() for line in (machine.peek("/proc/cgroups") or "").splitlines() if line[:1] != "#"]
    # subsystem, hierarchy (0: not mounted), number of groups, enabled
    mounted = {row[0]: int(row[2]) for row in rows if len(row) == 4 and row[1] != "0" and row[3] == "1"}
    return Facts(1 if mounted else 0, tuple(mounted), mounted.get("memory", 0), MEMORY_GROUPS_MAX, conf)


def judge(facts: Facts, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Degraded for a controller that is missing, or when most groups are used up; bad when all are."""
    expected = tuple(thresholds["expected"]) or _asked_for(facts)
    if not facts.version and not expected:
        return [Finding(NAME, SKIPPED, "no control groups are mounted here, and none are asked for")]
    found = [
        Finding(NAME, DEGRADED, f"there is no {name} controller, and Slurm is to use it", FAULT, name)
        for name in expected
        if name not in facts.controllers
    ]
    share = 100 * facts.groups / facts.groups_max if facts.groups_max else 0.0
    message = f"version {facts.version}, {facts.groups} of {facts.groups_max} groups"
    for severity, percent in ((BAD, thresholds["bad_percent"]), (DEGRADED, thresholds["percent"])):
        if share > percent:
            found.append(Finding(NAME, severity, message, FAULT, "groups", (), facts.groups, "groups"))
            break
    told = f"{message}, controllers {' '.join(sorted(facts.controllers)) or 'none'}"
    return found or [Finding(NAME, OK, told, value=facts.groups, unit="groups")]


def _asked_for(facts: Facts) -> tuple[str, ...]:
    """The controllers that the lines of cgroup.conf need."""
    lines = re.findall(r"^\s*(\w+)\s*=\s*(\w+)", facts.conf, re.MULTILINE)
    asked = {NEEDED[key.lower()] for key, value in lines if value.lower() == "yes" and key.lower() in NEEDED}
    return tuple(sorted(asked - ({"devices"} if facts.version == 2 else set())))


CHECK = Check(
    name=NAME,
    title="The control groups that Slurm needs are there and not used up",
    tier="fast",
    fault=FAULT,
    needs=(),
    limit_s=4.0,
    thresholds={"expected": (), "conf": "", "percent": 80, "bad_percent": 99},
    probe=probe,
    judge=judge,
)
