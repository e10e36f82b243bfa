"""Laws of copies between nodes: a part lies there whole and right, or it does not lie there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import sys
import time
from pathlib import Path

import pytest

from ftrun.hooks import at_hand, direct, transfer
from ftrun.hooks.staged import File, Home, Seal, base_of, seal_json
from ftrun.hooks.transfer import Rates, Sent, Target, send

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
        transfer, "_words", lambda _, target: started(target, SLURM_LAUNCH_NODE_IPADDR="127.0.0.1")
    )


def started(target: Target, **env: str) -> list[str]:
    told = [f"{name}={value}" for name, value in env.items()]
    return ["env", *told, sys.executable, "-m", "ftrun.hooks.main", "receive", "--base", target.base]


def sealed(home: Home, name: str, files: dict[str, bytes], node: str = "n0") -> at_hand.Part:
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
    return at_hand.Part(seal, str(held), own=True)


def sent(part: at_hand.Part, there: Home, limit: str = "1G", way: str = "ssh", **words: object) -> Sent:
    return send(part, Target("n1", "7", there.base, limit, **words), Rates((way,)))  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["ssh", "socket"])
def test_a_part_lies_there_as_it_lies_here(here: Home, there: Home, way: str) -> None:
    """Folders, large and empty files, and a set that is one file; within the talk, and over a connection of its own."""
    files = {"a/deep/x.pt": os.urandom(3_000_001), "metadata": b"", "y": b"y" * 70_000}
    for name, content in (("step-8", files), ("step-9.ckpt", {"": b"whole"})):
        done = sent(sealed(here, name, content), there, way=way)
        assert (done.kept, done.why, done.way) == (True, "", way)
        part = at_hand.part_of(there, "n0", TOKEN, name)
        assert part is not None
        assert {
            inner: Path(at_hand.file_path(part, inner)).read_bytes() for inner in part.seal.files
        } == content
        assert not part.own


def test_what_lies_there_already_is_not_sent(here: Home, there: Home) -> None:
    """Replicas of a data-parallel job write the same files: one in memory is enough, and a second time nothing moves at all."""
    weights = os.urandom(100_000)
    sealed(there, "step-8", {"rank-1.pt": weights}, node="n1")
    part = sealed(here, "step-8", {"rank-0.pt": weights, "rng-0.pt": b"own"})
    done = sent(part, there)
    assert (done.kept, done.sent_bytes, done.linked_bytes) == (True, 3, 100_000)
    assert at_hand.used_bytes(there.base) < 2 * len(weights)
    again = sent(part, there)
    assert (again.kept, again.sent_bytes) == (True, 0)


def test_a_copy_whose_file_was_written_to_is_none(here: Home, there: Home) -> None:
    """A linked file is another's, too: who writes into his own spoils the copy, and that is seen without reading it."""
    own = sealed(there, "step-8", {"rank-1.pt": b"weights"}, node="n1")
    assert sent(sealed(here, "step-8", {"rank-0.pt": b"weights"}), there).kept
    time.sleep(0.01)
    Path(own.place, "rank-1.pt").write_bytes(b"changed")
    assert at_hand.part_of(there, "n0", TOKEN, "step-8") is None


def test_a_full_memory_refuses_before_a_byte_is_sent(here: Home, there: Home) -> None:
    """The sender is told, and nothing of it stays there."""
    done = sent(sealed(here, "step-8", {"x": bytes(200_000)}), there, limit="100K")
    assert not done.kept
    assert done.why.startswith("no room in memory")
    assert at_hand.used_bytes(there.base) == 0
    assert list(at_hand.parts(there)) == []


def test_bytes_that_are_not_what_the_seal_says_are_refused(here: Home, there: Home) -> None:
    """The sum is made of what was written there."""
    part = sealed(here, "step-8", {"x": b"right", "z": b"z"})
    Path(part.place, "x").write_bytes(b"wrong")
    done = sent(part, there)
    assert (done.kept, "checksum" in done.why) == (False, True)
    assert list(at_hand.parts(there)) == []
    assert not list(Path(there.base).rglob("*incoming*"))


