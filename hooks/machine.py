"""The machine that a check looks at: commands and files, each with a deadline. (I/O)

How it thinks. A sick machine does not answer: a command hangs on a lost device, a file on a dead mount. So nothing is read without a
time limit, and what may hang in the kernel is asked by a child process that can be left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import BinaryIO, Callable, NamedTuple, Optional, Union

__all__ = ["Machine", "NoAnswer", "Output"]

OUTPUT_BYTES_MAX = 8 << 20
PIECE_BYTES = 1 << 16
USUAL_PATH = (
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/rocm/bin:/usr/local/nvidia/bin"
)


class NoAnswer(Exception):
    """The machine did not answer in time: what was asked, in one line."""


class Output(NamedTuple):
    """What a command left behind; `code` is None when it was ended at its deadline."""

    code: Optional[int]
    out: str
    err: str


class Machine:
    """This machine. `root` ("/" but for tests) is where /proc, /sys and /etc are looked for; `deadline_s` is monotonic.

    `shelf` is a folder where checks that run side by side leave what a slow command said, so that it is asked once.
    """

    def __init__(self, root: str = "/", deadline_s: Optional[float] = None, shelf: str = "") -> None:
        self.root = root
        self._deadline_s = deadline_s
        self._shelf = shelf

    def path(self, name: str) -> str:
        """An absolute path below `root`."""
        return os.path.join(self.root, name.lstrip("/"))

    def tool(self, name: str) -> Optional[str]:
        """The full path of a command: from PATH or the usual places of drivers; None where it is not installed."""
        return shutil.which(name) or shutil.which(name, path=USUAL_PATH)

    def left_s(self, limit_s: float) -> float:
        """`limit_s`, or what is left of the check's own time."""
        if self._deadline_s is None:
            return limit_s
        return max(0.0, min(limit_s, self._deadline_s - time.monotonic()))

    def run(self, argv: Sequence[str], limit_s: float = 10.0) -> Output:
        """Run a command in English with a deadline. Raises NoAnswer where it cannot be started or does not end in time."""
        env = {**os.environ, "LC_ALL": "C", "LANG": "C"}
        path = self.tool(argv[0])
        if path is None:
            raise NoAnswer(f"{argv[0]} is not installed")
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
        """As `run`, but whoever asks the same on the same shelf gets the first answer, be it that there was none."""
        leaf = self._leaf("\0".join(argv))
        if leaf is None:
            return self.run(argv, limit_s)
        try:
            give_up = time.monotonic() + self.left_s(limit_s)
            while not _locked(leaf):
                if time.monotonic() > give_up:
                    raise NoAnswer(f"{argv[0]} did not end within {limit_s:g} s")
                time.sleep(0.02)
            told = os.pread(leaf, OUTPUT_BYTES_MAX * 4, 0) or _kept(leaf, self._answered(argv, limit_s))
        finally:
            os.close(leaf)
        answer = json.loads(told)
        if isinstance(answer, str):
            raise NoAnswer(answer)
        return Output._make(answer)

    def _leaf(self, question: str) -> Optional[int]:
        """The open file that holds the answer to a question, or will; None where there is no shelf."""
        if not self._shelf:
            return None
        import hashlib  # a quarter of the memory of a watch, which has no shelf

        name = hashlib.sha256(question.encode()).hexdigest()
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
        """The text of a small file; None where there is none or it may not be read. Raises NoAnswer where it hangs."""

        def content() -> bytes:
            with open(self.path(name), "rb") as stream:
                return _whole(stream)

        answer = self.ask(content, limit_s, name)
        return None if answer is None else _text(answer)

    def read_all(self, names: Sequence[str], limit_s: float = 3.0) -> dict[str, str]:
        """The texts of many small files, stripped; one that cannot be read is missing. Raises NoAnswer where one hangs."""

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
        """The names in a folder, sorted; [] where there is none. For /proc and /sys, which do not hang."""
        try:
            return sorted(os.listdir(self.path(name)))
        except OSError:
            return []

    def peek(self, name: str) -> Optional[str]:
        """As `read`, but without a child of its own: for the many small files of /proc and /sys, which do not hang."""
        try:
            with open(self.path(name), "rb") as stream:
                return _text(_whole(stream))
        except OSError:
            return None

    def ask(self, question: Callable[[], bytes], limit_s: float, about: str) -> Optional[bytes]:
        """The answer of a function that may hang in the kernel, asked in a child process; None where it raises OSError.

        Raises NoAnswer when the time is up; a child that cannot be killed is left to the kernel.
        """
        answer = self.ask_all({about: question}, limit_s)[about]
        if isinstance(answer, NoAnswer):
            raise answer
        return answer

    def ask_all(
        self, questions: Mapping[str, Callable[[], bytes]], limit_s: float
    ) -> dict[str, Union[bytes, NoAnswer, None]]:
        """As `ask`, many side by side: by what was asked about, its answer, None, or the NoAnswer of one that hangs."""
        readers: dict[int, str] = {}
        children = []
        for about, question in questions.items():
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
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


def _kept(leaf: int, answer: Union[Output, str]) -> bytes:
    """Write an answer for whoever asks next; where there is no room for it, they ask themselves."""
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


def _answer(question: Callable[[], bytes], writer: int) -> None:
    """The child's part: write `+` and the answer, or `-`, and leave without any cleaning up."""
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


def _let_go(child: subprocess.Popen[bytes]) -> None:
    """Close our ends and wait a moment; a child in the kernel's hands is not waited for."""
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(1.0)
    child.returncode = child.returncode if child.returncode is not None else -signal.SIGKILL


def _whole(stream: BinaryIO) -> bytes:
    """All of a file, in pieces: a file of /proc/sys refuses to be read by megabytes."""
    pieces, left = [], OUTPUT_BYTES_MAX
    while left > 0:
        piece = stream.read(min(left, PIECE_BYTES))
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _text(content: bytes) -> str:
    return content[:OUTPUT_BYTES_MAX].decode("utf-8", "replace")
