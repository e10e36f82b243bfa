"""What a sample of all ranks' stacks says: who waits, who moves, who is stopped, what is used. (pure)

`stack_sample` merges the tables of `ftrun-hook stacks`. Each node's table has two looks at its ranks, some
seconds apart, and what its accelerators showed at both. A rank stood still if both looks are alike, and equal
the last one of the sample before. Use of processor and files is counted from sample to sample, so nothing
between them is missed.

- **Spinning proves nothing.** A rank that waits in a collective may use its processor fully; if others do not
  wait there, only theirs counts.
- **Accelerators.** nvidia-smi's `utilization.memory` is the share of time in which memory was read or
  written, `utilization.gpu` that in which a kernel ran (nvidia-smi --help-query-gpu). A kernel that waits in
  a collective runs all the time and moves nothing. Tools of other makers are not read: unknown.
- **Missing is unknown.** A node without a table, or without ranks, leaves open whether anybody moved or used
  anything.

`wait_kind` tells by the innermost Python frames what a rank waits for: a collective of its framework, or a
call that synchronises with its accelerator. A name alone (`wait`, `send`) says little, so the file must be
the framework's too. Unknown frames count as work. Names: torch.distributed, torch.autograd, torch.cuda,
Horovod, DeepSpeed and JAX, as in their released sources.
- **Stopped.** A rank that a signal stopped, or whose cgroup is frozen, goes on only when somebody wakes it. If
  all ranks are, the run is suspended as a whole, which is no fault.
- **Without frames.** Of a rank of which only the kernel tells, one thing is known: whether it waits (idle and in
  one place) or uses its processor. What it computes is not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor.telemetry.liveness import Activity, Stacks

__all__ = [
    "BUSY_BYTES_S",
    "BUSY_SHARE",
    "COLLECTIVE",
    "DEVICE",
    "RankSample",
    "common_wait",
    "ranks_elsewhere",
    "stack_sample",
    "wait_kind",
]

COLLECTIVE, DEVICE, IDLE = "collective", "device", "idle"
_COLLECTIVE = re.compile(
    r"\b(?:distributed/(?:distributed_c10d|rendezvous|\w*collectives\w*)|comm/(?:comm|torch|ccl)|torch/mpi_ops|horovod/\w+)\.py"
    r"[:, \w\"]*?\b_?\w*(?:all_?reduce|all_?gather|reduce_scatter|broadcast|barrier|all_?to_?all|gather|scatter|reduce|send|recv|wait"
    r"|synchronize)\w*"
)
_DEVICE = re.compile(
    r"\b(?:cuda/(?:__init__|streams)\.py[:, \w\"]*?\bsynchronize|autograd/(?:graph|__init__)\.py[:, \w\"]*?\b_?(?:engine_run_)?backward"
    r"|npu/utils\.py[:, \w\"]*?\bsynchronize|(?:array|api)\.py[:, \w\"]*?\b(?:_value|block_until_ready))\b"
)


def wait_kind(frames: str) -> str:
    """What a rank waits in: "collective", "device" or "".

    `frames`: the innermost few, as "folder/file.py:function < ..." or faulthandler's lines.
    """
    if _COLLECTIVE.search(frames):
        return COLLECTIVE
    return DEVICE if _DEVICE.search(frames) else ""


def common_wait(frames: Mapping[int, str]) -> str:
    """What all ranks wait in; "" where any rank does something else, or there are none."""
    kinds = {wait_kind(text) for text in frames.values()}
    if not kinds or "" in kinds:
        return ""
    return COLLECTIVE if kinds == {COLLECTIVE} else DEVICE


def ranks_elsewhere(frames: Mapping[int, str], idle: Collection[int] = ()) -> tuple[int, ...]:
    """The ranks, in order, that do not wait in a collective where most others do. `idle`: ranks of which no
    frames are known, and that wait for something.
    """
    busy = [rank for rank, text in frames.items() if wait_kind(text) != COLLECTIVE and rank not in idle]
    return tuple(sorted(busy)) if 2 * len(busy) < len(frames) else ()


BUSY_SHARE = 0.05  # of a core
BUSY_BYTES_S = 65536.0
_FRAME = re.compile(r"(.{1,200}) \((.{1,400}):\d+\)$")
FULL, RESTS = 90.0, 1.0  # per cent of the time


@dataclass(frozen=True, slots=True)
class RankSample:
    """What is kept of a rank for the next sample. `at_s`: its node's clock. The sums cover the rank and its
    children.
    """

    digest: str
    at_s: float
    cpu_s: float
    size_bytes: float


def stack_sample(
    tables: Mapping[str, object], before: Mapping[str, RankSample], taken: int, *, exited: bool = False
) -> tuple[Stacks, Activity, dict[str, RankSample]]:
    """What the nodes' tables say, and what the next sample needs of each rank.

    `exited`: srun reports that tasks ended by themselves. Then a node that answers without a rank has none
    left: its table is complete, and the others' count.
    """
    seen: dict[str, RankSample] = {}
    tops: dict[int, str] = {}
    busy: dict[int, bool] = {}
    places: dict[int, str] = {}
    stopped: list[int] = []
    idle: list[int] = []  # that the kernel alone sees, and sees wait
    known, whole, moved, io, stuck = bool(tables), True, False, False, False
    empty = {node for node, table in tables.items() if exited and _has_no_rank(table)}
    for node, table in tables.items():
        rows = _rows(table)
        known = known and (bool(rows) or node in empty)
        for row in rows:
            key, now = f"{node}:{row.get('pid')}", _seen(row, table)
            last = before.get(key)
            seen[key] = now
            whole = whole and bool(now.digest) and row.get("moved") is not None
            differs = row.get("moved") is not None and last is not None and last.digest != now.digest
            moved = moved or row.get("moved") is True or differs
            cpu, used = _use(row, table, now, last)
            stuck = stuck or row.get("state") == "D"
            io = io or used or row.get("state") == "D"
            name = str(row.get("rank") or "")
            rank = int(name) if name.isdigit() else -1 - len(tops)
            tops[rank], busy[rank], places[rank] = _top(row), cpu, node
            stopped += [rank] if row.get("stopped") is True else []
            idle += [rank] if row.get("source") == "proc" and row.get("moved") is False else []
    gpu, spins = _accelerators(tables)
    whole = known and whole
    elsewhere = tuple(rank for rank in ranks_elsewhere(tops, idle) if rank >= 0)
    stopped = [rank for rank in stopped if len(stopped) < len(tops)]
    working = [rank for rank in tops if wait_kind(tops[rank]) != COLLECTIVE and rank not in idle]
    stacks = Stacks(
        taken=taken,
        moved=True if moved else (False if whole and before else None),
        waiting=common_wait(tops),
        elsewhere=elsewhere,
        ranks=max(1, len(tops)),
        pairs=2,
        ended=0 < len(empty) < len(tables),
        stopped=tuple(sorted(stopped)),
        peers=_peers(tops, working) if known and (gpu is not None or not _tools(tables)) else "",
        absent=bool(tables) and all(_has_no_rank(table) for table in tables.values()) and _awaited(tables),
        places={rank: places[rank] for rank in (*elsewhere, *stopped)},
    )
    cpu = any(used for rank, used in busy.items() if wait_kind(tops[rank]) != COLLECTIVE)
    return (
        stacks,
        Activity(
            cpu=cpu if cpu or known else None,
            io=io if io or known else None,
            gpu=gpu,
            spins=spins,
            stuck=stuck,
        ),
        seen,
    )


def _peers(tops: Mapping[int, str], working: Collection[int]) -> str:
    """What the ranks that do not work wait in, if they are half of all or more; "" otherwise."""
    if not 0 < 2 * len(working) <= len(tops):
        return ""
    seen = sum(wait_kind(text) == COLLECTIVE for text in tops.values())
    return COLLECTIVE if 2 * seen >= len(tops) else IDLE


def _awaited(tables: Mapping[str, object]) -> bool:
    """Whether some node has a launcher that waits for ranks."""
    return any(isinstance(table, Mapping) and bool(table.get("launchers")) for table in tables.values())


def _tools(tables: Mapping[str, object]) -> bool:
    """Whether some node has a tool that shows accelerators."""
    return any(isinstance(table, Mapping) and bool(table.get("accelerators")) for table in tables.values())


def _has_no_rank(table: object) -> bool:
    return isinstance(table, Mapping) and table.get("ranks") == []


def _rows(table: object) -> list[Mapping[str, Any]]:
    rows = table.get("ranks") if isinstance(table, Mapping) else None
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _seen(row: Mapping[str, Any], table: object) -> RankSample:
    at_s = _number(table.get("at_s")) if isinstance(table, Mapping) else 0.0
    return RankSample(
        str(row.get("digest") or ""), at_s, _number(row.get("cpu_all_s")), _number(row.get("bytes_all"))
    )


def _use(
    row: Mapping[str, Any], table: object, now: RankSample, last: RankSample | None
) -> tuple[bool, bool]:
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
    """The innermost frames in the form of `waits_in`. The table has "function (folder/file.py:line)"."""
    top = row.get("top")
    if not isinstance(top, list):
        return ""
    found = [_FRAME.match(str(one)) for one in top]
    return " < ".join(f"{one[2]}:{one[1]}" for one in found if one)


def _accelerators(tables: Mapping[str, object]) -> tuple[bool | None, bool]:
    """Whether any accelerator moves memory (None: not known for all nodes), and whether those of all ranks
    are busy without.
    """
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
    """(utilisation, that of memory) of each device, look by look; nothing where one of them is missing."""
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
