"""Whatever dies behind whichever effect, a reader sees the old complete set or the new complete set. (I/O)"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.hooks.checkpoints import manifest
from ftrun.hooks.checkpoints.model import Damaged
from ftrun.hooks.staging import merge, publish, records, replace
from ftrun.hooks.staging.copy import Disk
from ftrun.hooks.staging.records import File, Publishing, Seal

NAME, JOB, TOKEN = "step-10", "7", "0.1"
JUDGE = publish.judge_of("")
TURNS_MAX = 4000


class Crash(BaseException):
    """The process is gone, as by kill -9: nothing of it runs any more."""


class World:
    """Nodes that publish one set at the same time, one effect after the other, in an order that is told."""

    def __init__(self, top: Path, contents: Mapping[str, Mapping[str, bytes]], *, links: bool = True) -> None:
        self.top, self.links = top, links
        self.to = Publishing(str(top / "shared"), NAME, JOB, TOKEN)
        (top / "shared").mkdir()
        self.nodes = sorted(contents)
        self.contents = {node: dict(files) for node, files in contents.items()}
        self.seals = {node: self.sealed(node) for node in self.nodes}

    def source(self, node: str) -> Path:
        """Where a node's part lies."""
        return self.top / node / NAME

    def sealed(self, node: str) -> Seal:
        """The part of a node as it lies there now."""
        files = {}
        for path, content in self.contents[node].items():
            at = self.source(node) / path if path else self.source(node)
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_bytes(content)
            files[path] = File(at.stat().st_size, at.stat().st_mtime_ns)
        return Seal(NAME, TOKEN, node, files, is_file="" in files)

    def live(self, node: str, disk: Disk) -> None:
        """What a keeper does, until the set is published."""
        for _ in range(60):
            seal = self.seals[node]
            if seal.files and os.path.lexists(self.to.final) and publish.is_published(self.to.to, seal):
                return
            try:
                if not publish.has_part(self.to, node):
                    publish.push(disk, self.to, seal, str(self.source(node)), owner=b"{}", pace=_at_once)
                outcome = publish.finish(disk, self.to, self.nodes, node, JUDGE)
            except OSError:  # what another one took away: looked at again
                disk.effect("wait")
                continue
            if outcome.state == publish.PUBLISHED:
                return
            assert outcome.state == publish.WAITING, outcome
            disk.effect("wait")
        raise AssertionError("never published")

    def look(self) -> str:
        """What a reader finds: "" or "whole". Raises AssertionError for anything between."""
        final = Path(self.to.final)
        if not os.path.lexists(final):
            return ""
        wanted = {path: content for files in self.contents.values() for path, content in files.items()}
        if "" in wanted:
            assert final.read_bytes() == wanted[""]
            return "whole"
        found = {
            path.relative_to(final).as_posix(): path.read_bytes()
            for path in final.rglob("*")
            if path.is_file() and not manifest.is_ours(path.name) and not path.name.endswith(".tmp")
        }
        assert found == wanted
        return "whole"

    def check_end(self) -> None:
        """Published, marked, and nothing left over."""
        assert self.look() == "whole"
        there = manifest.read(self.to.final)
        assert there is not None
        assert there.step == 10
        for seal in self.seals.values():
            if seal.files:
                assert publish.is_published(
                    self.to.to, publish.parts_of(self.to).get(seal.node, _summed(self, seal))
                )


def _summed(world: World, seal: Seal) -> Seal:
    files = {
        path: one._replace(
            sha256=manifest.sha256(str(world.source(seal.node) / path if path else world.source(seal.node)))
        )
        for path, one in seal.files.items()
    }
    return seal._replace(files=files)


def _at_once(_size_bytes: int) -> None:
    return


