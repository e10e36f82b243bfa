"""Memory that dead jobs left on a node is given back at once, and never that of one that is alive. (I/O)"""

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

from ftrun.hooks.staging import inventory, workspace

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
    """The folder of a job whose keeper is gone."""
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
    """Its keeper was killed and is not there again yet: any process of the job counts."""
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
    """What a keeper may drop itself counts as room; one that finds none, and holds nothing, says so."""
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
