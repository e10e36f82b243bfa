"""A job's folder in a node's memory, and the removal of folders that dead jobs left behind. (I/O)

Every user may create such a folder, so it must belong to this user alone. A staging daemon holds a lock in it
while it lives, and only a process of the job restarts the daemon. So if the lock is free and no process of
the job is left, the job was killed together with its daemon. Then the next daemon, a sweep, or Slurm's Epilog
frees the memory. Locks are visible in all containers, processes are not: a folder from another pid namespace
is left alone until it has not been touched for a day.

The Epilog runs as root, but the user can replace any folder by a link at any moment. So a child process takes
the user's id before it looks, and can remove nothing that the user could not remove.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import time

from ftrun.hooks.runtime import procfs, start_processes
from ftrun.hooks.runtime.host import Machine, NoAnswer
from ftrun.hooks.runtime.ownership import NotPrivate, is_own_folder, private_folder, why_replaceable
from ftrun.hooks.runtime.procfs import environments
from ftrun.hooks.runtime.procfs import user_processes as listed
from ftrun.hooks.runtime.start_processes import parse_environment
from ftrun.hooks.staging import inventory

STALE_S = 86_400.0
LEAST_BYTES = 64 << 20
LOCK_TRIES, LOCK_PAUSE_S = 10, 0.2
GONE = ".gone."


def open_base(base: str) -> int:
    """Create and lock the job's folder, private to this user; returns the lock's descriptor. Raises OSError."""
    above = os.path.dirname(base)
    private_folder(above)
    if why := why_replaceable(above):
        raise NotPrivate(why)
    lock = _locked(base)
    if _room_bytes(base) < LEAST_BYTES:
        clear_dead(above, base)
    if _room_bytes(base) < LEAST_BYTES:
        os.close(lock)
        raise OSError(f"{above} has less than {LEAST_BYTES >> 20} MiB of room")
    return lock


def _locked(base: str) -> int:
    for _ in range(LOCK_TRIES):
        private_folder(base)
        lock = os.open(f"{base}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # no other process has just removed it
            if os.path.samestat(os.fstat(lock), os.stat(f"{base}/lock")):
                os.ftruncate(lock, 0)
                os.pwrite(lock, _here().encode(), 0)
                return lock
        os.close(lock)
        time.sleep(LOCK_PAUSE_S)
    top = os.path.dirname(os.path.dirname(base))
    raise OSError(
        f"another process looks after {base}: if the nodes share {top}, set --ft-stage-dir to a folder that"
        " each node has for itself"
        " (in a sandbox: ftrun sandbox up --shm MIB)"
    )


def _room_bytes(base: str) -> int:
    """Free bytes, including what this folder holds itself and may drop."""
    room = os.statvfs(base)
    return room.f_bavail * room.f_frsize + inventory.used_bytes(base)


def clear_dead(above: str, own: str = "", *, over: str = "") -> list[str]:
    """Remove this user's folders in `above` whose job is gone, but never `own`; raises nothing. `over`: a job
    that has ended according to Slurm. Returns the names of the removed folders.
    """
    found: list[str] = []
    if not is_own_folder(above):
        return found
    living: list[Living] = []
    for name in inventory.listed(above):
        base = f"{above}/{name}"
        with contextlib.suppress(OSError):
            if base == own or not is_own_folder(base):
                continue
            if name.startswith(GONE):
                shutil.rmtree(base, ignore_errors=True)
            elif _clear_job(above, name, over, living):
                found.append(name)
    return found


def _clear_job(above: str, name: str, over: str, living: list[Living]) -> bool:
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
    """Whether no process of the job whose lock we hold is left."""
    told, here = os.pread(lock, 200, 0).decode("ascii", "replace"), _here()
    is_rebooted = told != "" and told.split()[0] != here.split()[0]
    if is_rebooted or time.time() - os.fstat(lock).st_mtime > STALE_S:
        return True
    if job != over and told != here:
        return False
    if not living:
        living.append(Living())
    return not living[0].has(job)


class Living:
    """The jobs that processes of this user belong to."""

    def __init__(self) -> None:
        own = {os.getpid(), os.getppid()}
        pids = [pid for pid in listed() if pid not in own]
        told = {pid: parse_environment(text) for pid, text, _ in environments(pids, empty=True)}
        caller = start_processes.own_job(os.environ)
        grouped = {
            pid: start_processes.job_and_step(procfs.read_text(f"/proc/{pid}/cgroup"), caller)[0]
            for pid in pids
        }
        known = {pid: words.get("SLURM_JOB_ID", "") for pid, words in told.items()}
        self._jobs = {*grouped.values(), *known.values()} - {""}
        # A group that bears a SLUID is that of the job which a process in it names.
        nameless = {grouped[pid] for pid in pids if not grouped[pid].isdigit()} - {""}
        nameless -= {grouped[pid] for pid in pids if known.get(pid)}
        self._is_sure = not nameless and all(pid in told or not procfs.start_ticks(pid) for pid in pids)

    def has(self, job: str) -> bool:
        """Whether a process belongs to this job, or may: an unreadable one could belong to any job."""
        return not self._is_sure or job in self._jobs


def job_folder(attempt_folder: str) -> str:
    """The job's folder on its nodes, from the arguments of its staging daemons; "" without any."""
    for name in reversed(inventory.listed(f"{attempt_folder}/stage")):
        if name.startswith("words."):
            words = procfs.read_text(f"{attempt_folder}/stage/{name}").splitlines()
            told = dict(zip(words[0::2], words[1::2]))
            return told.get("--base", "")
    return ""


def _here() -> str:
    """In which scope pids are unique: the boot id of the node, and the pid namespace."""
    return f"{procfs.read_text('/proc/sys/kernel/random/boot_id').strip() or '-'} {procfs.pid_namespace()}"


def clear_as_user(stage_dir: str, uid: int, job: str, limit_s: float) -> list[str]:
    """Remove what ended jobs of this user, `job` among them, left below `stage_dir`. Returns the names of the
    folders, none if that takes longer than `limit_s`; raises nothing.
    """
    above = f"{stage_dir.rstrip('/')}/ftrun-{uid}"

    def cleared() -> bytes:
        """Runs in a child process, which becomes the user before it looks."""
        fact = os.lstat(above)
        if uid < 0 or not stat.S_ISDIR(fact.st_mode) or fact.st_uid != uid:
            return b""
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(fact.st_gid)
            os.setuid(uid)
        mine = os.getuid() == os.geteuid() == uid
        return " ".join(clear_dead(above, over=job) if mine else ()).encode("utf-8", "replace")

    try:
        return (Machine().ask(cleared, limit_s, above) or b"").decode("utf-8", "replace").split()
    except NoAnswer:
        return []
