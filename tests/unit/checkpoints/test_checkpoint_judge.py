"""Whether a checkpoint may be loaded: states, manifest, marker, deadlines. (I/O)"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.checkpoints import listing, manifest
from ftrun.hooks.checkpoints.find import found_at
from ftrun.hooks.checkpoints.inspection import inspect
from ftrun.hooks.checkpoints.model import (
    COMPLETE,
    DEEP,
    EMPTY,
    QUICK,
    RULE,
    TEMPORARY,
    TORN,
    UNFLUSHED,
    WRITING,
)
from tests.unit import written
from tests.unit.checkpoints.test_checkpoint_zips import noise, zipped


def own(folder: Path) -> Path:
    """A checkpoint of a layout of somebody's own: a folder with two files."""
    folder.mkdir(parents=True)
    (folder / "weights.raw").write_bytes(noise(5000))
    (folder / "progress.json").write_text('{"step": 1}\n{"step": 2}\n')
    return folder


def listed(checkpoint: Path, *, sums: bool = True) -> Path:
    """The checkpoint with ftrun's manifest and marker."""
    tree = listing.list_tree(str(checkpoint), float("inf"))
    manifest.write(
        str(checkpoint), manifest.of_tree(tree, 7, sums=sums)._replace(world=4, nodes=("n1", "n2"))
    )
    manifest.write_marker(str(checkpoint))
    return checkpoint


def test_what_no_layout_knows_counts_as_it_stands(tmp_path: Path) -> None:
    """It has bytes, and no more is said of it: a log of JSON lines is no broken JSON."""
    judged = written.seen(own(tmp_path / "run"))

    assert (COMPLETE, RULE, 2) == (judged.state, judged.level, judged.shards), judged.why


@pytest.mark.parametrize("name", ["step_1.pt", "step_1"])
def test_what_has_no_byte_is_empty(tmp_path: Path, name: str) -> None:
    """A file of no byte, and a folder of such files."""
    path = tmp_path / name
    if "." in name:
        path.touch()
    else:
        path.mkdir()
        (path / "weights.raw").touch()

    assert EMPTY == written.seen(path).state


def test_what_is_gone_is_torn() -> None:
    """A checkpoint that is removed between being found and being judged cannot be loaded."""
    assert TORN == written.seen("/nowhere/step_5.pt").state


@pytest.mark.parametrize("name", ["step_5.pt.tmp", "tmp-checkpoint-5", ".tmp_step_5", "step_5.partial"])
def test_unfinished_by_its_name_is_temporary(tmp_path: Path, name: str) -> None:
    """Whatever is in it."""
    (tmp_path / name).write_bytes(b"x")

    assert TEMPORARY == written.seen(tmp_path / name).state


def test_without_the_users_marker_nothing_is_complete(tmp_path: Path) -> None:
    """The marker lies in the folder, or beside it under its name; what was just written is still being written."""
    inside, beside, without = (own(tmp_path / name) for name in ("step_1", "step_2", "step_3"))
    (inside / ".done").touch()
    (tmp_path / "step_2.done").touch()
    now_s = without.stat().st_mtime + 1

    assert COMPLETE == written.seen(inside, marker=".done").state
    assert COMPLETE == written.seen(beside, marker=".done").state
    assert [TORN, WRITING] == [
        written.seen(without, marker=".done", now_s=at).state for at in (written.LATER_S, now_s)
    ]


@pytest.mark.parametrize(("name", "state"), [("weights.raw", WRITING), ("eval.log", COMPLETE)])
def test_what_changes_while_it_is_looked_at_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, state: str
) -> None:
    """Also when its layout is unknown and nothing else speaks against it; but not for a log that somebody keeps in it."""
    folder = own(tmp_path / "step_1")
    grow = listing.list_tree

    def growing(path: str, before_s: float) -> listing.Tree:
        with (folder / name).open("ab") as stream:
            stream.write(b"more")
        return grow(path, before_s)

    monkeypatch.setattr(listing, "list_tree", growing)

    judged = written.seen(folder, now_s=time.time())

    assert (state, state == WRITING) == (judged.state, name in judged.why)


def test_a_manifest_proves_every_file_by_its_size_and_deep_by_its_sum(tmp_path: Path) -> None:
    """What no layout knows is proven then, too; the manifest and its marker are no files of the checkpoint."""
    folder = listed(own(tmp_path / "step_7"))

    judged = [written.seen(folder, level=level) for level in (QUICK, DEEP)]

    assert [(COMPLETE, QUICK, 4, 2), (COMPLETE, DEEP, 4, 2)] == [
        (one.state, one.level, one.world, one.shards) for one in judged
    ]


