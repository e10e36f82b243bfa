"""The man pages are roff that every formatter takes. (I/O)"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ftrun.supervisor.config.settings import SETTINGS

FOLDER = Path(__file__).resolve().parents[3] / "man"
PAGES = sorted(FOLDER.glob("*.1"))


def _needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")


def test_mandoc_finds_nothing_to_complain_of() -> None:
    """But that the pages have no date: each says what its version does."""
    _needs("mandoc")
    done = subprocess.run(["mandoc", "-Tlint", "-Wwarning", *PAGES], capture_output=True, text=True)

    assert [] == [line for line in done.stdout.splitlines() if 'missing date, using "": TH' not in line]


def test_groff_finds_nothing_to_complain_of() -> None:
    """With every warning on."""
    _needs("groff")
    for page in PAGES:
        done = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-z", page], capture_output=True, text=True)
        assert ("", 0) == (done.stderr, done.returncode), page.name


def test_man_shows_a_page_as_it_is_installed(tmp_path: Path) -> None:
    """Found by name in a folder of pages, with the help's own words."""
    _needs("man")
    (tmp_path / "man1").symlink_to(FOLDER)
    shown = subprocess.run(
        ["man", "-M", str(tmp_path), "-P", "cat", "ftrun-supervise"], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
    )  # fmt: skip

    assert "Supervise all runs until interrupted" in " ".join(shown.stdout.split()), shown.stderr


def test_the_page_of_sbatch_has_every_setting_of_a_submission() -> None:
    """Those that may stand on its command line, and no other."""
    text = (FOLDER / "ftrun-sbatch.1").read_text(encoding="utf-8").replace("\\-", "-")
    shown = {key for key in SETTINGS if f"--ft-{key}\\fR\n" in text or f"--ft-{key}\\fR=" in text}

    assert {key for key, row in SETTINGS.items() if row.scope in ("any", "once")} == shown
