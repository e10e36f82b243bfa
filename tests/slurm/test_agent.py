"""The agent inside a real job on real Slurm: the script goes on in the same allocation, or the job ends as it would without an agent.

Lives that need no nodes of their own are played side by side, each in its home; the longest begins first.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ftrun.slurm.commands.steps import CommandSteps
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.nodes import ledger
from ftrun.supervisor.nodes.history import fold_entries
from tests.slurm.post import Post, posts, queue

pytestmark = pytest.mark.slurm

LANES = 5
Make = Callable[..., Post]
Law = Callable[..., None]
LAWS: dict[str, Law] = {}

TRANSIENT = "gpu01:81:90 [0] ncclNet.cc:10 RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error, NCCL version 2.20.5"
FAILS_ONCE = f"""
echo "step $FTRUN_START loss 2.5"
echo "$FTRUN_ATTEMPT.$FTRUN_START $SLURM_JOB_ID $SLURM_JOB_NODELIST" >>starts
[ "$FTRUN_ATTEMPT.$FTRUN_START" = 1.1 ] && {{ echo "{TRANSIENT}"; exit 1; }}
sleep 1
exit 0
"""
WAITS_AND_FAILS = f"""
echo "$FTRUN_ATTEMPT.$FTRUN_START $SLURM_JOB_ID $SLURM_JOB_NODELIST" >>starts
[ "$FTRUN_ATTEMPT" = 2 ] && exit 0
echo "step 1 loss 2.5"
while [ ! -e go ]; do sleep 0.1; done
echo "{TRANSIENT}"
exit 1
"""
FAILS_TWICE = f"""
echo "$FTRUN_ATTEMPT.$FTRUN_START $SLURM_JOB_ID $SLURM_JOB_NODELIST" >>starts
[ "$FTRUN_ATTEMPT" = 2 ] && exit 0
echo "{TRANSIENT}"
exit 1
"""
LIVES_ON = f"""
echo "$FTRUN_ATTEMPT.$FTRUN_START $SLURM_JOB_ID $SLURM_JOB_NODELIST" >>starts
[ "$FTRUN_ATTEMPT.$FTRUN_START" = 1.1 ] || {{ while [ ! -e go ]; do sleep 0.1; done; exit 0; }}
echo "step 1 loss 2.5"
echo "{TRANSIENT}"
srun sleep 300
echo "all is well"
exit 0
"""
# Two ranks that watch each other, as a collective does: who is left alone gives up.
PAIR = f"""
echo "$FTRUN_ATTEMPT.$FTRUN_START $SLURM_JOB_ID $SLURM_JOB_NODELIST" >>starts
cat >rank.sh <<'X'
#!/bin/bash
for i in $(seq "$1"); do
    echo "$i" >beat.$FTRUN_START.$SLURM_PROCID
    [ "$SLURM_PROCID" = 0 ] && echo "step $((100 * FTRUN_START + i)) loss 2.5"
    sleep 0.25
    a=$(cat beat.$FTRUN_START.0 2>/dev/null) b=$(cat beat.$FTRUN_START.1 2>/dev/null)
    d=$((${{a:-0}} - ${{b:-0}}))
    [ "${{d#-}}" -gt 12 ] && {{ echo "{TRANSIENT}"; exit 1; }}
done
exit 0
X
chmod +x rank.sh
if [ "$FTRUN_START" = 1 ]; then n=400; else n=8; fi
srun --kill-on-bad-exit=1 ./rank.sh $n
"""


def side_by_side(law: Law) -> Law:
    """A test whose body, `law(make)` or `law(make, point)`, is played together with all the others."""
    name = law.__name__
    LAWS[name] = law

    def test(played: dict[str, Future[None]], request: pytest.FixtureRequest) -> None:
        played[request.node.name].result()

    def test_at(played: dict[str, Future[None]], request: pytest.FixtureRequest, point: str) -> None:
        played[request.node.name].result()

    made = test_at if "point" in inspect.signature(law).parameters else test
    made.__name__, made.__doc__ = name, law.__doc__
    return made


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, slurm_sandbox: Sandbox) -> Iterator[dict[str, Future[None]]]:
    """Every life that a test of this session asks for, all begun at once."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    wanted = [item for item in items if item.module is request.module and item.originalname in LAWS]
    with posts(slurm_sandbox) as make, ThreadPoolExecutor(LANES) as pool:
        yield {item.name: pool.submit(LAWS[item.originalname], make, **_point(item)) for item in wanted}


