"""Every path in the table that others could have put there first, by owner, mode and link: what looks at it refuses it, as root and as a user."""

from __future__ import annotations

import grp  # noqa: F401  a child that is another user may not read the interpreter that we run on
import os
import pwd  # noqa: F401
import shutil
import stat
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from ftrun.hooks.bundle import bytecode_cache, zipapp
from ftrun.hooks.compile_cache import node
from ftrun.hooks.runtime.ownership import RUNNER, private_folder, why_untrusted
from ftrun.hooks.staging import workspace
from ftrun.slurm.sandbox import boot, ports
from ftrun.supervisor.store import run_dir
from tests import owned_paths

ME, ANOTHER = 12345, 23456
OWNERS = {"me": ME, "root": 0, "another": ANOTHER}
MODES = (0o700, 0o755, 0o770, 0o777)
LINKS = (False, True)
AS_USERS = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
PYTHON = "/usr/bin/python3"


class Case:
    """One path in one state. `path` is what is asked about, `made` what it or the link there leads to."""

    def __init__(
        self,
        folder: Path,
        owner: str,
        mode: int,
        *,
        link: bool,
        content: bytes | None = None,
        name: str = "x",
    ) -> None:
        self.path = folder / name
        self.made = folder / "elsewhere" if link else self.path
        if content is None:
            self.made.mkdir()
        else:
            self.made.write_bytes(content)
        os.chown(self.made, OWNERS[owner], ANOTHER)
        self.made.chmod(mode)
        if link:
            self.path.symlink_to(self.made)
            os.lchown(self.path, OWNERS[owner], ANOTHER)


def as_me(act: Callable[[], bool]) -> bool:
    """What it answers in a child that is an ordinary user."""
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(ME)
            os.setuid(ME)
            os._exit(0 if act() else 1)
        except Exception:  # noqa: BLE001  told by the parent
            traceback.print_exc()
        finally:
            os._exit(2)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1)
    return status == 0


def _home(case: Case) -> bool:
    return not run_dir.why_home_untrusted(str(case.path))


def _own(case: Case) -> bool:
    try:
        node.ensure_private(str(case.path / "cache-1"))
    except node.ForeignFolder:
        return False
    return stat.S_IMODE(case.path.stat().st_mode) == 0o700


def _base(case: Case) -> bool:
    try:
        os.close(workspace.open_base(str(case.path / "run.1")))
    except OSError:
        return False
    return stat.S_IMODE(case.path.stat().st_mode) == 0o700


def _plan(case: Case) -> bool:
    return not why_untrusted(str(case.path))


def _private(case: Case) -> bool:
    try:
        private_folder(str(case.path))
    except OSError:
        return False
    return stat.S_IMODE(case.path.stat().st_mode) == 0o700


def _sandbox(case: Case) -> bool:
    return not boot.is_foreign(case.path)


def _lock(case: Case) -> bool:
    handle = ports._open_own(case.path)
    if handle is None:
        return False
    os.close(handle)
    return stat.S_IMODE(case.path.stat().st_mode) == 0o600


def _expected_private(owner: str, _mode: int, *, link: bool) -> bool:
    return owner == "me" and not link  # an open one is closed


def _expected_trusted(owner: str, mode: int, *, link: bool) -> bool:
    return owner != "another" and not mode & 0o022 and not link


def _expected_followed(owner: str, mode: int, *, link: bool) -> bool:
    return owner != "another" and not mode & 0o022


def _expected_lock(_owner: str, _mode: int, *, link: bool) -> bool:
    return False


FOLDERS: dict[str, tuple[Callable[[Case], bool], Callable[..., bool]]] = {
    "store.foreign_home": (_home, _expected_followed),
    "compile_cache.node.ensure_private": (_own, _expected_private),
    "staging.workspace.open_base": (_base, _expected_private),
    "boot.is_foreign": (_sandbox, _expected_trusted),
    "ownership.why_untrusted": (_plan, _expected_trusted),
    "ownership.private_folder": (_private, _expected_private),
    "ports": (_lock, _expected_lock),
}
ELSEWHERE = {
    "ownership.RUNNER": "test_the_node_side_is_run_only_where_nobody_else_can_have_written_it",
    "compiled.load": "test_what_is_compiled_is_loaded_only_where_nobody_else_can_have_written_it",
    "cluster.choice.changes": "tests/unit/cluster/test_choice.py: test_the_claim_of_another_user_chooses_nothing",
    "made anew": "its name is drawn at random and made exclusively",
}


