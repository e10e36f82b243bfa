"""Laws of reading for the board: what is new is read, one bad journal hurts nobody, every line fits. (I/O)"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftrun.supervisor.board import lines
from ftrun.supervisor.board.logs import LogFollower, shown_line
from ftrun.supervisor.board.reading import HomeReader, in_order
from ftrun.supervisor.board.screen import NODE_COLUMNS
from ftrun.supervisor.reports import view_run
from ftrun.supervisor.store import journal
from tests.unit import made_home


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made_home.make(tmp_path)
    return tmp_path


def test_a_damaged_journal_is_told_and_hurts_no_other_run(home: Path) -> None:
    reader = HomeReader(str(home))
    assert 6 == len([*reader.round()])
    assert reader.whole
    names = [one.name for one in in_order(reader.runs.values(), every=True)]
    assert ["broken-0002", "eval-0003", "odd-0001", "tune-lora-0007", "llm-7b-0042", "vision-0011"] == names
    assert "checksum" in reader.runs[str(home / "runs" / "broken-0002")].why
    assert "vision-0011" not in [one.name for one in in_order(reader.runs.values(), every=False)]


@pytest.mark.parametrize(
    ("word", "found"), [("LLM", "llm-7b-0042"), ("4730", "eval-0003"), ("n7", "tune-lora-0007")]
)
def test_a_run_is_found_by_its_id_job_or_node(home: Path, word: str, found: str) -> None:
    reader = HomeReader(str(home))
    [*reader.round()]
    assert [found] == [one.name for one in in_order(reader.runs.values(), every=True, wanted=word)]


def test_a_round_tells_only_what_is_new(home: Path) -> None:
    """A run that grew, one that is gone, one that came; what is over is looked at in some rounds only."""
    reader = HomeReader(str(home))
    [*reader.round()]
    assert [] == [*reader.round()]
    path = home / "runs" / "eval-0003" / "journal" / made_home.FIRST
    numbers = {"attempt": 1, "job": "4730", "launch": 0, "start": 1}
    record = journal.new_record(
        "job.started", numbers, {"nodes": ["n9"], "started_at_s": None}, seq=4, now_s=1e9
    )
    with path.open("ab") as stream:
        stream.write(journal.record_line(record))
    assert ["eval-0003"] == [one.name for one in reader.round()]
    run = reader.runs[str(path.parent.parent)].run
    assert run is not None
    assert "running" == run.state.value
    os.rename(home / "runs" / "odd-0001", home / "runs" / "odd-0009")
    assert ["odd-0009"] == [one.name for one in reader.round()]


def test_a_home_that_cannot_be_read_keeps_what_was_shown(home: Path) -> None:
    reader = HomeReader(str(home))
    [*reader.round()]
    os.rename(home / "runs", home / "elsewhere")
    (home / "runs").write_text("")
    assert [] == [*reader.round()]
    assert "runs" in reader.why
    assert 6 == len(reader.runs)


@pytest.mark.parametrize("width", [20, 40, 58, 78, 98, 118, 138, 250])
def test_every_line_fits(home: Path, width: int) -> None:
    """The cells of a run fill their columns exactly, at any width; the seven that matter most are there at 80."""
    reader = HomeReader(str(home))
    seen = [one for one in reader.round() if one.run is not None]
    runs = [one.run for one in seen if one.run is not None]
    wanted = lines.wanted_widths(runs, [one.name for one in seen], width, watched=False)
    for columns in (lines.COLUMNS, NODE_COLUMNS):
        layout = lines.fitting(columns, width, wanted)
        assert sum(size for _, size in layout) + lines.gap(width) * (len(layout) - 1) <= width
    layout = lines.fitting(lines.COLUMNS, width, wanted)
    if width >= 78:
        seven = {"RUN", "STATE", "STEP", "S/STEP", "LOSS", "TIME LEFT", "LAST FAULT"}
        assert seven <= {column.name for column, _ in layout}
        assert {column.name: size for column, size in layout}["LOSS"] >= 14
    for one in seen:
        assert one.run is not None
        texts = lines.cells(view_run.run_row(one.run, 2e9), tuple(one.points), None, 2e9, watched=False)
        assert all(
            size == len(lines.fitted(texts[column.name], column, size, tuple(one.points)))
            for column, size in layout
        )


def test_texts_that_are_too_long_keep_what_matters() -> None:
    column = {one.name: one for one in lines.COLUMNS}
    assert "pretr…b-0042" == lines.fitted("pretrain-llama-70b-0042", column["RUN"], 12)
    assert "unwatched " == lines.fitted("unwatched, running", column["STATE"], 10)
    assert "pause asked " == lines.fitted("running (pause asked)", column["STATE"], 12)
    assert "1234567" == lines.fitted("1,234,567", column["STEP"], 7)
    assert ["", "0.021", "2.31", "412", "1.2e-05", "nan"] == [
        lines.number_text(value) for value in (None, 0.0213, 2.314, 412.3, 1.2e-5, float("nan"))
    ]


def test_a_sparkline_falls_as_the_loss_does() -> None:
    """However many values there are; what is no number is left out."""
    assert "" == lines.sparkline([], 8)
    assert "▁▁▁" == lines.sparkline([2, 2, 2], 8)
    assert "██▅▁" == lines.sparkline([9, 3, 2, 1], 8)
    falling = lines.sparkline([100 / (1 + i) for i in range(500)] + [float("nan")], 12)
    assert 12 == len(falling)
    assert [*falling] == sorted(falling, reverse=True)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"step 1\x1b[31m loss\x1b[0m 2", "step 1 loss 2"),
        (b"10%|#  |\r 90%|## |\r100%|###|\r", "100%|###|"),
        (b"\x1b]0;title\x07evil \x07 \xff\xe2\x80\xae", "evil \\x07 \ufffd\\x202e"),
    ],
)
def test_a_line_of_a_log_does_nothing_to_the_screen(line: bytes, shown: str) -> None:
    assert shown == shown_line(line)


def test_a_log_is_followed_from_its_end_over_starts(tmp_path: Path) -> None:
    """The end first, then whole lines as they come; a new attempt begins with a line that names it."""
    made_home.make(tmp_path)
    folder, log = tmp_path / "runs" / "tune-lora-0007", tmp_path / "out.log"
    log.write_bytes(b"old\n" * 10_000 + b"newest\nhalf a ")
    made_home.launch(folder, 1, log)
    run, follower = journal.load_run(str(folder)), LogFollower(str(folder))
    first = [*follower.new_lines(run)]
    assert first[0].startswith("----- attempt 1: job 4725 on n7")
    assert "newest" == first[-1]
    assert len(first) < 5000
    with log.open("ab") as stream:
        stream.write(b"line\nnext\n")
    assert ["half a line", "next"] == [*follower.new_lines(run)]
    assert [] == [*follower.new_lines(run)]
    log.write_bytes(b"begun anew\n")
    assert ["begun anew"] == [*follower.new_lines(run)]
