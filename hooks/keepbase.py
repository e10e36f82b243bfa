"""The folder of a job in the memory of a node, and the place of a process behind all others. (I/O)

How it thinks. The folder lies where everybody may make one, so it must be this user's own. A keeper holds a lock in it as long as it lives, and whoever
may start it again is a process of the job. So a folder whose lock nobody holds, and of whose job no process of this user is left, is what a job left
that was killed with its keeper: its memory is given back at once, by whoever comes by: the next keeper, a sweep, Slurm's Epilog.

Locks are seen from every container, processes are not. So a folder that was made where processes have other numbers is left alone until nobody has touched it for a day.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time

from ftrun.hooks import at_hand, openfiles
from ftrun.hooks.ownership import NotPrivate, exposed, is_own_folder, private_folder

__all__ = ["STALE_S", "clear_dead", "come_last", "job_folder", "open_base"]

STALE_S = 86_400.0
LEAST_BYTES = 64 << 20
NICE = 10  # a tenth of a core where all are busy
NICE_IDLE = 19
BEST_EFFORT, IDLE = (
    (2 << 13) | 7,
    3 << 13,
)  # the last place of the one class of ioprio_set(2), and the other class
LOCK_TRIES, LOCK_PAUSE_S = 10, 0.2
GONE = ".gone."


def open_base(base: str) -> int:
    """The job's folder, this user's alone; the descriptor of its lock. Raises OSError."""
    above = os.path.dirname(base)
    private_folder(above)
    if why := exposed(above):
        raise NotPrivate(why)
    lock = _locked(base)
    if _room_bytes(base) < LEAST_BYTES:
        clear_dead(above, base)
    if _room_bytes(base) < LEAST_BYTES:
        os.close(lock)
        raise OSError(f"{above} has less than {LEAST_BYTES >> 20} MiB of room")
    return lock


def _locked(base: str) -> int:
    """The lock of a folder, which is made. Raises OSError."""
    for _ in range(LOCK_TRIES):
        private_folder(base)
        lock = os.open(f"{base}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(f"{base}/lock")):  # nobody has just cleared it away
                os.ftruncate(lock, 0)
                os.pwrite(lock, _here().encode(), 0)
                return lock
        os.close(lock)
        time.sleep(LOCK_PAUSE_S)
    top = os.path.dirname(os.path.dirname(base))
    raise OSError(
        f"another process looks after {base}: if the nodes share {top}, set --ft-stage-dir to a folder that each node has for itself"
        " (in a sandbox: ftrun sandbox up --shm MIB)"
    )


def _room_bytes(base: str) -> int:
    """What is free, and what this folder holds itself and may drop."""
    room = os.statvfs(base)
    return room.f_bavail * room.f_frsize + at_hand.used_bytes(base)


# ---------------------------------------------------------------------- what dead jobs left


def clear_dead(above: str, own: str = "", *, over: str = "") -> list[str]:
    """Remove the folders in `above`, this user's, whose job is gone; never `own`. `over`: a job that Slurm says is over. Returns their names; nothing is raised."""
    found: list[str] = []
    if not is_own_folder(above):
        return found
    living: list[Living] = []
    for name in at_hand.listed(above):
        base = f"{above}/{name}"
        with contextlib.suppress(OSError):
            if base == own or not is_own_folder(base):
                continue
            if name.startswith(GONE):
                shutil.rmtree(base, ignore_errors=True)
            elif _clear(above, name, over, living):
                found.append(name)
    return found


def _clear(above: str, name: str, over: str, living: list[Living]) -> bool:
    lock = os.open(f"{above}/{name}/lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_dead(lock, name.rpartition(".")[2], over, living):
            return False
        gone = f"{above}/{GONE}{name}.{os.getpid()}"
        os.rename(f"{above}/{name}", gone)
        shutil.rmtree(gone, ignore_errors=True)
        return True
    finally:
        os.close(lock)


def _is_dead(lock: int, job: str, over: str, living: list[Living]) -> bool:
    """Whether nobody of a job is left whose lock is free."""
    told = os.pread(lock, 200, 0).decode("ascii", "replace")
    if time.time() - os.fstat(lock).st_mtime > STALE_S:
        return True
    if told and told.split()[0] != _here().split()[0]:
        return True  # the node was started anew
    if job != over and told != _here():
        return False
    if not living:
        living.append(Living())
    return not living[0].has(job)


class Living:
    """The jobs that processes of this user belong to."""

    def __init__(self) -> None:
        from ftrun.hooks.ranks.kill_stale import environments, listed

        own = {os.getpid(), os.getppid()}
        pids = [pid for pid in listed() if pid not in own]
        self._words = {pid: environment for pid, environment, _ in environments(pids, empty=True)}
        self._groups = "\n".join(_text(f"/proc/{pid}/cgroup") for pid in pids)
        self._is_sure = all(pid in self._words or not openfiles.began(pid) for pid in pids)

    def has(self, job: str) -> bool:
        """Whether any does, or may: one that does not answer may be anybody's."""
        word = f"SLURM_JOB_ID={job}"
        if not self._is_sure or f"/job_{job}/" in self._groups + "/":
            return True
        return any(word in environment.split("\0") for environment in self._words.values())


def job_folder(attempt_folder: str) -> str:
    """The folder of a job on its nodes, as its keepers were told; "" where they were not."""
    for name in reversed(at_hand.listed(f"{attempt_folder}/stage")):
        if name.startswith("words."):
            words = _text(f"{attempt_folder}/stage/{name}").splitlines()
            told = dict(zip(words[0::2], words[1::2]))
            return told.get("--base", "")
    return ""


def _here() -> str:
    """Where processes have the numbers that they have here: this life of the node, and the namespace."""
    return f"{_text('/proc/sys/kernel/random/boot_id').strip() or '-'} {openfiles.space()}"


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(1 << 20)
    except OSError:
        return ""


# ---------------------------------------------------------------------- behind all others


def come_last(*, idle: bool = False) -> None:
    """A low priority for the processor, and the lowest for disks where Linux tells them apart (ioprio_set(2)).

    Not the very lowest: beside a trainer that keeps all cores busy that would be a hundredth of one, and what is staged would never get out. `idle`:
    the very lowest of both, for what nobody waits for.
    """
    with contextlib.suppress(OSError):
        os.nice(NICE_IDLE if idle else NICE)
    numbers = {"x86_64": 251, "aarch64": 30, "ppc64le": 273}
    number = numbers.get(os.uname().machine)
    if number is not None:
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(number, 1, 0, IDLE if idle else BEST_EFFORT)  # this process
