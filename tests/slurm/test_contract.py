"""What every cluster promises: one suite, on the virtual Slurm and on a real one in the sandbox, by its commands and by pyslurm.

The supervisor is written against these laws alone; where the two worlds differ, the virtual one is wrong.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from ftrun.slurm.client.cluster import Cluster, JobRow, JobState, SubmitRequest
from ftrun.slurm.client.errors import OutcomeUnknown, RefusedForGood, SlurmError, Unreachable
from ftrun.slurm.client.parse import has_token
from ftrun.slurm.commands.cluster import CommandCluster
from ftrun.slurm.native.cluster import ClientInUse, NativeCluster
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.slurm.sandbox.lifecycle import up
from ftrun.supervisor.policy.queue import JobShape, has_shape
from tests.fake_slurm.cluster import Engine, MemoryCluster, Timing
from tests.fake_slurm.faults import crash_controller, requeue
from tests.fake_slurm.records import Launch
from tests.slurm import has_pyslurm

KILL_WAIT_S = 6  # so long a job that resists is seen completing, on a slow machine, too
# What a job of this name does, in the shell and in memory. In the shell it says when it is ready for signals.
READY = ': >"$FT_READY/$SLURM_JOB_ID"'
SHELL = {
    "forever": f"{READY}; sleep 600 & wait",
    "good": "true",
    "bad": "exit 3",
    "hidden": "srun -n1 sh -c 'exit 6'; exit 0",
    "stubborn": f"trap : TERM; {READY}; for i in $(seq 600); do sleep 1 & wait; done",
}


class World(Protocol):
    """A cluster, its time, and the means to hurt it."""

    cluster: Cluster
    nodes: tuple[str, ...]
    env: dict[str, str]

    def wait(self, seconds: float) -> None: ...
    def ready(self, job_id: str) -> bool: ...
    def now(self) -> float: ...
    def requeue(self, job_id: str) -> None: ...
    def crash(self, node: str) -> None: ...
    def mend(self, node: str) -> None: ...
    def controller(self, what: str) -> None: ...


class Memory:
    """The virtual Slurm with the sandbox's time-outs."""

    def __init__(self) -> None:
        self.nodes: tuple[str, ...] = ("n0", "n1", "n2", "n3")
        self.env: dict[str, str] = {}
        timing = Timing(
            schedule_s=0.5, kill_wait_s=KILL_WAIT_S, slurmd_timeout_s=10, requeue_delay_s=6, register_s=1
        )
        self.engine = Engine({"main": self.nodes}, timing=timing, slots=16)
        self.engine.script("good", lambda launch: launch.exit(0))
        self.engine.script("bad", lambda launch: launch.exit(3))
        self.engine.script("hidden", self._hidden)
        self.engine.script("stubborn", self._stubborn)
        self.cluster: Cluster = MemoryCluster(self.engine)

    @staticmethod
    def _hidden(launch: Launch) -> None:
        launch.step(6)
        launch.exit(0)

    @staticmethod
    def _stubborn(launch: Launch) -> None:
        launch.on_signal = lambda _: True

    def wait(self, seconds: float) -> None:
        self.engine.advance(seconds)

    def ready(self, job_id: str) -> bool:
        return True

    def now(self) -> float:
        return self.engine.now()

    def requeue(self, job_id: str) -> None:
        requeue(self.engine, job_id)

    def crash(self, node: str) -> None:
        self.engine.fail_node(node, "crash")

    def mend(self, node: str) -> None:
        self.engine.mend_node(node)

    def controller(self, what: str) -> None:
        if what == "kill":
            crash_controller(self.engine, lose_last=1)
        else:
            self.engine.set_controller({"stop": "down", "pause": "hung"}.get(what, "up"))  # type: ignore[arg-type]


