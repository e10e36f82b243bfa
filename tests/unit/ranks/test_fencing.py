"""Laws of fencing: what an earlier start left is ended, and nothing else is touched; with real processes. (I/O)"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftrun.hooks import main
from ftrun.hooks.bundle.zipapp import build_zipapp
from ftrun.hooks.ranks import fence_daemon, kill_stale
from ftrun.hooks.runtime import procfs
from ftrun.hooks.runtime.host import UsageError
from ftrun.hooks.runtime.start_processes import (
    PresentStart,
    Process,
    Start,
    job_of_claim,
    start_of,
    starts_by_relatives,
    token_of,
)

JOB = str(70_000_000 + os.getpid())  # no other test, and no Slurm here, has it
MEMORY_MAX_KIB = 12 * 1024
LOOK_MAX = 0.05  # of what it costs to start an interpreter
# The guard of the packed hooks, which looks ten times as often.
QUICK = "import sys; sys.path.insert(0, sys.argv.pop(1)); from ftrun.hooks import main; from ftrun.hooks.ranks import fence_daemon; fence_daemon.PERIOD_S = 0.1; sys.exit(main.main(sys.argv[1:]))"


class Node:
    """A run's folder, and the processes that a test put on this machine. They are in a group of their own,
    whose leader lives and says nothing, as a batch script's does. In the group of the tests they would make
    those their kin, where whoever started the tests has gone: a sweep would end the other workers.
    """

    def __init__(self, folder: Path) -> None:
        self.run = folder / "runs" / "r1"
        self.attempt = self.run / "attempts" / "2"
        self.attempt.mkdir(parents=True)
        self.started: list[subprocess.Popen[bytes]] = []
        self._leader = subprocess.Popen(["sleep", "600"], process_group=0)

    def rank(
        self,
        token: str | None,
        *,
        words: list[str] | None = None,
        session: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """A process of the start `token`, asleep unless `words` say otherwise; returns when its program runs."""
        own = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": JOB, "FTRUN_ATTEMPT_DIR": str(self.attempt)}
        own |= {} if token is None else {"FTRUN_START_TOKEN": token}
        one = subprocess.Popen(
            words or ["sleep", "300"],
            env={**own, **(env or {})},
            start_new_session=session,
            process_group=None if session else self._leader.pid,
        )
        self.started.append(one)
        return one

    def here(self, token: str) -> PresentStart:
        return kill_stale.present_start(str(self.attempt), token, JOB, "")

    def point(self, token: str) -> None:
        """`current`, replaced as batch.sh does it."""
        draft = self.attempt / "draft"
        draft.symlink_to(token)
        draft.replace(self.attempt / "current")

    def clear(self) -> None:
        for one in self.started:
            with contextlib.suppress(OSError):
                os.kill(one.pid, signal.SIGKILL)
            one.wait()
        kill_stale.kill_stale(self.here("closed"), 0.0)  # what those had started
        self._leader.kill()
        self._leader.wait()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    one = Node(tmp_path)
    yield one
    one.clear()


def _until(ready: Callable[[], bool], limit_s: float = 60.0) -> bool:
    give_up = time.monotonic() + limit_s
    while time.monotonic() < give_up:
        if ready():
            return True
        time.sleep(0.01)
    return ready()


def _is_gone(pid: int) -> bool:
    return pid not in procfs.user_processes()


def test_what_an_earlier_start_left_is_ended(node: Node) -> None:
    """Every process with a lower token of this attempt and job dies, and is told."""
    old = [node.rank("0.1"), node.rank("0.1", session=True), node.rank("0.2")]

    swept = kill_stale.kill_stale(node.here("0.3"), 0.5)

    assert sorted(one.pid for one in old) == swept.killed
    assert [] == swept.left
    assert [-signal.SIGTERM] * 3 == [one.wait() for one in old]


@pytest.mark.parametrize(
    ("token", "variables"),
    [
        ("0.2", {}),
        ("0.3", {}),
        ("1.1", {}),
        (None, {}),
        ("none", {}),
        ("0.1", {"SLURM_JOB_ID": "1"}),
        ("0.1", {"SLURM_JOB_ID": ""}),
        ("0.1", {"FTRUN_ATTEMPT_DIR": "/elsewhere/runs/r1/attempts/2"}),
        ("0.1", {"FTRUN_ATTEMPT_DIR": "/elsewhere"}),
        ("0.1", {"FTRUN_HOOK": "post-hook"}),
        ("0.1", {"SLURM_CLUSTER_NAME": "other"}),
    ],
    ids=[
        "present", "later", "later launch", "no token", "no token of ours", "another job", "no job", "another run", "no run",
        "a hook of the user", "another cluster",
    ],
)  # fmt: skip
def test_nothing_else_is_touched(node: Node, token: str | None, variables: dict[str, str]) -> None:
    """The present and later starts, other jobs and runs, and the user's own commands around the script stay."""
    other = node.rank(token, env=variables)
    here = node.here("0.2")
    here.cluster = "here"

    assert [] == kill_stale.kill_stale(here, 0.0).killed
    assert other.poll() is None


