"""Sends a sealed part of a staged checkpoint to another node, by whatever way is there, and is told that it lies there whole. (I/O)

How it thinks. The other end is `ftrun-hook receive` (see there), started on that node by a step of Slurm or over SSH; both talk by the same words. How the bytes go:

    socket   over a connection of its own between the two nodes, which the step opens to srun's node (see direct)
    ssh      within the talk; the user must be let in without a word
    sbcast   Slurm's own broadcast of a file to the node of the talk's step; small files within the talk
    stream   within the talk, through srun: slurmstepd hands on a kilobyte at a time, so it is the slowest, and it is always there

Which is best differs from cluster to cluster, so each is tried with real files and remembered by what it brought: an untried one goes first, then the fastest. One
that failed is left alone for a while. Nobody waits for a node that is silent: what makes no progress is given up, and the part counts as not copied.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ftrun.hooks import direct
from ftrun.hooks.at_hand import Part, file_path
from ftrun.hooks.ownership import RUNNER
from ftrun.hooks.staged import seal_json

__all__ = ["WAYS", "Lost", "Rates", "Sent", "Target", "hook_line", "send"]

WAYS = ("socket", "sbcast", "ssh", "stream")
PIECE = 1 << 18
ANSWERS_S = 40.0  # a step may wait for its node
STALLS_S = 20.0
CALLED_S = direct.CALL_S + 1.0
SMALL_BYTES = 1 << 20  # such a file goes within the talk: to start sbcast takes longer
WORTH_BYTES = 8 << 20  # what says something of how fast a way is
SLOWEST_BYTES_PER_S = 2e6
REST_S = 3600.0  # for a way that failed
USUAL_PATH = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin:/opt/slurm/bin"


class Lost(Exception):
    """The other end is gone, stalls, or cannot be reached; the message says why."""


class Target(NamedTuple):
    """Who is to keep the part: a node of Slurm job `job`. `base` is the folder of the run's job on each node, `limit` how much it may take there, `keep` the (token, set)
    that the sender still has (None: leave alone what is there). `ssh_config`: a file for ssh, "" = its own.
    """

    node: str
    job: str
    base: str
    limit: str
    keep: Optional[Sequence[tuple[str, str]]] = None
    ssh_config: str = ""


class Sent(NamedTuple):
    """What came of it: `kept` there, else `why` not; bytes that were sent and that were linked there, seconds, and the way."""

    kept: bool
    why: str = ""
    sent_bytes: int = 0
    linked_bytes: int = 0
    seconds: float = 0.0
    way: str = ""


class Rates:
    """What the ways have brought, in bytes a second. `ways`: those that may be tried."""

    def __init__(self, ways: Sequence[str] = WAYS) -> None:
        self.known: dict[str, float] = {}
        self._ways = tuple(ways)
        self._failed: dict[str, float] = {}

    def order(self, now_s: float) -> list[str]:
        """The ways to try now, the best first: what is untried before what is known, a stream through srun only where nothing else is."""
        usable = [way for way in self._ways if now_s >= self._failed.get(way, float("-inf")) + REST_S]
        untried = [way for way in usable if way not in self.known and way != "stream"]
        known = sorted((way for way in usable if way in self.known), key=lambda way: -self.known[way])
        return [*untried, *known, *(way for way in usable if way == "stream" and way not in known)]

    def note(self, way: str, sent_bytes: int, seconds: float) -> None:
        """A part went that way; what is too small says nothing, beyond that it works."""
        self._failed.pop(way, None)
        if sent_bytes >= WORTH_BYTES and seconds > 0:
            self.known[way] = sent_bytes / seconds

    def fail(self, way: str, now_s: float) -> None:
        """That way did not work."""
        self._failed[way] = now_s


def send(part: Part, target: Target, rates: Rates) -> Sent:
    """Bring a part, whose seal has all sums, to another node. Never raises for what goes wrong there, nor for a file that changed here."""
    began_s, why = time.monotonic(), "there is no way to that node"
    for way in rates.order(began_s):
        try:
            with contextlib.closing(_Talk(_words(way, target))) as talk:
                sent = _converse(talk, part, target, way)
        except (Lost, OSError, ValueError, KeyError) as error:
            why = f"{way}: {getattr(error, 'strerror', None) or error}"
            rates.fail(way, time.monotonic())
            continue
        if sent.kept:
            rates.note(way, sent.sent_bytes, sent.seconds)
        return sent._replace(way=way)
    return Sent(False, why, seconds=time.monotonic() - began_s)


def _converse(talk: _Talk, part: Part, target: Target, way: str) -> Sent:
    """The sender's half of the talk. Raises Lost, OSError."""
    talk.say({"seal": seal_json(part.seal), "keep": target.keep, "limit": target.limit})
    answer = talk.hear(ANSWERS_S)
    if answer.get("have"):
        return Sent(True, linked_bytes=part.seal.size_bytes)
    if "want" not in answer:
        return Sent(False, str(answer.get("refused", "it makes no sense"))[:200])
    began_s, sent_bytes, step = time.monotonic(), 0, str(answer.get("step", ""))
    with contextlib.ExitStack() as opened:
        line = opened.enter_context(_line(talk, str(answer.get("srun", "")))) if way == "socket" else None
        for number, inner in enumerate(answer["want"]):
            path, size_bytes = file_path(part, inner), part.seal.files[inner].size_bytes
            if way == "sbcast" and step and size_bytes > SMALL_BYTES:
                _broadcast(path, f"{target.job}.{step}", f"{answer['into']}/{number}", size_bytes)
                talk.say({"file": inner, "lies": str(number)})
            elif line is not None:
                talk.say({"file": inner, "size_bytes": size_bytes, "line": True})
                _over(line, path, size_bytes)
            else:
                talk.say({"file": inner, "size_bytes": size_bytes})
                talk.send(path, size_bytes)
            sent_bytes += size_bytes
    talk.say({"end": True})
    done = talk.hear(ANSWERS_S + sent_bytes / SLOWEST_BYTES_PER_S)
    seconds = time.monotonic() - began_s
    if not done.get("done"):
        return Sent(False, str(done.get("why", "it makes no sense"))[:200], sent_bytes, 0, seconds)
    return Sent(True, "", sent_bytes, int(done.get("linked_bytes", 0)), seconds)


