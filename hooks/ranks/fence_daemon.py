"""`ftrun-hook guard`, the fence daemon: no rank of an earlier start survives a second on this node. (I/O)

A node that was frozen or cut off wakes up with ranks that continue to write, seconds before Slurm's own
daemon ends them. Once a second this process reads the link `current` in the attempt's folder. When that names
another start, or the attempt is closed, it sends KILL to all processes of earlier starts: a rank that gets TERM
may write a last checkpoint. A link that cannot be read, or a folder that is gone, changes nothing.

The agent asks the guards of silent nodes by another link, `asked`: a number, and the nodes that shall answer
by an empty file `heard/<node>.<number>`. It is read only after a change of the folder.

It uses almost no memory: a child process imports what it needs, kills, and exits. The node monitor and the
staging daemon can run as its children, so that all of them need one step of Slurm.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from ftrun.hooks.compile_cache.periodic_merge import HAS_MERGER, PeriodicMerge
from ftrun.hooks.runtime import UsageError
from ftrun.hooks.runtime.command_line import handle_end_signals, own_command, parse_options
from ftrun.hooks.runtime.parent import Parent, environment_for_helper
from ftrun.hooks.runtime.slurm_env import node_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

PERIOD_S = 1.0
AGAIN_S = (1.0, 5.0, 30.0)
"""Repeat after a change: a later look finds a process that was being forked, or hung, at the first one."""
CHILD_S = 20.0
LOOKS = 3  # after a change of the folder: its time may be as coarse as a second
LEAVE_S = 1.0  # how long it waits for its children when it is told to exit
KEEP_LEAVE_S = 25.0  # the staging daemon has to free memory
GIVES_UP = 3
OPTIONS = ("--attempt-folder", "--launch", "--node", "--job", "--watch-after", "--keep")
USAGE = (
    "usage: ftrun-hook guard --attempt-folder FOLDER --launch N [--node NAME] [--job ID] [--keep KEEP WORDS, ONE A LINE]\n"
    "                        [--watch-after SECONDS -- WATCH WORDS]\n"
    "Ends, once a second, what earlier starts of a run left on this node, until the job ends."
)


class FenceDaemon:
    """Reads `current` of one attempt; `look` is called about once a second."""

    def __init__(self, folder: str, job: str, node: str, launch: str) -> None:
        self.folder, self.job, self.node, self.launch = folder, job, node, launch
        self._seen = ""
        self._changed_ns, self._looks, self._answered = 0, 0, ""
        self._again: list[float] = []
        self.child, self._child_until_s = 0, 0.0

    def look(self, now_s: float) -> bool:
        """Read `current` at the time `now_s` (monotonic). True if a child was started to kill processes."""
        self._collect(now_s)
        token = self._current()
        if token and token != self._seen:
            self._seen = token
            self._again = [now_s + pause_s for pause_s in (0.0, *AGAIN_S)]
        if not self._again or now_s < self._again[0] or self.child:
            return False
        self._again = [at_s for at_s in self._again if at_s > now_s]
        self._send()
        return True

    def _current(self) -> str:
        try:
            # Opening the folder makes a network file system revalidate its content.
            place = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._answer(place)
                return os.readlink("current", dir_fd=place)
            finally:
                os.close(place)
        except OSError:
            return ""

    def _answer(self, place: int) -> None:
        """Answer the agent's question, if it names this node."""
        changed_ns = os.fstat(place).st_mtime_ns
        if changed_ns != self._changed_ns:
            self._changed_ns, self._looks = changed_ns, LOOKS
        if not self._looks:
            return
        self._looks -= 1
        try:
            number, _, nodes = os.readlink("asked", dir_fd=place).partition(" ")
            if number != self._answered and number.isdigit() and self.node in nodes.split(","):
                name = f"heard/{self.node}.{number}"
                os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=place))
                self._answered = number
        except OSError:
            return

    def _send(self) -> None:
        """Fork a child that imports what it needs, kills what must end, records it, and exits."""
        self.child, self._child_until_s = os.fork(), time.monotonic() + CHILD_S
        if self.child:
            return
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
                signal.signal(number, signal.SIG_IGN)  # it exits within seconds, and finishes what it began
            _kill_earlier(self.folder, self._seen, self.job, self.node, self.launch)
        finally:
            os._exit(0)

    def _collect(self, now_s: float) -> None:
        if not self.child:
            return
        try:
            gone = os.waitpid(self.child, os.WNOHANG)[0] != 0
        except ChildProcessError:
            gone = True
        if gone or now_s > self._child_until_s:
            self.child = 0


