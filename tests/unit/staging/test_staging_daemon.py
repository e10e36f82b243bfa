"""Staging daemons of several nodes: what is sealed, published, kept, dropped and taken away, with the clock in the test's hands."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftrun.hooks.checkpoints import manifest
from ftrun.hooks.staging import (
    daemon,
    inventory,
    partner_map,
    publish,
    publisher,
    records,
    replace,
    sealing,
    status_report,
    workspace,
)
from ftrun.hooks.staging.api import stage
from ftrun.hooks.staging.copy import Disk
from ftrun.hooks.staging.local import LocalState
from ftrun.hooks.staging.publisher import Publisher, PublisherConfig
from ftrun.hooks.staging.records import Home, Publishing, Seal

JOB = "7"


class Full(Disk):
    """A shared file system without room, while `is_full`."""

    is_full = False

    def effect(self, what: str) -> None:
        if self.is_full and what.startswith(("write", "copy", "make")):
            raise OSError(errno.ENOSPC, "No space left on device")


class Nodes:
    """The nodes of one job, each with a daemon; a round is a second."""

    def __init__(self, top: Path, names: tuple[str, ...]) -> None:
        self.top, self.names, self.now_s = top, names, 100.0
        self.attempt = top / "runs" / "r-1" / "attempts" / "1"
        (self.attempt / "stage").mkdir(parents=True)
        self.to = top / "shared"
        self.to.mkdir()
        self.disks = {name: Full() for name in names}
        self.local: dict[str, LocalState] = {}
        self.shared: dict[str, Publisher] = {}
        self.start("0.1")
        for name in names:
            self.restart(name)

    def start(self, token: str) -> None:
        """Another start of the script, on all nodes."""
        (self.attempt / f"begun.{token}").write_text(f"job={JOB}\nnodes={','.join(self.names)}\n")
        (self.attempt / "current").unlink(missing_ok=True)
        (self.attempt / "current").symlink_to(token)
        for name in self.names:
            (self.top / name / "stage" / token).mkdir(parents=True, exist_ok=True)

    def over(self, token: str, code: int) -> None:
        """The script of a start ends."""
        (self.attempt / "stage" / f"over.{token}").write_text(f"code={code}\n")

    def restart(self, name: str) -> None:
        """A new daemon, which knows what is on record."""
        place = PublisherConfig(str(self.attempt), 0, JOB, name, str(self.to), b'{"run": "r-1"}')
        self.local[name] = LocalState(Home(str(self.top / name)), name)
        self.shared[name] = Publisher(place, self.local[name], publish.seal_check_of(""), self.disks[name])

    def stage(self, name: str, token: str = "0.1") -> Path:
        """FTRUN_STAGE_DIR of a node."""
        return self.top / name / "stage" / token

    def write(self, name: str, path: str, content: bytes, token: str = "0.1") -> Path:
        """What the script saves."""
        file = self.stage(name, token) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return file

    def run(self, seconds: float, *names: str) -> None:
        """Let the daemons of these nodes (all) work so long."""
        for _ in range(int(seconds)):
            self.now_s += 1.0
            for name in names or self.names:
                self.local[name].look(self.now_s, self.shared[name].starts)
                self.shared[name].read_starts(self.now_s)
                self.shared[name].run_round(self.now_s)

    def states(self, name: str) -> dict[str, str]:
        """Set -> its state in the report of a node."""
        return {row["set"]: row["state"] for row in self.shared[name].report()["sets"]}

    def published(self) -> dict[str, dict[str, bytes]]:
        """Every published set as a reader sees it: its files by their path."""
        found = {}
        for one in sorted(self.to.iterdir()):
            if one.name.startswith(".") or manifest.is_ours(one.name) or manifest.read(str(one)) is None:
                continue
            files = [one] if one.is_file() else sorted(path for path in one.rglob("*") if path.is_file())
            found[one.name] = {
                path.relative_to(one).as_posix(): path.read_bytes()
                for path in files
                if not manifest.is_ours(path.name)
            }
        return found


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    """Three nodes."""
    return Nodes(tmp_path, ("n0", "n1", "n2"))


def test_what_all_nodes_write_into_a_folder_becomes_one_checkpoint(nodes: Nodes) -> None:
    """Plain writes, no call of ours: the shards of all nodes are published together, and say so by a manifest with sums."""
    for number, name in enumerate(nodes.names):
        nodes.write(name, f"step-10/shard-{number}", bytes([number]) * 99)
    nodes.run(5)
    assert nodes.published() == {"step-10": {f"shard-{n}": bytes([n]) * 99 for n in range(3)}}
    there = manifest.read(str(nodes.to / "step-10"))
    assert there is not None
    assert (there.step, there.nodes) == (10, nodes.names)
    assert all(entry.sha256 for entry in there.files.values())
    assert {nodes.states(name)["step-10"] for name in nodes.names} == {"published"}
    assert os.listdir(nodes.to / records.PUBLISHING) == []


def test_a_node_that_is_late_with_a_set_that_nothing_proves_is_waited_for(nodes: Nodes) -> None:
    """Its ranks come 40 s after the others': a set of an unknown format is not published without them, and its report says for whom it waits."""
    nodes.write("n0", "step-10/shard-0", b"0")
    nodes.run(40)
    assert nodes.published() == {}
    assert nodes.states("n0") == {"step-10": "sealed"}
    assert nodes.local["n0"].parts["0.1", "step-10"].why == status_report.MAY_COME
    for number in (1, 2):
        nodes.write(f"n{number}", f"step-10/shard-{number}", b"%d" % number)
    nodes.run(10)
    assert nodes.published() == {"step-10": {f"shard-{n}": b"%d" % n for n in range(3)}}


