"""Several starts of one script inside one allocation, on real Slurm, with an agent that a test tells what to answer."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.supervisor.submission.compose import compose
from tests.begin_lines import without_begin_lines
from tests.unit.bundle.test_starts_sh import AGENT

pytestmark = pytest.mark.slurm

LIMIT_S = 240.0  # only what hangs takes so long, however loaded the machine is


@dataclass
class Stage:
    """A job with an agent on a sandbox: its folder, what it is composed with, and its log."""

    box: Sandbox
    folder: Path
    job: str = ""

    @property
    def place(self) -> Path:
        return self.folder / "run" / "attempts" / "1"

    @property
    def log(self) -> str:
        file = self.folder / "log"
        return without_begin_lines(file.read_text()) if file.exists() else ""

    def submit(self, script: str, *options: str, answers: tuple[str, ...] = (), **facts: str) -> None:
        """Submit `script`; `answers` are what the agent says after start 1, 2, ..."""
        self.place.mkdir(parents=True)
        agent = self.folder / "agent"
        agent.write_text(AGENT.format(folder=self.folder))
        agent.chmod(0o755)
        (self.folder / "plan").write_text("".join(f"{line}\n" for line in answers))
        known = {
            "run": "r",
            "attempt": "1",
            "token": "t",
            "run_dir": str(self.folder / "run"),
            "cluster": "c",
        }
        known |= {"agent": str(agent), "labels": "never"} | facts
        (self.folder / "script").write_bytes(compose(script.encode(), known))
        command = ["sbatch", "--parsable", "--no-kill", "-o", "log", *options, "script"]
        self.job = self.box.run(command, cwd=self.folder, check=True).stdout.strip()

    def state(self) -> str:
        words = self.box.run(["scontrol", "-o", "show", "job", self.job]).stdout.split()
        return next((word.partition("=")[2] for word in words if word.startswith("JobState=")), "")

    def wait(self, what: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not what():
            assert time.monotonic() < deadline, f"{self.state()}: {self.log}"
            time.sleep(0.1)

    def end(self) -> str:
        """Wait for the job's end; its log without what srun says where it waits for a step that is not quite over."""
        self.wait(lambda: self.state() in {"COMPLETED", "FAILED", "CANCELLED"})
        lines = self.log.splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith(("srun: Job ", "srun: Step created")))


