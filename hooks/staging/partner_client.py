"""Copies the parts staged on this node into the memory of another node: a thread of the staging daemon. (I/O)

Once a second it reads the sealed parts and `ring.json`, which names this node's partner and the lost nodes.
The newest part is copied first, since a start resumes from it. A copy that fails is reported and repeated
after a growing pause. It also manages the copies of other nodes here: it publishes those of a lost node in
that node's name, and removes what no start will need.

There is one transport: a step of srun starts `ftrun-hook receive` (partner_server) on the partner, and
messages go through srun's stdin and stdout. Files go over a TCP connection that the step opens to this node
(`runtime.channel`). If that fails they go through srun too, which is slow: slurmstepd forwards a kilobyte at
a time. A transfer without progress is given up, and the part counts as not copied.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ftrun.hooks.checkpoints.manifest import MARKER
from ftrun.hooks.runtime import channel as runtime_channel
from ftrun.hooks.runtime.ownership import RUNNER
from ftrun.hooks.runtime.start_processes import token_of
from ftrun.hooks.staging import copy, inventory, publish
from ftrun.hooks.staging.copy import Disk
from ftrun.hooks.staging.inventory import StoredPart, file_path
from ftrun.hooks.staging.partner_map import Copies, RingFile, put_copies
from ftrun.hooks.staging.records import Home, Publishing, seal_json

PERIOD_S = 1.0
NICE = 19
AGAIN_S = (2.0, 5.0, 15.0, 60.0)  # after so many failures in a row


class PartnerConfig(NamedTuple):
    """Where copies are stored and published: `base` is the job's folder on its nodes."""

    base: str
    attempt_folder: str
    node: str
    job: str
    to: str
    owner: bytes = b"{}"


