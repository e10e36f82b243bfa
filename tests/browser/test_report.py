"""The report in a real headless Chromium: what it draws, and that it says nothing and asks nobody."""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path

import pytest

from ftrun.supervisor.reports import report
from tests.unit.told_runs import long_run

pytestmark = pytest.mark.browser

PICTURES = Path("/tmp/ftrun-pages")
DEADLINE_S = 120
OPEN_S = 1.0


def _browse(page: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Open a page; all that its console says comes on stderr."""
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
    command = [*browser, "--enable-logging=stderr", *words, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)


def _used_s(page: Path, folder: Path) -> float:
    """Processor seconds of opening it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _browse(page, folder, "--dump-dom")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _written(folder: Path, faults: int, name: str = "train-0001") -> Path:
    told, end_s = long_run(faults)
    page = folder / f"{faults}.html"
    page.write_text(
        report.run_report(told.run(name), told.ledger(end_s), 1000.0 + end_s, advice=["save more often"])
    )
    return page


@pytest.mark.parametrize("width", [1200, 400])
def test_the_console_stays_silent_and_the_page_is_drawn(tmp_path: Path, width: int) -> None:
    PICTURES.mkdir(exist_ok=True)
    picture = PICTURES / f"report-{width}.png"
    picture.unlink(missing_ok=True)
    page = _written(tmp_path, 12, "<script>alert(1)</script>")
    done = _browse(
        page, tmp_path, f"--window-size={width},2400", "--hide-scrollbars", f"--screenshot={picture}"
    )
    assert "CONSOLE" not in done.stderr
    assert picture.stat().st_size > 20_000
    shown = _browse(page, tmp_path, "--dump-dom").stdout
    assert "<script" not in shown.replace("&lt;script", "")
    assert "&lt;script&gt;alert(1)" in shown


def test_a_thousand_faults_open_within_a_second_of_processor_time(tmp_path: Path) -> None:
    """Beyond an empty page, in the same run: the browser's own start is not ours."""
    empty = tmp_path / "empty.html"
    empty.write_text("<!DOCTYPE html><title>x</title>")
    large = _written(tmp_path, 1000)
    _used_s(empty, tmp_path)  # a first start makes its profile
    assert min(_used_s(large, tmp_path) for _ in range(3)) - _used_s(empty, tmp_path) < OPEN_S
