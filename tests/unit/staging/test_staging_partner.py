"""Laws of copies between nodes: a part lies there whole and right, or it does not lie there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from ftrun.hooks.runtime import channel
from ftrun.hooks.staging import inventory, partner_client
from ftrun.hooks.staging.partner_client import Route, Sent, Target, send
from ftrun.hooks.staging.records import File, Home, Seal, base_of, seal_json

TOKEN = "0.1"


@pytest.fixture
def there(tmp_path: Path) -> Home:
    """The other node's folder of the job."""
    return Home(base_of(str(tmp_path / "there"), os.getuid(), "run", "7"))


@pytest.fixture
def here(tmp_path: Path) -> Home:
    """Ours."""
    return Home(base_of(str(tmp_path / "here"), os.getuid(), "run", "7"))


@pytest.fixture(autouse=True)
def neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other node is a process beside us, which believes that srun has started it."""
    monkeypatch.setattr(
        partner_client,
        "_remote_command",
        lambda target: started(target, SLURM_LAUNCH_NODE_IPADDR="127.0.0.1"),
    )


def started(target: Target, **env: str) -> list[str]:
    told = [f"{name}={value}" for name, value in env.items()]
    return ["env", *told, sys.executable, "-m", "ftrun.hooks.main", "receive", "--base", target.base]


def sealed(home: Home, name: str, files: dict[str, bytes], node: str = "n0") -> inventory.StoredPart:
    """A part that `node` has sealed."""
    held = Path(home.held(TOKEN, name))
    found = {}
    for inner, content in files.items():
        path = held / inner if inner else held
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        fact = path.stat()
        found[inner] = File(len(content), fact.st_mtime_ns, fact.st_ino, hashlib.sha256(content).hexdigest())
    seal = Seal(name, TOKEN, node, found, is_file="" in files)
    path = Path(home.seal(TOKEN, name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(seal_json(seal))
    return inventory.StoredPart(seal, str(held), is_own=True)


def sent(
    part: inventory.StoredPart, there: Home, limit: str = "1G", way: str = "stream", **words: object
) -> Sent:
    return send(part, Target("n1", "7", there.base, limit, **words), Route(is_direct=way == "socket"))  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["stream", "socket"])
def test_a_part_lies_there_as_it_lies_here(here: Home, there: Home, way: str) -> None:
    """Folders, large and empty files, and a set that is one file; within the talk, and over a connection of its own."""
    files = {"a/deep/x.pt": os.urandom(3_000_001), "metadata": b"", "y": b"y" * 70_000}
    for name, content in (("step-8", files), ("step-9.ckpt", {"": b"whole"})):
        done = sent(sealed(here, name, content), there, way=way)
        assert (done.kept, done.why, done.way) == (True, "", way)
        part = inventory.stored_part(there, "n0", TOKEN, name)
        assert part is not None
        assert {
            inner: Path(inventory.file_path(part, inner)).read_bytes() for inner in part.seal.files
        } == content
        assert not part.is_own


def test_what_lies_there_already_is_not_sent(here: Home, there: Home) -> None:
    """Replicas of a data-parallel job write the same files: one in memory is enough, and a second time nothing moves at all."""
    weights = os.urandom(100_000)
    sealed(there, "step-8", {"rank-1.pt": weights}, node="n1")
    part = sealed(here, "step-8", {"rank-0.pt": weights, "rng-0.pt": b"own"})
    done = sent(part, there)
    assert (done.kept, done.sent_bytes, done.linked_bytes) == (True, 3, 100_000)
    assert inventory.used_bytes(there.base) < 2 * len(weights)
    again = sent(part, there)
    assert (again.kept, again.sent_bytes) == (True, 0)


def test_a_copy_whose_file_was_written_to_is_none(here: Home, there: Home) -> None:
    """A linked file is another's, too: who writes into his own spoils the copy, and that is seen without reading it."""
    own = sealed(there, "step-8", {"rank-1.pt": b"weights"}, node="n1")
    assert sent(sealed(here, "step-8", {"rank-0.pt": b"weights"}), there).kept
    time.sleep(0.01)
    Path(own.path, "rank-1.pt").write_bytes(b"changed")
    assert inventory.stored_part(there, "n0", TOKEN, "step-8") is None


