"""Checkpoints that are staged in the memory of the nodes, on real Slurm: plain writes, a killed daemon, memory that is full, no agent."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ftrun.hooks.checkpoints import manifest
from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.apart import side_by_side
from tests.slurm.post import Post

pytestmark = pytest.mark.slurm

MakeBox = Callable[..., Sandbox]
MakePost = Callable[..., Post]

# Ranks that know nothing of ftrun but a path. What writes for them is gone when it is done, so the name tells that it was.
SAVES = """
echo "dir $FTRUN_STAGE_DIR to $FTRUN_STAGE_TO" >>dirs
srun bash -c 'ls -d $FTRUN_STAGE_DIR >>before; d=$FTRUN_STAGE_DIR/step-10; mkdir -p $d.tmp $d; f=$d.tmp/shard-$SLURM_PROCID
    head -c 12000000 /dev/urandom >$f; echo "$(md5sum <$f) shard-$SLURM_PROCID" >>sums; mv $f $d/'
touch saved
until [ -e go ]; do sleep 0.1; done
"""
FILLS = """
echo "dir $FTRUN_STAGE_DIR" >>dirs
srun bash -c 'mkdir -p $FTRUN_STAGE_DIR/step-10; head -c 300000000 /dev/zero 2>/dev/null >$FTRUN_STAGE_DIR/step-10/shard-$SLURM_PROCID' && exit 0
sleep 3
exit 5
"""


def daemon(at: Post, node: str) -> int:
    """The process of a node's daemon, by its report; 0 while there is none."""
    path = Path(at.run_dir(), "attempts", "1", "stage", f"{node}.json")
    return int(json.loads(path.read_text())["pid"]) if path.exists() else 0


def in_memory(box: Sandbox, node: str) -> list[str]:
    """What lies in the memory of a node."""
    return box.run(["srun", "-N1", "-w", node, "find", "/dev/shm", "-type", "f"]).stdout.split()


@pytest.mark.drills
@side_by_side
def test_plain_writes_on_three_nodes_become_a_checkpoint_though_a_keeper_is_killed(
    make_sandbox: MakeBox, make_post: MakePost
) -> None:
    """The folder is there before the script; a staging daemon dies by kill -9 in the middle, the set is published whole; the memory is given back."""
    box = make_sandbox(nodes=3, shm_mib=512)
    at = make_post(box)
    at.sbatch(SAVES, f"--ft-stage={at.work}/published", "--ft-stage-rate=2M", "-N3", "--ntasks-per-node=1")
    at.supervise()
    at.until((at.work / "saved").exists, "all ranks saved")
    incoming = at.work / "published" / ".ftrun-publishing"
    at.until(lambda: daemon(at, "n1") and list(incoming.glob("*/incoming/n1.*/*/.*")), "n1 publishes")
    os.kill(daemon(at, "n1"), signal.SIGKILL)
    at.until((at.work / "published/step-10/.ftrun-complete").exists, "it was published")
    (at.work / "go").touch()
    at.until_state("finished")

    there = manifest.read(str(at.work / "published/step-10"))
    assert there is not None
    assert sorted(there.files) == ["shard-0", "shard-1", "shard-2"]
    found = at.call("sh", "-c", "cd published/step-10 && md5sum shard-*").split()
    assert dict(zip(found[1::2], found[0::2], strict=True)) == {
        line.split()[2]: line.split()[0] for line in (at.work / "sums").read_text().splitlines()
    }
    folder, to = (at.work / "dirs").read_text().split()[1::2]
    assert (at.work / "before").read_text().split() == [folder] * 3
    assert folder.startswith(f"/dev/shm/ftrun-{os.getuid()}/job.sh-")
    assert to == f"{at.work}/published"
    at.until(  # the daemons of its nodes free the memory after the script's end, and the run is over as soon as Slurm says so
        lambda: [in_memory(box, node) for node in box.plan.node_names] == [[], [], []],
        "nothing is left in memory",
    )


@pytest.mark.drills
@side_by_side
def test_a_start_that_found_the_memory_full_is_followed_by_one_that_saves_to_disk(
    make_sandbox: MakeBox, make_post: MakePost
) -> None:
    """What does not fit costs one start: the next one of this job is told the shared folder, and its checkpoint is there."""
    at = make_post(make_sandbox(nodes=2, shm_mib=128))
    at.sbatch(FILLS, f"--ft-stage={at.work}/published", "-N2", "--ntasks-per-node=1")
    at.supervise()
    at.until_state("finished")
    first, second = (line.split()[1] for line in (at.work / "dirs").read_text().splitlines())
    assert first.startswith("/dev/shm/")
    assert second == f"{at.work}/published"
    assert sorted(os.listdir(at.work / "published/step-10")) == ["shard-0", "shard-1"]
    assert "memory was full" in at.job_log()


@side_by_side
def test_without_an_agent_the_same_script_saves_straight_to_the_shared_folder(
    make_sandbox: MakeBox, make_post: MakePost
) -> None:
    """Nobody looks after the nodes' memory, so nobody is told of it."""
    at = make_post(make_sandbox(nodes=3, shm_mib=128))
    (at.work / "go").touch()
    at.sbatch(SAVES, f"--ft-stage={at.work}/published", "--ft-agent=never", "-N3", "--ntasks-per-node=1")
    at.supervise()
    at.until_state("finished")
    assert (at.work / "dirs").read_text().split()[1::2] == [f"{at.work}/published"] * 2
    assert sorted(os.listdir(at.work / "published/step-10")) == ["shard-0", "shard-1", "shard-2"]
