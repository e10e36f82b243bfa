"""Each launch answers for its own lines: laws of logs that several launches share."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.supervisor.diagnosis import inputs, unknown_cause
from ftrun.supervisor.model.types import Topology
from ftrun.supervisor.telemetry import log_watcher
from ftrun.supervisor.telemetry.tail import LogPath, Piece, Tail
from tests.fake_slurm import faults
from tests.unit.lives import Life

OFF_THE_BUS = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."


def _starts_again_unwatched(life: Life) -> None:
    """A fatal line, a requeue, and the next launch trains; nobody looks meanwhile."""
    life.until("running")
    life.train(1, 5)
    life.say(OFF_THE_BUS)
    faults.requeue(life.engine, 1)
    life.engine.advance(30)
    assert len(life.launches) == 2
    life.say(*(f"step {step}/100000 loss 0.5" for step in range(6, 12)))


@pytest.mark.parametrize("anew", [False, True], ids=["same", "anew"])
def test_a_launch_answers_for_its_own_lines_alone(tmp_path: Path, anew: bool) -> None:
    """A fault is no survived one because the next launch, which writes into the same log, makes steps."""
    life = Life(tmp_path)
    _starts_again_unwatched(life)
    if anew:
        life.begin_anew()
    life.live(20)

    (incident,) = [i for i in life.run.incidents if i.launch == 0]
    assert (incident.fault, incident.step) == ("hardware-gpu", 5)


def test_lines_of_the_next_launch_that_were_read_too_early_are_taken_back(tmp_path: Path) -> None:
    """A supervisor that reads on before Slurm tells of the next launch finds out whose lines they were."""
    life = Life(tmp_path)
    life.until("running")
    life.train(1, 5)
    life.say(OFF_THE_BUS)
    life.live(1)
    world = life.supervisor._snapshot
    assert world is not None
    faults.requeue(life.engine, 1)
    life.engine.advance(30)
    record = Path(life.run_dir) / "attempts" / "1" / "launch.1"
    hidden = record.rename(record.with_name("hidden"))
    life.say(*(f"step {step}/100000 loss 0.5" for step in range(6, 12)))
    life.supervisor.reconcilers[life.run_dir].glance(world)
    hidden.rename(record)
    life.live(20)

    (incident,) = [i for i in life.run.incidents if i.launch == 0]
    assert (incident.fault, incident.step) == ("hardware-gpu", 5)


def _folder(tmp_path: Path, *rows: tuple[int, int, dict[str, object]]) -> str:
    """A run with these (attempt, launch, record)."""
    for attempt, launch, record in rows:
        place = tmp_path / "run" / "attempts" / str(attempt)
        place.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{key}={value}\n" for key, value in record.items())
        (place / f"launch.{launch}").write_text(text)
    return str(tmp_path / "run")


def _record(path: str, ino: int, offset_bytes: int, dev: int = 7) -> dict[str, object]:
    both = {"": path, "_dev": dev, "_ino": ino, "_offset": offset_bytes}
    return {f"{stream}{key}": value for stream in ("stdout", "stderr") for key, value in both.items()}


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (_record("/log", 5, 90), [LogPath("/log", 40, 7, 5, 90)]),
        (_record("/log", 5, 40), [LogPath("/log", 40, 7, 5, 40)]),
        (_record("/log", 5, 90, dev=8), [LogPath("/log", 40, 7, 5, 90)]),
        (_record("/other", 6, 90), [LogPath("/log", 40, 7, 5)]),
        (_record("/log", 0, 0), [LogPath("/log", 40, 7, 5)]),
        (_record("/log", 6, 90), []),
        (_record("/log", 5, 0), []),
    ],
    ids=["appended", "silent", "another-host", "own-file", "unknown", "replaced", "emptied"],
)
@pytest.mark.parametrize("place", [(1, 2), (2, 0)], ids=["next-launch", "next-attempt"])
def test_a_log_ends_where_the_next_launch_begins_in_it(
    tmp_path: Path, place: tuple[int, int], after: dict[str, object], expected: list[LogPath]
) -> None:
    """Appended: up to there; another file, or nobody knows: to the end; emptied or replaced: nothing of it is left."""
    run_dir = _folder(tmp_path, (1, 1, _record("/log", 5, 40)), (*place, after))

    assert log_watcher.launch_logs(run_dir, 1, 1) == expected


def test_a_log_of_which_a_part_is_known_is_read_to_there(tmp_path: Path) -> None:
    """Live, afterwards and for its last words: no byte behind the end, however the file grows, is emptied or replaced."""
    path = tmp_path / "log"
    path.write_text("old\nmine 1\nmine 2\nnext\n")
    log = LogPath(str(path), 4, end_offset_bytes=18)
    tail = Tail(log)

    assert tail.read() == [Piece(b"mine 1\nmine 2\n", 4, 0)]
    words = {proof.text for proof in unknown_cause.suspicious_lines([log], Topology())}
    assert words
    assert words <= {"mine 1", "mine 2"}
    for text in ("old\nmine 1\nmine 2\nnext\nmore\n", "new\n" * 99, ""):
        path.write_text(text)
        assert [tail.read(fresh=fresh) for fresh in (False, True)] == [[], []]
        assert (tail.readable, tail.more) == (True, False)
    path.unlink()
    path.write_text("another file\n" * 9)
    assert tail.read(fresh=True) == []
    assert Tail(LogPath(str(path), 400, end_offset_bytes=500)).read() == []


def test_what_is_judged_afterwards_ends_there_too(tmp_path: Path) -> None:
    """The same lines, read whole."""
    path = tmp_path / "log"
    path.write_text(f"step 1 loss 2\n{OFF_THE_BUS}\n" + "Traceback (most recent call last):\nKeyError: 'x'\n")
    end = path.read_text().index("Traceback")

    report = inputs.read_attempt_files([LogPath(str(path), end_offset_bytes=end)]).report

    assert {one.text for one in report.evidence} == {OFF_THE_BUS}
