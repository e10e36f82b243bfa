"""`ftrun adopt` on real Slurm: a job that plain sbatch submitted is a run from its end on, whatever dies in between.

How it thinks. Each law has a home of its own on one sandbox, and all are tried side by side. Every script holds a lock, so
two starts at once are seen in the ledger. A cut is a death of `ftrun adopt` or of the supervisor at one point.
"""

from __future__ import annotations

import getpass
import os
import pwd
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.store import run_dir as store_run_dir
from tests.slurm.post import OFF_THE_BUS, SUBMITTED, Post, Witness, posts

pytestmark = pytest.mark.slurm

LANES = 6
TRAINS = f"""
mkdir -p ck/step_10; echo weights >ck/step_10/model.pt
echo "args $* word $WORD umask $(umask)" >>ledger
[ -n "$FTRUN_ATTEMPT" ] && {{ echo "step 11 loss 1.0"; exit 0; }}
echo "step 10 loss 2.5"
until [ -e fail ]; do sleep 0.2; done
echo "{OFF_THE_BUS}"
exit 1
"""
SETTINGS = "\n#FTRUN --checkpoint=ck/step_*\n#FTRUN --resume-arg=--resume={checkpoint}\n"
BEFORE_THE_CLAIM = "record:after:submit.intended"
AFTER_THE_CLAIM = ("claim:after", "mark:after")
OF_THE_SUPERVISOR = (
    "record:after:job.started",
    "record:after:job.ended",
    "record:after:decided",
    "submit:before",
    "submit:after",
)


def _plain(post: Post, *words: str, body: str = TRAINS, args: tuple[str, ...] = (), **env: str) -> str:
    """Plain sbatch of a script on one node; the job id."""
    script = post.script(body)
    script.write_text(script.read_text().replace("\n", SETTINGS, 1))
    found = SUBMITTED.search(
        post.call("sbatch", f"--output={post.work}/%x.log", "-N1", *words, str(script), *args, code=0, **env)
    )
    assert found
    return found[1]


def _running(post: Post, job: str) -> None:
    """Wait until the script of the job runs."""
    post.until(lambda: any(job in line for line in post.ledger()), f"job {job} runs")


def _comment(post: Post, job: str) -> str:
    return post.call("squeue", "-h", "-j", job, "-o", "%k").strip()


def _resubmitted(post: Post, job: str) -> list[str]:
    """Let the job fail; the ledger when its run has finished."""
    (post.work / "fail").touch()
    run = post.until_state("finished", job=job)
    assert [one.submission for one in run.attempts].count("done") == 2, post.story()
    first, second = run.attempts[0], run.attempts[-1]
    assert first.job == job
    assert set(first.nodes) <= set(second.excluded), post.story()
    assert not set(first.nodes) & set(second.nodes)
    ledger = post.ledger()
    assert not [line for line in ledger if line.startswith("double")]
    assert [line.split()[-1] for line in ledger if line.startswith("start")] == [job, second.job]
    return [line for line in ledger if line.startswith("args")]


def _law_running(post: Post) -> None:
    """Arguments, environment, umask and the user's own comment stay; the bad node is left out, the checkpoint loaded."""
    words = ("--comment=mine own", "--time=20")
    job = _plain(post, *words, args=("a b", "c"), WORD="kept")
    _running(post, job)
    before = post.call("scontrol", "-o", "show", "job", job)
    said = post.ftrun("adopt", "--ft-retries=3", job)
    run = post.run(job)
    assert said == f"Adopted job {job} as run {run.id}\n"
    after = post.call("scontrol", "-o", "show", "job", job)
    assert _comment(post, job) == f"mine own {run.attempt.token}"  # type: ignore[union-attr]
    changed = {a.split("=")[0] for a, b in zip(before.split(), after.split(), strict=False) if a != b}
    assert changed <= {"RunTime", "ftrun:", "StdErr", "StdIn", "StdOut", "Power", "Comment"} | changed & {
        "own"
    }
    assert f"job {job}: it is a job of run {run.id} already" in post.ftrun("adopt", job, code=1)
    assert run.settings["retries"] == 3
    post.supervise()
    first, second = _resubmitted(post, job)
    assert first == "args a b c word kept umask 0022"
    assert second == f"args a b c --resume={post.work}/ck/step_10 word kept umask 0022".replace(
        f"{post.work}/", ""
    )
    assert "step 10" in post.ftrun("logs", job)


def _law_queued(post: Post) -> None:
    """A job that waits has no environment to read: refused in one line; with this shell's it is adopted and followed."""
    job = _plain(post, "--hold", WORD="theirs")
    refused = post.ftrun("adopt", job, code=1)
    assert f"job {job}: its environment cannot be read before it runs" in refused
    assert not post.home.joinpath("runs").exists()
    post.ftrun("adopt", "--environment=shell", job, WORD="shell")
    post.supervise()
    post.until_state("queued", job=job)
    post.call("scontrol", "release", job)
    _running(post, job)
    first, second = _resubmitted(post, job)
    assert first == "args  word theirs umask 0022"
    assert second == "args --resume=ck/step_10 word shell umask 0022"


