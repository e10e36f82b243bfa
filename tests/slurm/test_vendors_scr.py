"""The twelve cases that SCR (Scalable Checkpoint/Restart) is tried by, for ftrun's staging and choice of checkpoints. (I/O)

Written anew after what its user guide describes: checkpoints in the memory of the nodes with copies at a partner,
rebuilt after losses, scavenged at the end of an allocation, fetched from the prefix folder, which may hold torn ones, and a
halt. A case plays on a real Slurm: two nodes train, each rank saves a part at steps 10 and 20 and waits at step
24; the case breaks something, and the ranks fail. docs/vendors.md says what came of each.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.model.run import Run
from tests.slurm.post import Post, boxes, posts

pytestmark = [pytest.mark.slurm, pytest.mark.vendors]

STEPS = 40
RANK = f"""
import hashlib, os, subprocess, sys, time
rank, here = os.environ["SLURM_PROCID"], f"{{os.environ['FTRUN_ATTEMPT']}}.{{os.environ['FTRUN_START']}}"
place, step, where = os.environ.get("FTRUN_RESUME_FROM", ""), 0, "nothing"
if place:
    path = f"{{place}}/rank-{{rank}}"
    body = open(path, "rb").read()
    step, digest = int(body[:8]), body[8:40]
    assert digest == hashlib.sha256(body[40:]).digest(), f"{{path}} is torn"
    where = "memory" if place.startswith("/dev/shm/") and not os.path.islink(path) else "disk"
with open("starts", "a") as log:
    print(here, rank, step, where, file=log)
for step in range(step + 1, {STEPS} + 1):
    time.sleep(1.0 if os.path.exists("slow") else 0.1)
    if rank == "0":
        print(f"step {{step}}/{STEPS} loss 2.5", flush=True)
    if step % 10 == 0:
        folder = f"{{os.environ['FTRUN_STAGE_DIR']}}/step-{{step}}"
        body = os.urandom(200_000)
        os.makedirs(folder, exist_ok=True)
        with open(f"{{folder}}/.rank-{{rank}}", "wb") as file:
            file.write(b"%8d" % step + hashlib.sha256(body).digest() + body)
        os.rename(f"{{folder}}/.rank-{{rank}}", f"{{folder}}/rank-{{rank}}")
    if step == 24 and here == "1.1":
        open(f"waits-{{rank}}", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.1)
        if os.path.exists(f"act-{{rank}}"):
            subprocess.run(["/bin/sh", f"act-{{rank}}"])
        if not os.path.exists("well"):
            open(f"acted-{{rank}}", "w").close()
            while not (os.path.exists("acted-0") and os.path.exists("acted-1")):
                time.sleep(0.1)
            print("gpu01:81:90 [0] ncclNet.cc:10 RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error", flush=True)
            sys.exit(1)
"""
FORGET = "find /dev/shm/ftrun-$(id -u)/ -depth -name '{}' -exec rm -rf {{}} +\n"
IN_MEMORY = (
    "--ft-stage-rate=1000",
    "--ft-stage-flush-timeout=3",
)  # nothing comes to the prefix folder in time
NEW_JOB = "--ft-budget-step=0"


class Case:
    """One run that waits at step 24, with the sets 10 and 20 saved."""

    def __init__(self, box: Sandbox, post: Post, *words: str) -> None:
        self.box, self.post, self.prefix = box, post, post.work / "prefix"
        (post.work / "rank.py").write_text(RANK)
        wide = ("-N2", "--ntasks-per-node=1", f"--ft-stage={self.prefix}", "--ft-after-checks=never")
        self.job = post.sbatch("srun --kill-on-bad-exit=1 python3 rank.py\n", *wide, *words)
        post.supervise()
        waits = [post.work / f"waits-{rank}" for rank in (0, 1)]
        post.until(lambda: all(path.exists() for path in waits), "it waits")

    def is_published(self, step: int) -> bool:
        return (self.prefix / f"step-{step}" / ".ftrun-complete").exists()

    def published(self) -> Case:
        """Both sets lie in the prefix folder."""
        self.post.until(lambda: self.is_published(10) and self.is_published(20), "both are published")
        return self

    def copied(self) -> Case:
        """Each part has come to the memory of the other node."""
        return self.sealed(6)

    def sealed(self, within_s: float = 3) -> Case:
        """Nothing has changed in a part for a second; the newest set is not published."""
        time.sleep(within_s)
        assert not self.is_published(20)
        return self

    def act(self, rank: int, text: str) -> None:
        (self.post.work / f"act-{rank}").write_text(text)

    def go(self, *ends: str) -> Run:
        (self.post.work / "go").touch()
        return self.post.until_state(*(ends or ("finished",)))

    def starts(self) -> list[tuple[str, int, str]]:
        """(attempt and start, the step gone on from, memory or disk or nothing) of each start's rank 0, and of rank 1 where it differs."""
        rows = [line.split() for line in (self.post.work / "starts").read_text().splitlines()]
        found = dict.fromkeys((here, int(step), where) for here, _, step, where in rows)
        return sorted(found)


Make = Callable[..., Case]


