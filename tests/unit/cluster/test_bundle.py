"""A bundle of Slurm: what it holds, what of it is refused, and that it is written to new names only and appears whole."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import pwd
import shutil
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.cluster import unpack
from ftrun.hooks.cluster.errors import HostError
from ftrun.supervisor.cluster import bundle, elf, packages
from ftrun.supervisor.cluster.findings import NEEDED
from ftrun.supervisor.model.errors import UserError

# A program that says its version: the loader of these bundles runs shell scripts.
LOADER = b'#!/bin/sh\n[ "$2" = --help ] && exit 1\nexec /bin/sh "$3" "$4"\n'
SLURMD = b"#!/bin/sh\necho slurm 24.11.5\n"
FILES = {"real/slurmd": SLURMD, "real/srun": b"srun", "plugins/auth_munge.so": b"so", "lib/ld.so": LOADER}
FACTS = {"version": "24.11.5", "arch": "x86_64", "loader": "ld.so"}


def _packed(files: dict[str, bytes] | None = None) -> bytes:
    return packages.packed_bundle(FILES if files is None else files, FACTS)


def _hash(packed: bytes) -> str:
    return hashlib.sha256(unpack.contents(packed)[unpack.MANIFEST]).hexdigest()


def _step(above: Path, packed: bytes, **changes: Any) -> dict[str, Any]:
    sent = {"content": base64.b64encode(packed).decode(), "path": ""}
    return {"folder": str(above / "slurm_1"), "sha256": _hash(packed), **sent, **changes}


@pytest.fixture
def above(tmp_path: Path) -> Path:
    """The folder of a user's clusters on a host."""
    return tmp_path / "ftrun-1000"


def test_the_bytes_are_the_same_for_the_same_files() -> None:
    """So two users of one release share its hash, and a bundle made anew is found by it."""
    assert _packed() == _packed(dict(reversed(FILES.items())))


def test_what_is_unpacked_is_found_the_next_time_by_its_hash(above: Path) -> None:
    """Wrappers give the program's absolute path and set no variable; nothing is sent or written twice."""
    folder = above / "slurm_1"
    assert {"there": True} == unpack.unpack(_step(above, _packed()))
    before = folder.stat().st_ino

    assert {"there": True} == unpack.unpack(_step(above, _packed(), content="", path="/none"))
    assert before == folder.stat().st_ino
    assert (folder / "bin" / "slurmd").read_text().splitlines()[1:] == [
        f'exec {folder}/loader/slurmd --library-path {folder}/lib --argv0 {folder}/bin/slurmd {folder}/real/slurmd "$@"'
    ]
    assert "../lib/ld.so" == os.readlink(folder / "loader" / "slurmd")
    assert [0o755] == sorted({path.stat().st_mode & 0o777 for path in folder.rglob("*")})
    assert 0o700 == above.stat().st_mode & 0o777 or os.geteuid() == 0


def test_a_host_that_sees_the_file_reads_it_and_one_that_does_not_asks_for_it(
    above: Path, tmp_path: Path
) -> None:
    """A file of that path with another content is not believed."""
    file = tmp_path / "bundle.tar.gz"
    step = _step(above, _packed(), content="", path=str(file))

    assert {"there": False} == unpack.unpack(step)
    file.write_bytes(_packed({**FILES, "real/srun": b"another"}))
    assert {"there": False} == unpack.unpack(step)
    file.write_bytes(_packed())
    assert {"there": True} == unpack.unpack(step)


@pytest.mark.parametrize("name", ["real/slurmd", "plugins/auth_munge.so", "bin/srun", "bundle.json"])
def test_a_damaged_one_is_unpacked_anew(above: Path, name: str) -> None:
    """A host that lost its power can have a file without content."""
    unpack.unpack(_step(above, _packed()))
    damaged = above / "slurm_1" / name
    whole = damaged.read_bytes()
    damaged.write_bytes(b"")

    assert {"there": False} == unpack.unpack(_step(above, _packed(), content="", path="/none"))
    assert {"there": True} == unpack.unpack(_step(above, _packed()))
    assert whole == damaged.read_bytes()


