"""Compile caches of a run on real Slurm: what one attempt compiled the next one finds before its script starts, on other nodes too."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.submission import library_env
from ftrun.supervisor.submission.compose import compose
from tests.begin_lines import without_begin_lines
from tests.slurm.post import Post
from tests.unit.lives import put_node_side

pytestmark = pytest.mark.slurm

COMPILES = """#!/bin/sh
mkdir -p "$TRITON_CACHE_DIR/h1"
echo compiled >"$TRITON_CACHE_DIR/h1/kernel.ttir"
touch -d '1 minute ago' "$TRITON_CACHE_DIR/h1/kernel.ttir"
exit 1
"""
LOOKS = '#!/bin/sh\nsrun -N2 cat "$TRITON_CACHE_DIR/h1/kernel.ttir"\n'
TRANSIENT = "gpu01:81:90 [0] ncclNet.cc:10 RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error, NCCL version 2.20.5"
AT_ONCE = (b"[ $((_ft_now - _ft_since)) -ge 5 ] 2>/dev/null && ! _ft_is", b"[ 5 -ge 5 ] && ! _ft_is")
LIMIT_S = 240.0  # only what hangs takes so long, however loaded the machine is
STARTS_TWICE = f"""
so="$TORCHINDUCTOR_CACHE_DIR/ab/cab.main.so" kept="$TORCHINDUCTOR_CACHE_DIR/ab/cab.main.cpp"
echo "step $FTRUN_START loss 2.5"
if [ "$FTRUN_START" = 1 ]; then
    # The other nodes were not asked yet, so the script is told nothing, and its tasks are.
    [ -z "$TORCHINDUCTOR_CACHE_DIR" ] || echo told >>starts
    srun -N1 -n1 sh -c 'd=${{TORCHINDUCTOR_CACHE_DIR:?}}/ab; mkdir -p "$d"; echo "int main;" >"$d/cab.main.cpp"; printf "\\177ELF" >"$d/cab.main.so"'
    echo "{TRANSIENT}"
    exit 1
fi
[ -e "$so" ]; echo "torn $?" >>starts
[ -e "$kept" ]; echo "whole $?" >>starts
echo "$FTRUN_CACHE_DIR" >>starts
sleep 1
exit 0
"""


class Run:
    """A run whose attempts are submitted by hand, each with a folder of its own on its nodes, as on a machine of their own."""

    def __init__(self, box: Sandbox, folder: Path) -> None:
        self.box, self.folder = box, folder
        self.run_dir = folder / "home" / "runs" / "r"
        self.run_dir.mkdir(parents=True)
        put_node_side(str(folder / "home"))

    def local(self, attempt: int) -> Path:
        """The folder on the nodes of an attempt."""
        return self.folder / f"ftrun-cache-{attempt}"

    def play(self, attempt: int, script: str, nodes: int = 2) -> str:
        """Submit, wait for the end, and return the log."""
        (self.run_dir / "attempts" / str(attempt)).mkdir(parents=True)
        facts = {
            "run": "r",
            "attempt": str(attempt),
            "token": "t",
            "run_dir": str(self.run_dir),
            "cluster": "c",
        }
        facts |= {
            "caches": f"1000000 {self.local(attempt)}",
            "cache_exports": library_env.export_lines(library_env.CACHES, "auto"),
        }
        composed = compose(script.encode(), facts)
        assert AT_ONCE[0] in composed
        (self.folder / "script").write_bytes(composed.replace(*AT_ONCE))
        command = ["sbatch", "--parsable", f"-N{nodes}", "-o", f"log.{attempt}", "script"]
        job = self.box.run(command, cwd=self.folder, check=True).stdout.strip()
        deadline = time.monotonic() + LIMIT_S
        while (
            "JobState=RUNNING" in (row := self._row(job))
            or "JobState=PENDING" in row
            or "JobState=COMPLETING" in row
        ):
            assert time.monotonic() < deadline, row
            time.sleep(0.1)
        return without_begin_lines((self.folder / f"log.{attempt}").read_text())

    def _row(self, job: str) -> str:
        return self.box.run(["scontrol", "-o", "show", "job", job]).stdout


@pytest.fixture
def run(slurm_sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return Run(slurm_sandbox, tmp_path)


def test_the_next_attempt_starts_with_what_the_last_one_compiled(run: Run) -> None:
    """One pack in the run's folder, filled in on every node before the script starts; damaged, it costs the warm start and nothing else."""
    run.play(1, COMPILES, nodes=1)
    (pack,) = (run.run_dir / "caches").glob("*/*.pack")

    assert run.play(2, LOOKS) == "compiled\ncompiled\n"
    reports = [
        json.loads(path.read_text()) for path in (run.run_dir / "attempts" / "2" / "nodes").glob("caches.0.*")
    ]
    assert len(reports) == 2
    pack.write_bytes(pack.read_bytes()[:-4])
    assert "No such file" in run.play(3, LOOKS)


def test_a_start_in_the_same_allocation_finds_its_caches_without_what_a_killed_compiler_left(
    slurm_sandbox: Sandbox, make_post: Callable[..., Post]
) -> None:
    """The sweep between two starts removes the library that is cut, which would end the process that loads it, and keeps what is whole."""
    post = make_post(slurm_sandbox)

    job = post.sbatch(STARTS_TWICE, "-N2", f"--ft-cache-base={post.folder}")

    post.until(
        lambda: (post.work / "starts").exists() and job not in post.call("squeue", "-h", "-o", "%A"),
        "the job is over",
    )
    starts = post.work.joinpath("starts").read_text().splitlines()
    assert starts[:2] == ["torn 1", "whole 0"]
    assert Path(starts[2]).parent == post.folder / f"ftrun-{os.getuid()}"
    assert not Path(starts[2]).exists()  # the run is over
