"""Faults of one rank of four as recovery tests of others inject them, on real Slurm: what ftrun calls each, whom it names, how soon. (I/O)"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.model.run import Incident
from tests.slurm.post import Post, posts

pytestmark = [pytest.mark.slurm, pytest.mark.drills]

PATIENCE_S = 300.0
PYTHON = "/usr/bin/python3"

# It speaks as a program of somebody else does: no beats, and what Python itself prints where a peer is gone.
TRAINER = '''
import os, re, signal, socket, sys, threading, time

rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
fault, step_s = sys.argv[1], 0.2
place = f"meet.{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}"


def peers():
    """Rank 0 meets all others."""
    if rank == 0:
        door = socket.create_server(("127.0.0.1", 0), backlog=size)
        with open(place + ".new", "w") as stream:
            stream.write(str(door.getsockname()[1]))
        os.replace(place + ".new", place)
        return [door.accept()[0] for _ in range(size - 1)]
    while not os.path.exists(place):
        time.sleep(0.05)
    return [socket.create_connection(("127.0.0.1", int(open(place).read())))]


def heard(link):
    word = link.recv(1)
    if not word:
        raise ConnectionResetError(104, "Connection reset by peer")
    return word


def reduced(links):
    """All wait for all."""
    if rank == 0:
        for link in links:
            heard(link)
    for link in links:
        link.sendall(b"x")
    if rank:
        heard(links[0])


def strike():
    signals = {"sigkill": signal.SIGKILL, "sigterm": signal.SIGTERM, "sigint": signal.SIGINT, "stop": signal.SIGSTOP}
    with open("struck", "w") as stream:
        stream.write(f"{time.time()} {os.environ['SLURMD_NODENAME']}")
    if fault in signals:
        if fault == "sigint":
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signals[fault])
    elif fault == "abort":
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.abort()
    elif fault == "stepd":  # the node's own helper dies, and takes the ranks with it
        for name in os.listdir("/proc"):
            try:
                words = open(f"/proc/{name}/cmdline").read()
            except OSError:
                continue
            if words.startswith(f"slurmstepd: [{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}]"):
                os.kill(int(name), signal.SIGKILL)
        for name in os.listdir("."):
            if name.startswith("pid."):
                os.kill(int(name[4:]), signal.SIGKILL)
    elif fault == "gil":  # another thread never gives the interpreter back
        threading.Thread(target=re.match, args=("(a?){40}a{40}", "a" * 40), daemon=True).start()


links = peers()
open(f"pid.{os.getpid()}", "w").close()
for step in range(1, 61):
    time.sleep(step_s)
    if rank == 1 and step == 30 and not os.path.exists("struck"):
        strike()
    reduced(links)
    if rank == 0:
        print(f"step {step}/60 loss {1.0 / step:.4f}", flush=True)
'''


def _submitted(at: Post, fault: str, *words: str) -> str:
    (at.work / "train.py").write_text(textwrap.dedent(TRAINER))
    return at.sbatch(f"srun {PYTHON} {at.work}/train.py {fault}\n", "-N4", "-n4", "-t10", *words)


def _struck(at: Post) -> tuple[float, str]:
    """When the fault struck, and on which node."""
    when, node = (at.work / "struck").read_text().split()
    return float(when), node


def _recovered(at: Post, job: str) -> tuple[Incident, dict[str, Any]]:
    """The one incident of a run that went on to its end, and its diagnosis."""
    run = at.until_state("finished", "stopped", job=job, within_s=PATIENCE_S)
    assert run.state.value == "finished", at.story()
    (incident,) = run.incidents
    told = [one["data"]["diagnosis"] for one in at.records(job) if one["kind"] == "start.diagnosed"]
    print({"fault": incident.fault, "signature": incident.signature, "after": _after(at, job), "told": told})
    return incident, told[0]


def _after(at: Post, job: str) -> dict[str, float]:
    """Seconds from the fault to each record about it."""
    struck_s, _ = _struck(at)
    kinds = (
        "hang.suspected",
        "hang.decided",
        "start.end.intended",
        "start.over",
        "start.diagnosed",
        "start.decided",
    )
    return {
        one["kind"]: round(float(one["data"].get("at_s", one["at"])) - struck_s, 1)
        for one in at.records(job)
        if one["kind"] in kinds
    }


def test_a_rank_that_is_stopped_is_named_within_half_a_minute(slurm_sandbox: Sandbox) -> None:
    """With the usual settings; and what the others print when they are ended is not the cause."""
    with posts(slurm_sandbox) as make:
        at = make()
        job = _submitted(at, "stop")
        at.supervise()
        incident, told = _recovered(at, job)
        _, node = _struck(at)
        assert incident.fault == "hang", at.story()
        assert told["nodes"] == [node], at.story()
        assert "rank 1" in " ".join(told["rests_on"]), at.story()
        assert _after(at, job)["hang.decided"] <= 30.0, at.story()


@pytest.mark.parametrize(
    ("fault", "word"),
    [("sigkill", "SIGKILL"), ("sigterm", "SIGTERM"), ("sigint", "SIGINT"), ("abort", "SIGABRT")],
)
def test_a_rank_that_is_killed_is_named_and_the_others_connections_are_not(
    slurm_sandbox: Sandbox, fault: str, word: str
) -> None:
    with posts(slurm_sandbox) as make:
        at = make()
        job = _submitted(at, fault)
        at.supervise()
        incident, told = _recovered(at, job)
        _, node = _struck(at)
        assert incident.fault != "network", at.story()
        assert told["nodes"] == [node], at.story()
        assert "rank 1" in told["title"], at.story()
        assert word in told["title"], at.story()


QUICK_HANGS = "hang-min = 5\nhang-max = 30\nhang-grace = 40\n"


def test_a_rank_that_never_gives_its_interpreter_back_is_found_by_the_others_wait(
    slurm_sandbox: Sandbox,
) -> None:
    """Its main thread wakes again and again, and gets nothing: seen from the kernel, it is never in one place."""
    with posts(slurm_sandbox) as make:
        at = make(QUICK_HANGS)
        job = _submitted(at, "gil")
        at.supervise()
        incident, told = _recovered(at, job)
        _, node = _struck(at)
        assert incident.fault == "hang", at.story()
        assert told["nodes"] == [node], at.story()


def test_ranks_that_are_gone_with_their_slurmstepd_are_missed(slurm_sandbox: Sandbox) -> None:
    """srun waits for ever: no task's end was ever reported to it."""
    with posts(slurm_sandbox) as make:
        at = make(QUICK_HANGS)
        job = _submitted(at, "stepd")
        at.supervise()
        incident, _ = _recovered(at, job)
        assert incident.fault == "hang", at.story()
        reasons = [one["data"]["reason"] for one in at.records(job) if one["kind"] == "hang.decided"]
        assert any("no rank is left" in one for one in reasons), at.story()


