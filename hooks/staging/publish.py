"""Publishes a staged set as a checkpoint on the shared file system. (I/O)

Each node copies its own part to a folder beside the checkpoints and writes a record of it. Any node that sees
the records of all may assemble the set and rename it into place. Any node may repeat any step at any time: parts
and sets are named by their content, so no node writes into what another reads. A set gets its final name only
when all of it is synchronised, and its marker last. `replace` decides about an existing checkpoint of that name.

Hard links put the files of all parts into one folder; without such links the files are renamed. A process that
dies after any effect leaves the old complete set or the new one, and the next poll continues.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Callable, NamedTuple, Optional

from ftrun.hooks.checkpoints import manifest, names
from ftrun.hooks.checkpoints.model import Damaged
from ftrun.hooks.runtime.ownership import is_taken
from ftrun.hooks.staging import copy, merge, records, replace
from ftrun.hooks.staging.copy import Disk, read
from ftrun.hooks.staging.records import Publishing, Seal
from ftrun.hooks.staging.replace import NewSet, Own


def link_tree(disk: Disk, to: Publishing, made: merge.MergedSet, parts: Mapping[str, Seal], data: str) -> str:
    """Link all files into one folder. Returns a node whose part is not there, "" if all are."""
    top = os.path.dirname(data)
    folders = {top}
    disk.make(top)
    for path, (one, node) in sorted(made.files.items()):
        target = f"{data}/{path}" if path else data
        source = to.incoming(node, merge.generation(parts[node])) + (f"/{path}" if path else "")
        folder = os.path.dirname(target)
        disk.make(folder)
        while len(folder) > len(top):
            folders.add(folder)
            folder = os.path.dirname(folder)
        try:
            link_file(disk, source, target)
        except FileNotFoundError:
            if not os.path.exists(target):
                return node
        if os.stat(target).st_size != one.size_bytes:
            return node
    for folder in sorted(folders):
        disk.settle(folder)
    return ""


def has_all_files(made: merge.MergedSet, data: str) -> bool:
    """Whether all files are there: a set that another node has just moved cannot be judged."""
    return all(os.path.exists(f"{data}/{path}" if path else data) for path in made.files)


def link_file(disk: Disk, source: str, target: str) -> None:
    """Link a file; rename it on a file system without such links. Raises OSError."""
    if os.path.exists(target):
        return
    try:
        disk.link(source, target)
    except OSError as error:
        if is_taken(error, target):
            return
        # Some file systems have no hard links, or none from folder to folder.
        if error.errno not in (errno.EPERM, errno.EXDEV, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        disk.rename(source, target)


JUDGE_S = 30.0
PUBLISHED, WAITING, REFUSED = "published", "waiting", "refused"

Judge = Callable[[str, bool], str]
"""(path of an assembled set, whether its parts are proven) -> why it is no checkpoint, "" if it is one."""


def seal_check_of(marker: str) -> Judge:
    """The check before publishing: the format must not show damage, and must prove unproven parts."""

    def judge(path: str, is_proven: bool) -> str:
        from ftrun.hooks.checkpoints import find, model
        from ftrun.hooks.checkpoints.inspection import inspect as looked

        own = marker if marker and os.path.exists(os.path.join(path, marker)) else ""
        level = model.RULE
        with contextlib.suppress(Exception):  # a set that cannot be inspected is judged by its writers alone
            seen = looked(
                find.found_at(path), marker=own, now_s=time.time(), before_s=time.monotonic() + JUDGE_S
            )
            if seen.state != model.COMPLETE:
                return f"{seen.state}: {seen.why}"
            level = seen.level
        if is_proven or own or level != model.RULE:
            return ""
        return (
            "not all who wrote it were seen to be done, and nothing about its files says that they are whole"
        )

    return judge


class Outcome(NamedTuple):
    """The result of an attempt to publish: PUBLISHED, WAITING or REFUSED, and why. `for_good`: it is final.
    `is_unsure`: it waits for nodes to confirm that all parts are of one save.
    """

    state: str
    why: str = ""
    for_good: bool = False
    is_unsure: bool = False


def copy_and_publish(
    disk: Disk, to: Publishing, seal: Seal, source: str, *, owner: bytes, pace: copy.Pace
) -> Seal:
    """Copy a sealed part from `source` to the shared file system; returns its seal with all checksums.
    `owner`: the content of owner.json. Raises OSError; copy.Changed if the part is not as it was sealed.
    """
    own = merge.generation(seal)
    target = to.incoming(seal.node, own)
    disk.make(to.parts)
    if not os.path.exists(to.owner):
        disk.put(to.owner, owner, seal.node)
    disk.make(os.path.dirname(target))
    folders = {os.path.dirname(target)}
    files = {}
    for path, one in sorted(seal.files.items()):
        inside = f"{target}/{path}" if path else target
        disk.make(os.path.dirname(inside))
        folders.add(os.path.dirname(inside))
        summed = _bring_file(disk, f"{source}/{path}" if path else source, inside, one, pace)
        files[path] = one._replace(sha256=summed)
    for folder in sorted(folders):
        disk.settle(folder)
    whole = seal._replace(files=files)
    disk.put(to.part(seal.node), records.seal_json(whole).encode(), seal.node)
    return whole


def report_empty(disk: Disk, to: Publishing, node: str, owner: bytes, *, proven: bool = True) -> None:
    """Report that this node has nothing of a set; not `proven` if a part may still come. Raises OSError."""
    nothing = Seal(to.name, to.token, node, {}, proven=proven)
    copy_and_publish(disk, to, nothing, "", owner=owner, pace=lambda _size: None)


def _bring_file(disk: Disk, source: str, target: str, one: records.File, pace: copy.Pace) -> str:
    """Copy one file atomically; returns its checksum."""
    with contextlib.suppress(FileNotFoundError):
        if os.stat(target).st_size == one.size_bytes:  # copied before a restart; its sum may be unknown
            return one.sha256 or copy.digest(source, one.size_bytes, one.mtime_ns, pace)
    # A partner may copy the same file at the same time, and its name may already have the greatest length.
    writer = f"{os.uname().nodename}.{os.getpid()}"
    draft = f"{os.path.dirname(target)}/.{hashlib.sha256(os.fsencode(target)).hexdigest()[:16]}.{writer}.tmp"
    disk.effect(f"copy {draft}")
    try:
        found = copy.copy(source, draft, one.size_bytes, one.mtime_ns, pace)
        if one.sha256 and one.sha256 != found:
            raise copy.Changed(f"{source} is not what was sealed")
    except (OSError, copy.Changed):
        with contextlib.suppress(OSError):
            os.unlink(draft)  # a full disk needs the room
        raise
    disk.rename(draft, target)
    return found


def finish(
    disk: Disk, to: Publishing, expected: Sequence[str], node: str, judge: Judge, *, owner: bytes = b"{}"
) -> Outcome:
    """Publish a set if all its parts are there; `owner` as in `copy_and_publish`. Raises OSError."""
    own = Own.of(owner, to.token)
    parts = parts_of(to)
    there = [is_published(to.to, part, owner) for part in parts.values() if part.files]
    if all(there) and (there or _is_left_over(to, parts)):
        _clear(disk, to, node)  # left unfinished, or made again by a late node
        return Outcome(PUBLISHED)
    made = merge.merge_parts(parts, expected)
    if made.why:
        return Outcome(REFUSED, made.why)
    if not made.is_whole():
        missing = ", ".join(made.missing[:4]) + (", ..." if len(made.missing) > 4 else "")
        return Outcome(WAITING, f"for the parts of {missing}" if made.missing else "nothing of it is there")
    for name in (to.name, replace.alias_of(to.name, own.run)):
        listed = _listed(name, made, parts, own)
        if _is_there(to, f"{to.to}/{name}", made, listed):
            new = NewSet(to.data(made.key), listed, node, made.is_file)
            return _conclude(disk, to, f"{to.to}/{name}", made, new)
    place = replace.target_of(disk, to, own, is_file=made.is_file)
    if not place.is_usable:
        return Outcome(REFUSED, place.why, for_good=True)
    silent = (
        merge.unconfirmed_nodes(disk, to, parts, node) if place.state != replace.FREE or made.is_again else ()
    )
    if silent:
        why = f"for the word of {', '.join(silent[:4])} that it is the same save"
        return Outcome(WAITING, why, is_unsure=True)
    new = NewSet(
        to.data(made.key), _listed(os.path.basename(place.path), made, parts, own), node, made.is_file
    )
    return _publish(disk, _Making(to, made, parts, new), place, judge)


class _Making(NamedTuple):
    """A set that is being published."""

    to: Publishing
    made: merge.MergedSet
    parts: Mapping[str, Seal]
    new: NewSet


def _is_left_over(to: Publishing, parts: Mapping[str, Seal]) -> bool:
    """Whether only reports of nodes that have nothing are left of a published set."""
    if not os.path.lexists(to.final):
        return False
    with contextlib.suppress(FileNotFoundError):
        return all(name.rpartition(".")[0] in parts for name in os.listdir(f"{to.folder}/incoming"))
    return True


def _publish(disk: Disk, making: _Making, place: replace.Occupant, judge: Judge) -> Outcome:
    """Assemble and judge a set, and move it into place."""
    to, made, parts, new = making
    lost = link_tree(disk, to, made, parts, new.data)
    if lost:
        if not _is_there(to, place.path, made, new.listed):
            disk.remove(to.part(lost))  # its node copies it again
        return Outcome(WAITING, f"for the part of {lost} again")
    # The node that wrote its manifest had judged it; with a manifest and no marker it would be judged torn.
    is_judged = not made.is_file and read(f"{new.data}/{manifest.MANIFEST}") == new.listed
    why = "" if is_judged else judge(new.data, made.is_proven)
    if why and (_is_there(to, place.path, made, new.listed) or not has_all_files(made, new.data)):
        return Outcome(WAITING, "another node is at it")  # it moved what was judged
    if why:
        return Outcome(REFUSED, why)
    if place.state == replace.FREE and made.is_file:
        disk.put(f"{to.folder}/{replace.NEW}", new.listed, new.node)
        with contextlib.suppress(FileNotFoundError):
            link_file(disk, new.data, place.path)
        disk.settle(to.to)
    elif place.state == replace.FREE and not replace.is_link_wanted(disk, to, place):
        _place(disk, to, place.path, new)
    elif not _replace(disk, making, place):
        return Outcome(WAITING, "another node is at it")
    return _conclude(disk, to, place.path, made, new)


def _replace(disk: Disk, making: _Making, place: replace.Occupant) -> bool:
    """Replace an older set by a newer one; False if another node does, or the parts are outdated."""
    to, made, _, new = making
    if not made.is_file:
        disk.put(f"{new.data}/{manifest.MANIFEST}", new.listed, new.node)
        disk.put(f"{new.data}/{manifest.MARKER}", replace.marker_of(new.listed), new.node)
    if merge.merge_parts(parts_of(to), ()).key != made.key:
        return False
    return replace.replace(disk, to, place, new)


def _is_there(to: Publishing, path: str, made: merge.MergedSet, listed: bytes) -> bool:
    """Whether this set is at `path`, with or without its marker."""
    if not os.path.lexists(path):
        return False
    known = read(manifest.place_of(path, manifest.MANIFEST))
    if known is not None:
        return known == listed
    # A file gets its name before its manifest, and a late node may have removed the manifest.
    is_noted = read(f"{to.folder}/{replace.NEW}") == listed
    is_marked = read(path + manifest.MARKER) == replace.marker_of(listed)
    if not (made.is_file and os.path.isfile(path) and (is_noted or is_marked)):
        return False
    one, _ = made.files[""]
    return os.path.getsize(path) == one.size_bytes and manifest.sha256(path) == one.sha256


def _listed(name: str, made: merge.MergedSet, parts: Mapping[str, Seal], own: Own) -> bytes:
    """The manifest of a set under this name; every node makes the same bytes."""
    files = {
        path or name: manifest.Entry(one.size_bytes, one.sha256) for path, (one, _) in made.files.items()
    }
    # One node is enough for a single file, so the nodes that have it differ from look to look.
    nodes = [] if made.is_file else sorted(name for name, part in parts.items() if part.files)
    return manifest.content(manifest.Manifest(files, names.step_of(name), None, nodes, by=own.by))


def _place(disk: Disk, to: Publishing, final: str, new: NewSet) -> None:
    """Rename an assembled set to its final name, unless that name is taken or another node has moved it."""
    disk.put(f"{new.data}/{manifest.MANIFEST}", new.listed, new.node)
    if os.path.lexists(final):
        return
    try:
        disk.rename(new.data, final)
    except OSError as error:
        if not is_taken(error, final) and error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
    disk.settle(to.to)


def _conclude(disk: Disk, to: Publishing, final: str, made: merge.MergedSet, new: NewSet) -> Outcome:
    """If this set is under its final name, mark it and clear up; otherwise it must be looked at again."""
    if not _is_there(to, final, made, new.listed):
        return Outcome(WAITING, "another node is at it")
    line = replace.marker_of(new.listed)
    at = f"{final}/" if os.path.isdir(final) else final
    # The marker of a file comes first: a manifest without one would say that the file is torn.
    if read(at + manifest.MARKER) != line:
        disk.put(at + manifest.MARKER, line, new.node)
    if read(at + manifest.MANIFEST) != new.listed:
        disk.put(at + manifest.MANIFEST, new.listed, new.node)
    _clear(disk, to, new.node)
    return Outcome(PUBLISHED)


def _clear(disk: Disk, to: Publishing, node: str) -> None:
    """Remove a pending set; it is renamed first, so that no reader finds half of it."""
    gone = f"{to.to}/{records.PUBLISHING}/.gone.{os.path.basename(to.folder)}.{node}.{time.time_ns()}"
    with contextlib.suppress(FileNotFoundError):
        disk.rename(to.folder, gone)
        disk.clear(gone)


def pending(to: str, job: str) -> list[Publishing]:
    """The pending sets of a job. Raises OSError."""
    try:
        entries = os.listdir(f"{to}/{records.PUBLISHING}")
    except FileNotFoundError:
        return []
    found = (Publishing.of(to, name) for name in sorted(entries))
    return [one for one in found if one is not None and one.job == job]


def has_part(to: Publishing, node: str) -> bool:
    """Whether a node's part is there, or its report that it has none."""
    return os.path.exists(to.part(node))


