"""Nodes borrowed from a pool, and given back, on real Slurm: what one job can have of it, and what a companion can."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from ftrun.slurm.commands.cluster import CommandCluster
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.agent import spanning_limits
from ftrun.supervisor.agent.companion_jobs import READY
from ftrun.supervisor.config import node_counts
from ftrun.supervisor.submission import companion
from tests.slurm.apart import side_by_side
from tests.slurm.post import Post
from tests.slurm.test_agent_companion import _companions, _settled

pytestmark = pytest.mark.slurm


def reserve(at: Post, name: str, node: str) -> None:
    """A site sets a node aside for this user."""
    words = (f"ReservationName={name}", "StartTime=now", "Duration=UNLIMITED", f"Nodes={node}")
    user = at.call("id", "-un").strip()
    at.call("scontrol", "create", "reservation", *words, f"Users={user}")


@pytest.mark.parametrize("kind", [pytest.param("reservation", marks=pytest.mark.drills), "partition"])
@side_by_side
def test_a_companion_is_borrowed_from_the_pool_and_given_back(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[..., Post], kind: str
) -> None:
    """While strangers have all other nodes it is there in seconds; its node is one of the pool, and the pool's again afterwards."""
    conf = {"PartitionName": "spare Nodes=n3 MaxTime=INFINITE State=UP"} if kind == "partition" else {}
    box = make_sandbox(nodes=4, conf=conf)
    at = make_post(box, f'pool = "{kind}:spare"\n')
    if kind == "reservation":
        reserve(at, "spare", "n3")
    companions = _companions(at, "-wn[0-1]")
    at.plain("-N1", "-wn2", "--exclusive", "--wrap", "sleep 300")
    chosen = spanning_limits.pool_with_idle_nodes(companions.ctx, {"pool": f"{kind}:spare"}, 1, ())
    assert chosen == node_counts.Pool(kind, "spare")
    companions.ask(1, (), 600.0, "a node is missing", pool=chosen)
    found = _settled(at, companions)
    assert (found.state, found.nodes) == (READY, ("n3",)), found
    assert companions.ctx.journal.records[0]["data"]["pool"] == f"{kind}:spare"
    assert spanning_limits.pool_with_idle_nodes(companions.ctx, {"pool": f"{kind}:spare"}, 1, ()) is None, (
        "it is lent"
    )
    companions.end(found.number, "the test is over")
    cluster = CommandCluster(box.env())

    def back() -> bool:
        return companion.idle_pool_nodes(cluster, node_counts.Pool(kind, "spare"), cluster.nodes(), ()) == (
            "n3",
        )

    at.until(back, "it is the pool's again")
    told = json.loads(at.ftrun("nodes", "--json"))["pool"]
    assert (told["pool"], [one["node"] for one in told["nodes"]]) == (f"{kind}:spare", ["n3"])
    assert "pool" in at.ftrun("nodes")


@side_by_side
def test_one_job_cannot_have_nodes_of_a_reservation_and_others(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[..., Post]
) -> None:
    """So spares of a job are none of a pool's: Slurm refuses a job that is larger than its reservation, though nodes are idle beside it."""
    at = make_post(make_sandbox(nodes=4))
    reserve(at, "kept", "n2")
    told = at.call("sbatch", "-N2", "--reservation=kept", "--wrap=true", code=1)
    assert "Requested node configuration is not available" in told


def test_a_pool_is_one_of_two_kinds_of_thing(slurm_sandbox: Sandbox, make_post: Callable[..., Post]) -> None:
    """Refused at submission in one line, exit 2."""
    at = make_post(slurm_sandbox)
    path = str(at.script("true\n"))
    for word in ("spare", "node:n3", "reservation:", "partition:a,b"):
        told = at.ftrun("sbatch", f"--ft-pool={word}", path, code=2)
        assert told.startswith("ftrun: "), told
        assert told.count("\n") == 1
