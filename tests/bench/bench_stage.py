"""Saving into the memory of the nodes, and coming back from there: against a bare copy, a disk, and what torch does in the background. (I/O)

How it thinks. One rank of two has a state of so many GiB, the other a few bytes, so that memory and disk of this machine are not shared between two copies of the same figure. All contenders write the same state in
turns, in one process of one job on one sandbox whose nodes have a /dev/shm of their own.

The *pause* is what `with stage(step):` takes from begin to end around the same writes as the bare copy. *Flushed* is a set when its marker is on disk; `cp` counts until it is on disk as well, at the keeper's priority and beside the
same trainer: one that keeps both ranks' cores busy, and one that leaves a core idle. How many steps a busy trainer keeps is judged against those just before and just after.

A start has its state again when all of it is in its process: by read() into memory that it has (*into*, as dcp.load), or that it must ask for (*new*, as torch.load), or *mapped*, as safetensors and torch.load(mmap=True) do it, with every page there; where that comes from the
partner, the time in which it came is part of it. The disk is cold when the kernel was told to forget the pages of the files (posix_fadvise DONTNEED, after they were written out) and `fincore` finds none of them; what a
hypervisor keeps below us stays warm, which flatters the disk.
"""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftrun.supervisor.drill.readers import StagingView
from tests.bench import stage_rank
from tests.bench.figures import Figure, percentiles, ratio
from tests.bench.stand import Stand, stand, until

__all__ = ["measure"]

RANK = Path(__file__).with_name("stage_rank.py")
PROOFS = Path(__file__).resolve().parents[2] / ".tools" / "proofs" / "bin" / "python"
TORCH = os.environ.get("FTRUN_PROOF_PYTHON") or (str(PROOFS) if PROOFS.exists() else sys.executable)
AIM_PAUSE, AIM_RESUME, AIM_FLUSH = 1.2, 5.0, 0.8
STEPS_S = 1.5
PARTNER_MAX_BYTES = 2 << 30  # three nodes' memories lie in that of one machine
TORCH_MAX_BYTES = 1 << 30  # its writers copy the state, too
LIMIT_S = 600.0
SHAPE = ("-N2", "-n2", "--ntasks-per-node=1", "-t", "30", "-o", "log.%j")
QUICK = ("--ft-log-quiet=1s", "--ft-log-quiet-max=4s", "--ft-stage-keep=1")
SCRIPT = """#!/bin/bash
export PYTHONPATH={tree}
exec srun --kill-on-bad-exit=1 {python} {rank} {plan}
"""