class Real:
    """Slurm in a sandbox of four nodes."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box
        self.nodes = tuple(box.node_names)
        self.env = box.env() | {"FT_READY": str(box.shared)}
        self.cluster: Cluster = CommandCluster(self.env)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def ready(self, job_id: str) -> bool:
        return (self.box.shared / job_id).exists()

    def now(self) -> float:
        return time.time()

    def requeue(self, job_id: str) -> None:
        self.box.run(["scontrol", "requeue", job_id], check=True)

    def crash(self, node: str) -> None:
        self.box.crash(node)

    def mend(self, node: str) -> None:
        self.box.mend(node)

    def controller(self, what: str) -> None:
        {
            "stop": self.box.stop_controller,
            "kill": self.box.kill_controller,
            "start": self.box.start_controller,
            "pause": self.box.pause_controller,
            "continue": self.box.continue_controller,
        }[what]()


class Native(Real):
    """The same, asked by pyslurm. `spoke` says whenever that changes: the commands may never have to help out."""

    def __init__(self, box: Sandbox) -> None:
        super().__init__(box)
        self.spoke: list[ClientInUse] = []
        self.native = NativeCluster(self.cluster, self.env, python=has_pyslurm.PYTHON, tell=self.spoke.append)
        self.cluster = self.native


KINDS = [
    "memory",
    pytest.param("slurm", marks=pytest.mark.slurm),
    pytest.param("pyslurm", marks=has_pyslurm.marks()),
]


@pytest.fixture(scope="module", params=KINDS)
def whole(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "memory":
        yield Memory()
        return
    folder = Path(tempfile.mkdtemp(prefix="ftrun-t-"))
    folder.chmod(0o755)
    box = up(folder, nodes=4, conf={"KillWait": str(KILL_WAIT_S)})
    world = Real(box) if request.param == "slurm" else Native(box)
    try:
        yield world
    finally:
        if isinstance(world, Native):
            world.native.close()
        box.down()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def world(whole: World) -> Iterator[World]:
    """The world with nothing running; it is tidied up afterwards."""
    yield whole
    for row in whole.cluster.find("ftrun:t"):
        whole.cluster.cancel(row.job_id)
    until(whole, lambda: all(row.state.ended for row in whole.cluster.find("ftrun:t")))
    until(
        whole, lambda: all(node.state == "idle" and not node.flags for node in whole.cluster.nodes().values())
    )
    if isinstance(whole, Native):
        assert [one.by.split()[0] for one in whole.spoke] == ["pyslurm"], whole.spoke


def until(world: World, condition: Callable[[], bool], limit_s: float = 240) -> None:
    """Wait for it; the limit is generous, the machine may be busy."""
    deadline = world.now() + limit_s
    while not condition():
        assert world.now() < deadline, f"still not so after {limit_s} s"
        world.wait(0.1)


def submit(world: World, kind: str, *argv: str, token: str = "ftrun:t:0") -> str:
    request = SubmitRequest(
        token=token,
        argv=("-J", kind, "-o", "/dev/null", f"--comment={token}", *argv),
        script=f"#!/bin/sh\n{SHELL[kind]}\n".encode(),
        env=world.env,
        cwd="/",
    )
    return world.cluster.submit(request).job_id


def row(world: World, job_id: str) -> JobRow:
    found = world.cluster.jobs([job_id]).get(job_id)
    assert found is not None
    return found


def becomes(world: World, job_id: str, state: JobState) -> JobRow:
    until(world, lambda: row(world, job_id).state is state)
    return row(world, job_id)


def refused(action: Callable[[], object], kind: type[SlurmError] = RefusedForGood) -> str:
    with pytest.raises(kind) as told:
        action()
    assert told.value.message
    assert "\n" not in told.value.message
    return told.value.message


def test_a_job_is_seen_by_its_id_and_by_its_token(world: World) -> None:
    """The row of a running job says where, since when and for whom, in the words of the submission."""
    began = world.now()
    job_id = submit(world, "forever", "-N2", token="ftrun:t:one")
    seen = becomes(world, job_id, JobState.RUNNING)
    assert [seen] == list(world.cluster.find("ftrun:t:one"))
    assert (seen.job_id, seen.name, seen.partition, seen.comment) == (
        job_id,
        "forever",
        "main",
        "ftrun:t:one",
    )
    assert len(seen.nodes) == seen.node_count == 2
    assert set(seen.nodes) <= set(world.nodes)
    assert seen.restarts == 0
    assert seen.submit_time_s is not None
    assert seen.start_time_s is not None
    assert began - 2 <= seen.submit_time_s <= seen.start_time_s <= world.now() + 1
    assert seen.end_time_s is None


def test_a_token_is_found_as_a_whole_or_as_the_head_of_a_longer_one(world: World) -> None:
    """Attempt 1 is not mistaken for attempt 12; the run's token finds both."""
    first = submit(world, "good", "-H", token="ftrun:t:run:1")
    twelfth = submit(world, "good", "-H", "--comment=of the user ftrun:t:run:12", token="")
    found = {
        token: [seen.job_id for seen in world.cluster.find(token)]
        for token in ("ftrun:t:run:1", "ftrun:t:run")
    }
    assert found["ftrun:t:run:1"] == [first]
    assert sorted(found["ftrun:t:run"]) == sorted([first, twelfth])
    assert world.cluster.find("ftrun:t:ru") == ()


