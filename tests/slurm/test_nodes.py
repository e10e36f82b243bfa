"""The ledger of nodes on real Slurm: what one run met, another one avoids; and what people see of it."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.commands import CommandCluster
from ftrun.slurm.sandbox import Sandbox, up
from tests.slurm.post import OFF_THE_BUS, Post, posts

pytestmark = pytest.mark.slurm

BAD_GPU_ONCE = f'[ "$FTRUN_ATTEMPT" = 1 ] && {{ echo "{OFF_THE_BUS}"; exit 1; }}\nexit 0\n'
PORT_ONCE = """
[ "$FTRUN_ATTEMPT" = 1 ] && { echo "OSError: [Errno 98] Address already in use"; exit 1; }
exit 0
"""


def _told(post: Post, *words: str) -> Any:
    return json.loads(post.ftrun("nodes", *words, "--json"))


def test_a_node_that_failed_one_run_is_avoided_by_another(slurm_sandbox: Sandbox) -> None:
    """It shows in `ftrun nodes` with its strike; another run of the user leaves it out where it may, until a person releases it."""
    with posts(slurm_sandbox) as make:
        post = make()
        post.supervise()
        first = post.sbatch(BAD_GPU_ONCE, "-N1", name="first.sh")
        bad = post.until_state("finished", job=first).attempts[0].nodes[0]

        (row,) = _told(post)["nodes"]
        assert (row["node"], row["strikes"], row["quarantined"]) == (bad, 1, True)
        assert row["slurm"].startswith("idle")
        second = post.sbatch(PORT_ONCE, "-N1", name="second.sh")
        third = post.sbatch(PORT_ONCE, "-N1", "--ft-quarantine=never", name="third.sh")
        assert post.until_state("finished", job=second).attempts[1].excluded == (bad,)
        assert post.until_state("finished", job=third).attempts[1].excluded == ()

        assert bad in post.ftrun("nodes", "release", bad, "--reason", "looked at it")
        facts = _told(post, "show", bad)
        assert (facts["quarantined"], facts["open_strikes"]) == (False, [])
        assert [entry["what"] for entry in facts["history"]] == ["incident", "excluded", "released"]
        assert facts["devices"][0]["device"] == "0000:3b:00"


def test_domains_are_the_leaf_switches_of_the_controller() -> None:
    """What topology/tree knows; the switches above are none."""
    folder = Path(tempfile.mkdtemp(prefix="ftrun-t-"))
    switches = "SwitchName=s0 Nodes=n0\nSwitchName=s1 Nodes=n[1-2]\nSwitchName=top Switches=s[0-1]\n"

    def before_it_starts() -> None:
        (folder / "topology.conf").write_text(switches)

    box = up(folder, nodes=3, conf={"TopologyPlugin": "topology/tree"}, on_start=before_it_starts)
    try:
        assert CommandCluster(box.env()).domains() == {"s0": ("n0",), "s1": ("n1", "n2")}
    finally:
        box.down()
        shutil.rmtree(folder, ignore_errors=True)
