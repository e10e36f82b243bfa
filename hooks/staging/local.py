"""The parts that a script saves in this node's memory: which are sealed, and which are dropped. (I/O)

It accesses only this node's memory, so a shared file system that hangs never delays a seal. Seals are files,
so a restarted daemon continues. The seal of a part that changes is taken back: a rank was late, or the script
saves again under this name, and unchanged files may remain from the previous save.

A published part only makes a resume faster: `--keep` of them stay, fewer if room is short. An unpublished part
is dropped only if room is short, the oldest first. The newest part always stays.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Optional

from ftrun.hooks.runtime import procfs
from ftrun.hooks.runtime.procfs import Writer
from ftrun.hooks.runtime.start_processes import token_of
from ftrun.hooks.staging import inventory, records, sealing
from ftrun.hooks.staging.inventory import own_parts, remove
from ftrun.hooks.staging.records import File, Home, Seal
from ftrun.hooks.staging.sealing import Growth, Marks


class DropCandidate(NamedTuple):
    """A sealed part: its start and name, its size, and whether its set is published."""

    token: str
    name: str
    size_bytes: int
    is_published: bool


def to_drop(
    held: Sequence[DropCandidate], *, keep: int, over_bytes: int, wanted_bytes: int = 0
) -> list[DropCandidate]:
    """The parts to drop, of `held` in order of age, oldest first. `over_bytes`: by how much the node exceeds
    its limit (<= 0: it does not). `wanted_bytes`: how much must go for one more part to fit; only published
    parts are dropped for that.
    """
    published = [one for one in held if one.is_published]
    gone = published[: max(0, len(published) - keep)]
    newest = held[-1:]
    for is_published, aim in ((True, max(over_bytes, wanted_bytes)), (False, over_bytes)):
        for one in held:
            if one.is_published != is_published or one in gone or one in newest:
                continue
            if sum(other.size_bytes for other in gone) < aim:
                gone.append(one)
    return gone


AHEAD = 4
"""Folders are made for so many later starts: a start may begin before this daemon learns of it."""


class LocalPart:
    """One part on this node: its state in words, its seal if it has one, and earlier observations."""

    def __init__(self, token: str, name: str) -> None:
        self.token, self.name = token, name
        self.state, self.why = sealing.WAIT, ""
        self.seal: Optional[Seal] = None
        self.is_published = False
        self.files: Mapping[str, File] = {}
        self.changed_s = 0.0
        self.writers: set[Writer] = set()
        self.before: Mapping[str, File] = {}  # its files when it was sealed last, and the number of that save
        self.save = 0

    @property
    def stale(self) -> int:
        """How many files are unchanged since the previous save; 0 if this is no later save."""
        return sum(self._same) if self.is_again else 0

    @property
    def is_again(self) -> bool:
        """Whether a file that was sealed has been replaced: the name is saved again."""
        return not all(self._same)

    @property
    def _same(self) -> list[bool]:
        """For each file that was sealed and is here, whether it is still the same."""
        return [_is_same(one, self.files[path]) for path, one in self.before.items() if path in self.files]

    @property
    def size_bytes(self) -> int:
        """The size of its files."""
        return sum(one.size_bytes for one in self.files.values())


class StartPhases(NamedTuple):
    """From the publisher: the present start, and the phases of earlier starts as far as known."""

    token: str
    phases: Mapping[str, str]

    def phase(self, token: str) -> str:
        """The recorded phase of a start; without a record it is over if a later one has begun."""
        own, now = token_of(token) or (0, 0), token_of(self.token) or (0, 0)
        return self.phases.get(token, sealing.LIVE if own >= now else sealing.BROKEN)


class LocalState:
    """All parts of this node, by start and name; `look` updates them."""

    def __init__(self, home: Home, node: str) -> None:
        self.home, self.node = home, node
        self.parts: dict[tuple[str, str], LocalPart] = {}
        self.looked_s = 0.0
        self.dropped: list[str] = []
        for one in own_parts(home):
            part = self.parts[one.seal.token, one.seal.name] = LocalPart(one.seal.token, one.seal.name)
            part.seal, part.files, part.state = one.seal, one.seal.files, sealing.SEAL
            part.before, part.save = one.seal.files, one.seal.save
        self._read_before()
        self._drop_unsealed()

    def open_starts(self, token: str) -> None:
        """Make the folders of this start and the next ones. Raises OSError."""
        launch, start = token_of(token) or (0, 1)
        for number in range(start, start + AHEAD):
            os.makedirs(self.home.stage(f"{launch}.{number}"), mode=0o700, exist_ok=True)

    def look(self, now_s: float, told: StartPhases) -> bool:
        """One look at the time `now_s` (monotonic). True if a seal was made or taken back."""
        seen = dict(self._sights())
        for key in [key for key, part in self.parts.items() if key not in seen and part.seal is None]:
            if self.parts[key].before:
                self.parts[key].files = {}  # it is about to be saved again
            else:
                del self.parts[key]  # the script took it away
        unsealed = [key for key in seen if key not in self.parts or self.parts[key].seal is None]
        writing = procfs.open_for_writing(f"{self.home.base}/stage") if unsealed else {}
        changed = False
        for key, files in seen.items():
            part = self.parts.setdefault(key, LocalPart(*key))
            if part.seal is not None:
                changed |= key[0] == told.token and self._check(part, files, now_s)
            else:
                changed |= self._follow(part, files, writing, now_s, told.phase(key[0]))
        self.looked_s = now_s
        return changed

    def is_growing(self) -> bool:
        """Whether a part here may still be sealed."""
        parts = list(self.parts.values())
        return any(part.seal is None and part.files and part.state == sealing.WAIT for part in parts)

    def sealed(self) -> list[LocalPart]:
        """The sealed parts, oldest first."""
        found = [part for part in list(self.parts.values()) if part.seal is not None]
        return sorted(
            found, key=lambda one: (token_of(one.token) or (0, 0), one.seal.sealed_s if one.seal else 0)
        )

    def drop(self, part: LocalPart) -> None:
        """Remove a part from this node's memory, its seal first."""
        if not part.is_published:
            self.dropped.append(part.name)
        if part.seal is not None:
            remove(self.home.seal(part.token, part.name))
        remove(self.home.seal_before(part.token, part.name))
        for path in (self.home.held(part.token, part.name), f"{self.home.stage(part.token)}/{part.name}"):
            remove(path)
        self.parts.pop((part.token, part.name), None)

    def is_still(self, part: LocalPart) -> bool:
        """Whether a sealed part is unchanged and no process writes to a path that contains its name."""
        top = self.home.stage(part.token)
        try:
            writing = procfs.open_for_writing(top)
        except OSError:
            return False
        if any(part.name in path[len(top) :] for path in writing):
            return False
        files = scan_set(f"{top}/{part.name}")
        return part.seal is not None and (not files or _is_within(files, part.seal))

    def note_sums(self, part: LocalPart, seal: Seal) -> None:
        """Store the seal of a part with its checksums. Raises OSError."""
        if part.seal is not None and part.seal != seal:
            self._write_seal(seal)
            part.seal = seal

    def _sights(self) -> Iterator[tuple[tuple[str, str], Mapping[str, File]]]:
        for token in inventory.listed(f"{self.home.base}/stage"):
            if token_of(token) is None:
                continue
            for name in inventory.listed(self.home.stage(token)):
                path = f"{self.home.stage(token)}/{name}"
                files = scan_set(path) if records.is_set(name, is_folder=os.path.isdir(path)) else None
                if files is not None:
                    yield (token, name), files

    def _check(self, part: LocalPart, files: Mapping[str, File], now_s: float) -> bool:
        """Take back the seal of a part that the script has written to; what it only deleted stays held."""
        seal = part.seal
        assert seal is not None
        if not files or _is_within(files, seal):
            return False
        with contextlib.suppress(OSError):
            os.replace(self.home.seal(part.token, part.name), self.home.seal_before(part.token, part.name))
        remove(self.home.held(part.token, part.name))
        part.before, part.save = seal.files, seal.save
        part.seal, part.state, part.changed_s = None, sealing.WAIT, now_s
        part.files, part.writers, part.is_published, part.why = files, set(), False, ""
        return True

    def _follow(
        self,
        part: LocalPart,
        files: Mapping[str, File],
        writing: Mapping[str, set[Writer]],
        now_s: float,
        phase: str,
    ) -> bool:
        top = f"{self.home.stage(part.token)}/{part.name}"
        open_by = {
            writer
            for path, who in writing.items()
            if path == top or path.startswith(top + "/")
            for writer in who
        }
        part.writers |= open_by
        if files != part.files or not part.changed_s:
            part.files, part.changed_s = files, now_s
        growth = Growth(
            files,
            now_s - part.changed_s,
            {writer.pid for writer in open_by},
            any(not procfs.is_alive(writer) for writer in part.writers),
            part.stale,
        )
        marks = read_marks(self.home.marks(part.token, part.name))
        part.state, part.why = sealing.verdict(growth, marks, phase)
        if part.state not in (sealing.SEAL, sealing.UNPROVEN):
            return False
        try:
            self._seal(part, now_s, proven=part.state == sealing.SEAL, alone=marks.is_alone)
        except OSError as error:
            part.state, part.why = sealing.WAIT, f"it could not be held: {error.strerror}"
            return False
        return True

    def _seal(self, part: LocalPart, now_s: float, *, proven: bool, alone: bool) -> None:
        top = f"{self.home.stage(part.token)}/{part.name}"
        held = self.home.held(part.token, part.name)
        remove(held)
        for path in part.files:
            target = f"{held}/{path}" if path else held
            os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
            _hold(f"{top}/{path}" if path else top, target)
        if scan_set(top) != part.files:
            part.changed_s = now_s
            raise OSError(0, "it changed meanwhile")
        save = max(1, part.save + part.is_again)
        is_file, sealed_s = "" in part.files, round(time.time(), 3)
        seal = Seal(part.name, part.token, self.node, part.files, is_file, proven, sealed_s, save, alone)
        self._write_seal(seal)
        remove(self.home.seal_before(part.token, part.name))
        part.seal, part.before, part.save = seal, part.files, save

    def _write_seal(self, seal: Seal) -> None:
        path = self.home.seal(seal.token, seal.name)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        draft = f"{os.path.dirname(path)}/.{os.getpid()}.tmp"
        with open(draft, "w", encoding="utf-8", errors="surrogateescape") as stream:
            stream.write(records.seal_json(seal))
        os.replace(draft, path)

    def _read_before(self) -> None:
        """The previous seals of names that the script saves again."""
        for token in inventory.listed(f"{self.home.base}/parts"):
            seals = self.home.seals(token)
            for name in (one for one in inventory.listed(seals) if one.endswith(".before")):
                seal = inventory.read_seal_file(f"{seals}/{name}")
                if seal is not None and (token, seal.name) not in self.parts:
                    part = self.parts[token, seal.name] = LocalPart(token, seal.name)
                    part.before, part.save = seal.files, seal.save

    def _drop_unsealed(self) -> None:
        """Remove links that a killed daemon left without a seal."""
        for token in inventory.listed(f"{self.home.base}/held"):
            for name in inventory.listed(f"{self.home.base}/held/{token}"):
                part = self.parts.get((token, name))
                if part is None or part.seal is None:
                    remove(self.home.held(token, name))


