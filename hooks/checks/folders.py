"""The checks of room: disks, folders of the job, quotas, and a file that is written there. (I/O)"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional, Union

from ftrun.hooks.runtime.finding import Finding, Thresholds, bad, degraded, note, ok, skipped, unknown
from ftrun.hooks.runtime.host import Machine, NoAnswer
from ftrun.hooks.runtime.mounts import Touch, ask_paths, mounted

GB = 1000**3


class Room(NamedTuple):
    """Size and free space in bytes, inodes in all and free; inodes are 0 where the file system does not count them."""

    size_bytes: int
    free_bytes: int
    inodes: int
    free_inodes: int


def _room_told(path: str) -> str:
    """The four numbers of a Room. Raises OSError."""
    fact = os.statvfs(path)
    size, free = fact.f_blocks * fact.f_frsize, fact.f_bavail * fact.f_frsize
    return f"{size} {free} {fact.f_files} {fact.f_favail}"


def _room_of(text: str) -> Room:
    return Room(*(int(number) for number in text.split()))


# --- disk-size root, disk-size shm, disk-size cache

SHM = "/dev/shm"  # noqa: S108


def _disk(machine: Machine, folder: str) -> Optional[Room]:
    """The file system of a folder; None where it is not there. Raises NoAnswer where it hangs."""
    answer = machine.ask(lambda: _room_told(machine.path(folder)).encode(), 5.0, folder)
    return None if answer is None else _room_of(answer.decode())


def judge_root(room: Optional[Room], thresholds: Thresholds) -> Sequence[Finding]:
    """Its size and what is left of it."""
    return _disk_finding("/", room, thresholds)


def judge_shm(room: Optional[Room], thresholds: Thresholds) -> Sequence[Finding]:
    """Its size and what is left of it."""
    return _disk_finding(SHM, room, thresholds)


def probe_cache(machine: Machine, thresholds: Thresholds) -> Optional[Room]:
    """The file system of the cache folder, where one is named."""
    return _disk(machine, thresholds["folder"]) if thresholds["folder"] else None


def judge_cache(room: Optional[Room], thresholds: Thresholds) -> Sequence[Finding]:
    """Its size and what is left of it."""
    folder = thresholds["folder"]
    if not folder:
        return [skipped("no cache folder is named (`folder`)")]
    return _disk_finding(folder, room, thresholds)


def _disk_finding(mount: str, room: Optional[Room], thresholds: Thresholds) -> Sequence[Finding]:
    """Bad when it is not larger than `size_gb`; degraded when less than `free_percent` of room or inodes is left."""
    if room is None:
        return [unknown(f"{mount} cannot be asked", mount)]
    told = f"{room.size_bytes / GB:.1f} GB, {room.free_bytes / GB:.1f} GB free"
    size_gb = room.size_bytes / GB
    if room.size_bytes <= thresholds["size_gb"] * GB:
        return [bad(f"{told}: it must be larger than {thresholds['size_gb']} GB", mount, size_gb, "GB")]
    short = room.free_bytes < room.size_bytes * thresholds["free_percent"] / 100
    few = room.inodes > 0 and room.free_inodes < room.inodes * thresholds["free_percent"] / 100
    if short or few:
        message = f"{told}: little {'room' if short else 'of its inodes'} is left"
        return [degraded(message, mount, size_gb, "GB")]
    return [ok(told, mount, size_gb, "GB")]


# --- folder-room


def probe_room(machine: Machine, thresholds: Thresholds) -> dict[str, Touch]:
    """By folder, the four numbers of a Room as the answer's text."""
    folders, limit_s = thresholds["folders"], thresholds["deadline_s"]
    return ask_paths(machine, folders, lambda folder: _room_told(machine.path(folder)), limit_s)


def judge_room(touches: Mapping[str, Touch], thresholds: Thresholds) -> Sequence[Finding]:
    """Degraded for each folder that is short of room or inodes."""
    if not touches:
        return [skipped("no folder is named")]
    return [_room_faults(folder, touch, thresholds) for folder, touch in touches.items()]


def _room_faults(folder: str, touch: Touch, thresholds: Thresholds) -> Finding:
    if touch.hung or touch.errno:
        return unknown(f"{folder}: {'no answer' if touch.hung else touch.word}", folder)
    room = _room_of(touch.text)
    free_gb = room.free_bytes / GB
    percent = thresholds["free_percent"] / 100
    if room.free_bytes < room.size_bytes * percent or free_gb < thresholds["free_gb"]:
        message = f"{folder} has {free_gb:.1f} GB free of {room.size_bytes / GB:.1f}"
        return degraded(message, folder, round(free_gb, 3), "GB")
    if room.inodes > 0 and room.free_inodes < room.inodes * percent:
        message = f"{folder} has {room.free_inodes} inodes free of {room.inodes}"
        return degraded(message, folder, room.free_inodes, "inodes")
    return ok(f"{folder} has {free_gb:.1f} GB free", folder, round(free_gb, 3), "GB")


# --- canary

SIZE_BYTES = 64 * 1024
DIFFERENT = "different"
OF_THE_FOLDER = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.ENOTDIR}


def probe_canary(machine: Machine, thresholds: Thresholds) -> dict[str, Touch]:
    """What came of writing into each folder."""

    def question(folder: str) -> str:
        return _read_back(machine.path(folder))

    return ask_paths(machine, thresholds["folders"], question, thresholds["deadline_s"])


def _read_back(folder: str) -> str:
    """Write, fsync, read back, remove; "different" where other bytes came back."""
    content = os.urandom(SIZE_BYTES)
    path = os.path.join(folder, f".ftrun-canary-{os.urandom(8).hex()}")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.write(descriptor, content)
            os.fsync(descriptor)
            # What is still in memory would be read from there and prove nothing.
            with contextlib.suppress(OSError):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
        with open(path, "rb") as stream:
            same = stream.read() == content
    finally:
        os.unlink(path)
    return "" if same else DIFFERENT


