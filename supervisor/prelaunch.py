"""What the checks before a script's start found, as its job wrote it down. (pure)"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ftrun.slurm.records import dataclass

__all__ = ["Held", "parsed"]

SCHEMA = 1
TEXT_CHARS = 400


@dataclass(frozen=True, slots=True)
class Held:
    """What the preflight of a launch found: node -> its worst finding (check, fault, device, message)."""

    bad: Mapping[str, Mapping[str, str]]
    nodes: int


def parsed(table: object, nodes: Collection[str]) -> Held | None:
    """What the record of a preflight says of these nodes (see `hooks/preflight.py`); None where it held no script, or is no such record."""
    if not isinstance(table, Mapping) or table.get("schema") != SCHEMA or table.get("held") is not True:
        return None
    told = table.get("bad")
    if not isinstance(told, Mapping):
        return None
    bad = {
        node: {key: str(finding.get(key, ""))[:TEXT_CHARS] for key in ("check", "fault", "device", "message")}
        for node, finding in told.items()
        if node in nodes and isinstance(finding, Mapping)
    }
    return Held(bad, len(nodes)) if bad else None
