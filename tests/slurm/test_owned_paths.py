"""Every file that commands made, under every umask, on real Slurm: each has a row in the table, and nobody else may write it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests import owned_paths
from tests.slurm.post import FTRUN, Post

pytestmark = pytest.mark.slurm

TRANSIENT = "gpu01:81:90 [0] ncclNet.cc:10 RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error, NCCL version 2.20.5"
FAILS_ONCE = f"""
umask >umask
echo "step $FTRUN_START loss 2.5"
srun -N2 sh -c 'mkdir -p "${{TRITON_CACHE_DIR:?}}/k"; echo compiled >"$TRITON_CACHE_DIR/k/x.ttir"'
sleep 3
if [ "$FTRUN_START" = 1 ]; then echo "{TRANSIENT}"; exit 1; fi
sleep 1
"""
COMMANDS = (
    ("status",), ("show", "RUN"), ("logs", "RUN"), ("explain", "RUN"), ("history",), ("stats",), ("nodes",), ("config", "show"),
    ("catalog", "list"), ("cache", "RUN"), ("checkpoints", "RUN"), ("doctor",), ("diagnose", "LOG"), ("cancel", "RUN"), ("prune",),
)  # fmt: skip


@contextmanager
def under(umask: int) -> Iterator[None]:
    """What is started meanwhile has it."""
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)


def amiss(roots: tuple[tuple[str, str], ...]) -> list[str]:
    """A line for each path below the roots that has no row, or a wider mode than its row."""
    told = []
    for path in sorted({path for _, folder in roots for path in _below(folder)}):
        fact = os.lstat(path)
        row, mode = owned_paths.row_of(path, roots), stat.S_IMODE(fact.st_mode)
        if row is None:
            told.append(f"{path}: no row")
        elif stat.S_ISLNK(fact.st_mode):
            continue
        elif (
            mode & ~_at_most(row.mode, is_folder=stat.S_ISDIR(fact.st_mode)) & 0o777
            and not mode & stat.S_ISVTX
        ):
            told.append(f"{path}: {mode:o}, and {row.name} has {row.mode:o}")
    return told


def _at_most(mode: int, *, is_folder: bool) -> int:
    return mode | (mode & 0o444) >> 2 if is_folder else mode


def _below(folder: str) -> Iterator[str]:
    if not folder.endswith(("/tmp", "/base")):  # these the test made
        yield folder
    for above, folders, files in os.walk(folder):
        yield from (os.path.join(above, name) for name in (*folders, *files))


@pytest.mark.parametrize(
    "umask", [0o000, *(pytest.param(one, marks=pytest.mark.drills) for one in (0o002, 0o077))]
)
def test_all_that_a_run_leaves_is_the_users_alone(
    slurm_sandbox: Sandbox, make_post: Callable[..., Post], umask: int
) -> None:
    """A run that failed once, and the commands that tell of it; the script has the umask that the user had."""
    post = make_post(slurm_sandbox)
    shutil.rmtree(post.home)
    tmp, base = post.folder / "tmp", post.folder / "base"
    for folder in (tmp, base):
        folder.mkdir()
    post.env |= {"TMPDIR": str(tmp), "XDG_CACHE_HOME": str(post.folder / "cache")}
    roots = (("home", str(post.home)), ("tmp", str(tmp)), ("cache-base", str(base)))
    with under(umask):
        job = post.sbatch(FAILS_ONCE, "-N2", f"--ft-cache-base={base}")
        supervisor = post.supervise("--until-idle")
        post.until((post.work / "umask").exists, "the script has begun")
        assert int((post.work / "umask").read_text(), 8) == umask
        post.until(lambda: job not in post.call("squeue", "-h", "-o", "%A"), "the job is over")
        supervisor.wait(240)
        for words in COMMANDS:
            named = {"RUN": job, "LOG": str(post.work / "job.sh.log")}
            post.ftrun(*(named.get(word, word) for word in words), code=None)

    assert [] == amiss(roots)
    assert (post.home / "tools").is_dir()


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_sandbox_gives_nothing_of_its_own_to_others(umask: int) -> None:
    """With its sshd, whose keys would let in whoever could write them: as root, to everything."""
    place = tempfile.mkdtemp(prefix="ftrun-t-")
    folder = Path(place, "box")
    with under(umask):
        up = subprocess.run(
            [*FTRUN, "sandbox", "up", "--folder", str(folder), "--nodes", "1", "--ssh", "--gpus", "2"],
            capture_output=True, text=True, timeout=240,
        )  # fmt: skip
    try:
        assert up.returncode == 0, up.stderr
        assert [] == amiss((("sandbox", str(folder)),))
    finally:
        subprocess.run(
            [*FTRUN, "sandbox", "down", "--folder", str(folder)],
            check=False,
            timeout=120,
            capture_output=True,
        )
        shutil.rmtree(place, ignore_errors=True)
