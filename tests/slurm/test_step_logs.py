"""Logs of steps on real Slurm: what only a file of `srun -o` tells is found, with its line, its rank and its node."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Callable, Iterator

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.model.run import Incident, Run
from tests.slurm.apart import side_by_side
from tests.slurm.post import OFF_THE_BUS, Post, posts

pytestmark = pytest.mark.slurm

TRANSIENT = "gpu01:81:90 [0] ncclNet.cc:10 RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error, NCCL version 2.20.5"
# Rank 2 of the first start says why it ends in its own file; later starts go well, and add to the same files.
RANK = f"""
cat >rank.sh <<'X'
#!/bin/bash
echo "rank $SLURM_PROCID begins"
echo "$FTRUN_ATTEMPT.$FTRUN_START $SLURM_PROCID $SLURMD_NODENAME" >>seats
[ "$FTRUN_ATTEMPT.$FTRUN_START.$SLURM_PROCID" = 1.1.2 ] && {{ echo "{OFF_THE_BUS}"; exit 1; }}
sleep 2
X
chmod +x rank.sh
"""


@pytest.fixture
def make(slurm_sandbox: Sandbox) -> Iterator[Callable[..., Post]]:
    """A maker of posts on the sandbox of the session."""
    with posts(slurm_sandbox) as maker:
        yield maker


def _ends_well(post: Post, body: str, *words: str) -> tuple[Run, Incident]:
    """The run of such a script and its only fault."""
    post.sbatch(RANK + body, "-N3", *words)
    post.supervise()
    run = post.until_state("finished", "stopped", within_s=100)
    assert run.state.value == "finished", post.story()
    assert len(run.incidents) == 1, post.story()
    return run, run.incidents[0]


def _node_of(post: Post, rank: int) -> str:
    """Where a rank of the first start ran."""
    rows = (line.split() for line in (post.work / "seats").read_text().splitlines())
    return next(node for start, seat, node in rows if (start, seat) == ("1.1", str(rank)))


@pytest.mark.parametrize(
    "call",
    [
        "srun -o logs/%j_%t.txt ./rank.sh",
        pytest.param("srun ./rank.sh >>logs/all.txt 2>&1", marks=pytest.mark.drills),
    ],
)
def test_a_fault_that_only_a_file_of_the_step_tells(make: Callable[..., Post], call: str) -> None:
    """The line is the proof, its rank's node is blamed, and the next start is not blamed for what stands in the file."""
    post = make()
    run, incident = _ends_well(post, f"mkdir -p logs\n{call}\n")
    proof = incident.diagnosis["because"][0]
    assert OFF_THE_BUS in proof["text"]
    assert post.job_log().count(OFF_THE_BUS) == 0
    assert proof["file"].startswith(f"{post.work}/logs/")
    assert proof["line"] == 2 or "all" in proof["file"]
    assert incident.fault == "hardware-gpu"
    if "%t" in call:
        assert list(incident.nodes) == [_node_of(post, 2)]
    told = [line for line in post.job_log().splitlines() if " begins: " in line]
    assert len(told) == 1, post.job_log()
    place = f"({proof['file']}:{proof['line']})"
    assert re.fullmatch(
        rf"ftrun: [\d-]+ [\d:]+ \S+: {run.id} begins: attempt .*, after hardware-gpu: .*{re.escape(place)}; from no checkpoint that ftrun knows: --ft-checkpoint is not set; on n.*",
        told[0],
    )
    shown = post.ftrun("logs", run.id)
    assert shown.count(f"----- {run.id} attempt ") == 2, shown
    assert OFF_THE_BUS in shown.split(f"----- {run.id} ")[1], shown  # that of the first start
    assert OFF_THE_BUS not in shown.split(f"----- {run.id} ")[2], shown


def test_a_restart_in_the_same_job_is_told_in_its_log(make: Callable[..., Post]) -> None:
    """When, after what, from which checkpoint, on which nodes; `ftrun logs` has a line between the two starts."""
    post = make()
    body = f"""
    mkdir -p ckpt
    [ $FTRUN_START = 1 ] || exit 0
    echo "step 7 loss 2.5"; echo state >ckpt/step_7.bin
    srun -N2 -n2 -o log_%t.txt bash -c 'echo "{TRANSIENT}"; exit 1'
    exit 1
    """
    post.sbatch(textwrap.dedent(body), "-N2", "--ft-checkpoint=ckpt/*.bin")
    post.supervise()
    run = post.until_state("finished", "stopped", within_s=100)
    assert run.state.value == "finished", post.story()
    told = [line for line in post.job_log().splitlines() if " begins: " in line]
    assert len(told) == 1, post.job_log()
    assert re.search(
        r"attempt 1, start 2 in the same job, after network: .*log_\d.txt:1\); from ckpt/step_7.bin; on n",
        told[0],
    )
    shown = post.ftrun("logs", run.id)
    assert [word in shown for word in ("attempt 1: job", "attempt 1 start 2: job", "log_1.txt (rank 1")] == [
        True
    ] * 3, shown


# The step is over for a node that is lost, then a minute without a sign of life, in which the other tool gets another one.
AUTO_RESUME = """
cat >tool.sh <<'X'
#!/bin/bash
for i in 1 2 3 4 5; do echo "step $i loss 2.5"; sleep 0.2; done
srun --kill-on-bad-exit=1 -N2 -n2 bash -c '[ $SLURM_PROCID = 1 ] && exit 1; sleep 60'
echo waiting >waiting
for i in $(seq 600); do [ -e go ] && break; sleep 0.1; done
echo "step 6 loss 2.4"; echo "step 7 loss 2.3"
X
chmod +x tool.sh
[ $FTRUN_ATTEMPT$FTRUN_START = 11 ] || exit 0
./tool.sh --auto-resume=1
exit 0
"""


@pytest.mark.parametrize("waits", [pytest.param(True, marks=pytest.mark.drills), False])
@side_by_side
def test_a_script_that_restarts_by_itself_is_given_its_time(
    make_sandbox: Callable[..., Sandbox], make_post: Callable[..., Post], waits: bool
) -> None:
    """`--auto-resume` in the script is told at submission, and ftrun waits; where a person says not to, it acts."""
    box = make_sandbox(nodes=3)
    post = make_post(box)
    path = post.script(AUTO_RESUME)
    seen = post.ftrun("sbatch", "--ft-check", "-N2", str(path))
    assert "checkpoint: no checkpoint setting" in seen, seen
    assert "also restarts: srun --auto-resume" in seen, seen
    assert not post.call("squeue", "-h"), "--ft-check submits nothing"
    how = [] if waits else ["--ft-own-restart=0"]
    told = post.ftrun(
        "sbatch", f"--output={post.work}/%x.log", "-N2", "--no-kill", "--ft-retries=1", *how, str(path)
    )
    assert "--auto-resume (HyperPod) restarts within the job: it acts first, ftrun waits" in told
    post.supervise()
    post.until((post.work / "waiting").exists, "the tool waits", 60)
    nodes = post.until(lambda: post.run().attempts[0].nodes, "the supervisor sees the job", 60)
    assert "warning: no checkpoint setting" in post.ftrun("show", post.run().id)
    box.crash(nodes[1])

    def ended() -> bool:
        return any(one.by_us for one in post.run().attempts[0].begun)

    if not waits:
        post.until(ended, "ftrun ends the start that lost a node", 100)
        return
    time.sleep(45)
    assert not ended()
    (post.work / "go").touch()
    run = post.until_state("finished", "stopped", within_s=100)
    assert (run.state.value, run.incidents) == ("finished", ()), post.story()
