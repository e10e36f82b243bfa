"""Laws of what the supervisor notes for those who look: it saves time and changes no answer. (I/O)"""

from __future__ import annotations

import binascii
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.hooks.checkpoints.diverged import Divergence
from ftrun.slurm import records
from ftrun.supervisor.model import events, renamed_settings
from ftrun.supervisor.model import run as run_module
from ftrun.supervisor.model.errors import UnreadableRun
from ftrun.supervisor.model.run import Attempt, Run
from ftrun.supervisor.model.states import State
from ftrun.supervisor.reports.view_run import LiveSteps
from ftrun.supervisor.store import attempt_dir, journal, live_steps, run_cache, run_dir
from ftrun.supervisor.store.live_steps import StepSeen, StepsWriter
from ftrun.supervisor.store.run_cache import RunCache, RunCacheWriter

FROZEN = sorted(
    path for path in (Path(__file__).resolve().parents[2] / "frozen").glob("v*/*/*") if path.is_dir()
)


def _home(tmp_path: Path, source: Path) -> Path:
    """A home with a copy of this run; nothing in it has changed lately."""
    run_dir = tmp_path / "runs" / source.name
    shutil.copytree(source / "journal", run_dir / "journal")
    _grow_old(run_dir)
    return run_dir


def _grow_old(run_dir: Path) -> None:
    for path in (*(run_dir / "journal").iterdir(), run_dir / "journal"):
        os.utime(path, ns=(10**18, 10**18))


def _noted(run_dir: Path, *, over: bool = False) -> None:
    home, (run, lengths) = str(run_dir.parents[1]), journal.load_whole(str(run_dir))
    writer = RunCacheWriter(home)
    if over:
        writer.note_over(str(run_dir), run, lengths, 7)
    else:
        writer.note_live(str(run_dir), run, lengths)
    writer.write({run.id})


def _cached(run_dir: Path, *, whole: bool = False) -> tuple[Run, dict[str, int]]:
    return RunCache(str(run_dir.parents[1])).load(str(run_dir), whole=whole)


def _newest(run_dir: Path) -> Path:
    return max((run_dir / "journal").iterdir())


@pytest.mark.parametrize("limit", [1 << 20, 0], ids=["whole", "last-record"])
def test_a_run_from_the_cache_is_the_run_of_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Wherever a journal was cut when the cache was written, what came since is folded on top, torn lines and all."""
    monkeypatch.setattr(run_cache, "CHECKED_BYTES", limit)
    for number, source in enumerate(FROZEN):
        run_dir = _home(tmp_path / str(number), source)
        newest, known = _newest(run_dir), journal.load_whole(str(run_dir))
        content = newest.read_bytes()
        lines = content.splitlines(keepends=True)
        for count in range(1, len(lines) + 1, 1 + len(lines) // 5):
            newest.write_bytes(b"".join(lines[:count]))
            _grow_old(run_dir)
            _noted(run_dir)
            newest.write_bytes(content + b'{"torn":')

            assert known == _cached(run_dir)


def test_the_cache_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The laws here would hold without a cache, too: an unchanged journal is not read."""
    run_dir = _home(tmp_path, FROZEN[0])
    _noted(run_dir)
    known = journal.load_whole(str(run_dir))
    monkeypatch.setattr(journal, "load_whole", lambda _: pytest.fail("the journal is read"))

    assert known == _cached(run_dir)


def test_no_cache_changes_an_answer(tmp_path: Path) -> None:
    """Cut anywhere, with any byte changed, empty, of another release, or in the way as a folder."""
    run_dir = _home(tmp_path, FROZEN[-1])
    _noted(run_dir)
    known, path = journal.load_whole(str(run_dir)), tmp_path / run_cache.FILE
    content = path.read_bytes()
    other = content.replace(content[12:20], b"00000000", 1)
    changed = [
        content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        for place in range(0, len(content), 97)
    ]
    for text in (b"", other, *changed, *(content[:place] for place in range(0, len(content), 97))):
        path.write_bytes(text)

        assert known == _cached(run_dir)

    path.unlink()
    path.mkdir()
    assert known == _cached(run_dir)


def test_who_acts_on_a_run_has_every_byte_of_it_checked(tmp_path: Path) -> None:
    """Whatever the times of the files say, a byte that was changed in any of them is seen."""
    run_dir = _home(tmp_path, FROZEN[-1])
    for path in sorted((run_dir / "journal").iterdir()):
        content = path.read_bytes()
        _grow_old(run_dir)
        _noted(run_dir)
        known = journal.load_whole(str(run_dir))
        assert known == _cached(run_dir, whole=True)

        path.write_bytes(b"(" + content[1:])
        _grow_old(run_dir)
        with pytest.raises(UnreadableRun):
            _cached(run_dir, whole=True)
        path.write_bytes(content)


