"""Laws of what looks at nodes beside a script, on real Slurm: the script's own steps notice nothing of it, and nothing of it stays. (I/O)"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.drill import injector

pytestmark = pytest.mark.slurm

FTRUN = (sys.executable, "-P", "-m", "ftrun.supervisor")
SHAPES = {
    "one-core": ["-n1", "-c1", "--mem=50"],
    "two-nodes": ["-N2", "-n2", "--mem=100", "--gres=gpu:1"],
    "whole-node": ["-N1", "--exclusive", "--gres=gpu:2"],
}

# Under ftrun it waits until the watch is there; then both do the same.
SCRIPT = """#!/bin/sh
exec 2>/dev/null # srun may say that it waits for the step before
if [ "$FTRUN_RUN_ID" ]; then
    for i in $(seq 600); do squeue -h -s -j "$SLURM_JOB_ID" -o %j | grep -qx ftrun && break; sleep 0.2; done
    squeue -h -s -j "$SLURM_JOB_ID" -o %j | grep -qx ftrun || echo "no watch"
    sleep 0.5
fi
srun sh -c 'IFS=,; set -- $CUDA_VISIBLE_DEVICES; echo "plain $SLURM_PROCID $# GPUs $SLURM_CPUS_ON_NODE cores"' | sort
srun --exact -n1 -c1 sh -c 'echo "exact $SLURM_PROCID"'
srun -n1 -N1 --mem=10 sh -c 'echo "memory $SLURM_PROCID"'
srun --overlap -n1 -N1 sh -c 'echo "overlap $SLURM_PROCID"'
srun --immediate=120 -n1 -N1 false
echo "code $?"
"""


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[Sandbox, Path, dict[str, str]]]:
    """A cluster that counts memory, a folder that its nodes see, and the environment of a user with a home there."""
    from ftrun.slurm.sandbox.lifecycle import up

    folder = Path(tempfile.mkdtemp(prefix="ftrun-t-"))
    folder.chmod(0o755)
    box = up(folder / "box", nodes=4, gpus=2, ssh=True, conf={"SelectTypeParameters": "CR_Core_Memory"})
    kept = {key: value for key, value in box.env().items() if not key.startswith(("FTRUN_", "SBATCH_"))}
    env = {**kept, "FTRUN_HOME": str(folder / "home"), "XDG_CONFIG_HOME": str(folder / "config")}
    env |= {"FTRUN_WATCH_PERIOD": "1", "FTRUN_POLL": "0.5", "FTRUN_RETRIES": "0", "TMPDIR": str(folder)}
    (folder / "site.toml").write_text(f'ssh-config = "{folder}/box/ssh/config"\n')
    env["FTRUN_SITE_CONFIG"] = str(folder / "site.toml")
    yield box, folder, env
    injector.end_processes(injector.supervisors(folder / "home"))
    box.down()
    shutil.rmtree(folder, ignore_errors=True)


def _run(env: dict[str, str], *words: str, text: str = "") -> str:
    done = subprocess.run(
        words, env=env, input=text, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _until(what: str, holds: Callable[[], bool], limit_s: float = 240.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def _job(env: dict[str, str], job: str) -> dict[str, str]:
    words = _run(env, "scontrol", "-o", "-d", "show", "job", job).split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def _ended(env: dict[str, str], job: str) -> dict[str, str]:
    _until(f"job {job} ends", lambda: _job(env, job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"))
    return _job(env, job)


def _submit(env: dict[str, str], front: tuple[str, ...], script: Path, *words: str) -> str:
    return _run(env, *front, "--parsable", *words, str(script)).strip()


def _watching(env: dict[str, str], job: str) -> bool:
    return "ftrun" in _run(env, "squeue", "-h", "-s", "-j", job, "-o", "%j").split()


def _alive(folder: Path) -> list[str]:
    """Processes of the node side of this home."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                words = Path("/proc", entry, "cmdline").read_bytes().decode("utf-8", "replace")
            except OSError:
                continue
            if str(folder) in words and "ftrun-hook" in words:
                found.append(words.replace("\0", " "))
    return found


