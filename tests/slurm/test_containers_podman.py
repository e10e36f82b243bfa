"""Ranks that podman starts, each in namespaces of its own, below a process that belongs to no step: `make test-containers`."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.slurm.post import Post, boxes, posts
from tests.slurm.test_containers import TRAINER, beats_of, left_of_first, stacks_of_first

pytestmark = [pytest.mark.slurm, pytest.mark.containers]

IMAGE = "localhost/ftrun-test"
# The first start ends and leaves its container behind; a second one goes on beside it unless somebody ends that.
SCRIPT = """
home=${{FTRUN_RUN_DIR%/runs/*}}
run() {{
    srun -N1 -n1 {podman} run --rm --network host -v "$home:$home" -v {data}:/ckpt {options} --env 'FTRUN_*' --env 'SLURM*' \\
        {image} python3 /ckpt/train.py "$@"
}}
if [ "$FTRUN_START" = 1 ]; then
    run "$@" &
    until [ -e {data}/fail ]; do sleep 0.1; done
    echo "ncclRemoteError: remote process exited or there was a network error"
    exit 1
fi
run "$@"
"""


@pytest.fixture(scope="module")
def podman() -> Iterator[str]:
    """podman as words, with a store of its own, and an image that is empty: it is given the host's /usr."""
    if shutil.which("podman") is None:
        pytest.skip("no podman: `make test-containers` installs it")
    with tempfile.TemporaryDirectory(prefix="ftrun-t-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with tarfile.open(folder / "image.tar", "w") as tar:
            for part in ("bin", "sbin", "lib", "lib64"):
                link = tarfile.TarInfo(part)
                link.type, link.linkname = tarfile.SYMTYPE, f"usr/{part}"
                tar.addfile(link)
            for part in ("usr", "etc", "tmp", "ckpt", "proc", "sys", "dev", "run"):
                place = tarfile.TarInfo(part)
                place.type, place.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(place, io.BytesIO())
        runtime = next(tool for tool in map(shutil.which, ("runc", "crun")) if tool)
        words = f"podman --root {folder}/store --runroot {folder}/run --storage-driver vfs --cgroup-manager cgroupfs --runtime {runtime}"
        made = subprocess.run(
            [*words.split(), "import", str(folder / "image.tar"), IMAGE],
            capture_output=True,
            text=True,
            timeout=120,
        )
        if made.returncode:
            pytest.skip(f"podman makes no image here: {made.stderr.strip()}")
        tried = subprocess.run(
            [*words.split(), "run", "--rm", *OPTIONS.split(), IMAGE, "true"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        if tried.returncode:
            pytest.skip(f"podman starts no container here: {tried.stderr.strip()}")
        yield words
        subprocess.run(
            [*words.split(), "rm", "--all", "--force", "--time", "0"], capture_output=True, timeout=120
        )


# What a machine that is itself a container needs: no limits above its own.
OPTIONS = "--ulimit nofile=1024:1024 --ulimit nproc=4096:4096 -v /usr:/usr:ro"


@pytest.fixture(scope="module")
def make() -> Iterator[Callable[..., Post]]:
    with boxes() as box, posts(box(nodes=1)) as post_of:
        yield post_of


def _train(post: Post, podman: str) -> tuple[str, Path]:
    data = post.folder / "data"
    data.mkdir()
    (data / "train.py").write_text(TRAINER)
    script = SCRIPT.format(podman=podman, data=data, image=IMAGE, options=OPTIONS)
    return post.sbatch(script, "-N1", f"--ft-checkpoint={data}/step-*", HOME=str(post.folder)), data


def test_what_a_start_leaves_in_a_container_is_swept(make: Callable[..., Post], podman: str) -> None:
    """A container hangs on no step: it is known by the variables that were passed into it, and no second one trains beside it."""
    post = make()
    _, data = _train(post, podman)
    post.until((data / "step-10").exists, "it saved")
    post.until(lambda: len(beats_of(post, 1)) == 1, "it beats")
    assert left_of_first(post)
    (data / "fail").touch()
    post.until((data / "seen.2.0").exists, "it was started again")

    assert left_of_first(post) == []
    (data / "end").touch()
    (data / "on").touch()
    post.until(lambda: not post.call("squeue", "-h"), "it is over")


def test_the_stacks_of_a_podman_container_are_seen(make: Callable[..., Post], podman: str) -> None:
    """Though it has numbers and a host name of its own."""
    post = make()
    job, data = _train(post, podman)
    post.until(lambda: len(beats_of(post, 1)) == 1 and (data / "step-10").exists(), "it beats")
    rows = [row for row in stacks_of_first(post, job, 1) if row["rank"]]  # the script itself waits by sleep

    assert [row["rank"] for row in rows] == ["0"]
    assert rows[0]["source"] in {"faulthandler", "py-spy"}
    assert "wait" in rows[0]["top"][0]
    post.call("scancel", job)
    post.until(lambda: not post.call("squeue", "-h"), "it is over")
