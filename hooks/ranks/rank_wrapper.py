"""`ftrun-hook rank`: the parent of one rank that can be restarted alone while the others wait for it. (I/O)

Slurm sees this process as the task, and must see exactly what the rank itself would show: exit status or
signal, stdin and stdout, each signal as often. Slurm signals every process of a step; this process forwards
those that another sender sends to it alone. The rank leads a process group of its own, unless it is on a
terminal.

When the rank ends abnormally, the wrapper writes a file into a folder that the agent watches and waits up to
a minute for the answer, `again` or `end`. Without one, in a start that is over, or after a signal that asks for
the job's end, it exits as the rank did.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

from ftrun.hooks.runtime import UsageError, start_processes
from ftrun.hooks.runtime.command_line import parse_options
from ftrun.hooks.runtime.ownership import is_taken
from ftrun.hooks.runtime.slurm_env import node_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, Optional

ANSWER_S = 60.0
USAGE = (
    "usage: ftrun-hook rank --folder FOLDER [--wait SECONDS] -- COMMAND ...\n"
    "Runs COMMAND as one rank; when it dies, FOLDER/<procid>.<n> says so, and `again` in FOLDER/<procid>.<n>.next starts it again."
)
JOBS_END = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP})
SIZE_NAMES = (b"TORCH_NCCL_TRACE_BUFFER_SIZE", b"TORCH_FR_BUFFER_SIZE")
FILE_NAMES = (b"TORCH_NCCL_DEBUG_INFO_TEMP_FILE", b"TORCH_FR_DUMP_TEMP_FILE")
RENAMED_SINCE = (2, 12)
"""The release of Torch from which on the second names are enough: 2.8 to 2.10 know them, and write no dump where only they are set."""
ALL = frozenset(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}


class RankExit:
    """How the rank ended: status, or signal (0: none); `ran`: whether it could be started."""

    def __init__(self, status: int, *, ran: bool = True) -> None:
        self.code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0
        self.signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        self.ran = ran

    @property
    def is_abnormal(self) -> bool:
        """Whether to ask the agent."""
        return self.ran and (self.code != 0 or self.signal != 0)


class RankParent:
    """Runs one rank: starts it, forwards signals, and asks the agent when it dies."""

    def __init__(self, folder: str, command: list[str], wait_s: float) -> None:
        self.folder, self.command, self.wait_s = folder, command, wait_s
        self.restarts, self.asked = 0, 0
        self.pid = 0
        self.last: Optional[RankExit] = None
        self.told_to_end = False
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, ALL)

    def run(self) -> RankExit:
        """Run until the rank has ended for good."""
        while True:
            end = self.last = self._once()
            if not end.is_abnormal or self.told_to_end or not self._may_go_on(end):
                return end
            self.restarts += 1

    def wait_out(self) -> RankExit:
        """After a defect of ours: wait for the rank's end, and ask no more."""
        if self.pid:
            return RankExit(os.waitpid(self.pid, 0)[1])
        if self.last is None:  # not even a child could be started
            self._become(2, os.getppid())
        return self.last

    def _once(self) -> RankExit:
        reader, writer = os.pipe()
        wrapper = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(writer, wrapper)
        os.close(writer)
        failed = os.read(reader, 1) != b""  # returns when the command runs: exec closes the other end
        os.close(reader)
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return RankExit(status, ran=not failed)
            self._take(signal.sigwaitinfo(ALL))

    def _become(self, writer: int, parent: int) -> NoReturn:
        """Runs in the child: become the rank as it would be without a parent."""
        try:
            if not os.isatty(0):
                os.setpgid(0, 0)
            _die_with_parent(parent)
            env = _environment()
            with contextlib.suppress(Exception):  # whatever fails here, the rank runs
                rename_recorder(env, self.command[0])
            if self.restarts:
                env[b"FTRUN_RANK_RESTART"] = b"%d" % self.restarts
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
            if hasattr(signal, "SIGXFSZ"):
                signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)
            os.execvpe(self.command[0], self.command, env)  # noqa: S606  the user's own
        except OSError as error:
            if writer > 2:
                os.write(writer, b"-")
            os.write(2, f"ftrun: {self.command[0]}: {error.strerror}\n".encode())
            os._exit(error.errno or 1)  # as slurmstepd ends a task that cannot be started
        finally:
            os._exit(1)

    def _take(self, told: Optional[signal.struct_siginfo]) -> None:
        """Handle one signal to this process."""
        if told is None or told.si_signo == signal.SIGCHLD:
            return
        self.told_to_end |= told.si_signo in JOBS_END
        if self.pid and not _reached_all(told):
            with contextlib.suppress(OSError):
                os.kill(self.pid, told.si_signo)

    def _may_go_on(self, end: RankExit) -> bool:
        """Ask, and wait for the answer."""
        try:
            name = self._tell(end)
        except OSError:
            return False
        give_up_s = time.monotonic() + self.wait_s
        pause_s = 0.05
        while time.monotonic() < give_up_s and not self.told_to_end:
            answer = self._answer(name)
            if answer:
                return answer == "again"
            self._take(signal.sigtimedwait(ALL, pause_s))
            pause_s = min(0.25, pause_s * 1.05)
        return False

    def _tell(self, end: RankExit) -> str:
        """Write atomically how the rank ended, under the next free number; returns the name."""
        import json

        for place in (
            os.path.dirname(self.folder),
            self.folder,
        ):  # no parents: a removed run folder stays removed
            with contextlib.suppress(FileExistsError):
                os.mkdir(place, 0o700)
        rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
        line = {
            "rank": int(rank) if rank.isdigit() else 0, "host": node_name(), "pid": os.getpid(), "code": end.code, "signal": end.signal,
            "restart": self.restarts, "step": os.environ.get("SLURM_STEP_ID", ""), "at_s": round(time.time(), 3),
        }  # fmt: skip
        draft = os.path.join(self.folder, f".{node_name()}.{os.getpid()}.tmp")
        number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(number, "w", encoding="utf-8") as stream:
            json.dump(line, stream)
        try:
            while True:
                self.asked += 1
                name = f"{os.environ.get('SLURM_PROCID') or '0'}.{self.asked}"
                path = os.path.join(self.folder, name)
                try:
                    os.link(draft, path)
                    return name
                except OSError as error:
                    if not is_taken(error, path):
                        raise
                    # another step of this start has a task of this number
        finally:
            os.unlink(draft)

    def _answer(self, name: str) -> str:
        """The first word of the answer; "" without one."""
        try:
            # Opening the folder makes a network file system revalidate its content.
            place = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return ""
        try:
            number = os.open(f"{name}.next", os.O_RDONLY, dir_fd=place)
            try:
                return (os.read(number, 64).decode("ascii", "replace").split() or [""])[0]
            finally:
                os.close(number)
        except OSError:
            return "" if self._is_present() else "end"
        finally:
            os.close(place)

    def _is_present(self) -> bool:
        token = os.environ.get("FTRUN_START_TOKEN", "")
        try:
            return not start_processes.is_over(
                token, os.readlink(os.path.join(self.folder, "..", "..", "current"))
            )
        except OSError:
            return True


