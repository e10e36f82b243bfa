"""Laws of the sandbox, on real Slurm.

How it thinks. Those that need a sandbox of their own wait for seconds until Slurm has noticed something, so they are tried side by side:
the first test that asks for an outcome starts all that were asked for.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from ftrun.slurm.sandbox import boot
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.slurm.sandbox.lifecycle import find, up
from ftrun.slurm.sandbox.plan import SandboxError
from tests.slurm.post import boxes, traces

pytestmark = pytest.mark.slurm

MakeSandbox = Callable[..., Sandbox]
Law = Callable[[MakeSandbox], None]
LAWS: dict[str, Law] = {}
LANES = 4

# A dead node is believed dead sooner than with the default settings.
IMPATIENT = {"slurmd_timeout_s": 6, "conf": {"MessageTimeout": "2"}}
# A rank that left its parents, its session and its environment behind.
STRAY = "env -i setsid -f sleep 987 </dev/null >/dev/null 2>&1"


def side_by_side(law: Law) -> Callable[[dict[str, Future[None]]], None]:
    """A test whose body is played together with all the others."""
    name = law.__name__
    LAWS[name] = law

    def test(played: dict[str, Future[None]]) -> None:
        played[name].result()

    test.__name__, test.__doc__ = name, law.__doc__
    return test


def _alone(law: Law) -> None:
    with boxes() as make:
        law(make)


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[None]]]:
    wanted = [item.name for item in request.session.items if item.module is request.module]  # type: ignore[attr-defined]
    with ThreadPoolExecutor(LANES) as pool:
        yield {name: pool.submit(_alone, law) for name, law in LAWS.items() if name in wanted}
        pool.shutdown(cancel_futures=True)


def until(condition: Callable[[], bool], what: str, timeout_s: float = 240.0) -> None:
    """Wait for a condition of the world; the deadline is generous because machines are slow."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.1)


def submit(box: Sandbox, script: str, *options: str) -> str:
    """Submit a batch job that works in the shared folder; returns its id."""
    command = [
        "sbatch",
        "--parsable",
        f"--chdir={box.shared}",
        "--output=/dev/null",
        *options,
        "--wrap",
        script,
    ]
    return box.run(command, check=True).stdout.strip()


def job_state(box: Sandbox, job: str) -> str:
    """RUNNING, PENDING ... as squeue prints it."""
    return box.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"]).stdout.strip()


def running(box: Sandbox, job: str) -> None:
    """Wait until the job runs."""
    until(lambda: job_state(box, job) == "RUNNING", f"job {job} runs")


def beats(box: Sandbox, node: str) -> int:
    """How often the counting rank of a node has counted."""
    path = box.shared / f"beat-{node}"
    return path.stat().st_size if path.exists() else 0


# The name of the node is the argument: %N and hostname may tell the machine's.
COUNT = "srun sh -c 'while :; do printf . >> \"beat-$SLURMD_NODENAME\"; sleep 0.1; done'"


def test_all_nodes_are_idle_and_tell_their_own_names(slurm_sandbox: Sandbox) -> None:
    """When `up` returns every node is idle, and `hostname` on it is the node's name."""
    give_up_s = time.monotonic() + 240  # a job of another test may be about to leave
    while True:
        status = slurm_sandbox.status()
        states = {node.name: node.state for node in status.nodes}
        if "completing" not in states.values() or time.monotonic() > give_up_s:
            break
        time.sleep(0.2)

    assert status.alive
    assert states == dict.fromkeys(("n0", "n1", "n2", "n3"), "idle")
    names = slurm_sandbox.run(["srun", "-N4", "hostname"], check=True).stdout.split()
    expected = list(slurm_sandbox.node_names) if slurm_sandbox.uts else [socket.gethostname()] * 4
    assert expected == sorted(names)


def test_every_node_finds_every_other_by_name(slurm_sandbox: Sandbox) -> None:
    """Ranks can meet at a node's name, and the machine's own /etc/hosts is left alone."""
    if not slurm_sandbox.plan.hosts:
        pytest.skip("this machine allows no mount namespace")
    answer = slurm_sandbox.run(["srun", "-N2", "-w", "n0,n3", "getent", "hosts", "n1"], check=True)

    assert [line.split() for line in answer.stdout.splitlines()] == [["127.0.1.2", "n1"]] * 2
    controller = next(iter(slurm_sandbox.members().daemons["slurmctld"]))
    assert "127.0.1.2 n1" in Path(f"/proc/{controller.pid}/root/etc/hosts").read_text()
    assert "n1" not in Path("/etc/hosts").read_text().split()