def _kill_earlier(folder: str, token: str, job: str, node: str, launch: str) -> None:
    """Runs in the child. What it killed is one line of JSON in `guarded.<launch>.<node>` of the folder."""
    import json

    from ftrun.hooks.ranks import kill_stale

    try:
        here = kill_stale.present_start(
            folder,
            "closed" if token.startswith("closed") else token,
            job,
            os.environ.get("SLURM_CLUSTER_NAME", ""),
        )
    except UsageError:  # the link is no token
        return
    swept = kill_stale.kill_stale(here, 0.0)
    if swept.killed or swept.left:
        line = json.dumps({"at_s": round(time.time(), 3), "current": token, **swept.told(node)}) + "\n"
        name = os.path.join(folder, f"guarded.{launch}.{node}")
        number = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(number, line.encode())
        os.close(number)


class _Child:
    """A child process, started when due; `again`: restart it unless it exits with GIVES_UP."""

    def __init__(self, name: str, words: list[str], due_s: Optional[float], *, again: bool = False) -> None:
        self.name, self.words, self.due_s, self.again, self.pid = name, words, due_s, again, 0
        self.pause_s = AGAIN_S[0]

    def tend(self, now_s: float) -> None:
        """Start it when it is due; reap it."""
        if self.due_s is not None and now_s >= self.due_s:
            self.due_s = None
            env = environment_for_helper({**os.environ, HAS_MERGER: "1"})
            self.pid = os.posix_spawn(sys.executable, own_command(self.name, *self.words), env)
        if self.pid:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = self.pid, 0
            if pid:
                self.pid = 0
                if self.again and status >> 8 != GIVES_UP:
                    self.due_s = now_s + self.pause_s
                    self.pause_s = min(self.pause_s * 2, AGAIN_S[-1])


def main(arguments: list[str]) -> int:
    """Run until the job ends. Always 0: this step's status must not become the job's in Slurm."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    parent = Parent()
    words, watch_words = parse_options("guard", arguments, *OPTIONS)
    folder, launch, node, job, watch_after, keep_words = (words.get(name, "") for name in OPTIONS)
    launch = launch or "0"
    if not folder or not launch.isdigit():
        raise UsageError("--attempt-folder or --launch is missing; `ftrun-hook guard --help` tells more")
    if watch_after and not watch_after.replace(".", "", 1).isdigit():
        raise UsageError("--watch-after is no number of seconds")
    guard = FenceDaemon(folder, job or os.environ.get("SLURM_JOB_ID", ""), node_name(node), launch)
    began_s = time.monotonic()
    watch = _Child("watch", watch_words, began_s + float(watch_after) if watch_after else None)
    keep = _Child("staging-daemon", keep_words.splitlines(), began_s if keep_words else None, again=True)
    caches = PeriodicMerge(os.path.join(folder, "nodes"), launch, began_s)
    _install_signal_handlers(guard, watch, keep, caches)
    while not parent.is_gone and (keep.pid or not _Ending.asked):
        now_s = time.monotonic()
        guard.look(now_s)
        watch.tend(now_s)
        keep.tend(now_s)
        caches.poll(now_s)
        time.sleep(PERIOD_S)
    return 0


class _Ending:
    """Whether the job is ending; set by the signal handler."""

    asked = False


def _install_signal_handlers(guard: FenceDaemon, watch: _Child, keep: _Child, caches: PeriodicMerge) -> None:
    """Exit silently when told to, the node monitor first; ignore signals meant for the job's own steps."""

    def leave(number: int, _frame: object) -> None:
        caches.stop()
        try:
            for child in (watch, keep):
                if child.pid:
                    os.kill(child.pid, number)
            if number != signal.SIGUSR2 and keep.pid:
                keep.again, _Ending.asked = False, True
                return
            # A child that is killing processes still records what it killed.
            for pid, limit_s in ((watch.pid, LEAVE_S), (guard.child, LEAVE_S), (keep.pid, KEEP_LEAVE_S)):
                give_up_s = time.monotonic() + limit_s
                while pid and time.monotonic() < give_up_s and not os.waitpid(pid, os.WNOHANG)[0]:
                    time.sleep(0.01)
        except OSError:
            pass
        os._exit(0)

    handle_end_signals(leave)
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as stream:
            stream.write("1000")
    except OSError:
        pass
