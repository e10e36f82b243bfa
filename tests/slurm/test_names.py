"""Names for completion, on a real Slurm: what the cluster knows, nothing where it does not answer. (I/O)"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ftrun.slurm.commands import completion_names
from ftrun.slurm.sandbox.handle import Sandbox

pytestmark = pytest.mark.slurm
TIMEOUT_S = 60.0


def test_partitions_nodes_and_reservations_are_those_of_the_cluster(slurm_sandbox: Sandbox) -> None:
    """Folded lists are unfolded, each name comes once, and what the caller's environment says of formats or filters changes nothing."""
    env = {**slurm_sandbox.env(), "SINFO_FORMAT": "%t", "SINFO_PARTITION": "none"}
    words = "ReservationName=upkeep StartTime=now+300days Duration=60 Users=root Nodes=n3"
    slurm_sandbox.run(["scontrol", "create", "reservation", *words.split()], check=True)
    try:
        found = {
            kind: completion_names.names(kind, "root", env, timeout_s=TIMEOUT_S)
            for kind in sorted(completion_names.KINDS)
        }
    finally:
        slurm_sandbox.run(["scontrol", "delete", "ReservationName=upkeep"], check=True)

    assert {
        "account": [],  # without accounting nobody has one
        "node": list(slurm_sandbox.node_names),
        "partition": sorted(
            {line.rstrip("*") for line in slurm_sandbox.run(["sinfo", "-ho%P"], check=True).stdout.split()}
        ),
        "qos": [],
        "reservation": ["upkeep"],
    } == found


def test_tab_offers_what_the_cluster_knows(slurm_sandbox: Sandbox) -> None:
    """Behind sbatch's options and ours, in lists as well."""
    nodes = list(slurm_sandbox.node_names)
    first = slurm_sandbox.run(["sinfo", "-ho%R"], check=True).stdout.split()[0]
    offered = [
        _offered(slurm_sandbox, *words)
        for words in (
            ("sbatch", "-p", first[:2]),
            ("sbatch", "-x", "n0,n"),
            ("sbatch", "--nodelist=n1"),
            ("nodes", "exclude", "n0", "n"),
        )
    ]

    assert first in offered[0]
    assert [[f"n0,{node}" for node in nodes], ["--nodelist=n1"], nodes] == offered[1:]


def test_a_controller_that_is_not_there_offers_nothing(slurm_sandbox: Sandbox) -> None:
    """Neither words nor a wait: the timer is over, or there is no configuration to ask by."""
    nowhere = {**slurm_sandbox.env(), "SLURM_CONF": "/no/such/slurm.conf"}

    assert [] == completion_names.names("partition", "root", nowhere, timeout_s=TIMEOUT_S)
    assert [] == completion_names.names("partition", "root", slurm_sandbox.env(), timeout_s=0.0)
    assert [] == completion_names.names(
        "partition", "root", {**slurm_sandbox.env(), "PATH": "/none"}, timeout_s=0.0
    )


def _offered(box: Sandbox, *words: str) -> list[str]:
    argv = [sys.executable, "-m", "ftrun.supervisor", "__complete", "zsh", "ftrun", *words]
    done = subprocess.run(argv, env={**os.environ, **box.env()}, capture_output=True, text=True, timeout=120)
    assert (0, "") == (done.returncode, done.stderr)
    return done.stdout.split()
