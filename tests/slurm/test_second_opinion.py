"""A second opinion on real Slurm: a job that dies of what nobody knows, and a model server on loopback."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests.model_server import completion, model_server, opinion, says
from tests.slurm.post import Post

pytestmark = pytest.mark.slurm

DIES_ONCE = """
echo "on $SLURMD_NODENAME: the flux capacitor is not aligned; password=hunter2"
[ "$FTRUN_ATTEMPT" = 1 ] && exit 3
exit 0
"""


def test_the_model_is_asked_once_and_its_suspect_is_avoided(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[..., Post]
) -> None:
    """The next attempt runs elsewhere and finishes; the node stays in service, and `explain` tells whose guess it was."""
    text = opinion(**{"class": "hardware-other"}, reason="the flux capacitor of <node 1> is broken")
    with model_server(says(completion(text))) as server:
        post = make_post(make_sandbox(nodes=3), f"second-opinion = '{server.url}'\n")
        post.supervise()
        job = post.sbatch(DIES_ONCE, "-N1", "--ft-agent=never", f"--output={post.work}/%j.log")
        run = post.until_state("finished", job=job)

        (first, second), (incident,) = run.attempts, run.incidents
        assert first.nodes != second.nodes
        assert (incident.fault, incident.nodes) == ("hardware-other", first.nodes)
        assert incident.decision["exclude"] == incident.decision["drain"] == []
        assert len(server.requests) == 1
        assert "the flux capacitor is not aligned" in server.prompt
        for part in ("hunter2", str(post.work), first.nodes[0] + ":"):
            assert part not in server.prompt
        told = post.ftrun("explain", job)
        assert "for a second opinion about" in told
        assert f"the flux capacitor of {first.nodes[0]} is broken" in told
        assert post.call("sinfo", "-h", "-n", first.nodes[0], "-o", "%T").strip() == "idle"
        post.ftrun("show", job)