def test_the_agent_and_a_supervisor_are_spared(node: Node) -> None:
    """What decides about starts is of none, whatever it inherited, and so is what it calls."""
    agent = node.rank("0.1", words=["sh", "-c", "sleep 300; :", "python", "-m", "ftrun.supervisor.agent"])
    assert _until(lambda: any(_is_below(one, agent.pid) for one in procfs.user_processes().values()))

    assert [] == kill_stale.kill_stale(node.here("0.2"), 0.0).killed
    assert agent.poll() is None


def test_a_process_without_its_environment_goes_with_its_kin(node: Node) -> None:
    """`env -i` below an old rank, in its group, even after that rank has gone, does not hide a process."""
    shell = "env -i sleep 301 & env -i setsid sleep 302 & sleep 300 & exec sleep 303"
    rank = node.rank("0.1", words=["sh", "-c", shell], session=True)
    assert _until(
        lambda: len([1 for one in procfs.user_processes().values() if _is_below(one, rank.pid)]) == 3
    )
    below = [one.pid for one in procfs.user_processes().values() if _is_below(one, rank.pid)]

    killed = kill_stale.kill_stale(node.here("0.2"), 0.5).killed

    assert {rank.pid, *below} <= set(killed)
    assert all(map(_is_gone, below))


def _is_below(one: Process, pid: int) -> bool:
    return one.parent == pid and one.name == "sleep"


def test_what_ignores_term_is_killed_after_the_grace(node: Node, tmp_path: Path) -> None:
    """The grace is as long as asked for, and no process outlives it by ignoring a signal."""
    stubborn = node.rank(
        "0.1", words=["sh", "-c", f"trap '' TERM; touch {tmp_path}/on; while :; do sleep 0.05; done"]
    )
    assert _until((tmp_path / "on").exists)
    began_s = time.monotonic()

    swept = kill_stale.kill_stale(node.here("0.2"), 0.4)

    assert stubborn.pid in swept.killed
    assert -signal.SIGKILL == stubborn.wait()
    assert 0.4 <= time.monotonic() - began_s


def test_a_stopped_rank_dies_without_waking(node: Node, tmp_path: Path) -> None:
    """A frozen rank gets KILL at once: a TERM would wait for it, and its handler would write."""
    code = f"import signal, time, pathlib\nsignal.signal(15, lambda *_: pathlib.Path('{tmp_path}/woke').touch())\npathlib.Path('{tmp_path}/on').touch()\ntime.sleep(300)"
    frozen = node.rank("0.1", words=[sys.executable, "-c", code])
    assert _until((tmp_path / "on").exists)
    frozen.send_signal(signal.SIGSTOP)
    assert _until(lambda: procfs.user_processes()[frozen.pid].state == "T")

    swept = kill_stale.kill_stale(node.here("0.2"), 5.0)

    assert [frozen.pid] == swept.killed
    assert not (tmp_path / "woke").exists()