@pytest.mark.parametrize("harm", ["cut", "grown", "missing", "changed"])
def test_what_differs_from_its_manifest_is_torn(tmp_path: Path, harm: str) -> None:
    """A changed byte by the deep level; it does not help that the file is younger than the manifest."""
    folder = listed(own(tmp_path / "step_7"))
    file = folder / "weights.raw"
    content = file.read_bytes()
    if harm == "missing":
        file.unlink()
    else:
        file.write_bytes({"cut": content[:-1], "grown": content + b"x", "changed": b"x" + content[1:]}[harm])

    level = DEEP if harm == "changed" else QUICK
    assert TORN == written.seen(folder, level=level).state


def test_a_log_may_have_grown_since_the_manifest_was_written(tmp_path: Path) -> None:
    """Evaluations write into folders that are complete; a log that is gone or shorter was part of what was listed."""
    folder = own(tmp_path / "step_7")
    (folder / "eval.log").write_text("so far\n")
    listed(folder)
    with (folder / "eval.log").open("a") as stream:
        stream.write("and on\n")
    grown = [written.seen(folder, level=level).state for level in (QUICK, DEEP)]
    written.cut(folder / "eval.log", 3)

    assert [COMPLETE, COMPLETE, TORN] == [*grown, written.seen(folder).state]


def test_a_file_that_was_written_again_under_its_name_outlives_its_manifest(tmp_path: Path) -> None:
    """`latest.pt` is replaced at every save: its zip proves it, not the manifest of the one before."""
    path = listed(zipped(tmp_path / "latest.pt", {"data.pkl": noise(100)}))
    os.utime(f"{path}{manifest.MANIFEST}", (1e9, 1e9))
    zipped(path, {"data.pkl": noise(100), "data/0": noise(9000)})

    again = written.seen(path, level=DEEP)
    written.cut(path, 5000)

    assert (COMPLETE, True) == (again.state, "written again" in again.why)
    assert TORN == written.seen(path, level=DEEP).state


def test_a_file_that_nothing_proves_is_no_worse_for_an_old_manifest(tmp_path: Path) -> None:
    """Without one it would be taken as it stands; one that is older than the file says nothing of it."""
    path = tmp_path / "ckpt.raw"
    path.write_bytes(noise(100))
    listed(path)
    first = written.seen(path)
    os.utime(f"{path}{manifest.MANIFEST}", (1e9, 1e9))
    path.write_bytes(noise(9000))
    again = written.seen(path)
    os.utime(path, (1e9 - 9, 1e9 - 9))

    assert (COMPLETE, COMPLETE) == (first.state, again.state)
    assert TORN == written.seen(path).state


@pytest.mark.parametrize("harm", ["marker", "manifest", "mixed"])
def test_a_manifest_without_its_own_marker_was_not_published_to_the_end(tmp_path: Path, harm: str) -> None:
    """Whatever point a publisher died at, the marker is last."""
    folder = listed(own(tmp_path / "step_7"))
    if harm == "marker":
        (folder / manifest.MARKER).unlink()
    else:
        content = (folder / manifest.MANIFEST).read_bytes()
        (folder / manifest.MANIFEST).write_bytes(
            content[:40] if harm == "manifest" else content.replace(b"5000", b"5001")
        )

    assert TORN == written.seen(folder).state


def test_a_list_that_a_person_had_written_and_that_has_no_marker_says_nothing(tmp_path: Path) -> None:
    """`--manifest` died between its two files: the checkpoint is what it was before, whole or cut."""
    path = zipped(tmp_path / "step_7.pt", {"data.pkl": noise(100), "data/0": noise(9000)})
    manifest.write(str(path), manifest.of_tree(listing.list_tree(str(path), float("inf")), 7, sums=True))

    whole = written.seen(path)
    written.cut(path, 5000)

    assert (COMPLETE, False) == (whole.state, "manifest" in whole.why)
    assert TORN == written.seen(path).state


@pytest.mark.parametrize("name", ["step_7.bin", "step_7.ckpt", "step_7.pth.tar", "step_7.pkl", "step_7.pt"])
@pytest.mark.parametrize("harm", ["all zeros", "zeros in front"])
def test_zeros_under_a_name_of_torch_are_unflushed(tmp_path: Path, name: str, harm: str) -> None:
    """Pages that were never written, with no hole to tell of them: no format begins so."""
    path = zipped(tmp_path / name, {"data.pkl": noise(6000), "data/0": noise(9000)})
    size = path.stat().st_size
    with path.open("r+b") as stream:
        stream.write(bytes(size if harm == "all zeros" else 4096))

    assert UNFLUSHED == written.seen(path).state


