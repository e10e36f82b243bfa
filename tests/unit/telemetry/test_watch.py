"""Logs of a launch: live equals offline, storms are bounded, and what was found is never lost."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.supervisor.diagnosis.inputs import read_attempt_files
from ftrun.supervisor.model.types import Action, Blame, Evidence, FaultClass, Layer, Role, Source
from ftrun.supervisor.signatures.catalog import Catalog, Signature
from ftrun.supervisor.signatures.scanner import SEGMENT_BYTES
from ftrun.supervisor.telemetry import log_file
from ftrun.supervisor.telemetry.log_file import KEPT_FIRST, KEPT_LAST, line_time_s
from ftrun.supervisor.telemetry.log_watcher import LogWatcher, WatchReport
from ftrun.supervisor.telemetry.tail import LogPath

PATTERNS = {"boom": "boom(?: (?P<code>\\d+))?", "end": "end$", "fall": "fell off the bus"}


def signature(name: str, pattern: str) -> Signature:
    return Signature(
        id=name,
        title=name,
        fault=FaultClass.UNKNOWN,
        layer=Layer.RUNTIME,
        role=Role.CAUSE,
        blame=Blame.UNKNOWN,
        pattern=pattern,
        action=Action.NONE,
        retry=True,
        exclude=False,
        priority=50,
        confidence=0.5,
        at_once=False,
        advice="",
        vendor="",
        sources=(Source.LOG,),
        fact="",
        examples=(),
        counter_examples=(),
    )


SIGNATURES = tuple(signature(name, pattern) for name, pattern in PATTERNS.items())
CATALOG = Catalog(SIGNATURES, {one.id: one for one in SIGNATURES}, "of tests/unit/telemetry/test_watch.py")


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def watcher(log: Path) -> LogWatcher:
    return LogWatcher([LogPath(str(log))], catalog=CATALOG)


def append(path: Path, text: str | bytes) -> None:
    with path.open("ab") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


def shape(report: WatchReport) -> list[Evidence]:
    """The evidence without the times of seeing it; running numbers only as an order."""
    return [replace(one, at_s=None, order=place) for place, one in enumerate(report.evidence)]


def found(report: WatchReport) -> list[tuple[str, int]]:
    return [(one.signature, one.line) for one in report.evidence]


def test_a_line_becomes_evidence_when_it_is_written(log: Path, watcher: LogWatcher) -> None:
    """Place, text, captures and the time it was seen."""
    append(log, "hello\n  boom 7\n")
    report = watcher.poll(12.5)

    (one,) = report.evidence
    assert (Source.LOG, "boom", "  boom 7", str(log), 2, 6) == (
        one.source, one.signature, one.text, one.file, one.line, one.offset_bytes,
    )  # fmt: skip
    assert ({"code": "7"}, 12.5, 1, False) == (dict(one.captures), one.at_s, one.count, one.progress_after)
    assert report.new == report.evidence
    assert () == watcher.poll(13.0).new


def test_a_last_line_without_newline_is_seen_after_a_quiet_poll(log: Path, watcher: LogWatcher) -> None:
    """A dying program leaves half a line: it is looked at when the file is quiet, and told once even if it goes on."""
    append(log, "boom")
    assert [] == found(watcher.poll(1.0))
    quiet = watcher.poll(2.0)
    assert [("boom", 1)] == found(quiet)
    assert quiet.new == quiet.evidence
    append(log, " 42\nboom\n")
    later = watcher.poll(3.0)

    assert [("boom", 1), ("boom", 2)] == found(later)
    assert [2] == [one.line for one in later.new]
    assert {"code": "42"} == dict(later.evidence[0].captures)
    assert quiet.evidence[0].order == later.evidence[0].order


def test_what_half_a_line_seemed_to_be_is_taken_back(log: Path, watcher: LogWatcher) -> None:
    """A pattern that held only for the half of the line is no evidence once the line is whole."""
    append(log, "the end")
    watcher.poll(1.0)
    assert [("end", 1)] == found(watcher.poll(2.0))
    append(log, "less story\n")

    assert [] == found(watcher.poll(3.0))


def test_a_line_was_survived_when_two_higher_steps_follow_in_the_same_file(
    log: Path, watcher: LogWatcher
) -> None:
    """The same step again, or a lower one, proves nothing; one higher step may have been under way elsewhere."""
    append(log, "step 10\nboom\nstep 10\nstep 9\nstep 11\nstep 11\n")
    assert [False] == [one.progress_after for one in watcher.poll(1.0).evidence]
    append(log, "step 12\nboom\n")
    report = watcher.poll(2.0)

    assert [True, False] == [one.progress_after for one in report.evidence]
    assert [8] == [one.line for one in report.new]


def test_the_first_step_after_a_line_proves_nothing(log: Path, watcher: LogWatcher) -> None:
    """Where no step was printed before, the first one is the mark that two others have to pass."""
    append(log, "boom\nstep 10\nstep 11\n")
    assert [False] == [one.progress_after for one in watcher.poll(1.0).evidence]
    append(log, "step 12\n")

    assert [True] == [one.progress_after for one in watcher.poll(2.0).evidence]


def test_an_error_behind_a_progress_bar_is_not_survived_by_that_bar(log: Path, watcher: LogWatcher) -> None:
    """Carriage returns separate what was printed before the error from what comes after."""
    bar = "\r 45%|####     | {}/1000 [00:10<01:10, 12.0it/s]"
    append(log, bar.format(449) + bar.format(450) + "boom\n")
    report = watcher.poll(1.0)

    assert [("boom", 1, False)] == [(one.signature, one.line, one.progress_after) for one in report.evidence]
    assert report.progress is not None
    assert 450 == report.progress.step


def test_a_storm_is_bounded_and_counted(log: Path, watcher: LogWatcher) -> None:
    """The first 20 and the last 5 lines of a signature are kept; the last one counts those between."""
    for burst in range(10):
        append(log, "".join(f"boom {burst * 100 + number}\n" for number in range(100)) + "fell off the bus\n")
        report = watcher.poll(float(burst))
    booms = [one for one in report.evidence if one.signature == "boom"]

    assert [*range(KEPT_FIRST), *range(1000 - KEPT_LAST, 1000)] == [
        int(one.captures["code"]) for one in booms
    ]
    assert (1000, 1 + 1000 - 25) == (sum(one.count for one in booms), booms[-1].count)
    assert 10 == len(report.evidence) - len(booms)
    assert KEPT_LAST == sum(one.signature == "boom" for one in report.new)


def test_a_storm_in_all_files_is_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When all files together hold too much, further files keep a first and a last line."""
    monkeypatch.setattr(log_file, "EVIDENCE_MAX", 60)
    paths = [tmp_path / str(number) for number in range(5)]
    for path in paths:
        append(path, "boom\n" * 100)
    report = read_attempt_files([str(path) for path in paths], catalog=CATALOG).report

    assert [25, 25, 25, 2, 2] == [sum(one.file == str(path) for one in report.evidence) for path in paths]
    assert 500 == sum(one.count for one in report.evidence)


