"""A task of an array that hangs, on real Slurm: nobody looks on from inside, so the supervisor does. (I/O)"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.post import Post, posts

pytestmark = [pytest.mark.slurm, pytest.mark.drills]

PATIENCE_S = 200.0
QUICK_HANGS = "hang-min = 3\nhang-max = 20\nhang-grace = 20\n"
LOOP = """
import os, sys, time
from ftrun.hooks import beat
for step in range(1, 11):
    {beat}
    print(f"step {{step}} loss 1.0", flush=True)
    time.sleep(0.4)
if os.environ["SLURM_ARRAY_TASK_ID"] == "1" and os.environ["FTRUN_ATTEMPT"] == "1":
    time.sleep(600)
"""


def _submitted(at: Post, beat: str) -> str:
    loop = at.work / "loop.py"
    loop.write_text(LOOP.format(beat=beat))
    root = Path(__file__).resolve().parents[2] / ".ci" / "typing"
    body = (
        f'PYTHONPATH={root} {sys.executable} {loop} || exit $?\necho "done $SLURM_ARRAY_TASK_ID" >>ledger\n'
    )
    return at.sbatch(body, "--array=0-1", f"--output={at.work}/%x.%a.log", "-N1", "-t5")


def _ended_and_repeated(at: Post, job: str) -> None:
    """The task that hung, and it alone, was ended once and repeated once."""
    run = at.until_state("finished", "stopped", job=job, within_s=PATIENCE_S)
    kinds = at.kinds(job)
    assert run.state.value == "finished", at.story()
    assert [incident.signature for incident in run.incidents] == ["hang.no-progress"], at.story()
    assert [attempt.tasks for attempt in run.attempts] == [(), (1,)], at.story()
    done = sorted(line for line in at.ledger() if line.startswith("done"))
    assert done == ["done 0", "done 1"], at.story()
    assert kinds.count("hang.decided") == kinds.count("tasks.end.intended") == 1, at.story()


@pytest.mark.parametrize("beat", ["beat(step)", "pass"])
def test_a_task_that_hangs_is_ended_and_repeated_and_the_others_are_let_be(
    slurm_sandbox: Sandbox, beat: str
) -> None:
    """By its beats, or by the stacks that a step from the login node takes: the task alone is ended, and alone is repeated."""
    with posts(slurm_sandbox) as make:
        at = make(QUICK_HANGS)
        job = _submitted(at, beat)
        at.supervise()
        _ended_and_repeated(at, job)

        taken = [record["data"] for record in at.records(job) if record["kind"] == "stacks.taken"]
        if beat == "pass":
            assert any(os.listdir(one["folder"]) for one in taken), at.story()


@pytest.mark.parametrize(
    "point", ["record:after:hang.decided", "record:after:tasks.end.intended", "cancel:before", "cancel:after"]
)
def test_the_end_of_a_task_cut_anywhere_is_carried_out(slurm_sandbox: Sandbox, point: str) -> None:
    """What one supervisor has decided the next one does, and nobody takes the cancel for a person's."""
    with posts(slurm_sandbox) as make:
        at = make(QUICK_HANGS)
        job = _submitted(at, "beat(step)")
        first = at.supervise(FTRUN_CRASH_AT=point)
        at.until(lambda: first.poll() is not None, f"the first dies at {point}", PATIENCE_S)
        at.supervise()
        _ended_and_repeated(at, job)
