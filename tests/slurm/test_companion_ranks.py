"""Ranks in a companion that Slurm ends, on real Slurm: nothing of the script begins beside them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.post import Post, queue

pytestmark = pytest.mark.slurm

# The first start loses n2, the second one lies in a companion, too, whose rank does not leave when it is asked, while the others do.
OUTLIVES = """export FTRUN_SPAN_GRACE_S=1
echo "step $FTRUN_START loss 2.5"
date +%s.%N >"begun.$FTRUN_START"
case $FTRUN_START in
1)
    srun sleep 300 &
    while [ ! -e go ]; do sleep 0.2; done
    echo "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error, NCCL version 2.20.5"
    exit 1 ;;
2)
    srun sh -c 'trap "touch asked" TERM; echo "step 1$SLURM_PROCID loss 2"; while :; do [ "$SLURM_PROCID" = 2 ] || [ ! -e asked ] || exit 1; date +%s.%N >"rank.$SLURM_PROCID.new"; mv "rank.$SLURM_PROCID.new" "rank.$SLURM_PROCID"; sleep 0.2; done' &
    [ "$1" = waits ] && wait
    while [ ! -e asked ]; do sleep 0.1; done
    exit 1 ;;
esac
sleep 5
exit 0
"""


@pytest.mark.parametrize("how", [pytest.param(how, marks=pytest.mark.drills) for how in ("waits", "leaves")])
def test_no_start_begins_while_ranks_outlive_the_end_of_their_companion(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[[Sandbox], Post], how: str
) -> None:
    """Slurm asks them to leave and kills them KillWait later; they are ended before the next start begins, also where the script left its srun behind."""
    box = make_sandbox(nodes=5, slurmd_timeout_s=60, conf={"KillWait": "40"})
    at = make_post(box)
    job = at.sbatch(
        OUTLIVES.replace("$1", how),
        "-N3",
        "--no-requeue",
        "--ntasks-per-node=1",
        "-t30",
        "--ft-after-checks=never",
    )
    at.supervise()
    at.until_state("running", job=job)
    at.until((at.work / "begun.1").exists, "the script has begun")
    box.crash("n2")
    (at.work / "go").touch()
    at.until((at.work / "rank.2").exists, "the start over both jobs works")
    ids = [row.split("|")[0] for row in queue(box) if "RUNNING" in row]
    (companion,) = [one for one in ids if one != job]
    box.run(["scancel", companion])
    at.until(lambda: (at.work / "begun.3").exists() or at.run(job).final, "the next start has begun")
    at.until_state("finished", job=job)
    begun, last = float((at.work / "begun.3").read_text()), float((at.work / "rank.2").read_text())
    assert last < begun, f"a rank wrote {last - begun:.1f} s after the next start had begun"
