"""Who keeps whose copy, written by the job's agent, and what each node reports of its copies. (I/O)

One file in the attempt's folder, `ring.json`, is written whole by the agent whenever a start begins or nodes
are lost. Each node answers with a file of its own, `copies/<node>.json`: which of its parts the partner has,
and whose copies it keeps.
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
    """What the agent tells the nodes.

    `to`: node -> who keeps its copy; `jobs`: node -> the Slurm job that it lies in; `lost`: nodes that are
    gone, whose copies are to be published; `kept`: lost node -> who has its copies; `token`: of the start
    that this was written for; `limit`: how much of a node's memory may be taken.
    """

    token: str = ""
    to: Mapping[str, str] = {}
    jobs: Mapping[str, str] = {}
    lost: Sequence[str] = ()
    limit: str = "40%"
    kept: Mapping[str, str] = {}


class Copies(NamedTuple):
    """What a node reports.

    `partner` has `given`, (token, set) each; the node has `kept`, (node, token, set) each. `way` is how the
    last part went, at `bytes_per_s`; `why` is what went wrong last.
    """

    partner: str = ""
    given: Sequence[tuple[str, str]] = ()
    kept: Sequence[tuple[str, str, str]] = ()
    way: str = ""
    bytes_per_s: float = 0.0
    linked_bytes: int = 0
    why: str = ""


def put_ring(attempt_folder: str, ring: Ring) -> None:
    """Tell the nodes. Raises OSError."""
    node_report.write_json(f"{attempt_folder}/ring.json", {"version": VERSION, **ring._asdict()})


def read_ring(attempt_folder: str) -> Optional[Ring]:
    """What the agent told last; None where it has told nothing that is understood."""
    told = _read(f"{attempt_folder}/ring.json")
    try:
        return Ring(**{name: told[name] for name in Ring._fields if name in told}) if told else None
    except TypeError:
        return None


class RingFile:
    """What the agent wrote last, read again only when it changed: a thousand nodes look once a second.

    Opening the file makes a network file system look anew.
    """

    def __init__(self, attempt_folder: str) -> None:
        self._folder = attempt_folder
        self._seen: tuple[int, int, int] = (0, 0, 0)
        self.ring = Ring()

    def look(self) -> Ring:
        """The ring now, or as it was where it cannot be read."""
        with contextlib.suppress(OSError), open(f"{self._folder}/ring.json", "rb") as stream:
            fact = os.fstat(stream.fileno())
            now = (fact.st_ino, fact.st_mtime_ns, fact.st_size)
            if now != self._seen:
                self._seen, self.ring = now, read_ring(self._folder) or self.ring
        return self.ring


def put_copies(attempt_folder: str, node: str, copies: Copies) -> None:
    """Tell the agent. Raises OSError."""
    if os.path.isdir(attempt_folder):  # a run's folder that was removed stays removed
        os.makedirs(f"{attempt_folder}/copies", mode=0o700, exist_ok=True)
        node_report.write_json(
            f"{attempt_folder}/copies/{node}.json", {"version": VERSION, **copies._asdict()}
        )


def read_copies(attempt_folder: str, node: str) -> Copies:
    """What a node said last; nothing where it said nothing that is understood."""
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
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) and told.pop("version", None) == VERSION else {}