def scan_set(path: str) -> Optional[Mapping[str, File]]:
    """The files of a set by their path inside ("" for a set of one file); None if it is gone or a link."""
    try:
        fact = os.lstat(path)
        if not os.path.isdir(path):
            return {"": _file_of(fact)} if os.path.isfile(path) and not os.path.islink(path) else None
        return {} if os.path.islink(path) else dict(_walk(path, ""))
    except OSError:  # it is being taken away
        return None


def _walk(top: str, inner: str) -> Iterator[tuple[str, File]]:
    with os.scandir(f"{top}/{inner}" if inner else top) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            path = f"{inner}/{entry.name}" if inner else entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(top, path)
            elif os.path.isfile(entry.path):  # a link to a file counts as the file, a broken one as nothing
                yield path, _file_of(entry.stat())


def _file_of(fact: os.stat_result) -> File:
    return File(fact.st_size, fact.st_mtime_ns, fact.st_ino)


def _is_same(one: File, other: File) -> bool:
    return one[:3] == other[:3]


def _hold(source: str, target: str) -> None:
    """Hard-link a file, or copy it if its link leads to another file system. Raises OSError."""
    try:
        os.link(source, target, follow_symlinks=True)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM):
            raise
        shutil.copy2(source, target)


def _is_within(files: Mapping[str, File], seal: Seal) -> bool:
    """Whether all these files are as the seal describes them; some of the seal's may be gone."""
    return all(path in seal.files and _is_same(one, seal.files[path]) for path, one in files.items())