def _point(item: pytest.Function) -> dict[str, Any]:
    return dict(item.callspec.params) if hasattr(item, "callspec") else {}


def _starts(post: Post) -> list[list[str]]:
    path = post.work / "starts"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def _agents(post: Post, attempt: int = 1) -> list[dict[str, Any]]:
    """The records of the agent of one attempt's first launch, as far as they are whole."""
    path = Path(post.run_dir(), "attempts", str(attempt), "agent", "0.jsonl")
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def _over(post: Post) -> Run:
    return post.until_state("finished", "stopped")


@pytest.mark.parametrize(
    "point", [pytest.param(f"steps.cancel:{side}", marks=pytest.mark.drills) for side in ("before", "after")]
)
@side_by_side
def test_an_agent_that_dies_while_it_ends_a_script_leaves_the_rest_to_the_supervisor(
    make: Make, point: str
) -> None:
    """Before its effect the script lives on, and is ended once the agent counts as dead; after it the job ends by itself. Both go on in a new job."""
    post = make()
    (post.work / "go").touch()
    post.sbatch(LIVES_ON.replace("exit 0\n", "exit 1\n"), FTRUN_AGENT_CRASH_AT=point)
    post.supervise()
    run = _over(post)

    assert run.state.value == "finished", post.story()
    assert [start[0] for start in _starts(post)] == ["1.1", "2.1"]


@side_by_side
def test_a_script_that_fails_once_is_started_again_in_the_same_job(make: Make) -> None:
    """A transient fault: same job, same nodes, one incident with all its phases in their order, and no second submission."""
    post = make()
    until_seen = "while [ ! -e go ]; do sleep 0.1; done\n"  # a phase that nobody saw has no time
    job = post.sbatch(FAILS_ONCE.replace("sleep 1\n", until_seen), "-N2")
    post.supervise()
    post.until(lambda: "start.first-step" in [record["kind"] for record in _agents(post)], "it goes on")
    (post.work / "go").touch()
    run = _over(post)

    assert run.state.value == "finished", post.story()
    starts = _starts(post)
    assert [start[0] for start in starts] == ["1.1", "1.2"]
    assert {start[1] for start in starts} == {job}
    assert starts[0][2] == starts[1][2]
    (incident,) = run.incidents
    assert incident.decision["rung"] == "step"
    phases = [
        incident.ended_at_s,
        incident.diagnosed_at_s,
        incident.decided_at_s,
        incident.stopped_at_s,
        incident.placed_at_s,
        incident.running_again_at_s,
        incident.first_step_at_s,
    ]
    assert None not in phases, phases
    assert phases == sorted(phases)  # type: ignore[type-var]


@pytest.mark.drills
def test_a_spare_takes_a_dead_nodes_place_before_slurm_knows(make_sandbox: Callable[..., Sandbox]) -> None:
    """Node crash with one spare: the script goes on on the survivor and the spare, in the same job, while Slurm still holds the node for alive."""
    box = make_sandbox(nodes=4, slurmd_timeout_s=60)
    with posts(box) as make:
        post = make()
        job = post.sbatch(PAIR, "-N2", "--ft-spares=1")
        post.supervise()
        post.until(lambda: "step 104" in post.job_log(), "it trains")
        box.crash("n1")
        post.until(lambda: "start.first-step" in [record["kind"] for record in _agents(post)], "it goes on")
        assert "down" not in box.node_state("n1")
        run = _over(post)

        assert run.state.value == "finished", post.story()
        assert [(start[0], start[1], start[2]) for start in _starts(post)] == [
            ("1.1", job, "n[0-1]"),
            ("1.2", job, "n[0,2]"),
        ]
        assert [incident.decision["rung"] for incident in run.incidents] == ["swap"]
        assert run.incidents[0].fault == "node"
        assert run.incidents[0].nodes == ("n1",)