def test_missing_ids_are_left_out(world: World) -> None:
    """One call for many ids; one that Slurm does not know is absent, also when it is the only one."""
    job_ids = [submit(world, "good", "-H") for _ in range(3)]
    assert set(world.cluster.jobs([*job_ids, "999999"])) == set(job_ids)
    assert world.cluster.jobs(["999999"]) == {}
    assert world.cluster.jobs([]) == {}
    assert world.cluster.details("999999") is None


def test_an_ended_job_tells_its_exit_code(world: World) -> None:
    """Failed with the script's own code, and no node is held any more."""
    job_id = submit(world, "bad")
    ended = becomes(world, job_id, JobState.FAILED)
    assert ended.reason == "NonZeroExitCode"
    assert ended.end_time_s is not None
    details = world.cluster.details(job_id)
    assert details is not None
    assert (details.exit_code, details.exit_signal, details.state) == (3, 0, JobState.FAILED)


def test_a_failed_step_shows_behind_a_script_that_exits_0(world: World) -> None:
    """COMPLETED 0:0, and DerivedExitCode has the step's code."""
    job_id = submit(world, "hidden")
    becomes(world, job_id, JobState.COMPLETED)
    details = world.cluster.details(job_id)
    assert details is not None
    assert (details.exit_code, details.derived_exit_code) == (0, 6)


def test_cancelling_ends_a_job_wherever_it_is(world: World) -> None:
    """Pending, running or gone already: afterwards it is over, and none of it is an error."""
    running, held = submit(world, "forever"), submit(world, "forever", "-H")
    becomes(world, running, JobState.RUNNING)
    for job_id in (running, held):
        world.cluster.cancel(job_id)
        becomes(world, job_id, JobState.CANCELLED)
        world.cluster.cancel(job_id)
    world.cluster.cancel("999999")


def test_a_job_that_resists_sigterm_is_completing_and_live(world: World) -> None:
    """Between the cancel and SIGKILL the job still holds its nodes."""
    job_id = submit(world, "stubborn")
    becomes(world, job_id, JobState.RUNNING)
    until(world, lambda: world.ready(job_id))
    world.cluster.cancel(job_id)
    assert becomes(world, job_id, JobState.COMPLETING).state.live
    becomes(world, job_id, JobState.CANCELLED)


def test_a_signal_to_script_and_steps_is_no_cancel(world: World) -> None:
    """Killed by a signal through scancel, the job has failed by that signal."""
    job_id = submit(world, "forever")
    becomes(world, job_id, JobState.RUNNING)
    until(world, lambda: world.ready(job_id))
    world.cluster.cancel(job_id, signal="USR1", full=True)
    becomes(world, job_id, JobState.FAILED)
    details = world.cluster.details(job_id)
    assert details is not None
    assert details.exit_signal == 10


def test_a_held_job_waits_for_its_release(world: World) -> None:
    """Held at submission or later, it says so and starts only when released."""
    job_id = submit(world, "good", "-H")
    until(world, lambda: row(world, job_id).reason == "JobHeldUser")
    world.wait(1.5)
    assert row(world, job_id).state is JobState.PENDING
    world.cluster.release(job_id)
    becomes(world, job_id, JobState.COMPLETED)
    later = submit(world, "good", "--begin=now+600")
    world.cluster.hold(later)
    assert row(world, later).reason in {"JobHeldUser", "JobHeldAdmin"}
    refused(lambda: world.cluster.hold("999999"))


def test_a_pending_job_can_ask_for_less_and_stays_what_it_is(world: World) -> None:
    """Nodes, tasks and CPUs are shown as they were told; submit time and id stay; it starts so, and is refused once running."""
    job_id = submit(world, "forever", "-H", "-N3")
    before = row(world, job_id)
    world.cluster.reshape(job_id, nodes=1, tasks=1, cpus=1)
    details = world.cluster.details(job_id)
    assert details is not None
    assert has_shape(details.fields, JobShape(1, 1, 1))
    assert row(world, job_id).submit_time_s == before.submit_time_s
    world.cluster.release(job_id)
    assert len(becomes(world, job_id, JobState.RUNNING).nodes) == 1
    refused(lambda: world.cluster.reshape(job_id, nodes=1, tasks=1, cpus=1))
    refused(lambda: world.cluster.reshape("999999", nodes=1, tasks=1, cpus=1))
    assert world.cluster.reserved("nobody") == ()
    assert world.cluster.step_files("999999") == ()


