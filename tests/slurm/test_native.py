"""Laws of asking a real Slurm by pyslurm, beside the contract: it tells and does what the commands tell and do; skipped, with the reason, where it is not installed."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.client.errors import RefusedForGood, Unreachable
from ftrun.slurm.commands.cluster import CommandCluster
from ftrun.slurm.native.cluster import ClientInUse, NativeCluster
from ftrun.slurm.sandbox.handle import Sandbox
from tests.slurm import has_pyslurm

pytestmark = has_pyslurm.marks()
ALL_OF_IT = 240.0  # no wait here is so long


class Both:
    """A sandbox, asked in two ways."""

    def __init__(self, box: Sandbox) -> None:
        self.box, self.env = box, box.env()
        self.told: list[ClientInUse] = []
        self.commands = CommandCluster(self.env)
        self.native = NativeCluster(self.commands, self.env, python=has_pyslurm.PYTHON, tell=self.told.append)

    def run(self, *words: str) -> str:
        """What a command of Slurm's prints."""
        return subprocess.run(words, env=self.env, check=True, capture_output=True, text=True).stdout.strip()

    def sbatch(self, *words: str) -> str:
        """The id of a job that sleeps."""
        return self.run("sbatch", "--parsable", "-o", "/dev/null", *words, "--wrap", "sleep 600")

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for it."""
        deadline = time.monotonic() + ALL_OF_IT
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def shown(self, job: str) -> list[str]:
        """All that Slurm shows of a job but what each job has of its own and what only time changes."""
        text = self.run("scontrol", "-o", "show", "job", job)
        own = (
            "JobId=",
            "LastSchedEval=",
            "AccrueTime=",
            "EligibleTime=",
            "SubmitTime=",
            "StdOut=",
            "Priority=",
        )
        return [word for word in text.split() if not word.startswith(own)]


@pytest.fixture
def both(make_sandbox: Callable[..., Sandbox]) -> Iterator[Both]:
    here = Both(make_sandbox(nodes=3, conf={"MessageTimeout": "3"}))
    yield here
    here.native.close()
    assert {one.by.split()[0] for one in here.told} == {"pyslurm"}, here.told


def test_pyslurm_and_the_commands_tell_the_same(both: Both) -> None:
    """Of plain jobs, tasks of arrays (started, waiting, the first), components, refused and ended jobs; of nodes busy in part, drained and idle."""
    held = both.sbatch("-H", "--comment=a|b ftrun:x:1", "-t", "10", "-J", "a b")
    array = both.sbatch("-a", "0-6:2%2", "-w", "n0")
    pair = both.sbatch("-n1", ":", "-n1", "-t", "1-0")
    both.sbatch("-d", f"afterok:{held}")
    bad = both.sbatch("-n1", "-w", "n0", "--begin=now+300")
    both.commands.drain("n2", "ftrun: x, y|z")
    both.commands.cancel(bad)
    both.until(lambda: both.commands.jobs([array])[f"{array}_2"].state is JobState.RUNNING)
    ids = [str(number) for number in range(1, 20)]
    rows = both.commands.jobs(ids)
    assert {f"{array}_{task}" for task in (0, 2, 4, 6)} | {f"{pair}+0", f"{pair}+1"} < set(rows)
    assert both.native.jobs(ids) == rows
    for job in (*ids, f"{array}_4"):
        assert both.native.jobs([job]) == both.commands.jobs([job])
    assert both.native.nodes() == both.commands.nodes()
    assert {row.state for row in both.native.nodes().values()} >= {"mixed"}
    assert both.native.partitions() == both.commands.partitions()


def test_pyslurm_does_to_a_job_what_the_commands_do(both: Both) -> None:
    """Held, kept off nodes, released: the same record, word for word; an array is taken as a whole."""
    begin = time.strftime("--begin=%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 600))
    first, second = (both.sbatch(begin, "-J", "same") for _ in range(2))
    for cluster, job in ((both.commands, first), (both.native, second)):
        cluster.hold(job)
        cluster.exclude(job, ["n1", "n0"])
    assert both.shown(first) == both.shown(second)
    assert "ExcNodeList=n[0-1]" in both.shown(second)
    for cluster, job in ((both.commands, first), (both.native, second)):
        cluster.release(job)
    both.until(
        lambda: both.shown(first) == both.shown(second)
    )  # the reason to wait comes with the scheduler's next round
    array = both.sbatch("-a", "0-3", begin)
    both.native.hold(array)
    assert {row.reason for row in both.commands.jobs([array]).values()} == {"JobHeldAdmin"}  # by root
    both.native.cancel(array)
    both.native.cancel(second)
    both.native.cancel(second)
    both.native.cancel("999999")
    ended = {*both.commands.jobs([array, second]).values()}
    assert {row.state for row in ended} <= {JobState.CANCELLED}
    with pytest.raises(RefusedForGood, match="Invalid job id"):
        both.native.hold("999999")


def test_pyslurm_drains_in_the_name_of_its_user(both: Both) -> None:
    """As scontrol does: reason, user and state are the same, and so they are after the resume."""
    both.commands.drain("n0", "ftrun: one")
    both.native.drain("n1", "ftrun: one")
    shown = [both.run("scontrol", "-o", "show", "node", node) for node in ("n0", "n1")]
    state, reason = (re.compile(rf"\b{key}=(.*?)(?:@\S+)?(?: \w+=|$)") for key in ("State", "Reason"))
    for what in (state, reason):
        assert what.findall(shown[0]) == what.findall(shown[1])
    assert both.native.resume("n0", "ftrun: one")
    assert both.native.resume("n1", "ftrun: one")
    both.until(lambda: all(node.available for node in both.commands.nodes().values()))


def test_pyslurm_holds_up_nobody_but_who_asks_while_the_controller_hangs(both: Both) -> None:
    """Another thread goes on, the question says unreachable in the end, and the child is asked again afterwards."""
    ids = [both.sbatch("-H") for _ in range(2)]
    assert set(both.native.jobs(ids)) == {*ids}
    ticks, over = 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not over.wait(0.02):
            ticks += 1

    thread = threading.Thread(target=tick)
    both.box.pause_controller()
    try:
        thread.start()
        with pytest.raises(Unreachable):
            both.native.jobs(ids)
    finally:
        over.set()
        both.box.continue_controller()
    thread.join()
    assert ticks > 10
    assert set(both.native.jobs(ids)) == {*ids}
