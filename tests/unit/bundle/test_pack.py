"""Laws of the packed node side: it needs a Python 3.9 and nothing else, and whoever makes it makes the same. (I/O)"""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ftrun.hooks.bundle import zipapp
from ftrun.hooks.checks.catalogue import checks

ROOT = Path(__file__).resolve().parents[3]


def _python39() -> str:
    found = subprocess.run([ROOT / ".ci" / "python39"], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(found.stderr.strip().splitlines()[-1])
    return found.stdout.strip()


def test_the_packed_hooks_run_on_a_python_39_that_has_nothing_of_ours(tmp_path: Path) -> None:
    """The same version, the same checks, and a report, with an empty environment and no place to write."""
    path = zipapp.build_zipapp(str(tmp_path))

    def said(*arguments: str) -> str:
        command = [_python39(), "-I", path, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env={})
        assert (0, "") == (done.returncode, done.stderr)
        return done.stdout

    facts = json.loads(said("version"))
    assert (zipapp._version(), "3.9") == (facts["ftrun"], facts["python"][:3])
    for _ in range(2):  # from the sources, and from what was compiled of them
        listed = json.loads(said("check", "--tier", "burn-in", "--list", "--json"))
        assert [check.name for check in checks("burn-in")] == [one["name"] for one in listed]
        assert all(one["thinking"] for one in listed)
    assert ["memory"] == json.loads(said("check", "--json", "memory"))["checks"]


def test_every_module_of_the_pack_loads_from_it(tmp_path: Path) -> None:
    """On a real 3.9: nothing in it reaches for a file beside it, or for what was left out."""
    path = zipapp.build_zipapp(str(tmp_path))
    with zipfile.ZipFile(path) as packed:
        names = [name[:-3].replace("/", ".") for name in packed.namelist() if name.endswith(".py")]
    names = [name for name in names if not name.startswith("__")]
    code = f"import sys, importlib; sys.path.insert(0, {path!r}); [importlib.import_module(n) for n in {names!r}]"
    done = subprocess.run([_python39(), "-I", "-c", code], capture_output=True, text=True, check=False)

    assert (0, "") == (done.returncode, done.stderr)


def test_makers_that_meet_make_one_file_of_the_same_bytes(tmp_path: Path) -> None:
    """Many at once, here and elsewhere: one path, one content, no drafts left behind."""
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(zipapp.build_zipapp, [str(tmp_path)] * 16))

    (path,) = paths
    assert [os.path.basename(path)] == os.listdir(tmp_path / "tools")
    assert zipapp.zipapp_bytes() == Path(path).read_bytes()
    assert os.access(path, os.X_OK)


def test_what_is_there_is_taken_as_it_is(tmp_path: Path) -> None:
    """A file of this name was renamed into place whole, so it is not made again."""
    path = zipapp.build_zipapp(str(tmp_path))
    before = os.stat(path).st_ino

    assert (path, before) == (zipapp.build_zipapp(str(tmp_path)), os.stat(path).st_ino)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """Whoever needs the pack decides what to do without it."""
    (tmp_path / "tools").write_text("a file in the way")

    with pytest.raises(OSError, match="tools"):
        zipapp.build_zipapp(str(tmp_path))
