"""A node on which every job dies of what looks like the program's own fault, on real Slurm."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.post import Post

pytestmark = pytest.mark.slurm

BAD, GOOD = "n0", ("n1", "n2", "n3")
DIES_THERE = f"""
echo "starting on $SLURMD_NODENAME"
if [ "$SLURMD_NODENAME" = {BAD} ]; then
    echo 'Traceback (most recent call last):'
    echo '  File "train.py", line 3, in <module>'
    echo "ValueError: the checksum of the batch is wrong"
    exit 1
fi
exit 0
"""
ROUNDS = 5


def _told(post: Post, *words: str) -> Any:
    return json.loads(post.ftrun("nodes", *words, "--json"))


@pytest.mark.drills
def test_a_node_on_which_every_job_dies_is_avoided_by_the_next_run(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[..., Post]
) -> None:
    """Each job that lands there dies as if it were its own fault; the same work passes elsewhere.

    First that costs each its run. Then the node is a suspect, and a run that dies there is tried elsewhere. Then
    no new run starts there. `ftrun nodes` shows the arithmetic, and nothing was drained.
    """
    post = make_post(make_sandbox(nodes=4))
    post.supervise()

    own_log = f"--output={post.work}/%j.log"

    def ended(job: str, *states: str) -> Any:
        return post.until_state(*states, job=job)

    tried_elsewhere = 0
    for _ in range(ROUNDS):
        bad = post.sbatch(DIES_THERE, "-N1", own_log, name="train.sh")
        run = ended(bad, "stopped", "finished")
        if run.attempts[0].nodes != (BAD,):
            break
        tried_elsewhere += len(run.attempts) > 1
        if len(run.attempts) > 1:
            assert run.attempts[1].nodes != (BAD,)
            assert run.incidents[0].nodes == (BAD,)
            assert any("by chance 1 in" in words for words in run.incidents[0].diagnosis["rests_on"])
        good = [
            post.sbatch(DIES_THERE, "-N1", own_log, f"-w{node}", name="train.sh")
            for node in (*GOOD, *GOOD[:2])
        ]
        for job in good:
            ended(job, "finished")

    (row,) = [row for row in _told(post)["nodes"] if row["node"] == BAD]
    assert row["quarantined"], row
    assert "by chance 1 in" in row["why"]
    last = ended(post.sbatch(DIES_THERE, "-N1", own_log, name="train.sh"), "finished")
    assert tried_elsewhere >= 1
    assert len(last.attempts) == 1
    assert last.attempts[0].nodes[0] in GOOD
    assert post.call("sinfo", "-h", "-n", BAD, "-o", "%T").strip() == "idle"

    post.ftrun("nodes", "release", BAD, "--reason", "its memory was replaced")
    assert not _told(post, "show", BAD)["quarantined"]
