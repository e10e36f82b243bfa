"""Starts of one script over two jobs, on real Slurm, with an agent that a test tells what to answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.hooks.bundle.zipapp import build_zipapp
from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm.test_starts import Stage, stage

__all__ = ["stage"]
pytestmark = pytest.mark.slurm

SHAPE = ("--ntasks-per-node=2", "--gres=gpu:1", "--mem=60")


class Spanning:
    """A main job on n0 and n1 that is told to go on with n0 and a companion on n2 and n3."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        words = [
            "sbatch",
            "--parsable",
            "-N2",
            "-w",
            "n[2-3]",
            "-o",
            "/dev/null",
            *SHAPE,
            "--wrap",
            "sleep 600",
        ]
        self.companion = stage.box.run(words, check=True).stdout.strip()

    def submit(
        self, script: str, *, ends: int = 1, nodes: str = "n0,n2,n3", part: str = "n[2-3]", **facts: str
    ) -> None:
        """The first start fails at once; the second one spans both jobs, and is `script`."""
        first = f'[ "$FTRUN_START" -gt 1 ] || exit {ends}\n'
        answers = (f"again|nodes={nodes}|span={self.companion}:{part}|fault=node", "end")
        self.stage.submit(
            "#!/bin/bash\n" + first + script, "-N2", "-w", "n[0-1]", *SHAPE, answers=answers, **facts
        )

    def says(self, script: str) -> list[str]:
        """What the script printed in the start over both jobs."""
        self.submit(script)
        return self.stage.end().splitlines()

    @property
    def records(self) -> list[Path]:
        return list((self.stage.place / "spans").iterdir())


@pytest.fixture
def spanning(stage: Stage, slurm_sandbox: Sandbox) -> Iterator[Spanning]:
    one = Spanning(stage)
    yield one
    slurm_sandbox.run(["scancel", one.companion])
    one.stage.wait(lambda: not slurm_sandbox.run(["squeue", "-h", "-j", one.companion]).stdout.strip())


VIEW = """
echo "script $SLURM_JOB_NODELIST $SLURM_JOB_NUM_NODES $SLURM_NNODES $SLURM_NTASKS $SLURM_TASKS_PER_NODE $FTRUN_NNODES $FTRUN_WORLD_SIZE $FTRUN_MASTER_ADDR"
echo hosts $(scontrol show hostnames)
srun sh -c 'echo "rank $SLURM_PROCID/$SLURM_NTASKS $SLURMD_NODENAME $SLURM_NODEID/$SLURM_NNODES $SLURM_LOCALID $SLURM_JOB_ID gpu $CUDA_VISIBLE_DEVICES $SLURM_JOB_NODELIST $SLURM_NPROCS $SLURM_STEP_NUM_TASKS $SLURM_STEP_NUM_NODES $SLURM_TASKS_PER_NODE $SLURM_GTIDS"' | sort -V
"""


def test_ranks_see_one_job(spanning: Spanning) -> None:
    """Ranks, nodes, numbers and names are those of the whole, in the order of the jobs; devices are each node's own."""
    told = spanning.says(VIEW)

    job = spanning.stage.job
    assert told[0] == "script n0,n[2-3] 3 3 6 2(x3) 3 6 n0"
    assert told[1] == "hosts n0 n2 n3"
    assert told[2:] == [
        f"rank {n}/6 {('n0', 'n2', 'n3')[n // 2]} {n // 2}/3 {n % 2} {job} gpu 0 n0,n[2-3] 6 6 3 2(x3) {n // 2 * 2},{n // 2 * 2 + 1}" for n in range(6)
    ]  # fmt: skip
    assert spanning.records == []
    begun = (spanning.stage.place / "begun.0.2").read_text()
    assert f"\nspans={spanning.companion}:n2,n3\n" in begun
    assert (spanning.stage.place / "companions" / "alive.0").read_text() == f"{1:020d} {spanning.companion}\n"


