"""The examples under a real fault: torch's DDP under torchrun, and a plain MPI program under mpirun, on real Slurm.

Neither torch nor MPI is part of ftrun's environment. FTRUN_PROOF_PYTHON names an interpreter that has torch and mpi4py; `make proofs` makes one.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftrun.slurm.sandbox import Sandbox
from ftrun.supervisor import events, journal, store
from ftrun.supervisor.drill import hands

pytestmark = [pytest.mark.slurm, pytest.mark.drills]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PYTHON = os.environ.get("FTRUN_PROOF_PYTHON", sys.executable)
STEPS = 60
LIMIT_S = 240.0
QUICK = (
    "--ft-settle=1s",
    "--ft-settle-max=4s",
    "--ft-backoff=1s",
    "--ft-end-wait=5s",
    "--ft-exclude-cap=50%",
)

Stage = Callable[[str], "Example"]


def _has(*modules: str) -> bool:
    words = [PYTHON, "-W", "ignore", "-c", "import " + ", ".join(modules)]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.fixture
def torch() -> None:
    """Skip without torch."""
    if not _has("torch"):
        pytest.skip(f"{PYTHON} has no torch: `make proofs` makes an environment that has")


@pytest.fixture
def torchft() -> None:
    """Skip without torchft."""
    if not _has("torchft"):
        pytest.skip(f"{PYTHON} has no torchft: `make proofs` makes an environment that has")


@pytest.fixture
def mpi() -> None:
    """Skip without mpirun and mpi4py."""
    if shutil.which("mpirun") is None or not _has("mpi4py"):
        pytest.skip(f"no mpirun, or {PYTHON} has no mpi4py: `make proofs` installs both")


class Example:
    """One example in a folder of its own, submitted to a sandbox."""

    def __init__(self, box: Sandbox, name: str) -> None:
        self.box, self.folder = box, box.shared / name
        shutil.copytree(EXAMPLES / name, self.folder)
        self.home = self.folder / "home"
        site = self.folder / "site.toml"
        site.write_text("poll = 0.5\n")
        self.env = {
            **box.env(),
            "FTRUN_HOME": str(self.home),
            "FTRUN_SITE_CONFIG": str(site),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "PATH": f"{Path(PYTHON).parent}:{box.env()['PATH']}",
            "PYTHONWARNINGS": "ignore",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",  # the sandbox's jobs are the tester's
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "EXAMPLE_STEP_S": "0.2",
        }

    def submit(self) -> None:
        """`ftrun sbatch job.sh`."""
        words = [sys.executable, "-P", "-m", "ftrun.supervisor", "sbatch", *QUICK, "job.sh", str(STEPS)]
        done = subprocess.run(
            words, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr

    def run(self) -> events.Run:
        """The run as its journal tells it."""
        (run_dir,) = store.run_dirs(str(self.home))
        return events.fold(Path(run_dir).name, journal.read_run(run_dir))

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait for it; the job's log tells why it did not come."""
        deadline = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < deadline, f"not {what}: {self.run().state}\n{self.log()[-4000:]}"
            time.sleep(0.25)

    def log(self) -> str:
        """The job's output."""
        return "".join(path.read_text() for path in self.folder.glob("*.log"))

    def saved(self) -> int:
        """How many checkpoints there are."""
        return len([path for path in self.folder.glob("checkpoints/step-*") if path.suffix != ".tmp"])

    def result(self) -> str:
        """What the whole program worked out."""
        return (self.folder / "final.txt").read_text()


@pytest.fixture
def stage(make_sandbox: Callable[..., Sandbox]) -> Iterator[Stage]:
    """Examples on one sandbox of four nodes."""
    made: list[Example] = []

    def make(name: str) -> Example:
        box = made[0].box if made else make_sandbox(nodes=4)
        made.append(Example(box, name))
        return made[-1]

    yield make
    for example in made:
        hands.end_processes(hands.supervisors(example.home))


def _undisturbed(example: Example) -> str:
    """The result without any fault, by the same ranks on the first three nodes."""
    example.submit()
    example.until("finished", lambda: example.run().final)
    assert example.run().state.value == "finished", example.log()
    result = example.result()
    hands.end_processes(hands.supervisors(example.home))
    for path in (example.folder / "checkpoints", example.home):
        shutil.rmtree(path)
    for path in (example.folder / "final.txt", *example.folder.glob("*.log")):
        path.unlink()
    return result


def _swapped(example: Example) -> events.Run:
    """The node of the second rank loses power in the middle; the run as it is in the end."""
    example.submit()
    example.until("saved twice", lambda: example.saved() >= 2)
    example.box.crash("n1")
    example.until("finished", lambda: example.run().final)
    return example.run()


def _went_on_with_the_spare(example: Example, run: events.Run) -> None:
    assert run.state.value == "finished", example.log()
    assert [incident.decision["kind"] for incident in run.incidents] == ["swap"], example.log()
    assert len(run.attempts) == 1
    assert run.attempts[0].used == ("n0", "n2", "n3")


@pytest.mark.usefixtures("torch")
def test_torch_ddp_goes_on_with_a_spare_to_the_same_weights(stage: Stage) -> None:
    """torchrun, rendezvous and gloo start again on survivors and spare, and the weights are those of an undisturbed training."""
    example = stage("ddp")
    right = _undisturbed(example)

    run = _swapped(example)

    _went_on_with_the_spare(example, run)
    # A step left out or made twice moves the sum by more than a tenth.
    assert float(example.result()) == pytest.approx(float(right), abs=1e-9)


@pytest.mark.usefixtures("mpi")
def test_a_plain_mpi_program_goes_on_with_a_spare_to_the_same_result(stage: Stage) -> None:
    """mpirun finds the active nodes in Slurm's variables and starts its daemons there."""
    example = stage("mpi")
    right = _undisturbed(example)

    run = _swapped(example)

    _went_on_with_the_spare(example, run)
    assert example.result() == right


@pytest.mark.usefixtures("torchft")
@pytest.mark.parametrize("victim", [1, 0])
def test_a_killed_rank_of_torchft_comes_back_alone(stage: Stage, victim: int) -> None:
    """The survivors end as the processes that they began as, the victim as another one, and all have the same weights; so for the first rank."""
    example = stage("torchft")
    example.submit()
    example.until("ten steps on", lambda: len(_pids(example, victim)) >= 10)
    began = {rank: _pids(example, rank)[0] for rank in range(3)}

    os.kill(began[victim], signal.SIGKILL)

    example.until("finished", lambda: example.run().final)
    run = example.run()
    assert run.state.value == "finished", example.log()
    assert [incident.decision["kind"] for incident in run.incidents] == ["rank"], example.log()
    ends = {rank: (example.folder / f"end.{rank}").read_text().split() for rank in range(3)}
    assert {rank for rank, (pid, _) in ends.items() if int(pid) != began[rank]} == {victim}
    assert len({weights for _, weights in ends.values()}) == 1


def _pids(example: Example, rank: int) -> list[int]:
    """The processes that made this rank's steps so far, step by step."""
    return [int(pid) for pid in re.findall(rf"rank {rank} pid (\d+) step", example.log())]