def test_a_full_memory_refuses_before_a_byte_is_sent(here: Home, there: Home) -> None:
    """The sender is told, and nothing of it stays there."""
    done = sent(sealed(here, "step-8", {"x": bytes(200_000)}), there, limit="100K")
    assert not done.kept
    assert done.why.startswith("no room in memory")
    assert inventory.used_bytes(there.base) == 0
    assert list(inventory.stored_parts(there)) == []


def test_bytes_that_are_not_what_the_seal_says_are_refused(here: Home, there: Home) -> None:
    """The sum is made of what was written there."""
    part = sealed(here, "step-8", {"x": b"right", "z": b"z"})
    Path(part.path, "x").write_bytes(b"wrong")
    done = sent(part, there)
    assert (done.kept, "checksum" in done.why) == (False, True)
    assert list(inventory.stored_parts(there)) == []
    assert not list(Path(there.base).rglob("*incoming*"))


def test_a_sender_that_dies_half_way_leaves_nothing_that_counts(here: Home, there: Home) -> None:
    """The next one finds the folder free, and clears it."""
    part = sealed(here, "step-8", {"x": os.urandom(500_000)})
    Path(part.path, "x").write_bytes(b"cut")
    done = sent(part, there)
    assert (done.kept, "shorter" in done.why) == (False, True)
    assert list(inventory.stored_parts(there)) == []
    left = Path(there.partner("n0", TOKEN, ".step-8.999999999.incoming"))
    left.mkdir(parents=True)
    assert sent(sealed(here, "step-8", {"x": b"new"}), there).kept
    assert not left.exists()


def test_copies_that_the_sender_has_dropped_go(here: Home, there: Home) -> None:
    """It says what it still has."""
    for step in (8, 9):
        assert sent(sealed(here, f"step-{step}", {"x": b"%d" % step}), there).kept
    assert sent(
        sealed(here, "step-10", {"x": b"10"}), there, keep=[(TOKEN, "step-9"), (TOKEN, "step-10")]
    ).kept
    assert [part.seal.name for part in inventory.stored_parts(there)] == ["step-10", "step-9"]


@pytest.mark.parametrize("evil", ["../x", "/etc/x", "a/../../x", ""])
def test_no_name_leads_out_of_the_folder(here: Home, there: Home, evil: str) -> None:
    """Whatever a sender says."""
    part = sealed(here, "step-8", {"x": b"x"})
    seal = part.seal._replace(files={evil: part.seal.files["x"]}, node="n0" if evil else "..")
    done = sent(part._replace(seal=seal), there)
    assert not done.kept
    assert list(Path(there.base).rglob("x")) == []


def test_a_folder_that_is_not_ours_is_not_written_to(tmp_path: Path, here: Home) -> None:
    """Others may make folders in a node's memory, too."""
    (tmp_path / "elsewhere").mkdir()
    above = tmp_path / "shm" / f"ftrun-{os.getuid()}"
    above.parent.mkdir()
    above.symlink_to(tmp_path / "elsewhere")
    assert not sent(sealed(here, "step-8", {"x": b"x"}), Home(f"{above}/run.7")).kept
    assert not list((tmp_path / "elsewhere").rglob("x"))


