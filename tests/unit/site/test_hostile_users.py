"""Attacks of an ordinary user on what others run, each found by a hostile reader once. None may work again. (I/O)"""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ftrun.hooks.cluster import claim
from ftrun.hooks.cluster.errors import HostError
from ftrun.hooks.health import pair_test
from ftrun.hooks.health.rendezvous import BoardServer, SocketBoard
from ftrun.supervisor.cli import site_admin
from ftrun.supervisor.nodes import spool
from ftrun.supervisor.nodes.drain_rules import BadRequest, DrainRequest, from_payload, to_payload
from ftrun.supervisor.nodes.spool import SpoolError
from ftrun.supervisor.site.publication import Publication

ASKED = DrainRequest("d" * 32, "c", "n0", "7", "llm-1", "hardware-gpu", "gpu.lost", 1000.0)
OWNER, EVIL, USER = 1000, 1001, 1002
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")


def as_user(uid: int, do: Callable[[], object]) -> object:
    """What that user's process would get."""
    os.seteuid(uid)
    try:
        return do()
    finally:
        os.seteuid(0)


@pytest.fixture
def place() -> Iterator[Path]:
    """A spool where other users can reach it."""
    with tempfile.TemporaryDirectory(prefix="ftrun-t-") as folder:
        Path(folder).chmod(0o755)
        spool.Spool(f"{folder}/spool", unsigned=True).close()
        yield Path(folder) / "spool"


@pytest.mark.parametrize("held", ["link", "folder"])
@as_root
def test_a_name_taken_in_the_spool_opens_no_folder_of_the_victim(place: Path, held: str) -> None:
    """`u<uid>` as a link to the victim's private folder: its mode stays, nothing is written there, and the request waits."""
    private, taken = place.parent / "private", place / f"u{USER}"
    private.mkdir(mode=0o700)
    os.chown(private, USER, USER)
    if held == "link":
        taken.symlink_to(private)
        os.chown(taken, EVIL, EVIL, follow_symlinks=False)
    else:
        taken.mkdir(mode=0o777)
        os.chown(taken, EVIL, EVIL)
        taken.chmod(0o777)
    with pytest.raises(OSError):  # noqa: PT011  by kind of file
        as_user(USER, lambda: spool.leave_request(str(place), ASKED, "auth/slurm", ""))
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert not os.listdir(private)
    spool.Spool(str(place), unsigned=True).look()  # the service takes the name from whoever holds it
    as_user(USER, lambda: spool.leave_request(str(place), ASKED, "auth/slurm", ""))
    assert [one.uid for one in spool.Spool(str(place), unsigned=True).look()[0]] == [USER]


@as_root
def test_a_folder_that_may_be_listed_and_not_entered_stops_nobody(place: Path) -> None:
    """A service that is not root: another user's files cannot be looked at, the next user's are seen."""
    for path in (place, place / spool.ANSWERS):
        os.chown(path, OWNER, OWNER)
    for uid, mode in ((EVIL, 0o744), (USER, 0o755)):
        as_user(uid, lambda: spool.leave_request(str(place), ASKED, "auth/slurm", ""))
        (place / f"u{uid}").chmod(mode)
    found = as_user(OWNER, lambda: spool.Spool(str(place), unsigned=True).look()[0])
    assert [one.uid for one in found] == [USER]  # type: ignore[attr-defined]
    assert as_user(OWNER, lambda: [one.uid for one in spool.names_left(str(place))]) == [USER]


FUSE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_REC_PRIVATE = 0x20000, 0x44000
if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None):
    sys.exit(77)
try:
    fd = os.open("/dev/fuse", os.O_RDWR)
except OSError:
    sys.exit(77)
options = f"fd={fd},rootmode=40000,user_id=1001,group_id=1001"
if libc.mount(b"evil", os.fsencode(sys.argv[1] + "/evil"), b"fuse", 0, options.encode()):
    sys.exit(77)
try:
    os.lstat(sys.argv[1] + "/evil")
    sys.exit(77)  # root may look: no attack
except PermissionError:
    pass
