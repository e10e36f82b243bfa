"""Companions on real Slurm: with their launch they end, whoever dies, and nothing begins beside one.

How it thinks. The agent's part is played by hand: its records are written into the attempt's folder, and a real job bears the mark. That job
only sleeps, so that whatever ends it is the supervisor. The laws are played side by side, each in a home of its own.
"""

from __future__ import annotations

import getpass
import json
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.model.agent_events import companion_mark
from ftrun.supervisor.model.run import Companion
from ftrun.supervisor.store import run_dir
from tests.slurm.post import PATIENCE_S, Post, boxes, posts

pytestmark = pytest.mark.slurm

LANES = 4
ME = getpass.getuser()
Make = Callable[..., Post]
LAWS: dict[str, Callable[[Make], None]] = {}
UNKNOWN = Companion(launch=0, number=0, nodes_asked=0, mark="", asked_at_s=0.0)
SMALL = ("-n1", "--mem=50")
# Trains until the file `end` says with which code it ends; what was begun again ends well.
TRAINS = """
i=0
while [ "$FTRUN_ATTEMPT$SLURM_RESTART_COUNT" = 1 ] && [ ! -e end ]; do i=$((i+1)); echo "step $i/600 loss 2"; sleep 0.2; done
[ "$FTRUN_ATTEMPT$SLURM_RESTART_COUNT" = 1 ] || { sleep 2; echo done >>ledger; exit 0; }
exit "$(cat end)"
"""
POINTS = (
    "companion:before", "companion:after", "record:after:companion.submitted", "record:after:companion.ended.intended",
    "record:after:companion.ended", "record:after:companion.gone",
)  # fmt: skip
QUICK_POINTS = POINTS[1:2]


class Company:
    """A run that trains, and what its agent would have written."""

    def __init__(self, post: Post, *, supervised: bool = True, nodes: int = 0) -> None:
        self.post, self._seq = post, 0
        if supervised:
            post.supervise()
        shape = (f"-N{nodes}",) if nodes else ("-N1", *SMALL)
        self.job = post.sbatch(TRAINS, *shape, "--ft-agent=never")
        post.until(lambda: len(post.ledger()) == 1, "it trains")
        self.mark = companion_mark(post.run().token, 1, 0, 1)

    def note(self, kind: str, **data: Any) -> None:
        """One record of the agent's."""
        folder = Path(run_dir.attempt_dir(self.post.run_dir(), 1), "agent")
        folder.mkdir(exist_ok=True)
        record = {
            "v": 1, "seq": self._seq, "at": time.time(), "kind": kind, "submission": 1, "attempt": 1, "job": self.job, "launch": 0,
            "start": 1, "data": data,
        }  # fmt: skip
        with (folder / "0.jsonl").open("a") as stream:
            stream.write(json.dumps(record) + "\n")
        self._seq += 1

    def ask(self, *words: str, noted: bool = True) -> str:
        """A companion of one node, asked for and submitted; its job. `noted`: the agent lived to say so."""
        self.note("companion.intended", number=1, nodes=1, exclude=[], mark=self.mark, why="a node is dead")
        comment = f"--comment=my own words {self.mark}"
        job = self.post.plain(
            *(words or SMALL), "--no-requeue", "--job-name=job.sh", comment, "--wrap=sleep 600"
        )
        if noted:
            self.note("companion.submitted", number=1, job=job)
        return job

    def known(self) -> Companion:
        """What the run's journal knows of it so far."""
        return next(iter(self.post.run().attempts[0].companions), UNKNOWN)

    def end(self, code: int) -> None:
        """The script ends."""
        (self.post.work / "end.part").write_text(f"{code}\n")
        (self.post.work / "end.part").rename(self.post.work / "end")  # never read half-written

    def gone(self, job: str) -> Companion:
        """Once it is known to be gone."""
        self.post.until(lambda: self.known().gone, "the companion is gone")
        assert self.state(job) == "CANCELLED", self.post.story()
        return self.known()

    def state(self, job: str) -> str:
        """What Slurm calls a job."""
        return self.post.call("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()


def side_by_side(law: Callable[[Make], None]) -> Callable[[dict[str, Future[None]]], None]:
    """A test whose body is played together with all the others."""
    name = law.__name__
    LAWS[name] = law

    def test(played: dict[str, Future[None]]) -> None:
        played[name].result()

    test.__name__, test.__doc__ = name, law.__doc__
    return test


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, slurm_sandbox: Sandbox) -> Iterator[dict[str, Future[None]]]:
    items = [item for item in request.session.items if item.module is request.module]  # type: ignore[attr-defined]
    wanted = {item.name for item in items}
    points = [item.callspec.params["point"] for item in items if hasattr(item, "callspec")]
    with posts(slurm_sandbox) as make, ThreadPoolExecutor(LANES) as pool:
        begun = {name: pool.submit(law, make) for name, law in LAWS.items() if name in wanted}
        yield begun | {point: pool.submit(_cut, make(), point) for point in points}