def _line(talk: _Talk, address: str) -> socket.socket:
    """A connection of its own to the other end, which was started from this address of ours. Raises Lost, OSError."""
    if not address:
        raise Lost("srun does not say where it is")
    with contextlib.closing(direct.Listener(address)) as listener:
        talk.say({"call": listener.port, "secret": listener.secret})
        line = listener.answer(CALLED_S)
        line.settimeout(STALLS_S)
        return line


def _over(line: socket.socket, path: str, size_bytes: int) -> None:
    """So many bytes of a file, which must be as long. Raises Lost, OSError."""
    with open(path, "rb") as stream:
        if size_bytes and line.sendfile(stream, 0, size_bytes) < size_bytes:
            raise Lost(f"{path} has become shorter")


def _broadcast(path: str, step: str, to: str, size_bytes: int) -> None:
    """A file to the node of a step of ours. Raises Lost."""
    words = [_tool("sbcast"), "--force", f"--jobid={step}", path, to]
    limit_s = ANSWERS_S + size_bytes / SLOWEST_BYTES_PER_S
    try:
        done = subprocess.run(
            words,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Lost(f"sbcast: {getattr(error, 'strerror', None) or 'it takes too long'}") from None
    if done.returncode:
        raise Lost(
            (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["sbcast failed"])[-1][:200]
        )


# ---------------------------------------------------------------------- the talk


class _Talk:
    """A command with a pipe to it and one from it. Raises Lost where it is gone or says nothing for too long."""

    def __init__(self, words: Sequence[str]) -> None:
        self._child = subprocess.Popen(
            words,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # signals that are sent to our group are not for it
            bufsize=0,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._in, self._out = self._child.stdin.fileno(), self._child.stdout.fileno()
        os.set_blocking(self._in, False)
        self._heard = b""

    def close(self) -> None:
        """Its input ends, upon which it leaves; one that does not is ended."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        for number in (None, signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._child.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(2.0 if number is None else 0.5)
                break
        self._child.stdout.close()

    def say(self, word: Mapping[str, Any]) -> None:
        """One line."""
        self._write(json.dumps(word).encode() + b"\n")

    def send(self, path: str, size_bytes: int) -> None:
        """So many bytes of a file, which must be as long."""
        left = size_bytes
        with open(path, "rb", buffering=0) as stream:
            while left:
                piece = stream.read(min(PIECE, left))
                if not piece:
                    raise Lost(f"{path} has become shorter")
                self._write(piece)
                left -= len(piece)

    def hear(self, limit_s: float) -> Mapping[str, Any]:
        """The next line from there."""
        give_up_s = time.monotonic() + limit_s
        while b"\n" not in self._heard:
            left_s = give_up_s - time.monotonic()
            if left_s <= 0 or not select.select([self._out], [], [], left_s)[0]:
                raise Lost("it says nothing")
            more = os.read(self._out, 1 << 16)
            if not more:
                raise Lost(self._end())
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return {**json.loads(line)}

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            if not select.select([], [self._in], [], STALLS_S)[1]:
                raise Lost("it takes nothing")
            try:
                rest = rest[os.write(self._in, rest) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise Lost(self._end()) from None

    def _end(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"it ended with {self._child.wait(1.0)}"
        return "it went away"


def _words(way: str, target: Target) -> list[str]:
    """The command that starts the other end."""
    line = hook_line(["receive", "--base", target.base])
    if way == "ssh":
        own = ["-F", target.ssh_config] if target.ssh_config else []
        options = [
            "BatchMode=yes",
            "ConnectTimeout=5",
            "ServerAliveInterval=5",
            "ServerAliveCountMax=3",
            "LogLevel=ERROR",
        ]
        return [
            _tool("ssh"),
            "-T",
            *own,
            *(word for one in options for word in ("-o", one)),
            "--",
            target.node,
            line,
        ]
    # No GPU: a step of a job whose GPUs were counted in all (--gpus) would want them all.
    return [
        _tool("srun"), f"--jobid={target.job}", "--job-name=ftrun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={target.node}",
        "--mem=0", "--gres=none", "--cpu-bind=none", "--mpi=none", "--export=NONE", "--kill-on-bad-exit=0", "--no-kill", "--wait=0", "--quiet",
        "--unbuffered", "--chdir=/", "/bin/sh", "-c", line,
    ]  # fmt: skip


def hook_line(words: Sequence[str]) -> str:
    """A line of sh that runs `ftrun-hook WORDS` on another node: the same file as ours, by whatever Python is there."""
    own = os.path.abspath(sys.argv[0])
    if not own.endswith(".pyz"):
        safe = "-P " * (sys.version_info >= (3, 11))  # the folder in which it starts is no place of modules
        return f"exec {shlex.quote(sys.executable)} {safe}-m ftrun.hooks.main {shlex.join(words)}"
    return (
        f"PATH={USUAL_PATH}; export PATH; for p in /usr/bin/python3 python3 {shlex.quote(sys.executable)}; do "
        '"$p" -IS -c "import sys; sys.exit(sys.version_info < (3, 9))" 2>/dev/null && '
        f'exec "$p" -IS -c {shlex.quote(RUNNER)} {shlex.quote(own)} {shlex.join(words)}; done'
    )


def _environment() -> dict[str, str]:
    """What Slurm's commands and ssh need, and nothing that changes what they do."""
    kept = (
        "SLURM_CONF",
        "SLURM_CONF_SERVER",
        "SLURM_JWT",
        "SLURM_SACK_KEY",
        "SLURM_SACK_SOCKET",
        "HOME",
        "USER",
    )
    found = {name: os.environ[name] for name in kept if name in os.environ}
    if "HOME" not in found:
        found["HOME"] = os.path.expanduser("~")
    return {**found, "PATH": f"{os.environ.get('PATH', '')}:{USUAL_PATH}", "LC_ALL": "C"}


def _tool(name: str) -> str:
    found = shutil.which(name, path=_environment()["PATH"])
    if found is None:
        raise Lost(f"there is no {name} here")
    return found
