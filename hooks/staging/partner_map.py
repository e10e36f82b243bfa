"""Which node keeps whose copies (`ring.json`), and the reports of the nodes (`copies/<node>.json`). (I/O)

The agent replaces `ring.json` in the attempt's folder whenever a start begins or nodes are lost. Each node
reports which of its parts its partner has, and whose copies it keeps.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ftrun.hooks.runtime import node_report

VERSION = 1
BYTES_MAX = 1 << 24


class Ring(NamedTuple):
    """The agent's instructions. `token`: the start that they are for; `to`: node -> its partner; `jobs`: node
    -> its Slurm job; `lost`: nodes that are gone, whose copies are to be published; `kept`: lost node -> the
    holder of its copies; `limit`: how much of a node's memory may be taken.
    """

    token: str = ""
    to: Mapping[str, str] = {}
    jobs: Mapping[str, str] = {}
    lost: Sequence[str] = ()
    limit: str = "40%"
    kept: Mapping[str, str] = {}


class Copies(NamedTuple):
    """A node's report: `partner` has `given`, (token, set) each; it has `kept`, (node, token, set) each.
    `way`: how the last part was sent, at `bytes_per_s`; `why`: the last error.
    """

    partner: str = ""
    given: Sequence[tuple[str, str]] = ()
    kept: Sequence[tuple[str, str, str]] = ()
    way: str = ""
    bytes_per_s: float = 0.0
    linked_bytes: int = 0
    why: str = ""


def put_ring(attempt_folder: str, ring: Ring) -> None:
    """Write the ring. Raises OSError."""
    node_report.write_json(f"{attempt_folder}/ring.json", {"version": VERSION, **ring._asdict()})


def read_ring(attempt_folder: str) -> Optional[Ring]:
    """The ring; None if there is none or it is invalid."""
    told = _read(f"{attempt_folder}/ring.json")
    try:
        return Ring(**{name: told[name] for name in Ring._fields if name in told}) if told else None
    except TypeError:
        return None


class RingFile:
    """The ring, read again only when it changed: a thousand nodes look once a second. Opening the file makes
    a network file system revalidate its attributes.
    """

    def __init__(self, attempt_folder: str) -> None:
        self._folder = attempt_folder
        self._seen: tuple[int, int, int] = (0, 0, 0)
        self.ring = Ring()

    def look(self) -> Ring:
        """The present ring; the last one if it cannot be read."""
        with contextlib.suppress(OSError), open(f"{self._folder}/ring.json", "rb") as stream:
            fact = os.fstat(stream.fileno())
            now = (fact.st_ino, fact.st_mtime_ns, fact.st_size)
            if now != self._seen:
                self._seen, self.ring = now, read_ring(self._folder) or self.ring
        return self.ring


def put_copies(attempt_folder: str, node: str, copies: Copies) -> None:
    """Write a node's report. Raises OSError."""
    if os.path.isdir(attempt_folder):  # a removed run folder stays removed
        os.makedirs(f"{attempt_folder}/copies", mode=0o700, exist_ok=True)
        node_report.write_json(
            f"{attempt_folder}/copies/{node}.json", {"version": VERSION, **copies._asdict()}
        )


def read_copies(attempt_folder: str, node: str) -> Copies:
    """A node's report; an empty one if there is none or it is invalid."""
    told = _read(f"{attempt_folder}/copies/{node}.json")
    try:
        found = Copies(**told)
        return found._replace(
            given=[(str(token), str(name)) for token, name in found.given],
            kept=[(str(of), str(token), str(name)) for of, token, name in found.kept],
        )
    except (TypeError, ValueError):
        return Copies()


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as stream:
            told = json.loads(stream.read(BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) and told.pop("version", None) == VERSION else {}
