"""Runs that a released ftrun wrote are read by every later one; what a newer one wrote is left alone. (I/O)"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor.cli import main
from ftrun.supervisor.controller.loop import Supervisor
from ftrun.supervisor.model import events
from ftrun.supervisor.model import run as model_run
from ftrun.supervisor.model.renamed_settings import rename_settings
from ftrun.supervisor.model.states import State
from ftrun.supervisor.reports import view_run
from ftrun.supervisor.store import journal
from ftrun.supervisor.store.lease import Lease, SystemClock
from tests.fake_slurm.cluster import Engine, MemoryCluster
from tests.unit import moves

FROZEN = Path(__file__).resolve().parents[2] / "frozen"
RUNS = sorted(path for path in FROZEN.glob("v*/*/*") if path.is_dir())
IDS = [f"{path.parents[1].name}-{path.parent.name}" for path in RUNS]


def _folded(run_dir: Path) -> model_run.Run:
    return events.fold(run_dir.name, journal.read_run(str(run_dir)))


def _says_as_much(now: Any, then: Any) -> bool:
    """Everything that was said then is said now; new keys may have come."""
    if isinstance(then, dict):
        return isinstance(now, dict) and all(
            key in now and _says_as_much(now[key], then[key]) for key in then
        )
    if isinstance(then, list):
        return len(now) == len(then) and all(map(_says_as_much, now, then))
    return bool(now == then)


def test_every_schema_version_has_its_frozen_runs() -> None:
    """A new version of the journal is released with runs of its own, and no old ones are dropped."""
    assert {f"v{n}" for n in range(1, journal.VERSION + 1)} == {path.name for path in FROZEN.glob("v*")}


@pytest.mark.parametrize("run_dir", RUNS, ids=IDS)
def test_a_frozen_run_folds_to_the_same_facts(run_dir: Path) -> None:
    """What a release said of a run, every later release says: a newer ftrun continues an older one's runs."""
    run = _folded(run_dir)
    then = json.loads((run_dir.parent / "facts.json").read_text())
    if "settings" in then:
        then["settings"] = rename_settings(then["settings"])

    assert _says_as_much(view_run.run_facts(run, run.last_at_s), then)


@pytest.mark.parametrize("run_dir", RUNS, ids=IDS)
def test_the_parts_of_a_frozen_run_move_by_their_tables(run_dir: Path) -> None:
    """The tables of the parts of a run have every move that a released ftrun wrote."""
    assert [] == moves.unlisted_moves(run_dir.name, journal.read_run(str(run_dir)))


@pytest.mark.parametrize("run_dir", RUNS, ids=IDS)
def test_every_beginning_of_a_frozen_run_is_a_run(run_dir: Path) -> None:
    """Wherever a crash cut the journal, what stands before the cut folds without an error."""
    records = journal.read_run(str(run_dir))

    states = [events.fold("r-1", records[:end]).state for end in range(len(records) + 1)]

    assert State.NEW is states[0]
    assert _folded(run_dir).state is states[-1]


def test_a_run_cut_in_mid_recovery_knows_what_is_left_to_do() -> None:
    """Decision, exclusion and budget stand; the attempt is not over yet, and no second one was opened."""
    run = _folded(FROZEN / "v1" / "cut" / "node-frozen-0001")

    assert State.RECOVERING is run.state
    assert ("resubmit", ["n0"]) == (run.decision["kind"], run.decision["exclude"])
    assert (1, ("n0",)) == (len(run.attempts), run.excluded_at(run.last_at_s))
    assert run.attempt is not None
    assert not run.attempt.launch.over


@pytest.mark.parametrize("keep", range(0, 200, 7))
def test_a_torn_tail_is_as_if_it_had_not_been_written(tmp_path: Path, keep: int) -> None:
    """A last record cut anywhere leaves the records before it, and nothing is damaged."""
    run_dir = _copied(tmp_path, "recovered")
    newest = sorted((run_dir / "journal").iterdir())[-1]
    lines = newest.read_bytes().splitlines(keepends=True)
    before = _folded(run_dir)
    newest.write_bytes(b"".join(lines) + lines[-1][:keep])

    assert before == _folded(run_dir)


@pytest.fixture
def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with one run of this release and one that a newer ftrun went on with."""
    monkeypatch.setenv("FTRUN_HOME", str(tmp_path))
    monkeypatch.setenv("FTRUN_SUPERVISOR", "none")
    _copied(tmp_path, "stopped")
    run_dir = _copied(tmp_path, "cut")
    opened = {"v": 2, "seq": 0, "at": 1.0, "kind": "journal.opened", "shape": "unheard of"}
    (run_dir / "journal" / "000009-newer.000.jsonl").write_text(json.dumps(opened) + "\n")
    return run_dir


def _copied(home: Path, name: str) -> Path:
    source = next(path for path in (FROZEN / "v1" / name).iterdir() if path.is_dir())
    target = home / "runs" / source.name
    shutil.copytree(source, target)
    return target


@pytest.mark.parametrize("command", ["show", "explain", "logs", "cancel", "stop", "resume"])
def test_a_newer_journal_is_refused_in_one_line(
    newer: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An older ftrun does nothing with a newer one's run, and says which version it would have to know."""
    assert 1 == main([command, newer.name])

    out, err = capsys.readouterr()
    assert "" == out
    assert 1 == len(err.splitlines())
    assert "newer ftrun (journal version 2" in err
    assert [] == list(newer.glob("requests/*"))


def test_a_newer_run_hides_no_other(newer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`status` names it on stderr and shows the others."""
    assert 0 == main(["status", "--all", "--json"])

    out, err = capsys.readouterr()
    assert ["scancel-resubmitted-0001"] == [row["run"] for row in json.loads(out)["runs"]]
    assert newer.name in err


@pytest.mark.parametrize(
    "line",
    [
        '{"v": 2, "seq": 0, "at": 1.0, "kind": "journal.opened", "data": {"believed": {}}}',
        '{"v": "1", "seq": 0, "at": 1.0, "kind": "warned", "data": {}}\n{"v": 1}',
        '{"v": 1, "seq": 0, "at": 1.0, "kind": "attempt.vanished", "attempt": 1, "data": {}}',
        '{"v": 1, "seq": 0, "at": 1.0, "kind": "warned", "attempt": 1, "data": {}}',
    ],
    ids=["newer", "damaged", "unknown-kind", "lacks-a-field"],
)
def test_a_supervisor_leaves_alone_what_it_does_not_understand(tmp_path: Path, line: str) -> None:
    """One such run costs no other: it is set aside, nothing is written into it, and the loop goes on."""
    run_dir = _copied(tmp_path, "cut")
    (run_dir / "journal" / "000009-other.000.jsonl").write_text(line + "\n")
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    clock = SystemClock()
    lease = Lease(str(tmp_path), clock, writer="me.1.1.1.1")
    assert lease.acquire()
    supervisor = Supervisor(str(tmp_path), MemoryCluster(Engine({"main": ["n0", "n1"]})), clock, lease)

    supervisor.tick()

    assert {} == supervisor.reconcilers
    assert before == {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    facts = json.loads((tmp_path / "supervisor.json").read_text())
    assert [run_dir.name] == list(facts["set_aside"])
