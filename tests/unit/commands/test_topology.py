"""Laws of asking for the topology: it is a hint, and nobody waits for it. (I/O)"""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.slurm.commands.cluster import CommandCluster

ANSWER = "echo 'SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[0-1]'"
HIDDEN = "echo 'scontrol: error: Access/permission denied' >&2; exit 1"
DOWN = "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1"


@pytest.mark.parametrize("failure", [HIDDEN, DOWN])
def test_who_asks_for_the_topology_has_what_was_told_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    """Nothing at first, then the last answer, for ever; a failure is asked for again after a minute, an answer after an hour."""
    now_s, asked = 1e6, tmp_path / "asked"
    monkeypatch.setattr("ftrun.slurm.commands.cluster.time.monotonic", lambda: now_s)
    slurm = CommandCluster({"PATH": f"{tmp_path}:/usr/bin:/bin"}, user="u")

    def leaves_after(seconds: float, command: str) -> tuple[bool, int]:
        nonlocal now_s
        now_s += seconds
        (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho >>{asked}\n{command}\n")
        (tmp_path / "scontrol").chmod(0o755)
        return slurm.topology().leaves == {"s0": ("n0", "n1")}, len(asked.read_text().split("\n")) - 1

    assert leaves_after(0.0, failure) == (False, 1)
    assert leaves_after(59.0, ANSWER) == (False, 1)
    assert leaves_after(2.0, ANSWER) == (True, 2)
    assert leaves_after(3599.0, failure) == (True, 2)
    assert leaves_after(2.0, failure) == (True, 3)
    assert leaves_after(59.0, failure) == (True, 3)
    assert leaves_after(2.0, failure) == (True, 4)
