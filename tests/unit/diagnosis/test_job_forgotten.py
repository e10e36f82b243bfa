"""Laws of a job that its controller forgot while it ran: Slurm's fault, and no attempt of the program's. (pure)"""

from __future__ import annotations

import pytest

from ftrun.supervisor.diagnosis.class_defaults import Ended
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model.types import Diagnosis, FaultClass, Topology
from ftrun.supervisor.policy import start_decision
from ftrun.supervisor.signatures import catalog
from ftrun.supervisor.telemetry.log_file import LogContext, LogFile
from ftrun.supervisor.telemetry.tail import Piece

CATALOG = catalog.load()
NODES = ("n0", "n1")
REFUSED = "srun: error: Unable to confirm allocation for job 2: Invalid job id specified\nsrun: Check SLURM_JOB_ID environment variable. Expired or invalid job 2\n"
COMPLETING = "srun: error: Unable to create step for job 2: Job/step already completing or completed\n"
BUG = "Traceback (most recent call last):\nTypeError: unsupported operand\n"


def _lines(text: str) -> LogFile:
    file = LogFile("job.log", LogContext(CATALOG))
    file.take(Piece(text.encode(), 0, 0), 1000.0)
    file.finish(1000.0)
    return file


def _judged(text: str, ended: Ended, *, forgotten: bool = True) -> Diagnosis:
    evidence = _lines(text).evidence()
    return diagnose(Facts(evidence, Topology(nodes=NODES), CATALOG, ended=ended, forgotten=forgotten))


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        (REFUSED, Ended("GONE", exit_code=1)),  # the script's srun was refused
        ("", Ended("GONE", exit_code=137)),  # slurmd killed what its controller does not know
        ("", Ended("GONE", exit_signal=15)),
        ("", Ended("GONE")),
    ],
)
def test_a_job_that_slurm_does_not_know_any_more_failed_by_slurm(text: str, ended: Ended) -> None:
    found = _judged(text, ended)
    assert (found.fault, found.signature, found.retry) == (FaultClass.SCHEDULER, "slurm.job-unknown", True)
    assert found.nodes == ()


def test_the_agent_judges_alike() -> None:
    """It asked Slurm for its own job, which runs, and Slurm knows none."""
    file = _lines(REFUSED)
    seen = start_decision.StartFacts(2, NODES, "", 1, 0, 1000.0, evidence=file.evidence(), forgotten=True)
    assert start_decision.diagnose_start(seen, CATALOG).fault is FaultClass.SCHEDULER


def test_a_cause_of_the_program_s_own_says_more() -> None:
    assert _judged(BUG, Ended("GONE", exit_code=1)).fault is FaultClass.USER_CODE


@pytest.mark.parametrize("text", ["", COMPLETING])
def test_a_script_that_failed_by_itself_is_not_explained_by_it(text: str) -> None:
    assert _judged(text, Ended("GONE", exit_code=3)).fault is FaultClass.UNKNOWN


def test_where_slurm_knows_the_job_a_wrong_id_is_the_script_s() -> None:
    assert _judged(REFUSED, Ended("FAILED", exit_code=1), forgotten=False).fault is FaultClass.UNKNOWN


def test_an_end_of_ours_is_no_loss() -> None:
    assert _judged("", Ended("GONE", exit_code=137, by_us=True)).fault is FaultClass.HANG