def test_raw_numbers_that_begin_with_zeros_are_nobodys_damage(tmp_path: Path) -> None:
    """A file of a format of one's own under a name that torch uses too, with a page of zeros in front; and one of zeros alone beside others."""
    path = tmp_path / "step_7.bin"
    path.write_bytes(bytes(8192) + noise(200_000))
    folder = own(tmp_path / "step_8")
    (folder / "moments.bin").write_bytes(bytes(50_000))

    assert (COMPLETE, COMPLETE) == (written.seen(path).state, written.seen(folder).state)


def test_what_joblib_writes_is_walked_by_nobody(tmp_path: Path) -> None:
    """Its arrays lie as they are between the pickle's opcodes, and may look like any of them."""
    path = tmp_path / "model_7.pkl"
    path.write_bytes(
        b"\x80\x04cjoblib.numpy_pickle\nNumpyArrayWrapper\n)\x81" + bytes([0x8E]) + b"\xff" * 300
    )

    assert COMPLETE == written.seen(path).state


def test_the_manifest_tells_what_was_put_into_it(tmp_path: Path) -> None:
    """Step, world, nodes, sizes and sums survive being written and read."""
    folder = listed(own(tmp_path / "step_7"))

    told = manifest.read(str(folder))

    assert told is not None
    assert (7, 4, ("n1", "n2")) == (told.step, told.world, told.nodes)
    assert {"progress.json", "weights.raw"} == set(told.files)
    assert manifest.sha256(str(folder / "weights.raw")) == told.files["weights.raw"].sha256


def test_zeros_under_the_usual_endings_were_never_flushed(tmp_path: Path) -> None:
    """A file of zeros of the right length, be it one of raw numbers: zeros alone are nobody's weights."""
    (tmp_path / "step_1.pt").write_bytes(bytes(9000))
    (tmp_path / "step_1.bin").write_bytes(bytes(9000))

    assert [UNFLUSHED, UNFLUSHED] == [written.seen(tmp_path / f"step_1.{end}").state for end in ("pt", "bin")]


def hanging(function: Callable[..., Any], gate: threading.Event) -> Callable[..., Any]:
    """The function, once the gate is open."""

    def wait(*told: Any, **named: Any) -> Any:
        gate.wait(300)
        return function(*told, **named)

    return wait


@pytest.mark.parametrize("call", ["scandir", "pread", "stat"])
def test_a_file_system_that_hangs_costs_no_more_than_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """What could not be looked at in time is taken as it stands, and the level says so."""
    folder = tmp_path / "step_1"
    folder.mkdir()
    for rank in range(3):
        zipped(folder / f"{rank}.pt", {"data.pkl": noise(100)})
    found = found_at(str(folder))
    gate = threading.Event()
    begin = time.monotonic()
    with monkeypatch.context() as patched:
        patched.setattr(os, call, hanging(getattr(os, call), gate))
        judged = inspect(found, now_s=written.LATER_S, before_s=begin + 0.2)
        gate.set()

    assert (COMPLETE, RULE) == (judged.state, judged.level)
    assert time.monotonic() - begin < 250  # it was not waited for


def test_what_may_not_be_read_is_taken_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To call it torn would cost the user's progress for what may be a passing trouble of the file system."""
    path = zipped(tmp_path / "step_1.pt", {"data.pkl": noise(100)})

    def refuse(*_told: Any, **_named: Any) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "pread", refuse)
    judged = written.seen(path)

    assert (COMPLETE, RULE) == (judged.state, judged.level)
    assert "Permission denied" in judged.why


def test_links_that_lead_in_circles_or_nowhere_do_not_hide_what_is_there(tmp_path: Path) -> None:
    """Links to folders are followed, two to the same one as well: a resume view is made of them."""
    folder = tmp_path / "step_1"
    own(tmp_path / "elsewhere")
    folder.mkdir()
    for name, to in {
        "up": ".",
        "self": "self",
        "lost": "nowhere",
        "data": "../elsewhere",
        "data2": "../elsewhere",
    }.items():
        (folder / name).symlink_to(to)

    judged = written.seen(folder)

    assert (COMPLETE, 4, 2 * (5000 + 24)) == (judged.state, judged.shards, judged.size_bytes), judged.why
