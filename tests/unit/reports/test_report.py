"""The report tells a run in one file that a browser shows without asking anybody."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ftrun.supervisor.cli import main
from ftrun.supervisor.reports import report
from tests.unit.told_runs import Told, long_run

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202egpj\"' {{7*7}}"
VOID = {"meta", "link"}


class _Page(HTMLParser):
    """Elements by name, attributes, text; raises where an element is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def _page(told: Told, end_s: float, name: str = "train-0001") -> _Page:
    return _Page(
        report.run_report(told.run(name), told.ledger(end_s), 1000.0 + end_s, advice=["save more often"])
    )


def test_a_report_shows_the_run_its_time_its_training_and_its_faults() -> None:
    told, end_s = long_run(5)
    page = _page(told, end_s)
    for words in (
        "train-0001",
        "The run over time",
        "Where the time went",
        "productive",
        "redone",
        "loss",
        "Mean repair by class",
        "Save more often",
    ):
        assert words in page.text
    assert page.names.count("details") == 5
    assert page.names.count("polyline") >= 6


def test_a_lack_of_checkpoints_is_said_once() -> None:
    """By the advice, where that says how to name them."""
    told, end_s = long_run(1)
    advice = ["submit it with --ft-checkpoint='GLOB'"]
    page = report.run_report(told.run(), told.ledger(end_s), 1000.0 + end_s, advice=advice)
    assert page.count("--ft-checkpoint") == 1


def test_what_a_run_wrote_is_shown_and_never_run() -> None:
    told = Told(name=HOSTILE)
    told.opens(0)
    told.runs(5)
    told.steps(10, 1)
    told.say(20, "job.ended", state="FAILED")
    line = {"file": HOSTILE, "line": 7, "text": HOSTILE}
    diagnosis = {
        "class": "node",
        "signature": "s",
        "title": HOSTILE,
        "nodes": [HOSTILE],
        "because": [line],
        "rests_on": [HOSTILE],
    }
    told.say(21, "diagnosed", incident="1.0", diagnosis=diagnosis, step=3, first_evidence_at_s=None)
    told.say(22, "decided", incident="1.0", kind="resubmit", reason=HOSTILE, spent={}, retries=1)
    page = _page(told, 30, name=HOSTILE)
    assert not {"script", "img", "iframe", "object"} & set(page.names)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "<script>alert(1)</script>" in page.text
    assert "\\x1b[31m\\x202egpj" in page.text
    assert "{{7*7}}" in page.text
    assert "\u202e" not in page.text


def test_a_report_asks_nobody_for_anything() -> None:
    told, end_s = long_run(2)
    text = report.run_report(told.run(), told.ledger(end_s), 1000.0 + end_s)
    page = _Page(text)
    asked = [value for name, value in page.attributes if name in ("src", "href", "action", "srcset")]
    assert asked == ["data:,"]
    assert not re.search(r"url\(|@import|https?://", text)
    assert "default-src 'none'" in text


def test_a_run_without_steps_checkpoints_or_faults_has_a_report_that_says_what_is_missing() -> None:
    told = Told()
    told.opens(0)
    told.runs(5)
    told.say(60, "job.ended", state="COMPLETED")
    told.say(61, "run.finished", reason="the script exited 0")
    page = _page(told, 61)
    assert "unmeasured" in page.text
    assert "beat" in page.text
    assert "No checkpoint is named" in page.text
    assert "Faults" not in page.text


def test_a_large_run_stays_a_small_file() -> None:
    told, end_s = long_run(400)
    assert len(report.run_report(told.run(), told.ledger(end_s), 1000.0 + end_s)) < 1_600_000


def test_the_command_writes_the_file_and_tells_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    frozen = Path(__file__).parents[2] / "frozen/v1/inside/train.sh-0001"
    home = tmp_path / "home"
    (home / "runs").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    monkeypatch.setenv("FTRUN_HOME", str(home))
    monkeypatch.setenv("FTRUN_SUPERVISOR", "none")
    assert main(["report"]) == 1
    assert "no run so far" in capfd.readouterr().err
    shutil.copytree(frozen, home / "runs" / frozen.name)
    assert main(["report", frozen.name]) == 0
    written = home / "runs" / frozen.name / "report.html"
    assert capfd.readouterr().out.strip() == str(written)
    assert written.stat().st_mode & 0o777 == 0o600
    assert "Xid 79" in written.read_text()
    assert main(["report", "--html", "-"]) == 0
    assert frozen.name in capfd.readouterr().out
    assert main(["report", frozen.name, "--html", str(tmp_path / "no" / "x.html")]) == 1
    assert "cannot be written" in capfd.readouterr().err
    assert main(["report", frozen.name, "--since", "3d"]) == 2
    assert main(["stats", "--since", "yesterday"]) == 2
    assert "a time is wanted" in capfd.readouterr().err
