"""Laws of ownership: what another user could have written is distrusted, and a private folder is private whatever the umask. (I/O)"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ftrun.hooks.runtime import ownership

NOBODY = 65534
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")


@pytest.mark.parametrize(
    ("mode", "trusted"),
    [(0o600, True), (0o644, True), (0o755, True), (0o666, False), (0o646, False), (0o1666, False)],
)
def test_a_file_that_others_may_write_is_distrusted(tmp_path: Path, mode: int, trusted: bool) -> None:
    """Reading is allowed to others, writing is not; the reason names the file and the mend."""
    path = tmp_path / "file"
    path.write_text("x")
    path.chmod(mode)
    why = ownership.why_untrusted(str(path))
    assert bool(why) is not trusted
    assert trusted or (str(path) in why and "chmod" in why)


@ROOT_ONLY
@pytest.mark.parametrize(
    ("owner", "asker", "trusted"),
    [(0, 0, True), (NOBODY, 0, False), (0, NOBODY, True), (12345, NOBODY, False)],
)
def test_only_this_user_and_root_are_trusted(tmp_path: Path, owner: int, asker: int, trusted: bool) -> None:
    """A file of root counts for everybody, a file of another user for nobody else."""
    path = tmp_path / "file"
    path.write_text("x")
    os.chown(path, owner, owner)
    assert (ownership.why_untrusted(str(path), uid=asker) == "") is trusted


@ROOT_ONLY
def test_a_group_with_strangers_is_distrusted(tmp_path: Path) -> None:
    """A file that a group may write counts only where the group is this user's alone."""
    path = tmp_path / "file"
    path.write_text("x")
    path.chmod(0o664)
    os.chown(path, 0, 100)
    assert "group" in ownership.why_untrusted(str(path))
    os.chown(path, 0, 0)
    assert ownership.why_untrusted(str(path)) == ""


def test_a_link_is_distrusted(tmp_path: Path) -> None:
    """A link is nobody's word, unless the caller wants what it points to."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    assert "link" in ownership.why_untrusted(str(tmp_path / "link"))
    assert ownership.why_untrusted(str(tmp_path / "link"), follow=True) == ""
    assert ownership.why_untrusted(str(tmp_path / "missing"))


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077, 0o777])
def test_a_private_folder_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    """0700, made or found open."""
    (tmp_path / "open").mkdir(mode=0o777)
    before = os.umask(umask)
    try:
        made = ownership.private_folder(str(tmp_path / "made"))
        found = ownership.private_folder(str(tmp_path / "open"))
    finally:
        os.umask(before)
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in (made, found)] == [0o700, 0o700]


def test_a_squatted_folder_is_refused(tmp_path: Path) -> None:
    """A link, a file, or another user's folder in its place is refused in one line that names it, and left as it is."""
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to("elsewhere")
    (tmp_path / "file").write_text("x")
    names = ["link", "file"]
    if os.geteuid() == 0:
        (tmp_path / "foreign").mkdir()
        os.chown(tmp_path / "foreign", NOBODY, NOBODY)
        names.append("foreign")
    for name in names:
        with pytest.raises(ownership.NotPrivate, match=name):
            ownership.private_folder(str(tmp_path / name))
    assert stat.S_IMODE(os.stat(tmp_path / "elsewhere").st_mode) == 0o755
