"""The beat of a training loop: what is written, what it costs, and who ends himself. (I/O)"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks import beat as module

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("FTRUN_", "SLURM_"))}
CLEAN = {name: value for name, value in CLEAN.items() if name not in {"RANK", "WORLD_SIZE"}}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An attempt's folder in which start 0.2 is the present one."""
    (tmp_path / "beats").mkdir()
    (tmp_path / "launch.0").write_text("job=41\nrestart=0\n")
    os.symlink("0.2", tmp_path / "current")
    return tmp_path


def _env(place: Path, **more: str) -> dict[str, str]:
    ours = {
        "FTRUN_BEAT_DIR": str(place / "beats"),
        "FTRUN_ATTEMPT_DIR": str(place),
        "FTRUN_RUN_DIR": str(place),
        "FTRUN_START_TOKEN": "0.2",
        "RANK": "3",
    }
    return {**CLEAN, **ours, **more}


# The thread looks ten times a second here, and waits as long as a busy machine lets it wait; its numbers are settings of no one else.
QUICK = "import os, sys, time\nfrom ftrun.hooks import beat\nbeat.EVERY_S, beat.STILL_S, beat.DONE_WITHIN_S = 0.1, 0.5, 60.0\n"


def _run(code: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", QUICK + code]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=180)


@contextlib.contextmanager
def _running(code: str, env: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen([sys.executable, "-c", QUICK + code], env=env, stderr=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def _told(place: Path, rank: int = 3) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((place / "beats" / str(rank)).read_text())
    return told


def _soon(place: Path, rank: int = 3) -> dict[str, Any]:
    end_s = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError, ValueError):
            return _told(place, rank)
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_the_last_call_is_what_stands_in_the_file(place: Path) -> None:
    """After done() the file of the rank has the last step, how often was called, by whom and when."""
    done = _run(
        "for step in range(7): beat(step)\nbeat(9, phase='eval')\nbeat.done()\nprint(os.getpid())",
        _env(place),
    )
    told = _told(place)

    assert ("", 0) == (done.stderr, done.returncode)
    assert (3, int(done.stdout), 9, "done", 9) == tuple(
        told[k] for k in ("rank", "pid", "step", "phase", "n")
    )
    assert abs(time.time() - told["t"]) < 3600


def test_a_phase_is_told_although_nothing_is_called_after_it(place: Path) -> None:
    """The last call before a long silence reaches the file too, even within the second of the one before."""
    with _running("beat(1)\ntime.sleep(0.05)\nbeat(2, phase='eval')\ntime.sleep(60)", _env(place)):
        end_s = time.monotonic() + 60
        while _soon(place)["phase"] != "eval":
            assert time.monotonic() < end_s
            time.sleep(0.05)

        assert 2 == _told(place)["step"]


def test_own_time_is_what_passes_before_others_are_waited_for(place: Path) -> None:
    """`own_s` sums the time from beat(step) to its "sync", and nothing of evaluations."""
    code = (
        "now, least, most = time.perf_counter, 0.0, 0.0\n"
        "for step in range(3):\n"
        " a = now(); beat(step); b = now(); time.sleep(0.05); c = now(); beat(step, phase='sync'); d = now()\n"
        " least += c - b; most += d - a; time.sleep(0.1)\n"
        "beat(3); beat(3, phase='eval'); time.sleep(0.1); beat(3, phase='sync'); beat.done(); print(least, most)"
    )
    done = _run(code, _env(place))
    told = _told(place)
    least, most = map(float, done.stdout.split())

    assert 3 == told["own_n"]
    assert least - 0.01 <= told["own_s"] <= most + 0.01


@pytest.mark.parametrize(
    ("env", "rank"),
    [
        ({"RANK": "5", "SLURM_PROCID": "1"}, 5),
        ({"RANK": "", "OMPI_COMM_WORLD_RANK": "6", "SLURM_PROCID": "0"}, 6),
        ({"RANK": "", "PMI_RANK": "7", "SLURM_PROCID": "0"}, 7),
        ({"RANK": "", "SLURM_PROCID": "8"}, 8),
        ({"RANK": "?"}, 0),
    ],
    ids=["torchrun", "mpirun", "hydra", "srun", "none"],
)
def test_the_rank_is_the_launchers(place: Path, env: dict[str, str], rank: int) -> None:
    """What a launcher says of its ranks goes before Slurm's number, which may be the launcher's own."""
    _run("beat(1)\nbeat.done()", _env(place, **env))

    assert rank == _told(place, rank)["rank"]


@pytest.mark.parametrize("hurt", ["missing", "a file", "read-only", "full"])
def test_nothing_raises_and_nothing_waits(place: Path, hurt: str) -> None:
    """A folder that is not there, no folder, or not writable, and a full disk, are no concern of training."""
    folder = {
        "missing": "/proc/none/beats",
        "a file": str(place / "launch.0"),
        "read-only": "/sys/kernel",
        "full": "/dev",
    }
    env = _env(place, FTRUN_BEAT_DIR=folder[hurt])
    if hurt == "full":  # the rank's file is one that cannot take a byte
        (place / "full").mkdir()
        os.symlink("/dev/full", place / "full" / "3")
        env["FTRUN_BEAT_DIR"] = str(place / "full")
    done = _run(
        "beat.DONE_WITHIN_S = 0.2\nfor step in range(1000): beat(step)\ntime.sleep(0.3)\nbeat(object())\nbeat.done()\nprint('on')",
        env,
    )

    assert ("on\n", "", 0) == (done.stdout, done.stderr, done.returncode)


def test_a_missing_folder_is_made(place: Path) -> None:
    """Whoever comes first makes the folder of the beats."""
    _run("beat(1)\nbeat.done()", _env(place, FTRUN_BEAT_DIR=str(place / "later" / "0.2")))

    assert (place / "later" / "0.2" / "3").exists()


def test_without_a_run_nothing_happens() -> None:
    """The same script outside of ftrun writes nothing and starts no thread."""
    done = _run(
        "import threading\nbeat(1)\nprint(beat.save_wanted(), threading.active_count())\nbeat.done()", CLEAN
    )

    assert ("False 1\n", "") == (done.stdout, done.stderr)


def test_a_call_costs_less_than_to_open_a_file(place: Path) -> None:
    """Half of the calls do, on whatever machine: a call only notes numbers (in microseconds: tests/bench)."""
    code = (
        "now, calls, opened = time.perf_counter, [], []\nfile = os.environ['FTRUN_ATTEMPT_DIR'] + '/launch.0'\n"
        "for step in range(5000):\n"
        " a = now(); beat(step); b = now(); os.close(os.open(file, os.O_RDONLY)); c = now()\n"
        " calls.append(b - a); opened.append(c - b)\n"
        "print(sorted(calls)[2500] < sorted(opened)[2500], sorted(calls)[2500], sorted(opened)[2500])"
    )
    done = _run(code, _env(place))

    assert done.stdout.startswith("True"), done.stdout + done.stderr


def test_a_forked_child_is_silent_while_its_parent_beats(place: Path) -> None:
    """A loader of data that calls beat too does not write in the place of its parent."""
    code = (
        "import warnings\nwarnings.simplefilter('ignore')\nbeat(5)\ntime.sleep(0.3)\nchild = os.fork()\n"
        "if not child:\n beat(99); time.sleep(0.3); os._exit(0)\n"
        "os.waitpid(child, 0)\nbeat(6)\nbeat.done()\nprint(os.getpid())"
    )
    done = _run(code, _env(place))

    assert (6, int(done.stdout), 3) == tuple(_told(place)[name] for name in ("step", "pid", "n"))


def test_a_rank_that_was_forked_by_a_launcher_beats(place: Path) -> None:
    """A parent that never beat leaves its children free to."""
    _run(
        "child = os.fork()\nif not child:\n os.environ['RANK'] = '4'; beat(8); beat.done(); os._exit(0)\nos.waitpid(child, 0)",
        _env(place),
    )

    assert 8 == _told(place, 4)["step"]


def test_many_threads_may_call_at_once(place: Path) -> None:
    """Calls of several threads raise nothing, and the last one is told."""
    code = (
        "import threading\n"
        "def go():\n  for step in range(2000): beat(step)\n"
        "threads = [threading.Thread(target=go) for _ in range(8)]\n"
        "[one.start() for one in threads]; [one.join() for one in threads]\nbeat(4242)\nbeat.done()"
    )
    done = _run(code, _env(place))

    assert ("", 4242) == (done.stderr, _told(place)["step"])


def test_what_takes_the_place_of_a_process_by_exec_beats_anew(place: Path) -> None:
    """A script that replaces itself goes on under its pid, its calls counted from one."""
    again = QUICK + "beat(50); beat.done()"
    _run(
        f"beat(1)\ntime.sleep(0.3)\nos.execv(sys.executable, [sys.executable, '-c', {again!r}])", _env(place)
    )

    assert (50, 2) == (_told(place)["step"], _told(place)["n"])


def test_a_process_of_an_earlier_start_ends_itself(place: Path) -> None:
    """Once the present start is another one, a rank that is still alive ends with 143, even when it calls nothing any more."""
    with _running("beat(1)\ntime.sleep(60)", _env(place)) as rank:
        _soon(place)
        os.symlink("0.3", place / "new")
        os.replace(place / "new", place / "current")

        assert 143 == rank.wait(timeout=60)
        assert rank.stderr is not None
        assert "is of start 0.2, the present one is 0.3" in rank.stderr.read()


@pytest.mark.parametrize(
    "case", ["ours", "the one before", "no link", "a file", "off", "no token", "another job"]
)
def test_nobody_else_is_ended(place: Path, case: str) -> None:
    """A start that is the present one, cannot be known, is fenced by nobody or is another job's goes on; nor
    does the one before it, which a network file system may go on showing for a minute, end it.
    """
    env = _env(place, SLURM_JOB_ID="41")
    if case == "the one before":
        (place / "current").unlink()
        os.symlink("0.1", place / "current")
    elif case != "ours":
        (place / "current").unlink()
        os.symlink("0.3", place / "current")
    if case == "no link":
        (place / "current").unlink()
    if case == "a file":
        (place / "current").unlink()
        (place / "current").write_text("0.3")
    more = {
        "off": {"FTRUN_FENCE": "off"},
        "no token": {"FTRUN_START_TOKEN": ""},
        "another job": {"SLURM_JOB_ID": "42"},
    }
    told = f"while not os.path.exists('{place}/beats/3'): time.sleep(0.01)\n" if case != "another job" else ""
    done = _run(f"beat(1)\n{told}time.sleep(0.4)\nprint('on')", {**env, **more.get(case, {})})

    assert ("on\n", 0) == (done.stdout, done.returncode), done.stderr
    assert (case != "another job") == (place / "beats" / "3").exists()


def test_a_wish_for_a_checkpoint_is_told_once(place: Path) -> None:
    """save_wanted is true once for each wish, and never for the same one again."""
    (place / "save-now").write_text("1\n")
    code = (
        "def answers(n, at_least=0):\n"
        "  seen, end = 0, time.monotonic() + 60\n"
        "  while seen < at_least and time.monotonic() < end: seen += beat.save_wanted(); time.sleep(0.05)\n"
        "  for _ in range(n): seen += beat.save_wanted(); time.sleep(0.05)\n"
        "  return seen\n"
        "first = answers(8, 1)\nfile = os.environ['FTRUN_RUN_DIR'] + '/save-now'\nwith open(file + '.new', 'w') as new: new.write('2')\n"
        "os.replace(file + '.new', file)\nsecond = answers(8, 1)\nos.unlink(file)\nprint(first, second, answers(8))"
    )
    done = _run(code, _env(place))

    assert "1 1 0\n" == done.stdout, done.stderr


def test_stacks_are_written_at_the_signal_that_the_file_names(place: Path) -> None:
    """The signal in the file gives the stacks of all threads, and training goes on."""
    with _running("def forward():\n time.sleep(60)\nbeat(1)\nforward()", _env(place)) as rank:
        number = _soon(place)["stack_signal"]
        assert signal.SIGRTMIN < number <= signal.SIGRTMAX
        os.kill(rank.pid, number)
        stack = place / "beats" / "3.stack"
        end_s = time.monotonic() + 60
        while b"forward" not in stack.read_bytes():
            assert time.monotonic() < end_s
            time.sleep(0.05)

        assert rank.poll() is None


def test_a_line_is_of_one_length(place: Path) -> None:
    """A short line over a long one leaves nothing of it."""
    _run("beat(10**30, phase='x' * 99)\nbeat.done()", _env(place))
    long = (place / "beats" / "3").read_bytes()
    _run("beat(1)\nbeat.done()", _env(place))
    short = (place / "beats" / "3").read_bytes()

    assert (640, 640) == (len(long), len(short))
    assert json.loads(short)["step"] == 1


def test_the_module_is_what_is_called() -> None:
    """`from ftrun.hooks import beat` gives one thing that is called and asked."""
    assert callable(module)
    assert module.save_wanted is not None


def test_who_stands_still_says_where_and_what_it_uses(place: Path) -> None:
    """After STILL_S without a call the line has the stack of the training thread and what it and its children used."""
    code = "import threading\ndef forward():\n threading.Event().wait(60)\nbeat(1)\nforward()"
    with _running(code, _env(place)):
        end_s = time.monotonic() + 60
        while "still" not in _soon(place):
            assert time.monotonic() < end_s
            time.sleep(0.2)
        first = _told(place)["still"]
        while _told(place)["still"]["at"] == first["at"]:
            assert time.monotonic() < end_s
            time.sleep(0.2)
        second = _told(place)["still"]

    assert first["stack"] == second["stack"]
    assert "threading.py:wait < /<string>:forward" in second["top"]
    assert second["cpu_s"] - first["cpu_s"] < 1.0
    assert second["io_bytes"] > 0
    assert not second["stuck"]