def test_other_bundles_make_room_and_clusters_stay(above: Path) -> None:
    """Releases do not pile up on the local disk."""
    for name in ("slurm_0", "slurm_1.draft", "default"):
        (above / name).mkdir(parents=True)
    unpack.unpack(_step(above, _packed()))

    assert ["default", "slurm_1"] == sorted(os.listdir(above))


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd", "../passwd", "real/../../passwd", "real/..", "real/.", "lib/", "real/a/b", "bin/srun",
        "loader/srun", "passwd", "real/a\nb", "./real/a", "bundle.json",
    ],
)  # fmt: skip
def test_a_name_that_leads_elsewhere_is_refused(above: Path, name: str) -> None:
    """As are names that ftrun gives itself; nothing is written, also if bundle.json names the file."""
    manifest = json.dumps({**FACTS, "files": {name: hashlib.sha256(b"x").hexdigest()}}).encode()
    packed = _tar([(unpack.MANIFEST, manifest), (name, b"x")])
    with pytest.raises(HostError, match=r"does not belong|twice"):
        unpack.unpack(_step_of(above, packed, manifest))

    assert [] == list(above.iterdir())


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE])
def test_what_is_no_plain_file_is_refused(above: Path, kind: bytes) -> None:
    """A link would let the next file be written to where it leads."""
    manifest = json.dumps({**FACTS, "files": {}}).encode()
    packed = _tar([(unpack.MANIFEST, manifest), ("real/srun", b"")], kind)
    with pytest.raises(HostError, match="does not belong"):
        unpack.unpack(_step_of(above, packed, manifest))

    assert [] == list(above.iterdir())


def _hurt(packed: bytes) -> Iterator[tuple[str, bytes]]:
    yield "not named", _packed({**FILES, "real/srun": b"another"})
    yield "cut", packed[: len(packed) // 2]
    yield "empty", b""
    yield "text", b"no bundle"
    half = len(packed) // 2
    yield "a bit", packed[:half] + bytes([packed[half] ^ 1]) + packed[half + 1 :]


@pytest.mark.parametrize("kind", ["not named", "cut", "empty", "text", "a bit"])
def test_what_has_another_hash_is_refused(above: Path, kind: str) -> None:
    """Sent or carried: nothing is written."""
    packed = _packed()
    hurt = dict(_hurt(packed))[kind]
    with pytest.raises(HostError):
        unpack.contents(hurt, _hash(packed))
    if hurt:
        with pytest.raises(HostError):
            unpack.unpack(_step(above, packed, content=base64.b64encode(hurt).decode()))
        assert [] == list(above.iterdir())


def test_a_file_that_is_not_what_its_manifest_says_is_refused() -> None:
    """The manifest is right, and one file is not."""
    manifest = unpack.contents(_packed())[unpack.MANIFEST]
    rows = [(unpack.MANIFEST, manifest), *({**FILES, "real/srun": b"another"}).items()]

    with pytest.raises(HostError, match=r"damaged: real/srun"):
        unpack.contents(_tar(rows))
    with pytest.raises(HostError, match="does not hold what"):
        unpack.contents(_tar(rows[:-1]))


@pytest.mark.parametrize("kind", ["file", "link", "hard link"])
def test_what_is_there_is_never_written(tmp_path: Path, kind: str) -> None:
    """Neither a folder of that name nor what a link in it leads to."""
    machine, draft = tmp_path / "machine", tmp_path / "draft"
    machine.write_text("the machine's")
    if kind == "file":
        draft.write_text("")
    elif kind == "link":
        (tmp_path / "theirs").mkdir()
        draft.symlink_to(tmp_path / "theirs")
    else:
        draft.hardlink_to(machine)
    with pytest.raises(FileExistsError):
        unpack.write_bundle(unpack.contents(_packed()), str(draft), str(draft))

    assert "the machine's" == machine.read_text()
    assert kind != "link" or [] == list((tmp_path / "theirs").iterdir())


KILLED = """\
import json, os, sys
from ftrun.hooks.cluster import unpack
left = int(sys.argv[2])
def count(event, arguments):
    global left
    if event in ("open", "os.mkdir", "os.rename", "os.symlink", "os.chmod"):
        left -= 1
        if left == 0 or event == "os.rename":
            os.kill(os.getpid(), 9)
step = json.load(open(sys.argv[1]))
sys.addaudithook(count)
unpack.unpack(step)
"""


@pytest.mark.parametrize("place", [1, 3, 5, 9, 11, 20, 30, 38, 1000])
def test_a_cut_leaves_no_half_bundle_under_its_name(above: Path, tmp_path: Path, place: int) -> None:
    """kill -9 before an effect on files, the last one at the latest: nothing has the name, and the next one makes it whole."""
    request = tmp_path / "request.json"
    request.write_text(json.dumps(_step(above, _packed())))
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(request), str(place)], capture_output=True, check=False
    )

    assert -9 == done.returncode, done.stderr
    assert not (above / "slurm_1").exists()
    assert {"there": True} == unpack.unpack(_step(above, _packed()))
    assert ["slurm_1"] == os.listdir(above)


