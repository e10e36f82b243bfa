"""Laws of the stacks of ranks: who stands still is seen to, nobody dies of the question, and it ends in time; with real processes. (I/O)"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.hooks import main
from ftrun.hooks.ranks import stacks
from ftrun.hooks.ranks.stacks import ranks_of
from ftrun.hooks.runtime.host import Machine
from ftrun.hooks.runtime.start_processes import Process

ROOT = Path(__file__).resolve().parents[3]
JOB = str(60_000_000 + os.getpid())

READY = 'open(os.environ["READY"], "w").close()'
HANGING = f"""import os, sys, time
{{beat}}
def all_reduce():
    {READY}; time.sleep(300)
def train():
    all_reduce()
train()
"""
STEPPING = """import sys, time
{beat}
def forward():
    time.sleep(0.2)
def backward():
    time.sleep(0.2)
while True:
    forward()
    backward()
"""
WITH_BEAT = "from ftrun.hooks import beat\nbeat(1)\n"


class Step:
    """Ranks of one start on this machine."""

    def __init__(self, folder: Path) -> None:
        self.attempt = folder / "runs" / "r" / "attempts" / "1"
        self.beats = self.attempt / "beats" / "0.1"
        self.beats.mkdir(parents=True)
        (self.attempt / "current").symlink_to("0.1")
        (self.attempt / "launch.0").write_text(f"job={JOB}\n")
        self.out = self.attempt / "stacks" / "0.1"
        self.started: list[subprocess.Popen[bytes]] = []

    def rank(self, number: int, code: str, **more: str) -> subprocess.Popen[bytes]:
        env = {
            "PATH": os.environ["PATH"], "SLURM_JOB_ID": JOB, "FTRUN_ATTEMPT_DIR": str(self.attempt), "FTRUN_START_TOKEN": "0.1",
            "SLURM_STEP_ID": "0", "SLURM_PROCID": str(number), "SLURMD_NODENAME": "n1", "FTRUN_BEAT_DIR": str(self.beats),
            "PYTHONPATH": str(ROOT / ".ci" / "typing"), "READY": str(self.attempt / f"ready.{number}"), **more,
        }  # fmt: skip
        # In a group of its own: in that of the tests it would make those its kin, and ranks of this start.
        one = subprocess.Popen([sys.executable, "-c", code], env=env, process_group=0)
        self.started.append(one)
        if "READY" in code:
            assert _until((self.attempt / f"ready.{number}").exists)
        if code.startswith("import os"):
            assert _until(lambda: _state(one.pid) == "S")
        if "beat" in code:
            assert _until((self.beats / str(number)).exists)
        return one

    def taken(self, capfd: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
        base = [
            "--attempt-folder", str(self.attempt), "--token", "0.1", "--out", str(self.out), "--job", JOB,
            "--node", "n1",
        ]  # fmt: skip
        assert 0 == main.main(["stacks", *base, *words])
        assert json.loads(capfd.readouterr().out)["trouble"] is None
        table: dict[str, Any] = json.loads((self.out / "n1.json").read_text())
        return table


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Step]:
    monkeypatch.setattr(Machine, "tool", lambda self, name: None)  # tools of this machine are not the subject
    one = Step(tmp_path)
    yield one
    for child in one.started:
        child.kill()
        child.wait()


def _until(ready: Callable[[], bool], limit_s: float = 60.0) -> bool:
    give_up = time.monotonic() + limit_s
    while time.monotonic() < give_up:
        if ready():
            return True
        time.sleep(0.02)
    return ready()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_who_stands_still_and_who_moves(step: Step, capfd: pytest.CaptureFixture[str]) -> None:
    """The stack of a rank with a beat is Python's own, its digest the same while it stands, and no rank dies of it."""
    hanging = step.rank(0, HANGING.format(beat=WITH_BEAT))
    stepping = step.rank(1, STEPPING.format(beat=WITH_BEAT))

    moved: dict[str, bool] = {}
    for _ in range(20):  # a loop may be met twice in the same half, and is held up on a busy machine
        rows = {row["rank"]: row for row in step.taken(capfd, "--apart", "0.7")["ranks"]}
        moved = {rank: moved.get(rank, False) or row["moved"] for rank, row in rows.items()}
        if moved["1"]:
            break

    assert {"0": False, "1": True} == moved
    assert {"faulthandler"} == {row["source"] for row in rows.values()}
    assert ["all_reduce (<string>:6)", "train (<string>:8)"] == rows["0"]["top"][:2]
    assert "all_reduce" in (step.out / f"n1.{hanging.pid}.txt").read_text()
    assert (None, None) == (hanging.poll(), stepping.poll())