@pytest.fixture
def stage(slurm_sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    one = Stage(slurm_sandbox, tmp_path)
    yield one
    if one.job:
        slurm_sandbox.run(["scancel", "-s", "KILL", one.job])
        one.wait(lambda: one.state() in {"COMPLETED", "FAILED", "CANCELLED", ""})


VIEW = """#!/bin/bash
echo "start $FTRUN_START: $SLURM_JOB_NODELIST $SLURM_NODELIST $SLURM_JOB_NUM_NODES $SLURM_NNODES $SLURM_NTASKS $SLURM_TASKS_PER_NODE"
echo "hosts" $(scontrol show hostnames)
srun sh -c 'echo "rank $SLURM_PROCID/$SLURM_NTASKS $SLURMD_NODENAME $SLURM_NODEID $SLURM_LOCALID"' | sort
srun -N1 -n1 sh -c 'echo "one $SLURMD_NODENAME"'
srun -w n1 -N1 -n1 sh -c 'echo "named $SLURMD_NODENAME"'
srun -r1 -N1 -n1 sh -c 'echo "second $SLURMD_NODENAME"'
exit 3
"""


def view(start: int, nodes: tuple[str, str], folded: str, named: str) -> list[str]:
    a, b = nodes
    return [
        f"start {start}: {folded} {folded} 2 2 4 2(x2)",
        f"hosts {a} {b}",
        *(f"rank {n}/4 {(a, b)[n // 2]} {n // 2} {n % 2}" for n in range(4)),
        f"one {a}",
        f"named {named}",
        f"second {b}",
    ]


def test_a_start_sees_and_uses_its_active_nodes(stage: Stage) -> None:
    """Shape, host names, ranks and single steps are those of the active nodes, at the first start and after a swap."""
    options = ("-N3", "--ntasks-per-node=2", "-w", "n[0-2]")
    stage.submit(VIEW, *options, answers=("again|nodes=n[0,2]|fault=network", "end"), spares="1", active="2")
    lines = stage.end().splitlines()

    assert lines == view(1, ("n0", "n1"), "n[0-1]", "n1") + view(2, ("n0", "n2"), "n[0,2]", "n2")
    assert stage.state() == "FAILED"


def test_the_node_of_the_script_itself_may_be_set_aside(stage: Stage) -> None:
    """The script stays where it is; no rank runs there any more, and the first active node is the meeting place."""
    options = ("-N3", "--ntasks-per-node=2", "-w", "n[0-2]")
    script = VIEW.replace("exit 3", "echo meet $FTRUN_MASTER_ADDR $MASTER_ADDR\nexit 3").replace(
        "-w n1", "-w n0"
    )
    stage.submit(script, *options, answers=("again|nodes=n1,n2", "end"), spares="1", active="2")
    lines = stage.end().splitlines()

    assert lines[9:] == ["meet n0", *view(2, ("n1", "n2"), "n[1-2]", "n2"), "meet n1 n1"]


def test_a_crashed_node_is_left_out_at_once(
    make_sandbox: Callable[..., Sandbox], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start runs on the survivor and the spare before Slurm itself knows that the node is dead."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    stage = Stage(make_sandbox(nodes=3, slurmd_timeout_s=600), tmp_path)  # it does not know before the end
    script = "#!/bin/sh\nsrun sh -c 'echo \"$FTRUN_START $SLURM_PROCID $SLURMD_NODENAME\"; [ $FTRUN_START = 2 ] || exec sleep 300'\necho $?\nexit 3\n"
    options = ("-N3", "--ntasks-per-node=1", "-w", "n[0-2]")
    stage.submit(script, *options, answers=("again|nodes=n0,n2", "end"), spares="1", active="2")
    stage.wait(lambda: stage.log.count("1 ") >= 2)
    stage.box.crash("n1")
    stage.box.run(["scancel", f"{stage.job}.0"])
    stage.wait(lambda: {"2 0 n0", "2 1 n2"} <= {*stage.log.splitlines()})

    assert "down" not in stage.box.node_state("n1")
    stage.wait((stage.place / "exit.0").exists)


def test_several_steps_beside_each_other_stay_so(stage: Stage) -> None:
    """The first start of a job without spares: each step takes its own part of the node, as under plain srun."""
    script = "#!/bin/bash\nfor n in 1 2 3; do srun --exact -n1 -c1 sh -c 'echo on; sleep 1; echo off' & done\nwait\n"
    stage.submit(script, "-N1", "-n2", labels="auto")
    log = stage.end().replace("srun: Step created for StepId", "").split()

    assert [word for word in log if word in {"on", "off"}][:3] != [
        "on",
        "on",
        "on",
    ]  # two processors, three steps
    assert log.count("off") == 3


def test_ranks_have_labels_where_the_log_is_shared(stage: Stage) -> None:
    """Whose line it is can be read where several nodes write into the job's log, and nowhere else."""
    script = "#!/bin/sh\nsrun sh -c 'echo a'\nsrun -l echo b\nsrun echo c | sort\nsrun -o out echo d\n"
    stage.submit(script, "-N2", labels="auto")
    log = stage.end().splitlines()

    assert sorted(log) == ["0: a", "0: b", "1: a", "1: b", "c", "c"]
    assert (stage.folder / "out").read_text() == "d\nd\n"


def test_what_ends_the_agent_ends_no_job(stage: Stage) -> None:
    """The agent is killed while it is asked: the job ends with the script's code, and soon."""
    stage.submit("#!/bin/sh\nexit 9\n", "-N1", answers=("wait",))
    stage.wait((stage.folder / "heard").exists)
    stage.box.run(["kill", "-9", (stage.folder / "agent.pid").read_text().strip()], check=True)
    stage.end()

    assert "code=9\n" in (stage.place / "exit.0").read_text()


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no MPI here")
def test_mpirun_starts_on_the_active_nodes(stage: Stage) -> None:
    """It reads the shape of the job from the environment, and starts its daemons by the srun that it finds first."""
    script = (
        "#!/bin/bash\necho start $FTRUN_START\nexport OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"
        "mpirun --oversubscribe --mca btl self,tcp sh -c 'echo rank $OMPI_COMM_WORLD_RANK $SLURMD_NODENAME' | sort\nexit 3\n"
    )
    options = ("-N3", "--ntasks-per-node=1", "-w", "n[0-2]")
    stage.submit(script, *options, answers=("again|nodes=n[1-2]", "end"), spares="1", active="2")

    assert stage.end().splitlines() == [
        "start 1",
        "rank 0 n0",
        "rank 1 n1",
        "start 2",
        "rank 0 n1",
        "rank 1 n2",
    ]