def test_a_pending_job_can_be_kept_off_nodes(world: World) -> None:
    """The exclude list is set as a whole, can be emptied, binds at the start, and is refused once running."""
    first, second, *_ = world.nodes
    job_id = submit(world, "forever", "-H", f"--exclude={first}")
    for wanted in ([], [first, second]):
        world.cluster.exclude(job_id, wanted)
        details = world.cluster.details(job_id)
        assert details is not None
        assert list(details.excluded) == wanted
    world.cluster.release(job_id)
    assert set(becomes(world, job_id, JobState.RUNNING).nodes).isdisjoint({first, second})
    refused(lambda: world.cluster.exclude(job_id, [first]))
    refused(lambda: world.cluster.exclude("999999", [first]))


def test_a_drain_bears_its_reason_and_never_overwrites_another(world: World) -> None:
    """Drain, see it, repeat it, keep the first reason; only who knows the whole reason rewords it or gives the node back."""
    node = world.nodes[-1]
    before = world.cluster.nodes([node])[node]
    assert before.available
    world.cluster.drain(node, "ftrun: xid 79, a|b [c]")
    drained = world.cluster.nodes([node])[node]
    assert (drained.drained, drained.responding, drained.available) == (True, True, False)
    assert drained.reason == "ftrun: xid 79, a|b [c]"
    assert drained.reason_time_s is not None
    assert abs(drained.reason_time_s - world.now()) < 120
    world.cluster.drain(node, "ftrun: xid 79, a|b [c]")
    assert "xid 79" in refused(lambda: world.cluster.drain(node, "another"))
    for another in ("admin:", "ftrun:", "ftrun: xid 79, a|b [c] "):
        assert world.cluster.resume(node, another) is False
        assert world.cluster.reword(node, another, "ftrun: mine") is False
    assert world.cluster.nodes([node])[node].reason == "ftrun: xid 79, a|b [c]"
    assert world.cluster.nodes([node])[node].drained
    assert world.cluster.reword(node, "ftrun: xid 79, a|b [c]", "ftrun: xid 79; still bad") is True
    assert world.cluster.resume(node, "ftrun: xid 79, a|b [c]") is False
    assert world.cluster.resume(node, "ftrun: xid 79; still bad") is True
    until(world, lambda: world.cluster.nodes([node])[node].available)
    assert world.cluster.nodes([node])[node].reason == ""
    assert world.cluster.resume(node, "ftrun: xid 79; still bad") is False
    assert world.cluster.reword(node, "ftrun: xid 79; still bad", "ftrun: mine") is False
    refused(lambda: world.cluster.drain("nowhere", "ftrun: x"))


def test_where_a_job_was_is_told_with_its_user(world: World) -> None:
    """Nodes, times and the number of the user, while it runs and afterwards; nothing for what never started or is unknown."""
    node, waiting = world.nodes[0], submit(world, "forever", "-H")
    job_id = submit(world, "forever", "-w", node)
    becomes(world, job_id, JobState.RUNNING)
    (stay,) = world.cluster.stays(job_id)
    assert (stay.job_id, stay.nodes, stay.end_s) == (job_id, (node,), None)
    assert stay.uid >= 0
    assert abs(stay.start_s - world.now()) < 120
    world.cluster.cancel(job_id)
    becomes(world, job_id, JobState.CANCELLED)
    (after,) = world.cluster.stays(job_id)
    assert (after.nodes, after.start_s, after.uid) == (stay.nodes, stay.start_s, stay.uid)
    assert after.end_s is not None
    assert after.end_s >= after.start_s
    assert (*world.cluster.stays(waiting), *world.cluster.stays("999999")) == ()