def test_nodes_that_have_nothing_are_waited_for_once(nodes: Nodes) -> None:
    """Where one rank saves for all, the others' nodes are waited for until the ranks go on to the next set, and hardly any more after that."""
    nodes.write("n0", "step-10/model.pt", b"w")
    nodes.run(publisher.FIRST_GRACE_S + 5)
    assert nodes.published() == {}
    nodes.write("n0", "step-20/model.pt", b"w")
    nodes.run(14)
    assert list(nodes.published()) == ["step-10", "step-20"]
    nodes.write("n0", "step-30/model.pt", b"w")
    nodes.run(8)
    assert list(nodes.published()) == ["step-10", "step-20", "step-30"]


def test_nodes_that_have_nothing_are_waited_for_no_longer_than_the_end_may_take(nodes: Nodes) -> None:
    """One set only, of one rank, of a format that proves nothing: published after `stage-flush-timeout`, or when the script has ended."""
    nodes.write("n0", "step-10/model.pt", b"w")
    nodes.run(110)
    assert nodes.published() == {}
    nodes.run(20)
    assert list(nodes.published()) == ["step-10"]


def test_a_set_that_waits_for_a_late_node_is_published_at_the_end(nodes: Nodes) -> None:
    """The script has ended well and nothing more came: it is whole as it is, though it was not taken for it before."""
    nodes.write("n0", "step-10/model.pt", b"w")
    nodes.run(20)
    assert nodes.published() == {}
    nodes.over("0.1", 0)
    nodes.run(8)
    assert list(nodes.published()) == ["step-10"]
    assert all(nodes.shared[name].is_done("0.1", nodes.now_s) for name in nodes.names)


def test_a_checkpoint_that_is_one_file_waits_for_nobody(nodes: Nodes) -> None:
    """A file at the top of the folder is whole as it is."""
    nodes.write("n1", "model-30.pt", b"weights")
    nodes.run(4)
    assert nodes.published() == {"model-30.pt": {".": b"weights"}}


def test_nothing_is_sealed_while_it_is_open_or_changes(nodes: Nodes) -> None:
    """A file that somebody has open for writing is waited for, however long it stands still."""
    path = nodes.write("n0", "model-1.pt", b"half")
    with path.open("ab") as stream:
        nodes.run(9)
        assert nodes.states("n0") == {"model-1.pt": "writing"}
        stream.write(b", whole")
    nodes.run(5)
    assert nodes.published() == {"model-1.pt": {".": b"half, whole"}}


def test_what_a_dead_writer_left_is_no_checkpoint(nodes: Nodes) -> None:
    """A process that was writing is killed: no later look takes its file for whole, and an end without error does not help its sister that is torn."""
    path = nodes.write("n0", "step-10/shard-0", b"x")
    code = f"import time\nf = open({str(path)!r}, 'ab')\nf.write(b'half')\nf.flush()\nprint(flush=True)\ntime.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        nodes.run(2)
        writer.kill()
    nodes.run(30)
    assert nodes.published() == {}
    assert nodes.local["n0"].parts["0.1", "step-10"].seal is not None
    assert "not all who wrote it" in nodes.local["n0"].parts["0.1", "step-10"].why


def test_a_start_that_breaks_down_leaves_no_checkpoint_that_nothing_proves(nodes: Nodes) -> None:
    """What was not sealed when the script failed is published only where its layout proves it whole; what was sealed before is."""
    nodes.write("n0", "model-1.pt", b"sealed before")
    nodes.run(3, "n0")
    nodes.write("n0", "step-2/shard", b"just written")
    nodes.over("0.1", 3)
    nodes.run(20)
    assert list(nodes.published()) == ["model-1.pt"]
    assert all(nodes.shared[name].is_done("0.1", nodes.now_s) for name in nodes.names)


