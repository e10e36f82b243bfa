"""Decides what occupies the name of a staged set, and replaces it by a newer save. (I/O)

Only a set that this run published and nobody touched since is replaced, and only by a save of the same start
or a later one. Anything else stays, and the set gets a free name (`alias_of`). The manifest of a set names its
run. At every moment a reader finds the complete old set or the complete new one, and a manifest that fits it:

- A folder is exchanged atomically for the new one, which has its manifest and marker already (renameat2(2)).
- On a file system without such an exchange a name without a step (`last`, `best`) is a link to a folder in
  `.ftrun-sets`, and the link is replaced atomically. A folder that is there already cannot be replaced, so
  the new set takes the free name.
- A file is renamed over the old one after the old manifest was removed: a file without one is judged by its
  format. The new manifest is written last.

A node first renames the new set to a name of its own, so two nodes never replace with the same set, and the
old set that comes out is never mistaken for the new one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import NamedTuple

from ftrun.hooks.checkpoints import manifest, names
from ftrun.hooks.checkpoints.manifest import Entry, Manifest
from ftrun.hooks.runtime.start_processes import token_of
from ftrun.hooks.staging.copy import Disk, read
from ftrun.hooks.staging.records import Publishing

SETS = ".ftrun-sets"
FREE, OURS, LATER, OTHERS = "free", "ours", "later", "others"
LETTERS = "bcdfghjklmnpqrvw"  # no word for a step can come of them, and no number
SLACK_S = 1.0  # between the clocks that two files of one file system have their times from
MAX_BYTES = 256 << 20


class Own(NamedTuple):
    """Who publishes: the run, its attempt and the start."""

    run: str = ""
    attempt: int = 0
    token: str = ""

    @staticmethod
    def of(owner: bytes, token: str) -> Own:
        """From the content of owner.json."""
        try:
            table = json.loads(owner)
        except (ValueError, RecursionError):
            table = {}
        table = table if isinstance(table, dict) else {}
        attempt = str(table.get("attempt", ""))
        return Own(str(table.get("run", "")), int(attempt) if attempt.isdigit() else 0, token)

    @property
    def by(self) -> Mapping[str, object]:
        """The entry in a manifest."""
        return {"run": self.run, "attempt": self.attempt, "start": self.token} if self.run else {}

    def is_later_than(self, by: Mapping[str, object]) -> bool:
        """Whether this start is later than the one in a manifest of this run."""
        return self.order > _order(by)

    @property
    def order(self) -> tuple[int, int, int]:
        """The order of starts in a run."""
        return _order({"attempt": self.attempt, "start": self.token})


class Occupant(NamedTuple):
    """What is at `path`: one of FREE, OURS (it may be replaced), LATER (of a later start), OTHERS. `why`: in
    words, "" if the path is free. `listed`: its manifest as it is on disk, b"" without one.
    """

    path: str
    state: str
    why: str = ""
    listed: bytes = b""

    @property
    def is_usable(self) -> bool:
        """Whether a set of ours may be put there."""
        return self.state in (FREE, OURS)


class NewSet(NamedTuple):
    """An assembled set that `node` publishes: its path, its manifest, and whether it is one file."""

    data: str
    listed: bytes
    node: str
    is_file: bool


def run_of(run_dir: str) -> str:
    """The identity of a run: its folder's name, which others' may have too, and inode. Raises OSError."""
    return f"{os.path.basename(run_dir.rstrip('/'))}.{os.stat(run_dir).st_ino}"


def alias_of(name: str, run: str) -> str:
    """The alternative to a name that is taken: one for each name and run, with the same step and ending."""
    tag = "of-" + "".join(LETTERS[byte & 15] for byte in hashlib.sha256(run.encode()).digest()[:6])
    stem, dot, ending = name.rpartition(".")
    has_ending = bool(dot and stem) and ending.isalnum() and not ending.isdigit()
    return f"{stem}.{tag}.{ending}" if has_ending else f"{name}.{tag}"


def target_of(disk: Disk, to: Publishing, own: Own, *, is_file: bool) -> Occupant:
    """Where a set may be published: its name, else its alias, else what has the name. Raises OSError."""
    first = occupant_of(to, to.name, own)
    found = first
    for name in (to.name, alias_of(to.name, own.run)):
        found = first if name == to.name else occupant_of(to, name, own)
        if found.state == FREE or (
            found.state == OURS and _may_be_replaced(disk, to, found, is_file=is_file)
        ):
            return found
        if found.state == LATER:
            return found
    return first


def occupant_of(to: Publishing, name: str, own: Own) -> Occupant:
    """What is under a name. Raises OSError."""
    path = f"{to.to}/{name}"
    if not os.path.lexists(path):
        return Occupant(path, FREE)
    sources = [manifest.place_of(path, manifest.MANIFEST)]
    listed = read(sources[0], MAX_BYTES)
    if listed is None and not os.path.isdir(path):  # a file that is being replaced: both manifests are noted
        sources = [f"{to.folder}/{note}" for note in (OLD, NEW)]
    told = [
        (source, found) for source in sources if (found := manifest.parse(read(source, MAX_BYTES) or b""))
    ]
    if not told:
        return Occupant(path, OTHERS, f"{path} is there already, and ftrun did not publish it")
    by = told[0][1].by
    run = str(by.get("run", ""))
    if run != own.run:
        whose = f"run {run}" if run else "another run"
        return Occupant(path, OTHERS, f"{path} is a checkpoint of {whose}", listed or b"")
    if _order(by) > own.order:
        return Occupant(path, LATER, f"{path} was saved by a later start", listed or b"")
    why = [_touched(path, found, source) for source, found in told]
    if all(why):
        return Occupant(path, OTHERS, f"{path} is there already: {why[0]}", listed or b"")
    return Occupant(path, OURS, f"{path} was published before", listed or b"")


def replace(disk: Disk, to: Publishing, there: Occupant, new: NewSet) -> bool:
    """Put a set in the place of what is `there`; False if another node is doing it. Raises OSError."""
    if new.is_file:
        _replace_file(disk, to, there, new)
        return True
    private = f"{to.folder}/swap.{new.node}.{os.getpid()}"
    if os.path.lexists(private):  # left by an earlier process with this pid
        disk.clear(private)
    try:
        disk.rename(new.data, private)
    except FileNotFoundError:
        return False
    # Another node may have moved the set that was assembled here, and a third may be assembling it again.
    marker = read(f"{private}/{manifest.MARKER}", MAX_BYTES)
    if marker != marker_of(new.listed) or not _is_still(private, new.listed):
        disk.clear(private)
        return False
    if os.path.isdir(there.path) and not os.path.islink(there.path):
        if not disk.exchange(private, there.path):
            return False
        if not _is_still(private, there.listed):  # it changed meanwhile
            disk.exchange(private, there.path)
            return False
        disk.settle(to.to)
        disk.clear(private)
        return True
    return _link_to(disk, to, there, new._replace(data=private))


OLD, NEW = "replaced.json", "replacing.json"  # manifests


def _replace_file(disk: Disk, to: Publishing, there: Occupant, new: NewSet) -> None:
    if there.listed:
        disk.put(f"{to.folder}/{OLD}", there.listed, new.node)
    disk.put(f"{to.folder}/{NEW}", new.listed, new.node)
    disk.remove(there.path + manifest.MANIFEST)
    disk.settle(to.to)
    disk.rename(new.data, there.path)
    disk.settle(to.to)


def _is_still(path: str, listed: bytes) -> bool:
    """Whether a folder is still the set that this manifest lists."""
    found, own = manifest.parse(listed), f"{path}/{manifest.MANIFEST}"
    return found is not None and read(own, MAX_BYTES) == listed and not _touched(path, found, own)


def _link_to(disk: Disk, to: Publishing, there: Occupant, new: NewSet) -> bool:
    """Make the name a link to the new set, atomically."""
    sets = f"{to.to}/{SETS}"
    name = os.path.basename(there.path)
    own = f"{name}.{hashlib.sha256(new.listed).hexdigest()[:16]}"
    disk.make(sets)
    old = os.readlink(there.path) if os.path.islink(there.path) else ""
    if os.path.isdir(f"{sets}/{own}"):
        disk.clear(new.data)  # a process died before it was linked
    else:
        disk.rename(new.data, f"{sets}/{own}")
    disk.settle(sets)
    disk.relink(f"{SETS}/{own}", there.path)
    disk.settle(to.to)
    if old.startswith(f"{SETS}/{name}.") and old != f"{SETS}/{own}":
        disk.clear(f"{to.to}/{old}")
    return True


def _may_be_replaced(disk: Disk, to: Publishing, there: Occupant, *, is_file: bool) -> bool:
    """Whether a set of ours can be replaced atomically by one of this kind."""
    if os.path.islink(there.path):
        return not is_file
    if os.path.isdir(there.path) is is_file:
        return False
    return is_file or disk.can_exchange(to.to)


def is_link_wanted(disk: Disk, to: Publishing, there: Occupant) -> bool:
    """Whether a folder at a free place should be a link, because its name will be saved again."""
    if there.state == OURS:
        return os.path.islink(there.path)
    is_once = names.step_of(to.name) is not None and os.path.basename(there.path) == to.name
    return not is_once and not disk.can_exchange(to.to)


def marker_of(listed: bytes) -> bytes:
    """The content of the marker that goes with a manifest."""
    return hashlib.sha256(listed).hexdigest().encode() + b"\n"


def clear_sets(disk: Disk, to: str, own: Own) -> None:
    """Remove sets of earlier starts of this run that no link leads to; raises nothing."""
    try:
        entries = os.listdir(f"{to}/{SETS}")
        linked = {os.readlink(entry.path) for entry in os.scandir(to) if entry.is_symlink()}
    except OSError:
        return
    for entry in entries:
        found = manifest.parse(read(f"{to}/{SETS}/{entry}/{manifest.MANIFEST}", MAX_BYTES) or b"")
        by = found.by if found is not None else {}
        if by.get("run") == own.run and own.is_later_than(by) and f"{SETS}/{entry}" not in linked:
            disk.clear(f"{to}/{SETS}/{entry}")


def _touched(path: str, told: Manifest, listed: str) -> str:
    """How the set at `path` differs from its manifest `listed` by names, sizes, times; "" if it does not."""
    before_s = os.stat(listed).st_mtime + SLACK_S
    files = told.files
    if os.path.isdir(path):
        seen = dict(_stats(path))
    else:
        files = {"": next(iter(files.values()), Entry(-1))}
        seen = {"": os.stat(path)}
    for name, fact in seen.items():
        if name not in files:
            return f"{name} is not what ftrun published"
        if fact.st_size != files[name].size_bytes or fact.st_mtime > before_s:
            return f"{name or os.path.basename(path)} was written since"
    missing = sorted(set(files) - set(seen))
    return f"{missing[0]} was taken away" if missing else ""


def _stats(top: str) -> list[tuple[str, os.stat_result]]:
    found = []
    for where, folders, files in os.walk(top):
        inner = os.path.relpath(where, top)
        for name in files:
            path = name if inner == "." else f"{inner}/{name}"
            # Not manifest and marker, nor the draft of one that a killed process left.
            is_draft = name.startswith("..ftrun-") and name.endswith(".tmp")
            if inner != "." or not (manifest.is_ours(name) or is_draft):
                found.append((path, os.lstat(os.path.join(where, name))))
        links = [os.path.join(where, name) for name in folders if os.path.islink(os.path.join(where, name))]
        found += [(os.path.relpath(path, top), os.lstat(path)) for path in links]
    return found


def _order(by: Mapping[str, object]) -> tuple[int, int, int]:
    attempt = by.get("attempt")
    return (attempt if isinstance(attempt, int) else 0, *(token_of(str(by.get("start", ""))) or (0, 0)))
