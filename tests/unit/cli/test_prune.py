"""Laws of `ftrun prune`: only what is over and old goes, and it goes whole. (I/O)"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from ftrun.supervisor.cli import control, main
from ftrun.supervisor.cli.control import Candidate, Rules, choose

FROZEN = Path(__file__).resolve().parents[2] / "frozen" / "v1"
OVER = ["recovered", "requeued", "stopped", "cancelled", "array"]
DAY = 86_400.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with five runs that are over and one that is not; the job ids are indexed."""
    monkeypatch.setenv("FTRUN_HOME", str(tmp_path))
    monkeypatch.setenv("FTRUN_SUPERVISOR", "none")
    (tmp_path / "index").mkdir()
    for name in [*OVER, "cut"]:
        source = next(path for path in (FROZEN / name).iterdir() if path.is_dir())
        run = source.name if name != "cut" else "unfinished-0001"
        shutil.copytree(source, tmp_path / "runs" / run)
        (tmp_path / "runs" / run / "requests").mkdir()
        (tmp_path / "index" / f"7{OVER.index(name) if name in OVER else 9}").symlink_to(f"../runs/{run}")
    return tmp_path


def _runs(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "runs").iterdir())


def _pruned(capsys: pytest.CaptureFixture[str], *options: str, status: int = 0) -> list[str]:
    assert status == main(["prune", "--json", *options])
    return [row["run"] for row in json.loads(capsys.readouterr().out)["removed"]]


def test_what_is_over_and_old_goes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All that ended before the age, and never a run that has not ended."""
    assert 5 == len(_pruned(capsys, "--days=0"))
    assert ["unfinished-0001"] == _runs(home)


def test_what_is_young_stays(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Within the age nothing goes."""
    assert [] == _pruned(capsys, "--days=100000")
    assert 6 == len(_runs(home))


def test_a_dry_run_only_tells(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--dry-run` names the same runs and removes none."""
    told = _pruned(capsys, "--days=0", "--dry-run")

    assert 6 == len(_runs(home))
    assert told == _pruned(capsys, "--days=0")


def test_the_newest_stay(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--keep N` protects the N that ended last, whatever their age."""
    assert 3 == len(_pruned(capsys, "--days=0", "--keep=2"))
    assert 3 == len(_runs(home))


def test_a_request_keeps_a_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stopped run that somebody wants to resume is not taken from under their hands."""
    wanted = home / "runs" / "scancel-resubmitted-0001"
    (wanted / "requests" / "1-resume.json").write_text('{"want": "resume"}')

    _pruned(capsys, "--days=0")

    assert wanted.is_dir()


def test_a_request_of_the_last_moment_keeps_a_run(home: Path) -> None:
    """One that comes between the choice and the removal puts the run back."""
    over, _ = control.list_candidates(str(home), 1e12)
    one = over[0]
    Path(one.path, "requests", "1-resume.json").write_text("{}")

    assert not control.remove(str(home), one)
    assert Path(one.path).is_dir()


@pytest.mark.parametrize(
    "damage", ['{"v":1,"ki\n{"v":1}\n', '{"v":2,"seq":0,"at":1,"kind":"warned"}\n', None]
)
def test_a_run_that_cannot_be_read_is_never_removed(
    home: Path, damage: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damaged, newer than this ftrun, or without a journal: kept and named."""
    run_dir = home / "runs" / "torn-checkpoint-0001"
    if damage is None:
        shutil.rmtree(run_dir / "journal")
    else:
        (run_dir / "journal" / "000009-x.000.jsonl").write_text(damage)

    assert "torn-checkpoint-0001" not in _pruned(capsys, "--days=0")
    assert run_dir.is_dir()


def test_links_of_the_removed_go_and_those_of_others_stay(home: Path) -> None:
    """The index forgets the jobs of a removed run, unless the id now belongs to another one."""
    over, _ = control.list_candidates(str(home), 1e12)
    one = next(c for c in over if c.run == "torn-checkpoint-0001")
    (home / "index" / one.jobs[0]).symlink_to(f"../runs/{one.run}")
    (home / "index" / one.jobs[1]).symlink_to("../runs/unfinished-0001")

    control.remove(str(home), one)

    assert not (home / "index" / one.jobs[0]).is_symlink()
    assert (home / "index" / one.jobs[1]).is_symlink()


def test_a_half_removed_run_is_seen_by_nobody_and_swept(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A crash in the middle leaves a hidden folder that no command lists; the next prune removes it."""
    os.rename(home / "runs" / "torn-checkpoint-0001", home / "runs" / ".removing-torn-checkpoint-0001")
    main(["status", "--all", "--json"])
    assert 5 == len(json.loads(capsys.readouterr().out)["runs"])

    _pruned(capsys, "--days=100000")

    assert ".removing-torn-checkpoint-0001" not in _runs(home)


def test_it_says_what_it_freed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last line counts runs and bytes."""
    assert 0 == main(["prune", "--days=0", "--keep=3"])

    out = capsys.readouterr().out
    assert "2 runs removed" in out.splitlines()[-1]
    assert "3 kept" in out.splitlines()[-1]


@pytest.mark.parametrize("size", ["many", "-1", "5X", "nan"])
def test_a_size_that_is_none_is_wrong_usage(
    home: Path, size: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, one line, nothing removed."""
    assert 2 == main(["prune", f"--max-size={size}"])
    assert 1 == len(capsys.readouterr().err.splitlines())
    assert 6 == len(_runs(home))


def _candidates(*sizes: int) -> list[Candidate]:
    """Newest first, a day apart."""
    return [Candidate(f"r-{i}", "", "finished", -i * DAY, size, ()) for i, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("rules", "gone"),
    [
        (Rules(30 * DAY), []),
        (Rules(1.5 * DAY), ["r-3", "r-2"]),
        (Rules(30 * DAY, size_bytes=25), ["r-3", "r-2"]),
        (Rules(30 * DAY, keep=3, size_bytes=0), ["r-3"]),
        (Rules(0.0, keep=4), []),
        (Rules(30 * DAY, size_bytes=1000), []),
    ],
)
def test_age_number_and_size_together(rules: Rules, gone: list[str]) -> None:
    """Old goes, what exceeds the size goes with the oldest first, the newest N never."""
    assert gone == [one.run for one in choose(_candidates(10, 10, 10, 10), rules, 0.0)]
