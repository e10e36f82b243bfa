"""A job that gives a lost node back on real Slurm, before Slurm knows that it is lost, and what Slurm does not let its owner do."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable

import pytest

from ftrun.slurm.client.errors import RefusedForGood, SlurmError
from ftrun.slurm.commands.cluster import CommandCluster
from ftrun.slurm.commands.steps import CommandSteps
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.model.run import Run
from tests.slurm.apart import side_by_side
from tests.slurm.post import OFF_THE_BUS, Post

pytestmark = pytest.mark.slurm


class Job:
    """A job on all three nodes of a sandbox, with a step on each; its script goes on whatever becomes of the step."""

    def __init__(self, box: Sandbox, post: Post, *words: str) -> None:
        self.box, self.post = box, post
        work = "srun -N3 --no-kill --kill-on-bad-exit=0 --wait=0 sleep 300; sleep 300"
        self.id = post.plain("-N3", "--no-requeue", *words, "--wrap", work)
        self.steps = CommandSteps(box.env(), timeout_s=60.0)
        self.cluster = CommandCluster(box.env())
        post.until(lambda: len(self.steps.steps(self.id)) == 1, "the step runs")
        self.nodes = self.cluster.jobs((self.id,))[self.id].nodes

    def row(self) -> tuple[str, tuple[str, ...]]:
        row = self.cluster.jobs((self.id,))[self.id]
        return row.state.value, row.nodes

    def until_down(self, node: str) -> None:
        """Slurm calls the node down."""
        self.post.until(lambda: "down" in self.cluster.nodes((node,))[node].state, f"{node} is down")


@pytest.mark.parametrize(
    ("words", "waited_for"),
    [((), False), pytest.param(("--no-kill",), True, marks=pytest.mark.drills)],
    ids=["plain", "no-kill"],
)
@side_by_side
def test_a_job_that_gives_back_a_dead_node_in_time_outlives_it(
    make_sandbox: Callable[..., Sandbox],
    make_post: Callable[[Sandbox], Post],
    words: tuple[str, ...],
    waited_for: bool,
) -> None:
    """Also one that Slurm would have ended: it runs on, new steps start on what is left, and no file of Slurm's is left behind."""
    # Not before the node is given back may Slurm find it down, however slow the machine is; nobody but the drill waits until it does so by itself.
    box = make_sandbox(nodes=3, slurmd_timeout_s=20 if waited_for else 300)
    at = make_post(box)
    job = Job(box, at, *words)
    kept, lost = job.nodes[:2], job.nodes[2]
    box.crash(lost)
    job.steps.keep_nodes(job.id, kept)
    assert job.row() == ("RUNNING", kept)
    if not waited_for:
        at.call("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=lost")
    job.until_down(lost)
    assert job.row() == ("RUNNING", kept)
    found = job.steps.ask(job.id, kept, "", limit_s=120, quiet_s=120)
    assert sorted(found.answers) == sorted(kept)
    assert not list(at.folder.rglob("slurm_job_*_resize*"))


@side_by_side
def test_what_slurm_does_not_allow_changes_nothing(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[[Sandbox], Post]
) -> None:
    """Never without the node of the script, nor with a stranger's; and 22.05 without accounting lets a job do it once only."""
    box = make_sandbox(nodes=3)
    at = make_post(box)
    job = Job(box, at)
    first, second, third = job.nodes
    with pytest.raises(RefusedForGood):
        job.steps.keep_nodes(job.id, (second, third))
    with pytest.raises(RefusedForGood):
        job.steps.keep_nodes(job.id, (first, "n99"))
    assert job.row() == ("RUNNING", job.nodes)
    job.steps.keep_nodes(job.id, (first, second))
    job.steps.keep_nodes(job.id, (first, second))
    if box.plan.version[:2] == (22, 5):
        with pytest.raises(SlurmError):
            job.steps.keep_nodes(job.id, (first,))
        assert job.row() == ("RUNNING", (first, second))