def test_a_script_that_ends_well_has_its_last_checkpoint_published(nodes: Nodes) -> None:
    """Saved and left at once: the end does not lose it, and all nodes say when nothing is left to do."""
    nodes.write("n0", "step-9/shard", b"last")
    nodes.over("0.1", 0)
    assert not nodes.shared["n0"].is_done("0.1", nodes.now_s)
    nodes.run(8)
    assert list(nodes.published()) == ["step-9"]
    assert all(nodes.shared[name].is_done("0.1", nodes.now_s) for name in nodes.names)


def test_the_end_waits_for_each_node_that_is_alive(nodes: Nodes) -> None:
    """One node is done and another has not even begun to bring its part: nothing is flushed until that one says so, or has said nothing for long."""
    nodes.over("0.1", 0)
    nodes.run(4, "n0")
    assert nodes.shared["n0"].is_done("0.1", nodes.now_s)
    assert not nodes.shared["n0"].is_flushed("0.1", nodes.now_s)
    for name in ("n1", "n2"):
        (nodes.attempt / "stage" / f"done.0.1.{name}").touch()
    assert nodes.shared["n0"].is_flushed("0.1", nodes.now_s)
    (nodes.attempt / "stage" / "done.0.1.n2").unlink()
    assert not nodes.shared["n0"].is_flushed("0.1", nodes.now_s)
    assert nodes.shared["n0"].is_flushed("0.1", nodes.now_s + publisher.SILENT_S)


def test_the_end_waits_for_the_copy_of_a_lost_node_and_not_for_the_node(nodes: Nodes) -> None:
    """n2 is lost, and n1 has its copy: nothing is flushed before n1 has brought that out, or says that it has it no more; without a copy nobody waits."""
    folder, end = str(nodes.attempt), nodes.shared["n0"].is_flushed
    for name in ("n0", "n1"):
        nodes.write(name, "step-10/shard", name.encode())
    nodes.run(5)
    nodes.over("0.1", 1)
    nodes.run(3, "n0", "n1")
    (nodes.attempt / "stage" / "done.0.1.n1").touch()
    told = partner_map.Ring("0.1", lost=["n2"], kept={"n2": "n1"})
    partner_map.put_ring(folder, told)
    partner_map.put_copies(folder, "n1", partner_map.Copies(kept=[("n2", "0.1", "step-10")]))
    assert not end("0.1", nodes.now_s)
    assert not end("0.1", nodes.now_s + 10 * publisher.SILENT_S)
    partner_map.put_ring(folder, told._replace(lost=["n2", "n1"]))
    assert end("0.1", nodes.now_s)
    partner_map.put_ring(folder, told)
    partner_map.put_copies(folder, "n1", partner_map.Copies())
    assert end("0.1", nodes.now_s)


def test_what_the_script_deletes_is_published_all_the_same(nodes: Nodes) -> None:
    """A framework that keeps only its newest checkpoint deletes one that is sealed and not out yet: it is held."""
    nodes.disks["n0"].is_full = True
    path = nodes.write("n0", "model-1.pt", b"old")
    nodes.run(3)
    path.unlink()
    nodes.disks["n0"].is_full = False
    nodes.run(9)
    assert nodes.published() == {"model-1.pt": {".": b"old"}}


def test_what_changes_after_it_was_sealed_is_sealed_anew(nodes: Nodes) -> None:
    """A rank that comes late: the part is taken back and published as it is in the end, never in between."""
    for name in nodes.names:
        nodes.write(name, f"step-1/{name}.0", b"first")
    nodes.run(4, "n0", "n1")
    nodes.write("n1", "step-1/n1.1", b"late")
    nodes.run(20)
    assert sorted(nodes.published()["step-1"]) == ["n0.0", "n1.0", "n1.1", "n2.0"]


def test_a_full_file_system_costs_time_and_no_checkpoint(nodes: Nodes) -> None:
    """No room on the shared file system: what is published stays, what is staged stays and is reported, and it goes out once there is room."""
    nodes.write("n0", "model-1.pt", b"1")
    nodes.run(3)
    for disk in nodes.disks.values():
        disk.is_full = True
    nodes.write("n0", "model-2.pt", b"2")
    nodes.run(30)
    assert list(nodes.published()) == ["model-1.pt"]
    report = nodes.shared["n0"].report()
    assert "is full" in report["why"]
    assert report["backlog_bytes"] == 1
    for disk in nodes.disks.values():
        disk.is_full = False
    nodes.run(61)
    assert nodes.published()["model-2.pt"] == {".": b"2"}
    assert nodes.shared["n0"].report()["why"] == ""