def test_a_sender_that_dies_half_way_leaves_nothing_that_counts(here: Home, there: Home) -> None:
    """The next one finds the folder free, and clears it."""
    part = sealed(here, "step-8", {"x": os.urandom(500_000)})
    Path(part.place, "x").write_bytes(b"cut")
    done = sent(part, there)
    assert (done.kept, "shorter" in done.why) == (False, True)
    assert list(at_hand.parts(there)) == []
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
    assert [part.seal.name for part in at_hand.parts(there)] == ["step-10", "step-9"]


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


def test_an_untried_way_is_tried_and_then_the_fastest_goes_first() -> None:
    """A stream through srun is tried where nothing else is left; a way that failed rests."""
    rates = Rates()
    assert rates.order(0.0) == ["socket", "sbcast", "ssh", "stream"]
    rates.fail("socket", 0.0)
    rates.note("sbcast", 1 << 30, 4.0)
    assert rates.order(1.0) == ["ssh", "sbcast", "stream"]
    rates.note("ssh", 1 << 30, 2.0)
    assert rates.order(2.0) == ["ssh", "sbcast", "stream"]
    rates.fail("ssh", 3.0)
    assert rates.order(4.0) == ["sbcast", "stream"]
    assert rates.order(4000.0) == ["socket", "ssh", "sbcast", "stream"]


def test_a_node_that_is_not_there_costs_a_reason_and_no_more(
    here: Home, there: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sends goes on with what it has."""
    monkeypatch.setattr(transfer, "_words", lambda *_: ["/bin/sh", "-c", "exit 1"])
    done = sent(sealed(here, "step-8", {"x": b"x"}), there)
    assert (done.kept, done.why) == (False, "ssh: it ended with 1")


def test_a_connection_that_cannot_be_is_no_way(
    here: Home, there: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody says where srun is, where that is no address of this node, or where nobody calls, the part goes another way."""
    monkeypatch.setattr(transfer, "CALLED_S", 0.2)
    part = sealed(here, "step-8", {"x": b"x"})
    silent = 'import sys\nsys.stdin.buffer.readline()\nprint(\'{"want": ["x"], "into": "/", "srun": "127.0.0.1"}\', flush=True)\nsys.stdin.buffer.read()'
    for words in (
        started(Target("n1", "7", there.base, "1G"), SLURM_LAUNCH_NODE_IPADDR=""),
        started(Target("n1", "7", there.base, "1G"), SLURM_LAUNCH_NODE_IPADDR="192.0.2.1"),
        [sys.executable, "-c", silent],
    ):
        monkeypatch.setattr(transfer, "_words", lambda *_, words=words: words)
        rates = Rates(("socket",))
        done = send(part, Target("n1", "7", there.base, "1G"), rates)
        assert not done.kept
        assert done.why.startswith("socket: ")
        assert rates.order(time.monotonic()) == []


def test_only_who_knows_the_word_is_listened_to() -> None:
    """Anybody may call; who says something else, or nothing, is turned away, and the right one is still heard."""
    with contextlib.closing(direct.Listener("127.0.0.1")) as listener:
        strangers = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(2)]
        strangers[0].sendall(b"x" * 32)
        strangers[1].close()
        right = direct.call("127.0.0.1", listener.port, listener.secret, 60.0)
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
    line = 'import os, sys, time\nsys.stdin.buffer.readline()\nprint(\'{"want": ["x"], "into": "/"}\', flush=True)\ntime.sleep(300)'
    monkeypatch.setattr(transfer, "_words", lambda *_: [sys.executable, "-c", line])
    monkeypatch.setattr(transfer, "STALLS_S", 0.3)
    began_s = time.monotonic()
    done = sent(part, there)
    assert (done.kept, done.why) == (False, "ssh: it takes nothing")
    assert time.monotonic() - began_s < 250.0  # it did not wait for the partner
    assert list(at_hand.parts(there)) == []