@pytest.fixture(scope="module")
def jobs(place: tuple[Sandbox, Path, dict[str, str]]) -> dict[tuple[str, str], str]:
    """All jobs that end by themselves, submitted at once: (shape or script, front) -> job id."""
    _, folder, env = place
    texts = {"fails": "#!/bin/sh\nsleep 15\nexit 7\n", "typo": "#!/bin/sh\nexit 7\n", "steps": SCRIPT}
    scripts = {name: folder / f"{name}.sh" for name in texts}
    for name, path in scripts.items():
        path.write_text(texts[name])
    front = (*FTRUN, "sbatch")
    made = {
        ("fails", "ftrun"): _submit(env, front, scripts["fails"], "-N2", f"--output={folder}/fails"),
        ("typo", "ftrun"): _submit(env, front, scripts["typo"], "-N1", f"--output={folder}/typo"),
    }
    visited = ("-N2", "--job-name=visited", f"--output={folder}/visited", "--ft-after-checks=ssh")
    made["visited", "ftrun"] = _submit(env, front, scripts["typo"], *visited)
    for shape, words in SHAPES.items():
        for name, submits in (("plain", ("sbatch",)), ("ftrun", front)):
            out = f"--output={folder}/{shape}.{name}"
            made[shape, name] = _submit(env, submits, scripts["steps"], out, *words)
    return made


def test_the_steps_of_a_script_are_the_same_with_a_watch(
    place: tuple[Sandbox, Path, dict[str, str]], jobs: dict[tuple[str, str], str]
) -> None:
    """One core, one GPU a node, or all of a node: every kind of srun starts at once and sees the same, and Slurm remembers the same end."""
    _, folder, env = place

    ends = {key: _ended(env, job) for key, job in jobs.items() if key[0] in SHAPES}

    for shape in SHAPES:
        told = {name: (folder / f"{shape}.{name}").read_text() for name in ("plain", "ftrun")}
        assert told["ftrun"] == told["plain"]
        assert "plain 0" in told["plain"]
        for key in ("JobState", "ExitCode", "DerivedExitCode"):
            assert ends[shape, "ftrun"][key] == ends[shape, "plain"][key], (shape, key)


def test_a_cancelled_job_leaves_no_watch(place: tuple[Sandbox, Path, dict[str, str]]) -> None:
    """scancel ends watch and script alike, and the nodes are not checked for it."""
    _, folder, env = place
    script = folder / "sleeps.sh"
    script.write_text("#!/bin/sh\nexec sleep 300\n")
    job = _submit(env, (*FTRUN, "sbatch"), script, "-N2", f"--output={folder}/cancelled")
    _until("the watch begins", lambda: _job(env, job)["JobState"] == "RUNNING" and _watching(env, job))

    _run(env, "scancel", job)

    assert _ended(env, job)["JobState"] == "CANCELLED"
    _until("the watch leaves", lambda: not _alive(folder))
    assert not list((folder / "home" / "runs").glob("sleeps*/attempts/1/nodes/after.*"))


def test_the_nodes_of_a_failed_script_are_checked(
    place: tuple[Sandbox, Path, dict[str, str]], jobs: dict[tuple[str, str], str]
) -> None:
    """Each node of a script that failed after a while leaves a report, and the job ends with the script's code all the same."""
    _, folder, env = place
    ends = [_ended(env, jobs[name, "ftrun"]) for name in ("fails", "typo")]

    assert [end["ExitCode"] for end in ends] == ["7:0", "7:0"]
    reports = sorted((folder / "home" / "runs").glob("fails*/attempts/1/nodes/after.0.*.json"))
    told = [json.loads(path.read_text()) for path in reports]
    assert len({one["node"] for one in told}) == len(told) == 2
    assert all(one["kind"] == "after" and len(one["checks"]) > 20 for one in told)
    assert not list((folder / "home" / "runs").glob("typo*/attempts/1/nodes/after.*"))


def test_nodes_whose_job_is_gone_are_visited_where_that_is_asked_for(
    place: tuple[Sandbox, Path, dict[str, str]], jobs: dict[tuple[str, str], str]
) -> None:
    """With after-checks=ssh the supervisor looks itself at the nodes of an end that came too fast for a step, and loses no time of other runs."""
    _, folder, env = place
    nodes = _ended(env, jobs["visited", "ftrun"])["NodeList"]
    log = folder / "home" / "supervisor.log"

    _until("the nodes are visited", lambda: '"nodes.visited"' in log.read_text())

    told = next(json.loads(line) for line in log.read_text().splitlines() if '"nodes.visited"' in line)
    assert sorted(told["answered"].split(",")) == sorted(
        _run(env, "scontrol", "show", "hostnames", nodes).split()
    )