class PartnerClient:
    """The copies of one node; `run_round` is called about once a second."""

    def __init__(self, config: PartnerConfig, route: Optional[Route] = None) -> None:
        self.config, self.home = config, Home(config.base)
        self.route = route or Route()
        self.report = Copies()
        self._file = RingFile(config.attempt_folder)
        self._ring = self._file.ring
        self._given: dict[tuple[str, str, str], float] = {}  # (partner, token, set) -> when it was sealed
        self._sums: dict[str, StoredPart] = {}
        self._published: set[tuple[str, str, str]] = set()
        self._out: set[str] = set()
        self._failures, self._again_s, self._reported = 0, 0.0, False
        self._is_over = threading.Event()

    def run_forever(self) -> None:
        """The thread: rounds until `stop`."""
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while not self._is_over.is_set():
            done = False
            try:
                done = self.run_round(time.monotonic())
            except Exception as error:  # noqa: BLE001  our mistake must not end this thread
                print(f"ftrun-hook: partner: {error}", file=sys.stderr)
            if not done:
                self._is_over.wait(PERIOD_S)

    def stop(self) -> None:
        """Copy nothing any more; a transfer breaks off."""
        self._is_over.set()
        self.route.stop()

    def run_round(self, now_s: float) -> bool:
        """One round (`now_s`: monotonic); True if a part was copied or published. Raises OSError."""
        self._ring = self._file.look()
        done = self._publish_lost()
        self._clear()
        partner = self._ring.to.get(self.config.node, "")
        if partner and now_s >= self._again_s:
            part = self._next(partner)
            if part is not None:
                done = self._copy_part(part, partner) or done
        self._report(partner)
        return done

    def _worth_copying(self) -> list[StoredPart]:
        """The newest part and all unpublished ones, newest first."""
        own = sorted(inventory.own_parts(self.home), key=_newest, reverse=True)
        return [one for at, one in enumerate(own) if one.seal.files and (not at or not self._is_out(one))]

    def _is_out(self, part: StoredPart) -> bool:
        """Whether its set is published."""
        if part.path not in self._out and os.path.exists(f"{self.config.to}/{part.seal.name}/{MARKER}"):
            self._out.add(part.path)
        return part.path in self._out

    def _next(self, partner: str) -> Optional[StoredPart]:
        """The newest part that the partner does not have."""
        missing = (
            one
            for one in self._worth_copying()
            if self._given.get((partner, *_set_key(one))) != one.seal.sealed_s
        )
        return next(missing, None)

    def _copy_part(self, part: StoredPart, partner: str) -> bool:
        given = [
            _set_key(one)
            for one in inventory.own_parts(self.home)
            if (partner, *_set_key(one)) in self._given
        ]
        # The partner keeps the previous copy until this one is complete.
        own = list(dict.fromkeys((*map(_set_key, self._worth_copying()), *given[:1])))
        job = self._ring.jobs.get(partner, self.config.job)
        target = Target(partner, job, self.config.base, self._ring.limit, own)
        try:
            sent = send(self._summed(part), target, self.route)
        except (OSError, copy.Changed) as error:
            sent = Sent(False, str(error))
        if not sent.kept:
            self._again_s = time.monotonic() + AGAIN_S[min(self._failures, len(AGAIN_S) - 1)]
            self._failures += 1
            self.report = self.report._replace(why=sent.why)
            return False
        self._failures = 0
        self._given = {one: at_s for one, at_s in self._given.items() if one[0] == partner and one[1:] in own}
        self._given[(partner, *_set_key(part))] = part.seal.sealed_s
        self.report = self.report._replace(
            way=sent.way,
            bytes_per_s=round(self.route.bytes_per_s),
            linked_bytes=self.report.linked_bytes + sent.linked_bytes,
            why="",
        )
        return True

    def _summed(self, part: StoredPart) -> StoredPart:
        """The part with all checksums, computed once. Raises OSError, copy.Changed."""
        known = self._sums.get(part.path)
        if known is None or known.seal.sealed_s != part.seal.sealed_s or inventory.first_changed(known):
            self._sums = {part.path: inventory.summed(part)}
        return self._sums[part.path]

    def _copies_here(self) -> list[StoredPart]:
        return [part for part in inventory.stored_parts(self.home) if not part.is_own]

    def _publish_lost(self) -> bool:
        """Copy the parts of lost nodes to the shared file system in their names."""
        done = False
        for part in self._copies_here() if self._ring.lost else ():
            seal = part.seal
            key = (seal.node, seal.token, seal.name)
            if seal.node not in self._ring.lost or key in self._published or inventory.first_changed(part):
                continue
            to = Publishing(self.config.to, seal.name, self.config.job, seal.token)
            try:
                owner = self.config.owner
                if not publish.is_published(to.to, seal, owner) and not publish.has_part(to, seal.node):
                    publish.copy_and_publish(Disk(), to, seal, part.path, owner=owner, pace=lambda _: None)
            except (OSError, copy.Changed) as error:
                self.report = self.report._replace(why=f"for {seal.node}: {error}"[:200])
                continue
            self._published.add(key)
            done = True
        return done

    def _clear(self) -> None:
        """Remove copies, and views of earlier starts, that no start will need."""
        ring = self._ring
        for part in self._copies_here():
            node = part.seal.node
            is_present = token_of(part.seal.token) == token_of(ring.token)
            if is_present or ring.to.get(node) == self.config.node:
                continue
            if node in ring.to or self._is_newer_published():
                _remove_copy(part)
        self._make_room()
        # A start to come is not in the ring yet; its view stays.
        now = token_of(ring.token) or (0, 0)
        old = [name for name in inventory.listed(self.home.views) if (token_of(name) or (0, 0)) < now]
        for name in old if old and self._is_newer_published() else ():
            inventory.remove(f"{self.home.views}/{name}")

    def _make_room(self) -> None:
        """Remove older copies if this node exceeds its limit; each node's newest copy stays."""
        kept = sorted(self._copies_here(), key=_newest, reverse=True)
        newest = {part.seal.node: part.path for part in reversed(kept)}
        spare = [part for part in kept if newest[part.seal.node] != part.path]
        while spare and not inventory.room_bytes(self.home, self._ring.limit):
            _remove_copy(spare.pop())

    def _is_newer_published(self) -> bool:
        """Whether a checkpoint of this start is published: no start resumes from an older copy then."""
        own = (part.seal for part in inventory.own_parts(self.home) if part.seal.token == self._ring.token)
        return any(os.path.exists(f"{self.config.to}/{seal.name}/{MARKER}") for seal in own)

    def _report(self, partner: str) -> None:
        given = sorted((token, name) for of, token, name in self._given if of == partner)
        kept = sorted((part.seal.node, part.seal.token, part.seal.name) for part in self._copies_here())
        report = self.report._replace(partner=partner, given=given, kept=kept)
        if report != self.report or (partner and not self._reported):
            put_copies(self.config.attempt_folder, self.config.node, report)
            self._reported = True
        self.report = report


def _set_key(part: StoredPart) -> tuple[str, str]:
    return part.seal.token, part.seal.name


def _newest(part: StoredPart) -> tuple[tuple[int, int], float, str]:
    return token_of(part.seal.token) or (0, 0), part.seal.sealed_s, part.seal.name


def _remove_copy(part: StoredPart) -> None:
    inventory.remove(f"{part.path}.json")
    inventory.remove(part.path)


