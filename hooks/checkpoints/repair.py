"""Which shards of a broken checkpoint have an identical twin, and what proves it. (pure)

How it thinks. Ranks of one data-parallel group often save the same bytes, each under its own name. A twin may stand in for a shard that is torn or missing only where
bytes prove it, for a shard that is nearly right is worse than an older checkpoint:

- ftrun's manifest of this very checkpoint has the lost shard's checksum, and a file that has it is there; or
- an earlier checkpoint of the run that is whole has both under the same names and with the same checksum, and here all files that were the same there
  and are still there are the same again.

Names only say who may be a twin: those that differ in the number of a rank. They prove nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

__all__ = ["Plan", "plan", "twins"]

NUMBERED = re.compile(r"(rank|replica|dp|proc|process|worker|node|host|part)([-_.]?)[0-9]+", re.IGNORECASE)


class Plan(NamedTuple):
    """The shard to read in the place of each broken one, and what proves it; `why_not`: why there is no plan ("" = there is one)."""

    instead: Mapping[str, str]
    proof: str
    why_not: str = ""


def twins(name: str, names: Collection[str]) -> list[str]:
    """The other names that may hold the same bytes."""
    shape = _shape(name)
    if shape == name:
        return []
    return sorted(other for other in names if other != name and _shape(other) == shape)


def plan(
    broken: Collection[str],
    *,
    here: Mapping[str, str],
    listed: Mapping[str, str],
    earlier: Mapping[str, str],
) -> Plan:
    """Find a twin for each broken shard, all or none.

    Checksums by name ("" or absent = not known): `here` of the sound files of this checkpoint, `listed` of its manifest, `earlier` of a whole
    checkpoint of the same run.
    """
    instead, proofs = {}, []
    for name in sorted(broken):
        source = _by_manifest(name, here, listed)
        if source:
            proofs.append("the manifest's checksum")
        else:
            source = _by_earlier(name, here, earlier)
            proofs.append("the same bytes in an earlier checkpoint")
        if not source:
            return Plan({}, "", f"nothing proves that another file is the same as {name}")
        instead[name] = source
    return Plan(instead, " and ".join(dict.fromkeys(proofs)))


def _by_manifest(name: str, here: Mapping[str, str], listed: Mapping[str, str]) -> str:
    wanted = listed.get(name, "")
    return next((other for other in sorted(here) if wanted and here[other] == wanted), "")


def _by_earlier(name: str, here: Mapping[str, str], earlier: Mapping[str, str]) -> str:
    then = earlier.get(name, "")
    same = [other for other in twins(name, here) if then and earlier.get(other) == then]
    return same[0] if same and len({here[other] for other in same}) == 1 else ""


def _shape(name: str) -> str:
    return NUMBERED.sub(r"\1\2#", name)