@side_by_side
def test_an_srun_inside_a_job_is_told_of_a_lost_node(make_sandbox: MakeSandbox) -> None:
    """slurmctld reaches the srun of a batch script although it runs on a host with a name of its own."""
    box = make_sandbox(nodes=2, **IMPATIENT)
    out = box.shared / "out"
    submit(
        box, "srun --no-kill --kill-on-bad-exit=0 --wait=0 sleep 3000", "-N2", "--no-kill", f"--output={out}"
    )
    until(lambda: "sleep" in _commands(box, "n1"), "ranks run")

    box.crash("n1")

    until(lambda: "Node failure on n1" in out.read_text(), "srun is told")


def test_jobs_see_their_gpus(slurm_sandbox: Sandbox) -> None:
    """A job that asks for GPUs has CUDA_VISIBLE_DEVICES, one that does not has none."""
    ask = ["sh", "-c", "echo ${CUDA_VISIBLE_DEVICES-none}"]

    assert slurm_sandbox.run(["srun", "-N1", "--gres=gpu:2", *ask], check=True).stdout.split() == ["0,1"]
    assert slurm_sandbox.run(["srun", "-N1", *ask], check=True).stdout.split() == ["none"]


@side_by_side
def test_sandboxes_started_at_once_live_side_by_side(make_sandbox: MakeSandbox) -> None:
    """Sandboxes that start at the same moment share no port, and one's end is not the other's."""
    with ThreadPoolExecutor(2) as pool:
        left, right = (started.result() for started in [pool.submit(make_sandbox, nodes=2) for _ in range(2)])
    ports = [
        set(range(box.plan.base_port, box.plan.base_port + box.plan.port_count)) for box in (left, right)
    ]

    assert not ports[0] & ports[1]
    job = submit(left, "sleep 3000")
    running(left, job)
    assert right.run(["squeue", "-h"], check=True).stdout == ""
    right.down()
    assert job_state(left, job) == "RUNNING"
    assert left.status().alive


@side_by_side
def test_a_crashed_node_is_down_and_its_job_is_requeued_and_mending_brings_it_back(
    make_sandbox: MakeSandbox,
) -> None:
    """A crash leaves no process of the node; Slurm sees it, requeues the job and takes the mended node back."""
    box = make_sandbox(nodes=2, **IMPATIENT)
    job = submit(box, f"srun sh -c '{STRAY}; sleep 3000'", "-N2", "--requeue")
    running(box, job)
    until(lambda: _commands(box, "n1") >= ({"slurmd", "slurmstepd", "sleep"}), "ranks run")

    box.crash("n1")

    assert box.members().nodes["n1"] == frozenset()
    assert _untouched(box, "n0", job)
    assert box.wait_node("n1", "down", "down*") in ("down", "down*")
    until(lambda: job_state(box, job) == "PENDING", "job is requeued")
    box.mend("n1")
    box.wait_node("n1", "idle", "mixed")
    running(box, job)


def _commands(box: Sandbox, node: str) -> set[str]:
    return {process.comm for process in box.members().nodes[node]}


def _untouched(box: Sandbox, node: str, job: str) -> bool:
    """Whether a job's processes on this node are still there, unless Slurm has ended the job by now: it is quick where the machine is slow."""
    return _commands(box, node) >= {"slurmd", "slurmstepd", "sleep"} or job_state(box, job) != "RUNNING"


@side_by_side
def test_a_rank_that_hides_dies_with_its_node(make_sandbox: MakeSandbox) -> None:
    """A rank that double-forked, left its session and cleaned its environment still belongs to its node."""
    box = make_sandbox(nodes=2)
    if not box.plan.marked:
        pytest.skip("this machine allows no namespaces, and nothing else tells such a rank's node")
    box.run(["srun", "-N1", "-w", "n1", "sh", "-c", STRAY], check=True)
    strays = [process for process in box.members().nodes["n1"] if "987" in process.cmdline]
    assert strays
    assert not any("987" in process.cmdline for process in box.members().nodes["n0"])

    box.crash("n1")

    assert (
        not Path(f"/proc/{strays[0].pid}").exists()
        or ") Z" in Path(f"/proc/{strays[0].pid}/stat").read_text()
    )