def test_nodes_and_partitions_are_named(world: World) -> None:
    """All nodes, or those asked for; a partition knows its nodes; configuration is told in seconds."""
    assert set(world.cluster.nodes()) == set(world.nodes)
    assert set(world.cluster.nodes([world.nodes[0], "nowhere"])) == {world.nodes[0]}
    assert world.cluster.nodes([]) == {}
    main = world.cluster.partitions()["main"]
    assert (main.up, main.default, main.nodes) == (True, True, world.nodes)
    facts = world.cluster.facts()
    assert (facts.slurmd_timeout_s, facts.kill_wait_s, facts.requeue_default) == (10, KILL_WAIT_S, True)
    assert facts.version >= (22, 5, 0)
    assert facts.max_script_size_bytes >= 1 << 20
    assert world.cluster.ping() is True
    rights = world.cluster.rights()
    assert rights.may_drain
    assert rights.why


def test_a_cluster_without_topology_tells_of_none(world: World) -> None:
    """No switch and no block is told of, and that is no error."""
    assert not world.cluster.topology()


def test_dependents_are_found_and_moved(world: World) -> None:
    """A job that waits for attempt 1 is told to wait for attempt 2 instead, and does; met conditions drop out."""
    first, second = submit(world, "forever"), submit(world, "forever")
    waiting = submit(world, "good", f"--dependency=afterok:{first},singleton")
    assert world.cluster.dependents(first) == {waiting: f"afterok:{first}"}
    assert world.cluster.dependents(second) == {}
    world.cluster.set_dependency(waiting, f"afterany:{second}")
    assert world.cluster.dependents(first) == {}
    assert world.cluster.dependents(second) == {waiting: f"afterany:{second}"}
    world.cluster.cancel(first)
    becomes(world, first, JobState.CANCELLED)
    world.wait(1.5)
    assert row(world, waiting).state is JobState.PENDING
    world.cluster.cancel(second)
    becomes(world, waiting, JobState.COMPLETED)
    refused(lambda: world.cluster.set_dependency(waiting, f"afterok:{first}"))


def test_the_owner_replaces_the_comment_of_a_job_that_lives(world: World) -> None:
    """Words and a token; once the job has ended, Slurm refuses. Its script comes back as it was submitted."""
    job = submit(world, "forever")
    world.cluster.set_comment(job, "mine own ftrun:x-0001:0a1b2c3d:1")
    assert row(world, job).comment == "mine own ftrun:x-0001:0a1b2c3d:1"
    assert world.cluster.batch_script(job).startswith(b"#!/bin/")
    world.cluster.cancel(job)
    becomes(world, job, JobState.CANCELLED)
    refused(lambda: world.cluster.set_comment(job, "late"))


def test_a_queue_is_told_of_only_where_jobs_wait_for_nodes(world: World) -> None:
    """Not one that is held, nor one that could run; whose the jobs are does not matter."""
    held = submit(world, "forever", "-H")
    until(world, lambda: row(world, held).reason == "JobHeldUser")
    assert not world.cluster.contended(["main"])
    assert not world.cluster.contended([])
    everything = ("-N", str(len(world.nodes)), "--exclusive")
    jobs = [held]

    def more() -> bool:
        jobs.append(submit(world, "forever", *everything))
        world.wait(1.0)
        return world.cluster.contended(["main"])

    until(world, more)
    for job in jobs:
        world.cluster.cancel(job)
    until(world, lambda: not world.cluster.contended(["main"]))


def test_a_dependency_that_cannot_be_met_says_so(world: World) -> None:
    """afterok on a failed job waits for ever, with the reason."""
    first = submit(world, "bad", "-H")
    waiting = submit(world, "good", f"--dependency=afterok:{first}")
    world.cluster.release(first)
    becomes(world, first, JobState.FAILED)
    until(world, lambda: row(world, waiting).reason == "DependencyNeverSatisfied")
    assert row(world, waiting).state is JobState.PENDING


def test_a_requeue_is_a_new_launch_of_the_same_job(world: World) -> None:
    """Same id, same token, one more restart, a new submit time, and pending until the delay is over."""
    job_id = submit(world, "forever")
    first = becomes(world, job_id, JobState.RUNNING)
    world.wait(1)
    world.requeue(job_id)
    again = becomes(world, job_id, JobState.PENDING)
    assert again.restarts == 1
    assert again.nodes == ()
    assert again.comment == first.comment
    assert again.submit_time_s is not None
    assert first.submit_time_s is not None
    assert again.submit_time_s > first.submit_time_s
    becomes(world, job_id, JobState.RUNNING)


