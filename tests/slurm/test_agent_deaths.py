"""What an agent depends on breaks while it decides: its parent, its own time, the shared folder, its interpreter. On real Slurm.

Whatever it is, the job ends as its script ended, or goes on whole; nobody acts in a job that is no longer his, and the fault is paid for once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.model.run import Run
from tests.slurm.post import SUBMITTED, Post, posts

pytestmark = pytest.mark.slurm

TRANSIENT = "gpu01:81:90 [0] ncclNet.cc:10 RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error, NCCL version 2.20.5"
FAILS_ONCE = f"""
echo "$FTRUN_ATTEMPT.$FTRUN_START $SLURM_JOB_ID" >>starts
[ "$FTRUN_ATTEMPT.$FTRUN_START" = 1.1 ] || {{ sleep 1; exit 0; }}
echo "step 1 loss 2.5"
while [ -e wait ]; do sleep 0.1; done
echo "{TRANSIENT}"
exit 3
"""
SLOWLY = ("--ft-log-quiet=8s", "--ft-log-quiet-max=12s")  # so long a decision takes at least
BROKEN_PYTHON = "#!/bin/sh\necho 'libpython3.11.so.1.0: cannot open shared object file' >&2\nexit 127\n"


@pytest.fixture
def make(slurm_sandbox: Sandbox) -> Iterator[Callable[..., Post]]:
    with posts(slurm_sandbox) as maker:
        yield maker


def _agents(post: Post) -> list[dict[str, Any]]:
    path = Path(post.run_dir(), "attempts", "1", "agent", "0.jsonl")
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def _kinds(post: Post) -> list[str]:
    return [record["kind"] for record in _agents(post)]


def _starts(post: Post) -> list[str]:
    return [line.split()[0] for line in (post.work / "starts").read_text().splitlines()]


def _deciding(post: Post) -> int:
    """Until the agent is in the midst of a decision; its process."""
    post.until(lambda: "sweep.done" in _kinds(post), "the agent decides")
    return int(_agents(post)[0]["data"]["pid"])


def _gone(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _ended_as_its_script(post: Post, job: str) -> Run:
    """The job has the script's exit code, another one goes on, and the one fault is paid for once."""
    run = post.until_state("finished", "stopped")
    assert run.state.value == "finished", post.story()
    assert _starts(post) == ["1.1", "2.1"], post.story()
    assert run.attempts[0].launch.end.exit_code == 3, post.story()
    assert run.attempts[0].job == job
    assert not run.attempts[0].end_intended, post.story()
    assert (len(run.incidents), run.retries) == (1, 1), post.story()
    assert not [line for line in post.ledger() if line.startswith("double")]
    return run


def _orphaned(post: Post) -> None:
    """Its parent is killed while it decides: it leaves."""
    post.sbatch(FAILS_ONCE, *SLOWLY)
    post.supervise()
    agent = _deciding(post)
    record = Path(post.run_dir(), "attempts", "1", "launch.0").read_text()
    os.kill(int(record.split("pid=")[1].split()[0]), signal.SIGKILL)
    post.until(lambda: _gone(agent), "the agent leaves")
    post.until_state("finished", "stopped")


@pytest.fixture(scope="module")
def together(slurm_sandbox: Sandbox) -> Iterator[tuple[Post, Post]]:
    """The two lives of every test run, led side by side to their ends: batch.sh is killed; the interpreter has lost ftrun."""
    with posts(slurm_sandbox) as make, ThreadPoolExecutor(2) as pool:
        orphaned, unequipped = make(), make()
        first = pool.submit(_orphaned, orphaned)
        second = pool.submit(_unequipped, unequipped, lambda python: python.link.unlink())
        first.result()
        second.result()
        yield orphaned, unequipped


def test_an_agent_leaves_when_batch_sh_is_killed(together: tuple[Post, Post]) -> None:
    """kill -9 of its parent while it decides: it decides nothing, Slurm ends the job, and another one is submitted."""
    post, _ = together
    run = post.run()

    assert run.state.value == "finished", post.story()
    assert _starts(post) == ["1.1", "2.1"]
    assert "start.decided" not in _kinds(post)
    assert (len(run.incidents), run.retries) == (1, 1), post.story()


@pytest.mark.drills
def test_an_agent_that_stands_still_while_it_decides_never_acts_again(make: Callable[..., Post]) -> None:
    """SIGSTOP for 40 s: batch.sh ends the job as the script ended; who wakes up then has no hand in anything."""
    post = make()
    job = post.sbatch(FAILS_ONCE, *SLOWLY)
    post.supervise()
    agent = _deciding(post)
    os.kill(agent, signal.SIGSTOP)
    before = _kinds(post)
    began_s = time.monotonic()
    _ended_as_its_script(post, job)
    assert time.monotonic() - began_s > 15
    time.sleep(max(0.0, 40 - (time.monotonic() - began_s)))
    with contextlib.suppress(ProcessLookupError):
        os.kill(agent, signal.SIGCONT)
    time.sleep(2)

    assert _gone(agent)
    assert _kinds(post) == before


@pytest.mark.drills
def test_an_agent_that_stood_still_beside_a_healthy_script_goes_on(make: Callable[..., Post]) -> None:
    """SIGSTOP for 70 s while the script runs: nobody ends anything, it is told that there is no ladder, and it is there again afterwards."""
    post = make()
    (post.work / "wait").touch()
    post.sbatch(FAILS_ONCE)
    post.supervise()
    post.until(lambda: "start.begun" in _kinds(post), "the agent looks on")
    agent = int(_agents(post)[0]["data"]["pid"])
    os.kill(agent, signal.SIGSTOP)
    post.until(lambda: "agent.absent" in post.kinds(), "it is missed")
    assert "no sign of life" in post.ftrun("status")
    os.kill(agent, signal.SIGCONT)
    (post.work / "wait").unlink()
    run = post.until_state("finished", "stopped")

    assert run.state.value == "finished", post.story()
    assert _starts(post) == ["1.1", "1.2"]
    assert (len(run.incidents), run.retries) == (1, 1), post.story()
    assert "ladder off" not in post.ftrun("status", "--all")


