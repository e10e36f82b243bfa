"""Laws of trying the network by a step of a job, on real Slurm. (I/O)"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox

pytestmark = pytest.mark.slurm

# On n1 every chunk of a stream costs a pause, as on a link that loses packets.
WORKER = """
import os, socket, sys, time
from ftrun.hooks import main
from ftrun.hooks.health import pair_test

def pour(connection, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection.sendall(bytes(1 << 13))
        time.sleep(0.1)

if os.environ["SLURMD_NODENAME"] == "n1":
    pair_test._pour = pour
sys.exit(main.main(["pair-test", *sys.argv[1:]]))
"""
# Well below what a node that is merely busy shows.
LIMITS = ("--seconds", "1", "--limit", "120", "--share", "0.02", "--slower", "100000", "--json")


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="ftrun-t-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def test_a_step_on_all_nodes_names_the_slow_one(slurm_sandbox: Sandbox, folder: Path) -> None:
    """Its nodes are those of the job, they meet in a folder, and the step fails with the verdict."""
    command = ["srun", "-N4", "--ntasks-per-node=1", "--immediate=120", sys.executable, "-P", "-c", WORKER]
    told = subprocess.run(
        [*command, "--folder", str(folder), "--address", "127.0.0.1", *LIMITS],
        capture_output=True,
        text=True,
        timeout=240,
        env=slurm_sandbox.env(),
    )
    verdict = json.loads(told.stdout)

    assert ["n1"] == list(verdict["bad"]), told
    assert ([], [], "") == (verdict["absent"], verdict["untried"], verdict["site"])
    assert 0 != told.returncode