WAITS = """echo "step 1 loss 2.5"
[ "$FTRUN_START" = 1 ] || { echo "told $FTRUN_NNODES"; srun hostname; sleep 90; exit 0; }
srun sleep 300 &
while [ ! -e go ]; do sleep 0.2; done
echo "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error, NCCL version 2.20.5"
exit 1
"""


@pytest.mark.drills
def test_a_run_whose_job_slurm_would_end_goes_on_without_its_dead_node(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[[Sandbox], Post]
) -> None:
    """Its agent gives the node back right after the decision; when Slurm finds the node down, the job is still there and works."""
    box = make_sandbox(nodes=3, slurmd_timeout_s=30)
    at = make_post(box)
    job = at.sbatch(WAITS, "-N3", "--no-requeue", "--no-kill=off", "--ntasks-per-node=1", "--ft-nodes=2-3")
    at.supervise()
    at.until_state("running", job=job)
    at.until(lambda: "step 1" in at.job_log(), "the script has begun")
    box.crash("n2")
    (at.folder / "work" / "go").touch()
    at.until(lambda: "told 2" in at.job_log(), "it goes on with two nodes")
    cluster = CommandCluster(box.env())
    at.until(lambda: "down" in cluster.nodes(("n2",))["n2"].state, "Slurm finds the node down")
    row = cluster.jobs((job,))[job]
    assert (row.state.value, row.nodes) == ("RUNNING", ("n0", "n1"))
    at.until_state("finished", job=job)
    run = at.run(job)
    assert len(run.attempts) == 1, at.story()
    assert [one.decision["rung"] for one in run.incidents] == ["shrink"]


class Returning:
    """A run of three nodes with nothing else in its sandbox. Its first start fails when it is told to; in each later one every node counts, and the first one
    saves; it ends when it is told to.
    """

    BODY = """
    echo "told $FTRUN_NNODES of $SLURM_JOB_NODELIST"
    if [ "$FTRUN_START" = 1 ]; then
        srun sleep 300 &
        until [ -e go ]; do sleep 0.2; done
        cat go
        exit 1
    fi
    srun bash count.sh
    """
    COUNT = """
    n=$(ls ckpt-*.done 2>/dev/null | tr -dc '0-9\\n' | sort -n | tail -n 1)
    n=${n:-0}
    until [ -e over ]; do
        n=$((n + 1))
        echo "$FTRUN_START $$ $n" >"at.$SLURMD_NODENAME"
        if [ "$SLURM_PROCID" = 0 ]; then
            echo "step $n loss 2.5"
            [ $((n % 5)) -ne 0 ] || { echo weights >"ckpt-$n.pt" && touch "ckpt-$n.pt.done"; }
        fi
        sleep 0.5
    done
    """

    def __init__(self, box: Sandbox, at: Post, exclude_for: str = "60s") -> None:
        self.box, self.at = box, at
        self.cluster = CommandCluster(box.env())
        (at.work / "count.sh").write_text(textwrap.dedent(self.COUNT))
        words = ["-N3", "--no-requeue", "--ntasks-per-node=1", "--time=60", "--ft-nodes=2-3"]
        words += [f"--ft-exclude-for={exclude_for}", "--ft-grow-min-interval=8s"]
        words += [f"--ft-checkpoint={at.work}/ckpt-*.pt", "--ft-checkpoint-marker=.done"]
        at.supervise()
        self.job = at.sbatch(self.BODY, *words)
        at.until(lambda: "told 3 of n[0-2]" in at.job_log(), "the script has begun")
        at.until(lambda: "start.begun" in at.kinds(), "its agent is at work")

    def fails(self, line: str) -> None:
        (self.at.work / "go.new").write_text(line + "\n")
        (self.at.work / "go.new").rename(self.at.work / "go")

    def held(self) -> tuple[str, ...]:
        return self.cluster.jobs((self.job,))[self.job].nodes

    def guards(self) -> int:
        """How many steps of ours look after the job's nodes."""
        return [step.name for step in CommandSteps(self.box.env()).steps(self.job)].count("ftrun")

    def counts(self, node: str) -> tuple[int, int, int]:
        """(start, process, step) of the rank on a node."""
        path = self.at.work / f"at.{node}"
        start, pid, step = (path.read_text().split() if path.exists() else []) or (0, 0, 0)
        return int(start), int(pid), int(step)

    def ends(self) -> Run:
        """The run comes to a good end in its one attempt."""
        (self.at.work / "over").touch()
        run = self.at.until_state("finished", job=self.job)
        assert len(run.attempts) == 1, self.at.story()
        assert [one.decision["rung"] for one in run.incidents] == ["shrink"]
        return run

    def grows_back(self, node: str) -> None:
        """To the full size, by this very node; and to a good end."""
        self.at.until(lambda: "told 3 of n[0-1],n2" in self.at.job_log(), "it is back")
        here = [one["data"]["nodes"] for one in self.at.records() if one["kind"] == "companion.here"]
        self.at.until(lambda: self.counts(node)[0] == 3, "its rank counts")
        assert self.ends().attempts[0].launch.aside == ()
        assert here == [[node]]


