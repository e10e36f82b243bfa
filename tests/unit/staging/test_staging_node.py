"""The rules of a node: when a part is sealed and dropped, and what of dead jobs leaves its memory. (I/O)"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftrun.hooks.runtime import formats
from ftrun.hooks.staging import inventory, merge, records, workspace
from ftrun.hooks.staging.local import DropCandidate, to_drop
from ftrun.hooks.staging.records import File, Publishing, Seal
from ftrun.hooks.staging.sealing import (
    BROKEN,
    ENDED,
    GIVEN_UP,
    LIVE,
    SEAL,
    UNPROVEN,
    WAIT,
    Growth,
    Marks,
    verdict,
)

FILES = {"a": File(3, 1, 1)}
STILL = Growth(FILES, 2.0)


@pytest.mark.parametrize(
    ("growth", "marks", "phase", "word"),
    [
        (STILL, Marks(), LIVE, SEAL),
        (STILL._replace(still_s=0.5), Marks(), LIVE, WAIT),
        (STILL._replace(open_by={7}), Marks(), LIVE, WAIT),
        (STILL._replace(open_by={7}), Marks(), ENDED, WAIT),
        (STILL._replace(has_lost_writer=True), Marks(), LIVE, UNPROVEN),
        (STILL._replace(has_lost_writer=True), Marks(), ENDED, SEAL),
        (STILL, Marks(), BROKEN, UNPROVEN),
        (Growth({}, 9.0), Marks(), LIVE, WAIT),
        (Growth({}, 9.0), Marks({"0"}, {"0"}), LIVE, WAIT),
        (STILL, Marks({"0"}), LIVE, WAIT),
        (STILL, Marks({"0"}, dead={"0"}), LIVE, GIVEN_UP),
        (STILL, Marks({"0", "1"}, {"0"}, dead={"1"}), ENDED, GIVEN_UP),
        (STILL, Marks({"0"}, failed={"0"}), LIVE, GIVEN_UP),
        (STILL._replace(still_s=0.0), Marks({"0", "1"}, {"0", "1"}, local=2), LIVE, SEAL),
        (STILL._replace(open_by={7}), Marks({"0"}, {"0"}, local=1), LIVE, WAIT),
        (STILL, Marks({"0"}, {"0"}, local=2), LIVE, WAIT),
        (STILL._replace(still_s=40.0), Marks({"0"}, {"0"}, local=2), LIVE, SEAL),
        (STILL, Marks({"0"}, {"0"}, local=2), BROKEN, SEAL),
        (STILL._replace(has_lost_writer=True), Marks({"0"}, {"0"}), BROKEN, SEAL),
    ],
)
def test_a_part_is_sealed_when_it_will_not_change_any_more(
    growth: Growth, marks: Marks, phase: str, word: str
) -> None:
    """Ranks that speak are believed; else nothing is open and nothing moves; what a dead writer left is never taken for proven."""
    found = verdict(growth, marks, phase)
    assert found.word == word, found
    assert found.why


@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=8),
    st.integers(1, 3),
    st.integers(-5, 40),
    st.integers(-5, 40),
)
def test_the_newest_part_is_never_dropped_and_unpublished_ones_only_for_want_of_room(
    rows: list[tuple[int, bool]], keep: int, over: int, wanted: int
) -> None:
    """Whatever the node holds: the newest stays, what nobody published goes only where memory is short, oldest first."""
    held = [DropCandidate("0.1", f"step-{n}", size, published) for n, (size, published) in enumerate(rows)]
    gone = to_drop(held, keep=keep, over_bytes=over, wanted_bytes=wanted)
    assert len(set(gone)) == len(gone)
    assert (
        not held
        or held[-1] not in gone
        or (held[-1].is_published and sum(one.is_published for one in held) > keep)
    )
    lost = [one for one in gone if not one.is_published]
    assert not lost or over > 0
    assert lost == [one for one in held if not one.is_published][: len(lost)]
    if over <= 0 and wanted <= 0:
        assert (
            gone
            == [one for one in held if one.is_published][
                : max(0, sum(one.is_published for one in held) - keep)
            ]
        )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[01-03,7],gpu5", ["n01", "n02", "n03", "n7", "gpu5"]),
        ("r[1-2]x[0-1]", ["r1x0", "r1x1", "r2x0", "r2x1"]),
        ("a,b,a", ["a", "b"]),
        ("n[9-11]-ib", ["n9-ib", "n10-ib", "n11-ib"]),
        ("", []),
    ],
)
def test_slurms_lists_of_nodes_are_written_out(text: str, names: list[str]) -> None:
    """Ranges keep their width, brackets multiply, each node comes once."""
    assert formats.expand_node_list(text) == names


@pytest.mark.parametrize("text", ["n[", "n[1-", "n[3-1]", "n[a]", "a b", "n[1-99999999]"])
def test_what_is_no_list_of_nodes_is_refused(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(ValueError, match=r"."):
        formats.expand_node_list(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("8G", 8 << 30), ("1.5 GiB", 3 << 29), ("500MB", 500 << 20), ("1024", 1024), ("0", 0), ("50%", 500)],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    """Units are powers of 1024 however they are spelled; a percentage is one of the whole."""
    assert formats.parse_amount(text, 1000) == size


@pytest.mark.parametrize("text", ["", "G", "8X", "-1", "nan", "101%", "1e99"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """A slip is found where it is made."""
    with pytest.raises(ValueError, match=r"."):
        formats.parse_amount(text, 1000)


@pytest.mark.parametrize(
    ("name", "is_set"),
    [
        ("step-10", True), ("model-3.pt", True), ("iter_0000100", True), ("100", True), ("checkpoint-500", True),
        ("latest", False), ("latest_checkpointed_iteration.txt", False), (".hidden", False), ("a.tmp", False), ("tmp-checkpoint-5", False),
        ("100.orbax-checkpoint-tmp-17", False), ("model.pt.ftrun-complete", False), ("", False),
    ],
)  # fmt: skip
def test_a_set_is_what_has_a_finished_name(name: str, is_set: bool) -> None:
    """Trackers, hidden and temporary names at the top of the folder are no checkpoints."""
    assert records.is_set_name(name) == is_set


NAMES = st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=20)
INNER = st.lists(NAMES.filter(lambda one: one not in (".", "..")), min_size=1, max_size=3).map("/".join)
FACTS = st.builds(
    File, st.integers(0, 2**50), st.integers(0, 2**62), st.integers(0, 2**62), st.text("0123456789abcdef")
)


@given(NAMES, NAMES, st.dictionaries(INNER, FACTS), st.booleans())
def test_a_seal_is_read_as_it_was_written(name: str, node: str, files: dict[str, File], proven: bool) -> None:
    """Every record comes back the same, and a torn one comes back as none."""
    seal = Seal(name, "0.1", node, files, proven=proven)
    text = records.seal_json(seal)
    assert records.read_seal(text) == seal
    assert records.read_seal(text[:-2]) is None


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "a//b", "./a"])
def test_a_record_names_nothing_outside_its_set(path: str) -> None:
    """Whoever wrote the record, no file elsewhere is touched."""
    assert records.read_seal(records.seal_json(Seal("s", "0.1", "n", {path: File(1)}))) is None


def test_the_folder_of_a_set_on_its_way_names_it() -> None:
    """Name, job and start are read back from the folder's name, whatever dots the name has."""
    to = Publishing("/shared", "a.b.pt", "17", "0.3")
    assert Publishing.of("/shared", to.folder.rpartition("/")[2]) == to
    assert Publishing.of("/shared", "something.else") is None