CALLS = """
srun -N1 -n1 sh -c 'echo "one $SLURMD_NODENAME $SLURM_PROCID/$SLURM_NTASKS"'
srun -n1 sh -c 'echo "single $SLURMD_NODENAME"'
srun -w n3 -N1 -n1 sh -c 'echo "named $SLURMD_NODENAME $SLURM_PROCID/$SLURM_NTASKS $SLURM_NODEID"'
srun -N2 -n2 sh -c 'echo "two $SLURMD_NODENAME $SLURM_PROCID/$SLURM_NTASKS"' | sort
echo line | srun sh -c 'read -r x; echo "in $SLURM_PROCID ${x:-nothing}"'; echo "code $?"
echo line >fed
srun -N3 -n3 -i fed sh -c 'read -r x; echo "in $SLURM_PROCID ${x:-nothing}"' | sort
srun -N3 -n3 -o "out-%t-%2n" sh -c 'echo "out $SLURM_PROCID"; echo "err $SLURM_PROCID" >&2'
cat out-*
srun --output=whole-%j.log -N3 -n3 sh -c 'echo "whole $SLURM_PROCID"'
sort whole-$SLURM_JOB_ID.log
srun -l -N3 -n3 sh -c 'echo "labelled $SLURM_PROCID"; echo "other $SLURM_PROCID" >&2' 2>&1 | sort
srun -N3 -n3 --multi-prog none; echo "code $?"
srun -N3 -n3 --mpi=pmi2 true; echo "code $?"
srun -w n0,n2 -N2 -n2 true; echo "code $?"
srun -n4 -N3 true; echo "code $?"
srun -m plane=1 -N1 -n1 sh -c 'echo "lone $SLURMD_NODENAME"'
cat "${0%/*}/agent/nospan.2"
"""
SAID = """\
one n0 0/1
single n0
named n3 0/1 0
two n0 0/2
two n2 1/2
srun: ftrun: this start spans several jobs, and this call cannot: what it is fed on stdin goes to one job (-i none: nobody reads it)
code 1
in 0 line
in 1 line
in 2 line
out 0
err 0
out 1
err 1
out 2
err 2
whole 0
whole 1
whole 2
0: labelled 0
0: other 0
1: labelled 1
1: other 1
2: labelled 2
2: other 2
srun: ftrun: this start spans several jobs, and this call cannot: --multi-prog is for one job
code 1
srun: ftrun: this start spans several jobs, and this call cannot: --mpi=pmi2 makes one world in one job
code 1
srun: ftrun: this start spans several jobs, and this call cannot: -w names nodes of several jobs
code 1
srun: ftrun: this start spans several jobs, and this call cannot: 4 tasks do not fill 3 nodes evenly
code 1
lone n0
what it is fed on stdin goes to one job (-i none: nobody reads it)
--multi-prog is for one job
--mpi=pmi2 makes one world in one job
-w names nodes of one job
4 tasks do not fill 3 nodes evenly
"""


def test_every_call_does_what_it_would_in_one_job_or_says_why_not(spanning: Spanning) -> None:
    """Single nodes, named nodes, stdin, files and labels of each task; what makes one world in one job is refused in a line."""
    assert spanning.says(CALLS) == SAID.splitlines()


def test_two_steps_side_by_side(spanning: Spanning) -> None:
    """Both span both jobs at the same time."""
    script = (
        "srun sh -c 'sleep 1; echo a $SLURM_PROCID' & srun sh -c 'sleep 1; echo b $SLURM_PROCID' & wait\n"
    )
    told = spanning.says(script)

    assert sorted(told) == sorted(f"{name} {n}" for name in "ab" for n in range(6))


@pytest.mark.parametrize(("rank", "others"), [(0, "-ge 2"), (5, "-lt 2")], ids=["main job", "companion"])
def test_a_rank_that_fails_ends_the_others(spanning: Spanning, rank: int, others: str) -> None:
    """On either side: its code is the call's, and the other side has a short grace."""
    ranks = f"[ $SLURM_PROCID != {rank} ] || exit 7; [ $SLURM_PROCID {others} ] && exec sleep 300; exit 0"
    script = f"export FTRUN_SPAN_GRACE_S=1; srun sh -c '{ranks}'; echo code $?\n"
    began = time.monotonic()
    told = spanning.says(script)

    assert told[-1] == "code 7"
    assert time.monotonic() - began < 250
    assert not _steps(spanning)


def _steps(spanning: Spanning) -> list[str]:
    rows = spanning.stage.box.run(["squeue", "-h", "-s", "-j", spanning.companion, "-o", "%i"]).stdout.split()
    return [row for row in rows if row.rpartition(".")[2].isdigit()]


def test_the_end_of_a_companion_ends_the_call(spanning: Spanning) -> None:
    """Its ranks get TERM from Slurm and may outlive that; whatever srun says of them, the call fails."""
    script = "srun sh -c 'trap : TERM; touch here.$SLURM_PROCID; i=0; while [ $i -lt 300 ]; do sleep 0.2; i=$((i+1)); done'; echo code $?\n"
    spanning.submit("export FTRUN_SPAN_GRACE_S=1\n" + script)
    spanning.stage.wait(lambda: len(list(spanning.stage.folder.glob("here.*"))) == 6)
    spanning.stage.box.run(["scancel", spanning.companion])
    told = spanning.stage.end().splitlines()

    assert told[-1].startswith("code ")
    assert told[-1] != "code 0"