@side_by_side
def test_a_frozen_node_stands_still_and_a_thawed_one_goes_on(make_sandbox: MakeSandbox) -> None:
    """While a node is frozen none of its processes runs and Slurm loses it; thawed, it is taken back."""
    box = make_sandbox(nodes=2, **IMPATIENT)
    running(box, submit(box, COUNT, "-w", "n1", "--no-requeue"))
    until(lambda: beats(box, "n1") > 3, "rank counts")

    box.freeze("n1")

    # One that runs on the other processor stops at its next tick.
    until(lambda: {process.state for process in box.members().nodes["n1"]} == {"T"}, "all stand still")
    assert {daemon.name for daemon in box.status().daemons if daemon.state == "frozen"} == {"slurmd-n1"}
    before = beats(box, "n1")
    box.wait_node("n1", "down", "down*")
    assert beats(box, "n1") == before
    box.mend("n1")
    assert "T" not in {process.state for process in box.members().nodes["n1"]}
    box.wait_node("n1", "idle")


@side_by_side
def test_without_its_slurmd_a_node_is_lost_but_its_ranks_go_on(make_sandbox: MakeSandbox) -> None:
    """Killing slurmd alone leaves the ranks running, which is why a lost node must be fenced."""
    box = make_sandbox(nodes=2, **IMPATIENT)
    running(box, submit(box, COUNT, "-w", "n1", "--no-requeue"))
    until(lambda: beats(box, "n1") > 3, "rank counts")

    box.slurmd_kill("n1")

    box.wait_node("n1", "down", "down*")
    before = beats(box, "n1")
    until(lambda: beats(box, "n1") > before, "rank still counts")
    box.mend("n1")
    box.wait_node("n1", "idle")


def test_draining_touches_no_job_and_is_undone_by_mending(slurm_sandbox: Sandbox) -> None:
    """A drained node keeps its job, bears the reason, and is mixed again once mended."""
    job = submit(slurm_sandbox, "sleep 3000", "-w", "n3")
    running(slurm_sandbox, job)

    slurm_sandbox.drain("n3", "a reason, with = and |")

    node = next(node for node in slurm_sandbox.status().nodes if node.name == "n3")
    assert (node.state, node.reason) == ("draining", "a reason, with = and |")
    assert job_state(slurm_sandbox, job) == "RUNNING"
    slurm_sandbox.mend("n3")
    assert slurm_sandbox.node_state("n3") == "mixed"
    slurm_sandbox.run(["scancel", job], check=True)
    slurm_sandbox.wait_node("n3", "idle")


@side_by_side
def test_the_controller_can_be_stopped_killed_and_paused(make_sandbox: MakeSandbox) -> None:
    """A job outlives every kind of absence of its controller; a paused one answers nobody."""
    box = make_sandbox(nodes=1)
    job = submit(box, "sleep 3000")
    running(box, job)

    box.stop_controller()
    assert not box.status().alive
    assert box.run(["scontrol", "ping"]).returncode
    box.start_controller()
    assert job_state(box, job) == "RUNNING"

    box.pause_controller()
    with pytest.raises(SandboxError, match="no answer within"):
        box.run(["squeue"], timeout_s=1)
    box.continue_controller()
    until(lambda: job_state(box, job) == "RUNNING", "the controller answers again")

    box.kill_controller()
    box.start_controller()
    assert box.status().alive


@side_by_side
def test_down_leaves_nothing_of_the_sandbox_and_nothing_else_is_touched(make_sandbox: MakeSandbox) -> None:
    """Daemons, steps, ranks, strays and waiting clients end; a shell with SLURM_CONF set does not."""
    box = make_sandbox(nodes=2, ssh=True)
    # What cleaned its environment, too, is found by its node's namespace alone.
    stray = STRAY if box.plan.marked else "setsid -f sleep 987 </dev/null >/dev/null 2>&1"
    running(box, submit(box, f"srun sh -c '{stray}; sleep 3000'", "-N2"))
    box.run(["srun", "-N2", "sh", "-c", stray], check=True)
    client = subprocess.Popen(
        ["srun", "--overlap", "sleep", "3000"], env=box.env(), stderr=subprocess.DEVNULL
    )
    bystander = subprocess.Popen(["sleep", "3000"], env=box.env())
    try:
        box.freeze("n0")

        assert box.down() > 0

        assert client.wait(240) == -signal.SIGKILL
        assert bystander.poll() is None
    finally:
        for process in (client, bystander):
            process.kill()
            process.wait()
    assert traces(box.folder) == []
    assert not Path(box.plan.run_dir, "run").exists()
    assert (box.folder / "log" / "slurmctld.log").exists()
    assert box.down() == 0