def test_the_turn_to_publish_goes_by_name() -> None:
    """The first node at once, the others after it one by one, and a thousand nodes never all at once."""
    nodes = [f"n{number:04}" for number in range(1000)]
    assert merge.takeover_s(nodes, "n0000") == 0
    assert merge.takeover_s(nodes, "n0001") == merge.TAKEOVER_S
    assert merge.takeover_s(nodes, "n0999") is None
    assert merge.takeover_s(nodes, "other") is None


def test_a_file_that_is_a_folder_elsewhere_makes_no_set() -> None:
    """Two nodes that do not agree what a name is: refused with that name."""
    parts = {"a": Seal("s", "0.1", "a", {"x": File(1)}), "b": Seal("s", "0.1", "b", {"x/y": File(1)})}
    assert merge.merge_parts(parts, ["a", "b"]).why == "x is a file on one node and a folder on another"


USER = 61234  # nobody's, and needs no entry anywhere
SLEEPS = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]


@pytest.fixture
def above(tmp_path: Path) -> Path:
    """The folder of this user's jobs on a node."""
    folder = tmp_path / f"ftrun-{os.getuid()}"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def rank() -> Iterator[subprocess.Popen[bytes]]:
    """A process of job 990071."""
    with subprocess.Popen(
        SLEEPS, stdout=subprocess.PIPE, env={**os.environ, "SLURM_JOB_ID": "990071"}
    ) as one:
        assert one.stdout is not None
        one.stdout.readline()
        yield one
        one.kill()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Where every user gets to."""
    with tempfile.TemporaryDirectory(prefix="ftrun-stage-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def left(above: Path, name: str, told: str | None = None) -> Path:
    """The folder of a job whose daemon is gone."""
    lock = workspace.open_base(str(above / name))
    os.close(lock)
    (above / name / "stage").mkdir(exist_ok=True)
    (above / name / "stage" / "weights").write_bytes(b"w" * 9)
    if told is not None:
        (above / name / "lock").write_text(told)
    return above / name


def cleared(above: Path, own: Path | str = "") -> list[str]:
    """What is given back. A machine under load may not tell in time who is there: then nothing goes, and a later look is made."""
    give_up_s = time.monotonic() + 60
    while not (names := workspace.clear_dead(str(above), str(own))) and time.monotonic() < give_up_s:
        time.sleep(0.3)
    return names


def test_what_a_job_left_that_was_killed_with_its_keeper_goes_at_once(above: Path) -> None:
    """Nobody has its lock and no process of it is left; the lock's age does not matter."""
    left(above, "r-1.990077")
    own = left(above, "r-2.990078")
    assert cleared(above, own) == ["r-1.990077"]
    assert os.listdir(above) == ["r-2.990078"]