def test_a_node_that_is_not_there_costs_a_reason_and_no_more(
    here: Home, there: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sends goes on with what it has."""
    monkeypatch.setattr(partner_client, "_remote_command", lambda *_: ["/bin/sh", "-c", "exit 1"])
    done = sent(sealed(here, "step-8", {"x": b"x"}), there)
    assert (done.kept, done.why) == (False, "stream: it ended with 1")


@pytest.mark.parametrize("address", ["", "192.0.2.1"])
def test_where_no_connection_can_be_made_the_part_goes_through_srun(
    here: Home, there: Home, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """Where nobody says where srun is, or where that is no address of this node; the connection then rests for an hour."""
    target = Target("n1", "7", there.base, "1G")
    words = started(target, SLURM_LAUNCH_NODE_IPADDR=address)
    monkeypatch.setattr(partner_client, "_remote_command", lambda _: words)
    route = Route()
    assert route.ways(0.0) == ("socket", "stream")
    done = send(sealed(here, "step-8", {"x": b"x"}), target, route)
    assert (done.kept, done.way) == (True, "stream")
    now_s = time.monotonic()
    assert route.ways(now_s) == ("stream",)
    assert route.ways(now_s + 4000.0) == ("socket", "stream")


def test_a_node_that_does_not_call_gets_the_part_through_srun_or_not_at_all(
    here: Home, there: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What speaks against the node does not speak against the connection: only where the stream works it rests."""
    monkeypatch.setattr(partner_client, "CALLED_S", 0.2)
    silent = 'import sys\nsys.stdin.buffer.readline()\nprint(\'{"want": ["x"], "srun": "127.0.0.1"}\', flush=True)\nsys.stdin.buffer.read(40)'
    monkeypatch.setattr(partner_client, "_remote_command", lambda _: [sys.executable, "-c", silent])
    route = Route()
    done = send(sealed(here, "step-8", {"x": b"x"}), Target("n1", "7", there.base, "1G"), route)
    assert (done.kept, done.way) == (False, "")
    assert done.why.startswith("stream: ")
    assert route.ways(time.monotonic()) == ("socket", "stream")


def test_only_who_knows_the_word_is_listened_to() -> None:
    """Anybody may call; who says something else, or nothing, is turned away, and the right one is still heard."""
    with contextlib.closing(channel.Listener("127.0.0.1")) as listener:
        strangers = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(2)]
        strangers[0].sendall(b"x" * 32)
        strangers[1].close()
        right = channel.connect("127.0.0.1", listener.port, listener.secret, 60.0)
        with contextlib.closing(listener.answer(60.0)) as line:
            right.sendall(b"bytes")
            assert line.recv(5) == b"bytes"
        for one in (*strangers, right):
            one.close()
        with pytest.raises(OSError, match="timed out"):
            listener.answer(0.05)


def test_a_partner_that_stands_still_in_mid_copy_is_given_up(
    here: Home, there: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It neither takes nor says anything: whoever sends is not held for long, and what came there has no seal."""
    part = sealed(here, "step-8", {"x": bytes(8 << 20)})
    line = 'import os, sys, time\nsys.stdin.buffer.readline()\nprint(\'{"want": ["x"], "srun": ""}\', flush=True)\ntime.sleep(300)'
    monkeypatch.setattr(partner_client, "_remote_command", lambda *_: [sys.executable, "-c", line])
    monkeypatch.setattr(partner_client, "STALLS_S", 0.3)
    began_s = time.monotonic()
    done = sent(part, there)
    assert (done.kept, done.why) == (False, "stream: it takes nothing")
    assert time.monotonic() - began_s < 250.0  # it did not wait for the partner
    assert list(inventory.stored_parts(there)) == []


def test_a_transfer_breaks_off_where_the_job_ends(
    here: Home, there: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What time is left belongs to publishing, and no other transfer begins."""
    part = sealed(here, "step-8", {"x": bytes(8 << 20)})
    line = "import sys, time\nsys.stdin.buffer.readline()\ntime.sleep(300)"
    monkeypatch.setattr(partner_client, "_remote_command", lambda *_: [sys.executable, "-c", line])
    route, target = Route(), Target("n1", "7", there.base, "1G")
    done: list[Sent] = []
    thread = threading.Thread(target=lambda: done.append(send(part, target, route)), daemon=True)
    thread.start()
    time.sleep(1.0)
    route.stop()
    thread.join(60.0)
    assert [one.kept for one in done] == [False]
    assert (send(part, target, route).why, list(inventory.stored_parts(there))) == (
        "stream: the job ends",
        [],
    )
