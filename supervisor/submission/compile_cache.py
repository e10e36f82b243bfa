"""The compile caches of a run: packs by class of nodes, reports of the nodes; clearing them. (I/O)

Packs describe themselves (`hooks.compile_cache.packs`), so only their headers are read. How warm the last
start was is in the reports that nodes leave with the attempts. Clearing removes the packs and raises an
epoch that every node compares: a node that holds older entries discards them, and a pack that arrives late
is ignored.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ftrun.hooks.compile_cache.packs import Damaged, kind_of, open_pack, pack_names
from ftrun.slurm.records import dataclass
from ftrun.supervisor.config import home
from ftrun.supervisor.store import node_reports
from ftrun.supervisor.store import run_dir as store_run_dir

PLACE = "caches"


@dataclass(frozen=True, slots=True)
class FrameworkShare:
    """What one framework has in the packs of a class: folder name, entries, bytes on a node and in packs."""

    kind: str
    entries: int
    size_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class NodeClass:
    """Nodes that share packs: what they have in common, who wrote last, number of packs, damaged ones."""

    name: str
    facts: Mapping[str, str]
    writers: Mapping[str, str]
    packs: int
    damaged: tuple[str, ...]
    shares: tuple[FrameworkShare, ...]
    written_s: float | None


@dataclass(frozen=True, slots=True)
class CacheFill:
    """How one start found its caches: what was filled in, how much of it was read (None: unknown)."""

    attempt: int
    launch: int
    node: str
    filled: int
    filled_bytes: int
    hits: int | None
    fill_s: float | None
    trouble: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CacheIndex:
    """The caches of a run: folder on the nodes ("" = none), limit, refusal, node classes, last starts."""

    local: str
    limit_bytes: int
    refused: str
    classes: tuple[NodeClass, ...]
    warm: tuple[CacheFill, ...]

    @property
    def stored_bytes(self) -> int:
        """What the packs take in the run's folder."""
        return sum(share.stored_bytes for one in self.classes for share in one.shares)


def read_caches(run_dir: str, attempts: int) -> CacheIndex:
    """The caches of the run in `run_dir`, which had that many attempts. What cannot be read is left out."""
    place = os.path.join(run_dir, PLACE)
    words = _text(os.path.join(place, "where")).rstrip("\n").partition(" ")
    refusal = node_reports.read_json(os.path.join(place, "refused"))
    refused = str(refusal.get("why", "")) if isinstance(refusal, dict) else ""
    classes = tuple(
        _class_of(place, name) for name in _listed(place) if os.path.isdir(os.path.join(place, name))
    )
    limit_bytes = int(words[0]) if words[0].isdigit() else 0
    return CacheIndex(words[2], limit_bytes, refused, classes, tuple(_last_starts(run_dir, attempts)))


def clear_caches(run_dir: str) -> int:
    """Remove all packs and let nodes discard their copies. Returns the bytes freed. Raises OSError."""
    place = os.path.join(run_dir, PLACE)
    if not os.path.isdir(place):
        return 0
    before = _text(os.path.join(place, "epoch")).strip()
    number = (int(before) if before.isdigit() else 0) + 1
    home.write_atomically(os.path.join(place, "epoch"), f"{number}\n".encode())
    freed = 0
    for name in _listed(place):
        for pack in pack_names(os.path.join(place, name)) if os.path.isdir(os.path.join(place, name)) else ():
            path = os.path.join(place, name, pack)
            freed += os.stat(path).st_size
            os.unlink(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(place, "refused"))
    return freed


def _class_of(place: str, name: str) -> NodeClass:
    facts: Mapping[str, str] = {}
    writers: Mapping[str, str] = {}
    damaged, written_s = [], None
    shares: dict[str, list[int]] = {}
    seen: set[str] = set()
    packs = pack_names(os.path.join(place, name))
    for pack in packs:
        try:
            with open_pack(os.path.join(place, name), pack) as (_, header):
                pass
        except (Damaged, OSError) as error:
            damaged.append(f"{pack}: {error}")
            continue
        facts, writers = facts or header.facts, {**header.writers, **writers}
        written_s = max(written_s or 0.0, header.made_s)
        for entry in header.entries:
            kind = kind_of(entry.path)
            row = shares.setdefault(kind.folder if kind else "other", [0, 0, 0])
            row[2] += entry.stored
            if entry.path not in seen:
                seen.add(entry.path)
                row[0] += 1
                row[1] += entry.size
    by_framework = tuple(FrameworkShare(kind, *numbers) for kind, numbers in sorted(shares.items()))
    return NodeClass(name, facts, writers, len(packs), tuple(damaged), by_framework, written_s)


def _last_starts(run_dir: str, attempts: int) -> Iterator[CacheFill]:
    for attempt in range(attempts, 0, -1):
        folder = node_reports.folder(run_dir, attempt)
        named = [
            name.split(".", 2)
            for name in _listed(folder)
            if name.startswith("caches.") and name.endswith(".json")
        ]
        launches = [int(parts[1]) for parts in named if len(parts) == 3 and parts[1].isdigit()]
        if not launches:
            continue
        for _, launch, rest in sorted(parts for parts in named if parts[1] == str(max(launches))):
            table = node_reports.read_json(os.path.join(folder, f"caches.{launch}.{rest}"))
            if isinstance(table, dict):
                yield _warm(attempt, int(launch), rest.removesuffix(".json"), table)
        return


def _warm(attempt: int, launch: int, node: str, table: Mapping[str, Any]) -> CacheFill:
    def number(name: str) -> int | None:
        value = table.get(name)
        return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    seconds, trouble = table.get("fill_s"), table.get("trouble")
    return CacheFill(
        attempt,
        launch,
        node,
        number("filled") or 0,
        number("filled_bytes") or 0,
        number("hits"),
        float(seconds) if isinstance(seconds, (int, float)) else None,
        tuple(str(line)[:200] for line in trouble) if isinstance(trouble, list) else (),
    )


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _text(path: str) -> str:
    content = store_run_dir.read_untrusted(path, 1 << 16)
    return content.decode("utf-8", "surrogateescape") if content is not None else ""
