"""Compile caches of a run: what travels is whole or does not travel, and it stays within its limits."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.hooks.compile_cache import exchange
from ftrun.hooks.compile_cache import node as compile_cache_node
from ftrun.hooks.compile_cache.node import Index
from tests.unit.cache_nodes import ENTRIES, FOREVER_S, Node, elf


def test_what_one_node_compiled_another_one_has_before_its_start(tmp_path: Path) -> None:
    """Every entry arrives byte for byte, in one file, with the times by which frameworks and we know it."""
    first, second = Node(tmp_path, "n1"), Node(tmp_path, "n2")
    first.compile(ENTRIES)

    first.give()

    assert second.take() == []
    assert second.has() == first.has() == ENTRIES
    assert len(first.packs()) == 1
    assert [
        p
        for p, fact in compile_cache_node.list_entries(str(second.local))
        if fact.st_mtime_ns != os.stat(first.local / p).st_mtime_ns
    ] == []


def test_a_node_gives_only_what_nobody_gave(tmp_path: Path) -> None:
    """The second node with the same code writes nothing at all; one with an entry of its own writes that."""
    nodes = [Node(tmp_path, f"n{n}", leads=n == 1) for n in (1, 2, 3)]
    for node in nodes:
        node.compile(ENTRIES)
    nodes[2].compile({"inductor/zz/czz.main.so": elf()})

    told = [node.give()["given"] for node in nodes]

    assert told == [len(ENTRIES), 0, 1]
    assert len(nodes[0].packs()) == 2


def test_what_was_filled_in_is_not_given_again(tmp_path: Path) -> None:
    """Attempt after attempt the packs stay as they are."""
    first, second = Node(tmp_path, "n1"), Node(tmp_path, "n2")
    first.compile(ENTRIES)
    first.give()
    second.take()

    assert second.give()["given"] == 0


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("inductor/ab/cab.main.so", elf()[:1000]),
        ("inductor/ab/cab.main.so", elf()[:-128] + bytes(128)),
        ("inductor/ab/cab.main.so", b""),
        ("inductor/fxgraph/k2/fk2/wd6", b"\x80\x04K"),
        ("triton/h1/__grp__kernel.json", b'{"child_pa'),
        ("triton/h1/kernel.cubin", bytes(2048)),
        ("jax/jit_net-12ab-cache", zlib.compress(b"a program" * 50)[:-3]),
        ("jax/jit_net-34cd-cache", zstandard.compress(b"a program" * 50)[:-3]),
    ],
)
def test_what_a_killed_compiler_left_is_neither_given_nor_started_with(
    tmp_path: Path, path: str, content: bytes
) -> None:
    """An entry that is cut stays on its node, with what belongs to it, and is removed before the next start."""
    node = Node(tmp_path, "n1")
    node.compile({**ENTRIES, path: content})

    node.give()
    torn = compile_cache_node.remove_torn(node.where, Index(0, "c", {}), FOREVER_S)

    assert [line.partition(":")[0] for line in torn] == [path]
    assert not (node.local / path).exists()
    other = Node(tmp_path, "n2")
    other.take()
    assert path not in other.has()
    assert len(other.has()) >= len(ENTRIES) - 2


def test_no_whole_entry_is_taken_for_torn(tmp_path: Path) -> None:
    """What real frameworks write stays."""
    node = Node(tmp_path, "n1")
    node.compile(ENTRIES)

    assert compile_cache_node.remove_torn(node.where, node.index, FOREVER_S) == []


@settings(max_examples=60, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), harm=st.binary(max_size=64))
def test_whatever_hits_a_pack_a_node_gets_whole_entries_or_none(
    tmp_path_factory: pytest.TempPathFactory, where: float, harm: bytes
) -> None:
    """Cut anywhere, overwritten anywhere: what arrives is what was given, and the rest is named."""
    folder = tmp_path_factory.mktemp("pack")
    first, second = Node(folder, "n1"), Node(folder, "n2")
    first.compile(ENTRIES)
    first.give()
    (pack,) = first.packs()
    content = bytearray(pack.read_bytes())
    at = int(where * len(content))
    content[at : at + len(harm) if harm else None] = harm
    pack.write_bytes(content)

    trouble = second.take()

    arrived = second.has()
    assert {path: ENTRIES[path] for path in arrived} == arrived
    assert trouble or arrived == ENTRIES
    assert not any(
        name.name.startswith(".") and name.is_file()
        for name in second.local.rglob("*")
        if "index" not in name.name
    )


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=400))
def test_what_is_no_index_counts_as_none(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """A torn index costs a look at the packs, never a start."""
    node = Node(tmp_path_factory.mktemp("index"), "n1")
    node.compile(ENTRIES)
    (node.local / compile_cache_node.INDEX).write_bytes(content)

    assert compile_cache_node.load_index(node.where, "c").packs == {}


def test_a_damaged_pack_is_replaced_by_the_leader(tmp_path: Path) -> None:
    """What can still be read of the packs is put into one; what nobody has any more is compiled again."""
    first = Node(tmp_path, "n1")
    first.compile({"jax/a-cache": ENTRIES["jax/jit_net-12ab-cache"]})
    first.give()
    (damaged,) = first.packs()
    first.compile({"jax/b-cache": ENTRIES["jax/jit_net-12ab-cache"]})
    first.give()
    damaged.write_bytes(b"ftrun-cache 1 7 ")
    newcomer = Node(tmp_path, "n2")

    told = newcomer.give()

    assert told["damaged"]
    assert [one.name for one in newcomer.packs()] != []
    assert newcomer.take() == []
    assert list(newcomer.has()) == ["jax/b-cache"]


def test_many_packs_become_one_and_keep_all_entries(tmp_path: Path) -> None:
    """A node that comes later reads one file."""
    node = Node(tmp_path, "n1")
    for number in range(exchange.PACKS_MAX + 1):
        node.compile({f"jax/{number}-cache": zlib.compress(b"%d" % number)})
        node.give()

    node.give()

    assert len(node.packs()) == 1
    other = Node(tmp_path, "n2")
    other.take()
    assert len(other.has()) == exchange.PACKS_MAX + 1


def test_what_cannot_be_read_at_all_stops_nothing(tmp_path: Path) -> None:
    """Where one pack answers with an error, the others are taken, and a node can still give."""
    first, second = Node(tmp_path, "n1"), Node(tmp_path, "n2")
    first.compile(ENTRIES)
    first.give()
    (first.run / "caches" / "c" / "9999999999999-00.pack").mkdir()

    trouble = second.take()
    second.compile({"jax/own-cache": ENTRIES["jax/jit_net-12ab-cache"]})

    assert len(trouble) == 1
    assert second.has().keys() >= ENTRIES.keys()
    assert second.give()["given"] == 1


def test_a_thousand_nodes_with_entries_of_their_own_leave_no_thousand_packs(tmp_path: Path) -> None:
    """All but the first wait once there are many; the first puts them into one, and the others come then."""
    leader = Node(tmp_path, "n0")
    leader.compile(ENTRIES)
    leader.give()
    others = [Node(tmp_path, f"n{number}", leads=False) for number in range(1, 100)]
    for other in others:
        other.compile({f"jax/{other.name}-cache": zlib.compress(other.name.encode())})
        other.give()
    crowd = len(leader.packs())

    leader.give()
    given = sum(int(str(other.give()["given"])) for other in others)

    assert crowd <= exchange.CROWD + 1
    assert given == len(others) - (crowd - 1)
    assert len(leader.packs()) <= exchange.CROWD


def test_the_oldest_entries_go_first_when_the_limit_is_reached(tmp_path: Path) -> None:
    """The packs stay below the limit, and what was compiled last stays."""
    node = Node(tmp_path, "n1", limit_bytes=100_000)
    for number in range(20):
        node.compile({f"jax/{number:02}-cache": zlib.compress(os.urandom(9_000))})
        node.give()

    other = Node(tmp_path, "n2")
    other.take()
    assert sum(one.stat().st_size for one in node.packs()) <= 100_000
    assert "jax/19-cache" in other.has()
    assert "jax/00-cache" not in other.has()


def test_entries_of_a_framework_that_was_replaced_are_dropped(tmp_path: Path) -> None:
    """A newer version answers to other names: what the older one wrote only takes room."""
    node = Node(tmp_path, "n1")
    node.compile({"inductor/aa/a.py": b"old\n", "jax/a-cache": zlib.compress(b"a")})
    node.give(torch="2.8.0", jax="0.5")
    for number in range(exchange.PACKS_MAX + 1):
        node.compile({f"inductor/bb/{number}.py": b"new\n"})
        node.give(torch="2.9.0", jax="0.5")

    node.give(torch="2.9.0", jax="0.5")

    other = Node(tmp_path, "n2")
    other.take()
    assert "inductor/aa/a.py" not in other.has()
    assert "jax/a-cache" in other.has()


def test_a_file_that_is_still_written_to_waits(tmp_path: Path) -> None:
    """Neither it nor what lies in the same unit is given."""
    node = Node(tmp_path, "n1")
    node.compile({"triton/h1/a.json": b"{}"})
    node.compile({"triton/h1/b.json": b"{}"}, age_s=0.0)

    assert node.give()["given"] == 0


def test_hits_are_the_entries_that_were_read_since_they_came(tmp_path: Path) -> None:
    """Where the file system keeps the time of reading, it is known what a warm start used."""
    first, second = Node(tmp_path, "n1"), Node(tmp_path, "n2")
    first.compile(ENTRIES)
    first.give()
    second.take()
    before = compile_cache_node.summary(second.where, second.index)["hits"]
    (second.local / "inductor/ab/cab.main.so").read_bytes()

    after = compile_cache_node.summary(second.where, second.index)["hits"]

    assert (before, after) in {(0, 1), (None, None)}
    assert compile_cache_node.summary(first.where, first.index)["hits"] in {
        0,
        None,
    }  # what it compiled itself
