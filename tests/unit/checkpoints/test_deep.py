"""Laws of the deep level in the background: what it finds counts at the next start, and it is in nobody's way. (I/O)"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.checkpoints import cmd_verify, deep_results, listing, manifest
from ftrun.hooks.checkpoints.inspection import tree_of
from ftrun.hooks.checkpoints.model import COMPLETE, DEEP, QUICK, TORN
from ftrun.hooks.checkpoints.selection import Request, Selection, select
from ftrun.hooks.runtime import procfs
from ftrun.supervisor.agent import checkpoint_reader
from ftrun.supervisor.diagnosis import resumable
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.reports import view_checkpoints
from tests.unit import written

OLD_S = 1_700_000_000
PATTERN = "ckpt/*"


def saved(folder: Path, step: int) -> Path:
    """A checkpoint as torch.save writes it, of long ago: a pickle, and two tensors of 300 KB each."""
    path = folder / "ckpt" / f"step_{step}.pt"
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        for number in range(2):
            archive.writestr(f"archive/data/{number}", os.urandom(300_000))
    os.utime(path, (OLD_S + step, OLD_S + step))
    return path


def harmed(path: Path, at: int = 250_000) -> Path:
    """The same with one wrong byte in a tensor, which only a checksum shows, and with the time of before."""
    times = path.stat()
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    os.utime(path, (times.st_atime, times.st_mtime))
    return path


def chosen(folder: Path) -> Selection:
    """What the next start takes."""
    return select(Request([PATTERN], str(folder), run_dir=str(folder / "run")))


def reader(folder: Path, *, rate: str = "0", still: float = 0.0) -> cmd_verify.Verifier:
    (folder / "run").mkdir(exist_ok=True)
    return cmd_verify.Verifier(
        argparse.Namespace(
            run_dir=str(folder / "run"),
            cwd=str(folder),
            glob=PATTERN,
            marker="",
            skip="",
            rate=rate,
            still=still,
        )
    )


def settled(one: cmd_verify.Verifier) -> None:
    """Until its child has read what it reads."""
    give_up_s = time.monotonic() + 60
    while one.child:
        assert time.monotonic() < give_up_s
        one.reap()
        time.sleep(0.01)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def as_it_was() -> Iterator[None]:
    """This process reads as quickly as it can afterwards."""
    before = {name: getattr(listing._Pace, name) for name in vars(listing._Pace) if not name.startswith("__")}
    yield
    for name, value in before.items():
        setattr(listing._Pace, name, value)


def test_what_only_a_checksum_shows_is_passed_over_once_it_was_read(tmp_path: Path, run_dir: Path) -> None:
    """The quick level takes it, the deep level says why not, and the next start takes the one before, with that reason."""
    saved(tmp_path, 10)
    bad = harmed(saved(tmp_path, 20))
    first = chosen(tmp_path)
    assert first.chosen is not None
    assert (str(bad), QUICK) == (first.chosen.found.path, first.chosen.level)

    one = reader(tmp_path)
    one.update()
    settled(one)
    then = chosen(tmp_path)

    assert then.chosen is not None
    assert then.chosen.found.step == 10
    [(path, why)] = then.passed
    assert path == str(bad)
    assert "wrong checksum in its record archive/data/0" in why


def test_the_one_before_is_read_where_the_newest_is_broken_and_each_is_read_once(
    tmp_path: Path, run_dir: Path
) -> None:
    """Newest first, as far down as the next start would go; then nothing is left to read."""
    saved(tmp_path, 10)
    harmed(saved(tmp_path, 20))
    one, begun = reader(tmp_path), []
    for _ in range(5):
        one.update()
        begun.append(one.reads[0][-10:] if one.child else "")
        settled(one)

    assert ["step_20.pt", "step_10.pt", "", "", ""] == begun
    assert [(TORN, DEEP), (COMPLETE, DEEP)] == [
        (each.state, each.level) for each in deep_results.load_all(str(run_dir))
    ]
    told = chosen(tmp_path).chosen
    assert told is not None
    assert (COMPLETE, DEEP) == (told.state, told.level)


def test_a_checkpoint_that_is_written_anew_is_judged_anew(tmp_path: Path, run_dir: Path) -> None:
    """A verdict speaks of the files that were read, also where the new ones have the old size and time."""
    bad = harmed(saved(tmp_path, 20))
    cmd_verify.verify_one(str(run_dir), str(bad), "")
    assert chosen(tmp_path).chosen is None

    harmed(bad)  # the same byte turned back: whole again, of the same size and time

    told = chosen(tmp_path).chosen
    assert told is not None
    assert (COMPLETE, QUICK) == (told.state, told.level)


def test_a_newer_one_ends_the_reading_of_the_older(tmp_path: Path, run_dir: Path) -> None:
    """Nobody's next start any more: the child is ended, and the newer one is read."""
    saved(tmp_path, 10)
    one = reader(tmp_path, rate="1")
    one.update()
    first = one.child
    assert first
    one.update()
    assert first == one.child  # it goes on as long as it is the newest

    saved(tmp_path, 20)
    one.words.rate = "0"
    one.update()
    assert one.child not in (0, first)
    with pytest.raises(ChildProcessError):
        os.waitpid(first, os.WNOHANG)
    settled(one)
    assert [20] == [int(each.path[-5:-3]) for each in deep_results.load_all(str(run_dir))]