@pytest.fixture
def place() -> Iterator[Path]:
    """A sticky folder that everybody may write to, as /tmp is, below folders that all may enter."""
    folder = Path(tempfile.mkdtemp(prefix="ftrun-t-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@AS_USERS
@pytest.mark.parametrize(
    "row", [row for row in owned_paths.ROWS if row.asked not in {"", *ELSEWHERE}], ids=lambda row: row.name
)
def test_what_others_put_there_first_is_refused(place: Path, row: owned_paths.Row) -> None:
    """Each path of the table x owner x mode x link, asked by an ordinary user."""
    probe, expected = FOLDERS[row.asked]
    wrong = []
    for number, (owner, mode, link) in enumerate(product(OWNERS, MODES, LINKS)):
        folder = place / str(number)
        folder.mkdir()
        folder.chmod(0o1777)
        case = Case(folder, owner, mode, link=link)
        if as_me(lambda case=case: probe(case)) is not expected(owner, mode, link=link):  # type: ignore[misc]
            wrong.append((owner, oct(mode), link))

    assert wrong == []


def test_every_row_says_what_looks_at_it() -> None:
    """What lies where others write, or is run, is asked about, or the folder above it is; and this page knows each that asks."""
    asked = {row.where: row.asked for row in owned_paths.ROWS}
    for row in owned_paths.ROWS:
        assert row.asked in {"", *FOLDERS, *ELSEWHERE}, row.name
        if row.lies == owned_paths.SHARED:
            assert row.asked, row.name
        elif row.use == "run" and not row.asked:
            top = row.where.partition("/")[0]
            root = f"{top}/ftrun-<uid>" if top in {"{cache-base}", "{var-tmp}"} else top
            assert asked[root], row.name


@AS_USERS
@pytest.mark.parametrize("of", ["file", "folder"])
def test_the_node_side_is_run_only_where_nobody_else_can_have_written_it(place: Path, of: str) -> None:
    """Owner, mode and sum of the file and of its folder; a link to it leads to the file itself."""
    packed = Path(zipapp.build_zipapp(str(place / "made")))
    wrong = []
    for number, (owner, mode) in enumerate(product(OWNERS, MODES)):
        tools = place / str(number)
        tools.mkdir()
        file = tools / packed.name
        shutil.copy(packed, file)
        for path, owner_now, mode_now in (
            ((file, owner, mode), (tools, "me", 0o755))
            if of == "file"
            else ((file, "me", 0o755), (tools, owner, mode))
        ):
            os.chown(path, OWNERS[owner_now], ANOTHER)
            path.chmod(mode_now)
        done = subprocess.run(
            [PYTHON, "-IS", "-c", RUNNER, str(file), "version"],
            user=ME,
            group=ME,
            extra_groups=[],
            capture_output=True,
            check=False,
        )
        fit = owner != "another" and not mode & 0o022 and (owner, mode) != ("root", 0o700)
        if (done.returncode == 0 and b'"ftrun"' in done.stdout) is not fit or (
            not fit and done.returncode not in (121,)
        ):
            wrong.append((owner, oct(mode), done.returncode, done.stderr))

    assert wrong == []


@pytest.mark.parametrize("change", ["a byte more", "another name"])
def test_a_node_side_that_is_not_what_its_name_says_is_not_run(tmp_path: Path, change: str) -> None:
    """Its name bears its SHA-256, and so does the submitted script."""
    packed = Path(zipapp.build_zipapp(str(tmp_path)))
    if change == "a byte more":
        packed.write_bytes(packed.read_bytes() + b"\0")
    else:
        packed = packed.rename(packed.with_name("ftrun-hook.pyz"))
    done = subprocess.run(
        [sys.executable, "-IS", "-c", RUNNER, str(packed), "version"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (121, "") == (done.returncode, done.stdout)
    assert "nothing of it is run" in done.stderr


@AS_USERS
def test_what_is_compiled_is_loaded_only_where_nobody_else_can_have_written_it(place: Path) -> None:
    """It belongs to whoever owns the packed file, and bears that file's sum."""
    packed = Path(zipapp.build_zipapp(str(place / "made")))
    assert bytecode_cache.compile_modules(str(packed))
    beside = Path(bytecode_cache.cache_path(str(packed)))
    for one in (packed, packed.parent, packed.parent.parent):
        os.chown(one, ME, ANOTHER)
    wrong = []
    for owner, mode in product(OWNERS, (0o600, 0o644, 0o660, 0o666)):
        os.chown(beside, OWNERS[owner], ANOTHER)
        beside.chmod(mode)
        if as_me(lambda: bytecode_cache.install_finder(str(packed))) is not (
            owner == "me" and not mode & 0o022
        ):
            wrong.append((owner, oct(mode)))

    assert wrong == []