def test_a_keeper_that_is_replaced_at_any_time_goes_on(nodes: Nodes) -> None:
    """Each second another staging daemon dies and a new one begins: the sets are published once, whole."""
    for step in (1, 2, 3):
        for number, name in enumerate(nodes.names):
            nodes.write(name, f"step-{step}/shard-{number}", bytes([step, number]))
    for second in range(24):
        nodes.run(1)
        nodes.restart(nodes.names[second % 3])
    nodes.run(4)
    assert nodes.published() == {
        f"step-{step}": {f"shard-{n}": bytes([step, n]) for n in range(3)} for step in (1, 2, 3)
    }


def test_starts_never_mix_what_they_save(nodes: Nodes) -> None:
    """A start dies with half a set; the next one saves a set of that name: what is published is the later one's alone, and nothing of the first stays behind."""
    nodes.write("n0", "step-10/shard-0", b"first start")
    nodes.run(3, "n0")
    nodes.over("0.1", 1)
    nodes.run(9)
    assert nodes.published() == {}
    nodes.start("0.2")
    for number, name in enumerate(nodes.names):
        nodes.write(name, f"step-10/shard-{number}", b"second start", "0.2")
    nodes.run(12, "n1", "n2")  # the node that holds the half is slow
    nodes.run(12)
    assert nodes.published()["step-10"] == {f"shard-{n}": b"second start" for n in range(3)}
    assert os.listdir(nodes.to / records.PUBLISHING) == []