class Baton:
    """Lets one thread at a time do one effect, the one that is chosen; `crashes` of them are the last of their thread."""

    def __init__(self, world: World, choose: random.Random, crash_share: float) -> None:
        self.world, self.choose, self.crash_share = world, choose, crash_share
        self.waiting: dict[str, threading.Event] = {}
        self.changed = threading.Condition()
        self.alive: set[str] = set()
        self.doomed: set[str] = set()
        self.errors: list[BaseException] = []

    def disk(self, node: str) -> Disk:
        baton, links = self, self.world.links

        class Stopped(Disk):
            def effect(self, what: str) -> None:
                baton.wait(node)
                if what.startswith("link") and not links:
                    raise OSError(errno.EPERM, "no hard links here")

        return Stopped()

    def wait(self, node: str) -> None:
        """Block until it is this node's turn; its process may be gone by then."""
        turn = threading.Event()
        with self.changed:
            self.waiting[node] = turn
            self.changed.notify_all()
        turn.wait()
        if node in self.doomed:
            self.doomed.discard(node)
            raise Crash(node)

    def run(self) -> None:
        """All nodes until each has ended well; one that crashed begins again."""
        for node in self.world.nodes:
            self._begin(node)
        for _ in range(TURNS_MAX):
            with self.changed:
                self.changed.wait_for(lambda: not self.alive - set(self.waiting), 20)
                if not self.alive:
                    break
                node = self.choose.choice(sorted(self.waiting))
                turn = self.waiting.pop(node)
            self.world.look()
            if self.choose.random() < self.crash_share:
                self.doomed.add(node)
            turn.set()
        assert not self.alive, "it never ends"
        for error in self.errors:
            raise error

    def _begin(self, node: str) -> None:
        self.alive.add(node)
        threading.Thread(target=self._live, args=(node,), daemon=True).start()

    def _live(self, node: str) -> None:
        again = False
        try:
            self.world.live(node, self.disk(node))
        except Crash:
            again = True
        except BaseException as error:  # noqa: BLE001  told by the one who asked
            self.errors.append(error)
        with self.changed:
            self.alive.discard(node)
            if again:
                self._begin(node)
            self.changed.notify_all()


@contextmanager
def _folder() -> Iterator[Path]:
    # In memory: a file that is synchronised costs nothing there.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    top = Path(tempfile.mkdtemp(prefix="ftrun-publish-", dir=memory))
    try:
        yield top
    finally:
        shutil.rmtree(top)


SHARDED = {
    "n0": {"shard-0": b"a" * 90, "index": b"m", "sub/deep/x": b"x"},
    "n1": {"shard-1": b"b" * 80, "sub/y": b"yy"},
    "n2": {"shard-2": b"c", "config.json": b"{}"},
}
FIRST_ONLY = {"n0": {"weights": b"w" * 100, "rng/0": b"r"}, "n1": {}, "n2": {}}
SHARED_FILES = {"n0": {"config.json": b"{}", "0": b"0"}, "n1": {"config.json": b"{}", "1": b"1"}}
ONE_FILE = {"n0": {"": b"w" * 100}, "n1": {"": b"w" * 100}}


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    contents=st.sampled_from([SHARDED, FIRST_ONLY, SHARED_FILES, ONE_FILE]),
    links=st.booleans(),
    crash_share=st.sampled_from([0.0, 0.02, 0.1, 0.25]),
)
def test_whatever_the_order_and_the_crashes_a_reader_sees_nothing_or_the_whole_set(
    seed: int, contents: dict[str, dict[str, bytes]], links: bool, crash_share: float
) -> None:
    """Nodes publish one effect at a time in any order and die behind any of them: there is no moment with half a set, and in the end it is published."""
    with _folder() as top:
        world = World(top, contents, links=links)
        Baton(world, random.Random(seed), crash_share).run()
        world.check_end()


class Counted(Disk):
    """Dies before its effect number `last`."""

    def __init__(self, last: int) -> None:
        self.done, self.last = 0, last

    def effect(self, what: str) -> None:
        if self.done == self.last:
            raise Crash(what)
        self.done += 1


