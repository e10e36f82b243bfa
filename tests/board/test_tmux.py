"""The board in a real terminal, tmux: it draws, follows, is resized, and goes when its terminal goes. (I/O)"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit import made_home

pytestmark = pytest.mark.board

DEADLINE_S = 60.0


class Terminal:
    """A tmux server of its own with one window."""

    def __init__(self, folder: Path, home: Path, **env: str) -> None:
        self._socket = str(folder / "tmux.sock")
        words = {
            "FTRUN_HOME": str(home),
            "FTRUN_SUPERVISOR": "none",
            "TERM": "tmux-256color",
            "COLUMNS": "80",
        } | env
        said = " ".join(f"{key}={shlex.quote(value)}" for key, value in words.items())
        self.pid_file = folder / "pid"
        inner = f"echo $$ > {self.pid_file}; exec env {said} {sys.executable} -m ftrun.supervisor top"
        outer = f"sh -c {shlex.quote(inner)}; echo over $?; sleep 600"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", outer)

    def tmux(self, *words: str) -> str:
        command = ["tmux", "-S", self._socket, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        return done.stdout

    def text(self) -> str:
        return self.tmux("capture-pane", "-p")

    def press(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def shows(self, word: str) -> None:
        wait(lambda: word in self.text(), lambda: f"no {word!r} in\n{self.text()}")

    def end(self) -> None:
        subprocess.run(["tmux", "-S", self._socket, "kill-server"], check=False, timeout=DEADLINE_S)


def wait(holds: Callable[[], bool], why: Callable[[], str]) -> None:
    give_up = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < give_up, why()
        time.sleep(0.1)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    made_home.make(folder)
    return folder


@pytest.fixture
def terminal(tmp_path: Path, home: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path, home)
    yield made
    made.end()


def test_a_life_in_a_terminal(terminal: Terminal) -> None:
    """It draws, opens a run, asks before an effect, is resized, and leaves the terminal as it was."""
    terminal.shows("llm-7b-0042")
    terminal.shows("nobody was watching")
    terminal.press("G")
    terminal.shows("job 4719, attempt 2")
    terminal.press("Enter")
    terminal.shows("fallen off the bus")
    terminal.press("2")
    terminal.shows("decided: resubmit")
    terminal.press("q")
    terminal.shows("TIME LEFT")
    terminal.press("c")
    terminal.shows("Cancel llm-7b-0042?")
    terminal.press("n")
    terminal.tmux("resize-window", "-x", "60", "-y", "14")
    wait(lambda: "S/STEP" not in terminal.text(), terminal.text)
    terminal.shows("TIME LEFT")
    terminal.press("q")
    terminal.shows("over 0")
    assert "llm-7b" not in terminal.text()


def test_a_key_does_what_the_command_does(terminal: Terminal, home: Path) -> None:
    """The request lies in the run's folder; nobody is alive to take it, which the command says."""
    terminal.shows("nobody was watching")
    terminal.press("G", "p")
    terminal.shows("Pause llm-7b-0042?")
    terminal.press("y")
    terminal.shows("no supervisor is alive")
    assert 1 == len([*(home / "runs" / "llm-7b-0042" / "requests").iterdir()])


@pytest.mark.parametrize("how", ["its server", "SIGTERM"])
def test_it_goes_when_its_terminal_goes(terminal: Terminal, how: str) -> None:
    terminal.shows("nobody was watching")
    pid = int(terminal.pid_file.read_text())
    assert pid > 1
    if how == "SIGTERM":
        os.kill(pid, signal.SIGTERM)
        terminal.shows("over 0")
    else:
        terminal.end()
    wait(lambda: not Path(f"/proc/{pid}").exists(), lambda: "it is still there")


def test_without_colour_no_colour_is_sent(tmp_path: Path, home: Path) -> None:
    made = Terminal(tmp_path, home, NO_COLOR="1")
    try:
        made.shows("nobody was watching")
        sent = [code.partition("m")[0] for code in made.tmux("capture-pane", "-p", "-e").split("\x1b[")[1:]]
        assert sent
        assert [] == [
            code for code in sent if code[:1] in {"3", "4", "9"} and code not in {"3", "4", "39", "49"}
        ]
    finally:
        made.end()