@side_by_side
def test_a_run_that_ends_well_leaves_no_companion(make: Make) -> None:
    """Its script exits 0: finished, and the job beside it is cancelled."""
    company = Company(make())
    job = company.ask()
    company.post.until(lambda: company.known().job == job, "the companion is known")
    company.end(0)
    one = company.gone(job)

    assert company.post.until_state("finished")
    assert one.by_us, company.post.story()


@side_by_side
def test_nothing_is_submitted_before_the_companion_of_the_last_attempt_is_gone(make: Make) -> None:
    """P6: attempt 2 is submitted when Slurm says that the companion, too, has ended; it was found by its mark alone."""
    company = Company(make())
    job = company.ask(noted=False)
    company.post.until(lambda: company.state(job) == "RUNNING", "the companion runs")
    company.end(1)
    company.post.until_state("finished")
    kinds, one = company.post.kinds(), company.known()

    assert kinds.index("companion.gone") < kinds.index("attempt.over") < kinds.index("attempt.opened", 3)
    assert (one.job, one.state, len(one.nodes)) == (job, "gone", 1), company.post.story()
    assert company.state(job) == "CANCELLED"
    assert [line.split()[0] for line in company.post.ledger()] == ["start", "start", "done"]


@side_by_side
def test_the_job_id_of_a_companion_names_the_run(make: Make) -> None:
    """status, show and explain tell of it, and `ftrun cancel` with its id ends both."""
    company = Company(make())
    post, job = company.post, company.ask()
    post.until(lambda: company.state(job) == "RUNNING", "the companion runs")
    node = post.call("squeue", "-h", "-j", job, "-o", "%N").strip()
    company.note("companion.here", number=1, job=job, nodes=[node])
    post.until(lambda: company.known().state == "here", "the companion is here")
    (row,) = json.loads(post.ftrun("status", "--json"))["runs"]
    shown = json.loads(post.ftrun("show", job, "--json"))

    assert [(one["job"], one["nodes"], one["state"]) for one in row["companions"]] == [(job, [node], "here")]
    assert (shown["run"], shown["companion_jobs"], shown["jobs"]) == (row["run"], [job], [company.job])
    assert f"companion job {job} holds {node}" in post.ftrun("status")
    assert f"companion 1 (job {job}) holds {node}" in post.ftrun("explain", job)
    post.ftrun("cancel", job)
    company.gone(job)
    post.until(lambda: company.state(company.job) == "CANCELLED", "the main job is cancelled, too")
    assert post.run().final_reason == f"cancelled by {ME}"
    assert "its end was asked for" not in post.ftrun("show", job)


@side_by_side
def test_a_persons_scancel_of_a_companion_is_none_of_the_run(make: Make) -> None:
    """P5: the run goes on, and its end is noted."""
    company = Company(make())
    post, job = company.post, company.ask()
    post.until(lambda: company.known().job == job, "the companion is known")
    post.call("scancel", job)
    post.until(lambda: company.known().gone, "its end is noted")
    time.sleep(2)

    assert (post.run().state.value, post.run().wish) == ("running", ""), post.story()
    assert (company.known().end_state, company.known().by_us) == ("CANCELLED", False)
    company.end(0)
    post.until_state("finished")
    assert len(post.run().attempts) == 1, post.story()


@side_by_side
def test_a_persons_scancel_of_the_job_ends_its_companion_too(make: Make) -> None:
    """P5: the run is stopped, nothing comes back, and nothing is left."""
    company = Company(make())
    job = company.ask()
    company.post.until(lambda: company.known().job == job, "the companion is known")
    company.post.call("scancel", company.job)
    company.gone(job)

    assert len(company.post.until_state("stopped").attempts) == 1