@pytest.mark.drills
def test_survivors_that_share_a_finding_are_not_blamed_for_two_dead_nodes(
    make_sandbox: Callable[..., Sandbox],
) -> None:
    """Two of four nodes lose power, and all have too small a /dev/shm: the two that are dead are blamed and get a strike each, nobody else."""
    box = make_sandbox(nodes=8, shm_mib=64, slurmd_timeout_s=60)
    with posts(box) as make:
        post = make("drain = 'never'\n")
        ring = PAIR.replace("a=$(cat beat.$FTRUN_START.0 2>/dev/null)", "a=$i").replace(".1 2>", ".3 2>")
        post.sbatch(ring.replace("-gt 12", "-gt 40"), "-N4")  # four ranks may begin seconds apart
        post.supervise()
        post.until(lambda: "step 104" in post.job_log(), "it trains")
        for node in ("n2", "n3"):
            box.crash(node)
        run = _over(post)

        assert run.state.value == "finished", post.story()
        found = run.incidents[0]
        assert (found.fault, found.nodes) == ("node", ("n2", "n3"))
        told = found.diagnosis["rests_on"]
        assert any("every node that answers fails disk-size shm" in words for words in told), told

        def strikes() -> set[str]:
            book = fold_entries(ledger.read_entries(str(post.home)))
            return {name for name, record in book.nodes.items() if record.strikes}

        post.until(strikes, "the ledger has it")
        assert strikes() == {"n2", "n3"}


@side_by_side
def test_an_agent_that_is_killed_costs_nothing_but_the_ladder(make: Make) -> None:
    """kill -9 of the agent: the job ends as its script ends, and the supervisor submits another."""
    post = make()
    job = post.sbatch(WAITS_AND_FAILS)
    post.supervise()
    post.until(lambda: _agents(post), "the agent has opened its journal")
    os.kill(_agents(post)[0]["data"]["pid"], signal.SIGKILL)
    (post.work / "go").touch()
    run = _over(post)

    assert run.state.value == "finished", post.story()
    assert [start[0] for start in _starts(post)] == ["1.1", "2.1"]
    assert _starts(post)[1][1] != job
    assert "start.decided" not in [record["kind"] for record in _agents(post)]


@pytest.mark.drills
@side_by_side
def test_a_rung_whose_budget_is_used_up_leaves_it_to_a_new_job(make: Make) -> None:
    """The same fault again without progress: once more in place, and then a new job."""
    post = make("budget-step = 1\n")
    job = post.sbatch(FAILS_TWICE)
    post.supervise()
    run = _over(post)

    assert run.state.value == "finished", post.story()
    starts = _starts(post)
    assert [start[0] for start in starts] == ["1.1", "1.2", "2.1"]
    assert [start[1] == job for start in starts] == [True, True, False]
    assert [record["kind"] for record in _agents(post)].count("start.decided") == 1
    assert "start.left" in [record["kind"] for record in _agents(post)]


@pytest.mark.drills
def test_a_frozen_node_is_set_aside_and_its_ranks_write_no_more(make_sandbox: Callable[..., Sandbox]) -> None:
    """SIGSTOP of a whole node: nothing on it answers, a spare takes its place; what thaws later belongs to an earlier start and ends."""
    box = make_sandbox(nodes=3, slurmd_timeout_s=60)
    with posts(box) as make:
        post = make()
        post.supervise()
        post.until((post.home / "tools" / "ftrun-hook.pyz").exists, "the nodes' side is there")
        job = post.sbatch(PAIR, "-N2", "--ft-spares=1")
        post.until(lambda: "step 104" in post.job_log(), "it trains")
        box.freeze("n1")
        run = _over(post)
        box.mend("n1")

        assert run.state.value == "finished", post.story()
        assert [(start[0], start[1], start[2]) for start in _starts(post)] == [
            ("1.1", job, "n[0-1]"),
            ("1.2", job, "n[0,2]"),
        ]


