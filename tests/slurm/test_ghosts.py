"""A controller that comes back with an older memory, on real Slurm: what runs is shown as pending. (I/O)"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.apart import side_by_side
from tests.slurm.post import Post

pytestmark = [pytest.mark.slurm, pytest.mark.drills]

MakeSandbox = Callable[..., Sandbox]
MakePost = Callable[..., Post]
PATIENCE_S = 300.0
SAVED_S = 7.0  # slurmctld saves its state every five seconds
LONG = """
echo "step 1 loss 2.5"
[ "$FTRUN_ATTEMPT" = 1 ] && sleep 60
echo done >>ledger
"""


def _state_folder(box: Sandbox) -> Path:
    lines = box.conf.read_text().splitlines()
    return Path(next(line for line in lines if line.startswith("StateSaveLocation=")).partition("=")[2])


def _set_back(box: Sandbox, older: Path) -> None:
    """kill -9 of slurmctld, and what it had saved last is lost: it comes back with `older`."""
    box.kill_controller()
    shutil.rmtree(_state_folder(box))
    shutil.copytree(older, _state_folder(box))
    box.start_controller()


@side_by_side
def test_a_job_that_is_started_again_while_it_runs_runs_once(
    make_sandbox: MakeSandbox, make_post: MakePost
) -> None:
    """The state is from before the start: Slurm starts the job a second time. The claim ends the second one; the run goes on once."""
    box = make_sandbox(nodes=2)
    post = make_post(box)
    job = post.sbatch(LONG, "-N1", "--no-requeue", "--hold")
    time.sleep(SAVED_S)
    shutil.copytree(_state_folder(box), post.folder / "older")
    post.supervise()
    post.call("scontrol", "release", job)
    post.until_state("running", within_s=PATIENCE_S)
    _set_back(box, post.folder / "older")
    post.call("scontrol", "release", job, code=None)

    run = post.until_state("finished", within_s=PATIENCE_S)

    assert not [line for line in post.ledger() if line.startswith("double")], post.story()
    assert "done" == post.ledger()[-1]
    assert len(run.attempts) == 2, post.story()
    assert run.attempts[0].launch.end.reason == "started twice by Slurm"


STEPS = """
while [ ! -e step ]; do sleep 0.2; done
srun -N2 sleep 8
touch over
while [ ! -e go ]; do sleep 0.2; done
srun -N2 sh -c 'echo second $SLURMD_NODENAME' >>second
srun -N2 sh -c 'echo third $SLURMD_NODENAME' >>second
"""


@side_by_side
def test_a_step_that_only_slurm_still_sees_keeps_no_later_one_waiting(
    make_sandbox: MakeSandbox, make_post: MakePost
) -> None:
    """slurmctld is killed right after a step's end, and comes back with that step running: the next srun of the same start goes through, and says why."""
    # Nodes are asked for processes of that job; other sandboxes of this machine have jobs of low numbers.
    box = make_sandbox(nodes=2, conf={"FirstJobId": str(1_000_000 + os.getpid())})
    post = make_post(box)
    job = post.sbatch(STEPS, "-N2", "--ntasks-per-node=1")
    post.supervise()
    post.until_state("running", within_s=PATIENCE_S)
    (post.work / "step").touch()
    post.until((post.work / "over").exists, "the step is over", within_s=PATIENCE_S)
    box.kill_controller()
    box.start_controller()
    post.until(
        lambda: f"{job}.0 " in post.call("squeue", "-s", "-h", "-j", job, code=None), "the ghost is there"
    )
    (post.work / "go").touch()
    began_s = time.monotonic()
    run = post.until_state("finished", within_s=PATIENCE_S)

    assert time.monotonic() - began_s < 60.0
    said = (post.work / "second").read_text().split()
    assert sorted(said) == sorted(["second", "n0", "second", "n1", "third", "n0", "third", "n1"])
    assert 1 == post.job_log().count(f"srun: ftrun: Slurm shows step {job}.0 as running")
    assert (1, ()) == (len(run.attempts), run.incidents)
