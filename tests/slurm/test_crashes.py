"""kill -9 of the real supervisor at every effect and after every kind of record, on real Slurm.

How it thinks. One life holds everything that a recovery does: a fatal line while the script hangs, a job that waits for
the run (afterany: an end of ours must not set it off), the end of attempt 1, attempt 2, the end of the run. In another
life a person cancels. Each life is cut once, at one point, and then led to its end by a second supervisor. All
lives run side by side in one sandbox, and a witness looks at Slurm all the while.
"""

from __future__ import annotations

import collections
import contextlib
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.model.run import Run
from tests.slurm.post import OFF_THE_BUS, Post, Witness, boxes, posts

pytestmark = pytest.mark.slurm

LANES = 6
PATIENCE_S = 300.0  # only what hangs takes so long, however loaded the machine is
QUICK = ("submit:after",)
LONG = (
    "submit:before",
    "cancel:before",
    "cancel:after",
    "record:after:attempt.opened",
    "record:after:decided",  # in ./test: tests/slurm/test_agent_crashes.py
    *(
        f"{effect}:{side}"
        for effect in ("open", "hold", "dependency", "release")
        for side in ("before", "after")
    ),
    *(
        f"record:after:{kind}"
        for kind in (
            "job.started",
            "launch.seen",
            "evidence",
            "launch.progress",
            "fault.suspected",
            "end.intended",
            "dependents.held",
            "end.done",
            "job.ended",
            "diagnosed",
            "attempt.over",
            "attempt.closed",
            "submit.intended",
            "submit.done",
            "dependents.moved",
            "job.started:2",
            "launch.seen:2",
            "job.ended:2",
            "run.finished",
        )
    ),
)
# A person cancels: the points of that life.
CANCELLED = ("cancel:before", "cancel:after", "record:after:request.seen", "record:after:end.intended", "record:after:end.done", "record:after:run.stopped")  # fmt: skip
HANGS_ONCE = f"""
echo "step 1 loss 2.5"
if [ "$FTRUN_ATTEMPT" = 1 ]; then
    echo "{OFF_THE_BUS}"
    sleep 300
fi
echo "step 2 loss 2.4"
sleep 1
echo done >>ledger
"""


@dataclass(frozen=True)
class Life:
    """What came of one life that was cut."""

    point: str
    killed: bool
    run: Run
    jobs: list[tuple[str, str, str]]
    ledger: list[str]
    waiting: str  # the state of the job that waits for the run
    story: str
    last_lines: int  # of the final kind, in the job's log
    drains: int = 0  # nodes that bear a drain of this run
    most: int = 0  # jobs of the run alive at once, where the life had a sandbox of its own


def _supervised_to_the_end(post: Post, *, once: bool) -> None:
    """A second supervisor, either one that stays or one that cron starts again and again."""
    if not once:
        second = post.supervise()
        post.until(lambda: post.holder().epoch == 2, "the second leads", PATIENCE_S)
        post.until(lambda: post.run().final, "the run is over", PATIENCE_S)
        second.send_signal(signal.SIGTERM)
        assert second.wait(PATIENCE_S) == 0
        return
    for _ in range(12):
        assert post.supervise("--once").wait(PATIENCE_S) == 0
        if post.run().final:
            return