def _reached_all(told: signal.struct_siginfo) -> bool:
    """Whether a signal reached the rank too: from Slurm, a terminal, or outside our pid namespace."""
    if told.si_pid == 0:
        return True
    try:
        with open(f"/proc/{told.si_pid}/comm", encoding="utf-8", errors="replace") as stream:
            return stream.read().startswith("slurm")
    except OSError:  # the sender is gone; Slurm's daemon stays
        return False


def _environment() -> dict[bytes, bytes]:
    """The environment this process was started with: Python itself adds LC_CTYPE without a locale."""
    try:
        with open("/proc/self/environ", "rb") as stream:
            words = stream.read().split(b"\0")
    except OSError:
        return dict(os.environb)
    return {name: value for name, sign, value in (word.partition(b"=") for word in words) if sign}


def rename_recorder(env: dict[bytes, bytes], command: str) -> None:
    """Give what ftrun set for Torch's flight recorder the names of this rank's Torch: a newer one warns of the older names.

    Which Torch: by the folder that describes the package, beside the command or the python of PATH; nothing is imported.
    """
    if not env.get(FILE_NAMES[0], b"-").startswith(env.get(b"FTRUN_ATTEMPT_DIR", b"") + b"/stacks/"):
        return  # the user's own
    path = os.fsdecode(env.get(b"PATH", b"")).split(":")
    places = [os.path.dirname(command)] if "/" in command else []
    for name in ([] if places else [command]) + ["python3", "python"]:
        places += [one for one in path if os.access(os.path.join(one, name), os.X_OK)][:1]
    for place in places:
        release = _torch_release(os.path.join(os.path.dirname(os.path.abspath(place)), "lib"))
        if release:
            break
    else:
        return
    if release >= RENAMED_SINCE:
        for old, new in (SIZE_NAMES, FILE_NAMES):
            if env.get(old) == b"2000" or old == FILE_NAMES[0]:
                env[new] = env.pop(old)


def _torch_release(lib: str) -> tuple[int, ...]:
    """Major and minor release of the Torch below this folder; () for none."""
    for python in os.listdir(lib) if os.path.isdir(lib) else ():
        packages = os.path.join(lib, python, "site-packages")
        if python.startswith("python3") and os.path.isdir(packages):
            for name in os.listdir(packages):
                if name.startswith("torch-") and name.endswith(".dist-info"):
                    return tuple(int(word) for word in name.split("-")[1].split(".")[:2])
    return ()


def _die_with_parent(parent: int) -> None:
    """Slurm takes the end of the wrapper for the task's, so the rank must not outlive it."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (ImportError, OSError, AttributeError):
        return
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def _exit_as(end: RankExit) -> NoReturn:
    """Exit as the rank did."""
    if end.signal:
        import resource

        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core dump is the rank's
            signal.signal(end.signal, signal.SIG_DFL)
        except (OSError, ValueError):
            pass  # KILL needs no handler
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [end.signal])
        os.kill(os.getpid(), end.signal)
        os._exit(128 + end.signal)
    os._exit(end.code)


def main(arguments: list[str]) -> int:
    """Run one rank and exit as it did."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    folder, command, wait_s = _words(arguments)
    try:
        with open("/proc/self/comm", "w", encoding="ascii") as stream:
            stream.write("ftrun-rank")  # tools that signal processes by name mean the rank
    except OSError:
        pass
    sys.stdout = sys.stderr = None  # nothing of ours is ever flushed into the rank's output
    parent = RankParent(folder, command, wait_s)
    try:
        end = parent.run()
    except Exception:  # noqa: BLE001  whatever fails here, the task ends as its rank does
        end = parent.wait_out()
    _exit_as(end)


def _words(arguments: list[str]) -> tuple[str, list[str], float]:
    words, command = parse_options("rank", arguments, "--folder", "--wait")
    folder, wait = words.get("--folder", ""), words.get("--wait", str(ANSWER_S))
    if not wait.replace(".", "", 1).isdigit():
        raise UsageError("--wait is no number of seconds")
    if not folder or not command:
        raise UsageError("--folder or the command is missing; `ftrun-hook rank --help` tells more")
    return os.path.abspath(folder), command, float(wait)
