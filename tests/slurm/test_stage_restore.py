"""Resuming from the memory of the nodes on real Slurm: in place, by a spare, with nothing published, and with nothing readable on disk."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.staging import partner_map
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.store import journal
from tests.slurm.apart import side_by_side
from tests.slurm.post import Post

pytestmark = pytest.mark.slurm

MakeBox = Callable[..., Sandbox]
MakePost = Callable[..., Post]

TRANSIENT = "gpu01:81:90 [0] ncclNet.cc:10 RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error, NCCL version 2.20.5"
# Each rank stages a file of its own and, in a later start, says what it finds of all of them: the sum, and whether it lies in memory.
STAGES = f"""
cat >rank.sh <<'X'
#!/bin/bash
if [ "$FTRUN_START" = 1 ]; then
    mkdir -p $FTRUN_STAGE_DIR/step-10
    head -c 300000 /dev/urandom >$FTRUN_STAGE_DIR/step-10/rank-$SLURM_PROCID
    echo "saved $SLURM_PROCID $(md5sum <$FTRUN_STAGE_DIR/step-10/rank-$SLURM_PROCID)" >>saved
    [ "$SLURM_PROCID" = 0 ] && echo "step 10 loss 2.5"
    while [ ! -e go ]; do sleep 0.2; done
    echo "{TRANSIENT}"
    exit 1
fi
for f in $FTRUN_RESUME_FROM/rank-*; do
    [ -L $f ] && w=disk || w=memory
    echo "resumed $SLURMD_NODENAME ${{f##*-}} $w $(md5sum <$f)" >>resumed
done
[ "$SLURM_PROCID" = 0 ] && echo "step 11 loss 2.4"
sleep 1
X
chmod +x rank.sh
echo "start $FTRUN_START from $FTRUN_RESUME_FROM root $FTRUN_RESUME_ROOT step $FTRUN_RESUME_STEP" >>starts
srun --kill-on-bad-exit=1 ./rank.sh
"""


def staged(at: Post, *words: str, nodes: int = 2, script: str = STAGES) -> str:
    """Submit it; the job is there, and each node's part has come to another one."""
    wide = (f"-N{nodes}", "--ntasks-per-node=1", f"--ft-stage={at.work}/published", "--ft-agent=auto")
    job = at.sbatch(script, *wide, "--ft-after-checks=never", *words)
    at.supervise()

    def all_copied() -> bool:
        place = str(Path(at.run_dir(), "attempts", "1"))
        told = (partner_map.read_copies(place, f"n{number}").given for number in range(nodes))
        return all(("0.1", "step-10") in given for given in told)

    at.until(all_copied, "all parts were copied")
    return job


def lines(at: Post, name: str) -> list[str]:
    path = at.work / name
    return sorted(path.read_text().splitlines()) if path.exists() else []


def told(at: Post, kind: str) -> dict[str, Any]:
    found = [record["data"] for record in journal.read_run(at.run_dir()) if record["kind"] == kind]
    assert found, at.kinds()
    return dict(found[-1])


def resumed_whole(at: Post, *nodes: str) -> None:
    """Each rank of the second start found all files in its memory, as they were saved."""
    sums = {line.split()[1]: line.split()[2] for line in lines(at, "saved")}
    wanted = [f"resumed {node} {rank} memory {sums[rank]}  -" for node in nodes for rank in sums]
    assert lines(at, "resumed") == sorted(wanted), at.story()


@side_by_side
def test_a_start_in_place_reads_its_own_memory_and_what_is_published_of_others(
    make_sandbox: MakeBox, make_post: MakePost
) -> None:
    """The set is on disk as a whole; what a node itself saved is not read from there. Frameworks are told step and folder."""
    at = make_post(make_sandbox(nodes=2, shm_mib=1500))
    staged(at)
    at.until((at.work / "published/step-10/.ftrun-complete").exists, "it was published")
    (at.work / "go").touch()
    at.until_state("finished")
    resumed_whole(at, "n0", "n1")
    view = lines(at, "starts")[-1]
    assert re.fullmatch(
        r"start 2 from /dev/shm/ftrun-\d+/\S+/views/0\.2/step-10 root \S+/views/0\.2 step 10", view
    ), view
    assert told(at, "restore.done")["fetched_bytes"] == 0


@pytest.mark.drills
@side_by_side
def test_a_spare_gets_the_part_of_a_lost_node_from_its_partner_while_nothing_is_published(
    make_sandbox: MakeBox, make_post: MakePost
) -> None:
    """There is nothing on disk that could be read; the job's GPUs were counted in all, and copies take none."""
    at = make_post(box := make_sandbox(nodes=3, gpus=1, shm_mib=1500))
    staged(at, "--gpus=2", "--ft-spares=1", "--ft-stage-rate=1000", "--ft-stage-flush-timeout=4")
    box.crash("n1")
    (at.work / "go").touch()
    at.until_state("finished")
    resumed_whole(at, "n0", "n2")
    assert told(at, "restore.intended")["published"] is False
    assert told(at, "restore.done")["fetched_bytes"] > 0


@pytest.mark.drills
@side_by_side
def test_a_spare_reads_nothing_from_disk_that_its_partner_has(
    make_sandbox: MakeBox, make_post: MakePost
) -> None:
    """What is published cannot be read while the views are made, and the lost node's file comes all the same."""
    at = make_post(box := make_sandbox(nodes=3, shm_mib=1500))
    staged(at, "--ft-spares=1")
    at.until((at.work / "published/step-10/.ftrun-complete").exists, "it was published")
    for rank in (0, 1):
        path = at.work / f"published/step-10/rank-{rank}"
        size = path.stat().st_size
        os.unlink(path)
        with path.open("wb") as stream:  # as long, and another: whoever reads it is found out
            stream.truncate(size)
    box.crash("n1")
    (at.work / "go").touch()
    at.until_state("finished")
    found = [line.split()[1:5] for line in lines(at, "resumed")]
    sums = {line.split()[1]: line.split()[2] for line in lines(at, "saved")}
    assert ["n0", "0", "memory", sums["0"]] in found
    assert ["n2", "1", "memory", sums["1"]] in found
    assert [row[:2] for row in found if row[2] == "disk"] == [["n2", "0"]]


@pytest.mark.drills
@side_by_side
def test_fewer_nodes_find_all_files_of_the_set(make_sandbox: MakeBox, make_post: MakePost) -> None:
    """A node is lost, nothing takes its place, and nothing is published: what it saved comes from its partner to all that are left."""
    at = make_post(box := make_sandbox(nodes=3, shm_mib=1500))
    staged(at, "--ft-nodes=2-3", "--ft-stage-rate=1000", "--ft-stage-flush-timeout=4", nodes=3)
    box.crash("n1")
    (at.work / "go").touch()
    at.until_state("finished")
    assert len(lines(at, "saved")) == 3
    resumed_whole(at, "n0", "n2")
    assert told(at, "start.decided")["rung"] == "shrink"
