"""Nodes that share the compile caches of a run, without Slurm: what tests of caches are made of."""

from __future__ import annotations

import os
import struct
import time
import zlib
from pathlib import Path

import zstandard

from ftrun.hooks.compile_cache import exchange
from ftrun.hooks.compile_cache import node as compile_cache_node
from ftrun.hooks.compile_cache.node import Index, Location

FOREVER_S = 1e12
LIMIT_BYTES = 64 << 20


def elf(size: int = 4096) -> bytes:
    """The skeleton of a 64-bit shared library: header, filling, and a table of two sections at its end."""
    at = size - 2 * 64
    head = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, at, 0, 64, 0, 0, 64, 2, 1)
    )
    return head + b"x" * (at - len(head)) + bytes(64) + struct.pack("<II", 1, 3) + bytes(56)


ENTRIES = {
    "inductor/ab/cab.main.so": elf(),
    "inductor/ab/cab.main.cpp": b"int main;\n",
    "inductor/fxgraph/k2/fk2/wd6": b"\x80\x04K\x01.",
    "triton/h1/kernel.cubin": elf(2048),
    "triton/h1/__grp__kernel.json": b'{"child_paths": {}}',
    "jax/jit_net-12ab-cache": zlib.compress(b"a program" * 50),
    "jax/jit_net-34cd-cache": zstandard.compress(b"a program" * 50),
    "mindspore/rank_0/graph_cache/compile_cache_0.mindir": b"a graph",
}


class Node:
    """A node of a run: its folder, and what it would be told."""

    def __init__(
        self, folder: Path, name: str, *, leads: bool = True, limit_bytes: int = LIMIT_BYTES
    ) -> None:
        self.name, self.leads = name, leads
        self.run = folder / "run"
        self.local = folder / f"ftrun-cache-{name}"
        (self.run / "caches").mkdir(parents=True, exist_ok=True)
        self.where = Location(str(self.local), limit_bytes, str(self.run / "caches"), 0)
        self.index = Index(0, "c", {})
        compile_cache_node.ensure_private(str(self.local))

    def compile(self, entries: dict[str, bytes], age_s: float = 60.0) -> None:
        """What a framework leaves."""
        for path, content in entries.items():
            whole = self.local / path
            whole.parent.mkdir(parents=True, exist_ok=True)
            whole.write_bytes(content)
            os.utime(whole, (time.time() - age_s,) * 2)

    def give(self, **writers: str) -> dict[str, object]:
        """Merge into the run's packs."""
        contributor = exchange.Contributor(
            self.name, self.leads, writers, {"arch": "x"}, time.time(), FOREVER_S
        )
        self.index, told = exchange.merge(self.where, self.index, contributor)
        return told

    def take(self) -> list[str]:
        """Fill from them; what went wrong."""
        self.index, trouble = exchange.fill(self.where, self.index, FOREVER_S)
        return trouble

    def has(self) -> dict[str, bytes]:
        """The entries that lie here."""
        return {
            path: (self.local / path).read_bytes()
            for path, _ in compile_cache_node.list_entries(str(self.local))
        }

    def packs(self) -> list[Path]:
        """The packs of the run."""
        return sorted((self.run / "caches" / "c").glob("*.pack"))


def attempt_of(node: Node) -> Path:
    """The folder `nodes` of an attempt whose starts are told of the node's folder."""
    nodes = node.run / "attempts" / "2" / "nodes"
    nodes.mkdir(parents=True)
    (node.run / "caches" / "where").write_text(f"{LIMIT_BYTES} {node.local}\n")
    return nodes
