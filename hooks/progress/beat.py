"""The heartbeat of a training loop: `from ftrun.hooks import beat`, then `beat(step)` once a step. (I/O)

    beat(step)                  # in each step; a plain number
    beat(step, phase="eval")    # before something long: "eval", "checkpoint", "compile", "data", or your own word
    beat(step, phase="sync")    # optional: this rank's own work of the step is done, it waits for others now
    beat.save_wanted()          # True once for each requested checkpoint
    beat.done()                 # training is over, silence from here on is no hang

Training never waits for this: a call stores numbers (under a microsecond), and a thread does the rest once a
second: it overwrites the line in `$FTRUN_BEAT_DIR/<rank>` in place. Nothing raises: a bad folder costs the
beats, and a file system that hangs stops only the thread. In jobs of more than 512 ranks each rank writes less
often, down to every 15 s.

- **Rank.** SLURM_PROCID comes last, because mpirun and torchrun pass on that of the task that started them. A
  forked child (a data loader) is silent while its parent lives.
- **Fencing.** `$FTRUN_ATTEMPT_DIR/current` names the present start. A process with a lower FTRUN_START_TOKEN
  is left over (its node was frozen or out of reach). It exits with 143 before it can overwrite its successor's
  checkpoints, unless FTRUN_FENCE=off. A link that cannot be read ends no process, nor does another job's.
- **Stacks.** faulthandler listens to an unused signal, named in the file as `stack_signal` (0: none;
  FTRUN_STACK_SIGNAL=off), and writes to `$FTRUN_BEAT_DIR/<rank>.stack`. After an exec nobody listens and the
  signal would kill, so a sender first checks SigCgt in /proc/PID/status.
- **Own time.** `own_s` over `own_n` steps, the seconds between `beat(step)` and `beat(step, phase="sync")`,
  tells a straggler from the ranks that wait for it.
- **No progress.** After STILL_S without a call the thread adds where the training thread is (a digest of its
  stack and its innermost frames), and processor time and bytes of this process and its children.
- **Saving.** Ranks see a request at different steps: let one call `save_wanted` and broadcast the answer.
"""

from __future__ import annotations

import operator
import os
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, Optional

from ftrun.hooks.runtime import start_processes

__all__ = ["beat", "done", "save_wanted"]

RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
EVERY_S = 1.0
RANKS_EVERY_S = 512  # all ranks together write at most so often in a second
EVERY_S_MAX = 15.0
LINE_BYTES = 640  # every line has this length, so that a shorter one overwrites a longer one completely
FENCED = 143
DONE_WITHIN_S = 1.0
STILL_S = 5.0
FRAMES_MAX = 64
TOP_CHARS = 160
CHILDREN_MAX = 64
FIRST_SIGNAL = 8  # above SIGRTMIN: libraries of threads and fabrics use the first few

_clock = time.monotonic


class _State:
    """The state of one process: the training loop writes, the thread reads each field atomically."""

    def __init__(self, parent: int = 0) -> None:
        self.parent = parent  # the beating process of which this one is a fork
        self.thread: Any = None
        self.refused_s: Optional[float] = None  # when the thread could not be started
        self.turn = [
            True
        ]  # whoever pops it starts the thread: two threads would overwrite each other's beats
        self.step: Any = None
        self.phase = ""
        self.n = 0
        self.at_s = 0.0
        self.began_s = 0.0  # start of the current step, 0 = not in a step
        self.own_s = 0.0
        self.own_n = 0
        self.ident = 0  # id of the training thread
        self.asks = False
        self.wish = ""
        self.answered = ""
        self.wake: Any = None
        self.written: Any = None


_heart = _State()


def beat(step: object = None, phase: str = "") -> None:
    """Report that training is at `step`, and in which phase ("" = stepping). Never raises, never waits."""
    heart = _heart
    now_s = _clock()
    if not phase:
        heart.began_s = now_s
    elif phase == "sync" and heart.began_s:
        heart.own_s += now_s - heart.began_s
        heart.own_n += 1
        heart.began_s = 0.0
    else:
        heart.began_s = 0.0
    heart.step, heart.phase, heart.at_s = step, phase, now_s
    heart.n += 1
    if heart.thread is None:
        _start(heart)


def save_wanted() -> bool:
    """Whether a checkpoint is requested that this process was not told of yet. At most a second old."""
    heart = _heart
    heart.asks = True
    if heart.thread is None:
        _start(heart)
    wish = heart.wish
    if not wish or wish == heart.answered:
        return False
    heart.answered = wish
    return True