@dataclass
class Taken:
    """What one size took: samples by what was timed, in seconds unless it says otherwise."""

    size_bytes: int
    samples: dict[str, list[float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, what: str, value: float) -> None:
        """One more."""
        self.samples.setdefault(what, []).append(value)

    def of(self, what: str) -> list[float]:
        """All of them."""
        return self.samples.get(what, [])


def measure(sizes_gib: Sequence[float], rounds: int) -> list[Figure]:
    """Four figures for each size."""
    figures: list[Figure] = []
    for size in sizes_gib:
        taken = Taken(int(size * (1 << 30)))
        _alone(taken, rounds)
        if taken.size_bytes <= PARTNER_MAX_BYTES:
            _with_partner(taken)
        figures += _figures(taken, f"{size:g} GiB")
    return figures


# ---------------------------------------------------------------------- what is held


def _alone(taken: Taken, rounds: int) -> None:
    """Saves, flushes, and a start that goes on from the memory of its own node; then the disk."""
    with stand(nodes=2, shm_mib=_shm_mib(taken)) as here:
        torch = taken.size_bytes <= TORCH_MAX_BYTES
        _submit(here, taken, rounds, "--ft-stage-partner=never", torch=torch)
        _wait(here, 1, "over")
        os.kill(int((here.work / "pid.1").read_text()), signal.SIGKILL)
        _wait(here, 2, "over")
        (here.work / "told.2.go").touch()
        samples = _samples(here)
        for sample in samples:
            _take(taken, sample)
        _take_beside(taken, samples)
        newest = max(here.folder.glob("to/*/.ftrun-complete"), key=os.path.getmtime).parent
        for _ in range(max(3, rounds)):
            for what, known in (("disk cold", False), ("disk cold into", True)):
                _forget(newest, taken)
                taken.add(what, stage_rank.load(str(newest), is_known=known))
            taken.add("disk warm", stage_rank.load(str(newest)))
            _forget(newest, taken)
            taken.add("disk cold mapped", stage_rank.mapped(str(newest)))


def _with_partner(taken: Taken) -> None:
    """The node that saved is lost, and a spare gets its files from the memory of the other node."""
    with stand(nodes=3, shm_mib=_shm_mib(taken), slurmd_timeout_s=20) as here:
        _submit(here, taken, 0, "--ft-spares=1", torch=False)
        _wait(here, 1, "over")
        seen = StagingView(here.box, here.folder / "to")
        node = _writer(here)
        until(lambda: 1 in seen.copied().get(node, ()), LIMIT_S, every_s=0.2)
        here.box.crash(node)
        _wait(here, 2, "over")
        (here.work / "told.2.go").touch()
        resumed = [sample for sample in _samples(here) if sample["what"] == "resume into"]
        for sample in resumed:
            taken.add("partner read", sample["s"])
        for record in _records(here):
            if record["kind"] == "restore.done":
                taken.add("partner fetch", record["data"]["seconds"])
        source = next(sample["source"] for sample in _samples(here) if sample["what"] == "resume")
        taken.notes.append(f"after the loss of the node: read from {source}")
        copies = [json.loads(path.read_text()) for path in here.home.glob("runs/*/attempts/1/copies/*.json")]
        ways = {one["way"]: one["bytes_per_s"] for one in copies if one["bytes_per_s"]}
        if ways:
            told = ", ".join(f"{way} {rate / (1 << 20):.0f} MiB/s" for way, rate in ways.items())
            taken.notes.append(f"beside the trainer copies went by {told}")


def _shm_mib(taken: Taken) -> int:
    """Room for two states, and what a node is expected to have anyway."""
    return max(1536, (int(2.2 * taken.size_bytes) >> 20) + 512)


def _submit(here: Stand, taken: Taken, rounds: int, *words: str, torch: bool) -> None:
    (here.folder / "to").mkdir()
    plan = {"folder": str(here.work), "to": str(here.folder / "to"), "size_bytes": taken.size_bytes}
    plan |= {"home": str(here.home), "rounds": rounds, "torch": torch, "steps_s": STEPS_S}
    (here.work / "plan.json").write_text(json.dumps(plan))
    tree = here.folder / "tree"
    tree.mkdir()
    (tree / "ftrun").symlink_to(Path(__file__).resolve().parents[2] / ".ci" / "typing" / "ftrun")
    script = here.work / "job.sh"
    script.write_text(
        SCRIPT.format(
            tree=tree, python=TORCH if torch else sys.executable, rank=RANK, plan=here.work / "plan.json"
        )
    )
    here.ftrun_sbatch(
        *QUICK,
        f"--ft-stage-limit={2.2 * taken.size_bytes:.0f}",
        f"--ft-stage={here.folder / 'to'}",
        *words,
        *SHAPE,
        str(script),
    )


def _wait(here: Stand, start: int, what: str) -> None:
    until((here.work / f"told.{start}.{what}").exists, LIMIT_S, every_s=0.1)


def _samples(here: Stand) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (here.work / "samples.jsonl").read_text().splitlines()]


def _writer(here: Stand) -> str:
    """The node of the rank that saved."""
    return next(str(sample["node"]) for sample in _samples(here) if sample["what"] == "stage")


