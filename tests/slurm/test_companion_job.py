"""The companion's own job on real Slurm, beside a main job made by hand: how it begins, and what ends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ftrun.hooks.bundle.zipapp import build_zipapp
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.submission.companion import companion_call
from tests.unit.submission.test_submit import kept

pytestmark = pytest.mark.slurm

LIMIT_S = 240.0  # only what hangs takes so long, however loaded the machine is
QUICK = "export FTRUN_COMPANION_PERIOD_S=0.3\nexport FTRUN_COMPANION_STILL_S={still}\n"
TYPED = ("-N2", "--ntasks-per-node=2", "--gres=gpu:1", "--mem=60", "-t", "30", "job.sh")


@dataclass
class Pair:
    """A main job on two nodes, and its companion on another one."""

    box: Sandbox
    home: Path
    main: str = ""
    job: str = ""
    ours: list[str] = field(default_factory=list)

    @property
    def place(self) -> Path:
        return self.home / "runs" / "r" / "attempts" / "1"

    @property
    def companions(self) -> Path:
        return self.place / "companions"

    @property
    def log(self) -> str:
        file = self.companions / "1.log"
        return file.read_text() if file.exists() else ""

    def begin(self, *options: str) -> None:
        """Start the main job, which sleeps, and counts where its agent would."""
        (self.place / "agent").mkdir(parents=True)
        self.companions.mkdir()
        (self.home / "tools").mkdir()
        (self.home / "tools" / "ftrun-hook.pyz").symlink_to(build_zipapp(str(self.home / "tools")))
        (self.place / "current").symlink_to("0.1")
        counts = f"n=0; while [ ! -e {self.home}/quiet ]; do n=$((n+1)); echo $n >{self.place}/agent/pulse.0; sleep 0.3; done; sleep 600"
        words = ["sbatch", "--parsable", "-o", "/dev/null", *TYPED[:-1], *options, "--wrap", counts]
        self.main = self.box.run(words, check=True).stdout.strip()
        self.ours.append(self.main)
        self.wait(lambda: self.state(self.main) == "RUNNING")

    def join(self, *, still_s: int = 120, **about: object) -> None:
        """Submit a companion of one node, and wait until it says that it is there."""
        rows = self.box.run(["scontrol", "-o", "show", "job", self.main]).stdout
        began = next(word.partition("=")[2] for word in rows.split() if word.startswith("StartTime="))
        nodes = next(word.partition("=")[2] for word in rows.split() if word.startswith("NodeList="))
        how: dict[str, object] = {
            "run_dir": str(self.place.parent.parent), "attempt": 1, "launch": 0, "number": 1, "nodes": 1, "limit_s": 600.0, "main_job": self.main,
            "main_started": time.mktime(time.strptime(began, "%Y-%m-%dT%H:%M:%S")), "exclude": [nodes],
        }  # fmt: skip
        made = companion_call(kept(*TYPED), b"#!/bin/sh\n", {}, **(how | about))  # type: ignore[arg-type]
        text = made.content.decode().replace("\n", "\n" + QUICK.format(still=still_s), 1)
        self.job = self.box.run(["sbatch", "--parsable", *made.argv], input=text, check=True).stdout.strip()
        self.ours.append(self.job)
        self.wait((self.companions / "1.here").exists)

    def state(self, job: str) -> str:
        return self.fact("JobState", job)

    def fact(self, name: str, job: str = "") -> str:
        words = self.box.run(["scontrol", "-d", "-o", "show", "job", job or self.job]).stdout.split()
        return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), "")

    def wait(self, what: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not what():
            assert time.monotonic() < deadline, f"{self.state(self.main)}, {self.state(self.job)}: {self.log}"
            time.sleep(0.1)

    def end(self) -> str:
        """Wait for the companion's end by itself; what it said."""
        self.wait(lambda: self.state(self.job) in {"COMPLETED", "FAILED", "CANCELLED"})
        assert (self.state(self.job), self.fact("ExitCode")) == ("COMPLETED", "0:0")
        return self.log.partition("ftrun: ")[2].strip()