def test_a_dead_node_of_a_companion_fails_the_call(spanning: Spanning) -> None:
    """Once Slurm has found it down, it ends that job as a whole; the other side has its grace, and the script goes on to its own end."""
    spanning.submit(
        "export FTRUN_SPAN_GRACE_S=1\nsrun sh -c 'touch here.$SLURM_PROCID; exec sleep 300'; echo code $?\n"
    )
    spanning.stage.wait(lambda: len(list(spanning.stage.folder.glob("here.*"))) == 6)
    box = spanning.stage.box
    box.crash("n3")
    # As it does by itself after SlurmdTimeout.
    box.run(["scontrol", "update", "NodeName=n3", "State=DOWN", "Reason=lost"], check=True)
    try:
        told = spanning.stage.end().splitlines()
    finally:
        box.mend("n3")

    assert told[-1].startswith("code ")
    assert told[-1] != "code 0"


def test_a_signal_to_the_script_reaches_every_rank_once(spanning: Spanning) -> None:
    """As it would in one job: by srun, on both sides."""
    rank = 'trap "echo got $SLURM_PROCID" USR1; touch here.$SLURM_PROCID; i=0; while [ ! -e over ]; do sleep 0.1; done'
    spanning.submit(f"trap 'kill -USR1 $!' USR1\nsrun sh -c '{rank}' &\nwait $!\nsleep 2; touch over; wait\n")
    spanning.stage.wait(lambda: len(list(spanning.stage.folder.glob("here.*"))) == 6)
    time.sleep(1)
    spanning.stage.box.run(["scancel", "-b", "-s", "USR1", spanning.stage.job])
    told = spanning.stage.end().splitlines()

    assert sorted(line for line in told if "got" in line) == [f"got {n}" for n in range(6)]


MEETING = """
import os, socket
rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
address = ("127.0.0.1", int(os.environ["FTRUN_MASTER_PORT"]))  # all nodes are one machine here
if rank == 0:
    door = socket.create_server(address, backlog=size)
    guests = [door.accept()[0] for _ in range(size - 1)]
    total = sum(int(guest.recv(16)) for guest in guests)
    for guest in guests:
        guest.sendall(b"%d" % total)
else:
    import time
    for _ in range(200):
        try:
            link = socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.1)
    link.sendall(b"%d" % rank)
    total = int(link.recv(16))
print("rank", rank, "of", size, "total", total, flush=True)
"""


def test_ranks_that_meet_by_address_find_each_other(spanning: Spanning) -> None:
    """By the variables of the environment alone, as torch and jax do."""
    (spanning.stage.folder / "meet.py").write_text(MEETING)
    told = spanning.says("srun python3 meet.py\n")

    assert sorted(told) == [f"rank {n} of 6 total 15" for n in range(6)]


def test_an_agent_per_node_is_one_world(spanning: Spanning) -> None:
    """One task on each node, as torchrun is started."""
    told = spanning.says(
        "srun --ntasks-per-node=1 -n $SLURM_NNODES sh -c 'echo $SLURM_NODEID $SLURM_PROCID/$SLURM_NTASKS $SLURMD_NODENAME' | sort\n"
    )

    assert told == ["0 0/3 n0", "1 1/3 n2", "2 2/3 n3"]


@pytest.mark.parametrize("signal", ["TERM", "INT"])
def test_whoever_ends_srun_ends_every_side(spanning: Spanning, signal: str) -> None:
    """As one srun would: at once by TERM, by INT when it comes twice."""
    ender = f"""
(
    while [ "$(ls here.* | wc -l)" -lt 6 ]; do sleep 0.1; done
    pid=$(sed -n '$s/^[0-9]* \\([0-9]*\\) .*/\\1/p' "${{0%/*}}/agent/calls.2")
    while kill -{signal} "$pid"; do sleep 0.7; done
) 2>/dev/null &
"""
    began = time.monotonic()
    told = spanning.says(ender + "srun sh -c 'touch here.$SLURM_PROCID; exec sleep 300'; echo code $?\n")

    assert told[-1].startswith("code ")
    assert told[-1] != "code 0"
    assert time.monotonic() - began < 250
    assert not _steps(spanning)


def test_a_rank_of_a_companion_joins_again(spanning: Spanning) -> None:
    """Its parent asks under its number in the whole, and hands on the answer."""
    home = spanning.stage.folder / "run" / "tools"
    home.mkdir(parents=True)
    (home / "ftrun-hook.pyz").symlink_to(build_zipapp(str(home)))
    answer = """
( until [ -e "$FTRUN_ATTEMPT_DIR/ranks/0.2/5.1" ]; do sleep 0.1; done; echo again >"$FTRUN_ATTEMPT_DIR/ranks/0.2/5.1.next" ) &
"""
    rank = '[ "$SLURM_PROCID" != 5 ] || [ -n "$FTRUN_RANK_RESTART" ] || exit 3; echo "well $SLURM_PROCID $FTRUN_RANK_RESTART"'
    spanning.submit(f"{answer}srun sh -c '{rank}'; echo code $?\n", rejoin="1")
    told = spanning.stage.end().splitlines()

    assert sorted(told) == ["code 0", *(f"well {n} " for n in range(5)), "well 5 1"]
