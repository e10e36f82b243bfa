"""batch.sh and a start that spans several jobs, under each POSIX shell: what the answer may say, and what the script sees."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.unit.bundle.test_batch_sh import Attempt, attempt, under_one_shell, wait_for
from tests.unit.bundle.test_starts_sh import inside, plan

__all__ = ["attempt", "inside"]

SHAPE = """#!/bin/sh
[ "$FTRUN_START" -gt 1 ] || exit 5
echo "$SLURM_JOB_NODELIST $SLURM_JOB_NUM_NODES $SLURM_NTASKS $SLURM_TASKS_PER_NODE $SLURM_JOB_CPUS_PER_NODE $FTRUN_NNODES $FTRUN_WORLD_SIZE $FTRUN_MASTER_ADDR"
cat "${0%/*}/agent/shim.$FTRUN_START"
ls "${0%/*}/agent"
"""


SECOND = b"            sleep 1\n        done\n"  # of the counter, which counts every tenth one


def lines(inside: Attempt, script: str = SHAPE) -> list[str]:
    return inside.run(script + "exit 3\n")[1].splitlines()


def test_the_script_sees_the_nodes_of_all_jobs_as_one(inside: Attempt) -> None:
    """This job's first, in its order, then those of each companion; each of these counts as one of this job."""
    plan(inside, "again|nodes=c,b,z,y,q|span=9:z,y|span=10:q|fault=node", "end")
    told = lines(inside)

    assert told[0] == "b,c,z,y,q 5 10 2(x5) 4,8,4(x3) 5 10 b"
    assert "' b c'" in told[1]
    assert "' 9:z,y 10:q' 'b,c,z,y,q'" in told[1]
    assert "span.sh" in told
    assert "spans=9:z,y 10:q\n" in (inside.place / "begun.0.2").read_text()


def test_a_companion_that_is_gone_takes_its_nodes_along(inside: Attempt) -> None:
    """The next start is this job's alone again; whoever took a node's place is remembered through all of it."""
    plan(inside, "again|nodes=a,z|span=9:z|fault=node", "again|nodes=a,c|fault=node", "end")
    script = '#!/bin/sh\n[ "$FTRUN_START" -gt 1 ] || exit 5\necho "$SLURM_JOB_NODELIST"\ncat "${0%/*}/agent/shim.$FTRUN_START"\n'
    told = lines(inside, script)

    assert [told[0], told[2]] == ["a,z", "a,c"]
    assert "' b=z'" in told[1]
    assert "' b=c z=c'" in told[3]
    assert "9:z" not in told[3]


@under_one_shell("attempt")
@pytest.mark.parametrize(
    "answer",
    [
        "nodes=a,z",
        "nodes=z|span=9:z",
        "nodes=a,z|span=x:z",
        "nodes=a,z|span=9:",
        "nodes=a,z|span=9",
        "nodes=a,y|span=9:z",
    ],
)
def test_an_answer_about_nodes_that_nobody_has_ends_the_job(inside: Attempt, answer: str) -> None:
    """Strange nodes, no node of this job, a companion without number or nodes: the job ends as its script did."""
    plan(inside, f"again|{answer}|fault=node")

    assert inside.run("#!/bin/sh\necho once\nexit 5\n")[:2] == (5, "once\n")


@under_one_shell("attempt")
def test_a_counter_goes_on_as_long_as_there_is_a_companion(inside: Attempt) -> None:
    """A companion that sees it stand still ends itself; it ends with the last start that has one."""
    plan(inside, "again|nodes=a,z|span=9:z|fault=node", "again|nodes=a,c|fault=node", "end")
    alive, slept = inside.place / "companions" / "alive.0", inside.folder / "slept"
    waits = "until %s; do sleep 0.05; done"
    second = waits % "[ -e counted ]" + "; exit 5"
    third = waits % f"""[ "$(cat '{alive}')" = {1:020d} ]"""
    script = f'#!/bin/sh\n[ "$FTRUN_START" -gt 1 ] || exit 5\n[ "$FTRUN_START" = 3 ] || {{ {second}; }}\n{third}\nexit 3\n'
    job = inside.start(
        script, change=(SECOND, SECOND.replace(b"sleep 1", f"echo >>{slept}; sleep 0.05".encode()))
    )
    wait_for(lambda: _counted(alive)[0] >= 2)
    counted = _counted(alive)
    assert len(slept.read_text()) >= 10 * (counted[0] - 1)  # of what are seconds
    assert counted[1] == "9"
    (inside.folder / "counted").touch()

    assert job.wait(60) == 3
    job.communicate()
    wait_for(lambda: not _counters(inside))
    assert alive.read_text() == f"{1:020d}\n"