@pytest.fixture
def ranks(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """This process is rank 0 of two on node n0."""
    variables = {
        "FTRUN_STAGE_DIR": str(nodes.stage("n0")), "FTRUN_STAGE_TO": str(nodes.to), "RANK": "0", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2",
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    nodes.names = ("n0",)
    nodes.start("0.1")
    return nodes


def test_ranks_that_say_when_they_are_done_are_believed_at_once(
    ranks: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`with stage(step):` on all ranks of the node: sealed at the first look after the last of them, not before."""
    with stage(10) as folder:
        Path(folder, "0").write_bytes(b"0")
    ranks.run(5)
    assert ranks.states("n0") == {"step-10": "writing"}
    monkeypatch.setenv("RANK", "1")
    with stage(10) as folder:
        Path(folder, "1").write_bytes(b"1")
        ranks.run(5)
        assert ranks.states("n0") == {"step-10": "writing"}
    ranks.local["n0"].look(ranks.now_s, ranks.shared["n0"].starts)
    assert ranks.states("n0") == {"step-10": "sealed"}
    ranks.run(2)
    assert ranks.published() == {"step-10": {"0": b"0", "1": b"1"}}


def test_a_rank_that_saves_for_all_is_waited_for_by_nobody(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`with stage(step, ranks=1)`: the other nodes have nothing, and need not say so."""
    monkeypatch.setenv("FTRUN_STAGE_DIR", str(nodes.stage("n1")))
    with stage(10, ranks=1) as folder:
        Path(folder, "weights").write_bytes(b"w")
    nodes.run(4)
    assert nodes.published() == {"step-10": {"weights": b"w"}}


def test_a_rank_that_fails_or_dies_inside_the_block_leaves_no_checkpoint(ranks: Nodes) -> None:
    """Its exception goes on, and the set is given up; a rank that vanishes is as good as one that fails."""
    with pytest.raises(IsADirectoryError), stage(10) as folder:
        Path(folder).write_bytes(b"0")
    code = "import os\nfrom ftrun.hooks import stage\nwith stage(20, ranks=1) as f:\n    open(f + '/0', 'w').write('x')\n    os._exit(1)"
    subprocess.run([sys.executable, "-c", code], check=False)
    ranks.run(9)
    ranks.over("0.1", 0)
    ranks.run(5)
    assert ranks.published() == {}
    assert ranks.local["n0"].parts["0.1", "step-20"].state == sealing.GIVEN_UP


def test_the_same_block_saves_without_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks after FTRUN_STAGE_DIR: all ranks save into one folder, which gets its name with the last of them."""
    for name in ("FTRUN_STAGE_DIR", "FTRUN_STAGE_TO"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        assert not (tmp_path / "ckpt").exists() or os.listdir(tmp_path / "ckpt") != ["step-5"]
        with stage(5, to=str(tmp_path / "ckpt")) as folder:
            Path(folder, rank).write_text(rank)
    assert os.listdir(tmp_path / "ckpt") == ["step-5"]
    assert sorted(os.listdir(tmp_path / "ckpt" / "step-5")) == ["0", "1"]


DAEMON = ("ftrun.hooks.main", "staging-daemon")


def _words(top: Path) -> list[str]:
    return [
        "--attempt-folder", str(top / "runs" / "r-1" / "attempts" / "1"), "--launch", "0", "--job", JOB, "--node", "n0",
        "--base", str(top / "memory" / "r-1.7"), "--to", str(top / "shared"),
    ]  # fmt: skip


def _daemon(top: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", *DAEMON, *_words(top)])


@contextlib.contextmanager
def _keeping(top: Path) -> Iterator[subprocess.Popen[bytes]]:
    one = _daemon(top)
    try:
        yield one
    finally:
        one.kill()
        one.wait()


def _wait(what: Path) -> None:
    until_s = time.monotonic() + 240  # a daemon is as nice as can be, and others may take what there is
    while not what.exists():
        assert time.monotonic() < until_s, what
        time.sleep(0.05)


def test_a_keeper_clears_up_behind_a_job_and_behind_others_that_could_not(tmp_path: Path) -> None:
    """A killed daemon's successor publishes; TERM publishes what is done and gives the memory back; what dead jobs left goes, too. The report tells how all ended."""
    attempt = tmp_path / "runs" / "r-1" / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "begun.0.1").write_text("nodes=n0\n")
    base = tmp_path / "memory" / "r-1.7"
    for name in ("r-0.990003", "r-0.990004"):
        os.close(workspace.open_base(str(tmp_path / "memory" / name)))
    with (tmp_path / "memory" / "r-0.990004" / "lock").open() as alive:
        fcntl.flock(alive, fcntl.LOCK_EX)
        with _keeping(tmp_path):
            _wait(attempt / "stage" / "ready.0.n0")
            (base / "stage" / "0.1" / "model-1.pt").write_bytes(b"1")
            time.sleep(0.3)
        with _keeping(tmp_path) as second:
            _wait(tmp_path / "shared" / "model-1.pt.ftrun-complete")
            (base / "stage" / "0.1" / "model-2.pt").write_bytes(b"2")
            _wait(base / "parts" / "0.1" / "model-2.pt.json")
            second.send_signal(signal.SIGTERM)
            assert second.wait(timeout=240) == 0
        assert (tmp_path / "shared" / "model-2.pt.ftrun-complete").exists()
    assert os.listdir(tmp_path / "memory") == ["r-0.990004"]
    report = json.loads((attempt / "stage" / "n0.json").read_text())
    assert {row["set"]: row["state"] for row in report["sets"]} == {
        "model-1.pt": "published",
        "model-2.pt": "published",
    }


def test_a_keeper_that_cannot_stage_says_why(tmp_path: Path) -> None:
    """No folder in memory to be had: the start is told so, and saves to the shared file system."""
    attempt = tmp_path / "runs" / "r-1" / "attempts" / "1"
    attempt.mkdir(parents=True)
    (tmp_path / "memory").write_text("in the way")
    with _keeping(tmp_path) as process:
        assert process.wait(timeout=240) == daemon.CANNOT
    assert (attempt / "stage" / "refused.0.n0").read_text()


def test_room_is_made_for_the_next_checkpoint(nodes: Nodes, tmp_path: Path) -> None:
    """Of what is published as much stays as was asked for; the newest stays whatever the limit says."""
    words = daemon._parser().parse_args([
        "--attempt-folder", str(nodes.attempt), "--launch", "0", "--job", JOB, "--node", "n0", "--base", str(tmp_path / "n0"), "--to",
        str(nodes.to), "--limit", "100", "--keep", "2",
    ])  # fmt: skip
    one = daemon.StagingDaemon(words)
    nodes.local["n0"], nodes.shared["n0"] = one.local, one.publisher
    for step in (1, 2, 3):
        nodes.write("n0", f"model-{step}.pt", b"x" * 60)
        nodes.run(4)
        one.make_room()
    assert list(nodes.published()) == ["model-1.pt", "model-2.pt", "model-3.pt"]
    assert nodes.states("n0") == {"model-3.pt": "published"}
    assert inventory.listed(str(nodes.stage("n0"))) == ["model-3.pt"]
    assert publish.pending(str(nodes.to), JOB) == []


@pytest.mark.drills
def test_a_real_full_disk_keeps_the_old_checkpoint_and_loses_none(tmp_path: Path) -> None:
    """A shared file system of 3 MiB: the set that does not fit stays in memory and is told of; once there is room it is published."""
    attempt = tmp_path / "runs" / "r-1" / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "begun.0.1").write_text("nodes=n0\n")
    to = tmp_path / "shared"
    to.mkdir()
    if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "x", to], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    words = " ".join([*DAEMON, *_words(tmp_path)])
    script = f"mount -t tmpfs -o size=3m x {to} && head -c 1500000 /dev/zero >{to}/filler && exec {sys.executable} -m {words}"
    own = subprocess.Popen(["unshare", "-m", "sh", "-c", script])
    seen = Path(f"/proc/{own.pid}/root{to}")  # the file system that it sees
    try:
        _wait(attempt / "stage" / "ready.0.n0")
        staged_at = tmp_path / "memory" / "r-1.7" / "stage" / "0.1"
        (staged_at / "model-1.pt").write_bytes(b"1" * 1_000_000)
        _wait(seen / "model-1.pt.ftrun-complete")
        (staged_at / "model-2.pt").write_bytes(b"2" * 1_000_000)
        report = attempt / "stage" / "n0.json"
        until_s = time.monotonic() + 120
        while "is full" not in report.read_text():
            assert time.monotonic() < until_s, report.read_text()
            time.sleep(0.1)
        assert (seen / "model-1.pt").read_bytes() == b"1" * 1_000_000
        assert not (seen / "model-2.pt").exists()
        (seen / "filler").unlink()
        _wait(seen / "model-2.pt.ftrun-complete")
        assert (seen / "model-2.pt").read_bytes() == b"2" * 1_000_000
    finally:
        own.kill()
        own.wait()