@pytest.mark.parametrize("grows", [False, True])
def test_a_byte_changed_in_a_journal_is_seen_through_the_cache(tmp_path: Path, grows: bool) -> None:
    """Wherever it was changed in the newest file, and whether or not that file goes on to grow."""
    run_dir = _home(tmp_path, FROZEN[-1])
    newest = _newest(run_dir)
    lines = [
        journal.parse_record(line) | {"seq": seq} for seq, line in enumerate(newest.read_bytes().splitlines())
    ]
    content = b"".join(map(journal.record_line, lines))  # builds as old as these wrote no checksums
    kept = content[: content.rindex(b"\n", 0, -1) + 1] if grows else content
    newest.write_bytes(kept)
    _grow_old(run_dir)
    _noted(run_dir)
    for place in range(0, len(kept), 211):
        newest.write_bytes(content[:place] + bytes([content[place] ^ 2]) + content[place + 1 :])

        with pytest.raises(UnreadableRun):
            _cached(run_dir)


def test_a_new_file_of_a_journal_is_seen(tmp_path: Path) -> None:
    """A later writer may not believe all that was folded: then the whole journal is read."""
    run_dir = _home(tmp_path, FROZEN[0])
    _noted(run_dir)
    later = journal.Journal.open_epoch(
        str(run_dir), epoch=99, writer="w", believed=journal.believed_lengths(str(run_dir))
    )
    later.append("warned", message="seen")

    assert "seen" in _cached(run_dir)[0].warnings


def test_a_run_that_is_over_is_known_until_its_journal_or_its_requests_change(tmp_path: Path) -> None:
    """Neither a record in its newest file nor a new file, nor a request, is missed; a fresh time proves nothing."""
    run_dir = _home(tmp_path, FROZEN[0])
    _noted(run_dir, over=True)
    home, newest = str(tmp_path), _newest(run_dir)

    assert RunCache(home).is_over(str(run_dir))
    assert RunCache(home).is_over(str(run_dir), 7)
    assert not RunCache(home).is_over(str(run_dir), 8)

    with newest.open("ab") as stream:
        stream.write(b"{}\n")
    assert not RunCache(home).is_over(str(run_dir))

    shutil.rmtree(tmp_path / "runs")
    run_dir = _home(tmp_path, FROZEN[0])
    (run_dir / "journal" / "000099-w.000.jsonl").touch()
    assert not RunCache(home).is_over(str(run_dir))

    (
        run_dir / "journal" / "000099-w.000.jsonl"
    ).unlink()  # just now: the folder's time may not show the next change
    _noted(run_dir, over=True)
    assert not RunCache(home).is_over(str(run_dir))


def test_nothing_is_called_that_a_cache_names(tmp_path: Path) -> None:
    """A cache is data: no name in it but those of a run's records means anything."""
    run_dir = _home(tmp_path, FROZEN[0])
    _noted(run_dir)
    body = b"cos\nsystem\n(S'touch %b/called'\ntR." % bytes(tmp_path)
    form, path = run_cache._code_of_fold()[0], tmp_path / run_cache.FILE
    path.write_bytes(b"%b%08x %08x\n%b" % (run_cache._MAGIC, form, binascii.crc32(body), body))

    assert journal.load_whole(str(run_dir)) == _cached(run_dir)
    assert not (tmp_path / "called").exists()


def _form() -> int:
    run_cache._code_of_fold.cache_clear()
    return run_cache._code_of_fold()[0]


