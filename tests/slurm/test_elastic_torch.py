"""A real torch DDP training (`examples/elastic`) loses a node with no replacement on real Slurm, goes on smaller and grows back: what it learns is compared step by step.

How it thinks. The batch of each step and the order of samples are the same at every size; so in exact arithmetic loss and weights would be, too. What differs is the order in which
numbers are added: by another number of ranks in the all-reduce, and by another number of micro batches. In floats of 32 bits a sum of a few terms moves by some 1e-7 of itself, and
eighty steps of Adam let weights whose gradients nearly vanish drift further than losses. Floats of 64 bits are the control: had a sample been left out, seen twice or weighed
wrongly, the difference would be the same in both; it is of the size of a rounding error in each.

Tolerances, for the largest relative difference of any step's loss, and for that of the weights (largest difference in a tensor over its largest weight).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.slurm.example import PYTHON, Example, Stage

pytestmark = [pytest.mark.slurm, pytest.mark.drills, pytest.mark.usefixtures("torch")]

STEPS = 80
TOLERANCE = {"single": (1e-5, 1e-3), "double": (1e-13, 1e-11)}
NEW_JOB = ("--ft-recover=resubmit", "--ft-resize-after=4", "--ft-fence-wait=2")
COMPARE = """
import json, sys, torch
one, other = (torch.load(path) for path in sys.argv[1:])
print(max(((one[name] - other[name]).abs().max() / one[name].abs().max()).item() for name in one))
"""


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a training left behind: (step, ranks, loss) in the order made, and the file of its weights."""

    steps: list[tuple[int, int, float]]
    weights: Path


def _learnt(example: Example, name: str) -> Learnt:
    lines = [json.loads(line) for line in (example.folder / "losses.jsonl").read_text().splitlines()]
    kept = (example.folder / "final.pt").rename(example.folder / f"{name}.pt")
    return Learnt([(line["step"], line["ranks"], line["loss"]) for line in lines], kept)


def _apart(right: Learnt, ours: Learnt) -> tuple[float, float]:
    """Largest relative difference of a loss and of a weight; every step that was made counts, those made again as well."""
    losses = {step: loss for step, _, loss in right.steps}
    assert {step for step, _, _ in ours.steps} == set(losses) == set(range(1, STEPS + 1))
    worst = max(abs(loss - losses[step]) / abs(losses[step]) for step, _, loss in ours.steps)
    words = [PYTHON, "-W", "ignore", "-c", COMPARE, str(right.weights), str(ours.weights)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return worst, float(done.stdout)


def _step(example: Example) -> tuple[int, int]:
    """(last step, its ranks)."""
    path = example.folder / "losses.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    last = json.loads(lines[-1]) if lines else {"step": 0, "ranks": 0}
    return last["step"], last["ranks"]


def _pid(example: Example, rank: int) -> int:
    """The newest process of this rank."""
    return int(re.findall(rf"rank {rank} of \d+ pid (\d+)", example.log())[-1])


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Learnt]:
    """Trainings without a fault, by their floats: each is made once."""
    return {}


def _right(example: Example, floats: str, known: dict[str, Learnt], folder: Path) -> Learnt:
    if floats not in known:
        example.submit(arguments=_words(floats))
        assert len(example.finished().attempts) == 1
        learnt = _learnt(example, "undisturbed")
        known[floats] = Learnt(learnt.steps, Path(shutil.copy(learnt.weights, folder)))
        example.rewind()
    return known[floats]


def _words(floats: str) -> list[str]:
    return ["--steps", str(STEPS), *(["--double"] if floats == "double" else [])]


