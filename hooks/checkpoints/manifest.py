"""ftrun's own list of a checkpoint's files, and the marker that completes it. (I/O)

`.ftrun-manifest.json` names every file with its size and, if known, its SHA-256; `.ftrun-complete` is written
last and has the SHA-256 of the manifest. For a checkpoint that is one file NAME both are beside it as
NAME.ftrun-manifest.json and NAME.ftrun-complete. Without its marker a manifest does not count.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from ftrun.hooks.checkpoints.listing import Tree, read_chunks, read_part
from ftrun.hooks.checkpoints.model import TORN, UNREADABLE, Damaged

MANIFEST = ".ftrun-manifest.json"
MARKER = ".ftrun-complete"
VERSION = 1
READ_BYTES_MAX = 256 << 20


class Entry(NamedTuple):
    """One file: its size, and its SHA-256 in hexadecimal digits ("": unknown)."""

    size_bytes: int
    sha256: str = ""


class Manifest(NamedTuple):
    """The files of a checkpoint by path; its step, and the processes and nodes that wrote it, if known. `by`:
    the run, attempt and start that published a staged set.
    """

    files: Mapping[str, Entry]
    step: Optional[int] = None
    world: Optional[int] = None
    nodes: Sequence[str] = ()
    written_s: float = 0.0
    by: Mapping[str, object] = {}


def is_ours(name: str) -> bool:
    """Whether a file of this name is a manifest or a marker of ftrun."""
    return name.endswith((MANIFEST, MARKER))


def content(manifest: Manifest) -> bytes:
    """The manifest as JSON; equal facts give equal bytes."""
    files = {
        name: {"size_bytes": entry.size_bytes, **({"sha256": entry.sha256} if entry.sha256 else {})}
        for name, entry in sorted(manifest.files.items())
    }
    facts = {
        "version": VERSION,
        "step": manifest.step,
        "world": manifest.world,
        "nodes": list(manifest.nodes),
        "files": files,
        **({"by": dict(manifest.by)} if manifest.by else {}),
    }
    return (json.dumps(facts, sort_keys=True) + "\n").encode()


def write(checkpoint: str, manifest: Manifest) -> None:
    """Write the manifest durably; readers use it once `write_marker` was called. Raises OSError."""
    _replace_file(place_of(checkpoint, MANIFEST), content(manifest))


def write_marker(checkpoint: str) -> None:
    """Write the marker of the present manifest durably. Raises OSError."""
    digest = hashlib.sha256(read_part(place_of(checkpoint, MANIFEST), 0, READ_BYTES_MAX)).hexdigest()
    _replace_file(place_of(checkpoint, MARKER), f"{digest}\n".encode())


def read(checkpoint: str) -> Optional[Manifest]:
    """The manifest of a checkpoint; None without one. Raises Damaged if its marker does not fit, OSError. A
    published set with a manifest and no marker is incomplete. A manifest that a user had made for a complete
    checkpoint does not count without its marker.
    """
    path = place_of(checkpoint, MANIFEST)
    try:
        text = read_part(path, 0, READ_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return None
    name = os.path.basename(path)
    try:
        marker = read_part(place_of(checkpoint, MARKER), 0, 200).decode("ascii", "replace").strip()
    except FileNotFoundError:
        if _is_a_persons(text):
            return None
        why = f"{name} is there and its marker is not: it was not published to the end"
        raise Damaged(TORN, why) from None
    if marker != hashlib.sha256(text).hexdigest():
        raise Damaged(TORN, f"{name} is not the one that its marker was made for")
    found = parse(text, os.stat(path).st_mtime)
    if found is None:
        raise Damaged(TORN, f"{name} cannot be read")
    return found


def of_tree(tree: Tree, step: Optional[int], *, sums: bool) -> Manifest:
    """The manifest of the present files; `sums` reads every byte. Raises OSError."""
    files = {
        name: Entry(fact.size_bytes, sha256(tree.at(name)) if sums else "")
        for name, fact in tree.files.items()
        if not is_ours(name)
    }
    return Manifest(files, step)


def sha256(path: str) -> str:
    """The SHA-256 of a file in hexadecimal digits. Raises OSError."""
    digest = hashlib.sha256()
    for piece in read_chunks(path):
        digest.update(piece)
    return digest.hexdigest()


def _is_a_persons(text: bytes) -> bool:
    """Whether a user had it made: it names no nodes."""
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(facts, dict) and not facts.get("nodes") and not facts.get("by")


def parse(text: bytes, written_s: float = 0.0) -> Optional[Manifest]:
    """The manifest in its text; None if it is invalid."""
    try:
        facts = json.loads(text)
        if facts["version"] != VERSION:
            return None
        rows = facts["files"].items()
        files = {name: Entry(int(row["size_bytes"]), str(row.get("sha256", ""))) for name, row in rows}
    except UNREADABLE:
        return None
    step, world = facts.get("step"), facts.get("world")
    nodes, by = facts.get("nodes") or [], facts.get("by")
    return Manifest(
        files,
        step if isinstance(step, int) else None,
        world if isinstance(world, int) else None,
        tuple(str(node) for node in nodes) if isinstance(nodes, list) else (),
        written_s,
        by if isinstance(by, dict) else {},
    )


def place_of(checkpoint: str, name: str) -> str:
    """The path of MANIFEST or MARKER of a checkpoint."""
    return os.path.join(checkpoint, name) if os.path.isdir(checkpoint) else checkpoint + name


def _replace_file(path: str, written: bytes) -> None:
    """Replace a file atomically and durably."""
    folder = os.path.dirname(path)
    number, draft = tempfile.mkstemp(prefix=".ftrun-", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(number, "wb") as stream:
            stream.write(written)
            stream.flush()
            os.fchmod(number, 0o644)
            os.fsync(number)
        os.replace(draft, path)
    except OSError:
        os.unlink(draft)
        raise
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