@pytest.fixture
def pair(slurm_sandbox: Sandbox, tmp_path: Path) -> Iterator[Pair]:
    one = Pair(slurm_sandbox, tmp_path / "home")
    yield one
    for job in one.ours:
        slurm_sandbox.run(["scancel", job])
    one.wait(lambda: all(one.state(job) not in {"RUNNING", "PENDING", "COMPLETING"} for job in one.ours))


def test_a_companion_starts_and_looks_like_the_main_job(pair: Pair) -> None:
    """On an idle node it is there, beside the main job's nodes, with its GPUs, tasks and memory; told to end, it leaves no process."""
    pair.begin()
    pair.join()
    here = dict(line.split("=", 1) for line in (pair.companions / "1.here").read_text().splitlines())
    assert (here["job"], here["nodes"]) == (pair.job, pair.fact("NodeList"))
    assert here["nodes"] not in pair.box.run(["squeue", "-h", "-j", pair.main, "-o", "%N"]).stdout
    words = f"env -u SLURM_JOB_ID srun --jobid={pair.job} --overlap -N1 -n2 --ntasks-per-node=2".split()
    told = pair.box.run([*words, "sh", "-c", "echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES"]).stdout
    assert sorted(told.splitlines()) == ["0 0", "1 0"]
    assert (pair.fact("MinMemoryNode"), pair.fact("Requeue")) == ("60M", "0")
    steps = ["squeue", "-h", "-s", "-j", pair.job, "-o", "%j"]
    pair.wait(lambda: "ftrun" in pair.box.run(steps).stdout.split())  # its guard, whatever its number
    (pair.companions / "1.over").touch()

    assert pair.end() == "told to end"
    pair.wait(lambda: not _processes(f"SLURM_JOB_ID={pair.job}"))


def _processes(variable: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                told = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if variable.encode() in told:
                found.append(entry.name)
    return found


def test_a_companion_ends_with_the_main_job(pair: Pair) -> None:
    """Slurm says that it is over, so nobody needs the nodes any more."""
    pair.begin()
    pair.join()
    pair.box.run(["scancel", pair.main])

    assert pair.end().startswith(f"job {pair.main} is not what it was: ")


def test_a_companion_ends_when_the_main_job_is_started_again(pair: Pair) -> None:
    """Under the same number, but at another time: it is not the launch that this companion was made for."""
    pair.begin()
    pair.join(main_started=time.time() - 500)

    assert pair.end().startswith(f"job {pair.main} is not what it was: RUNNING ")


def test_a_companion_ends_when_the_attempt_is_closed(pair: Pair) -> None:
    """Nothing of it may run any more."""
    pair.begin()
    pair.join()
    (pair.home / "new").symlink_to("closed")
    (pair.home / "new").replace(pair.place / "current")

    assert pair.end() == f"the launch of job {pair.main} is over (closed)"


def test_a_companion_ends_when_the_main_jobs_node_is_dead(pair: Pair) -> None:
    """Nobody counts there any more, though Slurm calls the job running; a controller that is away for a while is no word at all."""
    pair.begin()
    pair.join(still_s=8)  # a counter may stand still for some seconds, on a busy machine
    pair.box.pause_controller()
    try:
        time.sleep(10)
        assert not pair.log
    finally:
        pair.box.continue_controller()
    (pair.home / "quiet").touch()

    assert pair.end().startswith(f"job {pair.main} has not counted for ")


@pytest.mark.drills
def test_a_start_that_lies_in_a_companion_outlives_a_folder_that_nobody_can_write(pair: Pair) -> None:
    """Nobody counts, and Slurm hears the node of the script: the ranks may be well. When Slurm has lost that node, too, the companion ends."""
    pair.begin("--no-kill")
    host = pair.fact("BatchHost", pair.main)
    pair.join(still_s=4, main_host=host)
    (pair.companions / "alive.0").write_text(f"{7:020d} {pair.job}\n")
    (pair.home / "quiet").touch()
    time.sleep(12)
    assert (pair.state(pair.job), pair.log) == ("RUNNING", "")
    pair.box.crash(host)
    try:
        assert pair.end().startswith(f"job {pair.main} has not counted for ")
        assert pair.state(pair.main) == "RUNNING"
    finally:
        pair.box.mend(host)
