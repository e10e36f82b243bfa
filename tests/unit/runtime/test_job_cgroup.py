"""A job's own processes are told by their control group, whatever the release of Slurm calls it, and are no strangers.

The groups are real: made below the hierarchies that are mounted on this machine, with a busy process of another user
whose environment is empty. Only root may make them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from ftrun.hooks.checks import catalogue, processes
from ftrun.hooks.health import leftovers
from ftrun.hooks.ranks import kill_stale
from ftrun.hooks.runtime import procfs
from ftrun.hooks.runtime.host import Machine
from ftrun.hooks.runtime.start_processes import NO_JOB, OwnJob, job_and_step, own_job
from ftrun.hooks.staging import workspace

Seen = TypeVar("Seen")
UID = 2000
JOB, SLUID, OTHER = "4242", "s4ADM82P719R00", "s5K1KKYAYG5D00"  # the first SLUID is one that 26.05.5 made
OWN = OwnJob(JOB, SLUID)
BUSY = "while :; do :; done"
V1, V2 = "cgroup", "cgroup2"

PATHS = [
    (V1, f"slurm/uid_{UID}/job_{JOB}/step_0/task_0"),
    (V2, f"system.slice/slurmstepd.scope/job_{JOB}/step_0/user/task_0"),
    (V2, f"system.slice/slurmstepd.scope/{SLUID}/step_0/user/task_0"),
]
IDS = ["v1", "v2", "sluid"]


@pytest.mark.parametrize(
    ("cgroup", "own", "expected"),
    [
        (f"0::/system.slice/slurmstepd.scope/{SLUID}/step_3/user/task_0\n", OWN, (JOB, "3")),
        (f"0::/system.slice/n0_slurmstepd.scope/{SLUID}/step_batch/slurm\n", OWN, (JOB, "batch")),
        (f"0::/system.slice/slurmstepd.scope/{OTHER}/step_0\n", OWN, (OTHER, "0")),
        (f"0::/system.slice/slurmstepd.scope/{SLUID}/step_0\n", NO_JOB, (SLUID, "0")),
        (f"9:name=systemd:/\n4:memory:/slurm/uid_1/job_{JOB}/step_7/task_0\n0::/\n", NO_JOB, (JOB, "7")),
        (f"4:memory:/slurm_n0/uid_1/job_{JOB}\n", NO_JOB, (JOB, "")),
        ("0::/system.slice/slurmstepd.scope/system\n", OWN, ("", "")),
        ("0::/user.slice/session-3.scope\n0::/sessions0ABCDEFGHIJKL/step_0\n", OWN, ("", "")),
        ("", OWN, ("", "")),
    ],
)
def test_the_job_and_the_step_that_a_path_names(cgroup: str, own: OwnJob, expected: tuple[str, str]) -> None:
    """Both hierarchies, and both names; the job of the caller bears its id."""
    assert job_and_step(cgroup, own) == expected


def test_the_sluid_is_learned_from_the_environment_or_from_the_own_group() -> None:
    """Outside of a job there is none."""
    group = f"0::/system.slice/slurmstepd.scope/{SLUID}/step_0/user/task_0\n"
    told = own_job({"SLURM_JOB_ID": JOB, "SLURM_JOB_SLUID": SLUID})
    shown = own_job({"SLURM_JOB_ID": JOB}, group)

    assert (told.job, told.sluid) == (shown.job, shown.sluid) == (JOB, SLUID)
    assert own_job({}, group).sluid == ""


def _hierarchy(kind: str) -> Path | None:
    """Where a hierarchy of this kind is mounted and may be written."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, found, options = line.split()[:4]
        usable = found == V2 or "pids" in options.split(",") or "freezer" in options.split(",")
        if found == kind and usable and os.access(point, os.W_OK) and os.geteuid() == 0:
            return Path(point)
    return None


