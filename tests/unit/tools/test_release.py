"""Laws of the installer for login nodes without a network. (I/O)"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

INSTALLER = Path(__file__).parents[3] / ".ci" / "release_install.sh"
OLD = "#!/bin/sh\ncase $2 in *platform*) echo 3.9.18 ;; *) exit 1 ;; esac\n"


def _install(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(INSTALLER), *words], env={**os.environ, **env}, capture_output=True, text=True
    )


def test_a_python_that_is_too_old_is_refused_in_one_line(tmp_path: Path) -> None:
    """Nothing is made, and the line says which Python was found and how to name another."""
    old = tmp_path / "python3"
    old.write_text(OLD)
    old.chmod(0o755)

    done = _install(str(tmp_path / "ftrun"), PYTHON=str(old))

    assert (1, 1) == (done.returncode, done.stderr.count("\n"))
    assert f"{old} is 3.9.18" in done.stderr
    assert "PYTHON=" in done.stderr
    assert not (tmp_path / "ftrun").exists()


def test_a_named_python_that_is_not_there_is_told(tmp_path: Path) -> None:
    """Nobody is given another Python than the one he names."""
    done = _install(str(tmp_path / "ftrun"), PYTHON=str(tmp_path / "none"))

    assert (1, 1) == (done.returncode, done.stderr.count("\n"))
    assert "there is no" in done.stderr