def read_marks(folder: str) -> Marks:
    """The reports of this node's ranks on a set. A rank that began and whose process is gone is dead."""
    begun: dict[str, Writer] = {}
    saves: dict[str, tuple[int, str]] = {}  # when each rank began, and with which save
    words: dict[str, set[str]] = {records.DONE: set(), records.FAILED: set()}
    local, alone = 0, False
    for entry in inventory.listed(folder):
        rank, _, word = entry.rpartition(".")
        if word == records.BEGIN:
            with contextlib.suppress(OSError, ValueError):
                with open(f"{folder}/{entry}", encoding="ascii") as stream:
                    *numbers, save = stream.read(200).split()
                    saves[rank] = (os.fstat(stream.fileno()).st_mtime_ns, save)
                    pid, since, space, count, is_alone = (int(number) for number in numbers)
                # A pid of another namespace means nothing here.
                begun[rank] = Writer(pid, since) if space == procfs.pid_namespace() else Writer(0, 0)
                local, alone = max(local, count), alone or bool(is_alone)
        elif word in words:
            words[word].add(rank)
    # Reports on an earlier save of this name do not count for the latest one.
    now = max(saves.values(), default=(0, ""))[1]
    old = {rank for rank, (_, save) in saves.items() if save != now}
    begun = {rank: one for rank, one in begun.items() if rank not in old}
    done, failed = words[records.DONE] - old, words[records.FAILED] - old
    dead = {rank for rank, one in begun.items() if rank not in done and one.pid and not procfs.is_alive(one)}
    return Marks(set(begun) | done, done, failed, dead, local, alone)