def test_a_rank_without_a_beat_is_seen_by_the_kernel(step: Step, capfd: pytest.CaptureFixture[str]) -> None:
    """State, place in the kernel, threads and processor time need nothing from the rank."""
    rank = step.rank(4, HANGING.format(beat=""))
    (row,) = step.taken(capfd, "--apart", "0.3")["ranks"]

    assert ("proc", "4", "S", False) == (row["source"], row["rank"], row["state"], row["moved"])
    assert row["digest"]
    assert "thread" in (step.out / f"n1.{rank.pid}.txt").read_text()


def test_a_rank_that_computes_is_not_said_to_stand_still(
    step: Step, capfd: pytest.CaptureFixture[str]
) -> None:
    """For the kernel it is always in the same place: without a stack of Python nobody knows, and that is what is said."""
    step.rank(4, f"import sys, os\n{READY}\nwhile True: pass")
    for apart_s in (0.6, 3.0, 15.0, 60.0):  # others may leave it nothing of a processor for a while
        (row,) = step.taken(capfd, "--apart", str(apart_s))["ranks"]
        if row["moved"] is None:
            break

    assert ("proc", None) == (row["source"], row["moved"])
    assert row["cpu_s"] > 0


def test_no_signal_goes_to_whom_it_would_end(step: Step, capfd: pytest.CaptureFixture[str]) -> None:
    """A beat of an earlier process of this number, or a rank that became another program, is sent nothing."""
    other = step.rank(0, HANGING.format(beat=""))
    line = {
        "rank": 0,
        "pid": other.pid,
        "host": os.uname().nodename[:64],
        "stack_signal": signal.SIGRTMIN + 9,
    }
    (step.beats / "0").write_text(json.dumps(line))
    (step.beats / "0.stack").write_text("")
    (row,) = step.taken(capfd, "--apart", "0.2")["ranks"]

    assert "proc" == row["source"]
    assert other.poll() is None


def test_a_stopped_rank_costs_only_its_time(step: Step, capfd: pytest.CaptureFixture[str]) -> None:
    """Who does not answer is written down with what the kernel knows, within the limit."""
    rank = step.rank(0, HANGING.format(beat=WITH_BEAT))
    rank.send_signal(signal.SIGSTOP)
    assert _until(lambda: _state(rank.pid) == "T")
    (row,) = step.taken(capfd, "--limit", "2", "--apart", "0.2")["ranks"]

    assert ("proc", "T", True) == (row["source"], row["state"], row["stopped"])


def test_a_rank_that_waits_for_its_interpreter_is_not_said_to_move(
    step: Step, capfd: pytest.CaptureFixture[str]
) -> None:
    """Another thread never gives the lock back: the main thread wakes again and again, and is nowhere for long."""
    step.rank(
        0, f"import sys, os, re, threading, time\n{READY}\n"
        "threading.Thread(target=re.match, args=('(a?){40}a{40}', 'a' * 40), daemon=True).start()\n"
        "while True: time.sleep(0)",
    )  # fmt: skip
    for _ in range(3):
        (row,) = step.taken(capfd, "--apart", "1.5")["ranks"]
        assert (row["moved"], row["stopped"]) == (None, False)


