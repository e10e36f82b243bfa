"""What a federation means for a run: a job that may start elsewhere is told of, and nobody else is asked anything. (I/O)"""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.slurm.client.options import SbatchOptions
from ftrun.supervisor.submission import cluster_client
from ftrun.supervisor.submission.arguments import Submission
from ftrun.supervisor.submission.cluster_client import federation_warning, parse_federation

ALONE = "Federation: all\nSelf:       east:127.0.0.1:6817 ID:1 FedState:ACTIVE Features:\n"
TWO = f"{ALONE}Sibling:    west:10.0.0.2:6817 ID:2 FedState:ACTIVE Features:gpu PersistConnSend/Recv:Yes/Yes Synced:Yes\n"


@pytest.fixture
def scontrol(tmp_path: Path) -> Path:
    """Where a scontrol lies that answers with the file `shown`, and counts its calls."""
    path = tmp_path / "scontrol"
    path.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\ncat {tmp_path}/shown\n')
    path.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("shown", "found"),
    [("", ("", [])), (ALONE, ("east", [])), (TWO, ("east", ["west"]))],
)
def test_siblings_are_read_from_what_scontrol_shows(shown: str, found: tuple[str, list[str]]) -> None:
    """A federation of one cluster has none."""
    assert found == parse_federation(shown)


@pytest.mark.parametrize(
    ("job", "shown", "asked", "told"),
    [
        ("4711", TWO, False, ""),
        ("67108863", TWO, False, ""),
        ("67108865", ALONE, True, ""),
        ("67108865", "", True, ""),
        (
            "67108865",
            TWO,
            True,
            "job 67108865 may be started on another cluster of its federation (west), where ftrun does not see it; submit with -M east to keep a run here",
        ),
    ],
)
def test_only_a_federated_job_is_asked_about(
    scontrol: Path, job: str, shown: str, asked: bool, told: str
) -> None:
    """Its id tells: outside of a federation nothing is called."""
    (scontrol / "shown").write_text(shown)
    assert told == federation_warning(job, {"PATH": f"{scontrol}:/usr/bin:/bin"})
    assert asked == (scontrol / "asked").exists()


def test_without_an_answer_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning is no reason to spoil a submission that succeeded."""
    monkeypatch.setattr("ftrun.slurm.commands.process._USUAL_PATH", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "" == cluster_client.federation_warning("67108865", {"PATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("argv", "env", "named"),
    [
        ((), {}, False),
        (("-M", "east"), {}, True),
        ((), {"SLURM_CLUSTERS": "east"}, True),
        ((), {"SBATCH_CLUSTERS": "east"}, True),
        ((), {"SLURM_CLUSTERS": "", "SBATCH_CLUSTERS": ""}, False),
    ],
)
def test_whoever_names_the_cluster_is_told_nothing(
    argv: tuple[str, ...], env: dict[str, str], named: bool
) -> None:
    """By the command line or a variable, as sbatch takes it."""
    from ftrun.slurm.client import options

    asked = Submission(argv, {})
    asked.env = env
    asked.given = SbatchOptions(options.split([*argv, "job.sh"]), [options.split([])], env)
    assert named == asked.names_cluster