def test_the_number_of_the_fold_is_that_of_the_code_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that an upgrade replaces mean nothing; fields in another order, another table or function do."""
    before = _form()
    for module in (events, run_module, records, renamed_settings):
        monkeypatch.setattr(module, "__file__", __file__)
    assert _form() == before

    changes: list[tuple[object, str, object]] = [
        (Attempt, "__dataclass_fields__", dict(reversed(Attempt.__dataclass_fields__.items()))),
        (Run, "__dataclass_fields__", dict(list(Run.__dataclass_fields__.items())[:-1])),
        (renamed_settings, "NAMES", {**renamed_settings.NAMES, "old": "new"}),
        (events, "_opened", events._started),
        (records, "_no_set", lambda _: None),
        (Divergence, "_field_defaults", {"until_s": 0.0}),
    ]
    numbers = set()
    for where, name, value in changes:
        with monkeypatch.context() as patch:
            patch.setattr(where, name, value)
            if name == "_opened":
                patch.setattr(events, "_APPLY", {**events._APPLY, "attempt.opened": value})
            numbers.add(_form())
    assert len(numbers) == len(changes)
    assert before not in numbers
    assert _form() == before


def test_the_number_of_the_fold_is_the_same_in_each_process() -> None:
    """Whatever the seed of its hashes, and whatever it folded before."""
    code = "from ftrun.supervisor.store import run_cache; print(run_cache._code_of_fold()[0])"
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert told == {b"%d\n" % _form()}


@pytest.mark.parametrize("error", [TypeError, AttributeError, RuntimeError, RecursionError])
def test_whatever_fails_in_a_cache_the_journal_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """While it is loaded, and while a run is taken from it."""

    def fail(*_: object, **__: object) -> None:
        raise error("broken")

    run_dir = _home(tmp_path, FROZEN[0])
    known = journal.load_whole(str(run_dir))
    _noted(run_dir)
    for name in ("_read_on", "_Unpickler"):
        with monkeypatch.context() as patch:
            patch.setattr(run_cache, name, fail)
            assert known == _cached(run_dir)
    _noted(run_dir, over=True)
    cache = RunCache(str(tmp_path))
    cache.over[run_dir.name] = (None, None)  # type: ignore[assignment]
    assert not cache.is_over(str(run_dir))
    cache.over[run_dir.name] = 7  # type: ignore[assignment]
    assert not cache.is_over(str(run_dir))


def _step(told: dict[str, StepSeen], run: Run, folder: Path) -> int | None:
    found = LiveSteps(told).progress(str(folder), run, 1e9)
    return found.step if found is not None else None


def test_the_step_of_a_live_log_is_the_same_with_what_the_supervisor_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that came since count; a log that was emptied, or another start's, is read from its end."""
    log = tmp_path / "log"
    record = attempt_dir.parse_launch({"stdout": str(log), "nodes": "n1"}, 0)
    monkeypatch.setattr(attempt_dir, "latest_start_record", lambda *_: record)
    run = Run("r-0001", state=State.RUNNING, attempts=(Attempt(1, 0.0, job="7"),))
    told = {run.id: StepSeen((1, 0, 1), str(log), len("step 41 loss 2\n"), 41)}
    for text, step in (
        ("step 41 loss 2\n", 41),
        ("step 41 loss 2\nstep 42 loss 2\n", 42),
        ("step 41 loss 2\nno step\n", 41),
        ("step 3 loss 2\n", 3),
    ):
        log.write_text(text)

        assert [step, step] == [_step(told, run, tmp_path), _step({}, run, tmp_path)]

    log.write_text("step 77 loss 2\n")
    assert _step({run.id: told[run.id]._replace(start=(1, 0, 2))}, run, tmp_path) == 77


def test_steps_are_written_for_many_runs_and_read_back(tmp_path: Path) -> None:
    """A file that cannot be read is none."""
    many = {f"r-{n}": StepSeen((1, 0, 1), f"/log.{n}", 10, n) for n in range(live_steps.RUNS_MIN)}
    writer = StepsWriter(str(tmp_path))
    writer.write(dict(list(many.items())[1:]))
    assert {} == live_steps.read_steps(str(tmp_path))

    writer.write(many)
    assert many == live_steps.read_steps(str(tmp_path))

    for text in ("", "[1]", '{"r": [1, 2, 3, 4]}', '{"r": 5}'):
        (tmp_path / live_steps.FILE).write_text(text)
        assert {} == live_steps.read_steps(str(tmp_path))


def test_runs_that_nothing_happens_to_cost_one_look_at_their_parent(tmp_path: Path) -> None:
    """A new run and a request bring all of them back at once; what announced nothing is looked at within a minute."""
    home = str(tmp_path)
    made = [run_dir.create_run(home, "job") for _ in range(120)]
    looks = run_dir.RunDirs(home)

    assert [looks.due(0.0), looks.due(0.5)] == [made, made]  # two changes may bear one time
    assert looks.due(0.0) == []
    seen = [path for _ in range(60) for path in looks.due(1.0)]
    assert sorted(seen) == made
    assert len(looks.due(1.0)) == 2
    os.utime(tmp_path / "runs", (0, 0))
    assert looks.due(0.0) == made
    looks.due(0.0)
    run_dir.announce(home)
    assert looks.due(0.0) == made
    looks.due(0.0)
    looks.forget()
    assert looks.due(0.0) == made


def test_a_run_that_gets_its_journal_late_is_found(tmp_path: Path) -> None:
    """Its folder is there first; whoever looked in between sees it within a minute at most."""
    looks = run_dir.RunDirs(str(tmp_path))
    assert looks.due(0.0) == []
    late = tmp_path / "runs" / "job-0001"
    late.mkdir(parents=True)
    assert [looks.due(0.0), looks.due(0.0)] == [[], []]
    (late / "journal").mkdir()
    assert looks.due(61.0) == [str(late)]
