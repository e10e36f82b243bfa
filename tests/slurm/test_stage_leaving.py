"""What a job that is given up still brings out of its nodes' memory, on real Slurm."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.apart import side_by_side
from tests.slurm.post import Post
from tests.slurm.test_stage_restore import lines, staged

pytestmark = [pytest.mark.slurm, pytest.mark.drills]

MakeBox = Callable[..., Sandbox]
MakePost = Callable[..., Post]

# The first attempt saves, and is then as if it trained; the next one says from what it goes on.
STAGES = """
cat >rank.sh <<'X'
#!/bin/bash
if [ "$FTRUN_ATTEMPT" = 1 ]; then
    d=$FTRUN_STAGE_DIR/step-10 f=$FTRUN_STAGE_DIR/.rank
    head -c 12000000 /dev/urandom >$f
    echo "$(md5sum <$f) rank-$SLURM_PROCID" >>saved
    mkdir -p $d && mv $f $d/rank-$SLURM_PROCID
    [ "$SLURM_PROCID" = 0 ] && echo "step 10 loss 2.5"
    while [ ! -e go ]; do sleep 0.2; done
    exit 1
fi
[ "$SLURM_PROCID" = 0 ] && echo "step 11 loss 2.4"
(cd $FTRUN_RESUME_FROM && md5sum rank-$SLURM_PROCID) >>resumed
sleep 1
X
chmod +x rank.sh
echo "attempt $FTRUN_ATTEMPT start $FTRUN_START from $FTRUN_RESUME_FROM" >>starts
srun --kill-on-bad-exit=1 ./rank.sh
"""


@side_by_side
def test_what_only_a_partner_has_of_a_lost_node_is_published_before_the_job_is_given_up(
    make_sandbox: MakeBox, make_post: MakePost
) -> None:
    """A new job resumes from the set that was in memory when the node died, as a whole; the old one does not wait for the dead node."""
    at = make_post(box := make_sandbox(nodes=3, shm_mib=1500, slurmd_timeout_s=60), "fence-wait = 3\n")
    staged(
        at, "--ft-recover=step,resubmit", "--ft-stage-rate=1M", "--ft-stage-flush-timeout=60", script=STAGES
    )
    box.crash("n1")
    (at.work / "go").touch()
    at.until_state("finished")
    found = lines(at, "starts")
    assert found[-1] == f"attempt 2 start 1 from {at.work}/published/step-10", at.story()
    assert [line.split()[0] for line in lines(at, "resumed")] == [
        line.split()[0] for line in lines(at, "saved")
    ]
