"""Laws of the second source: what accounting says of a job that Slurm has forgotten, whose it is, and that nobody needs it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.client.errors import RefusedForGood, SlurmError, Unreachable
from ftrun.slurm.client.parse import UNIT
from ftrun.slurm.commands.accounting import AccountingRow, parse_accounts
from ftrun.supervisor.controller import accounting
from ftrun.supervisor.model.run import Attempt, Launch
from tests.fake_slurm.faults import crash_controller
from tests.unit.lives import TIMING, Life

FORGOTTEN_S = TIMING.min_job_age_s + 60
ROW = AccountingRow(
    job_id="1", raw_job_id="1", cluster="c", user="ann", name="train.sh", submit_time_s=1000.0, start_time_s=1010.0,
    end_time_s=1100.0, state=JobState.FAILED, by=None, exit_code=3, exit_signal=0, derived_exit_code=0, nodes=("n0",),
)  # fmt: skip
TOKEN = "ftrun:r-0001:ab:1"
MINE = Attempt(1, 990.0, token=TOKEN, job="1", cluster="c", submitted_at_s=1001.0)


@dataclass
class Books:
    """Accounting of a virtual cluster: the rows that a test gives it, every question noted."""

    rows_of: Callable[[], list[AccountingRow]]
    wrong: SlurmError | None = None
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def rows(self, job_ids: Collection[str]) -> tuple[AccountingRow, ...]:
        """See `Accounts.rows`."""
        self.asked.append(tuple(job_ids))
        if self.wrong is not None:
            raise self.wrong
        return tuple(one for one in self.rows_of() if one.raw_job_id in job_ids)


def _own(
    *rows: AccountingRow, attempt: Attempt = MINE, user: str = "ann", name: str = "train.sh"
) -> list[tuple[str, int]]:
    found = accounting.rows_of_attempt(rows, attempt, user=user, name=name)
    return [(one.state.value, launch) for one, launch in found]


# ---------------------------------------------------------------------- whose row it is


def test_a_token_is_proof_in_the_comment_or_in_the_line_that_was_typed() -> None:
    """P1: a row that bears another token is another's, be it of the same user, name and second; a comment outweighs the line."""
    line = f"sbatch --comment={TOKEN} train.sh"

    assert _own(replace(ROW, comment=TOKEN)) == [("FAILED", 0)]
    assert _own(replace(ROW, submit_line=line), name="") == [("FAILED", 0)]
    assert _own(replace(ROW, comment="ftrun:r-0002:cd:1")) == []
    assert _own(replace(ROW, submit_line=line.replace("ab:1", "ab:12"))) == []
    assert _own(replace(ROW, comment="ftrun:r-0002:cd:1", submit_line=line)) == []


@pytest.mark.parametrize("other", [{"user": "bob"}, {"cluster": "d"}])
def test_a_token_of_somebody_else_or_on_another_cluster_proves_nothing(other: dict[str, Any]) -> None:
    """P1: comments are free text: who writes our token into his own gets no say about our run."""
    assert _own(replace(ROW, comment=TOKEN, **other)) == []


def test_without_a_token_it_is_the_second_of_the_start_that_proves() -> None:
    """P1: the id was given out again to a job of the same user and name: of two rows the one that started when Slurm said so is ours."""
    seen = replace(MINE, starts={0: 1010.0}, launch=Launch(started_at_s=1010.0))
    later = replace(
        ROW, submit_time_s=1200.0, start_time_s=1201.0, end_time_s=1300.0, state=JobState.COMPLETED
    )

    assert _own(ROW, later, attempt=seen) == [("FAILED", 0)]
    assert _own(later, attempt=seen) == []
    assert _own(replace(ROW, name="else.sh"), attempt=seen) == []
    assert _own(ROW, attempt=seen, user="", name="") == []


def test_without_a_token_and_a_start_it_is_the_only_submission_of_that_minute() -> None:
    """P1: two that could be it are none."""
    twin = replace(ROW, submit_time_s=1030.0)

    assert _own(ROW) == [("FAILED", 0)]
    assert _own(ROW, twin) == []
    assert _own(replace(ROW, submit_time_s=2000.0)) == []