def test_a_job_that_has_a_process_here_keeps_its_memory(above: Path, rank: subprocess.Popen[bytes]) -> None:
    """Its daemon was killed and is not there again yet: any process of the job counts."""
    there = left(above, "r-1.990071")
    assert workspace.clear_dead(str(above)) == []
    assert (there / "stage" / "weights").exists()
    rank.kill()
    rank.wait()
    assert cleared(above) == ["r-1.990071"]


def test_a_folder_whose_lock_is_held_is_never_touched(above: Path) -> None:
    """Whoever holds it, also from where its processes are not seen; not even where Slurm says that the job is over, or after a day."""
    left(above, "r-1.990077")
    with (above / "r-1.990077" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.utime(above / "r-1.990077" / "lock", (1.0, 1.0))
        assert workspace.clear_dead(str(above), over="990077") == []
    assert workspace.clear_dead(str(above), over="990077") == ["r-1.990077"]


@pytest.mark.parametrize(("told", "is_dead"), [("{boot} 1", False), ("other-boot 1", True), ("", False)])
def test_what_was_made_in_another_container_is_left_for_a_day(told: str, is_dead: bool, above: Path) -> None:
    """Its processes are not seen from here; but none outlives a start of the node, and Slurm knows when a job is over."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    there = left(above, "r-1.990077", told.format(boot=boot))
    assert (cleared(above) if is_dead else workspace.clear_dead(str(above))) == (
        ["r-1.990077"] if is_dead else []
    )
    left(above, "r-1.990077", told.format(boot=boot))
    assert workspace.clear_dead(str(above), over="990077") == ["r-1.990077"]
    left(above, "r-1.990077", told.format(boot=boot))
    os.utime(there / "lock", (time.time() - workspace.STALE_S - 9,) * 2)
    assert cleared(above) == ["r-1.990077"]


def test_links_lead_nowhere(above: Path, tmp_path: Path) -> None:
    """A link in the place of a folder, of its lock, or of the folder of all: nothing behind it is touched."""
    kept = tmp_path / "kept" / "r-1.990077"
    kept.mkdir(parents=True)
    (kept / "lock").touch()
    os.utime(kept / "lock", (1.0, 1.0))
    (above / "r-1.990077").symlink_to(kept)
    (above / "r-2.990077").mkdir()
    (above / "r-2.990077" / "lock").symlink_to(kept / "lock")
    (tmp_path / "other").symlink_to(tmp_path / "kept")
    for folder in (above, tmp_path / "other"):
        assert workspace.clear_dead(str(folder), over="990077") == []
    assert (kept / "lock").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_the_epilog_takes_away_what_the_user_could_and_nothing_else(open_folder: Path) -> None:
    """As that user: what a link leads to, another user's folder and a file of root's stay; another job's that is gone goes, too."""
    tmp_path = open_folder
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "lock").touch()
    above = tmp_path / f"ftrun-{USER}"
    for name in ("r-1.990077", "r-2.990050", "r-3.990077"):
        (above / name / "stage").mkdir(parents=True)
        (above / name / "lock").touch()
        (above / name / "stage" / "weights").write_bytes(b"w")
    os.symlink(precious, above / "r-1.990077" / "stage" / "link")
    os.symlink(precious, above / "r-4.990077")
    for path in (above, *above.rglob("*")):
        os.chown(path, USER, USER, follow_symlinks=False)
    os.chown(above / "r-3.990077", 0, 0)
    os.utime(above / "r-2.990050" / "lock", (1.0, 1.0))
    assert workspace.clear_as_user(str(tmp_path), USER, "990077", 20.0) == ["r-1.990077", "r-2.990050"]
    assert sorted(os.listdir(above)) == ["r-3.990077", "r-4.990077"]
    assert (precious / "lock").exists()
    assert workspace.clear_as_user(str(tmp_path), USER + 1, "990077", 20.0) == []
    os.chown(above, USER + 1, USER)
    assert workspace.clear_as_user(str(tmp_path), USER, "990077", 20.0) == []


