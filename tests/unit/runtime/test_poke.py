"""Laws of poking a keeper: it is spared the wait, and nobody is hurt where there is none."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

from ftrun.hooks.runtime.wakeup_fifo import WakeupListener, wake


def test_who_is_poked_waits_no_longer(tmp_path: Path) -> None:
    """Also who was poked before it waited, however often: once. Who was not waits out its time."""
    ear = WakeupListener(str(tmp_path))
    for _ in range(3):
        wake(str(tmp_path))
    began_s = time.monotonic()
    ear.wait(300.0)
    assert time.monotonic() - began_s < 250.0  # it did not wait for its time
    began_s = time.monotonic()
    ear.wait(0.05)
    assert time.monotonic() - began_s >= 0.05


def test_where_nobody_listens_a_poke_is_nothing(tmp_path: Path) -> None:
    """No folder, no pipe, no keeper any more; and one that stands still costs the script no wait."""
    wake(str(tmp_path / "nowhere"))
    wake(str(tmp_path))
    assert not list(tmp_path.iterdir())
    os.mkfifo(tmp_path / "poke")
    wake(str(tmp_path))
    ear = WakeupListener(str(tmp_path))  # the pipe of a keeper that was killed is good for the next one
    for _ in range(70_000):
        wake(str(tmp_path))
    ear.wait(60.0)
    assert stat.S_ISFIFO((tmp_path / "poke").lstat().st_mode)


def test_a_keeper_that_cannot_be_poked_waits(tmp_path: Path) -> None:
    """It looks now and then in any case."""
    began_s = time.monotonic()
    WakeupListener(str(tmp_path / "nowhere")).wait(0.05)
    assert time.monotonic() - began_s >= 0.05
