"""How long the supervisor's own job may run: what is asked for, and what is refused. (I/O)"""

from __future__ import annotations

import subprocess

import pytest

from ftrun.slurm.client.cluster import PartitionRow
from ftrun.supervisor.cli import supervise
from ftrun.supervisor.model.errors import UserError

HOUR_S = 3600.0
PARTITIONS = {
    row.name: row
    for row in (
        PartitionRow("main", True, True, ("n1",), None),
        PartitionRow("hour", True, False, ("n1",), HOUR_S),
        PartitionRow("debug", True, False, ("n1",), 120.0),
    )
}


@pytest.mark.parametrize(
    ("words", "minutes"),
    [
        ((), 1440),
        (("-p", "main"), 1440),
        (("-phour",), 60),
        (("--partition=main,hour",), 60),
        (("-p", "elsewhere"), 1440),
        (("-t", "7-0"), None),
        (("--time=10", "-p", "debug"), None),
        (("--time=UNLIMITED",), None),
    ],
)
def test_a_day_is_asked_for_or_what_the_partition_allows(words: tuple[str, ...], minutes: int | None) -> None:
    """What the user says of it holds, and so does Slurm's word on it."""
    assert minutes == supervise.time_limit(words, PARTITIONS)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("-p", "debug"), "partition debug ends a job after 2 minutes, a supervisor's job needs 4 at least"),
        (("--time=3",), "--time=3: a supervisor's job needs 4 minutes at least"),
        (("--no-such-option",), "unrecognized option"),
        (("job.sh",), "options of sbatch are wanted, not 'job.sh'"),
    ],
)
def test_what_is_of_no_use_is_refused(words: tuple[str, ...], told: str) -> None:
    """A job that would go back into the queue as soon as it began is told before it is submitted."""
    with pytest.raises(UserError, match=told):
        supervise.time_limit(words, PARTITIONS)


def test_the_script_is_sh() -> None:
    """Whatever /bin/sh is on a node."""
    script = supervise.SCRIPT.format(home="'/a b'", python="/usr/bin/python3")
    subprocess.run(["sh", "-n"], input=script.encode(), check=True)