from ftrun.supervisor.nodes import spool
print([one.id for one in spool.Spool(sys.argv[1]).look()[0]], len(list(spool.names_left(sys.argv[1]))))
"""


@as_root
def test_a_file_system_of_a_users_in_the_spool_stops_nobody(place: Path) -> None:
    """With FUSE a user mounts what not even root may look at; in a mount namespace of the test's own."""
    (place / "evil").mkdir()
    (place / f"{'a' * 32}.req").write_bytes(b"signed")
    done = subprocess.run(
        [sys.executable, "-c", FUSE, str(place)], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode == 77:
        pytest.skip("no FUSE can be mounted here")
    assert done.stdout.split() == [f"['{'a' * 32}']", "1"], done.stderr


@as_root
def test_the_folder_that_is_published_is_the_services_own(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link in its place is put aside; one that appears again in between is refused, and its target keeps its mode."""
    target = place.parent / "target"
    target.mkdir(mode=0o700)

    def link() -> None:
        (place / spool.PUBLIC).symlink_to(target)
        os.chown(place / spool.PUBLIC, EVIL, EVIL, follow_symlinks=False)

    aside = spool.put_aside

    def late(name: str, at: int | None = None) -> str:
        done = aside(name, at)
        link()
        return done

    link()
    monkeypatch.setattr(spool, "put_aside", late)
    with pytest.raises((SpoolError, OSError)):
        Publication(str(place), "c")
    monkeypatch.undo()
    assert Publication(str(place), "c").folder == str(place / spool.PUBLIC)
    assert (stat.S_IMODE(target.stat().st_mode), os.listdir(target)) == (0o700, [])
    (place / spool.PUBLIC).chmod(0o777)
    Publication(str(place), "c")
    assert stat.S_IMODE((place / spool.PUBLIC).lstat().st_mode) == 0o755


@pytest.mark.parametrize(
    "text",
    [
        "[" * 4000, '{"token": "x", "since_s": 1e308}', '{"token": "x", "since_s": 1e15, "name": "a"}', '{"since_s": NaN}',
        json.dumps({"token": "t", "name": "\x1b]0;evil\x07\n\x1b[2J", "user": "\u202eroot", "by": "\x1b[31m", "since_s": 1.0}),
        '{"name": [1], "user": {}, "since_s": [], "token": 7}', "no json", "[]", "\udcff",
    ],
)  # fmt: skip
def test_a_claim_of_anybody_is_one_plain_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Every command looks at the claim on a host, and anybody may make it: no traceback, nothing that a terminal obeys."""
    monkeypatch.setattr(claim, "PATH", str(tmp_path / "claim"))
    os.symlink(text, claim.PATH)
    assert isinstance(claim.held(), dict)
    with pytest.raises(HostError) as told:
        claim.take(dict.fromkeys(claim.FIELDS, "mine"))
    assert str(told.value).isprintable()


@as_root
def test_what_others_could_write_or_replace_is_told(place: Path) -> None:
    """Of all that the service trusts: a file that all may write, and one below a folder of another user's."""
    folder = place.parent
    (folder / "theirs").mkdir()
    for name, mode in (("own", 0o644), ("open", 0o666), ("theirs/file", 0o644)):
        (folder / name).write_text("")
        (folder / name).chmod(mode)
    os.chown(folder / "theirs", EVIL, EVIL)
    paths = [str(folder / name) for name in ("own", "open", "theirs/file", "missing")]
    told = site_admin.writable_by_others(["", *paths])
    assert [str(folder / "open") in told[0], str(folder / "theirs/file") in told[1], len(told)] == [
        True,
        True,
        2,
    ]


LINES = (
    b"[" * 200_000,
    b'{"token": 7}',
    b'{"token": ["t"]}',
    b"null",
    b"[1]",
    b"7" * 5000,
    b'{"tok',
    b"\xff\xfe",
    b'{"token": "t", "put": {}, "prefix": []}',
)


@pytest.mark.parametrize("kind", ["board", "pairs"])
def test_a_caller_without_the_token_gets_nothing_and_stops_nothing(
    kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Anybody on the network may call: no line makes a traceback in the job's log, and the next caller is served."""
    server = (
        BoardServer("127.0.0.1", 0, "secret")
        if kind == "board"
        else pair_test.Server("127.0.0.1", "secret", 5.0)
    )
    before = threading.active_count()
    for line in LINES:
        with socket.create_connection(("127.0.0.1", server.port), 5.0) as caller:
            caller.sendall(line + b"\n")
            caller.shutdown(socket.SHUT_WR)
            heard = b""
            try:
                while piece := caller.recv(1 << 16):
                    heard += piece
            except ConnectionError:  # it hung up before it had read all
                pass
            assert heard == b""
    if isinstance(server, BoardServer):
        SocketBoard("127.0.0.1", server.port, "secret").put("n0", 1)
        assert SocketBoard("127.0.0.1", server.port, "secret").notes("n") == {"n0": 1}
        assert SocketBoard("127.0.0.1", server.port, "wrong").notes("n") == {}
    else:
        assert pair_test.measure_link("127.0.0.1", server.port, "secret", seconds=0.01).why == ""
    server.close()
    give_up_s = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < give_up_s:
        time.sleep(0.01)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("job", ["0", "007", "00", "+7", "7_1"])
def test_one_job_has_one_name(job: str) -> None:
    """0 may mean all jobs, and 007 is job 7: caps that count jobs would count it twice."""
    with pytest.raises(BadRequest):
        from_payload(json.dumps(json.loads(to_payload(ASKED)) | {"job": job}).encode())
