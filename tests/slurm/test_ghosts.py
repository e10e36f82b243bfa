"""A controller that comes back with an older memory, on real Slurm: what runs is shown as pending. (I/O)"""

from __future__ import annotations

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
