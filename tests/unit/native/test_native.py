"""Laws of asking Slurm by a child process: whatever that does, every question is answered, nothing is done twice, nobody is held up."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ftrun.slurm.client.cluster import JobState, SubmitRequest
from ftrun.slurm.client.errors import OutcomeUnknown, RefusedForGood, Unreachable
from ftrun.slurm.native import cluster as native_cluster
from ftrun.slurm.native import pipe
from ftrun.slurm.native import rows as native_rows
from ftrun.slurm.native.cluster import ClientInUse, NativeCluster
from ftrun.slurm.native.pipe import Child, NoAnswer
from ftrun.slurm.native.rows import CLEAN_S, PAUSES_S, ChildHealth, job_rows, node_rows, unfit
from tests.fake_slurm.cluster import Engine, MemoryCluster

STAND_IN = str(Path(__file__).parents[1].joinpath("native_stand_in.py"))
LONG_S, SHORT_S = 60.0, 0.3  # a limit that nothing reaches; one that what hangs always does


def command(mode: str) -> list[str]:
    """The stand-in, without the time that an interpreter takes for what it does not need."""
    return [sys.executable, "-I", "-S", STAND_IN, mode]


@dataclass
class Place:
    """A cluster that asks a stand-in, with a virtual Slurm in which its job 7 waits; `told` is what was said of who is asked."""

    told: list[ClientInUse] = field(default_factory=list)
    engine: Engine = field(default_factory=lambda: Engine({"main": ("n0", "n1")}))

    def ask(self, mode: str, timeout_s: float = LONG_S) -> NativeCluster:
        """A new one; job 7 of the virtual Slurm is held."""
        commands = MemoryCluster(self.engine)
        env = {"FT_READY": "/nowhere"}
        for _ in range(7 - len(self.engine.jobs)):
            commands.submit(SubmitRequest("t", ("-H", "-J", "good", "--comment=t"), b"#!/bin/sh\n", env, "/"))
        self.cluster = NativeCluster(
            commands, env, timeout_s=timeout_s, tell=self.told.append, argv=command(mode)
        )
        return self.cluster


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Where a release fits that the virtual Slurm does not have, and no line is too long for this test."""
    monkeypatch.setattr(native_rows, "unfit", lambda *_, **__: "")
    monkeypatch.setattr(pipe, "LINE_BYTES_MAX", 4 << 20)
    here = Place()
    yield here
    here.cluster.close()


def test_a_child_that_is_well_is_asked(place: Place) -> None:
    """Its rows are what anybody would see; the virtual Slurm behind it is not asked."""
    cluster = place.ask("well")
    assert set(cluster.nodes()) == {"n0", "n1"}
    assert cluster.jobs(["7", "8"])["7"].reason == "JobHeldUser"
    assert set(cluster.jobs(["7"])) == {"7"}
    assert cluster.partitions()["main"].nodes == ("n0", "n1")
    cluster.release("7")
    assert place.engine.jobs[7].held
    assert place.told == [ClientInUse("pyslurm 22.5.3")]


AT_THE_START = ("die", "rubbish", "list", "killed", "endless", "closed", "cannot", "stranger")
WHEN_ASKED = (
    "die", "rubbish", "list", "half", "killed", "endless", "other-id", "no-id", "nonsense", "wrong-kind", "no-answer", "broken", "unheard",
    "closed",
)  # fmt: skip
WITHOUT_END = ("hang", "half-hang", "stopped", "drip")


@pytest.mark.parametrize("mode", [*AT_THE_START, *(f"{mode}:jobs" for mode in WHEN_ASKED)])
def test_a_read_is_answered_by_the_commands_when_the_child_fails(place: Place, mode: str) -> None:
    """At once, and it is said why; a failure is no answer of Slurm's."""
    assert place.ask(mode).jobs(["7"])["7"].state is JobState.PENDING
    assert place.told[-1].by == "commands"
    assert place.told[-1].why
    assert "\n" not in place.told[-1].why