def test_what_forks_while_it_is_ended_is_found_again(node: Node, tmp_path: Path) -> None:
    """A launcher that answers TERM with new ranks does not get away."""
    shell = f"trap 'for i in 1 2 3; do setsid sleep 300 & done; touch {tmp_path}/forked; exit' TERM; touch {tmp_path}/on; while :; do sleep 0.05; done"
    launcher = node.rank("0.1", words=["sh", "-c", shell])
    assert _until((tmp_path / "on").exists)

    swept = kill_stale.kill_stale(node.here("0.2"), 1.0)

    assert (tmp_path / "forked").exists()
    assert launcher.pid in swept.killed
    assert len(swept.killed) >= 4
    assert [] == [
        one for one, start in kill_stale.processes_of_starts(node.here("0.2")).values() if start.job == JOB
    ]


def test_ranks_of_an_earlier_attempt_are_known_by_its_claim(node: Node) -> None:
    """Another attempt of this run had another job: the one that its claim names, no other that inherited its variables."""
    earlier = node.run / "attempts" / "1"
    earlier.mkdir()
    (earlier / "claim").symlink_to("some.cluster.41.0.0123abcd")
    (earlier / "claim.1").symlink_to("closed.7")
    of_it = node.rank("0.9", env={"FTRUN_ATTEMPT_DIR": str(earlier), "SLURM_JOB_ID": "41"})
    inherited = node.rank("0.9", env={"FTRUN_ATTEMPT_DIR": str(earlier), "SLURM_JOB_ID": "42"})
    later = node.rank(
        "0.1", env={"FTRUN_ATTEMPT_DIR": str(node.run / "attempts" / "3"), "SLURM_JOB_ID": "41"}
    )

    assert [of_it.pid] == kill_stale.kill_stale(node.here("0.1"), 0.5).killed
    assert (None, None) == (inherited.poll(), later.poll())


def test_a_number_that_another_process_has_by_now_is_left_alone(node: Node) -> None:
    """A process is its number and when it began."""
    other = node.rank("0.1")
    found = procfs.user_processes()[other.pid]

    assert [] == kill_stale.terminate([found._replace(began=found.began - 1)], 0.0)
    assert other.poll() is None


def test_what_cannot_die_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in the kernel's hands is named with its state, and does not hold the sweep."""
    stuck = node.rank("0.1")
    monkeypatch.setattr(kill_stale, "_signal", lambda one, number: None)
    monkeypatch.setattr(kill_stale, "DEATH_S", 0.1)

    swept = kill_stale.kill_stale(node.here("0.2"), 0.1)
    told = swept.told("n7")

    assert {"node": "n7", "killed": [], "left": [stuck.pid]} == {
        key: told[key] for key in ("node", "killed", "left")
    }
    assert [f"{stuck.pid} sleep S"] == told["why"]


