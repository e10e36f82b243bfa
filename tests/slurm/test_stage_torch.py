"""Real torch trainings (`examples/stage`: DistributedDataParallel, and fully_shard on the CPU) that save with torch.distributed.checkpoint into the memory of their nodes.

How it thinks. Each is trained once without a fault. Then it is hurt, and what it has learnt is compared to the last bit: the loss of every step, those that were made again as well, and all
weights. Publishing is slow in one case, so that the checkpoint that the run goes on from is on no disk when the node is lost: only its partner has what it had.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from ftrun.supervisor.drill.readers import StagingView
from tests.slurm.example import PYTHON, Example, Stage

pytestmark = [pytest.mark.slurm, pytest.mark.drills, pytest.mark.usefixtures("torch")]

STEPS = 40
SHAPES = {"DDP": (), "FSDP": ("--fsdp",)}
SAME = """
import sys, torch
one, other = (torch.load(path) for path in sys.argv[1:])
assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
"""


@dataclass(frozen=True, slots=True)
class Learnt:
    """(step, loss) in the order made, and the file of the weights."""

    steps: list[tuple[int, float]]
    weights: Path


def _learnt(example: Example, name: str) -> Learnt:
    lines = [json.loads(line) for line in (example.folder / "losses.jsonl").read_text().splitlines()]
    kept = (example.folder / "final.pt").rename(example.folder / f"{name}.pt")
    return Learnt([(line["step"], line["loss"]) for line in lines], kept)


def _assert_same(right: Learnt, ours: Learnt) -> None:
    losses = dict(right.steps)
    assert set(losses) == set(range(1, STEPS + 1)) == {step for step, _ in ours.steps}
    assert len(ours.steps) > STEPS or len(right.steps) == len(ours.steps)
    assert [(step, loss) for step, loss in ours.steps if losses[step] != loss] == []
    words = [PYTHON, "-W", "ignore", "-c", SAME, str(right.weights), str(ours.weights)]
    assert subprocess.run(words, capture_output=True, text=True).returncode == 0


def _step(example: Example) -> int:
    path = example.folder / "losses.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return int(json.loads(lines[-1])["step"]) if lines else 0


def _resumed(example: Example) -> list[str]:
    """What each rank of each later start loaded."""
    return re.findall(r"rank \d+ loaded (\S+) in", example.log())


def _right(example: Example, words: tuple[str, ...]) -> Learnt:
    """What it learns undisturbed."""
    example.submit(arguments=("--steps", str(STEPS), *words))
    assert len(example.finished().attempts) == 1
    right = _learnt(example, "undisturbed")
    example.rewind()
    return right


@pytest.mark.parametrize("shape", SHAPES)
def test_a_rank_that_is_killed_costs_no_bit_and_the_run_goes_on_from_memory(stage: Stage, shape: str) -> None:
    """All ranks load from the memory of their nodes, and losses and weights are those of an undisturbed training."""
    example = stage("stage", nodes=4, shm_mib=1536)
    right = _right(example, SHAPES[shape])

    example.submit(arguments=("--steps", str(STEPS), *SHAPES[shape]))
    example.until("some checkpoints are saved", lambda: _step(example) >= 17)
    os.kill(int(re.findall(r"rank 1 of \d+ pid (\d+)", example.log())[-1]), signal.SIGKILL)
    run = example.finished()

    _assert_same(right, _learnt(example, "hurt"))
    assert [incident.decision["kind"] for incident in run.incidents] == ["step"]
    assert _resumed(example)
    assert all(path.startswith("/dev/shm/") for path in _resumed(example)), _resumed(example)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_node_that_is_lost_before_its_files_were_on_disk_costs_no_bit(stage: Stage, shape: str) -> None:
    """Its partner has them: the spare that takes its place, and the disk, get them from there."""
    example = stage("stage", nodes=5, shm_mib=1536)
    right = _right(example, SHAPES[shape])

    example.submit("--ft-spares=1", "--ft-stage-rate=64K", arguments=("--steps", str(STEPS), *SHAPES[shape]))
    seen = StagingView(example.box, example.folder / "checkpoints")
    example.until("a checkpoint is in two memories and on no disk", lambda: bool(_held_twice(seen)))
    newest = max(_held_twice(seen))
    example.box.crash("n1")
    run = example.finished()

    _assert_same(right, _learnt(example, "hurt"))
    assert [incident.decision["kind"] for incident in run.incidents] == ["swap"]
    (began,) = {int(step) for step in re.findall(r"rank 1 of \d+ pid \d+ from step (\d+)", example.log())} - {
        0
    }
    assert began >= newest


def _held_twice(seen: StagingView) -> set[int]:
    """Steps whose files all nodes have given to others, and that are not on disk."""
    copied = [set(seen.copied().get(node, ())) for node in ("n0", "n1", "n2")]
    return set.intersection(*copied) - set(seen.on_disk())