def judge_canary(touches: Mapping[str, Touch], thresholds: Thresholds) -> Sequence[Finding]:
    """Bad for what hangs, fails or returns other bytes; degraded for what is slow, full or forbidden."""
    if not touches:
        return [skipped("no folder is named")]
    found = [one for folder, touch in touches.items() for one in _canary_faults(folder, touch, thresholds)]
    if found:
        return found
    slowest = max(touch.took_s for touch in touches.values())
    told = f"{len(touches)} folder(s) can be written, the slowest in {slowest * 1000:.0f} ms"
    return [ok(told, value=round(slowest, 4), unit="s")]


def _canary_faults(folder: str, touch: Touch, thresholds: Thresholds) -> list[Finding]:
    if touch.hung:
        message = f"writing into {folder} hangs: not done within {touch.took_s:g} s"
        return [bad(message, folder, touch.took_s, "s")]
    if touch.errno == errno.ENOENT:
        return [note(f"{folder} is not there", folder)]
    if touch.errno:
        grade = degraded if touch.errno in OF_THE_FOLDER else bad
        return [grade(f"{folder} cannot be written: {touch.word}", folder, evidence=(touch.word,))]
    if touch.text == DIFFERENT:
        return [bad(f"{folder} returned other bytes than were written", folder)]
    if touch.took_s > thresholds["slow_s"]:
        message = f"writing 64 KiB into {folder} took {touch.took_s:.1f} s"
        return [degraded(message, folder, round(touch.took_s, 3), "s")]
    return []


# --- quota


class QuotaFacts(NamedTuple):
    """What `quota -w` and `lfs quota` of each Lustre mount printed."""

    quota: str = ""
    lustre: tuple[str, ...] = ()


class Use(NamedTuple):
    """One line of a quota: the file system; KiB or files used, soft and hard limit (0 = none), and whether it is marked as over."""

    where: str
    kind: str
    used: int
    soft: int
    hard: int
    over: bool


def probe_quota(machine: Machine, thresholds: Thresholds) -> QuotaFacts:
    """Ask the tools that are here; one that does not answer is left out unless nothing is left. Raises NoAnswer then."""
    user = str(thresholds["user"] or os.getuid())
    questions = []
    if machine.tool("quota"):
        questions.append(["quota", "-w", "-p", "-u", user])
    if machine.tool("lfs"):
        mounts = [one.target for one in mounted(machine) if one.kind == "lustre"]
        questions += [["lfs", "quota", "-u", user, mount] for mount in mounts]
    outputs = [_quota_said(machine, question) for question in questions]
    silent = [one for one in outputs if isinstance(one, NoAnswer)]
    if silent and len(silent) == len(outputs):
        raise silent[0]
    texts = [(question[0], one) for question, one in zip(questions, outputs) if isinstance(one, str)]
    lustre = tuple(text for tool, text in texts if tool == "lfs")
    return QuotaFacts("".join(text for tool, text in texts if tool == "quota"), lustre)


def _quota_said(machine: Machine, question: Sequence[str]) -> Union[str, NoAnswer]:
    try:
        return machine.run(question, 3.0).out
    except NoAnswer as error:
        return error


def judge_quota(facts: QuotaFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Degraded for each quota that is used up, or nearly."""
    uses = [use for text in (facts.quota, *facts.lustre) for use in _uses(text)]
    limited = [use for use in uses if use.soft or use.hard or use.over]
    if not limited:
        return [skipped("no quota is told")]
    found = []
    for use in limited:
        limit = use.hard or use.soft
        if use.over or (limit and use.used > limit * thresholds["percent"] / 100):
            message = (
                f"{use.where}: {use.used} {use.kind} used of {limit}{', over quota' if use.over else ''}"
            )
            found.append(degraded(message, use.where, use.used, use.kind))
    return found or [ok(f"{len(limited)} quota(s) have room")]


def _uses(text: str) -> list[Use]:
    found = []
    where = ""
    for line in text.splitlines():
        words = line.split()
        # lfs puts a long name on a line of its own.
        if len(words) == 1 and words[0].startswith("/"):
            where = words[0]
            continue
        if words and not _number(words[0]) and _number("".join(words[1:2])):
            where, words = words[0], words[1:]
        if where and len(words) >= 6 and _number(words[0]):
            found += _of_line(where, words)
        where = ""
    return found


def _of_line(where: str, words: Sequence[str]) -> list[Use]:
    """Both groups of a line: used, soft, hard, and a grace that is there where it is no number or a time in epoch seconds (-p)."""
    fixed = len(words) >= 8
    second = 4 if fixed or _number(words[3]) is None else 3
    found = []
    for kind, group in (("KiB", words[:3]), ("files", words[second : second + 3])):
        numbers = [_number(word) for word in group]
        if len(numbers) == 3 and None not in numbers:
            used, soft, hard = (number or 0 for number in numbers)
            found.append(Use(where, kind, used, soft, hard, group[0].endswith("*")))
    return found


def _number(word: str) -> Optional[int]:
    plain = word.strip("[]").rstrip("*")
    return int(plain) if plain.isdigit() else None


FUNCTIONS = {
    "disk-size root": (lambda machine, _: _disk(machine, "/"), judge_root),
    "disk-size shm": (lambda machine, _: _disk(machine, SHM), judge_shm),
    "disk-size cache": (probe_cache, judge_cache),
    "folder-room": (probe_room, judge_room),
    "canary": (probe_canary, judge_canary),
    "quota": (probe_quota, judge_quota),
}
