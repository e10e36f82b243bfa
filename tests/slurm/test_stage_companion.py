"""Companions as givers and takers of what is staged, on real Slurm: a lost node's part comes to one, and one gives what it keeps of another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.staging import partner_map
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.store import journal
from tests.slurm.apart import side_by_side
from tests.slurm.post import Post
from tests.slurm.test_stage_restore import lines

pytestmark = [pytest.mark.slurm, pytest.mark.drills]

MakeBox = Callable[..., Sandbox]
MakePost = Callable[..., Post]

# Each rank says what it finds of the last set, and stages a part of the next one. A start goes on until the file `go.<start>` is there, and fails but for the last.
STAGES = """
cat >rank.sh <<'X'
#!/bin/bash
[ "$FTRUN_ATTEMPT" = 1 ] || exit 0
if [ -n "$FTRUN_RESUME_FROM" ]; then
    for f in $FTRUN_RESUME_FROM/rank-*; do
        [ -L $f ] && w=disk || w=memory
        echo "$FTRUN_START $SLURMD_NODENAME ${f##*-} $w $(md5sum <$f)" >>resumed
    done
fi
d=$FTRUN_STAGE_DIR/step-${FTRUN_START}0 f=$FTRUN_STAGE_DIR/.rank
head -c 300000 /dev/urandom >$f
echo "$FTRUN_START $SLURM_PROCID $(md5sum <$f)" >>saved
mkdir -p $d && mv $f $d/rank-$SLURM_PROCID
[ "$SLURM_PROCID" = 0 ] && echo "step ${FTRUN_START}0 loss 2.5"
while [ ! -e go.$FTRUN_START ]; do sleep 0.2; done
[ "$FTRUN_START" = 3 ] && exit 0
echo "gpu01:81:90 [0] ncclNet.cc:10 RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error, NCCL version 2.20.5"
exit 1
X
chmod +x rank.sh
echo "start $FTRUN_START from $FTRUN_RESUME_FROM" >>starts
srun --kill-on-bad-exit=1 ./rank.sh
"""
WIDE = 4


def pairs(at: Post) -> dict[str, str]:
    """Who copies to whom now."""
    found = partner_map.read_ring(str(Path(at.run_dir(), "attempts", "1")))
    return dict(found.to) if found is not None else {}


def copied(at: Post, start: int) -> bool:
    """Every part of the set of this start lies in two nodes."""
    place, now = str(Path(at.run_dir(), "attempts", "1")), pairs(at)
    given = (partner_map.read_copies(place, node).given for node in now)
    return len(now) == WIDE and all((f"0.{start}", f"step-{start}0") in one for one in given)


def facts(at: Post, kind: str) -> list[dict[str, Any]]:
    return [record["data"] for record in journal.read_run(at.run_dir()) if record["kind"] == kind]


def resumed_whole(at: Post, start: int) -> None:
    """All ranks of a start found all files of the start before it in their memory, as they were saved."""
    saved = [line.split() for line in lines(at, "saved")]
    sums = {rank: total for number, rank, total, _ in saved if number == str(start - 1)}
    found = [line.split()[1:5] for line in lines(at, "resumed") if line.startswith(f"{start} ")]
    assert len(sums) == WIDE, at.story()
    assert sorted((rank, where, total) for _, rank, where, total in found) == sorted(
        (rank, "memory", total) for rank, total in sums.items() for _ in range(WIDE)
    ), at.story()


@side_by_side
def test_a_companion_takes_the_part_of_a_lost_node_and_gives_what_it_keeps_of_the_next_one(
    make_sandbox: MakeBox, make_post: MakePost
) -> None:
    """Nothing can be read from disk: n1's part comes from its partner to the companion, and later that companion has the only copy of another lost node's."""
    at = make_post(box := make_sandbox(nodes=6, shm_mib=1500, slurmd_timeout_s=60))
    at.sbatch(
        STAGES, f"-N{WIDE}", "--ntasks-per-node=1", f"--ft-stage={at.work}/published", "--ft-stage-rate=1000",
        "--ft-stage-flush-timeout=4", "--ft-after-checks=never", "--ft-recover=step,companion,resubmit",
    )  # fmt: skip
    at.supervise()
    at.until(lambda: copied(at, 1), "all parts were copied")
    box.crash("n1")
    (at.work / "go.1").touch()
    at.until(lambda: copied(at, 2), "the parts of the second start were copied, too")
    resumed_whole(at, 2)
    (companion,) = facts(at, "companion.here")[-1]["nodes"]
    lost = next(node for node, to in pairs(at).items() if to == companion)
    assert lost != "n0", pairs(at)
    box.crash(lost)
    (at.work / "go.2").touch()
    (at.work / "go.3").touch()
    at.until_state("finished", within_s=240.0)

    resumed_whole(at, 3)
    assert [companion, lost] in [row[:2] for row in facts(at, "restore.intended")[-1]["give"]], at.story()
    assert [told["published"] for told in facts(at, "restore.intended")] == [False, False]
