"""Links and connections that were lost and came back by themselves. (pure)

How it thinks. At boot, and whenever a switch is touched, links go down and up again; the kernel tells of both, as
Lustre does of its servers. Where that is all that a text
tells of, nothing is wrong. Where something else failed as well, the break may be its reason, and stays what it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ftrun.supervisor.model import Evidence

if TYPE_CHECKING:
    from ftrun.supervisor.signatures import Signature

__all__ = ["healed"]

_LINK = re.compile(
    r"(?P<device>[\w.-]+)\)?:? (?:Port: \d+ |NIC )?[Ll]ink (?:is |status definitely )?(?P<now>[Dd]own|DOWN|[Uu]p|ACTIVE)\b"
)
_LUSTRE = re.compile(r"\bLustre(?:Error)?: .{0,40}\b(?P<device>[\w.]+-(?:MDT|OST)[0-9a-f]{4}[\w-]*)")
_RESTORED = re.compile(r"Connection restored|Recovery over after")


def healed(left: Sequence[tuple[Evidence, Signature]], known: Sequence[tuple[Evidence, Signature]]) -> bool:
    """Whether all that is `left` of the faults are links and servers of which a later line of the same file says that they are up.

    `known` is everything that was seen, remarks included.
    """
    up: dict[tuple[str, str], int] = {}
    for line, _ in known:
        device, is_up = _state(line.text)
        if is_up:
            place = line.file, device
            up[place] = max(up.get(place, 0), line.order)
    return bool(left) and all(_is_up_again(line, up) for line, _ in left)


def _is_up_again(line: Evidence, up: dict[tuple[str, str], int]) -> bool:
    device, is_up = _state(line.text)
    return bool(device) and not is_up and up.get((line.file, device), 0) > line.order


def _state(text: str) -> tuple[str, bool]:
    """The device that a line tells the state of, and whether it is up; "" where it tells of none."""
    server = _LUSTRE.search(text)
    if server:
        return server["device"], bool(_RESTORED.search(text))
    found = _LINK.search(text)
    return (found["device"], found["now"].lower() != "down") if found else ("", False)
