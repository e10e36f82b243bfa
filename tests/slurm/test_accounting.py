"""Accounting as a second source, on a real slurmdbd with a real MariaDB: what Slurm has forgotten, and no more than that.

How it thinks. All lives share one sandbox in which comments are not stored, as on most sites. Each is one run whose job ends while nobody looks
after it; what its folder and its log could tell is removed. Once slurmctld has forgotten all of the jobs (it looks once a minute for what to
forget), supervisors begin, and every life comes to its end by accounting alone.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from ftrun.slurm.commands.accounting import SacctAccounting
from ftrun.slurm.sandbox import boot
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.model.run import Run
from tests.slurm.post import Post, boxes, posts

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.accounting,
    pytest.mark.skipif(
        any(shutil.which(name, path=boot.search_path()) is None for name in ("mariadbd", "slurmdbd")),
        reason="no slurmdbd or no MariaDB: `.ci/env accounting` installs them",
    ),
]

PATIENCE_S = 400.0
NO_AGENT = 'agent = "never"\n'
CONF = {"MinJobAge": "2", "AccountingStoreFlags": ""}
SLEEPS = "echo 'step 1 loss 2.5'\nsleep 300\n"
ONCE = '[ "$FTRUN_ATTEMPT" = 1 ] && exit 7\necho done >>ledger\n'


@dataclass(frozen=True)
class Life:
    """One run: how it was submitted, what happened to its job, what came of the run."""

    post: Post
    job: str
    nodes: tuple[str, ...] = ()  # where Slurm showed the last launch

    @property
    def run(self) -> Run:
        """The run as its journal tells it."""
        return self.post.run(self.job)


def _ran(post: Post, body: str, *words: str) -> Life:
    """A job that comes to its end by itself."""
    job = post.sbatch(body, *words)
    post.until(lambda: _state(post, job) in ("FAILED", "COMPLETED"), f"job {job} ends", PATIENCE_S)
    return Life(post, job, _nodes(post, job))


def _state(post: Post, job: str) -> str:
    return post.call("squeue", "-h", "-t", "all", "-j", job, "-o", "%T", code=None).strip().split("\n")[-1]


def _nodes(post: Post, job: str) -> tuple[str, ...]:
    return tuple(post.call("squeue", "-h", "-t", "all", "-j", job, "-o", "%N", code=None).split())


def _failed(post: Post) -> Life:
    return _ran(post, ONCE, "-N1")


def _finished(post: Post) -> Life:
    return _ran(post, "exit 0\n", "-N1")


def _cancelled(post: Post) -> Life:
    job = post.sbatch(SLEEPS, "-N1")
    post.until(post.ledger, "it runs", PATIENCE_S)
    post.call("scancel", job)
    return Life(post, job)


def _cancelled_in_queue(post: Post) -> Life:
    job = post.sbatch(SLEEPS, "-N1", "--hold")
    post.call("scancel", job)
    return Life(post, job)


def _requeued(post: Post) -> Life:
    """By an operator: it is held, kept off its node, and let go; the second launch fails elsewhere."""
    body = '[ "$FTRUN_ATTEMPT$SLURM_RESTART_COUNT" = 1 ] && sleep 300\n' + ONCE
    job = post.sbatch(body, "-N1", "--requeue", "--open-mode=append")
    post.until(post.ledger, "it runs", PATIENCE_S)
    (first,) = _nodes(post, job)
    post.call("scontrol", "requeuehold", job)
    post.until(lambda: _state(post, job) == "PENDING", "it is held", PATIENCE_S)
    post.call("scontrol", "update", f"JobId={job}", f"ExcNodeList={first}")
    post.call("scontrol", "release", job)
    post.until(lambda: _state(post, job) == "FAILED", "it ends", PATIENCE_S)
    (second,) = _nodes(post, job)
    return Life(post, job, (first, second))


def _array(post: Post) -> Life:
    """Task 2 fails, 1 and 3 are done."""
    body = (
        '[ "$SLURM_ARRAY_TASK_ID.$FTRUN_ATTEMPT" = 2.1 ] && exit 7\necho task $SLURM_ARRAY_TASK_ID >>ledger\n'
    )
    job = post.sbatch(body, "-N1", "--array=1-3", f"--output={post.work}/%a.log")
    post.until(lambda: len(post.ledger()) >= 5, "all tasks ran", PATIENCE_S)
    return Life(post, job)


def _hetjob(post: Post) -> Life:
    return _ran(post, "exit 0\n", "-N1", ":", "-N1")


KINDS: dict[str, Callable[[Post], Life]] = {
    "failed": _failed,
    "finished": _finished,
    "cancelled": _cancelled,
    "cancelled in the queue": _cancelled_in_queue,
    "requeued": _requeued,
    "array": _array,
    "het job": _hetjob,
}
END = {"cancelled": "stopped", "cancelled in the queue": "stopped"}


def _lost(life: Life) -> None:
    """Nothing of the job is left: neither what it wrote into the run's folder, but for its claims, nor its log."""
    for path in sorted(Path(life.post.run_dir(life.job), "attempts", "1").rglob("*"), reverse=True):
        if path.is_file() and path.name.partition(".")[0] in ("launch", "exit", "begun"):
            path.unlink()
    for log in life.post.work.glob("*.log"):
        log.unlink()


