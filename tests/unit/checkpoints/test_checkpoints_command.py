"""Laws of `ftrun checkpoints`, on checkpoints that real libraries wrote and on a run of this folder. (I/O)"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.checkpoints import manifest
from ftrun.hooks.checkpoints.diverged import Divergence
from ftrun.supervisor.cli import common, main
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.reports import view_checkpoints
from ftrun.supervisor.store import checkpoints, submission_context
from tests.unit import written

OLD_S = 1_700_000_000


@pytest.fixture
def folder(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three checkpoints of the Trainer in `out`, of the steps 2, 4 and 6, written long ago; it is the working folder's."""
    monkeypatch.setenv("FTRUN_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    for step in (2, 4, 6):
        written.copied(kept / "transformers/checkpoint-4", out / f"checkpoint-{step}")
    _aged(out)
    return out


def _aged(folder: Path) -> None:
    for name in written.files(folder):
        os.utime(folder / name, (OLD_S, OLD_S))


def _torn(folder: Path, step: int) -> None:
    written.cut(folder / f"checkpoint-{step}" / "optimizer.pt", 1000)
    _aged(folder)


def _run(monkeypatch: pytest.MonkeyPatch, folder: Path, **known: Any) -> str:
    """A run called `small-0001` whose checkpoints lie in the folder; `known` is what its journal knows."""
    run = Run("small-0001", settings={"checkpoint": "out/checkpoint-*", "checkpoint-marker": ""}, **known)
    run_dir = folder.parent / "home/runs/small-0001"
    (run_dir / "submit").mkdir(parents=True)
    (run_dir / "journal").mkdir()
    (run_dir / "submit/context.json").write_text(
        json.dumps({"v": submission_context.VERSION, "cwd": str(folder.parent)})
    )
    monkeypatch.setattr(common, "load_run", lambda *_: run)
    return run.id


def _facts(capsys: pytest.CaptureFixture[str]) -> Any:
    [line] = capsys.readouterr().out.splitlines()
    [place] = json.loads(line)["places"]
    return place


def test_the_newest_whole_one_is_next_and_newer_ones_are_passed_over_with_their_reason(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table has a line for each, newest first, the next start's marked."""
    _torn(folder, 6)

    assert 0 == main(["checkpoints", "out"])
    head, six, four, two = capsys.readouterr().out.splitlines()

    assert [
        "STEP",
        "WRITTEN",
        "SIZE",
        "FILES",
        "LAYOUT",
        "STATE",
        "LEVEL",
        "CHECKPOINT",
        "WHY",
    ] == head.split()
    assert six.split()[:2] == ["-", "6"]
    assert "torn" in six
    assert "optimizer.pt" in six
    assert four.split()[:2] == ["next", "4"]
    assert "out/checkpoint-4" in four
    assert two.split()[:2] == ["-", "2"]


def test_json_has_the_same_facts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Path, step, time, size, files, layout, state, why; which is next, and what was passed over."""
    _torn(folder, 6)

    assert 0 == main(["checkpoints", "out", "--json"])
    place = _facts(capsys)
    six, four, _ = place["checkpoints"]

    assert (str(folder / "checkpoint-4"), None) == (place["next"], place["run"])
    assert ["torn", "complete", "complete"] == [one["state"] for one in place["checkpoints"]]
    assert (False, True) == (six["next"], four["next"])
    assert six["why"] in six["passed_over"]
    assert (4, "transformers", 2, OLD_S, "quick") == (
        four["step"],
        four["layout"],
        four["world"],
        four["written_at"],
        four["level"],
    )
    assert four["size_bytes"] == sum(path.stat().st_size for path in (folder / "checkpoint-4").iterdir())


@pytest.mark.parametrize("named", ["out", "out/*", "./out", "out/checkpoint-[46]", "{tmp}/out"])
def test_a_folder_a_glob_and_an_absolute_path_lead_to_the_same_next_one(
    folder: Path, capsys: pytest.CaptureFixture[str], named: str
) -> None:
    """Whoever names it."""
    assert 0 == main(["checkpoints", named.format(tmp=folder.parent), "--json"])

    assert str(folder / "checkpoint-6") == _facts(capsys)["next"]


def test_a_run_says_where_its_checkpoints_are_and_what_it_knows_of_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one that a start failed to load is passed over, and so is what a diverged training saved."""
    failed = str(folder / "checkpoint-6")
    name = _run(
        monkeypatch,
        folder,
        set_aside=((failed, checkpoints.content_stamp(failed)),),
        poisoned=(Divergence("1.1.1", 3, None, OLD_S + 10.0),),
    )

    assert 0 == main(["checkpoints", name, "--json"])
    place = _facts(capsys)

    assert (name, str(folder / "checkpoint-2")) == (place["run"], place["next"])
    assert ["poisoned", "poisoned", "complete"] == [one["state"] for one in place["checkpoints"]]
    assert "set aside" in place["checkpoints"][0]["passed_over"]


def test_a_checkpoint_that_was_written_anew_is_not_set_aside_any_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a start failed to load was another one of that name."""
    failed = str(folder / "checkpoint-6")
    name = _run(monkeypatch, folder, set_aside=((failed, "0.0.0"),))

    assert 0 == main(["checkpoints", name, "--json"])

    assert failed == _facts(capsys)["next"]


def test_without_a_name_the_runs_that_are_not_over_are_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each under its name."""
    name = _run(monkeypatch, folder)

    assert 0 == main(["checkpoints"])

    assert f"{name}:" == capsys.readouterr().out.splitlines()[0]


def test_with_none_that_may_be_loaded_that_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Below the table."""
    for step in (2, 4, 6):
        _torn(folder, step)

    assert 0 == main(["checkpoints", "out"])

    assert "the next start would resume from none of them" == capsys.readouterr().out.splitlines()[-1]


def test_the_deep_level_reads_what_the_quick_one_does_not(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One wrong byte in a tensor of the newest."""
    path = folder / "checkpoint-6/optimizer.pt"
    text = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as packed:
        weights = max(packed.infolist(), key=lambda one: one.file_size if "/data/" in one.filename else 0)
        content = packed.read(weights)
    text[text.index(content) + 5] ^= 0xFF
    path.write_bytes(text)
    _aged(folder)
    states = []
    for options in ([], ["--deep"]):
        main(["checkpoints", "out", "--json", *options])
        states.append(_facts(capsys)["checkpoints"][0]["state"])

    assert ["complete", "torn"] == states


def test_a_manifest_is_written_for_whole_ones_and_judged_by_afterwards(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that goes missing later is known by it, whatever the layout asks for; a second time nothing is written."""
    _torn(folder, 6)

    assert 0 == main(["checkpoints", "out", "--manifest"])
    told = capsys.readouterr()

    assert "no manifest for out/checkpoint-6: torn" in told.err
    assert ["next"] == [line.split()[0] for line in told.out.splitlines() if "out/checkpoint-4" in line]
    listed = manifest.read(str(folder / "checkpoint-4"))
    assert listed is not None
    assert (4, 2) == (listed.step, listed.world)
    assert set(listed.files) == set(written.files(folder / "checkpoint-4")) - {
        manifest.MANIFEST,
        manifest.MARKER,
    }
    assert all(len(entry.sha256) == 64 for entry in listed.files.values())
    assert manifest.read(str(folder / "checkpoint-6")) is None

    (folder / "checkpoint-4/rng_state_1.pth").unlink()
    _aged(folder)
    main(["checkpoints", "out", "--json"])

    assert str(folder / "checkpoint-2") == _facts(capsys)["next"]

    main(["checkpoints", "out", "--manifest"])

    assert "no manifest for out/checkpoint-2: it has one" in capsys.readouterr().err


def test_nothing_is_written_unless_it_is_asked_for(folder: Path) -> None:
    """Neither a manifest nor anything else."""
    before = written.files(folder)

    main(["checkpoints", "out", "--deep"])

    assert before == written.files(folder)


def test_a_link_to_a_checkpoint_beside_it_is_told_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`last` that points to the newest is no second one to try."""
    (folder / "checkpoint-99").symlink_to("checkpoint-6")

    main(["checkpoints", "out/*", "--json"])

    assert [6, 4, 2] == [one["step"] for one in _facts(capsys)["checkpoints"]]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["nobody-0001"], 2, "no file or folder nobody-0001 is here either"),
        (["nowhere/*"], 1, "nowhere/*: no such file or folder"),
        ([], 1, "name a run, a folder or a glob"),
        (["out", "--deeper"], 2, "--deeper"),
    ],
)
def test_wrong_input_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, words: str
) -> None:
    """What is wrong, and how to mend it."""
    assert status == main(["checkpoints", *arguments])
    [line] = capsys.readouterr().err.splitlines()

    assert line.startswith("ftrun: ")
    assert words in line


def test_a_run_that_was_not_told_its_checkpoints_says_how(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the setting's name."""
    name = _run(monkeypatch, folder)
    monkeypatch.setattr(common, "load_run", lambda path: Run(name))

    assert 1 == main(["checkpoints", name])
    assert "--ft-checkpoint" in capsys.readouterr().err


def test_hundreds_of_checkpoints_are_all_judged(folder: Path) -> None:
    """Side by side, each by itself."""
    source = folder / "checkpoint-2"
    for step in range(300):
        copy = folder.parent / "many" / f"checkpoint-{step}"
        copy.mkdir(parents=True)
        for name in ("trainer_state.json", "model.safetensors"):
            shutil.copy2(source / name, copy / name)

    found = view_checkpoints.survey(view_checkpoints.place_of_path("many"))

    assert 300 == len(found.judged)
    assert {"complete"} == {one.state for one in found.judged}