def save(nodes: Nodes, number: int, *names: str, token: str = "0.1") -> None:
    """The ranks of these nodes (all) save `last`, as a framework does: into files that are there, which are cut first."""
    for name in names or nodes.names:
        for file in ("model", "optimizer"):
            nodes.write(name, f"last/{file}-{name}", f"{file} of save {number}".encode(), token)


def whole(nodes: Nodes) -> int:
    """Which save is published; 0 for none. It must be one save, of all nodes."""
    there = nodes.published().get("last")
    if there is None:
        return 0
    found = {content.decode().rpartition(" ")[2] for content in there.values()}
    assert len(found) == 1, there
    assert len(there) == 2 * len(nodes.names)
    return int(found.pop())


def test_a_file_that_is_saved_again_is_published_again(nodes: Nodes) -> None:
    """`checkpoint.pt`, written in place or renamed over: each save that is done replaces the one before on the shared file system."""
    for number in range(1, 5):
        path = nodes.stage("n0") / "checkpoint.pt"
        if number % 2:
            path.write_bytes(b"save %d" % number)
        else:
            (path.parent / "checkpoint.pt.tmp").write_bytes(b"save %d" % number)
            os.rename(path.parent / "checkpoint.pt.tmp", path)
        nodes.run(5)
        assert nodes.published() == {"checkpoint.pt": {".": b"save %d" % number}}
        assert nodes.states("n0") == {"checkpoint.pt": "published"}


def test_a_folder_that_all_nodes_save_again_is_replaced_as_a_whole(nodes: Nodes) -> None:
    """`last`, again and again, in place: at each second what is published is one save of all nodes, and it follows."""
    seen = []
    for number in (1, 2, 3):
        save(nodes, number)
        for _ in range(14):
            nodes.run(1)
            seen.append(whole(nodes))
        assert seen[-1] == number
    assert seen == sorted(seen)
    assert os.listdir(nodes.to / ".ftrun-publishing") == []


def test_saves_of_two_nodes_never_mix(nodes: Nodes) -> None:
    """A node that begins late, one whose daemon sleeps, and one whose daemon was killed meanwhile: never a file of one save beside one of another."""
    save(nodes, 1)
    nodes.run(8)
    for number in range(2, 8):
        save(nodes, number, "n0")
        nodes.run(1 + number % 3)
        save(nodes, number, "n1")
        assert whole(nodes) in range(1, number)
        awake = nodes.names if number % 2 else ("n0", "n1")
        nodes.run(number, *awake)
        save(nodes, number, "n2")
        nodes.restart(nodes.names[number % 3])
        for _ in range(number):
            nodes.run(1)
            whole(nodes)
    nodes.run(12)
    assert whole(nodes) == 7


def test_a_start_that_breaks_down_while_it_saves_again_leaves_the_save_before(nodes: Nodes) -> None:
    """One node had saved and the other had only begun: the save before stays published, and the report says why there is none of the new one."""
    save(nodes, 1)
    nodes.run(9)
    save(nodes, 2, "n0", "n1")
    nodes.write("n2", "last/model-n2", b"model of save 2")
    nodes.over("0.1", 1)
    nodes.run(40)
    assert whole(nodes) == 1
    assert "saved again" in nodes.local["n2"].parts["0.1", "last"].why


def test_a_start_that_breaks_down_behind_a_save_of_one_node_leaves_the_save_before(nodes: Nodes) -> None:
    """Nothing changes any more, so standing still says nothing: without the word of all nodes from before it is refused."""
    save(nodes, 1)
    nodes.run(9)
    save(nodes, 2, "n0")
    save(nodes, 2, "n1", "n2")
    nodes.run(3)
    nodes.over("0.1", 1)
    nodes.run(30)
    assert whole(nodes) in (1, 2)
    assert all(nodes.shared[name].is_done("0.1", nodes.now_s) for name in nodes.names)
    if whole(nodes) == 1:
        assert any(row["why"] == status_report.UNSURE for row in nodes.shared["n0"].report()["sets"])