@pytest.mark.parametrize("rotate", [False, True])
def test_truncation_and_rotation_keep_what_was_found(log: Path, watcher: LogWatcher, rotate: bool) -> None:
    """Old evidence stays, the new text is counted from its own first line, and steps go on."""
    append(log, "step 10\nstep 11\nboom 1")
    watcher.poll(1.0)
    if rotate:
        log.rename(log.with_name("log.1"))
    log.write_text("step 12\nstep 13\nboom 2\n")
    report = watcher.poll(2.0, fresh=True)

    assert [("boom", 3, True), ("boom", 3, False)] == [
        (one.signature, one.line, one.progress_after) for one in report.evidence
    ]
    assert report.new == report.evidence
    assert report.progress is not None
    assert (13, 8) == (report.progress.step, report.progress.offset_bytes)


def test_lines_are_counted_from_the_file_s_beginning(log: Path) -> None:
    """The text of earlier attempts is no evidence, but it is in front of ours: lines and offsets are the file's."""
    append(log, "boom\nboom\nsrun: half a line")
    start = log.stat().st_size
    append(log, "\nboom\n")
    watcher = LogWatcher([LogPath(str(log), start)], catalog=CATALOG)

    assert [(4, start + 1)] == [(one.line, one.offset_bytes) for one in watcher.poll(1.0).evidence]


