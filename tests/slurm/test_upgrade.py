"""Runs that an older ftrun began go on under this one, on real Slurm: `FTRUN_OLD=<checkout with .venv> make upgrade-drill`. (I/O)

The old supervisor is killed at some moment and never comes back, as after an upgrade; its agents and scripts live on.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.drill import injector
from tests.slurm.apart import side_by_side
from tests.slurm.post import OFF_THE_BUS, SUBMITTED, Post
from tests.told import told

OLD = told("FTRUN_OLD")
OLD_QUICK = told(
    "FTRUN_OLD_SETTINGS",
    "poll = 1\nsettle = 1\nsettle-max = 3\nend-wait = 0.2\nexclude-cap = '50%'\n",
)
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.drills,
    pytest.mark.skipif(not OLD, reason="FTRUN_OLD names no checkout of an older ftrun"),
]
Make = Callable[..., Post]

FAILS_ONCE = f"""
echo "step 1 loss 2.5"
[ -e failed ] && {{ echo "step 2 loss 2.4"; echo done >>ledger; exit 0; }}
until [ -e go ]; do sleep 0.2; done
touch failed
echo "{OFF_THE_BUS}"
exit 1
"""
FAILS_ONCE_AFTER_A_STEP = FAILS_ONCE.replace("until [ -e go ]", "srun hostname; until [ -e go ]")


def _starter_of_old_ftrun(post: Post) -> Callable[..., subprocess.Popen[bytes]]:
    """Start a command of the old ftrun in the home of the post."""
    config = post.folder / "old.toml"
    config.write_text(OLD_QUICK + f"backoff = 1\ncache-base = '{post.folder}'\n")
    python = str(Path(OLD, ".venv/bin/python"))

    log = os.open(post.folder / "old.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def start(*words: str, **env: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [python, "-m", "ftrun.supervisor", *words],
            env=post.env | {"FTRUN_SITE_CONFIG": str(config)} | env,
            cwd=post.work,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    return start


def _submit(
    post: Post, start: Callable[..., subprocess.Popen[bytes]], body: str, words: Sequence[str]
) -> str:
    script = post.script(body)
    start("sbatch", f"--output={post.work}/%x.log", *words, str(script)).wait(120)
    printed = (post.folder / "old.log").read_text()
    found = SUBMITTED.search(printed)
    assert found, printed
    return found[1]


def _kill(process: subprocess.Popen[bytes], post: Post) -> None:
    process.kill()
    process.wait(60)
    assert not list(injector.supervisors(post.home))


def _finishes_under_this_one(post: Post, job: str, starts: int = 2) -> None:
    post.supervise()
    (post.work / "go").touch()
    run = post.until_state("finished", "stopped", job=job)
    assert run.state.value == "finished", post.story()
    ledger = post.ledger()
    assert starts == len([line for line in ledger if line.startswith("start")]), post.story()
    assert not [line for line in ledger if line.startswith("double")], post.story()
    assert "done" in ledger
    post.ftrun("explain", job)
    post.ftrun("show", job)
    post.ftrun("status")


@side_by_side
def test_what_waits_in_the_queue_finishes_under_this_one(
    make_sandbox: Callable[..., Sandbox], make_post: Make
) -> None:
    """Submitted, seen in the queue; it starts under the new supervisor, fails once, and is submitted again."""
    post = make_post(make_sandbox(nodes=2))
    start = _starter_of_old_ftrun(post)
    job = _submit(post, start, FAILS_ONCE, ["--hold", "--ft-agent=never"])
    supervisor = start("supervise")
    post.until(lambda: "lease" in " ".join(os.listdir(post.home)), "the old one leads")
    _kill(supervisor, post)
    post.call("scontrol", "release", job)
    _finishes_under_this_one(post, job)


@pytest.mark.parametrize("agent", ["never", "auto"])
@side_by_side
def test_what_runs_finishes_under_this_one(
    make_sandbox: Callable[..., Sandbox], make_post: Make, agent: str
) -> None:
    """With an old agent beside the script, too: it works with the new supervisor, or is left alone."""
    post = make_post(make_sandbox(nodes=3))
    start = _starter_of_old_ftrun(post)
    job = _submit(post, start, FAILS_ONCE_AFTER_A_STEP, ["-N2", f"--ft-agent={agent}"])
    supervisor = start("supervise")
    post.until_state("running", job=job)
    post.until(lambda: "step 1" in post.job_log(), "the script trains")
    _kill(supervisor, post)
    _finishes_under_this_one(post, job)


@pytest.mark.parametrize(
    "point",
    [
        "record:after:job.ended",
        "record:after:diagnosed",
        "record:after:decided",
        "record:after:attempt.closed",
        "record:after:attempt.opened",
        "submit:before",
        "submit:after",
    ],
)
@side_by_side
def test_what_is_in_mid_recovery_finishes_under_this_one(
    make_sandbox: Callable[..., Sandbox], make_post: Make, point: str
) -> None:
    """The old supervisor died between an intent and its fact, or between two attempts."""
    post = make_post(make_sandbox(nodes=3))
    start = _starter_of_old_ftrun(post)
    job = _submit(post, start, FAILS_ONCE, ["--ft-agent=never"])
    supervisor = start("supervise", FTRUN_CRASH_AT=point)
    (post.work / "go").touch()
    post.until(lambda: supervisor.poll() is not None, f"the old supervisor died at {point}")
    _finishes_under_this_one(post, job)