@pytest.fixture
def make() -> Iterator[Make]:
    with boxes() as make_box:
        box = make_box(nodes=3, shm_mib=700, slurmd_timeout_s=60)
        with posts(box) as make_post:
            yield lambda *words: Case(box, make_post(), *words)


def test_01_a_run_saves_and_ends(make: Make) -> None:
    """Nothing fails: every set comes to the prefix folder as a whole."""
    case = make()
    (case.post.work / "well").touch()
    run = case.go()

    assert (1, 0) == (len(run.attempts), run.retries)
    assert all(case.is_published(step) for step in (10, 20, 30, 40))


def test_02_a_restart_reads_the_cache(make: Make) -> None:
    """Nothing was published; both ranks go on from their own memory."""
    case = make(*IN_MEMORY).copied()
    case.go()

    assert [("1.1", 0, "nothing"), ("1.2", 20, "memory")] == case.starts()


def test_03_a_node_without_its_cache_is_rebuilt_by_its_partner(make: Make) -> None:
    """All that one node had is deleted."""
    case = make(*IN_MEMORY).copied()
    case.act(1, FORGET.format("step-*"))
    case.go()

    assert [("1.1", 0, "nothing"), ("1.2", 20, "memory")] == case.starts()


def test_04_a_set_that_two_nodes_lost_is_passed_over_for_the_one_before(make: Make) -> None:
    """The newest is gone everywhere, and cannot be rebuilt."""
    case = make(*IN_MEMORY).copied()
    for rank in (0, 1):
        case.act(rank, FORGET.format("step-20"))
    case.go()

    assert [("1.1", 0, "nothing"), ("1.2", 10, "memory")] == case.starts()


def test_05_a_run_that_lost_every_set_begins_anew(make: Make) -> None:
    """Nothing in memory, nothing on disk."""
    case = make(*IN_MEMORY).copied()
    for rank in (0, 1):
        case.act(rank, FORGET.format("step-*"))
    run = case.go("finished", "stopped")

    assert "finished" == run.state.value
    assert [("1.1", 0, "nothing"), ("1.2", 0, "nothing")] == case.starts()[:2]


def test_06_the_end_of_a_job_scavenges_what_is_only_in_memory(make: Make) -> None:
    """The run stops for good while the newest set is not published: it is, before the job's memory is gone."""
    case = make(
        "--ft-stage-rate=30K",
        "--ft-stage-flush-timeout=60",
        "--ft-budget-network=0",
        NEW_JOB,
    ).sealed()
    case.go("stopped")

    assert case.is_published(20)


def test_07_a_lost_nodes_part_is_scavenged_at_its_partner(make: Make) -> None:
    """A node dies with the newest set in memory, and the job is given up: the next one goes on from that set."""
    case = make(
        "--ft-stage-rate=30K",
        "--ft-stage-flush-timeout=60",
        "--ft-recover=step,resubmit",
        "--ft-fence-wait=3",
    ).sealed()
    case.box.crash("n1")
    (case.post.work / "acted-1").touch()
    case.go()

    assert ("2.1", 20, "disk") in case.starts()


def test_08_a_new_job_fetches_the_newest_set(make: Make) -> None:
    """Its nodes have nothing in memory."""
    case = make(NEW_JOB).published()
    case.go()

    assert [("1.1", 0, "nothing"), ("2.1", 20, "disk")] == case.starts()


def test_09_an_incomplete_set_is_passed_over(make: Make) -> None:
    """A part of the newest one is missing in the prefix folder."""
    case = make(NEW_JOB).published()
    (case.prefix / "step-20" / "rank-1").unlink()
    case.go()

    assert [("1.1", 0, "nothing"), ("2.1", 10, "disk")] == case.starts()


def test_10_a_torn_file_is_not_loaded(make: Make) -> None:
    """A part of the newest one is cut short."""
    case = make(NEW_JOB).published()
    with open(case.prefix / "step-20" / "rank-0", "r+b") as file:
        file.truncate(100_000)
    case.go()

    assert [("1.1", 0, "nothing"), ("2.1", 10, "disk")] == case.starts()


def test_11_a_lost_index_loses_no_set(make: Make) -> None:
    """Everything that is written beside the parts is gone; SCR begins anew then, ftrun finds the sets by their names."""
    case = make(NEW_JOB).published()
    for path in [*case.prefix.glob(".ftrun*"), *case.prefix.glob("step-*/.ftrun*")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    case.go()

    assert [("1.1", 0, "nothing"), ("2.1", 20, "disk")] == case.starts()


def test_12_a_halt_ends_the_run_behind_its_next_set_and_a_person_goes_on_from_there(make: Make) -> None:
    """`ftrun stop` waits for the next complete checkpoint; `ftrun resume` goes on from it."""
    case = make()
    (case.post.work / "well").touch()
    (case.post.work / "slow").touch()
    case.post.ftrun("stop", case.post.run().id)
    halted = case.go("stopped", "finished")
    assert "stopped" == halted.state.value
    newest = max(step for step in range(10, 200, 10) if case.is_published(step))
    (case.post.work / "slow").unlink()
    case.post.ftrun("resume", case.post.run().id)
    case.post.until_state("finished")

    assert case.starts()[-1][1] >= newest > 10