def _cut(post: Post, point: str) -> bool:
    """The first supervisor meets its end at the point; False where the run came to its own end without it."""
    first = post.supervise(FTRUN_CRASH_AT=point)
    post.until(
        lambda: first.poll() is not None or post.run().final,
        f"the first dies at {point}, or the run is over",
        PATIENCE_S,
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
        first.wait(PATIENCE_S)  # the last record of all is a point, too
    return first.poll() == -signal.SIGKILL


def _recovering(make: Callable[[], Post], point: str) -> Life:
    post = make()
    job = post.sbatch(HANGS_ONCE, "-N1", "--ft-agent=never")
    waiting = post.plain(f"--dependency=afterany:{job}", f"--wrap=echo waited >>{post.work}/ledger")
    killed = _cut(post, point)
    _supervised_to_the_end(post, once=point in ("submit:after", "record:after:end.done"))
    post.until(lambda: "waited" in post.ledger(), "the job that waits for the run ran", PATIENCE_S)
    return _told(post, point, killed, waiting)


def _cancelled(make: Callable[[], Post], point: str) -> Life:
    post = make()
    post.sbatch(HANGS_ONCE, "-N1", "--ft-fault-grace=10m")
    post.until(lambda: len(post.ledger()) == 1, "attempt 1 runs", PATIENCE_S)
    post.ftrun("cancel", "--no-wait", post.run().id, code=1)  # nobody is watching yet
    killed = _cut(post, point)
    _supervised_to_the_end(post, once=False)
    return _told(post, point, killed, "")


def _told(post: Post, point: str, killed: bool, waiting: str) -> Life:
    state = post.call("squeue", "-h", "-t", "all", "-j", waiting, "-o", "%T").strip() if waiting else ""
    return Life(
        point,
        killed,
        post.run(),
        post.jobs(),
        post.ledger(),
        state,
        post.story(),
        post.job_log().count(" stopped after attempt "),
    )


def _drained(make: Callable[[], Post], point: str) -> Life:
    """A node is lost after a line about its GPU, so that Slurm's word and the log's agree. In a sandbox of its own."""
    with boxes() as box_of, posts(box := box_of(nodes=3)) as make_here, Witness(box) as witness:
        post = make_here("fence-wait = 1\n")
        post.sbatch(HANGS_ONCE, "-N1", "--ft-fault-grace=10m")
        post.until(lambda: OFF_THE_BUS in post.job_log(), "attempt 1 runs", PATIENCE_S)
        box.crash(post.call("squeue", "-h", "-o", "%N").strip())
        killed = _cut(post, point)
        _supervised_to_the_end(post, once=False)
        shown = post.call("sinfo", "-h", "-N", "-o", "%T %E")
        return replace(
            _told(post, point, killed, ""),
            drains=shown.count(f"ftrun: {post.run().id} "),
            most=max(witness.most.values()),
        )


Lives = Mapping[str, "Future[Life]"]


@pytest.fixture(scope="module")
def lives(request: pytest.FixtureRequest, slurm_sandbox: Sandbox) -> Iterator[tuple[Lives, Witness]]:
    """Every life that a test of this session asks for, all begun at once."""
    wanted = [
        (item.name.split("[")[0], item.callspec.params["point"])
        for item in request.session.items
        if item.module is request.module and hasattr(item, "callspec")  # type: ignore[attr-defined]
    ]
    play = {"recover": _recovering, "cancel": _cancelled, "drain": _drained}
    with posts(slurm_sandbox) as make, Witness(slurm_sandbox) as witness, ThreadPoolExecutor(LANES) as pool:
        futures: dict[str, Future[Life]] = {}
        for name, point in wanted:
            kind = next((k for k in ("cancel", "drain") if k in name), "recover")
            futures[f"{kind} {point}"] = pool.submit(play[kind], make, point)
        yield futures, witness


def _points(quick: tuple[str, ...], long: tuple[str, ...]) -> pytest.MarkDecorator:
    drills = [pytest.param(point, marks=pytest.mark.drills) for point in long]
    return pytest.mark.parametrize("point", [*quick, *drills])


def _never_twice(life: Life, witness: Witness) -> None:
    by_token = collections.Counter(token for _, _, token in life.jobs)
    assert by_token, life.story
    assert max(by_token.values()) == 1, f"one sbatch for each attempt number: {by_token}\n{life.story}"
    assert witness.most[life.run.token] <= 1, f"two jobs of one run at once\n{life.story}"
    assert not [line for line in life.ledger if line.startswith("double")], life.story
    starts = [line for line in life.ledger if line.startswith("start")]
    assert len(starts) == len(set(starts)), life.story


@_points(QUICK, LONG)
def test_a_supervisor_killed_anywhere_is_followed_by_one_that_finishes(
    lives: tuple[Lives, Witness], point: str
) -> None:
    """One sbatch for each attempt number, one live job at any moment, the run finishes, what waits for it runs after it."""
    futures, witness = lives
    life = futures[f"recover {point}"].result()

    assert life.killed, f"the supervisor never came to {point}\n{life.story}"
    _never_twice(life, witness)
    assert life.run.state.value == "finished", life.story
    assert [line.split()[0] for line in life.ledger] == ["start", "start", "done", "waited"], life.story
    assert life.waiting in ("RUNNING", "COMPLETING", "COMPLETED"), life.story
    assert all(state == "COMPLETED" for _, state, _ in life.jobs[-1:]), life.story


@_points(CANCELLED[1:2], (CANCELLED[0], *CANCELLED[2:]))
def test_a_cancel_cut_anywhere_is_carried_out_and_nothing_comes_back(
    lives: tuple[Lives, Witness], point: str
) -> None:
    """A person's wish survives the supervisor that read it."""
    futures, witness = lives
    life = futures[f"cancel {point}"].result()

    assert life.killed, f"the supervisor never came to {point}\n{life.story}"
    _never_twice(life, witness)
    assert (life.run.state.value, life.run.final_class) == ("stopped", "cancelled"), life.story
    assert [state for _, state, _ in life.jobs] == ["CANCELLED"], life.story
    assert [line.split()[0] for line in life.ledger] == ["start"], life.story
    assert life.last_lines == 1, life.story


@_points((), ("drain:before", "drain:after", "record:after:drain.intended"))
def test_a_drain_cut_anywhere_is_done_once(lives: tuple[Lives, Witness], point: str) -> None:
    """The node is drained with the run's reason, attempt 2 runs elsewhere, and the lost attempt is never started again."""
    futures, witness = lives
    life = futures[f"drain {point}"].result()

    assert life.killed, f"the supervisor never came to {point}\n{life.story}"
    _never_twice(life, witness)
    assert (life.run.state.value, life.drains, life.most) == ("finished", 1, 1), life.story
    assert life.run.attempts[-1].nodes != life.run.attempts[0].nodes