def done() -> None:
    """Training is over: silence is no hang from here on. Waits at most a second for that to be written."""
    heart = _heart
    beat(heart.step, "done")
    if heart.thread is not None and heart.thread is not True and heart.thread.is_alive():
        heart.written.clear()
        heart.wake.set()
        heart.written.wait(DONE_WITHIN_S)


def _start(heart: _State) -> None:
    """Start the thread; without a folder to write to, remember that for good."""
    if not any(os.environ.get(name) for name in ("FTRUN_BEAT_DIR", "FTRUN_RUN_DIR")):
        heart.thread = True
        return
    if heart.parent and os.getppid() == heart.parent:
        return
    if heart.refused_s is not None and _clock() - heart.refused_s < EVERY_S_MAX:
        return
    try:
        heart.turn.pop()
    except IndexError:  # another thread of the training is starting it
        return
    import threading

    heart.ident = threading.get_ident()
    heart.wake, heart.written = threading.Event(), threading.Event()
    thread = threading.Thread(target=_Writer(heart).work, name="ftrun-beat", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads, or the interpreter is exiting
        heart.refused_s = _clock()
        heart.turn.append(True)
        return
    heart.thread = thread


def _forked() -> None:
    """In a forked child: it has no thread, and is silent while its parent beats."""
    global _heart  # noqa: PLW0603 - the state of this process
    before = _heart
    beats = before.thread is not None and before.thread is not True
    _heart = _State(os.getppid() if beats else before.parent)


os.register_at_fork(after_in_child=_forked)


class _Writer:
    """Runs in the thread: writes beats, reads save requests, and ends a process of an earlier start."""

    def __init__(self, heart: _State) -> None:
        env = os.environ
        self.heart = heart
        self.folder = env.get("FTRUN_BEAT_DIR", "")
        self.rank = str(int(next((rank for name in RANKS if (rank := env.get(name, "")).isdigit()), "0")))
        self.host = os.uname().nodename[:64]
        self.token = env.get("FTRUN_START_TOKEN", "")
        self.attempt = env.get("FTRUN_ATTEMPT_DIR", "")
        self.run_dir = env.get("FTRUN_RUN_DIR", "")
        ranks = env.get("WORLD_SIZE") or env.get("SLURM_NTASKS") or "1"
        ranks_n = int(ranks) if ranks.isdigit() else 1
        self.every_s = min(EVERY_S_MAX, max(EVERY_S, ranks_n / RANKS_EVERY_S))
        self.stack_signal = 0
        self.stack_file: Any = None
        self.told_n = -1
        self.told_s = 0.0

    def work(self) -> None:
        """Run until the process ends."""
        if not self._is_ours():
            return
        fenced = self.token and self.attempt and os.environ.get("FTRUN_FENCE", "") != "off"
        self._listen()
        heart = self.heart
        while True:
            if heart.n != self.told_n or _clock() - self.told_s >= STILL_S:
                self._write()
            if heart.n == self.told_n:
                heart.written.set()
            if fenced:
                self._check_fence()
            if heart.asks and self.run_dir:
                heart.wish = _first_line(os.path.join(self.run_dir, "save-now"))
            heart.wake.wait(self.every_s)
            heart.wake.clear()

    def _is_ours(self) -> bool:
        """False in a job that merely inherited the environment of the one it was submitted from."""
        job = os.environ.get("SLURM_JOB_ID", "")
        if not job or not self.attempt or not self.token:
            return True
        launch = os.path.join(self.attempt, "launch." + self.token.partition(".")[0])
        named = _value(launch, "job")
        return not named or named == job

    def _write(self) -> None:
        heart = self.heart
        n, at_s = heart.n, heart.at_s
        self.told_s = _clock()
        if not self.folder or not n:
            return
        told = {
            "rank": int(self.rank),
            "pid": os.getpid(),
            "host": self.host,
            "step": _whole(heart.step),
            "phase": str(heart.phase or "")[:16],
            "n": n,
            "t": round(time.time() - (_clock() - at_s), 3),
            "stack_signal": self.stack_signal,
            "own_s": round(heart.own_s, 4),
            "own_n": heart.own_n,
        }
        if _clock() - at_s >= STILL_S:
            told["still"] = {"at": round(_clock(), 1), **_where(heart.ident), **_used()}
        import json

        line = json.dumps(told, separators=(",", ":")).encode().ljust(LINE_BYTES - 1) + b"\n"
        try:
            place = os.open(os.path.join(self.folder, self.rank), os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(place, line, 0)
            finally:
                os.close(place)  # a network file system publishes a file at close
            self.told_n = n
        except FileNotFoundError:
            _make(self.folder)
        except OSError:
            return

    def _check_fence(self) -> None:
        try:
            current = os.readlink(os.path.join(self.attempt, "current"))
        except OSError:
            return
        if start_processes.is_over(self.token, current):
            _write_stderr(
                f"ftrun: rank {self.rank} is of start {self.token}, the present one is {current}: it ends itself\n"
            )
            os._exit(FENCED)

    def _listen(self) -> None:
        """Let faulthandler write all stacks into a file of ours at an unused signal."""
        if not self.folder or os.environ.get("FTRUN_STACK_SIGNAL", "") == "off":
            return
        import faulthandler

        number = _free_signal()
        _make(self.folder)
        try:
            self.stack_file = open(os.path.join(self.folder, self.rank + ".stack"), "wb", opener=_private)  # noqa: SIM115 - open for good
            if number:
                faulthandler.register(number, file=self.stack_file, all_threads=True, chain=False)
                self.stack_signal = number
        except (OSError, ValueError, RuntimeError):
            self.stack_signal = 0


def _where(ident: int) -> dict[str, Any]:
    """Where the training thread is: `stack` changes when it moves, `top` are its innermost frames."""
    import zlib

    frame: Any = sys._current_frames().get(ident)  # noqa: SLF001 - the documented way to another thread's stack
    names, digest, depth = [], 0, 0
    while frame is not None and depth < FRAMES_MAX:
        code = frame.f_code
        digest = zlib.crc32(
            f"{code.co_filename}:{code.co_name}:{frame.f_lineno}".encode("utf-8", "replace"), digest
        )
        if depth < 3:
            folder, _, file = code.co_filename.rpartition("/")
            names.append(f"{folder.rpartition('/')[2]}/{file}:{code.co_name}")
        frame, depth = frame.f_back, depth + 1
    return {"stack": f"{digest:08x}", "top": " < ".join(names)[:TOP_CHARS]}


def _used() -> dict[str, Any]:
    """Processor seconds and bytes moved, of this process and its children; `stuck`: one waits for I/O."""
    cpu_ticks, size_bytes, stuck = 0, 0, False
    waiting, seen = [os.getpid()], 0
    while waiting and seen < CHILDREN_MAX:
        pid, seen = waiting.pop(), seen + 1
        fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if len(fields) > 13:
            cpu_ticks += int(fields[11]) + int(fields[12])
            stuck = stuck or fields[0] == "D"
        io = dict(line.split(": ", 1) for line in _read(f"/proc/{pid}/io").splitlines() if ": " in line)
        size_bytes += int(io.get("rchar", "0")) + int(io.get("wchar", "0"))
        for task in _names(f"/proc/{pid}/task"):
            waiting += [int(child) for child in _read(f"/proc/{pid}/task/{task}/children").split()]
    return {"cpu_s": round(cpu_ticks / os.sysconf("SC_CLK_TCK"), 2), "io_bytes": size_bytes, "stuck": stuck}


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _free_signal() -> int:
    """A real-time signal that this process neither catches, ignores nor blocks; 0 without one."""
    import signal

    used = 0
    for name in ("SigCgt", "SigIgn", "SigBlk"):
        text = _value("/proc/self/status", name, ":")
        if not text:
            return 0
        used |= int(text, 16)
    numbers = range(signal.SIGRTMIN + FIRST_SIGNAL, signal.SIGRTMAX)
    return next((number for number in numbers if not used >> (number - 1) & 1), 0)


def _value(path: str, name: str, sep: str = "=") -> str:
    """The value of a `name=value` line; "" without one, or without the file."""
    lines = _read(path).splitlines()
    return next((line[len(name) + 1 :].strip() for line in lines if line.startswith(name + sep)), "")


def _first_line(path: str) -> str:
    """The text of a save request, "now" for an empty one. "" = there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.readline(256).strip() or "now"
    except OSError:
        return ""


def _whole(step: Any) -> Optional[int]:
    try:
        return operator.index(step)
    except (TypeError, ValueError, RuntimeError):  # a tensor may raise any of these
        return int(step) if isinstance(step, float) and step == step // 1 else None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _make(folder: str) -> None:
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError:
        return


def _write_stderr(text: str) -> None:
    """Write to stderr if that does not block: never wait for a full pipe."""
    import select

    try:
        poller = select.poll()
        poller.register(2, select.POLLOUT)
        if poller.poll(0):
            os.write(2, text.encode())
    except OSError:
        return


class Beat(ModuleType):
    """This module as a callable: `beat(step)`, however the module was imported."""

    save_wanted: Callable[[], bool]
    done: Callable[[], None]

    def __call__(self, step: object = None, phase: str = "") -> None:
        beat(step, phase)


sys.modules[__name__].__class__ = Beat
