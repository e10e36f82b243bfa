"""Laws of a trainer that stages its checkpoints: each rank's file holds what no other has. (pure but for the trainer's files)"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.supervisor.drill_trainer import checkpoint_files, toy_model

STATE = {"step": 4, "weights": toy_model.weights_after(4, 3), "attempt": 1, "start": 1}


def _train(folder: Path, steps: int, *, ranks: int, resume: str = "") -> list[int]:
    """One start of the trainer without Slurm, staging into a folder; the exit codes."""
    plan = {
        "folder": str(folder),
        "steps": steps,
        "save_every": 2,
        "step_s": 0.0,
        "collective_timeout_s": 20.0,
    }
    plan |= {"shares": 3, "host": "127.0.0.1", "stage": "path", "pad_kib": 4}
    (folder / "plan.json").write_text(json.dumps(plan))
    words = [sys.executable, "-m", "ftrun.supervisor.drill_trainer.trainer", str(folder / "plan.json")]
    words += [f"--resume={resume}"] if resume else []
    job = str(len(list(folder.glob("meet.*"))))
    started = [
        subprocess.Popen(
            words,
            env={
                **os.environ,
                "SLURM_PROCID": str(rank),
                "SLURM_NTASKS": str(ranks),
                "SLURM_JOB_ID": job,
                "FTRUN_STAGE_DIR": str(folder / "stage"),
            },
        )
        for rank in range(ranks)
    ]
    return [process.wait(timeout=120) for process in started]


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_read_their_files_alone_go_on_with_the_same_weights(tmp_path: Path, ranks: int) -> None:
    """Three ranks stop after step 4; as many, or fewer, go on from their files, and end where an undisturbed training ends."""
    assert _train(tmp_path, 4, ranks=3) == [0, 0, 0]
    assert _train(tmp_path, 6, ranks=ranks, resume=f"{tmp_path}/stage/step-000004") == [0] * ranks

    final = json.loads((tmp_path / "final.log").read_text().splitlines()[-1])
    assert final["checksum"] == toy_model.checksum(toy_model.weights_after(6, 3))
    resumed = [json.loads(line) for line in (tmp_path / "ranks.log").read_text().splitlines()][3:]
    assert {line["rank"]: len(line["read"]) for line in resumed} == (
        {0: 2, 1: 1} if ranks == 2 else {0: 1, 1: 1, 2: 1}
    )


def test_a_part_that_is_missing_torn_changed_or_of_another_start_is_told(tmp_path: Path) -> None:
    """A set that is not whole is never read as one."""
    for rank in range(3):
        checkpoint_files.write_part(str(tmp_path), rank, 3, STATE, 1000)
    assert checkpoint_files.read_set(str(tmp_path))["weights"] == STATE["weights"]

    path = Path(checkpoint_files.write_part(str(tmp_path), 1, 3, {**STATE, "start": 2}, 1000))
    with pytest.raises(RuntimeError, match="another step or start"):
        checkpoint_files.read_set(str(tmp_path))
    path = Path(checkpoint_files.write_part(str(tmp_path), 1, 3, STATE, 1000))
    whole = path.read_bytes()
    for harm in (whole[:500], whole.replace(checkpoint_files.padding(1, 4, 1000)[:50], bytes(50)), b""):
        path.write_bytes(harm)
        with pytest.raises(RuntimeError, match="rank-001"):
            checkpoint_files.read_set(str(tmp_path))
    path.unlink()
    with pytest.raises(RuntimeError, match="missing"):
        checkpoint_files.read_set(str(tmp_path))
