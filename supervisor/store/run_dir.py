"""Create and find the folders of runs below `$FTRUN_HOME`. (I/O)

    $FTRUN_HOME/runs/<run>/{submit,journal,requests,attempts/<n>}     0700
    $FTRUN_HOME/index/<job id> -> ../runs/<run>                       rebuildable
    $FTRUN_HOME/lease/                                                see `lease`

Exclusive mkdir is the only lock here: it is atomic on every file system that a cluster shares. `ftrun
sbatch` goes through this module, so it imports next to nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time

from ftrun.hooks.runtime.ownership import private_folder, private_folders, why_untrusted
from ftrun.supervisor.config import home as config_home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_RUNS_MAX = 999_999
_NAME_LENGTH_MAX = 40
_SETTLED_S = 2.0  # the time of a folder that changed so lately may not show the next change


def why_home_untrusted(home: str) -> str:
    """Return why runs must not be kept in `home`: others may have written there, and its files are trusted
    and in part run. "" if it does not exist yet.
    """
    return why_untrusted(home, follow=True) if os.path.exists(home) else ""


TOOLS_LINK = "tools/ftrun-hook.pyz"


def tools_name(home: str) -> str:
    """The file name of the node side in `home`; "" if there is none that can be trusted."""
    link = os.path.join(home, TOOLS_LINK)
    try:
        folder, fact = os.lstat(os.path.dirname(link)), os.lstat(link)
        if {folder.st_uid, fact.st_uid} <= {os.geteuid(), 0} and not folder.st_mode & 0o022:
            return os.path.basename(os.readlink(link))
    except OSError:
        pass
    return ""


def run_name(job_name: str) -> str:
    """The job name as the first half of a run id: characters that are safe in paths, comments and shells."""
    safe = "".join(c if (c.isascii() and (c.isalnum() or c in "_.-")) else "-" for c in job_name).strip("-.")
    return safe[:_NAME_LENGTH_MAX] or "run"


def create_run(home: str, job_name: str) -> str:
    """Make a new run folder and return its path. The number is the next free one of this name. Raises OSError
    where the folder cannot be written (quota, full, read-only).
    """
    name = run_name(job_name)
    runs = os.path.join(home, "runs")
    if why := why_home_untrusted(home):
        raise OSError(errno.EPERM, why.removeprefix(f"{home} "), home)
    private_folders(runs)
    taken = [entry[len(name) + 1 :] for entry in os.listdir(runs) if entry.startswith(name + "-")]
    number = max((int(rest) for rest in taken if rest.isdigit()), default=0) + 1
    while number <= _RUNS_MAX:
        path = os.path.join(runs, f"{name}-{number:04d}")
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            number += 1
            continue
        for child in ("submit", "journal", "requests", "attempts"):
            os.mkdir(os.path.join(path, child), 0o700)
        announce(home)
        return path
    raise OSError(f"no free run number left for {name!r} in {runs}")


def discard_run(run_dir: str) -> None:
    """Remove a run of which no job exists (its first submission was refused)."""
    for folder, folders, files in os.walk(run_dir, topdown=False):
        for name in files:
            os.unlink(os.path.join(folder, name))
        for name in folders:
            child = os.path.join(folder, name)
            if os.path.islink(child):
                os.unlink(child)
            else:
                os.rmdir(child)
    os.rmdir(run_dir)


def attempt_dir(run_dir: str, attempt: int) -> str:
    """The folder of one attempt (which need not exist)."""
    return os.path.join(run_dir, "attempts", str(attempt))


def open_attempt(run_dir: str, attempt: int) -> str | None:
    """Make the folder of attempt `attempt`; None when somebody else made it (only its maker may submit)."""
    path = attempt_dir(run_dir, attempt)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return None
    return path


def is_claimed(run_dir: str, attempt: int) -> bool:
    """Whether the first claim of an attempt is taken; before its sbatch only who closed the attempt took it (P4)."""
    return os.path.islink(os.path.join(attempt_dir(run_dir, attempt), "claim"))


def latest_attempt_number(run_dir: str) -> int:
    """The highest attempt number that exists; 0 where there is none."""
    try:
        names = os.listdir(os.path.join(run_dir, "attempts"))
    except FileNotFoundError:
        return 0
    return max((int(name) for name in names if name.isdigit()), default=0)


def index_job(home: str, job_id: str, run_id: str) -> None:
    """Record that this job belongs to this run. A job id that Slurm reuses points to its newest run."""
    folder = private_folder(os.path.join(home, "index"))
    link = os.path.join(folder, job_id)
    target = os.path.join("..", "runs", run_id)
    temporary = f"{link}.{config_home.host_name()}.{os.getpid()}.tmp"
    os.symlink(target, temporary)
    os.replace(temporary, link)


def indexed_jobs(home: str, run_dir: str) -> list[str]:
    """The jobs that the index says belong to this run."""
    folder, target = os.path.join(home, "index"), os.path.join("..", "runs", os.path.basename(run_dir))
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                if os.readlink(os.path.join(folder, name)) == target:
                    found.append(name)
    return sorted(found)


def run_dirs(home: str) -> list[str]:
    """Every run folder, sorted by name."""
    return [path for path in _run_paths(home) if _has_journal(path)]


def _run_paths(home: str) -> list[str]:
    runs = os.path.join(home, "runs")
    try:
        names = sorted(name for name in os.listdir(runs) if not name.startswith("."))
    except FileNotFoundError:
        return []
    return [os.path.join(runs, name) for name in names]


def _has_journal(path: str) -> bool:
    return os.path.isdir(os.path.join(path, "journal"))


class RunDirs:
    """The run folders of a home to look at, for who looks again and again; the others are left alone.

    All of them where the time of their parent changed: with a new run, and with each request (`announce`). Else a few
    in turn, each within `ROUND_S`, because releases before this one announced nothing. Ten thousand runs that are
    over cost one stat a look and 170 a second.
    """

    ROUND_S = 60.0

    def __init__(self, home: str) -> None:
        self._home = home
        self._stamp_ns, self._next = -1, 0
        self._again = False
        self._paths: list[str] = []
        self._owed = 0.0

    def due(self, passed_s: float) -> list[str]:
        """Those to look at, `passed_s` after the last call. Raises OSError."""
        stamp_ns = folder_time_ns(os.path.join(self._home, "runs"))
        if stamp_ns != self._stamp_ns or self._again:
            # Two changes may bear one time, and a new run gets its journal a moment later: look once more.
            self._again = stamp_ns != self._stamp_ns
            self._paths, self._stamp_ns = _run_paths(self._home), stamp_ns
            return [path for path in self._paths if _has_journal(path)]
        size = len(self._paths)
        self._owed = min(self._owed + size * passed_s / self.ROUND_S, float(size))
        first, count = self._next, int(self._owed)
        self._owed -= count
        self._next = (first + count) % max(1, size)
        few = (self._paths[(first + number) % size] for number in range(count))
        return [path for path in few if _has_journal(path)]

    def forget(self) -> None:
        """Look at all of them at the next call."""
        self._stamp_ns = -1


def announce(home: str) -> None:
    """Have the supervisor look at all runs: one of them, which may be over, was asked for something."""
    with contextlib.suppress(OSError):  # then it is seen some seconds later
        os.utime(os.path.join(home, "runs"))


def find_run(home: str, name: str) -> str | None:
    """The folder of the run with this run id or job id ("123", "123_4", "123+1"); None if unknown."""
    if not name or name.startswith(".") or "/" in name:
        return None
    path = os.path.join(home, "runs", name)
    if os.path.isdir(os.path.join(path, "journal")):
        return path
    plain = name.split("_", 1)[0].split("+", 1)[0]
    for candidate in (name, plain):
        link = os.path.join(home, "index", candidate)
        try:
            path = os.path.normpath(os.path.join(home, "index", os.readlink(link)))
        except OSError:
            continue
        if os.path.isdir(os.path.join(path, "journal")):
            return path
    return None


def read_untrusted(path: str, most_bytes: int, *, start_bytes: int = 0) -> bytes | None:
    """Return up to `most_bytes` of a file that a job may have written, from `start_bytes` on; None if it
    cannot be read at once.

    A pipe or a link in its place costs a look and no wait.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return None
            stream.seek(start_bytes)
            return stream.read(most_bytes)
    except OSError:
        return None