@pytest.mark.parametrize("mode", WITHOUT_END)
def test_a_child_that_does_not_answer_in_time_is_ended(place: Place, mode: str) -> None:
    """By our timer, whatever it does meanwhile; the question is answered all the same."""
    cluster = place.ask(f"{mode}:jobs", SHORT_S)
    child = Child(
        command("well"), {}, hello_s=LONG_S
    )  # the first answer of a child may take longer on a busy machine
    cluster._child = child
    child.end()
    cluster._child = Child(command(f"{mode}:jobs"), {}, hello_s=LONG_S)
    cluster._child.ask("partitions", LONG_S)
    pid = cluster._child._process.pid
    assert set(cluster.jobs(["7"])) == {"7"}
    assert place.told[-1] == ClientInUse("commands", "no answer within 0.3 s")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_child_that_reads_nothing_is_ended() -> None:
    """A question longer than a pipe is not waited for without end."""
    child = Child(command("deaf"), {}, hello_s=LONG_S)
    with pytest.raises(NoAnswer) as told:
        child.ask("jobs", SHORT_S, ids=list(range(200_000)))
    assert told.value.hung
    assert not child.alive


def test_a_child_that_does_not_greet_is_ended() -> None:
    """It costs the time of a greeting, and leaves no process."""
    with pytest.raises(NoAnswer) as told:
        Child(command("hang"), {}, hello_s=SHORT_S)
    assert told.value.hung


def test_words_aside_are_no_hindrance(place: Place) -> None:
    """More of them than a pipe holds: they are read, and not kept."""
    cluster = place.ask("flood:jobs")
    assert set(cluster.jobs(["7"])) == {"7"}
    assert place.told == [ClientInUse("pyslurm 22.5.3")]


@pytest.mark.parametrize("mode", ["die", "half", "killed", "cannot"])
def test_an_effect_that_has_not_begun_is_done_by_the_commands(place: Place, mode: str) -> None:
    """The child says when it begins; before that nothing can have happened."""
    place.ask(f"{mode}:release").release("7")
    assert not place.engine.jobs[7].held


@pytest.mark.parametrize("mode", ["die", "rubbish", "killed", "half", "closed", "broken", "no-answer"])
def test_an_effect_that_may_have_happened_is_not_done_again(place: Place, mode: str) -> None:
    """It is told as such; the caller looks."""
    cluster = place.ask(f"begun-{mode}:release")
    with pytest.raises(OutcomeUnknown) as told:
        cluster.release("7")
    assert "\n" not in told.value.message
    assert place.engine.jobs[7].held


@pytest.mark.parametrize(("mode", "unknown"), [("hang", False), ("begun-hang", True)])
def test_an_effect_that_hangs_is_told_by_how_far_it_came(place: Place, mode: str, unknown: bool) -> None:
    """Ended before it began it is done by the commands; ended later, nobody knows."""
    for limit_s in (SHORT_S, 3.0, 30.0):  # on a busy machine it may not begin in time
        cluster = place.ask("well", limit_s)
        cluster._child = Child(command(f"{mode}:release"), {}, hello_s=LONG_S)
        cluster._child.ask("partitions", LONG_S)
        place.engine.jobs[7].held, came = True, False
        try:
            cluster.release("7")
        except OutcomeUnknown:
            came = True
        if came is unknown:
            break
    assert came is unknown
    assert place.engine.jobs[7].held is unknown


def test_what_slurm_says_through_the_child_is_slurms_answer(place: Place) -> None:
    """It is not asked again by commands, and not held against the child."""
    refusing = place.ask("begun-refused:release")
    with pytest.raises(RefusedForGood, match="Invalid job id"):
        refusing.release("7")
    refusing.close()
    refusing = place.ask("refused:cancel")
    refusing.cancel("7")  # gone already
    assert place.engine.jobs[7].state is JobState.PENDING
    assert {one.by for one in place.told} == {"pyslurm 22.5.3"}


@pytest.mark.parametrize("waited_s", [0.0, 10.0])
def test_that_slurm_is_away_is_believed_after_a_time_out(place: Place, waited_s: float) -> None:
    """A library that cannot reach it for reasons of its own says so at once: then the commands are asked; an effect, too, that has not begun."""
    away = place.ask("away:jobs")
    clock = itertools.count(1000.0, waited_s)
    away._clock = lambda: next(clock)
    if waited_s:
        with pytest.raises(Unreachable, match="timed out"):
            away.jobs(["7"])
    else:
        assert set(away.jobs(["7"])) == {"7"}
    assert place.told[-1].by == ("pyslurm 22.5.3" if waited_s else "commands")
    away.close()
    away = place.ask("away:release")
    clock = itertools.count(1000.0, waited_s)
    away._clock = lambda: next(clock)
    if waited_s:
        with pytest.raises(Unreachable):
            away.release("7")
    else:
        away.release("7")
    assert place.engine.jobs[7].held is bool(waited_s)
    away.close()
    begun = place.ask("begun-away:cancel")
    with pytest.raises(OutcomeUnknown):
        begun.cancel("7")


