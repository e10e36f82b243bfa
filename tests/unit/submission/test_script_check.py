"""What a script says of its own recovery, and what ftrun says of that before the job is submitted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftrun.supervisor.submission import arguments, script_check
from ftrun.supervisor.submission.arguments import Submission


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (b"srun --auto-resume=1 ./train.sh", ["srun --auto-resume (HyperPod)"]),
        (b"srun -N4 --auto-resume 1 ./train.sh", ["srun --auto-resume (HyperPod)"]),
        (b"srun --auto-resume=0 ./train.sh\n# srun --auto-resume=1", []),
        (b"srun ft_launcher --nnodes 4 train.py", ["NVRx's ft_launcher"]),
        (b"srun torchrun --max-restarts=3 train.py", []),
        (b'#SBATCH --comment=\'{"APS": {"auto_resume_mode": "requeue"}}\'', ["NVIDIA's job recovery (AJR)"]),
        (b"srun python -m submitit.core._submit /x", ["submitit"]),
        (b"trap 'scontrol requeue $SLURM_JOB_ID' USR1", ["the script's own scontrol requeue"]),
        (b"#SBATCH --requeue\npython train.py", []),
    ],
)
def test_other_tools_that_restart_are_known_by_their_words(text: bytes, names: list[str]) -> None:
    """Not in a comment, and not where they are switched off."""
    assert [one.name for one in script_check.restarters(b"#!/bin/bash\n" + text + b"\n")] == names


def _asked(folder: Path, body: str, *words: str) -> Submission:
    (folder / "job.sh").write_text(f"#!/bin/bash\n{body}\n")
    asked = Submission([*words, "job.sh"], {b"PATH": os.environb[b"PATH"], b"HOME": bytes(folder)})
    arguments.read_submission(asked)
    return asked


def test_who_restarts_within_the_job_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a person said how long; who starts jobs is not waited for."""
    monkeypatch.chdir(tmp_path)
    auto = _asked(tmp_path, "srun --auto-resume=1 x")
    told = script_check.heed_restarters(auto)
    assert auto.config.number("own-restart") == 1800.0
    assert auto.config.layers()["own-restart"] == "script"
    assert "acts first, ftrun waits 30 min" in told[0]
    assert (
        _asked(tmp_path, "srun --auto-resume=1 x", "--ft-own-restart=5m").config.number("own-restart")
        == 300.0
    )
    other = _asked(tmp_path, "scontrol requeue $SLURM_JOB_ID")
    told = script_check.heed_restarters(other)
    assert other.config.number("own-restart") == 0.0
    assert "let one of the two do it" in told[0]
    assert script_check.heed_restarters(_asked(tmp_path, "srun x")) == []


def test_what_is_missing_to_resume_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting, a folder that is not there, nothing in it yet; then what matches."""
    monkeypatch.chdir(tmp_path)
    assert "no checkpoint setting" in script_check.checkpoint_line(_asked(tmp_path, "srun x"))
    asked = _asked(tmp_path, "srun x", "--ft-checkpoint=out/ckpt/step_*")
    assert script_check.checkpoint_line(asked).endswith(f"yet, and there is no {tmp_path}/out/ckpt")
    (tmp_path / "out" / "ckpt").mkdir(parents=True)
    assert script_check.checkpoint_line(asked).endswith(f"in {tmp_path} yet")
    assert "resume: nothing passes a checkpoint on" in "\n".join(script_check.check_lines(asked))
    (tmp_path / "out" / "ckpt" / "step_5").mkdir()
    assert script_check.checkpoint_line(asked) == ""
    told = "\n".join(
        script_check.check_lines(_asked(tmp_path, "x $FTRUN_RESUME_FROM", "--ft-checkpoint=out/ckpt/step_*"))
    )
    assert f"1 match now, the youngest is {tmp_path}/out/ckpt/step_5" in told
    assert "reads FTRUN_RESUME_" in told


@pytest.mark.parametrize(
    ("body", "lost"),
    [
        ("python train.py", True),
        ('python train.py  # "$@"\necho $?', True),
        ('python train.py "$@"', False),
        ("srun python train.py \\\n  ${@:2}", False),
        ("python train.py $1", False),
        ('x=(python "$*")', False),
    ],
)
def test_a_resume_argument_that_reaches_no_program_is_told(
    body: str, lost: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is appended to the arguments of the script, which has to hand them on."""
    monkeypatch.chdir(tmp_path)
    asked = _asked(tmp_path, body, "--ft-resume-arg=--resume={checkpoint}")

    line = script_check.arguments_line(asked)

    assert ('end the line that trains by "$@"' in line) == lost
    assert (f"arguments: {line}" in script_check.check_lines(asked)) == lost
    assert script_check.arguments_line(_asked(tmp_path, body)) == ""


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ((), ""),
        (("-o", "logs/%x-%j.out"), "logs"),
        (("-o", "there/%x.out"), ""),
        (("-o", "there/%x/%j.out"), "there/name"),
        (("-o", "there/%j/%x.out"), ""),  # the number is not known yet
        (("-e", "logs/err"), "logs"),
        (("--chdir", "nowhere", "-o", "x.out"), "nowhere"),
        (("-o", "/dev/null"), ""),
    ],
)
def test_a_folder_for_the_output_that_does_not_exist_is_named(
    words: tuple[str, ...], missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    asked = _asked(tmp_path, "python train.py", "-J", "name", *words)

    line = script_check.log_folder_line(asked)

    assert line.endswith(f"mkdir -p {tmp_path / missing}" if missing else "")
    assert bool(line) == bool(missing)
    assert (f"output: {line}" in script_check.check_lines(asked)) == bool(missing)