SOCKET, STREAM = "socket", "stream"  # a connection of its own, and within srun's streams
PIECE = 1 << 18
ANSWERS_S = 40.0  # a step may wait for its node
STALLS_S = 20.0
CALLED_S = runtime_channel.CALL_S + 1.0
WORTH_BYTES = 8 << 20  # a smaller transfer does not measure the speed
SLOWEST_BYTES_PER_S = 2e6
REST_S = 3600.0  # before a connection is tried again after it failed
USUAL_PATH = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin:/opt/slurm/bin"


class PeerLost(Exception):
    """The other end is gone, has stalled, or cannot be reached; the message says why."""


class Target(NamedTuple):
    """The receiver of a part: a node of Slurm job `job`. `base`: the folder of the run's job on each node;
    `limit`: how much it may take there; `keep`: the (token, set) pairs that the sender still has (None: all
    copies there stay).
    """

    node: str
    job: str
    base: str
    limit: str
    keep: Optional[Sequence[tuple[str, str]]] = None


class Sent(NamedTuple):
    """The result: `kept` there, or `why` not; bytes sent, bytes linked there, seconds, and the way."""

    kept: bool
    why: str = ""
    sent_bytes: int = 0
    linked_bytes: int = 0
    seconds: float = 0.0
    way: str = ""


class Route:
    """Whether files go over a TCP connection (`is_direct`), and the speed of the last large part."""

    def __init__(self, *, is_direct: bool = True) -> None:
        self.bytes_per_s = 0.0
        self._rests_until_s = 0.0 if is_direct else math.inf
        self._channel: Optional[_Channel] = None
        self._is_over = False

    @contextlib.contextmanager
    def open(self, target: Target) -> Iterator[_Channel]:
        """A channel to another node. Raises PeerLost, OSError."""
        if self._is_over:
            raise PeerLost("the job ends")
        with contextlib.closing(_Channel(_remote_command(target))) as channel:
            self._channel = channel
            try:
                yield channel
            finally:
                self._channel = None

    def stop(self) -> None:
        """Break off the present transfer; there will be no other."""
        self._is_over, channel = True, self._channel
        if channel is not None:
            channel.kill()

    def ways(self, now_s: float) -> Sequence[str]:
        """The ways to try, in order."""
        return (SOCKET, STREAM) if now_s >= self._rests_until_s else (STREAM,)

    def note(self, sent: Sent, failed: Sequence[str], now_s: float) -> None:
        """A part arrived after the ways `failed`; a connection that failed is not tried for REST_S."""
        if failed:
            self._rests_until_s = now_s + REST_S
        if sent.sent_bytes >= WORTH_BYTES and sent.seconds > 0:
            self.bytes_per_s = sent.sent_bytes / sent.seconds


def send(part: StoredPart, target: Target, route: Route) -> Sent:
    """Send a part with all checksums to another node; failures are in the result, never raised."""
    began_s, failed, why = time.monotonic(), [], ""
    for way in route.ways(began_s):
        try:
            with route.open(target) as channel:
                sent = _send_part(channel, part, target, way)
        except (PeerLost, OSError, ValueError, KeyError) as error:
            why = f"{way}: {getattr(error, 'strerror', None) or error}"
            failed.append(way)
            continue
        if sent.kept:
            route.note(sent, failed, time.monotonic())
        return sent._replace(way=way)
    return Sent(False, why, seconds=time.monotonic() - began_s)


def _send_part(channel: _Channel, part: StoredPart, target: Target, way: str) -> Sent:
    """The sender's half of the protocol. Raises PeerLost, OSError."""
    channel.say({"seal": seal_json(part.seal), "keep": target.keep, "limit": target.limit})
    answer = channel.hear(ANSWERS_S)
    if answer.get("have"):
        return Sent(True, linked_bytes=part.seal.size_bytes)
    if "want" not in answer:
        return Sent(False, str(answer.get("refused", "it makes no sense"))[:200])
    began_s, sent_bytes = time.monotonic(), 0
    with contextlib.ExitStack() as opened:
        line = None
        if way == SOCKET:
            line = opened.enter_context(_connection(channel, str(answer.get("srun", ""))))
        for inner in answer["want"]:
            path, size_bytes = file_path(part, inner), part.seal.files[inner].size_bytes
            channel.say({"file": inner, "size_bytes": size_bytes, "line": line is not None})
            if line is not None:
                _send_file(line, path, size_bytes)
            else:
                channel.send(path, size_bytes)
            sent_bytes += size_bytes
    channel.say({"end": True})
    done = channel.hear(ANSWERS_S + sent_bytes / SLOWEST_BYTES_PER_S)
    seconds = time.monotonic() - began_s
    if not done.get("done"):
        return Sent(False, str(done.get("why", "it makes no sense"))[:200], sent_bytes, 0, seconds)
    return Sent(True, "", sent_bytes, int(done.get("linked_bytes", 0)), seconds)