def test_what_is_not_for_the_child_goes_to_the_commands(place: Place) -> None:
    """Members of arrays and heterogeneous jobs, signals, an empty list of nodes; and what the child itself leaves to them."""
    cluster = place.ask("other:release")
    cluster.release("7")
    assert not place.engine.jobs[7].held
    cluster._commands.exclude("7", ["n1"])
    cluster.exclude("7", ["n0"])
    assert list(place.engine.jobs[7].excluded) == ["n1"]
    cluster.exclude("7", [])
    assert list(place.engine.jobs[7].excluded) == []
    cluster.cancel("7", signal="USR1")
    with pytest.raises(RefusedForGood, match="7_1"):
        cluster.hold("7_1")
    assert {one.by for one in place.told} == {"pyslurm 22.5.3"}


@pytest.mark.parametrize(
    ("mode", "why"), [("die", "Unable to process configuration file"), ("leaves", "between two questions")]
)
def test_a_child_that_fails_again_and_again_is_left_alone(place: Place, mode: str, why: str) -> None:
    """The first two times another is started soon; then it is not even started for a while, and the questions are answered all the same."""
    cluster = place.ask(f"{mode}:jobs")
    clock = itertools.count(1000.0, 0.5)  # each look at the clock is half a second later
    cluster._clock = lambda: next(clock)
    for _ in range(60):
        assert set(cluster.jobs(["7"])) == {"7"}
        if mode == "leaves" and cluster._child is not None:
            cluster._child._process.wait(LONG_S)
    assert [one.by for one in place.told] == ["pyslurm 22.5.3", "commands"] * 3
    assert place.told[-1].why.endswith(why)
    place.told.clear()
    cluster._argv = tuple(command("well"))
    assert cluster.probe() == ClientInUse("pyslurm 22.5.3")


