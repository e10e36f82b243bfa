"""One entry of the node history: a fact about one node or several. (pure)

The ledger (`nodes/ledger`) stores entries; `nodes/history` folds them into a record of each node, in any
order and with duplicates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ftrun.slurm.records import dataclass

_PCI = re.compile(r"\b(?:0000)?([0-9a-f]{4}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.0)?(?![\w.:])")


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """One fact about one node or several. `at_s` is Unix time.

    `what`: incident (detail: incident, title, evidence, attempt_nodes, strike), excluded (detail: incident,
    until_s; by = the person who did it), drained (incident, reason, by), returned (a recheck gave the node
    back), left (a recheck left it for a person), released (by), check (worst, tier), served (hours); any
    other word is kept as history. `device` is a place in the node (PCI address, port), `serial` what sits
    there (serial number, UUID).
    """

    at_s: float
    what: str
    nodes: tuple[str, ...]
    id: str = ""
    run: str = ""
    signature: str = ""
    fault: str = ""
    device: str = ""
    serial: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def by(self) -> str:
        """The person who did it; "" = ftrun."""
        return str(self.detail.get("by", ""))


def canonical_device(device: str) -> str:
    """One name for a place: `00000000:3B:00.0`, `PCI:0000:3b:00`, `0 (0000:3b:00.0)` -> `0000:3b:00`."""
    plain = device.strip().lower()
    found = _PCI.search(plain)
    return ":".join(found.groups()) if found else plain


def finite_number(value: object) -> float | None:
    """A finite number, else None. Users write reports, so the value may be anything."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