@side_by_side
def test_an_srun_around_the_shim_turns_the_ladder_off(make: Make) -> None:
    """It would start ranks on nodes that were set aside: said once, and the next fault goes to a new job."""
    post = make()
    srun = shutil.which("srun")
    post.sbatch(
        WAITS_AND_FAILS.replace("while [ ! -e go ]", f"{srun} -N1 -n1 sleep 30 &\nwhile [ ! -e go ]"), "-N1"
    )
    post.supervise()
    post.until(lambda: "ladder.off" in [record["kind"] for record in _agents(post)], "it is seen")
    (post.work / "go").touch()
    run = _over(post)

    assert run.state.value == "finished", post.story()
    assert [start[0] for start in _starts(post)] == ["1.1", "2.1"]


def test_steps_of_a_job_are_listed_asked_and_ended(make_sandbox: Callable[..., Sandbox]) -> None:
    """A node that has crashed costs the others' answers nothing, and no file system is needed for an answer; a step that is ended, or gone already, is gone."""
    box = make_sandbox(nodes=3, slurmd_timeout_s=60)
    with posts(box) as make:
        post = make()
        job = post.plain("-N3", "--no-kill", "--wrap", "srun -N3 --job-name=train sleep 300")
        calls = CommandSteps(box.env())
        (step,) = post.until(lambda: calls.steps(job), "the step runs")
        assert (step.id, step.name, step.nodes) == (f"{job}.0", "train", ("n0", "n1", "n2"))
        where = 'echo ftrun-here "$SLURMD_NODENAME" "$PWD"'
        whole = calls.ask(job, step.nodes, where, limit_s=120, quiet_s=120)
        assert whole.answers == dict.fromkeys(step.nodes, ("/",)), whole.told
        box.crash("n1")

        def states() -> set[tuple[str, ...]]:
            return {tuple(row.split("|")[:2]) for row in queue(box)}

        def answering() -> list[str]:
            return sorted(calls.ask(job, step.nodes, "", limit_s=1000, quiet_s=3).answers)

        began_s = time.monotonic()
        # On a slow machine a node may need more than that: it is asked again.
        post.until(lambda: answering() == ["n0", "n2"], "the others answer")
        assert time.monotonic() - began_s < 500  # it did not wait for the third
        calls.end_step(step.id)
        post.until(lambda: (job, "RUNNING") not in states(), "the script has its step's end")
        calls.end_step(step.id)


POINTS = (
    "record:after:start.over",
    "sweep:after",
    "record:after:start.decided",
    "answer:before",
    "answer:after",
)


@pytest.mark.parametrize(
    "point", [*POINTS[::2], *(pytest.param(one, marks=pytest.mark.drills) for one in POINTS[1::2])]
)
@side_by_side
def test_an_agent_that_dies_at_any_point_leaves_no_half_started_script(make: Make, point: str) -> None:
    """SIGKILL at an effect or behind a record: the script is started again whole, here or in a new job, and never twice at once."""
    post = make()
    post.sbatch(FAILS_ONCE, FTRUN_AGENT_CRASH_AT=point)
    post.supervise()
    run = _over(post)

    assert run.state.value == "finished", post.story()
    again = "1.2" if point == "answer:after" else "2.1"
    assert [start[0] for start in _starts(post)] == ["1.1", again]
    assert not [line for line in post.ledger() if line.startswith("double")]
    assert run.retries == 1


@side_by_side
def test_a_live_script_that_stands_still_after_a_fatal_line_is_ended_and_started_again(
    make: Make,
) -> None:
    """Its step is cancelled; that the script then exits 0 is no verdict of its own."""
    post = make()
    job = post.sbatch(LIVES_ON)
    post.supervise()
    post.until(
        lambda: [one["kind"] for one in _agents(post)].count("start.begun") == 2, "its agent sees it begin"
    )
    (post.work / "go").touch()
    run = _over(post)

    assert run.state.value == "finished", post.story()
    assert [start[:2] for start in _starts(post)] == [["1.1", job], ["1.2", job]]
    assert [one.by_us for one in run.attempts[0].begun] == [True, False]
