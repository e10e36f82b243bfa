"""Laws of the parent of a rank: it shows what the rank shows, and starts it again when the agent says so; with real processes. (I/O)"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftrun.hooks.bundle.zipapp import build_zipapp
from ftrun.hooks.ranks import rank_wrapper
from ftrun.hooks.runtime import UsageError

MEMORY_MAX_KIB = 12 * 1024


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_zipapp(str(tmp_path_factory.mktemp("home")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "attempts" / "1"
    place.mkdir(parents=True)
    (place / "current").symlink_to("0.1")
    return place / "ranks" / "0.1"


ENV = {"PATH": os.environ["PATH"], "SLURM_PROCID": "3", "FTRUN_START_TOKEN": "0.1", "SLURM_STEP_ID": "0"}


def _words(hook: str, folder: Path, command: list[str], wait_s: float = 0.3) -> list[str]:
    return [
        sys.executable,
        "-IS",
        hook,
        "rank",
        "--folder",
        str(folder),
        "--wait",
        str(wait_s),
        "--",
        *command,
    ]


def _shown(command: list[str], given: bytes = b"") -> tuple[int, bytes, bytes]:
    done = subprocess.run(command, env=ENV, input=given, capture_output=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


def _until(ready: Callable[[], bool], limit_s: float = 60.0) -> bool:
    give_up = time.monotonic() + limit_s
    while time.monotonic() < give_up:
        if ready():
            return True
        time.sleep(0.01)
    return ready()


SCRIPTS = {
    "ends well": "exit 0", "fails": "exit 1", "fails with 7": "exit 7", "fails with 255": "exit 255",
    "137 that is no signal": "exit 137", "hangs up": "kill -HUP $$", "interrupted": "kill -INT $$",
    "quits": "kill -QUIT $$", "aborts": "kill -ABRT $$", "killed": "kill -KILL $$",
    "user signal": "kill -USR1 $$", "segmentation fault": "kill -SEGV $$", "broken pipe": "kill -PIPE $$",
    "asked to end": "kill -TERM $$", "real time": "kill -40 $$",
    "reads and writes": "cat; echo out; echo err >&2; exit 3",
    "a long text": "head -c 3000000 /dev/zero; exit 4", "words": 'printf "<%s>" "$@"; exit 5',
    "nothing to read": "read x; echo $?",
    "its own group": '[ "$(cut -d" " -f5 /proc/$$/stat)" = $$ ] && echo leader',
    "signals as they were": "grep -E '^Sig(Blk|Ign)' /proc/self/status",
    "environment": "env | grep -v ^_= | sort", "files": "ls /proc/self/fd | wc -l",
    "folder and mask": "pwd; umask; ulimit -c",
    "broken pipe for real": "yes | head -1; exit ${PIPESTATUS-6}",
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_rank_shows_what_it_shows_without_a_parent(name: str, hook: str, folder: Path) -> None:
    """Exit status, signal, output, input, group, signals, environment, files: the same with and without."""
    command = ["setsid", "sh", "-c", SCRIPTS[name], "sh", "a b", "", "c'd"]

    assert _shown(command[1:] if name != "its own group" else command, b"given\n") == _shown(
        _words(hook, folder, command[1:]), b"given\n"
    )


@pytest.mark.parametrize("command", ["nothing-of-this-name", "/nowhere/at/all", "/etc/passwd"])
def test_a_command_that_cannot_be_started_ends_as_slurm_ends_it(
    command: str, hook: str, folder: Path
) -> None:
    """With the number of the error, at once, without a question, and one line that names it."""
    code, _, err = _shown(_words(hook, folder, [command], 30))

    assert (13 if command == "/etc/passwd" else 2) == code
    assert command.encode() in err
    assert not folder.exists()


@contextlib.contextmanager
def _running(hook: str, folder: Path, script: str, wait_s: float = 300) -> Iterator[subprocess.Popen[bytes]]:
    one = subprocess.Popen(
        _words(hook, folder, ["sh", "-c", script], wait_s), env=ENV, stdout=subprocess.PIPE
    )
    try:
        yield one
    finally:
        one.kill()
        one.wait(timeout=60)
        assert one.stdout is not None
        one.stdout.close()


def _line(one: subprocess.Popen[bytes], limit_s: float = 60.0) -> str:
    """The next line of its output, which is to come within the limit. Read unbuffered: `select` knows nothing of a buffer."""
    assert one.stdout is not None
    line, give_up_s = b"", time.monotonic() + limit_s
    while not line.endswith(b"\n"):
        assert select.select([one.stdout], [], [], max(0.0, give_up_s - time.monotonic()))[0], line
        byte = os.read(one.stdout.fileno(), 1)
        if not byte:
            break
        line += byte
    return line.decode().strip()


def _answer(folder: Path, number: int, word: str) -> None:
    assert _until((folder / f"3.{number}").exists)
    draft = folder / ".draft"
    draft.write_text(word + "\n")
    draft.rename(folder / f"3.{number}.next")


def test_a_rank_is_started_again_as_often_as_the_agent_says(hook: str, folder: Path) -> None:
    """The task, its output and its standing with Slurm stay; the rank is told how often it was started again."""
    script = 'echo ${FTRUN_RANK_RESTART-first} $PPID; [ "${FTRUN_RANK_RESTART-0}" = 2 ] && exit 0; kill -9 $$'
    with _running(hook, folder, script) as one:
        assert f"first {one.pid}" == _line(one)
        _answer(folder, 1, "again")
        assert f"1 {one.pid}" == _line(one)
        _answer(folder, 2, "again")
        assert f"2 {one.pid}" == _line(one)

        assert 0 == one.wait(timeout=60)
    told = json.loads((folder / "3.1").read_text())
    assert {"rank": 3, "code": 0, "signal": 9, "restart": 0, "step": "0"}.items() <= told.items()
    assert [] == [path.name for path in folder.iterdir() if path.name.endswith(".tmp")]


@pytest.mark.parametrize("word", ["end", "", "perhaps"])
def test_any_other_answer_ends_as_the_rank_did(word: str, hook: str, folder: Path) -> None:
    """Only `again` starts a rank; an empty file is an answer that is not there yet."""
    with _running(hook, folder, "exit 7", 300 if word else 0.5) as one:
        _answer(folder, 1, word)

        assert 7 == one.wait(timeout=60)


def test_no_answer_ends_as_the_rank_did(hook: str, folder: Path) -> None:
    """After the deadline, by the rank's own signal."""
    began_s = time.monotonic()
    with _running(hook, folder, "kill -ABRT $$", 0.5) as one:
        assert -signal.SIGABRT == one.wait(timeout=60)
    assert 0.5 <= time.monotonic() - began_s


