"""`mount-present`: what this node must have mounted is mounted. (I/O)

How it thinks. A path whose mount is missing is an empty folder on the local disk: a job starts there, finds no data, or worse fills
the root disk with checkpoints that no other node sees. So the table of mounts is asked, not the folder. What must be mounted is what the
site names and what /etc/fstab promises for network file systems (unless `noauto` or `nofail`, which say that it need not be).

Thresholds: `expected`, mount points (none: fstab's); `fstab` whether fstab counts (yes). Automounts count as mounted: autofs answers
when touched. Format of fstab: fstab(5).

Checked against: tables of mounts in the format of proc(5) as Linux 6.1 prints them, fstab(5) in all its forms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks.findings import BAD, OK, SKIPPED, Check, Finding
from ftrun.hooks.machine import Machine
from ftrun.hooks.mounts import Mount, is_network, parsed, table

__all__ = ["CHECK", "Facts", "judge"]

NAME = "mount-present"


class Facts(NamedTuple):
    """What is mounted, and the text of /etc/fstab ("" where there is none)."""

    mounts: tuple[Mount, ...]
    fstab: str


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> Facts:
    """The tables; no mount is touched."""
    return Facts(table(machine), (machine.read("/etc/fstab") or "") if thresholds["fstab"] else "")


def judge(facts: Facts, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad for each mount point that is expected and not in the table."""
    expected = dict.fromkeys(thresholds["expected"], "the site expects it")
    for one in _promised(facts.fstab):
        expected.setdefault(one.target, "/etc/fstab has it")
    if not expected:
        return [Finding(NAME, SKIPPED, "no mount is expected")]
    there = {one.target.rstrip("/") or "/" for one in facts.mounts}
    # An automount stands for what lies below it.
    lazy = tuple(one.target.rstrip("/") + "/" for one in facts.mounts if one.kind == "autofs")
    missing = [path for path in expected if path.rstrip("/") not in there and not path.startswith(lazy)]
    missing = [path for path in missing if path != "/"]
    if not missing:
        return [Finding(NAME, OK, f"{len(expected)} expected mount(s) are mounted", value=len(expected))]
    return [
        Finding(NAME, BAD, f"{path} is not mounted: {expected[path]}", "storage", path) for path in missing
    ]


def _promised(fstab: str) -> list[Mount]:
    lines = [" ".join(line.split()) for line in fstab.splitlines() if not line.lstrip().startswith("#")]
    return [
        one
        for one in parsed("\n".join(lines))
        if is_network(one) and not {"noauto", "nofail"} & set(one.options)
    ]


CHECK = Check(
    name=NAME,
    title="What must be mounted is mounted",
    tier="fast",
    fault="storage",
    needs=(),
    limit_s=3.0,
    thresholds={"expected": (), "fstab": True},
    probe=probe,
    judge=judge,
)