def test_what_was_written_just_now_is_left_alone(tmp_path: Path, run_dir: Path) -> None:
    """Somebody may write to it still; what changes while it is read is not kept either."""
    path = saved(tmp_path, 10)
    os.utime(path)
    one = reader(tmp_path, still=60.0)
    one.update()

    assert not one.child
    os.truncate(path, 1000)
    assert cmd_verify.verify_one(str(run_dir), str(path), "") is None


def test_the_manifests_sums_are_compared_where_there_is_one(tmp_path: Path, run_dir: Path) -> None:
    """A format without checksums of its own has those."""
    (tmp_path / "ckpt/step_5").mkdir(parents=True)
    file = tmp_path / "ckpt/step_5/weights.raw"
    file.write_bytes(os.urandom(5000))
    os.utime(file, (OLD_S, OLD_S))
    tree = tree_of(written.inside(tmp_path / "ckpt")[0])
    manifest.write(tree.path, manifest.of_tree(tree, 5, sums=True))
    manifest.write_marker(tree.path)
    for own in (manifest.MANIFEST, manifest.MARKER):
        os.utime(os.path.join(tree.path, own), (OLD_S + 1, OLD_S + 1))
    harmed(file, 100)

    assert chosen(tmp_path).chosen is not None
    verdict = cmd_verify.verify_one(str(run_dir), tree.path, "")
    assert verdict is not None
    assert (TORN, DEEP) == (verdict.state, verdict.level), verdict.why
    assert chosen(tmp_path).chosen is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 9}', "null", "\0" * 50])
def test_a_finding_that_cannot_be_read_says_nothing(tmp_path: Path, run_dir: Path, text: str) -> None:
    """A start goes on as it would have without."""
    bad = harmed(saved(tmp_path, 20))
    cmd_verify.verify_one(str(run_dir), str(bad), "")
    [file] = (run_dir / "deep").iterdir()
    file.write_text(text)

    told = chosen(tmp_path).chosen
    assert told is not None
    assert COMPLETE == told.state