def test_a_new_start_ends_a_rank_that_waits_for_an_answer(hook: str, folder: Path) -> None:
    """Whose start is over needs no answer."""
    with _running(hook, folder, "exit 7") as one:
        assert _until((folder / "3.1").exists)
        (folder.parents[1] / "draft").symlink_to("0.2")
        (folder.parents[1] / "draft").replace(folder.parents[1] / "current")

        assert 7 == one.wait(timeout=60)


def test_a_start_that_is_shown_late_is_asked_about_all_the_same(hook: str, folder: Path) -> None:
    """A network file system may go on showing the start before: then the question stands."""
    with _running(hook, folder, "exit 7") as one:
        assert _until((folder / "3.1").exists)
        (folder.parents[1] / "draft").symlink_to("0.0")
        (folder.parents[1] / "draft").replace(folder.parents[1] / "current")
        time.sleep(0.4)

        assert one.poll() is None
        _answer(folder, 1, "end")
        assert 7 == one.wait(timeout=60)


def test_a_folder_that_is_gone_costs_only_the_question(hook: str, tmp_path: Path) -> None:
    """The run's folder was removed, or cannot be written: the task ends as its rank did, at once."""
    assert 7 == _shown(_words(hook, tmp_path / "gone" / "ranks" / "0.1", ["sh", "-c", "exit 7"], 300))[0]


def test_two_steps_with_the_same_task_number_do_not_share_a_question(hook: str, folder: Path) -> None:
    """Each takes the next free number, and the answer of its own."""
    with _running(hook, folder, "exit 7") as one:
        assert _until((folder / "3.1").exists)
        with _running(hook, folder, "exit 8") as other:
            _answer(folder, 2, "end")
            assert 8 == other.wait(timeout=60)
            assert one.poll() is None
        _answer(folder, 1, "end")
        assert 7 == one.wait(timeout=60)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGCONT, signal.SIGWINCH]
)
def test_a_signal_to_the_task_reaches_the_rank_once(number: signal.Signals, hook: str, folder: Path) -> None:
    """Whoever signals the task means the rank."""
    script = f"n=0; trap 'n=$((n+1)); echo got' {number.value}; echo on; while [ $n = 0 ]; do sleep 0.05; done; i=0; while [ $i -lt 8 ]; do sleep 0.05; i=$((i+1)); done; echo $n; exit 9"
    with _running(hook, folder, script) as one:
        assert "on" == _line(one)
        one.send_signal(number)
        assert "got" == _line(one)
        assert "1" == _line(one)
        if number in rank_wrapper.JOBS_END:
            assert 9 == one.wait(timeout=60), "whoever was asked to end is not started again"


def test_a_signal_that_ends_the_job_ends_the_waiting(hook: str, folder: Path) -> None:
    """A cancel while an answer is awaited does not wait for it."""
    with _running(hook, folder, "exit 7") as one:
        assert _until((folder / "3.1").exists)
        one.send_signal(signal.SIGTERM)

        assert 7 == one.wait(timeout=60)


def test_the_rank_does_not_outlive_its_task(hook: str, folder: Path) -> None:
    """Slurm takes the parent's end for the task's."""
    with _running(hook, folder, "echo $$; exec sleep 300") as one:
        pid = int(_line(one))
        one.kill()

        assert _until(
            lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text()
        )


def test_a_parent_is_small(hook: str, folder: Path) -> None:
    """Less than 12 MB for each rank, and nothing to do until it ends."""
    with _running(hook, folder, "echo on; sleep 60") as one:
        assert "on" == _line(one)
        status = Path(f"/proc/{one.pid}/status").read_text()

        assert (
            int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1])
            <= MEMORY_MAX_KIB
        )


@pytest.mark.parametrize(
    "words", [[], ["--folder", "/x"], ["--folder", "/x", "--"], ["--wait", "x", "--", "ls"], ["ls"]]
)
def test_wrong_usage_is_told(words: list[str]) -> None:
    """Before anything is started."""
    with pytest.raises(UsageError):
        rank_wrapper.main(words)