def _play(name: str, make: Callable[..., Post]) -> Life:
    life = KINDS[name](make(NO_AGENT))
    post, job = life.post, life.job
    _forgotten(post, job)
    _lost(life)
    post.supervise()
    post.until_state(END.get(name, "finished"), job=job, within_s=PATIENCE_S)
    return life


def _forgotten(post: Post, job: str) -> None:
    post.until(
        lambda: (
            not post.call("squeue", "-h", "-t", "all", "-j", job, code=None).strip().startswith(job)
            and "Invalid job id" in post.call("scontrol", "show", "job", job, code=None)
        ),
        f"slurmctld forgets job {job}",
        PATIENCE_S,
    )


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    """A cluster with accounting that stores no comments and forgets at once."""
    with boxes() as make:
        yield make(nodes=4, accounting=True, conf=CONF)


@pytest.fixture(scope="module")
def lives(request: pytest.FixtureRequest, box: Sandbox) -> Iterator[dict[str, Future[Life]]]:
    """Every life, all at once."""
    with posts(box) as make, ThreadPoolExecutor(len(KINDS)) as pool:
        yield {name: pool.submit(_play, name, make) for name in KINDS}


@pytest.fixture
def make(box: Sandbox) -> Iterator[Callable[..., Post]]:
    """A maker of posts on it."""
    with posts(box) as maker:
        yield maker


Lives = dict[str, Future[Life]]


def test_how_a_job_failed_is_known_after_slurm_forgot_it(lives: Lives) -> None:
    """State, exit code and nodes of a job that left neither record nor log; the next attempt finishes."""
    life = lives["failed"].result()
    first = life.run.attempts[0]

    assert (first.launch.end.state, first.launch.end.exit_code, first.nodes) == ("FAILED", 7, life.nodes), (
        life.post.story()
    )
    assert life.post.ledger()[-1] == "done"


@pytest.mark.parametrize("kind", ["finished", "het job"])
def test_a_job_that_finished_is_not_submitted_again(lives: Lives, kind: str) -> None:
    """COMPLETED in accounting is the script's good end, also of a heterogeneous job."""
    life = lives[kind].result()

    assert [a.launch.end.state for a in life.run.attempts] == ["COMPLETED"], life.post.story()


@pytest.mark.parametrize("kind", ["cancelled", "cancelled in the queue"])
def test_a_persons_cancel_stands_after_slurm_forgot_it(lives: Lives, kind: str) -> None:
    """P5: accounting names who cancelled; the run stops as cancelled, without doubt."""
    life = lives[kind].result()

    assert (life.run.final_class, len(life.run.attempts)) == ("cancelled", 1), life.post.story()
    assert life.run.attempts[0].launch.end.state == "CANCELLED", life.post.story()