def _set_back(box: Sandbox, before: Path) -> None:
    """The controller goes on with what it knew then: of the jobs since it knows nothing."""
    box.kill_controller()
    state = Path(box.plan.run_dir) / "state"
    shutil.rmtree(state)
    shutil.copytree(before, state, symlinks=True)
    box.start_controller()


def test_a_job_that_a_controller_set_back_knows_no_more_is_no_fault_of_the_program(
    make_sandbox: Callable[..., Sandbox], tmp_path: Path
) -> None:
    """srun is told "Invalid job id" while the run recovers: Slurm lost the job, and that costs the run none of its tries."""
    box = make_sandbox(nodes=5)
    with posts(box) as make:
        at = make()
        at.plain("-N1", "--wrap=true")  # a new controller numbers its jobs behind this one
        box.stop_controller()
        shutil.copytree(Path(box.plan.run_dir) / "state", tmp_path / "before", symlinks=True)
        box.start_controller()
        (at.work / "train.py").write_text(TRAINER)
        wait = "if [ -e struck ] && [ ! -e go ]; then touch again; while [ ! -e go ]; do sleep 0.1; done; fi"
        job = at.sbatch(f"{wait}\nsrun {PYTHON} train.py sigkill || exit 1\n", "-N4", "-n4", "-t10")
        at.supervise()
        at.until((at.work / "again").exists, "the script starts again in place")
        _set_back(box, tmp_path / "before")
        (at.work / "go").touch()
        run = at.until_state("finished", "stopped", job=job, within_s=PATIENCE_S)
        faults = [(one.fault, one.signature) for one in run.incidents]
        print(faults, run.spent, run.retries, [one.title for one in run.incidents])
        assert run.state.value == "finished", at.story()
        assert faults[0] == ("unknown", "slurm-task-killed"), at.story()
        assert ("scheduler", "slurm.job-unknown") in faults[1:], at.story()
        assert "unknown" not in [fault for fault, _ in faults[1:]], at.story()
