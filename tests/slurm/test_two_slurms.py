"""Nodes with two Slurms: the clients in /usr/bin belong to another one, and those of the job's lie in a folder of the user's PATH.

The daemons of the sandbox live in a mount namespace in which the clients in /usr/bin say what those of 22.05 say of a
controller of 25.11, and note that they were asked. The clients of the sandbox are copies in a folder. Only root can
arrange that. Whoever asks the other Slurm, in the job or outside of it, has chosen the wrong client.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.post import FTRUN, Post, posts
from tests.slurm.test_agent import TRANSIENT

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("nsenter"), reason="only root mounts"),
]

CLIENTS = ("sbatch", "squeue", "scontrol", "scancel", "sinfo", "srun", "sacct", "sacctmgr")
OTHER = """#!/bin/sh
case $1 in --version | -V) echo "slurm-wlm 19.05.5"; exit 0 ;; esac
echo "${0##*/} $*" >>ASKED
echo "${0##*/}: error: Unable to contact slurm controller: Insane message length" >&2
exit 1
"""
APART = """
for name in {names}; do mount --bind {other} /usr/bin/$name || exit 1; done
mount -t tmpfs none {unseen} || exit 1
exec {python} -m ftrun.supervisor sandbox up --folder {box} --nodes 4
"""
FAILS_ONCE = f"""
echo "$FTRUN_ATTEMPT.$FTRUN_START $SLURM_JOB_NODELIST" >>starts
[ "$FTRUN_ATTEMPT.$FTRUN_START" = 1.1 ] || exit 0
echo "step 1 loss 2.5"
echo "{TRANSIENT}"
exit 1
"""
LEAVES_A_STEP = f"""
echo "$FTRUN_ATTEMPT.$FTRUN_START $SLURM_JOB_NODELIST" >>starts
[ "$FTRUN_ATTEMPT.$FTRUN_START" = 1.1 ] || exit 0
echo "step 1 loss 2.5"
srun sleep 300 &
until [ "$(squeue -h -s -j $SLURM_JOB_ID -o %i | grep -c '[.]0$')" = 1 ]; do sleep 0.2; done
sleep 6  # the nodes of a script that fails within 5 s are not checked
echo "{TRANSIENT}"
exit 1
"""


class TwoSlurms:
    """The sandbox, the folder with its clients, one that the nodes see empty, and what the other Slurm was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin, self.unseen = folder / "slurm" / "bin", folder / "unseen"
        for place in (self.bin, self.unseen):
            place.mkdir(parents=True)
            for name in CLIENTS:
                shutil.copy(f"/usr/bin/{name}", place / name)
        other = folder / "other"
        other.write_text(OTHER.replace("ASKED", str(folder / "asked")))
        other.chmod(0o755)
        (folder / "asked").touch()
        words = {"other": other, "unseen": self.unseen, "box": folder / "box", "python": sys.executable}
        script = APART.format(names=" ".join(CLIENTS), **words)
        env = {key: value for key, value in os.environ.items() if not key.startswith("FTRUN_")}
        env["PATH"] = f"{self.bin}:{os.environ['PATH']}"
        env["FTRUN_HOME"] = str(folder / "home")
        subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
            env=env,
            check=True,
            timeout=120,
            capture_output=True,
        )
        self.box = Sandbox.load(folder / "box")

    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()

    def inside(self) -> list[str]:
        """The words that make a command run where the nodes live."""
        pid = (Path(self.box.plan.run_dir) / "run" / "slurmctld.pid").read_text().strip()
        return ["nsenter", f"--mount=/proc/{pid}/ns/mnt", "--"]


@pytest.fixture(scope="module")
def two() -> Iterator[TwoSlurms]:
    folder = Path(tempfile.mkdtemp(prefix="ftrun-t-"))
    try:
        yield TwoSlurms(folder)
    finally:
        if (folder / "box").exists():
            Sandbox.load(folder / "box").down()
        shutil.rmtree(folder, ignore_errors=True)


Make = Callable[..., Post]


@pytest.fixture
def make(two: TwoSlurms) -> Iterator[Make]:
    with posts(two.box) as made:

        def post(folder: Path | None = None) -> Post:
            one = made()
            one.env["PATH"] = f"{folder or two.bin}:{os.environ['PATH']}"
            return one

        (two.folder / "asked").write_text("")
        yield post


def _starts(post: Post) -> list[str]:
    return [line.split()[0] for line in (post.work / "starts").read_text().splitlines()]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (LEAVES_A_STEP, ["-N2", "-n2", "--ft-spares=1"]),
        pytest.param(FAILS_ONCE, ["-N2", "-n2", "--export=NONE"], marks=pytest.mark.drills),
    ],
    ids=["steps", "export-none"],
)
def test_the_agent_asks_the_slurm_that_the_job_was_submitted_to(
    two: TwoSlurms, make: Make, body: str, words: list[str]
) -> None:
    """The script begins again in its job: nodes were asked, steps ended, and the other Slurm heard of nothing."""
    post = make()
    post.supervise()
    post.sbatch(body, *words)
    run = post.until_state("finished", "stopped")

    assert (run.state.value, _starts(post)) == ("finished", ["1.1", "1.2"]), post.story()
    assert two.asked() == []


def test_a_supervisor_asks_the_slurm_of_its_runs(two: TwoSlurms, make: Make) -> None:
    """Also one that was started where PATH has the other Slurm alone, as by cron."""
    post = make()
    post.sbatch(FAILS_ONCE, "-N1", "--ft-agent=never")
    env = post.env | {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    with open(post.folder / "supervisor.log", "ab") as log:
        words = [*two.inside(), *FTRUN, "supervise"]
        supervisor = subprocess.Popen(words, env=env, cwd=post.folder, stdout=log, stderr=log)
    try:
        run = post.until_state("finished", "stopped")
    finally:
        supervisor.terminate()
        supervisor.wait(60)

    assert (run.state.value, _starts(post)) == ("finished", ["1.1", "2.1"]), post.story()
    assert two.asked() == []


def test_an_agent_that_slurm_does_not_answer_says_so(two: TwoSlurms, make: Make) -> None:
    """The node has only the other Slurm: one line in `show`, with the command and what it said; and the run goes on by the supervisor."""
    post = make(two.unseen)
    post.supervise()
    post.sbatch(FAILS_ONCE, "-N1")
    run = post.until_state("finished", "stopped")
    told = [line for line in post.ftrun("show", run.id).splitlines() if "Insane message length" in line]

    assert run.state.value == "finished", post.story()
    assert len(told) == 1
    assert "/usr/bin/squeue" in told[0]
    assert two.asked() != []


def test_doctor_tells_of_a_second_slurm(two: TwoSlurms, make: Make) -> None:
    """On this machine and on a node: both with their folders and releases."""
    post = make()
    found = json.loads(post.ftrun("doctor", "--nodes", "--json", code=None))["findings"]
    (row,) = [row for row in found if row["check"] == "a second Slurm on a node"]

    assert row["state"] == "warn"
    assert "slurm-wlm 19.05.5 in /usr/bin" in row["what"]
    assert str(two.bin) in row["what"]