@pytest.mark.parametrize("contents", [SHARDED, ONE_FILE], ids=["folder", "file"])
def test_a_crash_before_every_single_effect_is_mended_by_whoever_comes_next(
    contents: dict[str, dict[str, bytes]],
) -> None:
    """For each effect there is: one node dies right before it, the other nodes or its next life publish the set all the same."""
    number = 0
    while True:
        with _folder() as top:
            world = World(top, contents)
            for other in world.nodes[1:]:
                publish.push(
                    Disk(), world.to, world.seals[other], str(world.source(other)), owner=b"{}", pace=_at_once
                )
            disk = Counted(number)
            try:
                world.live("n0", disk)
                world.check_end()
                assert number > 10
                return
            except Crash:
                world.look()
            world.live("n0", Disk())
            for other in world.nodes[1:]:
                world.live(other, Disk())
            world.check_end()
        number += 1


def test_nothing_gets_its_final_name_before_it_is_safe_on_disk() -> None:
    """Every file is synchronised before it is renamed, and every folder of the set before the set is."""
    with _folder() as top:
        world = World(top, SHARDED)
        said: list[str] = []

        class Noted(Disk):
            def effect(self, what: str) -> None:
                said.append(what)

        for node in world.nodes:
            publish.push(
                Noted(), world.to, world.seals[node], str(world.source(node)), owner=b"{}", pace=_at_once
            )
        publish.finish(Noted(), world.to, world.nodes, "n0", JUDGE)
        final = next(n for n, what in enumerate(said) if what.endswith(f" {world.to.final}"))
        data = said[final].split()[1]
        for folder in (data, f"{data}/sub", f"{data}/sub/deep"):
            assert f"sync {folder}" in said[:final]
        assert f"sync {world.to.to}" in said[final:]
        assert not any(manifest.MARKER in what for what in said[:final])


def test_what_another_run_published_is_never_replaced() -> None:
    """A set whose name is another run's gets a free name, be its content the same or not: that run may replace its own at any time. The checkpoint is untouched."""
    with _folder() as top:
        world = World(top, SHARED_FILES)
        first, second = b'{"run": "r-1", "attempt": "1"}', b'{"run": "r-2", "attempt": "1"}'
        for node in world.nodes:
            publish.push(
                Disk(), world.to, world.seals[node], str(world.source(node)), owner=first, pace=_at_once
            )
        ended = publish.finish(Disk(), world.to, world.nodes, "n1", JUDGE, owner=first)
        assert ended.state == publish.PUBLISHED
        before = {path: path.stat().st_mtime_ns for path in Path(world.to.final).rglob("*")}
        later = world.to._replace(job="8")
        free = Path(world.to.to, replace.alias(NAME, "r-2"))
        for node, content in (("n0", b"{}"), ("n1", b"other")):
            world.contents[node]["config.json"] = content
            seal = world.sealed(node)
            publish.push(Disk(), later, seal, str(world.source(node)), owner=second, pace=_at_once)
            assert publish.finish(Disk(), later, [node], node, JUDGE, owner=second).state == publish.PUBLISHED
            assert free.exists()
        assert {path: path.stat().st_mtime_ns for path in Path(world.to.final).rglob("*")} == before
        assert (free / "config.json").read_bytes() == b"other"
        assert publish.published_path(world.to.to, NAME, "r-2") == str(free)


def test_two_nodes_with_different_files_of_one_name_have_no_set() -> None:
    """The same file with other content on another node: refused, with the names of both."""
    with _folder() as top:
        world = World(top, {"n0": {"a": b"1"}, "n1": {"a": b"2"}})
        for node in world.nodes:
            publish.push(
                Disk(), world.to, world.seals[node], str(world.source(node)), owner=b"{}", pace=_at_once
            )
        outcome = publish.finish(Disk(), world.to, world.nodes, "n0", JUDGE)
        assert outcome == publish.Outcome(publish.REFUSED, "a is not the same on n0 and n1")
        assert world.look() == "" if not os.path.lexists(world.to.final) else False


