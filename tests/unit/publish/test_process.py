"""The process that publishes comes back when it ends, and says why it cannot publish; the supervisor never waits for it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor.publish import process
from ftrun.supervisor.publish.process import PublishProcess


class Supervisor:
    """What stands in for the supervisor: a clock that a test moves, and what it was told."""

    def __init__(self, tmp: Path, *argv: str) -> None:
        self.mono_s = 0.0
        self.config = tmp / "ftrun" / "config.toml"
        self.config.parent.mkdir()
        self.config.write_text(f"metrics-folder = '{tmp}'\n")
        self.told: list[tuple[str, dict[str, Any]]] = []
        env = dict(os.environ) | {"FTRUN_HOME": str(tmp), "HOME": str(tmp), "XDG_CONFIG_HOME": str(tmp)}
        more = {"argv": (sys.executable, *argv)} if argv else {}
        self.publish = PublishProcess(
            env, lambda event, **more: self.told.append((event, more)), lambda: self.mono_s, **more
        )

    def look_until(self, met: Callable[[], object], within_s: float = 30.0) -> None:
        until_s = time.monotonic() + within_s
        while not met():
            assert time.monotonic() < until_s, self.publish.problems
            self.publish.look()
            time.sleep(0.02)

    @property
    def child(self) -> Any:
        return self.publish._child


def test_a_process_that_ends_is_named_and_started_again_after_a_pause_that_grows(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, "-c", "raise SystemExit(3)")
    for pause_s in (5, 10, 20):
        supervisor.look_until(lambda: supervisor.child is not None)
        supervisor.look_until(lambda: supervisor.child is None)
        assert supervisor.publish.problems == {
            "publisher": f"the process that publishes ended with exit code 3; it starts again within {pause_s} s"
        }
        supervisor.publish.look()
        assert supervisor.child is None, "not before its pause is over"
        supervisor.mono_s += pause_s


def test_a_process_that_says_nothing_is_ended_and_comes_back(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, "-c", "import time; time.sleep(600)")
    supervisor.publish.look()
    first = supervisor.child.pid
    supervisor.mono_s += process.SILENT_S + 1
    supervisor.look_until(lambda: supervisor.child is None)
    assert "by signal 9" in supervisor.publish.problems["publisher"]
    supervisor.mono_s += process.PAUSE_S
    supervisor.publish.look()
    assert supervisor.child.pid != first
    os.kill(supervisor.child.pid, signal.SIGKILL)
    supervisor.publish.stop()


def test_the_real_process_follows_and_ends_with_its_supervisor(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    supervisor.publish.look()
    child = supervisor.child
    supervisor.look_until((tmp_path / "publish" / "cursor.json").exists)
    assert supervisor.publish.problems == {}
    supervisor.publish.stop()
    assert child.wait(30) == 0


def test_a_change_of_the_settings_counts_without_a_new_supervisor(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, "-c", "import sys; sys.stdin.read()")
    asking = supervisor.config.read_text()
    supervisor.config.write_text("")
    supervisor.publish.look()
    assert supervisor.publish._child is None, "nothing asks for it"
    supervisor.config.write_text(asking)
    supervisor.publish.look()
    assert supervisor.publish._child is None, "settings are read once a minute"
    supervisor.mono_s += process.SETTINGS_EVERY_S
    supervisor.publish.look()
    first = supervisor.child.pid
    supervisor.config.write_text(asking + "metrics-port = 9107\n")
    supervisor.mono_s += process.SETTINGS_EVERY_S
    supervisor.look_until(lambda: supervisor.child is not None and supervisor.child.pid != first)
    assert supervisor.publish.problems == {}
    supervisor.config.write_text("")
    supervisor.mono_s += process.SETTINGS_EVERY_S
    supervisor.look_until(lambda: supervisor.child is None)
    assert supervisor.publish.problems == {}


def test_no_mistake_of_it_reaches_the_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = Supervisor(tmp_path)

    def broken(env: object) -> object:
        raise MemoryError("none left")

    monkeypatch.setattr(process, "asked_for", broken)
    supervisor.publish.look()
    assert supervisor.publish.problems == {"publisher": "MemoryError: none left"}


def test_wrong_settings_are_told_in_one_line(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    supervisor.config.write_text("retries = 'many'\n")
    supervisor.publish.look()
    assert supervisor.child is None
    assert list(supervisor.publish.problems) == ["settings"]
    assert "retries" in supervisor.publish.problems["settings"]