@pytest.mark.drills
@side_by_side
def test_a_pause_leaves_no_companion(make: Make) -> None:
    """A run that holds no nodes holds none by another job either."""
    company = Company(make("save-wait = 1\n"))
    job = company.ask()
    company.post.until(lambda: company.known().job == job, "the companion is known")
    company.post.ftrun("pause", company.job, "--now")
    company.gone(job)

    assert company.post.until_state("stopped").paused


@side_by_side
def test_a_companion_in_the_queue_is_cancelled_there(make: Make) -> None:
    """It never ran: nothing of it has to be waited for."""
    company = Company(make())
    job = company.ask(*SMALL, "--hold")
    company.post.until(lambda: company.known().job == job, "the companion is known")
    company.end(1)
    company.post.until_state("finished")

    assert (company.gone(job).nodes, company.post.run().attempt.number) == ((), 2)  # type: ignore[union-attr]


@pytest.mark.drills
@side_by_side
def test_the_companion_of_a_dead_agent_is_ended(make: Make) -> None:
    """Where no start uses its nodes: the script goes on in its own job."""
    company = Company(make())
    node = company.post.call("squeue", "-h", "-j", company.job, "-o", "%N").strip()
    about = {"pid": 1, "host": node, "nodes": [node], "active": [node], "spares": [], "rungs": [], "off": ""}
    company.note("agent.opened", **about)
    job = company.ask()
    one = company.gone(job)

    assert "agent" in one.reason
    assert company.post.run().state.value == "running"


@pytest.mark.drills
@side_by_side
def test_a_requeued_job_begins_without_its_old_companion(make: Make) -> None:
    """A companion is of one launch."""
    company = Company(make())
    job = company.ask()
    company.post.until(lambda: company.known().job == job, "the companion is known")
    company.post.call("scontrol", "requeue", company.job)
    company.gone(job)
    company.post.until_state("finished")


def _cut(post: Post, point: str) -> None:
    """The supervisor dies at a point of ending a companion; the next one goes on from there."""
    company = Company(post, supervised=False)
    job = company.ask(noted=False)
    post.until(lambda: company.state(job) == "RUNNING", "the companion runs")
    company.end(1)
    first = post.supervise(FTRUN_CRASH_AT=point)
    assert first.wait(PATIENCE_S) == -signal.SIGKILL, post.story()
    post.supervise()
    post.until_state("finished")

    kinds = post.kinds()
    assert company.gone(job).by_us
    assert kinds.count("companion.ended.intended") == 1
    assert kinds.index("companion.gone") < kinds.index("attempt.opened", 3)
    assert [line.split()[0] for line in post.ledger()] == ["start", "start", "done"], post.story()


@pytest.mark.parametrize(
    "point",
    [pytest.param(point, marks=() if point in QUICK_POINTS else pytest.mark.drills) for point in POINTS],
)
def test_a_supervisor_may_be_killed_anywhere_while_it_ends_a_companion(
    played: dict[str, Future[None]], point: str
) -> None:
    """It is announced once, ended, and gone before attempt 2 is submitted."""
    played[point].result()


@pytest.mark.drills
def test_a_companion_on_a_dead_node_is_fenced() -> None:
    """P6: its node is silent; it is left out, the fence's time passes, and then attempt 2 begins."""
    with boxes() as box_of, posts(box := box_of(nodes=4)) as make:
        post = make("fence-wait = 3\n")
        company = Company(post, nodes=1)
        job = company.ask("-N1", "--exclusive")
        post.until(lambda: company.state(job) == "RUNNING", "the companion runs")
        node = post.call("squeue", "-h", "-j", job, "-o", "%N").strip()
        company.note("companion.here", number=1, job=job, nodes=[node])
        post.until(lambda: company.known().state == "here", "the companion is here")
        box.crash(node)
        company.end(1)
        run = post.until_state("finished")

        over = next(record for record in post.records() if record["kind"] == "attempt.over")
        assert node in over["data"]["fenced"], post.story()
        assert node in run.attempts[1].excluded
        assert node not in run.attempts[1].nodes
