"""Laws of the compiled node side: it is quicker, says the same, and is believed only where the packed one is. (I/O)"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftrun.hooks.bundle import bytecode_cache, zipapp


def _said(packed: str) -> tuple[int, str, str]:
    command = [sys.executable, "-IS", packed, "check", "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


def _loaded_from_it(packed: str) -> bool:
    code = f"import sys; sys.path.insert(0, {packed!r}); from ftrun.hooks.bundle import bytecode_cache; sys.exit(not bytecode_cache.install_finder({packed!r}))"
    return not subprocess.run([sys.executable, "-IS", "-c", code], check=False, timeout=60).returncode


def test_the_first_who_runs_it_compiles_it_for_all(tmp_path: Path) -> None:
    """Beside the packed file, without a draft left behind; and both say the same."""
    packed = zipapp.build_zipapp(str(tmp_path))
    first = _said(packed)

    assert {os.path.basename(packed), os.path.basename(bytecode_cache.cache_path(packed))} == set(
        os.listdir(tmp_path / "tools")
    )
    made = os.stat(bytecode_cache.cache_path(packed)).st_ino
    assert first == _said(packed)
    assert (0, "") == (first[0], first[2])
    assert made == os.stat(bytecode_cache.cache_path(packed)).st_ino
    assert _loaded_from_it(packed)


@pytest.mark.parametrize("amiss", ["cut", "changed", "others may write it", "another packed file", "nothing"])
def test_what_cannot_be_believed_is_not(tmp_path: Path, amiss: str) -> None:
    """A file that is cut off or damaged, that others may write, or that belongs to another packed one: the sources are taken."""
    packed = zipapp.build_zipapp(str(tmp_path))
    assert bytecode_cache.compile_modules(packed)
    path = Path(bytecode_cache.cache_path(packed))
    content = path.read_bytes()
    if amiss == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif amiss == "changed":
        middle = bytecode_cache.HEAD_BYTES + 9
        path.write_bytes(content[:middle] + b"?" + content[middle + 1 :])
    elif amiss == "others may write it":
        path.chmod(0o666)
    elif amiss == "another packed file":
        Path(packed).write_bytes(Path(packed).read_bytes() + b"\0")
    else:
        path.write_bytes(b"")

    assert not _loaded_from_it(packed)
    path.parent.chmod(0o755)
    assert 0 == _said(packed)[0]


def test_a_damaged_module_is_taken_from_the_packed_file(tmp_path: Path) -> None:
    """Each has a checksum of its own, as each is read by itself: whoever needs others never sees it."""
    packed = zipapp.build_zipapp(str(tmp_path))
    assert bytecode_cache.compile_modules(packed)
    path = Path(bytecode_cache.cache_path(packed))
    whole, content = _said(packed), path.read_bytes()
    path.write_bytes(content[: len(content) // 4] + bytes(len(content) - len(content) // 4))

    assert _loaded_from_it(packed)
    assert whole == _said(packed)
    assert (0, "") == (whole[0], whole[2])


def test_nobody_compiles_what_is_another_s_or_what_somebody_compiles_now(tmp_path: Path) -> None:
    """A draft that is young is another's work; one that was left behind is not waited for."""
    packed = zipapp.build_zipapp(str(tmp_path))
    draft = Path(bytecode_cache.cache_path(packed) + ".tmp")
    draft.write_bytes(b"")

    assert not bytecode_cache.compile_modules(packed)
    os.utime(draft, (1, 1))
    assert bytecode_cache.compile_modules(packed)
    assert not draft.exists()


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path) -> None:
    """Then every process compiles for itself, as without this file."""
    packed = zipapp.build_zipapp(str(tmp_path))
    os.mkdir(bytecode_cache.cache_path(packed) + ".tmp")

    assert not bytecode_cache.compile_modules(packed)
    assert (0, "") == _said(packed)[::2]