def _law_refused(post: Post) -> None:
    """What cannot be a run is refused with one line that says why, and nothing is left behind."""
    array = _plain(post, "--hold", "--array=1-3")
    het = post.call("sbatch", "--hold", "-N1", ":", "-N1", "--wrap", "sleep 1").split()[-1]
    over = _plain(post, body="exit 0\n")
    post.until(
        lambda: "COMPLETED" in post.call("squeue", "-h", "-t", "all", "-j", over, "-o", "%T"), "it is over"
    )
    bare = post.call("salloc", "--no-shell", "-N1", code=None).split()
    for job, why in (
        (array, "it is part of a job array"),
        (het, "it is part of a heterogeneous job"),
        (over, "it is over (COMPLETED)"),
        (next(word for word in bare if word.isdigit()), "it has no batch script"),
        ("999999", "Slurm does not know it"),
    ):
        said = post.ftrun("adopt", "--environment=shell", job, code=1)
        assert f"job {job}: {why}" in said, said
        assert said.count("\n") == 1
    assert "adopt takes the number of a plain job" in post.ftrun("adopt", f"{array}_1", code=2)
    assert not post.home.joinpath("runs").exists()
    post.call("scancel", array, het, next(word for word in bare if word.isdigit()))
    job = _plain(post)
    _running(post, job)
    post.call("scontrol", "requeuehold", job)

    def is_held() -> bool:
        state, _, reason = post.call("squeue", "-h", "-j", job, "-o", "%T %r").partition(" ")
        return state == "PENDING" and "held" in reason.lower()

    post.until(is_held, "it is held")
    assert "it was requeued and is held" in post.ftrun("adopt", "--environment=shell", job, code=1)
    if os.geteuid() == 0:
        theirs = next(one.pw_name for one in pwd.getpwall() if one.pw_uid)
        other = post.call("sbatch", "--hold", f"--uid={theirs}", "--output=/dev/null", "--wrap=true").split()[
            -1
        ]
        said = post.ftrun("adopt", "--environment=shell", other, code=1)
        assert f"it is {theirs}'s; only {theirs} can adopt it" in said
        assert getpass.getuser() != theirs


def _law_cut_before(post: Post) -> None:
    """`ftrun adopt` dies before its claim: the job stays plain and lives, the run is over, and adopt works again."""
    job = _plain(post)
    _running(post, job)
    post.ftrun("adopt", job, code=-9, FTRUN_CRASH_AT=BEFORE_THE_CLAIM)
    assert _comment(post, job) == "(null)"
    supervisor = post.supervise()
    run = post.until_state("stopped")
    assert "did not come about" in run.final_reason
    assert post.call("squeue", "-h", "-j", job, "-o", "%T %k").strip() == "RUNNING (null)"
    supervisor.kill()
    post.ftrun("adopt", job)
    post.supervise()
    _resubmitted(post, job)


def _law_cut_after(post: Post, point: str) -> None:
    """It dies after its claim: the supervisor goes on with the adoption, and the comment bears the token."""
    job = _plain(post, "--comment=mine")
    _running(post, job)
    post.ftrun("adopt", job, code=-9, FTRUN_CRASH_AT=point)
    post.supervise()
    run = post.until_state("running")
    assert _comment(post, job) == f"mine {run.attempt.token}"  # type: ignore[union-attr]
    _resubmitted(post, job)


def _law_supervisor_cut(post: Post, point: str) -> None:
    """A supervisor that dies between two records of an adopted job: the next one comes to the same end."""
    job = _plain(post)
    _running(post, job)
    post.ftrun("adopt", job)
    first = post.supervise(FTRUN_CRASH_AT=point)
    (post.work / "fail").touch()
    post.until(lambda: first.poll() is not None, f"the supervisor dies at {point}")
    post.supervise()
    _resubmitted(post, job)


def _law_requeued(post: Post) -> None:
    """Slurm puts an adopted job back into its queue: it does not start there from nothing, but as a resubmission."""
    job = _plain(post)
    _running(post, job)
    post.ftrun("adopt", job)
    post.supervise()
    post.until_state("running")
    post.call("scontrol", "requeuehold", job)
    run = post.until_state("finished", job=job)
    assert "--resume=ck/step_10" in post.ledger()[-1]
    assert [line.split()[-1] for line in post.ledger() if line.startswith("start")] == [
        job,
        run.attempts[-1].job,
    ]


LAWS: dict[str, Callable[[Post], None]] = {
    "running": _law_running,
    "queued": _law_queued,
    "refused": _law_refused,
    "requeued": _law_requeued,
    f"cut {BEFORE_THE_CLAIM}": _law_cut_before,
    **{f"cut {point}": partial(_law_cut_after, point=point) for point in AFTER_THE_CLAIM},
    **{f"supervisor cut {point}": partial(_law_supervisor_cut, point=point) for point in OF_THE_SUPERVISOR},
}


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, slurm_sandbox: Sandbox) -> Iterator[dict[str, Future[None]]]:
    """The outcome of each law that is wanted; never were two jobs of one run alive at once."""
    wanted = [
        str(item.callspec.params["law"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module
    ]
    with posts(slurm_sandbox) as make, Witness(slurm_sandbox) as witness, ThreadPoolExecutor(LANES) as pool:
        yield {law: pool.submit(_play, LAWS[law], make, witness) for law in wanted}


def _play(law: Callable[[Post], None], make: Callable[..., Post], witness: Witness) -> None:
    post = make()
    law(post)
    for path in store_run_dir.run_dirs(str(post.home)):
        assert witness.most[post.run(os.path.basename(path)).token] <= 1


LONG = {
    "queued",
    "requeued",
    f"cut {BEFORE_THE_CLAIM}",
    f"cut {AFTER_THE_CLAIM[1]}",
    *(f"supervisor cut {point}" for point in OF_THE_SUPERVISOR[:-2]),
}


@pytest.mark.parametrize(
    "law", [pytest.param(law, marks=[pytest.mark.drills] if law in LONG else []) for law in LAWS]
)
def test_an_adopted_job(law: str, played: dict[str, Future[None]]) -> None:
    """See the laws above."""
    played[law].result()