def test_an_environment_that_does_not_answer_hides_only_itself(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process that holds its reader in the kernel costs a second, and not the others."""
    old = [node.rank("0.1") for _ in range(3)]
    hung = sorted(one.pid for one in old)[1]
    plain = procfs.read_text

    def read(path: str) -> str:
        if path == f"/proc/{hung}/environ":
            time.sleep(60)
        return plain(path)

    monkeypatch.setattr(procfs, "read_text", read)

    killed = kill_stale.kill_stale(node.here("0.2"), 0.0).killed

    assert {one.pid for one in old} - {hung} <= set(killed)


def test_the_line_of_a_sweep(
    node: Node, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line of JSON with node, killed and left; a spare is told why it is unfit."""
    monkeypatch.setenv("SLURM_JOB_ID", JOB)
    old = node.rank("0.1")
    words = [
        "sweep", "--attempt-folder", str(node.attempt), "--token", "0.2", "--node", "n3", "--spare-check",
    ]  # fmt: skip

    assert 0 == main.main(words)
    assert {"node": "n3", "killed": [old.pid], "left": [], "unfit": ""} == json.loads(capfd.readouterr().out)


@pytest.mark.parametrize(
    "words", [[], ["--attempt-folder", "/x"], ["--attempt-folder", "/x", "--token", "0.1"]]
)
def test_wrong_usage_of_a_sweep_is_told_in_one_line(
    words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """A folder that is none of an attempt, or a missing word, ends with 2 and kills nothing."""
    assert 2 == main.main(["sweep", *words])
    assert 1 == capfd.readouterr().err.count("\n")


def test_no_job_is_no_proof(node: Node) -> None:
    """Outside a job nothing of this attempt is known to be ours."""
    old = node.rank("0.1")

    assert [] == kill_stale.kill_stale(kill_stale.present_start(str(node.attempt), "0.2", "", ""), 0.0).killed
    assert old.poll() is None


_ROW = st.fixed_dictionaries(
    {
        "token": st.sampled_from(["0.1", "0.2", "0.3", "1.1", "", "0.x"]),
        "job": st.sampled_from([JOB, JOB, JOB, "1"]),
        "place": st.sampled_from(["own", "own", "earlier", "later", "other run"]),
        "hook": st.booleans(),
        "how": st.sampled_from(["plain", "session", "deaf", "stopped", "emptied child"]),
    }
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_ROW, min_size=1, max_size=7))
def test_whatever_runs_beside_each_other_only_the_old_dies(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    """Of any mixture of processes exactly those of earlier starts are ended, with their kin, however they behave."""
    one = Node(tmp_path_factory.mktemp("mixture"))
    places = {
        "own": one.attempt, "earlier": one.run / "attempts" / "1", "later": one.run / "attempts" / "3",
        "other run": one.run.parent / "r2" / "attempts" / "2",
    }  # fmt: skip
    places["earlier"].mkdir()
    (places["earlier"] / "claim").symlink_to(f"c.{JOB}.0.ab")
    try:
        expected = {_started(one, row, str(places[row["place"]])).pid: _is_old(row) for row in rows}
        swept = kill_stale.kill_stale(one.here("0.3"), 0.1)

        assert {pid for pid, is_old in expected.items() if is_old} == {
            pid for pid in swept.killed if pid in expected
        }
        assert [] == swept.left
        assert all(child.poll() is None for child in one.started if not expected[child.pid])
    finally:
        one.clear()


def _is_old(row: dict[str, Any]) -> bool:
    if row["hook"] or row["job"] != JOB or token_of(row["token"]) is None:
        return False
    return row["place"] == "earlier" or (row["place"] == "own" and row["token"] in ("0.1", "0.2"))


def _started(node: Node, row: dict[str, Any], place: str) -> subprocess.Popen[bytes]:
    words = {
        "deaf": ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"],
        "emptied child": ["sh", "-c", "env -i sleep 77 & wait"],
    }
    env = {"SLURM_JOB_ID": row["job"], "FTRUN_ATTEMPT_DIR": place} | (
        {"FTRUN_HOOK": "pre-hook"} if row["hook"] else {}
    )
    one = node.rank(row["token"], words=words.get(row["how"]), session=row["how"] != "plain", env=env)
    if row["how"] == "stopped":
        one.send_signal(signal.SIGSTOP)
    return one


_STARTS = st.builds(
    Start,
    run=st.sampled_from(["/a", "/b"]),
    attempt=st.integers(1, 3),
    token=st.tuples(st.integers(0, 2), st.integers(1, 3)),
    job=st.sampled_from(["1", "2", "3"]),
    cluster=st.sampled_from(["", "c", "d"]),
    hook=st.sampled_from(["", "pre-hook"]),
)


@given(_STARTS, _STARTS)
def test_two_starts_never_fence_each_other(one: Start, other: Start) -> None:
    """Of two starts at most one is earlier than the other, none than itself, and never across runs."""
    claims = {1: ["1"], 2: ["2"], 3: ["3"]}

    def is_earlier(mine: Start, theirs: Start) -> bool:
        here = PresentStart([mine.run], mine.attempt, mine.token, mine.job, mine.cluster)
        return here.is_earlier(theirs, lambda attempt: claims[attempt])

    assert not (is_earlier(one, other) and is_earlier(other, one))
    assert not is_earlier(one, one)
    assert not (is_earlier(one, other) and (one.run != other.run or other.hook))


@given(st.text(max_size=12), st.text(max_size=30))
def test_any_text_is_a_token_or_none(token: str, folder: str) -> None:
    """What stands in an environment is anybody's, and is read as a start or as nothing."""
    found = token_of(token)
    assert found is None or f"{found[0]}.{found[1]}" == ".".join(
        part.lstrip("0") or "0" for part in token.strip().split(".")
    )
    assert start_of({"FTRUN_ATTEMPT_DIR": folder, "FTRUN_START_TOKEN": token}) is None
    assert "" == job_of_claim("closed.12.3.4")


def test_a_group_that_disagrees_says_nothing() -> None:
    """A process without a word of its own is of no start where its group holds two."""
    table = {pid: Process(pid, 1, 9, "S", pid, "p") for pid in (2, 3, 4)}
    old, new = Start("/a", 1, (0, 1), "5"), Start("/a", 1, (0, 2), "5")

    assert 4 not in starts_by_relatives(table, {2: old, 3: new, 4: None}, {})
    assert old == starts_by_relatives(table, {2: old, 3: old, 4: None}, {})[4]


def test_an_old_guest_does_not_make_a_group_old() -> None:
    """The batch script leads a group in which an old srun may be: neither it nor what else is there goes with that srun."""
    table = {pid: Process(pid, 1, 2, "S", pid, "p") for pid in (2, 3, 4)}
    old = Start("/a", 1, (0, 1), "5")

    assert {3: old} == starts_by_relatives(table, {2: None, 3: old, 4: None}, {})


def test_a_script_without_a_token_survives_its_old_srun(node: Node, tmp_path: Path) -> None:
    """The same with real processes: who started an old rank, and leads its group, stays."""
    shell = f"FTRUN_START_TOKEN=0.1 sleep 300 & touch {tmp_path}/on; wait; touch {tmp_path}/went_on; sleep 60"
    script = node.rank(None, words=["sh", "-c", shell], session=True)
    assert _until((tmp_path / "on").exists)
    assert _until(
        lambda: len([1 for one in procfs.user_processes().values() if _is_below(one, script.pid)]) == 1
    )

    assert 1 == len(kill_stale.kill_stale(node.here("0.2"), 0.0).killed)
    assert _until((tmp_path / "went_on").exists)
    assert script.poll() is None


@pytest.fixture
def guarded(node: Node, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A guard over the node, from the packed hooks."""
    node.point("0.1")
    with _guard(node, tmp_path, quick=True) as one:
        yield one


@contextlib.contextmanager
def _guard(node: Node, tmp_path: Path, *words: str, quick: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """One as a job starts it; a quick one looks more often."""
    base = ["--attempt-folder", str(node.attempt), "--launch", "0", "--node", "n1", "--job", JOB]
    how = ["-c", QUICK] if quick else []
    command = [sys.executable, "-IS", *how, build_zipapp(str(tmp_path / "home")), "guard", *base, *words]
    one = subprocess.Popen(command, env={"PATH": os.environ["PATH"]})
    try:
        assert _until(lambda: _handles(one.pid, signal.SIGUSR2))
        yield one
    finally:
        one.kill()
        one.wait()


def _handles(pid: int, number: signal.Signals) -> bool:
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:")).split()[1]
        return bool(int(caught, 16) & (1 << (number - 1)))
    return False


def test_a_guard_ends_what_is_no_longer_current(node: Node, guarded: subprocess.Popen[bytes]) -> None:
    """Soon after the new start, ranks of the old one are gone, by KILL, and it is noted."""
    old = node.rank("0.1")
    time.sleep(0.3)
    assert old.poll() is None
    node.point("0.2")
    new = node.rank("0.2")

    assert -signal.SIGKILL == old.wait(timeout=60)
    assert new.poll() is None
    note = node.attempt / "guarded.0.n1"
    assert _until(lambda: note.exists() and note.read_text().endswith("\n"))
    assert [old.pid] == json.loads(note.read_text().splitlines()[0])["killed"]


def test_a_frozen_tree_that_thaws_dies(node: Node, guarded: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """The guard freezes with the ranks, wakes with them and ends them."""
    shell = f"trap '' TERM; for i in 1 2; do setsid sh -c 'trap \"\" TERM; while :; do date +%s.%N >>{tmp_path}/wrote; sleep 0.02; done' & done; wait"
    root = node.rank("0.1", words=["sh", "-c", shell], session=True)
    assert _until((tmp_path / "wrote").exists)
    tree = [
        root.pid,
        *(
            one.pid
            for one, start in kill_stale.processes_of_starts(node.here("0.2")).values()
            if start.job == JOB
        ),
    ]
    for pid in (guarded.pid, *tree):
        with contextlib.suppress(ProcessLookupError):  # a `sleep` of the loops
            os.kill(pid, signal.SIGSTOP)
    node.point("closed.3")
    time.sleep(0.3)
    for pid in (*tree, guarded.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    assert _until(lambda: all(map(_is_gone, tree)))
    assert [] == [
        one for one, start in kill_stale.processes_of_starts(node.here("0.2")).values() if start.job == JOB
    ]


def test_a_guard_that_can_read_nothing_does_nothing(node: Node, tmp_path: Path) -> None:
    """No link, a link that is no token, a folder that is gone: nothing is ended."""
    ranks = [node.rank("0.1"), node.rank("0.2")]
    with _guard(node, tmp_path, quick=True):
        time.sleep(0.4)
        node.point("garbage")
        time.sleep(0.4)
        node.attempt.rename(node.run / "gone")
        time.sleep(0.4)

        assert [None, None] == [one.poll() for one in ranks]


def test_what_was_left_before_the_guard_began_is_ended(node: Node, tmp_path: Path) -> None:
    """Its first look is a sweep."""
    old = node.rank("0.1")
    node.point("0.2")
    with _guard(node, tmp_path):
        assert -signal.SIGKILL == old.wait(timeout=60)


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_a_guard_leaves_when_asked_to(guarded: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """With status 0: its step must not be what Slurm remembers of the job."""
    guarded.send_signal(signal.SIGUSR1)
    time.sleep(0.1)
    assert guarded.poll() is None
    guarded.send_signal(number)

    assert 0 == guarded.wait(timeout=60)


def test_the_watch_can_be_the_guards_child(node: Node, tmp_path: Path) -> None:
    """It begins when its time has come, and leaves with the guard."""
    (node.attempt / "nodes").mkdir()
    watch = [
        "--",
        "--folder",
        str(node.attempt / "nodes"),
        "--period",
        "60",
        "--root",
        str(tmp_path / "nothing"),
    ]
    with _guard(node, tmp_path, "--watch-after", "0.5", *watch) as one:
        assert _until(lambda: [c.pid for c in procfs.user_processes().values() if c.parent == one.pid] != [])
        child = next(c.pid for c in procfs.user_processes().values() if c.parent == one.pid)
        assert _until(lambda: _handles(child, signal.SIGUSR2))
        one.send_signal(signal.SIGUSR2)

        assert 0 == one.wait(timeout=60)
        assert _until(lambda: _is_gone(child))


def test_a_guard_holds_next_to_nothing(node: Node, tmp_path: Path) -> None:
    """Less than 12 MB."""
    node.point("0.1")
    with _guard(node, tmp_path) as one:
        time.sleep(1.3)
        status = Path(f"/proc/{one.pid}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmRSS:"))

    assert int(peak.split()[1]) <= MEMORY_MAX_KIB


def test_a_look_of_a_guard_costs_next_to_nothing(guarded: subprocess.Popen[bytes]) -> None:
    """Less than a twentieth of the start of an interpreter: well under a thousandth of a core where it looks once a second."""
    time.sleep(0.3)
    before, began_s = _cpu_s(guarded.pid), time.monotonic()
    time.sleep(1.0)
    looks = (time.monotonic() - began_s) / 0.1 + 1
    a_look_s = (_cpu_s(guarded.pid) - before) / looks
    spent_s = [_children_s()]
    for _ in range(3):
        subprocess.run([sys.executable, "-IS", "-c", "pass"], check=True, timeout=120)
        spent_s.append(_children_s())

    assert a_look_s < LOOK_MAX * (spent_s[-1] - spent_s[0]) / 3


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _cpu_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


@pytest.mark.parametrize(
    "words", [[], ["--launch", "0"], ["--attempt-folder", "/x", "--launch", "a"], ["--nothing"]]
)
def test_wrong_usage_of_a_guard_is_told(words: list[str]) -> None:
    """In one line, before any job depends on it."""
    with pytest.raises(UsageError):
        fence_daemon.main(words)
