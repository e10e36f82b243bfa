"""For each framework a real training on a CPU is killed, resumes by the lines that `ftrun init` wrote, and ends with the losses of an undisturbed one. (I/O)

`make test-frameworks` makes the environment that the trainings run in (that of tests/formats); FTRUN_FORMATS_PYTHON names the python of another
one. The killed training runs under `ftrun sbatch` on a sandbox, the undisturbed one is the same script run by bash.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.post import FTRUN, SUBMITTED, Post, posts

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache"
PYTHON = Path(os.environ.get("FTRUN_FORMATS_PYTHON", str(CACHE / "formats" / "bin" / "python")))
LIMIT_S = 900
KILL_AT = 7
STEPS = 10

FRAMEWORKS = {
    "transformers": "Hugging Face Trainer",
    "accelerate": "Hugging Face Accelerate",
    "lightning": "Lightning",
    "deepspeed": "DeepSpeed",
    "torchrun": "PyTorch",
    "torchrun_nodes": "PyTorch",
    "orbax": "JAX with Orbax",
    "mindspore": "MindSpore",
    "megatron": "Megatron-LM",
    "nemo": "NeMo",
    "torchtitan": "torchtitan",
}
ON_ONE_NODE = {"torchrun_nodes": "torchrun"}
"""Whose train.py such a framework starts on two nodes, and whose losses it must have."""

pytestmark = pytest.mark.formats


def _losses(folder: Path) -> list[tuple[int, str]]:
    rows = (line.split() for line in (folder / "losses").read_text().splitlines())
    return [(int(step), loss) for step, loss in rows]


def _placed(name: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for path in (
        *(HERE / ON_ONE_NODE.get(name, name)).iterdir(),
        *(HERE / name).iterdir(),
        HERE / "witness.py",
    ):
        if path.is_file():
            shutil.copy(path, folder)
    return folder


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_a_killed_training_resumes_by_the_lines_of_init(
    name: str, tmp_path: Path, slurm_sandbox: Sandbox
) -> None:
    """Each loss of each step, also of those that were made twice, is the undisturbed one to its last bit."""
    with posts(slurm_sandbox) as make:
        _played(name, tmp_path, make("timeouts = 'never'\n"))


def _played(name: str, tmp_path: Path, post: Post) -> None:
    has_own = (HERE / name / "requirements.txt").is_file()
    programs = CACHE / name / "bin" if has_own else PYTHON.parent
    path = f"{programs}:{post.env['PATH']}"
    quiet = {
        "PATH": path,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": "",
        "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions"),
    }
    alone = _placed(ON_ONE_NODE.get(name, name), tmp_path / "alone")
    done = subprocess.run(
        ["bash", "job.sh"],
        cwd=alone,
        env={**os.environ, "SLURM_JOB_ID": "123", **quiet},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    right = dict(_losses(alone))
    assert sorted(right) == list(range(1, STEPS + 1))

    work = _placed(name, post.work)
    told = json.loads(post.ftrun("init", "--write", "--json", "job.sh"))
    assert (told["framework"], told["questions"]) == (FRAMEWORKS[name], [])
    assert json.loads(post.ftrun("init", "--write", "--json", "job.sh"))["written"] is False
    out = post.call(
        "env",
        f"KILL_AT={KILL_AT}",
        *(f"{key}={value}" for key, value in quiet.items()),
        *FTRUN,
        "sbatch",
        "--output=job.sh.log",
        "job.sh",
    )
    found = SUBMITTED.search(out)
    assert found, out
    post.supervise()
    run = post.until_state("finished", "stopped", within_s=LIMIT_S)
    assert run.state.value == "finished", post.story()
    begun = [one["data"]["resume_from"] for one in post.records() if one["kind"] == "start.begun"]
    assert len(begun) == 2  # the second in the same job where another node could be had for it
    assert "6" in Path(begun[1]).name, begun

    losses = _losses(work)
    assert [step for step, _ in losses] == [*range(1, KILL_AT + 1), *range(KILL_AT, STEPS + 1)]
    assert [row for row in losses if right[row[0]] != row[1]] == []