@side_by_side
def test_a_sandbox_whose_daemons_were_killed_can_be_taken_down_and_brought_up_again(
    make_sandbox: MakeSandbox,
) -> None:
    """A crashed sandbox is loaded from its folder, taken down, and the same folder serves again."""
    box = make_sandbox(nodes=2)
    running(box, submit(box, "sleep 3000"))
    daemons = box.members().daemons
    for process in [*daemons["slurmctld"], *daemons["munged"], *daemons["slurmd-n0"]]:
        with contextlib.suppress(ProcessLookupError):  # a child that was seen may be gone meanwhile
            os.kill(process.pid, signal.SIGKILL)
    until(lambda: not box.status().alive, "daemons are dead")

    again = up(box.folder, nodes=2)

    assert [node.state for node in again.status().nodes] == ["idle", "idle"]
    assert again.run(["squeue", "-h"], check=True).stdout == ""
    assert find(box.folder).down() > 0
    assert traces(box.folder) == []


def test_a_step_that_was_just_started_tells_its_node(slurm_sandbox: Sandbox) -> None:
    """Until it opens its log a step has nothing but what it inherits from slurmd, which may be dead by then."""
    for node in slurm_sandbox.node_names:
        (slurmd,) = (p for p in slurm_sandbox.members().daemons[f"slurmd-{node}"] if p.comm == "slurmd")
        inherited = Path(f"/proc/{slurmd.pid}/environ").read_bytes().split(b"\0")

        assert {f"SLURMD_NODENAME={node}".encode(), f"SLURM_CONF={slurm_sandbox.conf}".encode()} <= {
            *inherited
        }


@side_by_side
def test_a_process_between_two_programs_is_waited_for(make_sandbox: MakeSandbox) -> None:
    """A crash that meets a rank in the act of becoming another program, when it shows no arguments and no environment, ends it all the same."""
    box = make_sandbox(nodes=1, uts=False)
    again = box.shared / "again"
    again.write_text('#!/bin/sh\nexec "$0"\n')
    again.chmod(0o755)
    running(box, submit(box, f"for i in 1 2 3 4; do setsid -f {again}; done; sleep 3000"))
    until(lambda: "again" in _commands(box, "n0"), "programs start")

    box.crash("n0")

    time.sleep(0.2)
    assert box.members().nodes["n0"] == frozenset()


def test_a_living_sandbox_is_not_started_twice(slurm_sandbox: Sandbox) -> None:
    """`up` on a living sandbox returns it; with other nodes it is refused."""
    pids = {daemon.pid for daemon in slurm_sandbox.status().daemons}

    again = up(slurm_sandbox.folder, nodes=4, gpus=2)

    assert {daemon.pid for daemon in again.status().daemons} == pids
    with pytest.raises(SandboxError, match="take it down first"):
        up(slurm_sandbox.folder, nodes=2)


@side_by_side
def test_ssh_leads_to_the_node(make_sandbox: MakeSandbox) -> None:
    """With ssh every node answers under its name, and a crashed one does not until it is mended."""
    box = make_sandbox(nodes=2, ssh=True)
    to_n1 = ["ssh", "-F", str(box.ssh_config), "n1", "hostname; squeue -h"]

    assert box.run(to_n1, check=True).stdout.split() == ["n1" if box.uts else socket.gethostname()]
    box.crash("n1")
    assert box.run(to_n1).returncode == 255
    box.mend("n1")
    assert box.run(to_n1).returncode == 0


@side_by_side
def test_without_host_names_of_their_own_the_nodes_come_up_all_the_same(make_sandbox: MakeSandbox) -> None:
    """Where unshare is refused the sandbox says so; faults still find the ranks of one node only."""
    box = make_sandbox(nodes=2, uts=False)
    job = submit(box, "srun sleep 3000", "-N2")
    running(box, job)
    until(lambda: all("sleep" in _commands(box, node) for node in box.node_names), "ranks run")

    assert not box.uts
    assert set(box.run(["srun", "--overlap", "-N2", "hostname"], check=True).stdout.split()) == {
        socket.gethostname()
    }
    box.crash("n1")
    assert _commands(box, "n1") == set()
    assert _untouched(box, "n0", job)


@pytest.mark.skipif(
    shutil.which("mariadbd", path=boot.search_path()) is None,
    reason="no MariaDB: accounting is optional",
)
@side_by_side
def test_with_accounting_a_finished_job_is_remembered(make_sandbox: MakeSandbox) -> None:
    """sacct knows a job's end, its account and its comment; the database ends with the sandbox."""
    box = make_sandbox(nodes=1, accounting=True)
    submit(box, "exit 3", "--comment=a-token", "--account=sandbox")
    ask = ["sacct", "-n", "-P", "-X", "--format=State,ExitCode,Account,Comment"]

    until(lambda: box.run(ask).stdout == "FAILED|3:0|sandbox|a-token\n", "accounting has heard of it")
    assert box.down() > 0
    assert traces(box.folder) == []