def test_each_launch_has_its_row() -> None:
    """Requeues count, shrinks do not; what waits to start again is the launch that it would be."""
    first = replace(ROW, state=JobState.REQUEUED)
    second = replace(
        ROW, submit_time_s=1100.0, start_time_s=1106.0, end_time_s=1200.0, state=JobState.RESIZING
    )
    rest = replace(second, submit_time_s=1101.0, state=JobState.NODE_FAIL)
    third = replace(
        ROW, submit_time_s=1200.0, start_time_s=None, end_time_s=1250.0, state=JobState.CANCELLED, by=7
    )
    marked = [replace(one, comment=TOKEN) for one in (first, second, rest, third)]

    assert _own(*marked) == [("REQUEUED", 0), ("NODE_FAIL", 1), ("CANCELLED", 2)]
    known = replace(MINE, starts={5: 1010.0})
    assert _own(*marked, attempt=known) == [("REQUEUED", 5), ("NODE_FAIL", 6), ("CANCELLED", 7)]


def test_without_a_token_a_requeue_is_known_by_its_second() -> None:
    """P1: the row that begins when ours ended is its next launch; any other of that id is another job's."""
    first = replace(ROW, state=JobState.REQUEUED)
    again = replace(ROW, submit_time_s=1100.0, start_time_s=1106.0, end_time_s=1200.0)
    other = replace(
        ROW, submit_time_s=1300.0, start_time_s=1306.0, end_time_s=1400.0, state=JobState.COMPLETED
    )

    assert _own(first, again, other) == [("REQUEUED", 0), ("FAILED", 1)]
    assert _own(replace(first, state=JobState.CANCELLED), replace(other, submit_time_s=1100.0)) == [
        ("CANCELLED", 0)
    ]


# ---------------------------------------------------------------------- what a supervisor makes of it


def _life(tmp_path: Path, *, wrong: SlurmError | None = None, **row: Any) -> tuple[Life, Books]:
    """A run whose job was forgotten while nobody watched, and a supervisor that comes then."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    job = life.engine.jobs[1]
    nodes, start_s = life.launches[0].nodes, life.attempt.launch.started_at_s
    known = replace(
        ROW,
        cluster="memory",
        user=job.user,
        comment=life.token + ":1",
        nodes=tuple(nodes),
        start_time_s=start_s,
        **row,
    )
    books = Books(lambda: [known], wrong)
    crash_controller(life.engine, lose_last=1)
    life.engine.set_controller("up")
    life.engine.advance(FORGOTTEN_S)
    _another(life, books)
    return life, books


def _another(life: Life, books: Books) -> None:
    life.begin_anew()
    services = life.supervisor.services
    services.accounting.accounts, services.in_background = books, lambda deed: deed()


def test_a_persons_cancel_that_slurm_forgot_is_obeyed(tmp_path: Path) -> None:
    """P5: nobody watched, the log says nothing: accounting names who cancelled, and the run stops."""
    life, books = _life(tmp_path, state=JobState.CANCELLED, by=1000, exit_code=0)
    life.live(200, step_s=5.0)

    assert (life.run.state.value, life.run.final_class, life.attempt.number) == ("stopped", "cancelled", 1)
    assert books.asked == [("1",)]


def test_an_end_that_slurm_forgot_is_judged_as_if_it_had_not(tmp_path: Path) -> None:
    """State, exit code and nodes are accounting's; the next attempt is submitted, and nobody is asked again."""
    life, books = _life(tmp_path, state=JobState.NODE_FAIL, exit_code=0, exit_signal=9)
    life.live(300, step_s=5.0)
    first = life.run.attempts[0]

    assert (first.launch.end.state, first.launch.end.exit_code, first.launch.end.exit_signal) == (
        "NODE_FAIL",
        0,
        9,
    )
    assert first.nodes == life.launches[0].nodes
    assert life.attempt.number == 2
    assert books.asked == [("1",)]


def test_a_good_end_that_left_no_record_of_its_own_is_one(tmp_path: Path) -> None:
    """The folder could not be written from the node; accounting says COMPLETED 0:0: the run has finished."""
    life, _ = _life(tmp_path, state=JobState.COMPLETED, exit_code=0)
    life.live(200, step_s=5.0)

    assert (life.run.state.value, life.attempt.number) == ("finished", 1)


def test_what_the_controller_gave_up_was_cancelled_by_nobody(tmp_path: Path) -> None:
    """P5: a controller without its memory closes what it lost as CANCELLED, and names nobody: the run goes on."""
    life, _ = _life(tmp_path, state=JobState.CANCELLED, exit_code=0)
    life.live(300, step_s=5.0)

    assert life.run.attempts[0].launch.end.state == "GONE"
    assert (life.attempt.number, life.run.state.value) == (2, "running")