def test_the_next_start_saves_over_what_the_one_before_published(nodes: Nodes) -> None:
    """Another start of the same run, the same name: replaced, and what the earlier one still had is not."""
    save(nodes, 1)
    nodes.run(9)
    nodes.over("0.1", 1)
    nodes.start("0.2")
    save(nodes, 2, token="0.2")
    nodes.run(12)
    assert whole(nodes) == 2


def test_a_rank_that_comes_after_all_was_published_is_joined_at_the_end(nodes: Nodes) -> None:
    """A file is added when the set is out already: when the script has ended the set is published anew with it."""
    for name in nodes.names:
        nodes.write(name, f"step-1/{name}.0", b"first")
    nodes.run(6)
    assert sorted(nodes.published()["step-1"]) == ["n0.0", "n1.0", "n2.0"]
    nodes.write("n1", "step-1/n1.1", b"late")
    nodes.run(6)
    nodes.over("0.1", 0)
    nodes.run(12)
    assert sorted(nodes.published()["step-1"]) == ["n0.0", "n1.0", "n1.1", "n2.0"]
    assert all(nodes.shared[name].is_done("0.1", nodes.now_s) for name in nodes.names)


def test_a_name_of_another_run_is_left_alone_and_told(nodes: Nodes) -> None:
    """Two runs publish into one folder: what the first has published stays, the second's comes beside it under a free name, and its report says so."""
    theirs = nodes.to / "last"
    theirs.mkdir()
    (theirs / "weights").write_bytes(b"theirs")
    manifest.write(
        str(theirs),
        manifest.Manifest({"weights": manifest.Entry(6)}, by={"run": "r-9", "attempt": 1, "start": "0.1"}),
    )
    manifest.write_marker(str(theirs))
    for number in (1, 2):
        save(nodes, number)
        nodes.run(16)
        found = nodes.published()
        own = replace.alias_of("last", "r-1")
        assert found["last"] == {"weights": b"theirs"}
        assert set(found[own].values()) == {b"model of save %d" % number, b"optimizer of save %d" % number}
    rows = [row for name in nodes.names for row in nodes.shared[name].report()["sets"]]
    assert {row["state"] for row in rows} == {"published"}
    assert {row["why"] for row in rows} == {f"it is published as {own}: last is not this run's there"}