Begin = Callable[[str, str, list[str]], int]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Starts a process of user UID with an empty environment in such a group; its pid."""
    made: list[Path] = []
    started: list[subprocess.Popen[bytes]] = []

    def start(kind: str, path: str, words: list[str]) -> int:
        top = _hierarchy(kind)
        if top is None:
            pytest.skip(f"only root makes groups, and where {kind} is mounted")
        base = top / f"ftrun-test-{os.getpid()}"
        made.append(base)
        (base / path).mkdir(parents=True)
        child = subprocess.Popen(words, env={}, start_new_session=True)
        started.append(child)
        (base / path / "cgroup.procs").write_text(str(child.pid))
        return child.pid

    yield start
    for child in started:
        child.kill()
        child.wait()
    for base in made:
        give_up = time.monotonic() + 10
        while base.exists() and time.monotonic() < give_up:
            for folder in sorted((path for path in base.rglob("*") if path.is_dir()), reverse=True):
                with contextlib.suppress(OSError):
                    folder.rmdir()
            with contextlib.suppress(OSError):
                base.rmdir()
            time.sleep(0.05)


def _as_user(*words: str) -> list[str]:
    return ["/usr/bin/setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", *words]


def _wait_until(look: Callable[[], Seen]) -> Seen:
    """The first true value of `look`. A busy machine gives a new process little time: nothing is asked of it before it is what it is to be."""
    give_up = time.monotonic() + 60
    while not (seen := look()):
        assert time.monotonic() < give_up
        time.sleep(0.1)
    return seen


def _is_of_user(pid: int) -> bool:
    found = procfs.owner(Machine(), pid)
    return found is not None and found.uid == UID and found.name != "setpriv"


def _strangers(pid: int) -> list[str]:
    """What stranger-load finds of this process alone, once it is seen to compute: the machine may be busy with others."""
    return _wait_until(lambda: _stranger_load(pid))


def _stranger_load(pid: int) -> list[str]:
    thresholds = {**catalogue.CHECKS["stranger-load"].thresholds, "window_s": 0.5, "user": "1"}
    facts = processes.probe_strangers(Machine(), thresholds)
    facts = facts._replace(busy=tuple(one for one in facts.busy if one.pid == pid))
    return [one.severity for one in processes.judge_strangers(facts, thresholds)]


@pytest.mark.parametrize(("kind", "path"), PATHS, ids=IDS)
def test_what_computes_in_the_group_of_a_job_is_no_stranger(begin: Begin, kind: str, path: str) -> None:
    """A neighbour's job has a right to be here; the same process outside of any job has none."""
    inside = begin(kind, path, _as_user("/bin/sh", "-c", BUSY))
    outside = begin(V1 if _hierarchy(V1) else V2, f"user.slice/{kind}", _as_user("/bin/sh", "-c", BUSY))
    _wait_until(lambda: _is_of_user(inside) and _is_of_user(outside))

    assert _strangers(inside) == ["ok"]
    _wait_until(lambda: _strangers(outside) != ["ok"])  # less than a tenth of a core is no load


@pytest.mark.parametrize(("kind", "path"), PATHS, ids=IDS)
def test_a_job_s_own_processes_are_its_own(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, kind: str, path: str
) -> None:
    """By owner (GPU checks), by leftovers (epilog) and by step (sweep), though their environment says nothing."""
    monkeypatch.setenv("SLURM_JOB_ID", JOB)
    monkeypatch.setenv("SLURM_JOB_SLUID", SLUID)
    pid = begin(kind, path, _as_user("/bin/sleep", "60"))
    other = begin(kind, path.replace(JOB, "4243").replace(SLUID, OTHER), _as_user("/bin/sleep", "60"))
    _wait_until(lambda: _is_of_user(pid) and _is_of_user(other))

    owners = [procfs.owner(Machine(), one) for one in (pid, other)]
    assert [one.job == JOB for one in owners if one is not None] == [True, False]
    left = leftovers.job_processes(Machine(), JOB, UID)
    assert left is not None
    assert [one.pid for one in left] == [pid]
    assert kill_stale.steps_of([pid, other], JOB) == {pid: "0", other: ""}


@pytest.mark.parametrize(("kind", "path"), PATHS, ids=IDS)
def test_what_a_living_job_staged_stays(begin: Begin, kind: str, path: str) -> None:
    """Its folder goes once no process of the job is left; a group whose job nobody can name may be of any job."""
    pid = begin(kind, path, ["/bin/sleep", "60"])

    assert workspace.Living().has(JOB)
    os.kill(pid, 9)
    give_up = time.monotonic() + 60
    while (still := workspace.Living().has(JOB)) and time.monotonic() < give_up:
        time.sleep(0.2)
    assert not still


@pytest.mark.parametrize(("kind", "path"), PATHS, ids=IDS)
def test_a_job_in_a_namespace_of_its_own_is_seen_alike(begin: Begin, kind: str, path: str) -> None:
    """From outside by its group; and from inside no process of the job is a stranger, where paths begin at the job."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare")
    apart = ["/usr/bin/unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--cgroup"]
    beside = f"{' '.join(_as_user('/bin/sh', '-c'))} '{BUSY}' & "
    check = f"sleep 1; {sys.executable} -m ftrun.hooks.main check stranger-load --json"
    answer = f"/tmp/ftrun-test-{os.getpid()}.{kind}"
    script = f'until grep -q ftrun-test /proc/self/cgroup; do sleep 0.05; done; exec {" ".join(apart)} /bin/sh -c "$0"'
    inner = f"{beside} cd {Path.cwd()}; SLURM_JOB_ID={JOB} SLURM_JOB_UID={UID} sh -c '{check}' >{answer}.part; mv {answer}.part {answer}; wait"
    pid = begin(kind, path, ["/bin/sh", "-c", script, inner])
    try:
        give_up = time.monotonic() + 60
        while not os.path.exists(answer) and time.monotonic() < give_up:
            time.sleep(0.1)
        told = Path(answer).read_text()
        children = [
            one.pid for one in procfs.all_processes(Machine()).values() if one.uid == UID and one.name == "sh"
        ]
        assert children
        assert [_strangers(child) for child in children] == [["ok"]] * len(children)
        assert '"degraded"' not in told
        assert '"ok"' in told
    finally:
        for name in (answer, f"{answer}.part"):
            Path(name).unlink(missing_ok=True)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
