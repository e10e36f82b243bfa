"""Nodes of a sandbox with memory of their own, on real Slurm."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.post import boxes

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    """Two nodes of 16 MiB each."""
    with boxes() as make:
        yield make(nodes=2, shm_mib=16, ssh=os.geteuid() == 0)


def _on(box: Sandbox, node: str, script: str) -> str:
    return box.run(["srun", "-N1", "-w", node, "sh", "-c", script], check=True).stdout.strip()


def test_what_a_node_has_in_memory_no_other_node_sees_and_a_crash_empties_it(box: Sandbox) -> None:
    """/dev/shm of a node is as large as was asked for, seen by all that runs there, by nobody else, and gone with the node."""
    _on(box, "n0", "echo here > /dev/shm/mine")

    assert _on(box, "n0", "cat /dev/shm/mine; df --output=size -BM /dev/shm | tail -n 1").split() == [
        "here",
        "16M",
    ]
    assert _on(box, "n1", "ls /dev/shm") == ""
    assert not Path("/dev/shm/mine").exists()
    if box.ssh_config is not None:
        words = ["ssh", "-F", str(box.ssh_config), "n0", "cat /dev/shm/mine"]
        assert subprocess.run(words, capture_output=True, text=True).stdout == "here\n"

    box.crash("n0")
    box.mend("n0")

    assert _on(box, "n0", "ls /dev/shm") == ""


def test_memory_of_a_node_can_be_full(box: Sandbox) -> None:
    """What does not fit is refused by the kernel, as on a machine."""
    said = _on(box, "n1", "dd if=/dev/zero of=/dev/shm/much bs=1M count=20 2>&1; rm /dev/shm/much")

    assert "No space left on device" in said