def nodes_with_parts(to: Publishing) -> set[str]:
    """The nodes with a part or report, by the names of the records alone."""
    with contextlib.suppress(FileNotFoundError):
        return {
            name[:-5] for name in os.listdir(to.parts) if name.endswith(".json") and not name.startswith(".")
        }
    return set()


def part_of(to: Publishing, node: str) -> Optional[Seal]:
    """The part of a node; None if it is not there or its record is invalid."""
    text = read(to.part(node))
    seal = records.read_seal(text.decode("utf-8", "surrogateescape")) if text else None
    if seal is None or not seal.has_sums:
        return None
    return seal if (seal.name, seal.token, seal.node) == (to.name, to.token, node) else None


def parts_of(to: Publishing) -> dict[str, Seal]:
    """The parts of a set by node."""
    found = ((node, part_of(to, node)) for node in nodes_with_parts(to))
    return {node: seal for node, seal in found if seal is not None}


def is_published(to: str, seal: Seal, owner: bytes = b"{}") -> Optional[bool]:
    """Whether a part with checksums is in the published set of its name; `owner` as in `copy_and_publish`.
    False if another save of this run is published there, None if no save is. Raises OSError.
    """
    run, found = Own.of(owner, seal.token).run, None
    for name in (seal.name, replace.alias_of(seal.name, run)):
        try:
            there = manifest.read(f"{to}/{name}")
        except Damaged:
            continue  # its marker is still to come
        if there is None or there.by.get("run", "") != run:
            continue  # nothing, a file without its manifest yet, or another run's, which may go any time
        own = {path or name: (one.size_bytes, one.sha256) for path, one in seal.files.items()}
        if all(path in there.files and tuple(there.files[path]) == facts for path, facts in own.items()):
            return True
        found = False
    return found