def test_a_part_that_is_sealed_anew_is_never_mixed_with_what_it_was() -> None:
    """A part with other content comes under another name: a set that was put together before keeps what it had."""
    with _folder() as top:
        world = World(top, {"n0": {"a": b"1", "b": b"1"}, "n1": {"c": b"1"}})
        first = publish.push(
            Disk(), world.to, world.seals["n0"], str(world.source("n0")), owner=b"{}", pace=_at_once
        )
        time.sleep(0.01)  # another mtime
        world.contents["n0"] = {"a": b"2", "b": b"2"}
        world.seals["n0"] = world.sealed("n0")
        second = publish.push(
            Disk(), world.to, world.seals["n0"], str(world.source("n0")), owner=b"{}", pace=_at_once
        )
        assert Path(world.to.incoming("n0", merge.generation(first)), "a").read_bytes() == b"1"
        assert Path(world.to.incoming("n0", merge.generation(second)), "a").read_bytes() == b"2"
        world.live("n1", Disk())
        assert world.look() == "whole"


LIFE = """
import json, os, sys, time
from ftrun.hooks.staging import publish, records, merge
from ftrun.hooks.staging.copy import Disk
top, node = sys.argv[1:]
to = records.Publishing(top + "/shared", "step-10", "7", "0.1")
seal = records.read_seal(open(f"{top}/{node}.json").read())
while True:
    try:
        if publish.is_published(to.to, seal):
            break
        if not publish.has_part(to, node):
            publish.push(Disk(), to, seal, f"{top}/{node}/step-10", owner=b"{}", pace=lambda n: time.sleep(0.002))
        if publish.finish(Disk(), to, ["n0", "n1"], node, publish.judge_of("")).state == publish.PUBLISHED:
            break
    except OSError:
        pass
    time.sleep(0.002)
"""


def test_real_processes_that_are_killed_at_any_time_publish_whole_sets(tmp_path: Path) -> None:
    """kill -9 of real publishers at random moments, again and again: at each look nothing or the whole set."""
    rng = random.Random(7)
    big = {
        "n0": {f"{n}": bytes([n]) * 400_000 for n in range(6)},
        "n1": {f"s/{n}": bytes([n]) * 400_000 for n in range(6)},
    }
    for number in range(1):
        top = tmp_path / str(number)
        top.mkdir()
        world = World(top, big)
        for node in world.nodes:
            (top / f"{node}.json").write_text(records.seal_json(world.seals[node]))
        living: dict[str, subprocess.Popen[bytes]] = {}
        kills = 0
        until_s = time.monotonic() + 120
        while time.monotonic() < until_s:
            for node in world.nodes:
                if node not in living:
                    living[node] = subprocess.Popen([sys.executable, "-c", LIFE, str(top), node])
            world.look()
            if kills < 6:
                time.sleep(rng.uniform(0.05, 0.25))
                victim = living.pop(rng.choice(world.nodes))
                victim.send_signal(signal.SIGKILL)
                victim.wait()
                kills += 1
            elif all(one.poll() == 0 for one in living.values()):
                break
            else:
                time.sleep(0.01)
        world.check_end()


def test_a_set_that_is_there_without_its_marker_is_torn_to_a_reader(tmp_path: Path) -> None:
    """Between the final name and the marker the set is not offered, and the next look marks it."""
    world = World(tmp_path, SHARED_FILES)
    for node in world.nodes:
        publish.push(Disk(), world.to, world.seals[node], str(world.source(node)), owner=b"{}", pace=_at_once)
    publish.finish(Disk(), world.to, world.nodes, "n0", JUDGE)
    os.unlink(f"{world.to.final}/{manifest.MARKER}")
    with pytest.raises(Damaged):
        manifest.read(world.to.final)
    for node in world.nodes:
        publish.push(Disk(), world.to, world.seals[node], str(world.source(node)), owner=b"{}", pace=_at_once)
    assert publish.finish(Disk(), world.to, world.nodes, "n1", JUDGE).state == publish.PUBLISHED
    assert manifest.read(world.to.final) is not None
