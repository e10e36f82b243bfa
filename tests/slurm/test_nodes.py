"""The ledger of nodes on real Slurm: what one run met, another one avoids; and what people see of it.

The laws wait more than they work, so they are tried side by side, each in a sandbox of its own.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.client.releases import since
from ftrun.slurm.client.topology import parse_topology
from ftrun.slurm.commands.cluster import CommandCluster
from ftrun.slurm.sandbox.boot import slurm_version
from ftrun.slurm.sandbox.lifecycle import up
from tests.slurm.post import OFF_THE_BUS, Post, boxes, posts

pytestmark = pytest.mark.slurm

BAD_GPU_ONCE = f'[ "$FTRUN_ATTEMPT" = 1 ] && {{ echo "{OFF_THE_BUS}"; exit 1; }}\nexit 0\n'
PORT_ONCE = """
[ "$FTRUN_ATTEMPT" = 1 ] && { echo "OSError: [Errno 98] Address already in use"; exit 1; }
exit 0
"""


def _told(post: Post, *words: str) -> Any:
    return json.loads(post.ftrun("nodes", *words, "--json"))


def a_node_that_failed_one_run_is_avoided_by_another() -> None:
    """It shows in `ftrun nodes` with its strike; another run of the user leaves it out where it may, until a person releases it."""
    with boxes() as box, posts(box(nodes=4)) as make:
        post = make()
        post.supervise()
        # Without checks: what they find is told as well, and a busy machine has findings of its own.
        first = post.sbatch(BAD_GPU_ONCE, "-N1", "--ft-after-checks=never", name="first.sh")
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


def a_waiting_job_is_kept_off_quarantined_nodes_and_never_from_running() -> None:
    """Both wait in a full cluster. One runs elsewhere; the other can run nowhere else, so Slurm holds it until it may go there again."""
    with boxes() as up_with, posts(box := up_with(nodes=2)) as make:
        post = make()
        box.run(["scontrol", "update", "NodeName=n1", "AvailableFeatures=special", "ActiveFeatures=special"])
        blocker = post.plain("-N2", "--exclusive", "--wrap=sleep 300")
        picky = post.sbatch("exit 0\n", "-N1", "-Cspecial", name="picky.sh")
        other = post.sbatch("exit 0\n", "-N1", name="other.sh")
        post.ftrun("nodes", "exclude", "n1", "--reason", "rattles")
        post.supervise()
        post.until(lambda: "exclude.done" in post.kinds(other), "the waiting job is kept off")
        shown = post.call("scontrol", "-o", "show", "job", other)
        post.until(lambda: post.kinds(picky).count("exclude.done") == 2, "it gets its own list back")
        post.call("scancel", blocker)

        assert "ExcNodeList=n1" in shown
        assert post.until_state("finished", job=other).attempts[0].nodes == ("n0",)
        assert post.until_state("finished", job=picky).attempts[0].nodes == ("n1",)


def a_new_run_is_kept_off_what_a_person_excluded() -> None:
    """Its very first job; unless only that node will do, the user asks for it, all are needed, or it was released."""
    with boxes() as up_with, posts(box := up_with(nodes=3)) as make:
        post = make()
        box.run(["scontrol", "update", "NodeName=n0", "AvailableFeatures=special", "ActiveFeatures=special"])
        post.supervise()

        def nodes(*words: str) -> tuple[str, ...]:
            return post.until_state("finished", job=post.sbatch("exit 0\n", *words)).attempts[0].nodes

        assert nodes("-N1") == ("n0",)
        assert "avoided by new runs" in post.ftrun("nodes", "exclude", "n0", "--reason", "rattles")
        assert nodes("-N1") == ("n1",)
        assert nodes("-N1", "--exclude=n1") == ("n2",)
        assert nodes("-N3") == ("n0", "n1", "n2")
        assert (
            nodes("-N1", "-Cspecial")
            == nodes("-N1", "-wn0")
            == nodes("-N1", "--ft-quarantine=never")
            == ("n0",)
        )
        post.ftrun("nodes", "release", "n0")
        assert nodes("-N1") == ("n0",)
        post.ftrun("nodes", "exclude", "n0", "--for", "1s")
        post.until(lambda: nodes("-N1") == ("n0",), "its time is over")


def the_topology_is_that_of_the_controller() -> None:
    """What it tells of topology.conf is what the file says: switches everywhere, and blocks where the release has them."""
    texts = ["SwitchName=s0 Nodes=n0\nSwitchName=s1 Nodes=n[1-2]\nSwitchName=top Switches=s[0-1]\n"]
    if since("topology-block", slurm_version()):
        texts.append("BlockName=b0 Nodes=n[0-1]\nBlockName=b1 Nodes=n[2-3]\nBlockSizes=2,4\n")
    for text in texts:
        _told_as_written(text)


def _told_as_written(text: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="ftrun-t-"))
    box = up(folder, nodes=4 if "Block" in text else 3, topology=text)
    try:
        told, written = CommandCluster(box.env()).topology(), parse_topology(text)
        assert (told.kind, told.leaves) == (written.kind, written.leaves)
        assert told.distance("n0", "n1") == written.distance("n0", "n1")
        assert told.distance("n0", "n2") == 1
    finally:
        box.down()
        shutil.rmtree(folder, ignore_errors=True)


LAWS = (
    a_new_run_is_kept_off_what_a_person_excluded,
    a_waiting_job_is_kept_off_quarantined_nodes_and_never_from_running,
    a_node_that_failed_one_run_is_avoided_by_another,
    the_topology_is_that_of_the_controller,
)


@pytest.fixture(scope="module")
def played() -> Iterator[dict[str, Future[None]]]:
    with ThreadPoolExecutor(len(LAWS)) as pool:
        yield {law.__name__: pool.submit(law) for law in LAWS}


@pytest.mark.parametrize("law", [law.__name__ for law in LAWS])
def test_nodes(played: dict[str, Future[None]], law: str) -> None:
    """Each law as its name says."""
    played[law].result()
