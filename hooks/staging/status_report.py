"""The report of a node on its staged checkpoints, and the small files that a node reads. (I/O)

People read the report to find out why there is no checkpoint. So a refused set stays in it with the reason,
even after it was dropped.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ftrun.hooks.runtime import formats
from ftrun.hooks.runtime.start_processes import token_of
from ftrun.hooks.staging import publish, sealing
from ftrun.hooks.staging.copy import is_full, read_text
from ftrun.hooks.staging.local import LocalPart

NAME_MAX_BYTES = 180  # most file systems know 255
READ_MAX_BYTES = 1 << 24
MAY_COME = "its format does not tell whether it is whole, and a node that has nothing of it yet is waited for"
GONE = "it did not become a checkpoint, and was cleared away"
UNSURE = "its start broke down before all nodes had said that their parts are of the same save"


def rows(parts: Iterable[LocalPart], refused: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row for each part in order of age. `refused`: set -> why, of all refused sets, dropped ones too."""
    found = [_row(part) for part in parts if part.files or part.seal]
    known = {row["set"] for row in found}
    gone = [
        {"set": name, "start": "", "state": publish.REFUSED, "size_bytes": 0, "sealed_s": 0.0, "why": why}
        for name, why in refused.items()
        if name not in known
    ]
    return gone + sorted(found, key=lambda row: (token_of(row["start"]) or (0, 0), row["sealed_s"]))


def _row(part: LocalPart) -> dict[str, Any]:
    state = "sealed" if part.seal is not None else "writing"
    if part.is_published:
        state = "published"
    elif part.state in (publish.REFUSED, sealing.GIVEN_UP):
        state = part.state
    return {
        "set": part.name, "start": part.token, "state": state, "size_bytes": part.size_bytes,
        "sealed_s": part.seal.sealed_s if part.seal else 0.0, "why": part.why,
    }  # fmt: skip


def alias_note(name: str, path: str) -> str:
    """A note that a set is published under another name than its own; "" if it is not. `path`: where."""
    own = os.path.basename(path)
    return f"it is published as {own}: {name} is not this run's there" if own not in ("", name) else ""


def error_text(error: OSError, to: str) -> str:
    """An error of the shared file system in words."""
    if is_full(error):
        return f"{to} is full ({error.strerror}): staged checkpoints stay in memory until there is room"
    return f"{to}: {error.strerror or error}"


def record_times(folder: str) -> tuple[tuple[str, int], ...]:
    """The records in a folder with their times of writing."""
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        found = [(one.name, one.stat().st_mtime_ns) for one in entries if not one.name.startswith(".")]
    return tuple(sorted(found))


def nodes_of_start(path: str) -> list[str]:
    """The nodes in the record of a start; none if it is missing or invalid. Raises OSError."""
    found = re.search(r"^nodes=(.+)$", read_text(path, READ_MAX_BYTES), re.MULTILINE)
    with contextlib.suppress(ValueError):
        return formats.expand_node_list(found[1]) if found else []
    return []


def read_link(path: str) -> str:
    """The target of a link; "" without one. Raises OSError."""
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""