@pytest.mark.drills
@side_by_side
def test_a_node_that_slurm_took_out_of_the_job_comes_back_by_a_companion(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[[Sandbox], Post]
) -> None:
    """It crashes, the others go on in place; started again, and its exclusion over, it is the very node with which the run grows back."""
    box = make_sandbox(nodes=3, slurmd_timeout_s=10)
    run = Returning(box, make_post(box))
    box.crash("n2")
    run.fails(
        "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error, NCCL version 2.20.5"
    )
    run.at.until(lambda: "told 2 of n[0-1]" in run.at.job_log(), "it goes on with two nodes")
    run.at.until(lambda: run.held() == ("n0", "n1"), "Slurm has taken it out")
    box.mend("n2")
    run.grows_back("n2")


# No exclusion is shorter than a minute, so that a mended node comes back is left to the drill.
@pytest.mark.parametrize(
    "mended", [False, pytest.param(True, marks=pytest.mark.drills)], ids=["for good", "until it is mended"]
)
@side_by_side
def test_a_drained_node_that_was_set_aside_is_given_back(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[[Sandbox], Post], mended: bool
) -> None:
    """Bad as it is, it is kept until somebody drains it; its release disturbs neither the script nor any rank, nor what looks after them; mended, it is used again."""
    box = make_sandbox(nodes=3)
    run = Returning(box, make_post(box), "60s" if mended else "1d")
    run.fails(f"{time.strftime('%b %d %H:%M:%S')} n2 kernel: {OFF_THE_BUS}")
    run.at.until(lambda: "told 2 of n[0-1]" in run.at.job_log(), "it goes on with two nodes")
    run.at.until(lambda: all(run.counts(node)[0] == 2 for node in ("n0", "n1")), "they count")
    run.at.until(run.guards, "its guard is there")
    before = [run.counts(node) for node in ("n0", "n1")]
    assert run.held() == ("n0", "n1", "n2")
    box.drain("n2", "its GPU is to be changed")
    run.at.until(lambda: run.held() == ("n0", "n1"), "it is given back")
    run.at.until(lambda: box.node_state("n2") == "drained", "nothing holds it any more")
    seen = run.counts("n0")[2]
    run.at.until(lambda: run.counts("n0")[2] > seen + 4, "the ranks count on")
    after = [run.counts(node) for node in ("n0", "n1")]
    assert [one[:2] for one in before] == [one[:2] for one in after]
    assert [one[2] for one in after] > [one[2] for one in before]
    assert run.guards() == 1
    (told,) = [one["data"] for one in run.at.records() if one["kind"] == "release.done"]
    assert told["gone"] == ["n2"]
    if mended:
        box.mend("n2")
        run.grows_back("n2")
    else:
        run.ends()
