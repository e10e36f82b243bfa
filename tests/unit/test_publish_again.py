"""A name that is saved again and again: the newer save takes the place of the older one, at once and whole, and of nothing else. (I/O)"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.hooks.checkpoints import manifest, names
from ftrun.hooks.staging import merge, publish, records, replace
from ftrun.hooks.staging.copy import Disk
from ftrun.hooks.staging.records import File, Publishing, Seal
from tests.unit.test_publish_laws import Baton, Crash, _at_once, _folder

OWNER = b'{"run": "r-1", "attempt": "1"}'
JUDGE = publish.judge_of("")
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
        """What a keeper does, until this node's part is published."""
        for _ in range(200):
            seal = self.seals[node]
            try:
                if seal.files and publish.is_published(self.to.to, self.summed(seal), OWNER):
                    self.done.add(node)
                    return
                if not publish.has_part(self.to, node):
                    publish.push(disk, self.to, seal, str(self.source(node)), owner=OWNER, pace=_at_once)
                told = merge.consensus_request(self.to, node)
                if told is not None and told.own == merge.generation(seal):
                    merge.confirm(disk, self.to, node, told.word)
                outcome = publish.finish(disk, self.to, self.nodes, node, JUDGE, owner=OWNER)
            except OSError:  # what another one took away: looked at again
                disk.effect("wait")
                continue
            if outcome.state == publish.PUBLISHED and seal.files:
                self.done.add(node)
            if outcome.state == publish.PUBLISHED and (node in self.done or not self.holders - self.done):
                return  # who has nothing of it says so until the others are done
            assert outcome.state != publish.REFUSED, outcome
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
            if not publish.has_part(self.to, node) and not (
                seal.files and publish.is_published(self.to.to, self.summed(seal), OWNER)
            ):
                publish.push(disk, self.to, seal, str(self.source(node)), owner=OWNER, pace=_at_once)
        for _ in range(3):
            publish.finish(disk, self.to, self.nodes, "n0", JUDGE, owner=OWNER)
            for node in self.nodes:
                told = merge.consensus_request(self.to, node)
                if told is not None:
                    merge.confirm(disk, self.to, node, told.word)

    def check_end(self) -> None:
        """The newest save is published, marked, and nothing is left over."""
        for node in self.nodes:  # a keeper looks again whether its part is the published one
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
                publish.push(Disk(), world.to, world.seals[other], place, owner=OWNER, pace=_at_once)
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
        publish.push(Disk(), world.to, world.seals[node], files, owner=OWNER, pace=_at_once)
    for _ in range(3):
        outcome = publish.finish(Disk(), world.to, world.nodes, "n0", JUDGE, owner=OWNER)
        told = merge.consensus_request(world.to, "n0")
        if told is not None:
            merge.confirm(Disk(), world.to, "n0", told.word)
    assert (outcome.state, outcome.why) == (
        publish.WAITING,
        "for the word of n1 that it is the same save",
    )
    assert world.look() == 1
    publish.push(
        Disk(),
        world.to,
        world.seals["n1"]._replace(files={"c": File(3, 2)}, save=2),
        str(world.source("n1")),
        owner=OWNER,
        pace=_at_once,
    )
    assert publish.finish(Disk(), world.to, world.nodes, "n0", JUDGE, owner=OWNER).why.startswith(
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
        there = Path(publish.published_path(world.to.to, "last", "r-1"))
        assert there.name in ("last", replace.alias("last", "r-1"))
        assert {path: path.read_bytes() for path in final.rglob("*") if path.is_file()} == before
    free = Path(world.to.to, replace.alias("last", "r-1"))
    assert (free / "a").read_bytes() == b"3"
    assert manifest.read(str(free)) is not None


def test_a_later_start_is_never_replaced_by_an_earlier_one(tmp_path: Path) -> None:
    """What an earlier start still had to publish comes too late: refused for good, and the later one stays."""
    world = Again(tmp_path)
    world.save(FILE)
    world.to = world.to._replace(token="0.2")
    world.seals["n0"] = world.seals["n0"]._replace(token="0.2")
    push = {"owner": OWNER, "pace": _at_once}
    publish.push(Disk(), world.to, world.seals["n0"], str(world.source("n0")), **push)  # type: ignore[arg-type]
    assert publish.finish(Disk(), world.to, ["n0"], "n0", JUDGE, owner=OWNER).state == publish.PUBLISHED
    world.to = world.to._replace(token="0.1")
    world.save(NEWER_FILE)
    publish.push(Disk(), world.to, world.seals["n0"], str(world.source("n0")), **push)  # type: ignore[arg-type]
    outcome = publish.finish(Disk(), world.to, ["n0"], "n0", JUDGE, owner=OWNER)
    assert outcome == publish.Outcome(
        publish.REFUSED, f"{world.to.final} was saved by a later start", for_good=True
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
    assert (Path(world.to.to, replace.alias("step-5", "r-1")) / "a").read_bytes() == b"ONE!"


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
    own = replace.alias(name, "train.sh-step-77")
    assert records.is_set_name(own)
    assert own.endswith(ending)
    assert names.step_of(own) == names.step_of(name)
    assert own != replace.alias(name, "train.sh-step-78") != name


def test_a_file_of_the_users_is_never_taken_for_ours(tmp_path: Path) -> None:
    """It lies under the name and holds the same bytes: it gets no manifest of ours, and stays when the next save comes."""
    world = Again(tmp_path)
    (tmp_path / "shared" / "last").write_bytes(FILE["n0"][""])
    for save in (FILE, NEWER_FILE):
        world.save(save)
        world.publish()
    assert (tmp_path / "shared" / "last").read_bytes() == FILE["n0"][""]
    assert Path(world.to.to, replace.alias("last", "r-1")).read_bytes() == NEWER_FILE["n0"][""]
    assert not Path(f"{world.to.final}{manifest.MANIFEST}").exists()
