"""Laws of starting a supervisor that outlives its starter. (I/O)"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from ftrun.supervisor.submission import start_supervisor


def test_modules_of_the_user_s_folder_are_not_taken_for_python_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project may have a `re.py` and a `json.py`; a supervisor started from there neither breaks nor runs them."""
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    for name in ("re", "json", "typing", "ftrun"):
        (project / f"{name}.py").write_text(
            f"open({str(tmp_path / 'was-run')!r}, 'w')\nraise SystemExit(3)\n"
        )
    monkeypatch.chdir(project)

    pid = start_supervisor.ensure_supervisor(str(home), dict(os.environ))
    try:
        deadline = time.monotonic() + 120.0
        while not start_supervisor.holder_alive_here(str(home)) and time.monotonic() < deadline:
            time.sleep(0.05)

        assert start_supervisor.holder_alive_here(str(home)), (home / "supervisor.log").read_text()
        assert not (tmp_path / "was-run").exists()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
