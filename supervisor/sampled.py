"""What the tables of `ftrun-hook stacks` say together: who moved, what all wait in, what is used. (pure)

How it thinks. Each node's table holds two looks at its ranks, some seconds apart, and what its accelerators told at both. A rank stood still where both
looks are alike, and the last one of the sample before. What was used is counted from sample to sample, so that nothing between them is missed.

- **Who spins says nothing.** A rank that waits in a collective may burn its processor; where others do not wait there, only theirs counts.
- **Accelerators.** nvidia-smi's `utilization.memory` is the share of time in which memory was read or written, `utilization.gpu` that in which a kernel
  ran (nvidia-smi --help-query-gpu). A kernel that waits in a collective runs all the time and moves nothing. Tools of other makers are not read: not known.
- **What is missing is not known.** A node without a table, or without ranks, leaves open whether anybody moved or used anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor import frames
from ftrun.supervisor.stillness import Activity, Stacks

__all__ = ["Seen", "sample_of"]

BUSY_SHARE = 0.05  # of a core, as for beats
BUSY_BYTES_S = 65536.0
_FRAME = re.compile(r"(.{1,200}) \((.{1,400}):\d+\)$")
FULL, RESTS = 90.0, 1.0  # per cent of the time


@dataclass(frozen=True, slots=True)
class Seen:
    """What is kept of a rank for the next sample. `at_s`: its node's clock; the sums are those of the rank and what it started."""

    digest: str
    at_s: float
    cpu_s: float
    size_bytes: float


def sample_of(
    tables: Mapping[str, object], before: Mapping[str, Seen], taken: int, *, exited: bool = False
) -> tuple[Stacks, Activity, dict[str, Seen]]:
    """What the tables say, node by node, and what the next sample needs of each rank.

    `exited`: srun says that tasks ended by themselves. Where a node answers and has no rank, they have: its table is whole, and the others' tell.
    """
    seen: dict[str, Seen] = {}
    tops: dict[int, str] = {}
    busy: dict[int, bool] = {}
    whole, moved, io, stuck = bool(tables), False, False, False
    empty = {node for node, table in tables.items() if exited and _has_no_rank(table)}
    for node, table in tables.items():
        rows = _rows(table)
        whole = whole and (bool(rows) or node in empty)
        for row in rows:
            key, now = f"{node}:{row.get('pid')}", _seen(row, table)
            last = before.get(key)
            seen[key] = now
            whole = whole and bool(now.digest) and row.get("moved") is not None
            moved = moved or row.get("moved") is True or (last is not None and last.digest != now.digest)
            cpu, used = _use(row, table, now, last)
            stuck = stuck or row.get("state") == "D"
            io = io or used or row.get("state") == "D"
            name = str(row.get("rank") or "")
            rank = int(name) if name.isdigit() else -1 - len(tops)
            tops[rank], busy[rank] = _top(row), cpu
    gpu, spins = _accelerators(tables)
    known = whole or None
    stacks = Stacks(
        taken=taken,
        moved=True if moved else (False if whole and before else None),
        waiting=frames.all_wait_in(tops),
        elsewhere=tuple(rank for rank in frames.elsewhere(tops) if rank >= 0),
        ranks=max(1, len(tops)),
        pairs=2,
        ended=0 < len(empty) < len(tables),
    )
    cpu = any(used for rank, used in busy.items() if frames.waits_in(tops[rank]) != frames.COLLECTIVE)
    return (
        stacks,
        Activity(cpu=cpu or (known and cpu), io=io or (known and io), gpu=gpu, spins=spins, stuck=stuck),
        seen,
    )


def _has_no_rank(table: object) -> bool:
    return isinstance(table, Mapping) and table.get("ranks") == []


def _rows(table: object) -> list[Mapping[str, Any]]:
    rows = table.get("ranks") if isinstance(table, Mapping) else None
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _seen(row: Mapping[str, Any], table: object) -> Seen:
    at_s = _number(table.get("at_s")) if isinstance(table, Mapping) else 0.0
    return Seen(
        str(row.get("digest") or ""), at_s, _number(row.get("cpu_all_s")), _number(row.get("bytes_all"))
    )


def _use(row: Mapping[str, Any], table: object, now: Seen, last: Seen | None) -> tuple[bool, bool]:
    """Whether a rank used its processor, and files: between the looks, or since the sample before."""
    took_s = _number(table.get("apart_s")) if isinstance(table, Mapping) else 0.0
    spans = [(max(0.1, took_s), _number(row.get("cpu_s")), _number(row.get("bytes")))]
    if last is not None and now.at_s > last.at_s > 0.0:
        spans.append((now.at_s - last.at_s, now.cpu_s - last.cpu_s, now.size_bytes - last.size_bytes))
    return (
        any(cpu_s > BUSY_SHARE * passed_s for passed_s, cpu_s, _ in spans),
        any(size_bytes > BUSY_BYTES_S * passed_s for passed_s, _, size_bytes in spans),
    )


def _top(row: Mapping[str, Any]) -> str:
    """The innermost frames as `frames` reads them: the table tells "function (folder/file.py:line)"."""
    top = row.get("top")
    if not isinstance(top, list):
        return ""
    found = [_FRAME.match(str(one)) for one in top]
    return " < ".join(f"{one[2]}:{one[1]}" for one in found if one)


def _accelerators(tables: Mapping[str, object]) -> tuple[bool | None, bool]:
    """Whether any accelerator moves memory (None: not known of all nodes), and whether those of all ranks are full without."""
    moves, spins, known = False, bool(tables), bool(tables)
    for table in tables.values():
        looks = list(_looks(table))
        if not looks:
            known = False
            continue
        for devices in looks:
            moves = moves or any(memory > RESTS for _, memory in devices)
            full = sum(core >= FULL for core, _ in devices)
            spins = spins and full >= min(len(devices), max(1, len(_rows(table))))
    return True if moves else (False if known else None), known and spins and not moves


def _looks(table: object) -> Iterator[list[tuple[float, float]]]:
    """(utilisation, that of memory) of each device, look by look; nothing where one of them does not tell."""
    told = table.get("accelerators") if isinstance(table, Mapping) else None
    texts = told.get("nvidia-smi") if isinstance(told, Mapping) else None
    for text in texts if isinstance(texts, list) else ():
        devices = []
        for line in str(text).splitlines():
            parts = [part.strip() for part in line.split(",")]
            try:
                devices.append((float(parts[2]), float(parts[3])))
            except (IndexError, ValueError):
                return
        if devices:
            yield devices


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
