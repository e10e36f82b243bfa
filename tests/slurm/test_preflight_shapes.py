"""Laws of the checks before the script of odd jobs, and of the user's own: components, tasks, jobs of one node, all nodes. (I/O)"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.model.run import Run
from tests.slurm.post import Post, posts

pytestmark = pytest.mark.slurm

SICK = json.dumps({"disk-size root": {"size_gb": 10**9}})


@pytest.fixture
def post(slurm_sandbox: Sandbox) -> Iterator[Post]:
    with posts(slurm_sandbox) as make:
        yield make()


def _sick(post: Post, *nodes: str) -> str:
    """These nodes fail a check; the option that says so."""
    for node in nodes:
        (post.folder / f"{node}.json").write_text(SICK)
    return f"--ft-checks={post.folder}/{{node}}.json"


def _brief(run: Run) -> tuple[int, str]:
    return len(run.attempts), run.state.value


@pytest.mark.drills
def test_all_components_of_a_heterogeneous_job_are_checked(post: Post) -> None:
    """The sick node of the second component keeps the script from starting; neither component gets it again."""
    post.supervise()
    parts = ("-N1", "-w", "n0", "--oversubscribe", ":", "-N1", "-w", "n1", "--oversubscribe")
    job = post.sbatch("echo trained\n", "--ft-preflight", _sick(post, "n1"), *parts)
    run = post.until_state("finished", "stopped", job=job)

    assert ("finished", 2, 0) == (run.state.value, len(run.attempts), run.retries), post.story()
    assert ("n1",) == run.incidents[0].nodes
    assert "n1" not in run.attempts[1].reach
    assert [("start", "2")] == [tuple(line.split()[:2]) for line in post.ledger()]


@pytest.mark.drills
def test_a_job_of_one_node_is_compared_with_its_kind(post: Post) -> None:
    """Without earlier jobs it starts; after three nodes that were well it is held; what the node before it showed, too, is the site's.
    The tasks of an array are held likewise, and come back without that node.
    """
    post.supervise()
    sick = _sick(post, "n1")
    words = ("--oversubscribe", "--ft-preflight", sick)
    first = post.sbatch("echo trained\n", "-N1", "-w", "n1", *words, name="first.sh")
    assert (1, "finished") == _brief(post.until_state("finished", "stopped", job=first))
    three = post.sbatch("echo trained\n", "-N3", "-w", "n[0,2-3]", *words, name="three.sh")
    assert (1, "finished") == _brief(post.until_state("finished", "stopped", job=three))
    alone = post.sbatch("echo trained\n", "-N1", "-w", "n1", *words, name="alone.sh")
    run = post.until_state("finished", "stopped", job=alone)

    assert (2, "finished") == _brief(run), post.story()
    assert ("n1",) == run.incidents[0].nodes
    assert (0, {"preflight": 1}) == (run.retries, dict(run.spent))
    log = post.job_log("alone.sh")
    assert "compared with 3 nodes of its kind in earlier jobs" in log
    array = post.sbatch(
        "echo trained $SLURM_ARRAY_TASK_ID\n", "-N1", "-w", "n1", "--array=3,5", *words, name="array.sh"
    )
    tasks = post.until_state("finished", "stopped", job=array)
    assert (2, "finished") == _brief(tasks), post.story()
    assert ((3, 5), ("n1",)) == (tasks.attempts[1].tasks, tasks.incidents[0].nodes)
    assert (0, {"preflight": 1}) == (tasks.retries, dict(tasks.spent))

    _sick(post, "n2", "n3")
    for node, attempts in (("n2", 2), ("n3", 1)):
        job = post.sbatch("echo trained\n", "-N1", "-w", node, *words, name=f"{node}.sh")
        # n2 is the first to show it, and is held; n3 shows it as well, and then it is the site's.
        assert (attempts, "finished") == _brief(post.until_state("finished", "stopped", job=job)), (
            post.story()
        )


def test_a_pre_hook_runs_on_all_nodes_and_may_hold_the_start(post: Post) -> None:
    """The nodes where it fails are avoided, at no cost; where it fails on most, or hangs alone, one more attempt is made, and then the run stops and says so."""
    post.supervise()
    hook = "echo here $SLURMD_NODENAME $FTRUN_HOOK; [ $SLURMD_NODENAME != n1 ]"
    words = ("--oversubscribe", "--ft-pre-hook", hook, "--ft-pre-hook-where=all-nodes")
    told = post.sbatch("echo trained\n", "-N2", "-w", "n[0-1]", *words, name="told.sh")
    held = post.sbatch(
        "echo trained\n", "-N2", "-w", "n[0-1]", *words, "--ft-pre-hook-failed=hold", name="held.sh"
    )
    het = ("-N1", "-w", "n0", "--oversubscribe", ":", "-N1", "-w", "n2", "--oversubscribe")
    parts = post.sbatch("echo trained\n", *words[1:], "--ft-pre-hook-failed=hold", *het, name="parts.sh")
    hangs = "[ $SLURMD_NODENAME != n1 ] || { trap '' TERM; sleep 7531; }"
    stuck = post.sbatch("echo trained\n", "-N2", "-w", "n[0-1]", "--oversubscribe", "--ft-pre-hook", hangs, "--ft-pre-hook-where=all-nodes", "--ft-hook-limit=2", name="stuck.sh")  # fmt: skip
    never = post.sbatch("echo trained\n", "-N1", "--oversubscribe", "--ft-pre-hook=sleep 600", "--ft-hook-limit=2", "--ft-pre-hook-failed=hold", name="never.sh")  # fmt: skip

    assert (1, "finished") == _brief(post.until_state("finished", "stopped", job=told))
    log = Path(post.run_dir(told), "attempts", "1", "pre-hook.0.log").read_text()
    assert {"0: here n0 pre-hook", "1: here n1 pre-hook"} <= set(log.splitlines()), log
    run = post.until_state("finished", "stopped", job=held)
    assert (2, "finished") == _brief(run), post.story()
    assert (("n1",), 0, {"preflight": 1}) == (run.incidents[0].nodes, run.retries, dict(run.spent))
    assert "preflight.pre-hook" == run.incidents[0].signature
    assert "n1" not in run.attempts[1].nodes
    assert (1, "finished") == _brief(post.until_state("finished", "stopped", job=parts))
    log = Path(post.run_dir(parts), "attempts", "1", "pre-hook.0.log").read_text()
    assert {"0: here n0 pre-hook", "0: here n2 pre-hook"} <= set(log.splitlines()), log
    assert (1, "finished") == _brief(post.until_state("finished", "stopped", job=stuck))
    assert "limit" == post.run(stuck).hooks["pre-hook.1.0"]
    run = post.until_state("finished", "stopped", job=never)
    assert (2, "stopped") == _brief(run), post.story()
    assert "pre-hook took longer than its limit" in run.final_reason
    assert "pre-hook failed, and pre-hook-failed is hold" in post.job_log("never.sh")
    assert ["told.sh", "held.sh", "parts.sh"] == [
        name for name in ("told.sh", "held.sh", "parts.sh", "never.sh") if "trained" in post.job_log(name)
    ]