def _records(here: Stand) -> list[dict[str, Any]]:
    """What the agent wrote down."""
    (path,) = here.home.glob("runs/*/attempts/1/agent/0.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def _take(taken: Taken, sample: dict[str, Any]) -> None:
    for unit in ("s", "value", "peak_mib"):
        if unit in sample:
            taken.add(sample["what"], sample[unit])
    if sample["what"] == "resume" and len(taken.of("resume")) == 1:
        taken.notes.append(f"after the end of a rank: read from {sample['source']}")


def _take_beside(taken: Taken, samples: Sequence[dict[str, Any]]) -> None:
    """The steps of the other rank while a set is flushed that its trainer left room for, against those just before."""
    beside = [(*sample["window"], sample["per_s"]) for sample in samples if sample["what"] == "beside"]

    def rate(window: Sequence[float]) -> float:
        within = [per_s for begin, end, per_s in beside if begin >= window[0] and end <= window[1]]
        return statistics.fmean(within) if within else math.nan

    alone = [rate(sample["window"]) for sample in samples if sample["what"] == "alone"]
    during = [rate(sample["window"]) for sample in samples if sample["what"] == "flush room"]
    for one, other in zip(alone, during, strict=True):
        if one == one and other == other:
            taken.add("steps kept with room", other / one)


def _forget(folder: Path, taken: Taken) -> None:
    """The kernel has no page of these files any more."""
    paths = sorted(folder.glob("[!.]*"))
    for path in paths:
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    told = subprocess.run(
        ["fincore", "-nbo", "RES", *map(str, paths)], capture_output=True, text=True, check=False
    )
    left = sum(int(word) for word in told.stdout.split())
    taken.add("left in the page cache", left / taken.size_bytes)


# ---------------------------------------------------------------------- figures


def _figures(taken: Taken, size: str) -> list[Figure]:
    pause = ratio(taken.of("stage"), taken.of("bare"))
    rivals = ("disk", "dcp bare", "dcp stage", "dcp async", "dcp async whole", "dcp disk")
    resumes = (
        ("mapped", "resume mapped", "disk cold mapped"),
        ("read into memory that is there", "resume into", "disk cold into"),
        ("read into new memory", "resume", "disk cold"),
    )
    return [
        Figure(
            name=f"pause of the training, {size}", unit="s", ours=_told(taken, "stage"), rival_name="bare copy to /dev/shm",
            rival=_told(taken, "bare"), value=pause, value_name="times the bare copy (medians)", aim=f"<= {AIM_PAUSE:g}",
            held=pause <= AIM_PAUSE, parts={what: _told(taken, what) for what in rivals if taken.of(what)},
        ),
        _flush(taken, size, stage_rank.ROOM, "a core is idle", AIM_FLUSH),
        _flush(taken, size, stage_rank.BUSY, "no core is idle", None),
        Figure(
            name=f"steps while it is flushed, {size}", unit="of 1", ours=_told(taken, "steps kept"), rival_name="where a core is idle",
            rival=_told(taken, "steps kept with room"), value=round(statistics.median(taken.of("steps kept")), 2),
            value_name="of the steps are made all the same where no core is idle (median)",
        ),
        *(_resume(taken, f"a start has its state again, {how}, {size}", ours, disk) for how, ours, disk in resumes),
    ]  # fmt: skip


def _flush(taken: Taken, size: str, load: str, beside: str, aim: float | None) -> Figure:
    mib, gib = taken.size_bytes / (1 << 20), taken.size_bytes / (1 << 30)
    ours, rival, copying = (
        [mib / seconds for seconds in taken.of(f"{what} {load}") if seconds]
        for what in ("flush", "cp", "copying")
    )
    value = ratio(ours, rival)
    processor = ", ".join(
        f"{what} {statistics.median(taken.of(f'{what} cpu {load}')) / gib:.2f}" for what in ("keeper", "cp")
    )
    return Figure(
        name=f"flush to disk beside a trainer, {beside}, {size}", unit="MiB/s", ours=percentiles(ours, digits=0),
        rival_name="cp at the same priority, until it is on disk", rival=percentiles(rival, digits=0), value=value,
        value_name="times the throughput of cp (medians)", aim="" if aim is None else f">= {aim:g}", held=None if aim is None else value >= aim,
        parts={"the copying alone": percentiles(copying, digits=0)},
        notes=(f"processor seconds a GiB: {processor}; the keeper had {max(taken.of('keeper')):.0f} MiB of memory at most",),
    )  # fmt: skip


def _resume(taken: Taken, name: str, ours: str, disk: str) -> Figure:
    value = ratio(taken.of(disk), taken.of(ours))
    beside = ("partner fetch", "partner read", "disk warm") if ours == "resume into" else ()
    cold = (
        f"of the cold files {max(taken.of('left in the page cache'), default=0):.1%} were in the page cache"
    )
    return Figure(
        name=name, unit="s", ours=_told(taken, ours), rival_name="disk, cold", rival=_told(taken, disk), value=value,
        value_name="times as quick as the cold disk (medians)", aim=f">= {AIM_RESUME:g}", held=value >= AIM_RESUME,
        parts={what: _told(taken, what) for what in beside if taken.of(what)}, notes=(*taken.notes, cold) if beside else (),
    )  # fmt: skip


def _told(taken: Taken, what: str) -> dict[str, float]:
    return percentiles(taken.of(what), digits=3)