@under_one_shell("attempt")
def test_signals_for_the_script_do_not_end_the_counter(inside: Attempt) -> None:
    """They reach this shell's whole group; a companion would end itself, and the ranks in it."""
    plan(inside, "again|nodes=a,z,y|span=9:z|span=7:y|fault=node", "end")
    alive = inside.place / "companions" / "alive.0"
    script = '#!/bin/sh\n[ "$FTRUN_START" -gt 1 ] || exit 5\ntrap : USR1 HUP\n(trap "" USR1 HUP; until [ -e counted ]; do sleep 0.05; done) &\n: >listening\nwhile kill -0 $! 2>/dev/null; do wait $!; done\nexit 3\n'
    job = inside.start(script, change=(SECOND, SECOND.replace(b"sleep 1", b"sleep 0.05")))
    wait_for(lambda: _counted(alive)[1] == "9 7")
    wait_for((inside.folder / "listening").exists)
    for number in (signal.SIGUSR1, signal.SIGHUP):
        os.killpg(job.pid, number)
    sent = _counted(alive)[0]
    wait_for(lambda: _counted(alive)[0] >= sent + 2)
    (inside.folder / "counted").touch()

    job.communicate(timeout=120)
    assert job.returncode == 3


def _counted(alive: Path) -> tuple[int, str]:
    """The counter, and the companions that it is for; zero before it has counted."""
    text = alive.read_text() if alive.exists() else ""
    number, _, jobs = text.strip().partition(" ")
    return int(number or 0), jobs


def _counters(inside: Attempt) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if f"{inside.folder}/slurm_script".encode() in words:
                found.append(entry.name)
    return found


def _left_to_slurm(inside: Attempt, default: str) -> str:
    """What is noted of a call of srun that says nothing of MPI, where `scontrol show config` shows this default."""
    tools = inside.folder / "bin"
    tools.mkdir()
    (tools / "scontrol").write_text(f"#!/bin/sh\necho 'MpiDefault              = {default}'\n")
    (tools / "srun").write_text(
        f"#!/bin/sh\ncase \" $* \" in *' guard '*) : >'{inside.folder}/guarded' ;; esac\n"
    )
    for file in tools.iterdir():
        file.chmod(0o755)
    inside.env["PATH"] = f"{tools}:/usr/bin:/bin"
    pack = inside.run_dir / "tools" / "ftrun-hook.pyz"
    pack.parent.mkdir()
    pack.touch()
    inside.values["watch"] = "60 1"
    plan(inside, "end")
    script = (
        "#!/bin/sh\nsrun -N3 -n6 true\nuntil [ -e guarded ]; do sleep 0.05; done\n"
        'cat "${0%/*}/agent/nospan.1" "${0%/*}/agent/mpi"\nexit 3\n'
    )
    change = (
        b"PATH=/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin\n_ft_tmp=",
        f"PATH={tools}:/usr/bin:/bin\n_ft_tmp=".encode(),
    )

    return inside.run(script, change=change)[1]


@under_one_shell("attempt")
def test_calls_that_leave_mpi_to_slurm_are_told_of(inside: Attempt) -> None:
    """Where Slurm prepares MPI for them nobody knows whether ranks in two jobs would be one world: the agent is told, before it asks for a companion."""
    assert _left_to_slurm(inside, "pmix") == "srun prepares MPI (pmix) where nobody chose\npmix\n"


@under_one_shell("attempt")
@pytest.mark.parametrize("default", ["none", "(null)"])
def test_slurm_that_prepares_no_mpi_keeps_no_call_from_spanning(inside: Attempt, default: str) -> None:
    """22.05 shows such a default as none, 24.11 and 26.05 as (null), written so in slurm.conf or not."""
    assert _left_to_slurm(inside, default) == ""
