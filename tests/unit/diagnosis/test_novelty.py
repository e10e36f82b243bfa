"""Laws of a failure that nobody has described: what is new or odd is shown, what is usual is not. (I/O)"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftrun.supervisor.cli import main
from ftrun.supervisor.diagnosis import unknown_cause
from ftrun.supervisor.diagnosis.unknown_cause import Line
from ftrun.supervisor.model.types import Topology
from ftrun.supervisor.telemetry.tail import LogPath

STEPS = "".join(
    f"2026-11-21 03:00:{number:02d} step {number}/90 loss 2.{number}\nflushed 12 buffers of worker {number}\n"
    for number in range(40)
)


def _lines(*texts: str, speaker: str = "") -> list[Line]:
    return [Line("log", number, text, speaker) for number, text in enumerate(texts, 1)]


def test_numbers_and_addresses_make_no_difference() -> None:
    """What differs each time it is printed is no part of a line's shape."""
    assert unknown_cause.line_shape("worker 12 at 0x7f3a took 1.5 s") == unknown_cause.line_shape(
        "worker 3 at 0xbeef took 22.75 s"
    )
    assert unknown_cause.line_shape("worker died") != unknown_cause.line_shape("worker lives")
    assert "" == unknown_cause.line_shape("=======")


def test_what_is_usual_is_not_suspicious() -> None:
    """A line that a healthy run prints, too, explains nothing, however bad it sounds."""
    usual = unknown_cause.line_shapes(["retry 7 failed, trying again"])
    found = unknown_cause.odd_lines(
        _lines("retry 9 failed, trying again", "the flux gate refused to open"), usual
    )

    assert ["the flux gate refused to open"] == [line.text for line in found]


def test_what_one_node_alone_says_comes_first() -> None:
    """All say that they end; one says why."""
    lines = [
        *_lines(*["leaving"] * 3, speaker="n1"),
        *_lines("gate 7 is stuck", "leaving", speaker="n2"),
        *[Line("log", n, f"note number {chr(97 + n) * 3}", "") for n in range(12)],
    ]

    assert "gate 7 is stuck" in [line.text for line in unknown_cause.odd_lines(lines)]


def test_a_line_of_trouble_stands_alone() -> None:
    """What merely is new beside it would pass for a proof."""
    lines = _lines(
        "tracking run abc", "saved locally", "cp: cannot stat 'best.json': No such file or directory"
    )

    assert [lines[-1].text] == [line.text for line in unknown_cause.odd_lines(lines)]


def test_the_last_words_are_shown_where_nothing_sounds_of_trouble() -> None:
    """Better the end of the log than nothing at all."""
    names = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta"]

    assert names[-5:] == [line.text for line in unknown_cause.odd_lines(_lines(*names))]


def test_what_stood_before_the_last_step_is_usual(tmp_path: Path) -> None:
    """Training went on after it, so it is no reason to stop."""
    log = tmp_path / "log"
    text = "cannot open the cache, going on without\n" + STEPS
    log.write_text(text + "cannot open the cache, going on without\nthe flux gate cannot open\n")
    (proof,) = unknown_cause.suspicious_lines(
        [LogPath(str(log))], Topology(), step_offset_bytes=len(text) - 40
    )

    assert ("the flux gate cannot open", 83) == (proof.text, proof.line)


def test_the_command_shows_what_is_new_against_a_healthy_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """12, and the lines that the healthy run does not have."""
    noise = "plugin zeta failed to load, using the default\n"
    (tmp_path / "good.log").write_text(noise + STEPS)
    (tmp_path / "bad.log").write_text(
        noise
        + "flux gate refused to open\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    )
    status = main(["diagnose", "--json", "--healthy", str(tmp_path / "good.log"), str(tmp_path / "bad.log")])
    found = json.loads(capsys.readouterr().out)

    assert (12, "unknown") == (status, found["class"])
    texts = [proof["text"] for proof in found["because"]]
    assert "flux gate refused to open" in texts
    assert noise.strip() not in texts