def published_path(to: str, name: str, run: str, since_s: float = 0.0) -> str:
    """Where this run published a set since `since_s` (Unix seconds); "" for nowhere. Raises OSError."""
    for one in (name, replace.alias_of(name, run)):
        with contextlib.suppress(Damaged):
            there = manifest.read(f"{to}/{one}")
            is_ours = there is not None and there.by.get("run", "") == run
            if there is not None and is_ours and there.written_s + replace.SLACK_S >= since_s:
                return f"{to}/{one}"
    return ""


def clear_gone(
    disk: Disk, to: str, run: str, is_over: Callable[[Mapping[str, object], Publishing], bool]
) -> None:
    """Finish interrupted removals, and remove pending sets of earlier starts of this run; raises nothing.
    `is_over(owner, set)` decides by the owner.json of a set.
    """
    with contextlib.suppress(OSError):
        for name in os.listdir(f"{to}/{records.PUBLISHING}"):
            path = f"{to}/{records.PUBLISHING}/{name}"
            one = Publishing.of(to, name)
            if name.startswith(".gone.") or (one is not None and is_over(_owner(path, run), one)):
                disk.clear(path)


def clear_job(disk: Disk, to: str, job: str, node: str) -> None:
    """Remove the pending sets of a job that is over; raises nothing."""
    with contextlib.suppress(OSError):
        for one in pending(to, job):
            _clear(disk, one, node)


def _owner(path: str, run: str) -> Mapping[str, object]:
    """The owner.json of a set; empty if it belongs to another run, or cannot be read."""
    try:
        owner = json.loads((read(f"{path}/owner.json") or b"{}").decode("utf-8", "replace"))
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) and owner.get("run") == run else {}
