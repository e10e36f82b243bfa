"""A child process that answers requests one at a time, in lines of JSON, and is killed at a timeout. (I/O)

The kernel can kill the child; nothing else is expected of it. It may hang, die, or print garbage, the reply
to another request, half a line, or endless lines, on either output. Each of these raises `NoAnswer`, after
which the child is gone; the only difference is whether an effect may have begun (the child announces it at
the last moment). Writing has a timeout as well: a child that does not read would block a long request. Other
threads run during the wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence

PROTOCOL = 1
LINE_BYTES_MAX = 256 * 1024 * 1024
"""Longest answer. 10,000 jobs are 2 MiB."""

_AT_ONCE_BYTES = 1 << 20
_TOLD_BYTES_MAX = 2000  # of the child's stderr


class NoAnswer(Exception):
    """The child failed: `begun` if an effect may have happened, `hung` if our timeout killed it."""

    def __init__(self, why: str, *, begun: bool = False, hung: bool = False) -> None:
        super().__init__(why)
        self.why, self.begun, self.hung = why, begun, hung


class SlurmAnswered(Exception):
    """Slurm's error, or "unreachable"; `begun` as above. The child itself works."""

    def __init__(self, words: str, *, begun: bool) -> None:
        super().__init__(words)
        self.words, self.begun = words, begun


class NotSupported(Exception):
    """The child leaves this to Slurm's commands; nothing was done."""


class Child:
    """One child process of this `version`. Raises NoAnswer if it does not start within `hello_s`."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], *, hello_s: float) -> None:
        try:
            self._process = subprocess.Popen(
                list(argv),
                env=dict(env),
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for ftrun; the child ends when ftrun does
            )
        except OSError as wrong:
            raise NoAnswer(f"cannot start {argv[0]}: {wrong.strerror}") from wrong
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._in, self._out, self._err = self._process.stdin, self._process.stdout, self._process.stderr
        for stream in (self._in, self._out, self._err):
            os.set_blocking(stream.fileno(), False)
        self._heard = bytearray()
        self._searched = 0
        self._told = b""
        self._asked = 0
        self.version = self._hello(hello_s)

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return not self._out.closed and self._process.poll() is None

    def _hello(self, hello_s: float) -> str:
        try:
            line = next(self._lines(b"", time.monotonic() + hello_s, hello_s))
            if line.get("hello") != PROTOCOL:
                raise NoAnswer(f"no greeting: {_short(line)}")
            if "cannot" in line:
                raise NoAnswer(str(line["cannot"]))
        except NoAnswer:
            self.end()
            raise
        return str(line.get("pyslurm", ""))

    def ask(self, do: str, timeout_s: float, **words: object) -> object:
        """Its reply. Raises SlurmAnswered, NotSupported, or NoAnswer, after which the child is gone."""
        self._asked += 1
        question = json.dumps({"id": self._asked, "do": do} | words).encode() + b"\n"
        begun = False
        try:
            for line in self._lines(question, time.monotonic() + timeout_s, timeout_s):
                if line.get("id") != self._asked:
                    raise NoAnswer(f"an answer to another question: {_short(line)}")
                if "begun" not in line:
                    return _meaning(line, begun=begun)
                begun = True
        except NoAnswer as wrong:
            # Output from before the kill is still in the pipe.
            late = self.end(f'"id": {self._asked}, "begun"'.encode())
            raise NoAnswer(wrong.why, begun=begun or late, hung=wrong.hung) from wrong
        raise AssertionError("lines end by an exception only")

    def _lines(self, unsent: bytes, deadline_s: float, timeout_s: float) -> Iterator[dict[str, object]]:
        """Yield objects as they arrive, while writing `unsent`; ends by NoAnswer."""
        rest = memoryview(unsent)
        with selectors.DefaultSelector() as selector:
            for stream in (self._out, self._err):
                selector.register(stream, selectors.EVENT_READ)
            if rest:
                selector.register(self._in, selectors.EVENT_WRITE)
            while True:
                yield from self._whole_lines()
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise NoAnswer(f"no answer within {timeout_s:g} s", hung=True)
                ready = {key.fileobj for key, _ in selector.select(left_s)}
                if self._in in ready:
                    rest = rest[self._write(rest) :]
                    if not rest:
                        selector.unregister(self._in)
                if self._err in ready and not self._listen_aside():
                    selector.unregister(self._err)
                if self._out in ready:
                    self._listen()

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._in.fileno(), data)
        except BlockingIOError:
            return 0
        except OSError as wrong:
            raise NoAnswer(self._how_it_ended()) from wrong

    def _listen(self) -> None:
        with contextlib.suppress(BlockingIOError):
            more = os.read(self._out.fileno(), _AT_ONCE_BYTES)
            if not more:
                raise NoAnswer(self._how_it_ended())
            self._heard += more

    def _listen_aside(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            more = os.read(self._err.fileno(), _AT_ONCE_BYTES)
            self._told = (self._told + more)[-_TOLD_BYTES_MAX:]
            return bool(more)
        return True

    def _whole_lines(self) -> Iterator[dict[str, object]]:
        while (end := self._heard.find(b"\n", self._searched)) >= 0:
            line = bytes(self._heard[:end])
            del self._heard[: end + 1]
            self._searched = 0
            yield _object(line)
        self._searched = len(self._heard)
        if len(self._heard) > LINE_BYTES_MAX:
            raise NoAnswer("an answer without an end")

    def _how_it_ended(self) -> str:
        """Its last words, which libslurm prints before it ends a process."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2)
        self._listen_aside()
        code = self._process.poll()
        last = self._told.decode("utf-8", "replace").strip().splitlines()[-1:]
        how = "closed its output" if code is None else f"signal {-code}" if code < 0 else f"exit {code}"
        return f"its process ended ({how})" + "".join(f": {line[:200]}" for line in last)

    def end(self, wanted: bytes = b"\n") -> bool:
        """Kill it. True if `wanted` is in its unread output."""
        if self._out.closed:
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(BlockingIOError):
            while len(self._heard) <= LINE_BYTES_MAX and (
                more := os.read(self._out.fileno(), _AT_ONCE_BYTES)
            ):
                self._heard += more
        for stream in (self._in, self._out, self._err):
            with contextlib.suppress(OSError):
                stream.close()
        return wanted in self._heard


def _meaning(line: dict[str, object], *, begun: bool) -> object:
    if "ok" in line:
        return line["ok"]
    if "other" in line:
        raise NotSupported(str(line["other"]))
    told = line.get("rpc")
    if isinstance(told, list) and len(told) == 2:
        raise SlurmAnswered(str(told[1]), begun=begun)
    raise NoAnswer(str(line.get("broken", _short(line)))[:400], begun=begun)


def _object(line: bytes) -> dict[str, object]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise NoAnswer(f"no answer but: {line[:80].decode('utf-8', 'replace')!r}")
    return found


def _short(line: object) -> str:
    return json.dumps(line)[:80]