def test_a_library_of_another_release_is_not_asked(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster says its release, the child its own."""
    monkeypatch.setattr(native_rows, "unfit", unfit)
    assert set(place.ask("newer").nodes()) == {"n0", "n1"}
    assert place.told[-1].by == "commands"
    assert "pyslurm 24.11.0 is not of the cluster's release" in place.told[-1].why


def test_without_a_configuration_nothing_is_started(place: Place, tmp_path: Path) -> None:
    """libslurm would look for it for a minute."""
    cluster = place.ask("hang")
    cluster._env["SLURM_CONF"] = str(tmp_path / "none")
    with pytest.raises(Unreachable, match="SLURM_CONF"):
        cluster.nodes()
    assert cluster._child is None


def test_other_threads_go_on_while_a_child_hangs() -> None:
    """A question holds up who asks it, and nobody else."""
    child = Child(command("hang:jobs"), {}, hello_s=LONG_S)
    ticks = 0
    over, enough = threading.Event(), threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not over.wait(0.01):
            ticks += 1
            if ticks == 5:
                os.kill(child._process.pid, signal.SIGKILL)  # that is enough
                enough.set()

    thread = threading.Thread(target=tick)
    thread.start()
    with pytest.raises(NoAnswer):
        child.ask("jobs", LONG_S)
    over.set()
    thread.join()
    assert enough.is_set()


def real_child(tmp_path: Path, code: str, **env: str) -> Callable[[], Child]:
    """The real child, with a module of this code in the place of pyslurm."""
    (tmp_path / "pyslurm.py").write_text(code)
    argv = [sys.executable, str(Path(native_cluster.__file__).with_name("child.py"))]
    return lambda: Child(argv, {"PYTHONPATH": str(tmp_path), **env}, hello_s=LONG_S)


FATAL = "import os; os.write(2, b'slurm: fatal: no such plugin\\n'); os._exit(1)"
LOUD = (
    "import os; os.write(1, b'words\\n'); print('more'); __version__ = '22.5.3'\n"
    "class RPCError(Exception): pass\n"
    "class Partitions:\n    load = staticmethod(dict)\n"
)


def test_the_real_child_says_why_it_cannot(tmp_path: Path) -> None:
    """A library that ends the process, one that does not load, a configuration that is not there; and what it prints itself is no answer."""
    for code, env, why in (
        (FATAL, {}, r"its process ended \(exit 1\): slurm: fatal: no such plugin"),
        (
            "raise ImportError('libslurmfull.so: cannot open')",
            {},
            "ImportError: libslurmfull.so: cannot open",
        ),
        (LOUD, {"SLURM_CONF": str(tmp_path / "none")}, "cannot be read"),
    ):
        with pytest.raises(NoAnswer, match=why):
            real_child(tmp_path, code, **env)()
    child = real_child(tmp_path, LOUD)()
    assert child.ask("partitions", LONG_S) == []
    child._in.close()  # whoever asked is gone
    assert child._process.wait(LONG_S) == 0
    child.end()
    child = real_child(tmp_path, LOUD)()
    with pytest.raises(NoAnswer, match="AttributeError"):
        child.ask("nodes", LONG_S)
    assert not child.alive


def test_a_failure_is_forgiven_after_a_while_and_several_are_not() -> None:
    """Pauses grow to their last; long after them a failure is the first again. No time is needed for a child that never failed."""
    standing, now_s = ChildHealth(), time.monotonic()
    assert not standing.barred(now_s)
    for pause_s in (*PAUSES_S, PAUSES_S[-1]):
        standing = standing.failed(now_s)
        assert standing.barred(now_s) is (pause_s > 0)
        assert not standing.barred(now_s + pause_s)
        now_s += pause_s
    assert standing.failed(now_s + CLEAN_S + 1).failures == 1


@pytest.mark.parametrize(
    ("version", "cluster", "auto", "fits"),
    [
        ("22.5.3", (22, 5, 8), True, True),
        ("25.11.2", (25, 11, 5), True, True),
        ("24.11.0", (25, 11, 5), True, False),
        ("24.11.0", (25, 11, 5), False, True),
        ("25.11.2", (24, 11, 5), False, False),
        ("", (24, 11, 5), False, False),
        ("mine", (24, 11, 5), False, False),
    ],
)
def test_a_library_fits_its_own_release(
    version: str, cluster: tuple[int, int, int], auto: bool, fits: bool
) -> None:
    """A newer one never does; an older one only where somebody asked for pyslurm by name."""
    assert (unfit(version, cluster, auto=auto) == "") is fits


def test_members_of_arrays_and_heterogeneous_jobs_have_their_own_names() -> None:
    """pyslurm knows no 0: the first task and the first component are those without a number."""

    def told(number: int, **facts: object) -> list[object]:
        names = ("array", "task", "waiting", "het", "offset")
        tail = ["RUNNING", None, "n0", 1, "me", "main", 1, 2, 3, 0, 5, "j", None]
        return [number, *(facts.get(name) for name in names), *tail]

    rows = [
        told(7, array=7, waiting="2,5-6,8-12:2"),
        told(8, array=7),
        told(9, array=7, task=1),
        told(20, het=20),
        told(21, het=20, offset=1),
        told(30),
    ]
    tasks = {"7_0", "7_1", "7_2", "7_5", "7_6", "7_8", "7_10", "7_12"}
    assert set(job_rows(rows, ["7", "20"])) == {*tasks, "20+0", "20+1"}
    assert set(job_rows(rows, ["9", "30", "31"])) == {"7_1", "30"}
    row = job_rows(rows, ["30"])["30"]
    assert (row.reason, row.comment, row.time_limit_s, row.planned_end_s, row.end_time_s) == (
        "None",
        "",
        300,
        3,
        None,
    )
    with pytest.raises(ValueError, match="not a list of tasks"):
        job_rows([told(7, array=7, waiting="2,3,...")], ["7"])


def test_a_node_is_told_as_the_commands_tell_it() -> None:
    """Flags in our words, a reason that holds nothing back left out."""
    rows = node_rows(
        [
            ["n0", "DOWN+DRAIN+NOT_RESPONDING", "bad", 5, ["main"], {"gpu:a100": 8}],
            ["n1", "MIXED", "old", 5, [], {}],
        ]
    )
    assert (rows["n0"].state, sorted(rows["n0"].flags)) == ("down", ["drain", "not_responding"])
    assert (rows["n0"].reason, rows["n0"].reason_time_s, rows["n0"].gres) == ("bad", 5, "gpu:a100:8")
    assert (rows["n1"].reason, rows["n1"].reason_time_s) == ("", None)
    with pytest.raises(TypeError):
        node_rows([["n0", "DOWN", 7, None, [], {}]])
