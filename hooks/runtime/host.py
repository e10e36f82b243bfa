"""The machine that a check examines: commands and files, each read with a deadline. (I/O)

A sick machine does not answer: a command hangs on a lost device, a file on a dead mount. So nothing is read
without a time limit. What may hang in the kernel is read by a child process that can be abandoned; in a
process that can itself be abandoned a thread does it, which costs a twentieth. Modules that only some checks
need are imported late, because all nodes of a job start at the same moment.

`UsageError` is the only error of a hook that is not swallowed.
"""

from __future__ import annotations

import _thread
import contextlib
import fcntl
import json
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, Union

TYPE_CHECKING = False
if TYPE_CHECKING:
    from subprocess import Popen


OUTPUT_BYTES_MAX = 8 << 20
PIECE_BYTES = 1 << 16
USUAL_PATH = (
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/rocm/bin:/usr/local/nvidia/bin"
)


class NoAnswer(Exception):
    """The machine did not answer in time: what was asked, in one line."""


class Output(NamedTuple):
    """The result of a command; `code` is None if it was killed at its deadline."""

    code: Optional[int]
    out: str
    err: str


class Machine:
    """This machine. `root` ("/" except in tests) is where /proc, /sys and /etc are; `deadline_s` is
    monotonic. `shelf` is a folder where checks that run in parallel cache answers of slow commands.
    `disposable`: this process may be abandoned itself with whatever hangs in it.
    """

    def __init__(
        self,
        root: str = "/",
        deadline_s: Optional[float] = None,
        shelf: str = "",
        *,
        disposable: bool = False,
    ) -> None:
        self.root = root
        self._deadline_s = deadline_s
        self._shelf = shelf
        self._disposable = disposable

    def path(self, name: str) -> str:
        """An absolute path below `root`."""
        return os.path.join(self.root, name.lstrip("/"))

    def tool(self, name: str) -> Optional[str]:
        """The full path of a command, from PATH or the usual folders of drivers; None if it is not installed."""
        if "/" in name:
            return name if _is_command(name) else None
        folders = [*os.environ.get("PATH", os.defpath).split(":"), *USUAL_PATH.split(":")]
        paths = (os.path.join(folder, name) for folder in dict.fromkeys(folders) if folder)
        return next(filter(_is_command, paths), None)

    def has(self, need: str) -> bool:
        """Whether an absolute path exists, or a command is installed."""
        return os.path.exists(self.path(need)) if need.startswith("/") else self.tool(need) is not None

    def left_s(self, limit_s: float) -> float:
        """`limit_s`, or what is left of the check's own time if that is less."""
        if self._deadline_s is None:
            return limit_s
        return max(0.0, min(limit_s, self._deadline_s - time.monotonic()))

    def run(self, argv: Sequence[str], limit_s: float = 10.0) -> Output:
        """Run a command under LC_ALL=C with a deadline. Raises NoAnswer if it does not start or end."""
        env = {**os.environ, "LC_ALL": "C", "LANG": "C"}
        path = self.tool(argv[0])
        if path is None:
            raise NoAnswer(f"{argv[0]} is not installed")
        import subprocess

        try:
            with subprocess.Popen(
                [path, *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                start_new_session=True,
            ) as child:
                try:
                    out, err = child.communicate(timeout=self.left_s(limit_s))
                except subprocess.TimeoutExpired:
                    with contextlib.suppress(OSError):
                        os.killpg(child.pid, signal.SIGKILL)
                    _let_go(child)
                    raise NoAnswer(f"{argv[0]} did not end within {limit_s:g} s") from None
        except OSError as error:
            raise NoAnswer(f"{argv[0]} cannot be started: {error.strerror}") from None
        return Output(child.returncode, _text(out), _text(err))

    def once(self, argv: Sequence[str], limit_s: float = 10.0) -> Output:
        """As `run`, memoised per `shelf`; failures are cached too."""
        if not self._shelf:
            return self.run(argv, limit_s)
        answer = self.shared("\0".join(argv), lambda: self._answered(argv, limit_s), limit_s, argv[0])
        if isinstance(answer, str):
            raise NoAnswer(answer)
        return Output._make(answer)

    def shared(self, question: str, ask: Callable[[], Any], limit_s: float, about: str) -> Any:
        """The answer of `ask` (plain data, as in JSON), memoised per `shelf`. Raises NoAnswer."""
        leaf = self._leaf(question)
        if leaf is None:
            return ask()
        try:
            give_up = time.monotonic() + self.left_s(limit_s)
            while not _locked(leaf):
                if time.monotonic() > give_up:
                    raise NoAnswer(f"{about} did not end within {limit_s:g} s")
                time.sleep(0.02)
            told = os.pread(leaf, OUTPUT_BYTES_MAX * 4, 0) or _kept(leaf, ask())
        finally:
            os.close(leaf)
        return json.loads(told)

    def _leaf(self, question: str) -> Optional[int]:
        """The open cache file for a question; None without a shelf."""
        if not self._shelf:
            return None
        import zlib  # importing hashlib takes as long as all other imports together

        name = f"{zlib.crc32(question.encode()):08x}{zlib.adler32(question.encode()):08x}{len(question)}"
        try:
            return os.open(os.path.join(self._shelf, name), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return None

    def _answered(self, argv: Sequence[str], limit_s: float) -> Union[Output, str]:
        try:
            return self.run(argv, limit_s)
        except NoAnswer as error:
            return str(error)

    def read(self, name: str, limit_s: float = 2.0) -> Optional[str]:
        """The text of a small file; None if it cannot be read. Raises NoAnswer if it hangs."""

        answer = self.ask(lambda: _whole(self.path(name)), limit_s, name)
        return None if answer is None else _text(answer)

    def read_all(self, names: Sequence[str], limit_s: float = 3.0) -> dict[str, str]:
        """The stripped texts of small files, without unreadable ones. Raises NoAnswer if one hangs."""

        def contents() -> bytes:
            told = {}
            for name in names:
                with contextlib.suppress(OSError), open(self.path(name), "rb") as stream:
                    told[name] = _text(stream.read(1 << 16)).strip()
            return json.dumps(told).encode()

        answer = self.ask(contents, limit_s, names[0] if names else "nothing")
        texts: dict[str, str] = json.loads(answer or b"{}")
        return texts

    def names(self, name: str) -> list[str]:
        """The sorted names in a folder; [] if there is none. For /proc and /sys, which do not hang."""
        try:
            return sorted(os.listdir(self.path(name)))
        except OSError:
            return []

    def peek(self, name: str) -> Optional[str]:
        """As `read` without a child: for the many small files of /proc and /sys, which do not hang."""
        try:
            return _text(_whole(self.path(name)))
        except OSError:
            return None

    def number(self, name: str) -> Optional[int]:
        """The number in a small file of /proc or /sys; None without one."""
        text = (self.peek(name) or "").strip()
        return int(text) if text.isdigit() else None

    def uptime_s(self) -> float:
        """Seconds since boot; 0 if they cannot be read."""
        return float((self.peek("/proc/uptime") or "0").split()[0])

    def ask(self, question: Callable[[], bytes], limit_s: float, about: str) -> Optional[bytes]:
        """The answer of a function that may hang in the kernel, run in a child process; None if it raises
        OSError. Raises NoAnswer when time is up; a child that cannot be killed is left to the kernel.
        """
        answer = self.ask_all({about: question}, limit_s)[about]
        if isinstance(answer, NoAnswer):
            raise answer
        return answer

    def ask_all(
        self, questions: Mapping[str, Callable[[], bytes]], limit_s: float
    ) -> dict[str, Union[bytes, NoAnswer, None]]:
        """As `ask` for many keys in parallel: key -> answer, None, or the NoAnswer of one that hangs."""
        if self._disposable:
            return _by_threads(questions, self.left_s(limit_s))
        readers: dict[int, str] = {}
        children = []
        for about, question in questions.items():
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                for one in (reader, *readers):  # else its write waits for ever once its parent was killed
                    os.close(one)
                _answer(question, writer)
            os.close(writer)
            readers[reader] = about
            children.append(child)
        try:
            return _received(readers, self.left_s(limit_s))
        finally:
            for reader in readers:
                os.close(reader)
            for child in children:
                with contextlib.suppress(OSError):
                    os.kill(child, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child, os.WNOHANG)


def _kept(leaf: int, answer: Any) -> bytes:
    """Write an answer to the cache file; without space for it the others ask themselves."""
    told = json.dumps(answer).encode()
    try:
        written = os.write(leaf, told)
    except OSError:
        written = 0
    if written < len(told):
        os.ftruncate(leaf, 0)
    return told


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _by_threads(
    questions: Mapping[str, Callable[[], bytes]], limit_s: float
) -> dict[str, Union[bytes, NoAnswer, None]]:
    give_up = time.monotonic() + limit_s
    answers: dict[str, Union[bytes, NoAnswer, None]] = {}
    waiting = {}
    for about, question in questions.items():
        waiting[about] = lock = _thread.allocate_lock()
        lock.acquire()
        _thread.start_new_thread(_put, (question, answers, about, lock))
    for about, lock in waiting.items():
        if not lock.acquire(timeout=max(0.0, give_up - time.monotonic())):
            answers[about] = NoAnswer(f"{about} did not answer within {limit_s:g} s")
    return answers.copy()  # a late answer must not change it


def _put(
    question: Callable[[], bytes],
    answers: dict[str, Union[bytes, NoAnswer, None]],
    about: str,
    lock: _thread.LockType,
) -> None:
    """Runs in a thread: store the answer, or None for any error, as a child that dies says nothing either."""
    answer = None
    try:
        answer = question()
    except Exception as error:  # noqa: BLE001  a defect of ours is handled as in a child: no answer
        if not isinstance(error, OSError):
            os.write(2, f"ftrun-hook: {about}: {type(error).__name__}: {error}\n".encode())
    finally:
        answers[about] = answer
        lock.release()


def _is_command(path: str) -> bool:
    return os.access(path, os.X_OK) and not os.path.isdir(path)


def _answer(question: Callable[[], bytes], writer: int) -> None:
    """Runs in the child: write `+` and the answer, or `-`, and exit without cleanup."""
    try:
        told = b"+" + question()
    except OSError:
        told = b"-"
    try:
        while told:
            told = told[os.write(writer, told) :]
    finally:
        os._exit(0)


def _received(readers: Mapping[int, str], limit_s: float) -> dict[str, Union[bytes, NoAnswer, None]]:
    give_up = time.monotonic() + limit_s
    got = dict.fromkeys(readers, b"")
    waiting = set(readers)
    while waiting:
        ready, _, _ = select.select(list(waiting), [], [], max(0.0, give_up - time.monotonic()))
        if not ready:
            break
        for reader in ready:
            chunk = os.read(reader, 1 << 16)
            got[reader] += chunk
            if not chunk:
                waiting.remove(reader)
    answers: dict[str, Union[bytes, NoAnswer, None]] = {}
    for reader, about in readers.items():
        if reader in waiting:
            answers[about] = NoAnswer(f"{about} did not answer within {limit_s:g} s")
        else:
            answers[about] = got[reader][1:] if got[reader].startswith(b"+") else None
    return answers


def _let_go(child: Popen[bytes]) -> None:
    """Close our ends and wait a moment; a child that hangs in the kernel is abandoned."""
    from subprocess import TimeoutExpired

    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()
    with contextlib.suppress(TimeoutExpired):
        child.wait(1.0)
    child.returncode = child.returncode if child.returncode is not None else -signal.SIGKILL


def _whole(path: str) -> bytes:
    """The whole file in pieces, since /proc/sys refuses large reads; no stream, as there are thousands."""
    pieces, left = [], OUTPUT_BYTES_MAX
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while left > 0:
            piece = os.read(descriptor, min(left, PIECE_BYTES))
            if not piece:
                break
            pieces.append(piece)
            left -= len(piece)
    finally:
        os.close(descriptor)
    return b"".join(pieces)


def _text(content: bytes) -> str:
    return content[:OUTPUT_BYTES_MAX].decode("utf-8", "replace")


class UsageError(Exception):
    """A hook was called wrongly: the message says in one line what is wrong and how to fix it."""