def test_ranks_that_speak_are_believed_for_each_save_of_a_name(
    ranks: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`with stage(step, name="last")`: what a rank said of the save before does not count for this one."""
    for step in (10, 20):
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK", rank)
            with stage(step, name="last") as folder:
                Path(folder, rank).write_bytes(b"%d" % step)
            ranks.run(6)
            if rank == "0":
                assert set(ranks.published().get("last", {"": b"10"}).values()) == {b"10"}
        assert ranks.published() == {"last": {"0": b"%d" % step, "1": b"%d" % step}}


def test_a_tracker_is_a_checkpoint_only_where_it_is_a_folder(nodes: Nodes) -> None:
    """`last` as a file or a link names a checkpoint; as a folder it is one."""
    nodes.write("n0", "last", b"step-10")
    nodes.write("n0", "checkpoint/model", b"w")
    nodes.over("0.1", 0)
    nodes.run(9)
    assert list(nodes.published()) == ["checkpoint"]


def test_what_is_saved_again_waits_for_files_that_are_as_before(nodes: Nodes) -> None:
    """A rank of the same node is late: its file is still the one of the save before, so the part is not sealed yet."""
    nodes.names = ("n0",)
    nodes.start("0.1")
    for file in ("a", "b"):
        nodes.write("n0", f"last/{file}", b"1")
    nodes.run(4)
    nodes.write("n0", "last/a", b"22")
    nodes.run(10)
    assert nodes.local["n0"].parts["0.1", "last"].state == sealing.WAIT
    assert set(nodes.published()["last"].values()) == {b"1"}
    nodes.write("n0", "last/b", b"22")
    nodes.run(10)
    assert set(nodes.published()["last"].values()) == {b"22"}


def test_links_in_a_set_are_published_as_the_files_they_lead_to(nodes: Nodes, tmp_path: Path) -> None:
    """Also one that leads to another file system; one that leads nowhere, or to itself, is none and is in nobody's way."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as elsewhere:
        elsewhere.write(b"far")
        elsewhere.flush()
        (tmp_path / "near").write_bytes(b"near")
        for name in nodes.names:
            nodes.write(name, f"step-1/{name}", b"w")
        links = {"far": elsewhere.name, "near": str(tmp_path / "near"), "gone": "nowhere", "round": "round"}
        for name, target in links.items():
            (nodes.stage("n0") / "step-1" / name).symlink_to(target)
        nodes.run(8)
    assert nodes.published()["step-1"] == {"far": b"far", "near": b"near", "n0": b"w", "n1": b"w", "n2": b"w"}


def test_a_name_that_cannot_be_there_holds_nobody_up(nodes: Nodes) -> None:
    """It fits in memory, and is too long with what is added to it: refused with that reason, and the others are published."""
    nodes.write("n0", "model-1.pt", b"1")
    nodes.write("n0", "m" * 245 + ".pt", b"2")
    nodes.run(8)
    assert list(nodes.published()) == ["model-1.pt"]
    why = {row["set"][:5]: row["why"] for row in nodes.shared["n0"].report()["sets"]}
    assert why["mmmmm"] == "its name is too long for what is added to it"


def test_names_may_be_anything_that_a_file_can_have(nodes: Nodes) -> None:
    """Line ends, quotes, and bytes that are no text: published as they are."""
    inner = [b"a\nb", b"q'\"\\", b"\xff\xfe", b" "]
    for name in nodes.names:
        folder = os.fsencode(nodes.stage(name)) + b"/step\n1"
        os.makedirs(folder)
        for one in inner:
            Path(os.fsdecode(folder + b"/" + name.encode() + one)).write_bytes(one)
    nodes.run(8)
    found = {os.fsencode(path): content for path, content in nodes.published()["step\n1"].items()}
    assert found == {name.encode() + one: one for name in nodes.names for one in inner}


def _cancelled(top: Path, node: str, *more: str) -> list[str]:
    """A small set and then a large one are saved, and the job is cancelled while the large one is copied at 1 MiB/s; the names in the shared folder."""
    attempt = top / "runs" / "r-1" / "attempts" / "1"
    attempt.mkdir(parents=True)
    (attempt / "begun.0.1").write_text("nodes=n0\n")
    env = {**os.environ, "SLURM_JOB_ID": JOB, "SLURM_NODEID": node}
    words = [*_words(top), "--rate", "1M", *more]
    with subprocess.Popen([sys.executable, "-m", *DAEMON, *words], env=env) as process:
        try:
            _wait(attempt / "stage" / "ready.0.n0")
            stage = top / "memory" / "r-1.7" / "stage" / "0.1"
            (stage / "model-1.pt").write_bytes(b"1" * 1000)
            _wait(top / "shared" / "model-1.pt.ftrun-complete")
            (stage / "model-2.pt").write_bytes(b"2" * (64 << 20))
            _wait(top / "shared" / records.PUBLISHING / f"model-2.pt.{JOB}.0.1" / "incoming")
            (stage / "model-3.pt").write_bytes(b"3" * 1000)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=240) == 0
        finally:
            process.kill()
    assert os.listdir(top / "memory") == []
    return sorted(os.listdir(top / "shared"))


def test_a_cancelled_job_leaves_nothing_half_visible(tmp_path: Path) -> None:
    """What does not get out in the time that Slurm leaves is given up: no name of it, nothing half copied, and the memory is given back."""
    names = _cancelled(tmp_path, "0", "--wait", "0.3")
    assert [name for name in names if not name.startswith("model-1.pt")] == [records.PUBLISHING]
    assert os.listdir(tmp_path / "shared" / records.PUBLISHING) == []


@pytest.mark.drills
def test_a_node_that_is_given_back_takes_nothing_along(tmp_path: Path) -> None:
    """Only the first node leaves with its job for sure; what another one has brought the rest of the job still needs."""
    names = _cancelled(tmp_path, "1", "--wait", "0.3")
    assert [name for name in names if not name.startswith("model-1.pt")] == [records.PUBLISHING]
    assert os.listdir(tmp_path / "shared" / records.PUBLISHING) == [f"model-2.pt.{JOB}.0.1"]


@pytest.mark.parametrize("job", ["8", "71"])
def test_a_job_that_is_over_leaves_what_others_bring(job: str, tmp_path: Path) -> None:
    """Into the same folder another job publishes: its sets stay on their way."""
    for one in ("7", job):
        to = Publishing(str(tmp_path), "step-1", one, "0.1")
        publish.copy_and_publish(
            Disk(), to, Seal("step-1", "0.1", "n0", {}), "", owner=b"{}", pace=lambda _size: None
        )
    publish.clear_job(Disk(), str(tmp_path), "7", "n0")
    assert os.listdir(tmp_path / records.PUBLISHING) == [f"step-1.{job}.0.1"]