def test_refusals_for_good_are_told_apart(world: World) -> None:
    """A wrong request is refused in one line. Slurm may keep a failed job of it in sight; it never had a node."""
    everything = ",".join(world.nodes)
    for wrong in (
        ["-p", "nowhere"],
        ["-w", "nowhere"],
        ["--nodes=none"],
        ["-N1", f"--exclude={everything}"],
        ["--dependency=afterwards:1"],
    ):
        refused(lambda wrong=wrong: submit(world, "good", *wrong, token="ftrun:t:refused"))  # type: ignore[misc]
    assert all(
        seen.state is JobState.FAILED and not seen.nodes for seen in world.cluster.find("ftrun:t:refused")
    )


def test_a_crashed_node_takes_its_jobs_with_it(world: World) -> None:
    """Slurm marks the node, requeues the whole job, or ends it as NODE_FAIL where requeue is off; the node can be drained."""
    first, second, third, fourth = world.nodes
    requeued = submit(world, "forever", "-N2", "-w", f"{first},{second}")
    failed = submit(world, "forever", "-w", second, "--no-requeue")
    safe = submit(world, "forever", "-w", third)
    headless = submit(world, "forever", "-N2", "-w", f"{second},{fourth}", "--no-kill")
    for job_id in (requeued, failed, safe, headless):
        becomes(world, job_id, JobState.RUNNING)
    world.crash(second)
    until(world, lambda: world.cluster.nodes([second])[second].state == "down")
    assert not world.cluster.nodes([second])[second].responding
    assert becomes(world, failed, JobState.NODE_FAIL).nodes == (second,)
    assert becomes(world, requeued, JobState.PENDING).restarts == 1
    assert row(world, safe).state is JobState.RUNNING
    # --no-kill: one node less, though its batch script ran on it, which Slurm starts nowhere else
    assert (row(world, headless).state, row(world, headless).nodes) == (JobState.RUNNING, (fourth,))
    world.cluster.cancel(headless)
    world.cluster.drain(second, "ftrun: x")  # "Not responding" is slurmctld's own mark, nobody's reason
    assert world.cluster.nodes([second])[second].reason == "ftrun: x"
    refused(lambda: world.cluster.drain(second, "ftrun: y"))
    world.cluster.cancel(requeued)
    world.mend(second)
    world.cluster.resume(second, "ftrun: x")
    until(world, lambda: world.cluster.nodes([second])[second].available)


def test_a_controller_that_is_gone_changes_nothing(world: World) -> None:
    """Reads, effects and submissions all say unreachable; the jobs are the same when it is back."""
    job_id = submit(world, "forever")
    becomes(world, job_id, JobState.RUNNING)
    world.controller("stop")
    try:
        assert world.cluster.ping() is False
        refused(lambda: world.cluster.jobs([job_id]), Unreachable)
        refused(lambda: world.cluster.cancel(job_id), Unreachable)
        refused(lambda: submit(world, "good", token="ftrun:t:gone"), Unreachable)
    finally:
        world.controller("start")
    assert row(world, job_id).state is JobState.RUNNING
    assert world.cluster.find("ftrun:t:gone") == ()


def test_a_submission_to_a_hung_controller_is_found_by_its_token(world: World) -> None:
    """No answer is no refusal: the outcome is unknown, and the token tells later that the job exists, once."""
    world.controller("pause")
    try:
        refused(lambda: submit(world, "good", "-H", token="ftrun:t:hung"), OutcomeUnknown)
        refused(lambda: world.cluster.find("ftrun:t:hung"), Unreachable)
    finally:
        world.controller("continue")
    until(world, lambda: len(world.cluster.find("ftrun:t:hung")) == 1)
    assert [seen.reason for seen in world.cluster.find("ftrun:t:hung")] == ["JobHeldUser"]


def test_an_id_alone_is_no_identity(world: World) -> None:
    """A controller killed after its acknowledgement may forget the job and give its id away: the token tells."""
    lost = submit(world, "forever", token="ftrun:t:lost")
    world.controller("kill")
    world.controller("start")
    until(world, world.cluster.ping)
    other = submit(world, "good", "-H", token="ftrun:t:other")
    mine = world.cluster.find("ftrun:t:lost")
    assert [seen.job_id for seen in mine] in ([], [lost])
    assert [seen.job_id for seen in world.cluster.find("ftrun:t:other")] == [other]
    seen = world.cluster.jobs([lost]).get(lost)
    assert (seen is not None and has_token(seen.comment, "ftrun:t:lost")) == bool(mine)