@pytest.mark.parametrize("by", [None, 1000], ids=["given-up", "cancelled"])
def test_who_left_the_queue_unstarted_is_told_by_accounting(tmp_path: Path, by: int | None) -> None:
    """P5: a person's cancel stays; what the controller lost from the queue is submitted again, though nobody watched."""
    life = Life(tmp_path)
    life.cluster.hold("1")
    life.live(5)
    job = life.engine.jobs[1]
    gone = replace(
        ROW, cluster="memory", user=job.user, comment=life.token + ":1", start_time_s=None, nodes=(), state=JobState.CANCELLED, by=by, exit_code=0
    )  # fmt: skip
    crash_controller(life.engine, lose_last=1)
    life.engine.set_controller("up")
    life.engine.advance(FORGOTTEN_S)
    _another(life, Books(lambda: [gone]))
    life.live(300, step_s=5.0)

    expected = ("running", 2) if by is None else ("stopped", 1)
    assert (life.run.state.value, life.attempt.number) == expected


@pytest.mark.parametrize(
    "wrong",
    [Unreachable("Problem talking to the database"), RefusedForGood("this cluster has no accounting")],
)
def test_without_an_answer_the_folder_decides_as_ever(tmp_path: Path, wrong: SlurmError) -> None:
    """Fail open: a database that is down is asked a few times and waited for under a minute; none at all is asked once."""
    life, books = _life(tmp_path, wrong=wrong)
    life.live(300, step_s=5.0)

    assert life.run.attempts[0].launch.end.state == "GONE"
    assert (life.attempt.number, life.run.state.value) == (2, "running")
    assert 1 <= len(books.asked) <= (1 if isinstance(wrong, RefusedForGood) else 5)


def test_a_question_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    """Fail open: the answer never comes; the loop goes on meanwhile, and the run after the time that an answer is waited for."""
    life, books = _life(tmp_path)
    life.supervisor.services.in_background = lambda deed: None
    life.live(300, step_s=5.0)

    assert (life.attempt.number, life.run.state.value) == (2, "running")
    assert books.asked == []


def test_a_row_of_another_job_with_our_id_is_not_believed(tmp_path: Path) -> None:
    """P1: the id was given out again: what accounting says of it is that job's, and the run goes on by its own records."""
    life, books = _life(tmp_path, state=JobState.COMPLETED, exit_code=0)
    theirs = replace(books.rows_of()[0], comment="ftrun:r-9999:cd:1")
    books.rows_of = lambda: [theirs]
    life.live(300, step_s=5.0)

    assert life.run.attempts[0].launch.end.state == "GONE"
    assert life.attempt.number == 2


def test_as_long_as_slurm_shows_its_jobs_nobody_asks_accounting(tmp_path: Path) -> None:
    """A whole life with a fault in it costs the database no question."""
    life = Life(tmp_path)
    books = Books(list)
    _another(life, books)
    life.until("running")
    life.exit(1)
    life.live(100)

    assert life.attempt.number == 2
    assert books.asked == []


# ---------------------------------------------------------------------- what sacct prints


def test_free_text_may_hold_line_breaks_and_older_fields_may_be_missing() -> None:
    """A row ends where the next one begins; a name cannot forge another's state."""
    names = [
        "JobIDRaw",
        "JobID",
        "Cluster",
        "User",
        "Submit",
        "Start",
        "End",
        "State",
        "ExitCode",
        "DerivedExitCode",
        "NodeList",
    ]
    plain = ["7", "7_3", "c", "ann", "1000", "None", "1100"]
    table = UNIT.join([*names, "JobName", "Comment", "SubmitLine"]) + "\n"
    table += UNIT.join(
        [*plain, "CANCELLED by 1000", "0:9", "2:0", "None assigned", "a\nb", "", "sbatch --wrap x\n1 y"]
    )
    table += (
        "\n"
        + UNIT.join([*plain, "PENDING", "0:0", "0:0", "n[0-1]", "j", "", ""]).replace("7_3", "7_[4,6-8%2]")
        + "\n"
    )
    first, second = parse_accounts(table)

    assert (first.job_id, first.state, first.by, first.exit_signal, first.derived_exit_code) == (
        "7_3",
        JobState.CANCELLED,
        1000,
        9,
        2,
    )
    assert (first.name, first.submit_line, first.nodes, first.start_time_s) == (
        "a\nb",
        "sbatch --wrap x\n1 y",
        (),
        None,
    )
    assert (second.job_id, second.nodes) == ("7_[4,6-8%2]", ("n0", "n1"))
    assert parse_accounts("") == ()