def test_each_launch_of_a_requeued_job_has_its_own_end_and_nodes(lives: Lives) -> None:
    """An operator requeued the job while nobody watched: the second launch, on another node, is the one that failed."""
    life = lives["requeued"].result()
    first = life.run.attempts[0]

    assert life.nodes[0] != life.nodes[1]
    assert (first.launch.number, first.launch.end.state, first.nodes) == (1, "FAILED", life.nodes[1:]), (
        life.post.story()
    )
    assert len(life.run.attempts) == 2


def test_of_a_forgotten_array_only_the_failed_task_is_repeated(lives: Lives) -> None:
    """Each task has an end of its own in accounting."""
    life = lives["array"].result()

    assert life.run.attempts[0].failed_tasks == (2,), life.post.story()
    assert sorted(line for line in life.post.ledger() if "task" in line) == ["task 1", "task 2", "task 3"]


def test_accounting_tells_whose_a_row_is_though_no_comment_is_stored(lives: Lives, box: Sandbox) -> None:
    """P1: the line that was typed bears the token, in every launch."""
    life = lives["requeued"].result()
    rows = SacctAccounting(box.env()).rows([life.job])
    token = life.run.attempts[0].token

    assert [(row.state.value, row.comment, token in row.submit_line) for row in rows] == [
        ("REQUEUED", "", True),
        ("FAILED", "", True),
    ]


def _daemon(box: Sandbox, name: str, number: signal.Signals) -> None:
    """A signal to a daemon of the sandbox."""
    (pid,) = (one.pid for one in box.status().daemons if one.name == name and one.pid is not None)
    os.kill(pid, number)


def test_a_database_that_hangs_holds_no_run_up(lives: Lives, box: Sandbox, make: Callable[..., Post]) -> None:
    """slurmdbd stands still while a forgotten job's end is asked for: the run's own folder decides, within the time that an answer is waited for."""
    for future in lives.values():
        future.exception()
    _daemon(box, "slurmdbd", signal.SIGSTOP)
    try:
        post = make(NO_AGENT)
        job = post.sbatch(ONCE, "-N1")
        _forgotten(post, job)
        post.supervise()
        run = post.until_state("finished", job=job, within_s=PATIENCE_S)
    finally:
        _daemon(box, "slurmdbd", signal.SIGCONT)

    assert [(a.launch.end.state, a.launch.end.exit_code) for a in run.attempts] == [
        ("GONE", 7),
        ("COMPLETED", 0),
    ], post.story()
    assert post.log.count("accounting.unseen") == 1


def test_what_a_controller_without_memory_gave_up_was_cancelled_by_nobody(
    lives: Lives, box: Sandbox, make: Callable[..., Post]
) -> None:
    """slurmctld comes back without its state and closes our job in accounting as CANCELLED: no person did that, and the run goes on."""
    for future in lives.values():
        future.exception()
    post = make(NO_AGENT)
    job = post.sbatch('[ "$FTRUN_ATTEMPT" = 1 ] && sleep 300\necho done >>ledger\n', "-N1")
    post.until(post.ledger, "it runs", PATIENCE_S)
    box.kill_controller()
    shutil.rmtree(box.folder / "state")
    (box.folder / "state").mkdir()
    box.start_controller()
    post.until(
        lambda: any(row.given_up for row in SacctAccounting(box.env()).rows([job])),
        "accounting closes the job",
        PATIENCE_S,
    )
    post.supervise()
    run = post.until_state("finished", job=job, within_s=PATIENCE_S)

    assert [a.launch.end.state for a in run.attempts] == ["GONE", "COMPLETED"], post.story()
    assert run.attempts[0].nodes, "accounting knows where it was"
