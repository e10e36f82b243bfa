"""Laws of a supervisor with very many runs: what it asks and what it holds open does not grow with their number."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ftrun.slurm.client.cluster import JobRow, JobState
from ftrun.slurm.commands.cluster import CommandCluster
from ftrun.supervisor.telemetry.tail import Descriptors
from tests.unit.lives import Life


def row(job_id: str, user: str = "me", raw: str = "") -> JobRow:
    return JobRow(
        job_id=job_id,
        state=JobState.RUNNING,
        reason="",
        nodes=("n0",),
        node_count=1,
        comment="",
        name="train",
        user=user,
        partition="main",
        submit_time_s=1.0,
        start_time_s=2.0,
        end_time_s=None,
        raw_job_id=raw or job_id,
    )


class Asked(CommandCluster):
    """Answers from memory as squeue does, and keeps what it was asked for."""

    def __init__(self, *known: JobRow) -> None:
        super().__init__({}, user="me")
        self.known, self.asked = known, list[str]()

    def _queue(self, selection: Sequence[str]) -> tuple[JobRow, ...]:
        self.asked.append(" ".join(word for word in selection if word.startswith("-")))
        ids = selection[selection.index("-j") + 1].split(",") if "-j" in selection else None
        user = selection[selection.index("-u") + 1] if "-u" in selection else None
        return tuple(
            row
            for row in self.known
            if user in (None, row.user)
            and (ids is None or {row.job_id, row.raw_job_id, row.job_id.partition("_")[0]} & set(ids))
        )


def test_of_many_jobs_slurm_is_asked_by_user_and_compares_only_a_few() -> None:
    """The controller then sends one user's jobs instead of everybody's, and squeue need not compare each job with each id."""
    cluster = Asked(*(row(str(number)) for number in range(1, 2001)))
    assert [len(cluster.jobs([str(number) for number in range(1, last + 1)])) for last in (1, 2, 1000)] == [
        1,
        2,
        1000,
    ]
    assert cluster.asked == ["-j", "-u -j", "-u"]


def test_jobs_of_others_and_of_nobody_are_asked_for_once_more_and_alone() -> None:
    """Whatever is asked for, the rows are those that the ids name: an array's all its tasks, others' jobs, and no stranger's."""
    cluster = Asked(
        row("7"), row("8_1", raw="11"), row("8_2", raw="8"), row("9", "you"), row("10", "you"), row("12")
    )
    assert set(cluster.jobs(["7", "8", "9", "404", "no id"])) == {"7", "8_1", "8_2", "9"}
    assert cluster.asked == ["-u -j", "-j"]
    assert set(cluster.jobs(["11", "7"])) == {"8_1", "7"}
    many = [str(number) for number in range(100, 300)]
    assert set(cluster.jobs(["8", "12", *many])) == {"8_1", "8_2", "12"}


def test_a_run_needs_no_open_file_of_its_own(tmp_path: Path) -> None:
    """Where no more journals may stay open, each record opens its own; a journal that may stay open gives its place back."""
    life = Life(tmp_path)
    life.supervisor.services.descriptors = Descriptors(0)
    life.until("running")
    assert [path for path in _open_files() if path.startswith(str(tmp_path)) and "/journal/" in path] == []
    life.begin_anew()
    life.supervisor.services.descriptors = room = Descriptors(1)
    life.exit(0)
    life.until("finished")
    life.supervisor.forget()
    assert [room.take(), room.take()] == [True, False]


def _open_files() -> list[str]:
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue  # the listing's own
    return links