def test_a_bundle_that_does_not_run_here_is_told(above: Path) -> None:
    """A kernel too old, a disk without programs: its own words; the next one is tried anew."""
    packed = _packed({**FILES, "real/slurmd": b"echo kernel too old >&2; exit 1\n"})
    with pytest.raises(HostError, match="does not run here: kernel too old"):
        unpack.unpack(_step(above, packed))

    assert not (above / "slurm_1").exists()


class TestKept:
    """Bundles in the user's home."""

    @pytest.fixture(autouse=True)
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A home of its own, and no network."""
        monkeypatch.setenv("FTRUN_HOME", str(tmp_path / "home"))
        monkeypatch.setattr(packages, "made_bundle", self._refused)

    @staticmethod
    def _refused(arch: str, suite: str, told: Callable[[str], None]) -> bytes:
        raise UserError(f"no network for {arch}")

    @staticmethod
    def _file(path: Path, **facts: str) -> str:
        path.write_bytes(packages.packed_bundle(FILES, {**FACTS, **facts}))
        path.chmod(0o600)
        return str(path)

    def test_what_was_carried_is_found_by_the_next_up(self, tmp_path: Path) -> None:
        """It is kept under the name of its hash; of several the newest release is taken."""
        old = self._file(tmp_path / "a.tgz", version="22.05.8")
        new = self._file(tmp_path / "b.tgz", version="24.11.5")
        for one in (new, old):
            bundle.choose([one], ["x86_64"], print)
        chosen = bundle.choose([], ["x86_64"], print)["x86_64"]

        assert ("24.11.5", ("slurmd", "srun")) == (chosen.version, chosen.programs)
        assert chosen.path.endswith(f"home/bundles/slurm_24.11.5_x86_64_{chosen.sha256[:16]}.tar.gz")

    def test_hosts_of_another_architecture_need_one_more(self, tmp_path: Path) -> None:
        """And one release for all of them."""
        here = self._file(tmp_path / "a.tgz")
        other = self._file(tmp_path / "b.tgz", arch="aarch64")
        older = self._file(tmp_path / "c.tgz", arch="aarch64", version="22.05.8")

        with pytest.raises(UserError, match="no network for aarch64"):
            bundle.choose([here], ["x86_64", "aarch64"], print)
        assert {"aarch64", "x86_64"} == set(bundle.choose([here, other], ["x86_64", "aarch64"], print))
        with pytest.raises(UserError, match="one release"):
            bundle.choose([here, older], ["x86_64", "aarch64"], print)
        with pytest.raises(UserError, match="is for aarch64, and no host is"):
            bundle.choose([other], ["x86_64"], print)

    def test_a_wrong_hash_or_name_is_refused(self, tmp_path: Path) -> None:
        """What was replaced in the cache, and what would name a folder elsewhere."""
        kept = Path(bundle.choose([self._file(tmp_path / "a.tgz")], ["x86_64"], print)["x86_64"].path)
        kept.write_bytes(packages.packed_bundle({**FILES, "real/srun": b"another"}, FACTS))

        with pytest.raises(UserError, match="not the bundle that its name says"):
            bundle.choose([], ["x86_64"], print)
        with pytest.raises(UserError, match=r"none\.tgz: No such file"):
            bundle.read(str(tmp_path / "none.tgz"))
        with pytest.raises(UserError, match="no bundle"):
            bundle.read(self._file(tmp_path / "b.tgz", version="../../24.11"))

    def test_a_file_that_others_can_write_is_refused(self, tmp_path: Path) -> None:
        """Its programs would run as this user."""
        path = self._file(tmp_path / "a.tgz")
        os.chmod(path, 0o666)

        with pytest.raises(UserError, match="its programs are not run"):
            bundle.read(path)


def test_what_a_program_needs_is_read_from_its_file() -> None:
    """As the loader of this machine says, for Python and for a library."""
    found, loader = elf.needed(Path(os.path.realpath("/bin/sh")).read_bytes())

    assert "libc.so.6" in found
    assert loader.startswith("ld-linux")
    with pytest.raises(ValueError, match="no 64-bit"):
        elf.needed(b"#!/bin/sh\n")
    with pytest.raises(struct.error):
        elf.needed(Path(os.path.realpath("/bin/sh")).read_bytes()[:100])


def test_a_bundle_has_each_plugin_whose_libraries_are_there_and_no_library_more() -> None:
    """A program that lacks one is an error."""
    shell = Path(os.path.realpath("/bin/sh")).read_bytes()
    names, loader = elf.needed(shell)
    whole = {name: _elf() for name in [*names, loader, "libz.so.1.2", "libx.so.1"]}
    programs = dict.fromkeys(NEEDED, shell)
    plugins = {"good.so": _elf("libz.so.1"), "bad.so": _elf("libnone.so.1")}
    found = packages.Found(programs, plugins, whole, {"libz.so.1": "libz.so.1.2"})

    files, its_loader = packages.chosen_files(found)

    assert loader == its_loader
    assert {f"real/{name}" for name in NEEDED} | {"plugins/good.so", "lib/libz.so.1"} | {
        f"lib/{name}" for name in [*names, loader]
    } == set(files)
    del whole["libc.so.6"]
    with pytest.raises(UserError, match=r"lack libc\.so\.6"):
        packages.chosen_files(found)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_nothing_is_made_as_root() -> None:
    """It is the user of apt who does it; what goes wrong is told all the same."""
    user = pwd.getpwnam("_apt")

    def refused() -> bytes:
        raise UserError("no network")

    def itself() -> bytes:
        return f"{os.geteuid()} {os.getgroups()} {os.getcwd()}".encode()

    assert f"{user.pw_uid} [] /".encode() == packages.as_apt(itself)
    with pytest.raises(UserError, match="no network"):
        packages.as_apt(refused)
    with pytest.raises(UserError, match="the child process died"):
        packages.as_apt(lambda: bytes(1 // 0))


def _elf(*names: str) -> bytes:
    """A library that needs these."""
    strings = b"\0" + b"".join(name.encode() + b"\0" for name in names)
    at = 64 + 2 * 56
    rows = b""
    offset = 1
    for name in names:
        rows += struct.pack("<qQ", 1, offset)
        offset += len(name) + 1
    rows += struct.pack("<qQ", 5, at + 16 * (len(names) + 2)) + struct.pack("<qQ", 0, 0)
    size = at + len(rows) + len(strings)
    head = (
        b"\x7fELF\x02\x01".ljust(0x20, b"\0")
        + struct.pack("<Q", 64).ljust(0x16, b"\0")
        + struct.pack("<HH", 56, 2)
    )
    segments = struct.pack("<IIQQQQQQ", 1, 0, 0, 0, 0, size, size, 0)
    segments += struct.pack("<IIQQQQQQ", 2, 0, at, at, at, len(rows), len(rows), 0)
    return head.ljust(64, b"\0") + segments + rows + strings


def _tar(rows: list[tuple[str, bytes]], kind: bytes = tarfile.REGTYPE) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w:gz") as stream:
        for index, (name, content) in enumerate(rows):
            row = tarfile.TarInfo(name)
            row.size = len(content)
            if index:
                row.type, row.linkname = kind, "/etc/passwd"
            stream.addfile(row, io.BytesIO(content))
    return output.getvalue()


def _step_of(above: Path, packed: bytes, manifest: bytes) -> dict[str, Any]:
    return {
        "folder": str(above / "slurm_1"),
        "sha256": hashlib.sha256(manifest).hexdigest(),
        "content": base64.b64encode(packed).decode(),
        "path": "",
    }


@pytest.fixture(autouse=True)
def _no_old_folder(above: Path) -> Iterator[None]:
    yield
    shutil.rmtree(above, ignore_errors=True)