def process_identity() -> str:
    """This process as host.boot.pid-namespace.pid.start: unique, and its life can be checked here."""
    return (
        f"{config_home.host_name()}.{_boot()}.{_pid_namespace()}.{os.getpid()}.{_process_start(os.getpid())}"
    )


def same_machine(writer: str) -> bool:
    """Whether the writer was a process that can be looked up from here: same boot and pid namespace."""
    parts = writer.split(".")
    return len(parts) == 5 and parts[1] == _boot() and parts[2] == _pid_namespace() and parts[3].isdigit()


def provably_dead(writer: str) -> bool:
    """True when the writer (see `identity`) was a process of this very machine and that process is gone."""
    parts = writer.split(".")
    return same_machine(writer) and _process_start(int(parts[3])) != parts[4]


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as stream:
            return stream.read().strip().replace("-", "")[:12]
    except OSError:
        return "unknown"


def _pid_namespace() -> str:
    try:
        return "".join(c for c in os.readlink("/proc/self/ns/pid") if c.isdigit())
    except OSError:
        return "0"


def _process_start(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot; "" if there is none (or a zombie)."""
    try:
        with open(f"/proc/{pid}/stat") as stream:
            fields = stream.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]


# ---------------------------------------------------------------------- whether anything is new in a folder


def folder_time_ns(folder: str) -> int:
    """When something was last put into the folder or taken out, by its file system's clock; 0 where that cannot be seen."""
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


def requests_time_ns(run_dir: str) -> int:
    """When the last request to a run was written; 0 where that cannot be seen."""
    return folder_time_ns(os.path.join(run_dir, "requests"))


class FolderTimes:
    """Whether something may have been put into some folders, or taken out, since the last look.

    Times of file systems tick: soon after a change, they do not show the next one. How soon is a matter of the file
    system, so it is told by the real clock.
    """

    def __init__(self) -> None:
        self._times: tuple[int, ...] = ()
        self._changed_s = 0.0

    def changed(self, folders: Sequence[str]) -> bool:
        """Whether to look into these folders."""
        times, now_s = tuple(map(folder_time_ns, folders)), time.monotonic()
        if times != self._times:
            self._times, self._changed_s = times, now_s
            return True
        return now_s - self._changed_s < _SETTLED_S