def test_a_launcher_that_waits_for_ranks_is_told_of(step: Step, capfd: pytest.CaptureFixture[str]) -> None:
    """Where srun lives and no rank does, nobody will end it."""
    srun = "import ctypes; ctypes.CDLL(None).prctl(15, b'srun'); import time; print(end='', flush=True); time.sleep(600)"
    one = step.rank(0, srun)
    assert _until(lambda: Path(f"/proc/{one.pid}/comm").read_text() == "srun\n")
    table = step.taken(capfd, "--apart", "0.1")
    assert (table["launchers"], table["ranks"]) == (["srun"], [])

    step.rank(1, HANGING.format(beat=""))
    assert [row["rank"] for row in step.taken(capfd, "--apart", "0.1")["ranks"]] == ["1"]


def test_ranks_of_other_starts_and_nodes_are_not_asked(step: Step, capfd: pytest.CaptureFixture[str]) -> None:
    """Only the present start, and of several nodes on one machine only this one."""
    step.rank(0, HANGING.format(beat=""), FTRUN_START_TOKEN="0.2")
    step.rank(1, HANGING.format(beat=""), SLURMD_NODENAME="n2")
    step.rank(2, HANGING.format(beat=""), SLURM_JOB_ID="1")

    assert [] == step.taken(capfd)["ranks"]


