"""Laws of a helper's life: it ends with whoever started it, also when that one died before the helper ran. (I/O)"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftrun.hooks.runtime.parent import PARENT_PID, Parent, environment_for_helper

ENDS_WITHIN_S = 30.0
HELPERS = {
    "verify-checkpoint": ["--run-dir", "{dir}", "--glob", "*"],
    "watch": ["--folder", "{dir}/attempts/1/nodes", "--period", "0.2"],
    "staging-daemon": [
        *("--attempt-folder", "{dir}/attempts/1", "--launch", "0", "--job", "1"),
        *("--base", "{dir}/base", "--to", "{dir}/to"),
    ],
}
STARTER = """
import os, subprocess, sys
from ftrun.hooks.runtime.parent import environment_for_helper
print(subprocess.Popen(sys.argv[1:], env=environment_for_helper(dict(os.environ)), stdout=subprocess.DEVNULL).pid)
"""


def _ended(pid: int) -> bool:
    """Whether the process is gone; one that nobody reaps has ended, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("name", HELPERS)
def test_a_helper_whose_starter_died_before_it_ran_ends(tmp_path: Path, name: str) -> None:
    """It never saw its parent, and takes nobody else for it."""
    (tmp_path / "attempts" / "1" / "nodes").mkdir(parents=True)
    (tmp_path / "to").mkdir()
    words = [word.format(dir=tmp_path) for word in HELPERS[name]]
    helper = [sys.executable, "-m", "ftrun.hooks.main", name, *words]
    starter = subprocess.run([sys.executable, "-c", STARTER, *helper], stdout=subprocess.PIPE, check=True)
    pid = int(starter.stdout)
    try:
        end_s = time.monotonic() + ENDS_WITHIN_S
        while not _ended(pid) and time.monotonic() < end_s:
            time.sleep(0.1)
        assert _ended(pid)
    finally:
        if not _ended(pid):
            os.kill(pid, signal.SIGKILL)


def test_the_pid_that_is_handed_over_counts_and_reaches_no_grandchild(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who hands over nothing is the present parent, unless that is init."""
    assert not Parent().is_gone

    assert {"A": "1", PARENT_PID: str(os.getpid())} == environment_for_helper({"A": "1"})
    monkeypatch.setenv(PARENT_PID, str(os.getpid()))
    assert Parent().is_gone
    assert PARENT_PID not in os.environ
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert Parent().is_gone