def _connection(channel: _Channel, address: str) -> socket.socket:
    """A TCP connection to the other end, whose srun is at this address of ours. Raises PeerLost, OSError."""
    if not address:
        raise PeerLost("srun does not say where it is")
    with contextlib.closing(runtime_channel.Listener(address)) as listener:
        channel.say({"call": listener.port, "secret": listener.secret})
        line = listener.answer(CALLED_S)
        line.settimeout(STALLS_S)
        return line


def _send_file(line: socket.socket, path: str, size_bytes: int) -> None:
    """Send `size_bytes` of a file. Raises PeerLost if it is shorter, OSError."""
    with open(path, "rb") as stream:
        if size_bytes and line.sendfile(stream, 0, size_bytes) < size_bytes:
            raise PeerLost(f"{path} has become shorter")


class _Channel:
    """A command with pipes to and from it. Raises PeerLost if it is gone or silent for too long."""

    def __init__(self, args: Sequence[str]) -> None:
        self._child = subprocess.Popen(
            args,
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
        """Close its input, upon which it exits; kill it otherwise."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with contextlib.suppress(OSError):
            self._child.stdin.close()
        for number in (None, signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                self.kill(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(2.0 if number is None else 0.5)
                break
        self._child.stdout.close()

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send the command a signal."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, number)

    def say(self, word: Mapping[str, Any]) -> None:
        """One line."""
        self._write(json.dumps(word).encode() + b"\n")

    def send(self, path: str, size_bytes: int) -> None:
        """Send `size_bytes` of a file."""
        left = size_bytes
        with open(path, "rb", buffering=0) as stream:
            while left:
                piece = stream.read(min(PIECE, left))
                if not piece:
                    raise PeerLost(f"{path} has become shorter")
                self._write(piece)
                left -= len(piece)

    def hear(self, limit_s: float) -> Mapping[str, Any]:
        """The next line from there."""
        give_up_s = time.monotonic() + limit_s
        while b"\n" not in self._heard:
            left_s = give_up_s - time.monotonic()
            if left_s <= 0 or not select.select([self._out], [], [], left_s)[0]:
                raise PeerLost("it says nothing")
            more = os.read(self._out, 1 << 16)
            if not more:
                raise PeerLost(self._end())
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return {**json.loads(line)}

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            if not select.select([], [self._in], [], STALLS_S)[1]:
                raise PeerLost("it takes nothing")
            try:
                rest = rest[os.write(self._in, rest) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise PeerLost(self._end()) from None

    def _end(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"it ended with {self._child.wait(1.0)}"
        return "it went away"


def _remote_command(target: Target) -> list[str]:
    """The command that starts the other end."""
    line = _hook_line(["receive", "--base", target.base])
    srun = shutil.which("srun", path=_environment()["PATH"])
    if srun is None:
        raise PeerLost("there is no srun here")
    # No GPU: in a job with --gpus a step would ask for all of them.
    return [
        srun, f"--jobid={target.job}", "--job-name=ftrun", "--overlap", "--nodes=1", "--ntasks=1",
        f"--nodelist={target.node}", "--mem=0", "--gres=none", "--cpu-bind=none", "--mpi=none",
        "--export=NONE", "--kill-on-bad-exit=0", "--no-kill", "--wait=0", "--quiet",
        "--unbuffered", "--chdir=/", "/bin/sh", "-c", line,
    ]  # fmt: skip


def _hook_line(args: Sequence[str]) -> str:
    """A line of sh that runs `ftrun-hook ARGS` on another node, from the same file, with its Python."""
    own = os.path.abspath(sys.argv[0])
    if not own.endswith(".pyz"):
        safe = "-P " * (sys.version_info >= (3, 11))  # the folder in which it starts is no place of modules
        return f"exec {shlex.quote(sys.executable)} {safe}-m ftrun.hooks.main {shlex.join(args)}"
    return (
        f"PATH={USUAL_PATH}; export PATH; "
        f"for p in /usr/bin/python3 python3 {shlex.quote(sys.executable)}; do "
        '"$p" -IS -c "import sys; sys.exit(sys.version_info < (3, 9))" 2>/dev/null && '
        f'exec "$p" -IS -c {shlex.quote(RUNNER)} {shlex.quote(own)} {shlex.join(args)}; done'
    )


def _environment() -> dict[str, str]:
    """What srun needs, and nothing that changes its behaviour."""
    slurm = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_KEY", "SLURM_SACK_SOCKET", "USER")
    found = {name: os.environ[name] for name in slurm if name in os.environ}
    path = f"{os.environ.get('PATH', '')}:{USUAL_PATH}"
    return {**found, "HOME": os.path.expanduser("~"), "PATH": path, "LC_ALL": "C"}