def test_a_log_that_cannot_be_read_is_told(tmp_path: Path, log: Path) -> None:
    """Readable means all of them; the first that is not is named. No log at all is not readable either."""
    watcher = LogWatcher([LogPath(str(log)), LogPath(str(tmp_path / "err"))], catalog=CATALOG)
    append(log, "boom\n")
    report = watcher.poll(1.0)
    assert (False, f"{tmp_path}/err: there is no such file yet") == (report.readable, report.why_unreadable)
    assert [("boom", 1)] == found(report)
    assert report.last_fresh_open_s is None
    append(tmp_path / "err", "")
    report = watcher.poll(2.0, fresh=True)
    assert (True, "", 2.0) == (report.readable, report.why_unreadable, report.last_fresh_open_s)

    assert (False, "no log is known") == (
        (none := LogWatcher([], catalog=CATALOG).poll(1.0)).readable,
        none.why_unreadable,
    )


def test_growth_and_fresh_opens_have_their_times(log: Path, watcher: LogWatcher) -> None:
    """Growth is when bytes were read, a fresh open when all logs were opened anew; neither is the other."""
    append(log, "a\n")
    watcher.poll(1.0)
    report = watcher.poll(2.0)
    assert (1.0, 1.0) == (report.last_growth_s, report.last_fresh_open_s)
    report = watcher.poll(3.0, fresh=True)
    assert (1.0, 3.0) == (report.last_growth_s, report.last_fresh_open_s)
    append(log, "b\n")
    report = watcher.poll(4.0)
    assert (4.0, 3.0) == (report.last_growth_s, report.last_fresh_open_s)


def test_one_file_under_two_names_is_read_once(log: Path) -> None:
    """`-o` and `-e` of one job may be the same file."""
    append(log, "boom\n")
    facts = log.stat()
    link = log.with_name("link")
    os.link(log, link)
    same = [LogPath(str(path), 0, facts.st_dev, facts.st_ino) for path in (log, link)]

    assert 1 == len(LogWatcher(same, catalog=CATALOG).poll(1.0).evidence)
    assert 1 == len(LogWatcher([LogPath(str(log))] * 2, catalog=CATALOG).poll(1.0).evidence)


def test_progress_of_many_files_is_that_of_the_strongest_counter(tmp_path: Path) -> None:
    """The global step of one file beats the bar of another; the furthest checkpoint counts wherever it is told."""
    texts = {
        "bar": " 45%|####     | 450/1000 [00:10<01:10, 12.0it/s]\n",
        "steps": "global_step=7 loss=2.5\nglobal_step=8 loss=2.4\n",
        "saves": "step 3\nsaved checkpoint /a/step_8.pt\n",
    }
    for name, text in texts.items():
        append(tmp_path / name, text)
    progress = read_attempt_files([str(tmp_path / name) for name in texts], catalog=CATALOG).report.progress

    assert progress is not None
    assert (8, 2.4, 8, "/a/step_8.pt") == (
        progress.step, progress.loss, progress.checkpoint_step, progress.checkpoint_path,
    )  # fmt: skip