def test_the_reader_keeps_to_its_rate_and_to_one_file_at_a_time(tmp_path: Path, as_it_was: None) -> None:
    """Not a byte more in a second than it was told, and the bytes are the same."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(400_000))
    whole = manifest.sha256(str(path))
    listing.slow_down(1_000_000)
    began_s = time.monotonic()

    assert whole == manifest.sha256(str(path))
    assert time.monotonic() - began_s > 0.25
    assert listing._Pace.threads == 1


def test_the_reader_ends_with_whoever_began_it_and_comes_last(tmp_path: Path, run_dir: Path) -> None:
    """Nobody is left behind: not the reader, nor what it reads with; both are as nice as can be."""
    saved(tmp_path, 10)
    line = f"{sys.executable} -m ftrun.hooks.main verify-checkpoint --run-dir {run_dir} --cwd {tmp_path} --glob '{PATTERN}' --rate 1 --still 0 & echo $!; read x"
    with subprocess.Popen(
        ["/bin/sh", "-c", line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdout is not None
        pid = int(shell.stdout.readline())
        child = _child_of(pid)
        assert {19} == {os.getpriority(os.PRIO_PROCESS, one) for one in (pid, child)}
        assert "1000" == Path(f"/proc/{child}/oom_score_adj").read_text().strip()
        shell.kill()
    give_up_s = time.monotonic() + 60
    while any(_lives(one) for one in (pid, child)):
        assert time.monotonic() < give_up_s
        time.sleep(0.05)


def _child_of(pid: int) -> int:
    give_up_s = time.monotonic() + 60
    while time.monotonic() < give_up_s:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if found:
            return int(found[0])
        time.sleep(0.05)
    raise AssertionError("the reader has no child")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Begun:
    """Stands in for starting a process: what was asked for."""

    def __init__(self) -> None:
        self.words: list[list[str]] = []
        self.ended = 0

    def __call__(self, home: str, words: Sequence[str]) -> Any:
        assert home == "/home/of"
        self.words.append(list(words))
        return self

    def poll(self) -> None:
        return None

    def kill(self) -> None:
        self.ended += 1

    def wait(self, timeout: float) -> int:
        return 0


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"checkpoint": PATTERN}, 1),
        ({"checkpoint": PATTERN, "checkpoint-checksum": "never"}, 0),
        ({"checkpoint": PATTERN, "checkpoint-verify": "name"}, 0),
        ({"checkpoint": ""}, 0),
    ],
)
def test_the_agent_begins_one_reader_where_there_is_something_to_read(
    settings: dict[str, Any], count: int
) -> None:
    """None where it is off, where nothing is looked into at starts, and where no checkpoint was told of; nothing is asked there."""
    begun = Begun()
    deep = checkpoint_reader.ChecksumReader("/home/of", "/nowhere", settings, begun)
    for _ in range(3):
        deep.begun(lambda: Run("small-0001"))
    deep.close()

    assert (count, count) == (len(begun.words), begun.ended)


def test_a_reader_is_begun_anew_where_a_start_set_a_checkpoint_aside(tmp_path: Path) -> None:
    """What no start takes need not be read."""
    begun = Begun()
    deep = checkpoint_reader.ChecksumReader("/home/of", str(tmp_path), {"checkpoint": PATTERN}, begun)
    deep.begun(lambda: Run("small-0001"))
    deep.begun(lambda: Run("small-0001", set_aside=(("ckpt/step_20.pt", ""),)))

    assert ["", "ckpt/step_20.pt"] == [words[words.index("--skip") + 1] for words in begun.words]
    assert begun.ended == 1


def test_supervisor_and_show_know_what_was_found(tmp_path: Path, run_dir: Path) -> None:
    """A broken one is no progress, and is named; of whole ones the last."""
    saved(tmp_path, 10)
    bad = harmed(saved(tmp_path, 20))
    cmd_verify.verify_one(str(run_dir), str(bad), "")
    cmd_verify.verify_one(str(run_dir), str(saved(tmp_path, 5)), "")
    cmd_verify.verify_one(str(run_dir), str(tmp_path / "ckpt/step_10.pt"), "")

    settings = {"checkpoint": PATTERN, "checkpoint-verify": "structure"}
    loads = resumable.find_resume_point(settings, Run("small-0001"), str(tmp_path), run_dir=str(run_dir))
    told = [
        view_checkpoints.verified_line(row)
        for row in view_checkpoints.shown_rows(view_checkpoints.verified_facts(str(run_dir)))
    ]

    assert loads.path.endswith("step_10.pt")
    assert len(told) == 2
    assert "step_20.pt: torn: step_20.pt has a wrong checksum" in told[0]
    assert "step_10.pt: complete: one file; record checksums" in told[1]


def test_idle_is_a_class_of_its_own() -> None:
    """ioprio_set(2): the class in the upper bits, 3 for idle, 2 for best effort with its last place 7."""
    assert (3, 2, 7) == (procfs.IDLE >> 13, procfs.BEST_EFFORT >> 13, procfs.BEST_EFFORT & 7)
