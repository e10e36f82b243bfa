"""What is said of a script's containers before it waits in the queue."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.supervisor.submission import container_calls

HOME = "/home/u/.local/state/ftrun"
THERE = {"/lustre/ckpt", "/lustre/code", "/home/u"}
SAVES = {
    "checkpoint": ["/lustre/ckpt/step-*"],
    "resume-arg": ["--load={checkpoint}"],
    "agent": "auto",
    "container-mounts": "auto",
}


def told(script: str, **settings: object) -> list[str]:
    text = f"#!/bin/bash\n{script}\n".encode()
    return container_calls.remarks(text, {"HOME": "/home/u"}, SAVES | settings, HOME, THERE.__contains__)


@pytest.mark.parametrize(
    "script",
    [
        "python train.py",
        "srun python train.py",
        "srun --container-image=i --container-mounts=/lustre/ckpt:/ckpt python train.py",  # translated
        "srun --container-image i --container-mounts /lustre/ckpt python train.py",
        "srun --container-image=i --container-mounts=/lustre/ckpt:/lustre/ckpt:ro,/lustre/code python train.py",
        "M=/lustre/ckpt:/ckpt\nsrun \\\n  --container-image=i \\\n  --container-mounts=$M,/lustre/code:/c python train.py",
        "srun --container-image=i --container-mounts=$1 python train.py",  # nobody knows
        'srun --container-image=i --container-mounts="$(mounts)" python train.py',
        "srun --container-image=i python train.py",  # the site's own mounts
        "srun apptainer exec --nv -B /lustre/ckpt image.sif python train.py",
        "srun apptainer exec image.sif python train.py --bind /x",
        "srun podman run --rm -v /lustre/ckpt:/lustre/ckpt -v $FTRUN_RUN_DIR:$FTRUN_RUN_DIR --env FTRUN_* --env SLURM* i python train.py",
        "# srun --container-image=i --container-mounts=/none:/x a",
        "h=${FTRUN_RUN_DIR%/runs/*}\nsrun podman run -v \"$h:$h\" -v /lustre/ckpt:/lustre/ckpt --env 'FTRUN_*' --env 'SLURM*' i a",
        "h=${FTRUN_RUN_DIR%/runs/*}\nexport APPTAINER_BIND=$h\nsrun apptainer exec -B /lustre/ckpt i.sif python3 a",
        "echo 'podman run' is not called here",
        "podman pull image",
        "#SBATCH --container-image=i\n#SBATCH --container-mounts=/home/u:/home/u",
        "#SBATCH --container-image=i --container-mount-home",
        'srun --container-image="i" --container-mounts="/lustre/ckpt:/lustre/ckpt,/lustre/code" bash -c "a\n  b"',
    ],
)
def test_what_works_is_not_spoken_of(script: str) -> None:
    """Also where nobody can tell by the words alone."""
    assert [] == told(script)


@pytest.mark.parametrize(
    ("script", "settings", "line", "what"),
    [
        ("srun --container-image=i --container-mounts=/lustre/dtaa:/data,/lustre/ckpt a", {}, 2, "/lustre/dtaa is to be mounted and does not exist"),
        ("D=/lustre/dtaa\nsrun --container-image=i --container-mounts=${D}:/data,/lustre/ckpt a", {}, 3, "/lustre/dtaa"),
        ("srun --container-image=i --container-mounts=/lustre/code:/c a", {}, 2, "no mount of /lustre/ckpt"),
        ("srun --container-image=i --container-mounts=/lustre/ckpt:/ckpt a", {"checkpoint": ["/ckpt/run1/step-*"]}, 2, "write checkpoint=/lustre/ckpt/run1/step-*"),
        ("apptainer exec -B /lustre/ckpt:/ckpt i.sif a", {}, 2, "which is /ckpt in the container: mount it under the same path"),
        ("srun podman run -v /lustre/ckpt:/lustre/ckpt i a", {}, 2, "gets no $FTRUN_RUN_DIR and the variables FTRUN_* and SLURM_*"),
        ("docker run --env-host -v /lustre/ckpt:/lustre/ckpt i a", {}, 2, "gets no $FTRUN_RUN_DIR:"),
        ("apptainer exec --cleanenv -B /lustre/ckpt i.sif a", {}, 2, "gets no the variables"),
        ("#SBATCH --container-image=i", {}, 2, "the batch script itself runs in the container"),
        ("srun --container-image=i --container-mounts=/lustre/ckpt a", {"container-mounts": "never"}, 2, "gets no $FTRUN_RUN_DIR:"),
    ],
)  # fmt: skip
def test_what_the_container_will_not_see_is_said(
    script: str, settings: dict[str, object], line: int, what: str
) -> None:
    """With the line of the script, and what to write where that is certain."""
    (said,) = told(script, **settings)

    assert said.startswith(f"line {line}: ")
    assert what in said


def test_other_languages_are_not_read() -> None:
    """A Python script that speaks of containers calls nothing by these words."""
    text = b"#!/usr/bin/env python3\nsrun --container-image=i --container-mounts=/none a\n"

    assert [] == container_calls.remarks(text, {}, SAVES, HOME, THERE.__contains__)


WORDS = (
    "srun",
    "podman",
    "run",
    "apptainer",
    "exec",
    "--container-image=i",
    "--container-mounts=",
    "-v",
    "/lustre/ckpt:",
    ":",
    ",",
    "$",
    "'",
    '"',
    "\\",
    "\n",
    "#SBATCH ",
    "=",
)


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=3), max_size=20))
def test_no_script_is_too_odd(words: list[str]) -> None:
    """What is said is a few lines, whatever stands in the script: a submission never fails of it."""
    assert len(told(" ".join(words))) <= container_calls.REMARKS_MAX


def test_a_home_of_the_sites_is_not_shown_by_apptainer() -> None:
    """It shows the user's home folder only, unless a variable tells it more."""
    text = b"#!/bin/sh\napptainer exec -B /lustre/ckpt i.sif python3 a\n"
    (said,) = container_calls.remarks(text, {"HOME": "/home/u"}, SAVES, "/lustre/ftrun/u", THERE.__contains__)

    assert "gets no $FTRUN_RUN_DIR:" in said
    bound = {"HOME": "/home/u", "APPTAINER_BIND": "/lustre"}
    assert [] == container_calls.remarks(text, bound, SAVES, "/lustre/ftrun/u", THERE.__contains__)
