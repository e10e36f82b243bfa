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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.hooks.checkpoints import manifest, names
from ftrun.hooks.checkpoints.model import Damaged
from ftrun.hooks.staging import merge, records, replace
from ftrun.hooks.staging import publish as staging_publish
from ftrun.hooks.staging.copy import Disk
from ftrun.hooks.staging.records import File, Publishing, Seal

NAME, JOB, TOKEN = "step-10", "7", "0.1"
JUDGE = staging_publish.seal_check_of("")
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
        """What a daemon does, until the set is published."""
        for _ in range(60):
            seal = self.seals[node]
            if (
                seal.files
                and os.path.lexists(self.to.final)
                and staging_publish.is_published(self.to.to, seal)
            ):
                return
            try:
                if not staging_publish.has_part(self.to, node):
                    staging_publish.copy_and_publish(
                        disk, self.to, seal, str(self.source(node)), owner=b"{}", pace=_at_once
                    )
                outcome = staging_publish.finish(disk, self.to, self.nodes, node, JUDGE)
            except OSError:  # what another one took away: looked at again
                disk.effect("wait")
                continue
            if outcome.state == staging_publish.PUBLISHED:
                return
            assert outcome.state == staging_publish.WAITING, outcome
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
                assert staging_publish.is_published(
                    self.to.to, staging_publish.parts_of(self.to).get(seal.node, _summed(self, seal))
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
                staging_publish.copy_and_publish(
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
            staging_publish.copy_and_publish(
                Noted(), world.to, world.seals[node], str(world.source(node)), owner=b"{}", pace=_at_once
            )
        staging_publish.finish(Noted(), world.to, world.nodes, "n0", JUDGE)
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
            staging_publish.copy_and_publish(
                Disk(), world.to, world.seals[node], str(world.source(node)), owner=first, pace=_at_once
            )
        ended = staging_publish.finish(Disk(), world.to, world.nodes, "n1", JUDGE, owner=first)
        assert ended.state == staging_publish.PUBLISHED
        before = {path: path.stat().st_mtime_ns for path in Path(world.to.final).rglob("*")}
        later = world.to._replace(job="8")
        free = Path(world.to.to, replace.alias_of(NAME, "r-2"))
        for node, content in (("n0", b"{}"), ("n1", b"other")):
            world.contents[node]["config.json"] = content
            seal = world.sealed(node)
            staging_publish.copy_and_publish(
                Disk(), later, seal, str(world.source(node)), owner=second, pace=_at_once
            )
            assert (
                staging_publish.finish(Disk(), later, [node], node, JUDGE, owner=second).state
                == staging_publish.PUBLISHED
            )
            assert free.exists()
        assert {path: path.stat().st_mtime_ns for path in Path(world.to.final).rglob("*")} == before
        assert (free / "config.json").read_bytes() == b"other"
        assert staging_publish.published_path(world.to.to, NAME, "r-2") == str(free)


def test_two_nodes_with_different_files_of_one_name_have_no_set() -> None:
    """The same file with other content on another node: refused, with the names of both."""
    with _folder() as top:
        world = World(top, {"n0": {"a": b"1"}, "n1": {"a": b"2"}})
        for node in world.nodes:
            staging_publish.copy_and_publish(
                Disk(), world.to, world.seals[node], str(world.source(node)), owner=b"{}", pace=_at_once
            )
        outcome = staging_publish.finish(Disk(), world.to, world.nodes, "n0", JUDGE)
        assert outcome == staging_publish.Outcome(staging_publish.REFUSED, "a is not the same on n0 and n1")
        assert world.look() == "" if not os.path.lexists(world.to.final) else False


def test_a_part_that_is_sealed_anew_is_never_mixed_with_what_it_was() -> None:
    """A part with other content comes under another name: a set that was put together before keeps what it had."""
    with _folder() as top:
        world = World(top, {"n0": {"a": b"1", "b": b"1"}, "n1": {"c": b"1"}})
        first = staging_publish.copy_and_publish(
            Disk(), world.to, world.seals["n0"], str(world.source("n0")), owner=b"{}", pace=_at_once
        )
        time.sleep(0.01)  # another mtime
        world.contents["n0"] = {"a": b"2", "b": b"2"}
        world.seals["n0"] = world.sealed("n0")
        second = staging_publish.copy_and_publish(
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
            publish.copy_and_publish(Disk(), to, seal, f"{top}/{node}/step-10", owner=b"{}", pace=lambda n: time.sleep(0.002))
        if publish.finish(Disk(), to, ["n0", "n1"], node, publish.seal_check_of("")).state == publish.PUBLISHED:
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
        staging_publish.copy_and_publish(
            Disk(), world.to, world.seals[node], str(world.source(node)), owner=b"{}", pace=_at_once
        )
    staging_publish.finish(Disk(), world.to, world.nodes, "n0", JUDGE)
    os.unlink(f"{world.to.final}/{manifest.MARKER}")
    with pytest.raises(Damaged):
        manifest.read(world.to.final)
    for node in world.nodes:
        staging_publish.copy_and_publish(
            Disk(), world.to, world.seals[node], str(world.source(node)), owner=b"{}", pace=_at_once
        )
    assert (
        staging_publish.finish(Disk(), world.to, world.nodes, "n1", JUDGE).state == staging_publish.PUBLISHED
    )
    assert manifest.read(world.to.final) is not None


OWNER = b'{"run": "r-1", "attempt": "1"}'
FOLDER = {"n0": {"a": b"one", "b": b"1"}, "n1": {"c": b"two"}, "n2": {}}
NEWER = {"n0": {"a": b"ONE!", "b": b"2"}, "n1": {"c": b"TWO"}, "n2": {}}
NEWEST = {"n0": {"a": b"3", "b": b"33"}, "n1": {"c": b"333"}, "n2": {}}
FILE, NEWER_FILE = {"n0": {"": b"w" * 90}, "n1": {}}, {"n0": {"": b"W" * 70}, "n1": {}}
Contents = Mapping[str, Mapping[str, bytes]]


class Again:
    """Nodes that publish `last` twice; a reader may look at any time."""

    links = True

    def __init__(self, top: Path, *, exchange: bool = True, name: str = "last") -> None:
        self.top, self.exchange = top, exchange
        self.to = Publishing(str(top / "shared"), name, "7", "0.1")
        (top / "shared").mkdir()
        self.saves: list[Contents] = []
        self.nodes: list[str] = []
        self.seals: dict[str, Seal] = {}
        self.holders: set[str] = set()
        self.done: set[str] = set()

    def save(self, contents: Contents) -> None:
        """All nodes save again."""
        self.saves.append(contents)
        self.nodes, self.done = sorted(contents), set()
        self.holders = {node for node, files in contents.items() if files}
        for node, files in contents.items():
            rows = {}
            for path, content in files.items():
                at = self.source(node) / path if path else self.source(node)
                at.parent.mkdir(parents=True, exist_ok=True)
                at.write_bytes(content)
                rows[path] = File(len(content), len(self.saves))
                os.utime(at, ns=(len(self.saves), len(self.saves)))
            self.seals[node] = Seal(self.to.name, "0.1", node, rows, is_file="" in rows, save=len(self.saves))

    def source(self, node: str) -> Path:
        """Where a node's part lies."""
        return self.top / f"{node}.{len(self.saves)}"

    def disk(self, base: type[Disk] = Disk) -> Disk:
        """As the file system of this world can."""
        world = self

        class Here(base):  # type: ignore[misc, valid-type]
            def can_exchange(self, folder: str) -> bool:
                return world.exchange

        return Here()

    def live(self, node: str, disk: Disk) -> None:
        """What a daemon does, until this node's part is published."""
        for _ in range(200):
            seal = self.seals[node]
            try:
                if seal.files and staging_publish.is_published(self.to.to, self.summed(seal), OWNER):
                    self.done.add(node)
                    return
                if not staging_publish.has_part(self.to, node):
                    staging_publish.copy_and_publish(
                        disk, self.to, seal, str(self.source(node)), owner=OWNER, pace=_at_once
                    )
                told = merge.consensus_request(self.to, node)
                if told is not None and told.own == merge.generation(seal):
                    merge.confirm(disk, self.to, node, told.word)
                outcome = staging_publish.finish(disk, self.to, self.nodes, node, JUDGE, owner=OWNER)
            except OSError:  # what another one took away: looked at again
                disk.effect("wait")
                continue
            if outcome.state == staging_publish.PUBLISHED and seal.files:
                self.done.add(node)
            if outcome.state == staging_publish.PUBLISHED and (
                node in self.done or not self.holders - self.done
            ):
                return  # who has nothing of it says so until the others are done
            assert outcome.state != staging_publish.REFUSED, outcome
            disk.effect("wait")
        raise AssertionError("never published")

    def summed(self, seal: Seal) -> Seal:
        """The seal with sums."""
        place = self.source(seal.node)
        files = {
            path: one._replace(sha256=manifest.sha256(str(place / path if path else place)))
            for path, one in seal.files.items()
        }
        return seal._replace(files=files)

    def look(self) -> int:
        """Which save a reader finds. Raises AssertionError where it is none, or is vouched for by another's manifest."""
        final = Path(self.to.final)
        if not os.path.lexists(final):
            assert len(self.saves) < 2
            return 0
        paths = [final] if final.is_file() else [one for one in final.rglob("*") if one.is_file()]
        found = {
            "" if one == final else one.relative_to(final).as_posix(): one.read_bytes()
            for one in paths
            if not manifest.is_ours(one.name) and not one.name.endswith(".tmp")
        }
        wholes = [
            {path: content for part in save.values() for path, content in part.items()} for save in self.saves
        ]
        assert found in wholes, found
        if len(self.saves) > 1 or (final / manifest.MARKER).exists():
            there = manifest.read(str(final))  # never torn, once one was there
            assert there is not None or final.is_file()
            if there is not None:
                sums = {path: manifest.sha256(str(final / path if path else final)) for path in found}
                listed = {path if final.is_dir() else "": one.sha256 for path, one in there.files.items()}
                assert listed == sums
        return wholes.index(found) + 1

    def publish(self) -> None:
        """All nodes, one after the other, without a mishap."""
        disk = self.disk()
        for node in (*self.nodes, *self.nodes):
            seal = self.seals[node]
            if not staging_publish.has_part(self.to, node) and not (
                seal.files and staging_publish.is_published(self.to.to, self.summed(seal), OWNER)
            ):
                staging_publish.copy_and_publish(
                    disk, self.to, seal, str(self.source(node)), owner=OWNER, pace=_at_once
                )
        for _ in range(3):
            staging_publish.finish(disk, self.to, self.nodes, "n0", JUDGE, owner=OWNER)
            for node in self.nodes:
                told = merge.consensus_request(self.to, node)
                if told is not None:
                    merge.confirm(disk, self.to, node, told.word)

    def check_end(self) -> None:
        """The newest save is published, marked, and nothing is left over."""
        for node in self.nodes:  # a daemon looks again whether its part is the published one
            self.live(node, self.disk())
        assert self.look() == len(self.saves)
        assert manifest.read(self.to.final) is not None
        sets = Path(self.to.to, replace.SETS)
        assert not sets.exists() or os.path.islink(self.to.final)


class Turns(Baton):
    """The nodes of such a world, in any order."""

    def disk(self, node: str) -> Disk:
        own, world = super().disk(node), self.world
        return world.disk(type(own))  # type: ignore[attr-defined, no-any-return]


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    contents=st.sampled_from([(FOLDER, NEWER), (FILE, NEWER_FILE)]),
    exchange=st.booleans(),
    crash_share=st.sampled_from([0.0, 0.03, 0.15]),
)
def test_whatever_the_order_and_the_crashes_a_reader_sees_the_old_save_or_the_new_one(
    seed: int, contents: tuple[Contents, Contents], exchange: bool, crash_share: float
) -> None:
    """Nodes publish a second save of a name one effect at a time in any order and die behind any of them: always one whole save, with its own manifest or none."""
    with _folder() as top:
        world = Again(top, exchange=exchange)
        world.save(contents[0])
        world.publish()
        assert world.look() == 1
        world.save(contents[1])
        Turns(world, random.Random(seed), crash_share).run()  # type: ignore[arg-type]
        world.check_end()


@pytest.mark.parametrize("exchange", [True, False], ids=["exchanged", "linked"])
@pytest.mark.parametrize("contents", [(FOLDER, NEWER), (FILE, NEWER_FILE)], ids=["folder", "file"])
def test_a_crash_before_every_single_effect_leaves_the_old_save_or_the_new_one(
    contents: tuple[Contents, Contents], exchange: bool
) -> None:
    """For each effect there is: one node dies right before it; a reader finds one whole save, and the next life publishes the new one."""
    number = 0
    while True:
        with _folder() as top:
            world = Again(top, exchange=exchange)
            world.save(contents[0])
            world.publish()
            world.save(contents[1])
            for other in world.nodes[1:]:
                place = str(world.source(other))
                staging_publish.copy_and_publish(
                    Disk(), world.to, world.seals[other], place, owner=OWNER, pace=_at_once
                )
            disk, left = world.disk(), [number]

            def effect(what: str, left: list[int] = left, world: Again = world) -> None:
                world.look()
                if left[0] == 0:
                    raise Crash(what)
                left[0] -= 1
                if what == "wait":
                    for other in world.nodes[1:]:
                        told = merge.consensus_request(world.to, other)
                        if told is not None:
                            merge.confirm(Disk(), world.to, other, told.word)

            disk.effect = effect  # type: ignore[method-assign]
            try:
                world.live("n0", disk)
                world.check_end()
                assert number > 10
                return
            except Crash:
                world.look()
            left[0] = -1
            world.live("n0", disk)
            world.check_end()
        number += 1


def test_parts_of_two_saves_are_never_put_together(tmp_path: Path) -> None:
    """One node shows the save of now, another one still the one before: nothing is published until each node has given its word for the same save."""
    world = Again(tmp_path)
    world.save(FOLDER)
    world.publish()
    old = world.seals["n1"]
    world.save(NEWER)
    world.seals["n1"] = old._replace(save=1)
    for node in world.nodes:
        files = str(tmp_path / "n1.1") if node == "n1" else str(world.source(node))
        staging_publish.copy_and_publish(
            Disk(), world.to, world.seals[node], files, owner=OWNER, pace=_at_once
        )
    for _ in range(3):
        outcome = staging_publish.finish(Disk(), world.to, world.nodes, "n0", JUDGE, owner=OWNER)
        told = merge.consensus_request(world.to, "n0")
        if told is not None:
            merge.confirm(Disk(), world.to, "n0", told.word)
    assert (outcome.state, outcome.why) == (
        staging_publish.WAITING,
        "for the word of n1 that it is the same save",
    )
    assert world.look() == 1
    staging_publish.copy_and_publish(
        Disk(),
        world.to,
        world.seals["n1"]._replace(files={"c": File(3, 2)}, save=2),
        str(world.source("n1")),
        owner=OWNER,
        pace=_at_once,
    )
    assert staging_publish.finish(Disk(), world.to, world.nodes, "n0", JUDGE, owner=OWNER).why.startswith(
        "for the word of n0, n1"
    )


def _touch(final: Path) -> None:
    (final / "notes").write_text("mine")


def _rewrite(final: Path) -> None:
    (final / "a").write_bytes(b"mine, and longer")


def _take(final: Path) -> None:
    (final / "a").unlink()


def _own(final: Path) -> None:
    os.rename(final, f"{final}.old")
    final.mkdir()
    (final / "weights").write_bytes(b"mine")


@pytest.mark.parametrize("change", [_touch, _rewrite, _take, _own])
def test_what_somebody_else_wrote_is_never_replaced(change: object, tmp_path: Path) -> None:
    """A file was added, written or taken away since, or it never was ftrun's: it stays, and the new save gets a free name, which it keeps."""
    world = Again(tmp_path)
    world.save(FOLDER)
    world.publish()
    final = Path(world.to.final)
    change(final)  # type: ignore[operator]
    before = {path: path.read_bytes() for path in final.rglob("*") if path.is_file()}
    for save in (NEWER, NEWEST):
        world.save(save)
        world.publish()
        there = Path(staging_publish.published_path(world.to.to, "last", "r-1"))
        assert there.name in ("last", replace.alias_of("last", "r-1"))
        assert {path: path.read_bytes() for path in final.rglob("*") if path.is_file()} == before
    free = Path(world.to.to, replace.alias_of("last", "r-1"))
    assert (free / "a").read_bytes() == b"3"
    assert manifest.read(str(free)) is not None


def test_a_later_start_is_never_replaced_by_an_earlier_one(tmp_path: Path) -> None:
    """What an earlier start still had to publish comes too late: refused for good, and the later one stays."""
    world = Again(tmp_path)
    world.save(FILE)
    world.to = world.to._replace(token="0.2")
    world.seals["n0"] = world.seals["n0"]._replace(token="0.2")
    push = {"owner": OWNER, "pace": _at_once}
    staging_publish.copy_and_publish(Disk(), world.to, world.seals["n0"], str(world.source("n0")), **push)  # type: ignore[arg-type]
    assert (
        staging_publish.finish(Disk(), world.to, ["n0"], "n0", JUDGE, owner=OWNER).state
        == staging_publish.PUBLISHED
    )
    world.to = world.to._replace(token="0.1")
    world.save(NEWER_FILE)
    staging_publish.copy_and_publish(Disk(), world.to, world.seals["n0"], str(world.source("n0")), **push)  # type: ignore[arg-type]
    outcome = staging_publish.finish(Disk(), world.to, ["n0"], "n0", JUDGE, owner=OWNER)
    assert outcome == staging_publish.Outcome(
        staging_publish.REFUSED, f"{world.to.final} was saved by a later start", for_good=True
    )
    assert Path(world.to.final).read_bytes() == FILE["n0"][""]


def test_a_folder_that_cannot_be_exchanged_is_left_and_the_new_one_gets_a_free_name(tmp_path: Path) -> None:
    """No file system replaces a folder in one step without that; a name with a step is saved once, so it is a folder and no link."""
    world = Again(tmp_path, exchange=False, name="step-5")
    for save in (FOLDER, NEWER):
        world.save(save)
        world.publish()
    final = Path(world.to.final)
    assert not final.is_symlink()
    assert (final / "a").read_bytes() == b"one"
    assert (Path(world.to.to, replace.alias_of("step-5", "r-1")) / "a").read_bytes() == b"ONE!"


def test_two_folders_change_places_in_one_step(tmp_path: Path) -> None:
    """As renameat2(2) does it; what is not there is an error."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "x").touch()
    assert Disk().exchange(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b" / "x").exists()
    with pytest.raises(OSError, match="No such file"):
        Disk().exchange(str(tmp_path / "a"), str(tmp_path / "c"))


@pytest.mark.parametrize(
    ("name", "ending"), [("step-100", ""), ("last", ""), ("model-30.pt", ".pt"), ("last.ckpt", ".ckpt"), ("best", ""), ("iter_0000100", ""), ("v1.5", "")]
)  # fmt: skip
def test_the_free_name_says_the_same_step(name: str, ending: str) -> None:
    """What reads a step or a format out of the name reads the same; other runs have other names."""
    own = replace.alias_of(name, "train.sh-step-77")
    assert records.is_set_name(own)
    assert own.endswith(ending)
    assert names.step_of(own) == names.step_of(name)
    assert own != replace.alias_of(name, "train.sh-step-78") != name


def test_a_file_of_the_users_is_never_taken_for_ours(tmp_path: Path) -> None:
    """It lies under the name and holds the same bytes: it gets no manifest of ours, and stays when the next save comes."""
    world = Again(tmp_path)
    (tmp_path / "shared" / "last").write_bytes(FILE["n0"][""])
    for save in (FILE, NEWER_FILE):
        world.save(save)
        world.publish()
    assert (tmp_path / "shared" / "last").read_bytes() == FILE["n0"][""]
    assert Path(world.to.to, replace.alias_of("last", "r-1")).read_bytes() == NEWER_FILE["n0"][""]
    assert not Path(f"{world.to.final}{manifest.MANIFEST}").exists()


LANES = 4
NODES = ("n0", "n1")
LIMIT_S = 240.0
CONTENT = {"n0": {"rank-0.bin": b"a" * 70_000, "meta.json": b"{}"}, "n1": {"rank-1.bin": b"b" * 300_000}}
DRIVER = """
import os, signal, sys
from ftrun.hooks.staging.copy import Disk
from ftrun.hooks import main
left = int(sys.argv[1])
def effect(self, what):
    global left
    left -= 1
    if left == 0:
        with open(sys.argv[2], "w") as stream:
            stream.write(what)
        os.kill(os.getpid(), signal.SIGKILL)
Disk.effect = effect
sys.exit(main.main(sys.argv[3:]))
"""


class Trial:
    """Two nodes with one staged set."""

    def __init__(self, top: Path) -> None:
        self.top, self.to = top, top / "to"
        self.attempt = top / "run-1" / "attempts" / "1"
        self.attempt.mkdir(parents=True)
        (self.attempt / f"begun.{TOKEN}").write_text("nodes=n[0-1]\n")
        (self.attempt / "current").symlink_to(TOKEN)

    def home(self, node: str) -> records.Home:
        """The memory of a node."""
        return records.Home(str(self.top / node / "ftrun-0" / f"run-1.{JOB}"))

    def save(self, name: str) -> None:
        """Both nodes write their part."""
        for node in NODES:
            folder = Path(self.home(node).stage(TOKEN)) / name
            folder.mkdir(parents=True)
            for path, content in CONTENT[node].items():
                (folder / path).write_bytes(content)

    def daemon(self, node: str, effects: int = 0) -> subprocess.Popen[bytes]:
        """Start one; it dies before that effect (0: never)."""
        words = [
            "staging-daemon", "--attempt-folder", str(self.attempt), "--launch", "0", "--job", JOB,
            "--node", node,
        ]  # fmt: skip
        words += ["--base", self.home(node).base, "--to", str(self.to), "--limit", "1G", "--wait", "5"]
        return subprocess.Popen([sys.executable, "-c", DRIVER, str(effects), str(self.top / "last"), *words])

    def seen(self, name: str) -> bool:
        """Whether the set is published. What says so must be whole."""
        try:
            found = manifest.read(str(self.to / name))
        except (Damaged, FileNotFoundError):
            return False
        if found is None:
            return False
        wanted = {path: content for part in CONTENT.values() for path, content in part.items()}
        assert {path: (self.to / name / path).read_bytes() for path in wanted} == wanted
        assert {path: entry.size_bytes for path, entry in found.files.items()} == {
            path: len(content) for path, content in wanted.items()
        }
        return True


@contextmanager
def _ended(processes: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _killed_before(top: Path, effect: int) -> str:
    """What the daemon was about to do when it was killed; "" where there was no such effect any more."""
    trial = Trial(top)
    running = [trial.daemon("n0", effect), trial.daemon("n1")]
    died = ""
    with _ended(running):
        deadline = time.monotonic() + LIMIT_S
        while not all(os.path.isdir(trial.home(node).stage(TOKEN)) for node in NODES):
            time.sleep(0.05)
        trial.save("step-10")
        while not trial.seen("step-10"):
            assert time.monotonic() < deadline, f"not published after a kill before: {died}"
            if running[0].poll() is not None:
                died = (top / "last").read_text()
                running[0] = trial.daemon("n0")
            time.sleep(0.05)
        left = top / "to" / records.PUBLISHING
        while not died and running[0].poll() is None and any(left.iterdir()):
            time.sleep(0.05)  # it clears up
        if running[0].poll() is not None:
            died = (top / "last").read_text()
    return died


@pytest.mark.drills
def test_a_keeper_that_is_killed_before_any_effect_leaves_a_whole_set_to_the_next(tmp_path: Path) -> None:
    """Kill -9 at every step of publishing: the reader sees nothing or the whole set, and the whole one in the end."""
    with ThreadPoolExecutor(LANES) as pool:
        told = list(pool.map(lambda n: _killed_before(tmp_path / str(n), n), range(1, 33)))

    effects = [what.split()[0] for what in told if what]
    assert {"make", "write", "rename", "sync", "copy", "link"} <= set(effects), told
    assert len(effects) >= 15