def _stranger(example: Example) -> str:
    """Somebody else's job, on the last node."""
    said = example.box.run(
        ["sbatch", "--parsable", "-N1", "-w", "n3", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 600"],
        check=True,
    )
    example.until(
        "the stranger runs", lambda: "RUNNING" in example.box.run(["squeue", "-h", "-o", "%T"]).stdout
    )
    return said.stdout.strip()


def _leaves(example: Example, job: str) -> None:
    example.box.run(["scancel", job], check=True)
    example.until(
        "a node is idle",
        lambda: "n3" in example.box.run(["sinfo", "-h", "-t", "idle", "-o", "%N"]).stdout,
    )


@dataclass(frozen=True, slots=True)
class Pair:
    """An example beside what it learns undisturbed."""

    example: Example
    floats: str
    right: Learnt

    def submit(self, *options: str) -> None:
        """The same training, which will be disturbed."""
        self.example.submit(*options, arguments=_words(self.floats))

    def judge(self, how: str) -> list[int]:
        """The ranks that made each step. Told are the differences, which must be within their tolerances."""
        ours = _learnt(self.example, "elastic")
        ranks = [ranks for _, ranks, _ in ours.steps]
        losses, weights = _apart(self.right, ours)
        print(
            f"\n{how}, {self.floats}: losses {losses:.1e}, weights {weights:.1e} apart; two ranks made {ranks.count(2)} of {len(ranks)} steps",
            file=sys.__stdout__,
        )
        assert losses <= TOLERANCE[self.floats][0]
        assert weights <= TOLERANCE[self.floats][1]
        return ranks


@pytest.fixture
def pair(
    stage: Stage,
    request: pytest.FixtureRequest,
    undisturbed: dict[str, Learnt],
    tmp_path_factory: pytest.TempPathFactory,
) -> Pair:
    """The example, and what it learns without a fault; floats as the parameter of the test says."""
    example = stage("elastic")
    right = _right(example, request.param, undisturbed, tmp_path_factory.mktemp("right"))
    return Pair(example, request.param, right)


@pytest.mark.parametrize("pair", ["single", "double"], indirect=True)
def test_torch_goes_on_smaller_by_a_new_job_and_grows_back_to_the_same_loss(pair: Pair) -> None:
    """Three ranks, two after a node died, three again after the next fault: every loss and the weights are those of an undisturbed training, up to rounding."""
    example = pair.example
    other = _stranger(example)
    pair.submit(*NEW_JOB)
    example.until("ten steps at full size", lambda: _step(example)[0] >= 10)
    example.box.crash("n1")
    example.until("ten steps with two", lambda: _step(example)[1] == 2 and _step(example)[0] >= 20)
    _leaves(example, other)
    os.kill(_pid(example, 1), signal.SIGKILL)
    run = example.finished()

    ranks = pair.judge("by a new job and back")
    assert {2, 3} == set(ranks)
    assert (ranks[0], ranks[-1]) == (3, 3), run


@pytest.mark.parametrize("pair", ["single"], indirect=True)
def test_torch_goes_on_smaller_in_place_to_the_same_loss(pair: Pair) -> None:
    """A node dies and strangers have the others: two ranks go on in the same job, and what they learn is what three would have learnt."""
    example = pair.example
    _stranger(example)
    pair.submit()
    example.until("ten steps at full size", lambda: _step(example)[0] >= 10)
    example.box.crash("n1")
    run = example.finished()

    ranks = pair.judge("in place")
    assert [incident.decision["kind"] for incident in run.incidents] == ["shrink"], example.log()
    assert len(run.attempts) == 1
    assert (ranks[0], ranks[-1]) == (3, 2)


@pytest.mark.parametrize("pair", ["single"], indirect=True)
def test_torch_goes_on_over_two_jobs_to_the_same_loss(pair: Pair) -> None:
    """A node dies and another is idle: it comes as a companion, three ranks go on over two jobs, and nothing of it is to be seen in what they learn."""
    example = pair.example
    pair.submit()
    example.until("ten steps at full size", lambda: _step(example)[0] >= 10)
    example.box.crash("n1")
    run = example.finished()

    ranks = pair.judge("with a companion")
    assert [incident.decision["kind"] for incident in run.incidents] == ["companion"], example.log()
    assert len(run.attempts) == 1
    assert set(ranks) == {3}
    assert example.box.run(["squeue", "-h", "-t", "PD,R", "-o", "%i"]).stdout == ""


@pytest.mark.parametrize("pair", ["single"], indirect=True)
def test_torch_goes_on_smaller_and_grows_back_in_place_to_the_same_loss(pair: Pair) -> None:
    """Three ranks, two in the same job, and three again at a checkpoint when strangers have left a node: one attempt, nothing lost, the same losses."""
    example = pair.example
    example.env["EXAMPLE_STEP_S"] = "1"  # there must be time left for which it pays
    other = _stranger(example)
    pair.submit("--ft-grow-min-interval=5s", "--time=60")
    example.until("ten steps at full size", lambda: _step(example)[0] >= 10)
    example.box.crash("n1")
    example.until("steps with two", lambda: _step(example)[1] == 2 and _step(example)[0] >= 15)
    _leaves(example, other)
    run = example.finished()

    ranks = pair.judge("in place and back")
    assert {2, 3} == set(ranks)
    assert (ranks[0], ranks[-1]) == (3, 3), run
    assert len(run.attempts) == 1


@pytest.mark.parametrize("in_place", [False, True], ids=["new-job", "in-place"])
def test_a_batch_that_torch_cannot_divide_sends_the_run_back(stage: Stage, in_place: bool) -> None:
    """The script's own assertion at two nodes is no fault of the script: the size is put aside, and the run goes on with one."""
    example = stage("elastic", nodes=3)
    words = ("--steps", "40", "--global-batch", "12", "--micro-batch", "4")
    options = ("--ft-global-batch=0", "--ft-micro-batch=0", *(() if in_place else NEW_JOB))
    example.submit(*options, arguments=words)
    example.until("ten steps at full size", lambda: _step(example)[0] >= 10)
    example.box.crash("n1")
    run = example.finished()

    assert "global batch 12 is not divisible by micro batch 4 times 2 ranks" in example.log()
    assert {ranks for _, ranks, _ in _learnt(example, "divided").steps} == {3, 1}, run
    assert len(run.attempts) == (1 if in_place else 3)
    assert [incident.decision["kind"] for incident in run.incidents][-1] == (
        "shrink" if in_place else "resubmit"
    )