def test_a_listening_flight_recorder_is_asked(
    step: Step, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """By the pipe that its variable names; a pipe without a reader, and a plain file, are left alone."""
    read_end = []
    for number, made in ((0, os.mkfifo), (1, os.mkfifo), (2, Path.touch)):
        made(tmp_path / f"fr_{number}.pipe")
        step.rank(number, HANGING.format(beat=""), TORCH_NCCL_DEBUG_INFO_PIPE_FILE=f"{tmp_path}/fr_")
    read_end.append(os.open(tmp_path / "fr_0.pipe", os.O_RDONLY | os.O_NONBLOCK))
    table = step.taken(capfd, "--apart", "0.1")

    assert [f"{tmp_path}/fr_0.pipe"] == table["flight_recorder"]
    assert b"1\n" == os.read(read_end[0], 10)
    assert "" == (tmp_path / "fr_2.pipe").read_text()
    os.close(read_end[0])


@pytest.mark.skipif(shutil.which("py-spy") is None, reason="py-spy is not installed here")
def test_a_real_py_spy_is_understood(
    step: Step, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where py-spy may look, a rank needs no beat."""
    monkeypatch.setattr(Machine, "tool", lambda self, name: shutil.which(name))
    step.rank(0, HANGING.format(beat=""))
    time.sleep(0.5)
    (row,) = step.taken(capfd, "--apart", "0.3")["ranks"]

    assert ("py-spy", False, "all_reduce (<string>:4)") == (row["source"], row["moved"], row["top"][0])


def test_a_folder_that_cannot_be_written_is_told(
    step: Step, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line says so; the hook ends with 0."""
    (tmp_path / "file").touch()
    words = [
        "--attempt-folder",
        str(step.attempt),
        "--token",
        "0.1",
        "--out",
        str(tmp_path / "file"),
        "--job",
        JOB,
    ]

    assert 0 == main.main(["stacks", *words])
    assert "file" in json.loads(capfd.readouterr().out)["trouble"]


PYSPY = """Process 4123: python train.py
Python v3.11.2 (/usr/bin/python3.11)

Thread 4123 (idle): "MainThread"
    wait (torch/distributed/work.py:88)
    all_reduce (collectives.py:{line})
    <module> (train.py:41)
Thread 4130 (active): "loader"
    run (threading.py:953)
"""
FAULT = """Thread 0x00007f16c3fff6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007f16dd5b4740 (most recent call first):
  File "/opt/torch/distributed/work.py", line 88 in wait
  File "/home/u/train.py", line 41 in <module>
"""


def test_the_main_thread_is_found_in_both_formats() -> None:
    """py-spy names it; faulthandler writes it last."""
    assert ["wait (distributed/work.py:88)", "all_reduce (collectives.py:7)", "<module> (train.py:41)"] == [
        str(frame) for frame in stacks.main_of_pyspy(PYSPY.format(line=7), 4123)
    ]
    assert ["wait (distributed/work.py:88)", "<module> (u/train.py:41)"] == [
        str(frame) for frame in stacks.main_of_faulthandler(FAULT)
    ]


def test_a_digest_tells_a_step_and_not_a_spin() -> None:
    """Another line of a caller is a move; another line of the innermost function is none."""
    frames = stacks.main_of_pyspy(PYSPY.format(line=7), 4123)
    moved = stacks.main_of_pyspy(PYSPY.format(line=9), 4123)
    spun = (frames[0]._replace(line=90), *frames[1:])

    assert stacks.digest(frames) == stacks.digest(spun)
    assert stacks.digest(frames) != stacks.digest(moved)
    assert "" == stacks.digest(())


@given(st.text(max_size=300))
def test_any_text_is_a_stack_or_none(text: str) -> None:
    """What a tool prints may be anything."""
    stacks.digest(stacks.main_of_pyspy(text, 1))
    stacks.digest(stacks.main_of_faulthandler(text))


TREES: dict[str, tuple[list[tuple[int, int, str, dict[str, str]]], list[int]]] = {
    "srun": ([(2, 1, "python", {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}), (3, 2, "python", {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"})], [2]),
    "srun and a shell": ([(2, 1, "bash", {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}), (3, 2, "python", {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"})], [3]),
    "torchrun": (
        [
            (2, 1, "torchrun", {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}),
            (3, 2, "python", {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "RANK": "0"}),
            (4, 2, "python", {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "RANK": "1"}),
            (5, 4, "python", {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "RANK": "1"}),
        ],
        [3, 4],
    ),
    "torchrun in the batch script": (
        [(2, 1, "slurm_script", {"SLURM_PROCID": "0"}), (3, 2, "python", {}), (4, 3, "python", {"RANK": "0"}), (5, 3, "python", {"RANK": "1"})],
        [4, 5],
    ),
    "mpirun": (
        [(2, 1, "slurm_script", {}), (3, 2, "mpirun", {}), (4, 3, "solver", {"OMPI_COMM_WORLD_RANK": "0"}), (5, 3, "solver", {"OMPI_COMM_WORLD_RANK": "1"})],
        [4, 5],
    ),
    "a wrapped rank": ([(2, 1, "ftrun-rank", {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}), (3, 2, "python", {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1"})], [3]),
    "podman": (
        [
            (2, 1, "podman", {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}),  # its container hangs on no process of the step
            (9, 8, "tini", {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}),
            (10, 9, "python", {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}),
        ],
        [10],
    ),
    "srun's own": ([(2, 1, "slurm_script", {}), (3, 2, "srun", {}), (4, 3, "srun", {})], []),
    "python in the batch script": ([(2, 1, "slurm_script", {"SLURM_PROCID": "0"}), (3, 2, "python", {"SLURM_PROCID": "0"})], [3]),
}  # fmt: skip


@pytest.mark.parametrize("name", TREES)
def test_ranks_are_told_from_what_is_around_them(name: str) -> None:
    """Shells, launchers and loaders of data are no ranks."""
    rows, expected = TREES[name]
    members = {pid: Process(pid, parent, pid, "S", pid, comm) for pid, parent, comm, _ in rows}

    assert expected == ranks_of(members, {pid: told for pid, _, _, told in rows})


def test_at_most_64_ranks_of_a_node_are_asked() -> None:
    """What a node says is bounded."""
    members: dict[int, Process] = {pid: Process(pid, 1, pid, "S", pid, "python") for pid in range(2, 200)}
    told: dict[int, dict[str, str]] = {pid: {"RANK": str(pid)} for pid in members}
    found: Sequence[int] = ranks_of(members, told)

    assert 64 == len(found)
