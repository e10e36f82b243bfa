"""The examples under a real fault: torch's DDP under torchrun, and a plain MPI program under mpirun, on real Slurm."""

from __future__ import annotations

import os
import re
import shutil
import signal

import pytest

from ftrun.supervisor.model import run as model_run
from tests.slurm.example import PYTHON, Example, Stage, has

pytestmark = [pytest.mark.slurm, pytest.mark.drills]


@pytest.fixture
def torchft() -> None:
    """Skip without torchft."""
    if not has("torchft"):
        pytest.skip(f"{PYTHON} has no torchft: `make proofs` makes an environment that has")


@pytest.fixture
def mpi() -> None:
    """Skip without mpirun and mpi4py."""
    if shutil.which("mpirun") is None or not has("mpi4py"):
        pytest.skip(f"no mpirun, or {PYTHON} has no mpi4py: `make proofs` installs both")


def _undisturbed(example: Example) -> str:
    """The result without any fault, by the same ranks on the first three nodes."""
    example.submit()
    example.finished()
    result = example.result()
    example.rewind()
    return result


def _bereft(example: Example, *options: str) -> model_run.Run:
    """The node of the second rank loses power in the middle; the run as it is in the end."""
    example.submit(*options)
    example.until("saved twice", lambda: example.saved() >= 2)
    example.box.crash("n1")
    example.until("finished", lambda: example.run().final)
    return example.run()


def _went_on_with_the_spare(example: Example, run: model_run.Run) -> None:
    assert run.state.value == "finished", example.log()
    assert [incident.decision["kind"] for incident in run.incidents] == ["swap"], example.log()
    assert len(run.attempts) == 1
    assert run.attempts[0].used == ("n0", "n2", "n3")


@pytest.mark.usefixtures("torch")
def test_torch_ddp_goes_on_with_a_spare_to_the_same_weights(stage: Stage) -> None:
    """torchrun, rendezvous and gloo start again on survivors and spare, and the weights are those of an undisturbed training."""
    example = stage("ddp")
    right = _undisturbed(example)

    run = _bereft(example)

    _went_on_with_the_spare(example, run)
    # A step left out or made twice moves the sum by more than a tenth.
    assert float(example.result()) == pytest.approx(float(right), abs=1e-9)


@pytest.mark.usefixtures("torch")
def test_torchrun_meets_over_two_jobs_and_comes_to_the_same_weights(stage: Stage) -> None:
    """Without a spare the missing node comes as a companion: the agents of torchrun rendezvous at the first node, each in its own job."""
    example = stage("ddp", slurmd_timeout_s=60)  # the job has no --no-kill, and the machine may be slow
    right = _undisturbed(example)

    run = _bereft(example, "--ft-spares=0")

    assert run.state.value == "finished", example.log()
    assert [incident.decision["kind"] for incident in run.incidents] == ["companion"], example.log()
    assert len(run.attempts) == 1
    assert float(example.result()) == pytest.approx(float(right), abs=1e-9)


@pytest.mark.usefixtures("mpi")
def test_a_plain_mpi_program_goes_on_with_a_spare_to_the_same_result(stage: Stage) -> None:
    """mpirun finds the active nodes in Slurm's variables and starts its daemons there."""
    example = stage("mpi")
    right = _undisturbed(example)

    run = _bereft(example)

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