# Any user but root, and but nobody, whom 26.05 takes for no SlurmUser.
ANOTHER = pwd.getpwnam("daemon")


def _as_another() -> list[str]:
    return ["setpriv", f"--reuid={ANOTHER.pw_uid}", f"--regid={ANOTHER.pw_gid}", "--clear-groups"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
def test_in_roots_sandbox_a_job_runs_as_the_user_who_submitted_it(slurm_sandbox: Sandbox) -> None:
    """A root sandbox is a real multi-user cluster."""
    command = [*_as_another(), "srun", "-N2", "--chdir=/", "id", "-un"]

    assert slurm_sandbox.run(command, check=True, cwd=slurm_sandbox.shared).stdout.split() == [
        ANOTHER.pw_name,
        ANOTHER.pw_name,
    ]


ORDINARY = """
import time
from pathlib import Path
from ftrun.slurm.sandbox.lifecycle import up
box = up(Path({folder!r}), nodes=2, gpus=2)
stray = {stray!r} if box.plan.marked else "true"  # nothing but its node's namespace would find it
print(*sorted(box.run(["srun", "-N2", "--gres=gpu:2", "sh", "-c",
    "echo $SLURMD_NODENAME:$(hostname):$(id -un):$CUDA_VISIBLE_DEVICES; " + stray], check=True).stdout.split()))
strays = {{node: sum("987" in p.cmdline for p in found) for node, found in box.members().nodes.items()}}
box.crash("n1")
print(box.uts, strays, len(box.members().nodes["n1"]), bool(box.members().nodes["n0"]))
box.mend("n1")
give_up_s = time.monotonic() + 120
while box.node_state("n1") == "completing" and time.monotonic() < give_up_s:  # the job, to Slurm, for a moment yet
    time.sleep(0.2)
print(box.node_state("n1"), box.down() > 0)
"""


@pytest.mark.skipif(
    os.geteuid() != 0, reason="every other test is this one when the tests run as an ordinary user"
)
def test_an_ordinary_user_has_a_sandbox_with_everything_in_a_folder_of_any_length() -> None:
    """Without root: host names, GPUs, faults and the end work; long paths are no obstacle for sockets."""
    home = Path(subprocess.check_output(["mktemp", "-d", "/tmp/ftrun-t-XXXXXX"], text=True).strip())
    folder = home / ("long" * 30) / "box"
    try:
        # A copy: the checkout may lie in a home that is closed to others.
        shutil.copytree(
            Path(boot.__file__).parents[1],
            home / "ftrun" / "slurm",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        subprocess.run(["chown", "-R", f"{ANOTHER.pw_uid}:{ANOTHER.pw_gid}", str(home)], check=True)
        answer = subprocess.run(
            [*_as_another(), _python_for_all(), "-c", ORDINARY.format(folder=str(folder), stray=STRAY)],
            env={"HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(home)},
            capture_output=True,
            text=True,
            timeout=240,
            cwd="/",
        )

        assert answer.returncode == 0, answer.stderr
        told, hurt, mended = answer.stdout.splitlines()
        if hurt.startswith("True"):
            assert told == "n0:n0:daemon:0,1 n1:n1:daemon:0,1"
            assert hurt == "True {'n0': 1, 'n1': 1} 0 True"
        assert mended == "idle True"
        assert traces(folder) == []
    finally:
        shutil.rmtree(home)


def _python_for_all() -> str:
    """An interpreter that anybody may start."""
    import sys

    for candidate in (Path(sys.executable).resolve(), Path("/usr/bin/python3")):
        if not subprocess.run([*_as_another(), str(candidate), "-c", "pass"], capture_output=True).returncode:
            return str(candidate)
    pytest.fail("no Python that an ordinary user may start: install python3")


@side_by_side
def test_nodes_have_hosts_of_their_own_where_slurm_wants_one_slurmd_a_host(make_sandbox: MakeSandbox) -> None:
    """As on a Slurm built without --enable-multiple-slurmd: host names differ, and a credential is new to the munged of each node."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Sandbox, "has_multiple_slurmd", lambda box: "single" not in box.name)
        box = make_sandbox(nodes=3, name="single")
    assert not box.plan.multiple_slurmd

    step = box.run(["srun", "-N3", "sh", "-c", "echo $SLURMD_NODENAME $(hostname)"], check=True)
    assert sorted(step.stdout.splitlines()) == ["n0 n0", "n1 n1", "n2 n2"]
    box.crash("n1")
    box.mend("n1")
    assert box.run(["srun", "-N3", "-J", "again", "true"], timeout_s=240).returncode == 0
    assert [daemon.name for daemon in box.status().daemons if daemon.state != "running"] == []