@pytest.mark.drills
def test_an_attempts_folder_that_vanishes_during_a_decision_costs_the_ladder(
    make: Callable[..., Post],
) -> None:
    """Moved away under the agent: what it writes nobody would read, so it answers that the job is to end."""
    post = make()
    job = post.sbatch(FAILS_ONCE, *SLOWLY)
    post.supervise()
    agent = _deciding(post)
    place = Path(post.run_dir(), "attempts", "1")
    place.rename(place.with_name("1.away"))
    post.until(lambda: _gone(agent), "the agent leaves")
    post.until(lambda: (job, "FAILED") in {row[:2] for row in post.jobs()}, "the job ends")
    place.with_name("1.away").rename(place)
    _ended_as_its_script(post, job)

    assert "start.decided" not in _kinds(post)


@pytest.mark.drills
def test_a_full_file_system_during_a_decision_costs_the_ladder(
    make_sandbox: Callable[..., Sandbox], tmp_path: Path
) -> None:
    """Not one byte is left where agent and supervisor write: the job ends, and once there is room the run goes on."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m,mode=0755", "ftrun-test", str(tmp_path)]
    subprocess.run(mount, check=True)  # before the nodes are made: each has its own view of what is mounted
    try:
        with posts(make_sandbox(nodes=2)) as make:
            post = make()
            post.home = tmp_path / "home"
            post.env["FTRUN_HOME"] = str(post.home)
            _fill_while_it_decides(post)
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def _fill_while_it_decides(post: Post) -> None:
    job = post.sbatch(FAILS_ONCE, *SLOWLY)
    supervisor = post.supervise()
    agent = _deciding(post)
    rest = post.home.parent / "rest"
    with contextlib.suppress(OSError), open(rest, "wb", buffering=0) as stream:
        while True:
            stream.write(b"x" * 4096)
    post.until(lambda: _gone(agent), "the agent leaves")
    time.sleep(3)
    rest.unlink()
    if supervisor.poll() is not None:
        post.supervise()
    if _kinds(post)[-1] == "start.over":  # the page that its journal had begun held all that it had to write
        assert _starts(post) == ["1.1", "1.2"]
        return
    _ended_as_its_script(post, job)


# ---------------------------------------------------------------------------- no interpreter


class _Python:
    """An interpreter of its own, with ftrun in it, that can be broken."""

    def __init__(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.path = folder / "bin" / "python"
        (site,) = folder.glob("lib/*/site-packages")
        self.link = site / "ftrun-test.pth"
        self.link.write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")

    def submit(self, post: Post, body: str, *words: str) -> str:
        out = post.call(
            str(self.path),
            "-m",
            "ftrun.supervisor",
            "sbatch",
            f"--output={post.work}/%x.log",
            *words,
            str(post.script(body)),
        )
        found = SUBMITTED.search(out)
        assert found, out
        return found[1]


def _break(python: _Python) -> None:
    python.path.unlink()
    python.path.write_text(BROKEN_PYTHON)
    python.path.chmod(0o755)


def _unequipped(post: Post, deed: Callable[[_Python], None]) -> str:
    """The interpreter of a run breaks before its job begins; the run's end. The first job."""
    python = _Python(post.folder / "venv")
    job = python.submit(post, FAILS_ONCE, "--hold")
    deed(python)
    post.call("scontrol", "release", job)
    post.supervise()
    post.until_state("finished", "stopped")
    return job


def _says_why(post: Post, words: str) -> None:
    job = next(r["job"] for r in post.records() if r["kind"] == "job.ended")
    _ended_as_its_script(post, job)
    (record,) = [r for r in post.records() if r["kind"] == "agent.absent" and r["attempt"] == 1]
    assert words in record["data"]["why"], record
    assert words in post.ftrun("status", "--all")
    assert words in post.ftrun("show", post.run().id)


def test_a_job_whose_agent_cannot_begin_runs_as_a_plain_one_and_says_so(together: tuple[Post, Post]) -> None:
    """Its interpreter has no ftrun any more: the script runs, the supervisor resubmits, and status tells why nothing was started again in place."""
    _says_why(together[1], "No module named")


@pytest.mark.drills
@pytest.mark.parametrize(
    ("deed", "words"),
    [(lambda python: python.path.unlink(), "No such file"), (_break, "libpython3.11.so.1.0")],
    ids=["gone", "broken"],
)
def test_so_does_one_whose_interpreter_is_gone_or_broken(
    make: Callable[..., Post], deed: Callable[[_Python], None], words: str
) -> None:
    """Whatever keeps the agent from beginning, its last word is told."""
    post = make()
    _unequipped(post, deed)
    _says_why(post, words)


@pytest.mark.drills
def test_a_job_without_its_agent_says_so_while_it_runs(make: Callable[..., Post]) -> None:
    """Nobody has to wait for a fault to learn that there is no ladder."""
    post = make()
    (post.work / "wait").touch()
    python = _Python(post.folder / "venv")
    job = python.submit(post, FAILS_ONCE, "--hold")
    python.link.unlink()
    post.call("scontrol", "release", job)
    post.supervise()
    post.until(lambda: "No module named" in post.ftrun("status"), "it is told")
    (post.work / "wait").unlink()
    _ended_as_its_script(post, job)