def test_an_endless_line_costs_bounded_memory(log: Path, watcher: LogWatcher) -> None:
    """A line without end is cut: what follows it is found, and so is what is in it."""
    log.write_bytes(b"x" * (20 * SEGMENT_BYTES) + b" boom 7 " + b"y" * (20 * SEGMENT_BYTES))
    while watcher.poll(1.0).behind:
        pass
    append(log, "\nboom 8\n")
    report = watcher.poll(2.0)

    assert [("7", 1), ("8", 2)] == [(one.captures["code"], one.line) for one in report.evidence]
    assert all(len(one.text) <= 2000 for one in report.evidence)
    assert shape(report) == shape(read_attempt_files([str(log)], catalog=CATALOG).report)


def test_collect_reads_packed_files_and_standard_input(tmp_path: Path) -> None:
    """A packed log is known by its content; a file that is not there is told, and the others are read."""
    packed = tmp_path / "log.gz"
    packed.write_bytes(gzip.compress(b"one\nboom"))
    torn = tmp_path / "torn"
    torn.write_bytes(packed.read_bytes()[:-9])
    report = read_attempt_files(
        [str(packed), str(tmp_path / "none"), str(torn)], catalog=CATALOG, stdin=b"boom\n"
    ).report

    assert [("<stdin>", 1), (str(packed), 2)] == [(one.file, one.line) for one in report.evidence[:2]]
    assert (False, f"{tmp_path}/none: No such file or directory") == (report.readable, report.why_unreadable)
    assert [None] == list({one.at_s for one in report.evidence})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-02T03:04:05Z boom", 1767323045.0),
        ("[2026-01-02 03:04:05,250] boom 2026-01-03T00:00:00Z", 1767323045.25),
        ("2026/01/02 03:04:05.5 boom", 1767323045.5),
        ("2026-01-02T05:04:05+02:00 boom", 1767323045.0),
        ("2026-01-01T22:34:05-0430 boom", 1767323045.0),
        ("03:04:05 boom", None),
        ("2026-13-02 03:04:05 boom", None),
        ("12026-01-02 03:04:05 boom", None),
    ],
)
def test_a_full_date_in_the_line_is_its_time(text: str, expected: float | None, in_utc: None) -> None:
    """A line's own time needs a year, a month and a day; a clock alone could be of any day."""
    assert expected == line_time_s(text)


@pytest.fixture
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    return time.tzset


PARTS = st.sampled_from(
    [
        b"boom", b"boom 12", b"end", b"fell off the bus", b"\n", b"\n", b"\n", b"\r", b"\r\n", b" ", b"step 1\n", b"step 2\n", b"step 3",
        b"step 4\n", b"\x00", b"\xff\xfe", b"\x1b[31m", b"global_step=9\n", b"x" * (SEGMENT_BYTES - 2), b"boom\n" * 40,
        b"2026-01-02T03:04:05Z ", "\u2588 45%|".encode(), b"saved checkpoint /a/step_3.pt\n",
        b"step 5 loss 2.0\n", b"step 6 loss: nan", b"loss 9.0\n",
    ]
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(
    parts=st.lists(PARTS, max_size=30),
    writes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 2)), max_size=12),
)
def test_live_equals_offline(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], writes: list[tuple[int, int]]
) -> None:
    """However a log grows and whenever it is looked at, in the end the evidence is that of the whole file."""
    text = b"".join(parts)
    path = tmp_path_factory.mktemp("watch") / "log"
    path.touch()
    watcher = LogWatcher([LogPath(str(path))], catalog=CATALOG)
    told: list[Evidence] = []
    now_s = 0.0
    for size, polls in [*writes, (len(text), 2)]:
        append(path, text[:size])
        text = text[size:]
        for _ in range(polls):
            now_s += 1.0
            told += watcher.poll(now_s, fresh=size % 2 == 1).new
    live = watcher.poll(now_s + 1)
    watcher.close()
    offline = read_attempt_files([str(path)], catalog=CATALOG).report

    assert shape(offline) == shape(live)
    assert (offline.progress, offline.health) == (live.progress, live.health)
    assert len(told) == len({one.order for one in told})
    assert {one.order for one in live.evidence} <= {one.order for one in told}