def test_a_folder_that_fills_its_node_is_opened_again(above: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a daemon may drop itself counts as room; one that finds none, and holds nothing, says so."""
    os.close(workspace.open_base(str(above / "r-1.990077")))
    full = os.statvfs_result((4096, 4096, 1 << 20, 0, 0, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    with pytest.raises(OSError, match="less than 64 MiB of room"):
        workspace.open_base(str(above / "r-1.990077"))
    monkeypatch.setattr(inventory, "used_bytes", lambda _path: workspace.LEAST_BYTES)
    os.close(workspace.open_base(str(above / "r-1.990077")))


def test_nodes_that_share_their_memory_are_told_what_to_do(
    above: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is another's: the reason names the folder, the setting, and the sandbox's option."""
    monkeypatch.setattr(workspace, "LOCK_TRIES", 1)
    lock = workspace.open_base(str(above / "r-1.990077"))
    with pytest.raises(OSError, match=r"--ft-stage-dir .* ftrun sandbox up --shm MIB"):
        workspace.open_base(str(above / "r-1.990077"))
    os.close(lock)


def test_the_folder_of_a_job_is_known_from_what_its_keepers_were_told(tmp_path: Path) -> None:
    """The words of the latest launch; nothing where checkpoints are not staged."""
    assert workspace.job_folder(str(tmp_path)) == ""
    (tmp_path / "stage").mkdir()
    for launch in (0, 1):
        (tmp_path / "stage" / f"words.{launch}").write_text(f"--job\n7\n--base\n/dev/shm/x/r.{launch}\n")
    assert workspace.job_folder(str(tmp_path)) == "/dev/shm/x/r.1"
