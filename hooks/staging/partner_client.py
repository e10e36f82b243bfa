"""`ftrun-hook partner`: keeps a copy of what this node has staged in the memory of another node. (I/O)

It is a process of its own beside the staging daemon: a partner that is dead, or a network that stands still,
holds up nothing else. Once a second it looks at what is sealed here and at `ring.json`, which says who keeps
our copy and who is lost. The newest sealed part goes first, since a start resumes from it. A copy that the
partner refuses, or that does not arrive, is reported and tried again after a growing pause.

It also looks after the copies that lie here. Where their node is lost it publishes them in that node's name.
Copies go when their node gives its copies to another node; those of a lost node go when a checkpoint of a
later start is published.

There is one transport. The other end is `ftrun-hook receive` (partner_server), which a step of srun starts on
that node; messages go through srun's stdin and stdout. Files go over a TCP connection that the step opens to
this node (see direct). Where such a connection cannot be made they go through srun as well, which is slow:
slurmstepd passes on a kilobyte at a time. A transfer that makes no progress is given up, and the part counts
as not copied.
"""

from __future__ import annotations

import argparse
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
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ftrun.hooks.checkpoints.manifest import MARKER
from ftrun.hooks.runtime import channel as runtime_channel
from ftrun.hooks.runtime.host import UsageError
from ftrun.hooks.runtime.ownership import RUNNER
from ftrun.hooks.runtime.parent import Parent
from ftrun.hooks.runtime.start_processes import token_of
from ftrun.hooks.staging import copy, inventory, publish
from ftrun.hooks.staging.copy import Disk
from ftrun.hooks.staging.inventory import StoredPart, file_path
from ftrun.hooks.staging.partner_map import Copies, RingFile, put_copies
from ftrun.hooks.staging.records import Home, Publishing, seal_json

__all__ = ["PartnerClient", "PartnerConfig", "PeerLost", "Route", "Sent", "Target", "main", "send"]

PERIOD_S = 1.0
AGAIN_S = (2.0, 5.0, 15.0, 60.0)  # after so many failures in a row


class PartnerConfig(NamedTuple):
    """Where copies lie and are published: `base` is the job's folder on its nodes."""

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

    def run_round(self, now_s: float) -> bool:
        """One round at the time `now_s` (monotonic). True where a part was copied or published.

        Raises OSError (the attempt's folder).
        """
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

    # ------------------------------------------------------------------ giving

    def _worth_copying(self) -> list[StoredPart]:
        """The parts that are worth a copy, newest first: the newest, and what is not published yet."""
        own = sorted(inventory.own_parts(self.home), key=_newest, reverse=True)
        return [one for at, one in enumerate(own) if one.seal.files and (not at or not self._is_out(one))]

    def _is_out(self, part: StoredPart) -> bool:
        """Its set is published."""
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
        own = list(
            dict.fromkeys((*map(_set_key, self._worth_copying()), *given[:1]))
        )  # the last one until this one is whole
        ring = self._ring
        job = ring.jobs.get(partner, self.config.job)
        target = Target(partner, job, self.config.base, ring.limit, own)
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
        now = (partner, *_set_key(part))
        self._given[now] = part.seal.sealed_s
        self.report = self.report._replace(
            way=sent.way,
            bytes_per_s=round(self.route.bytes_per_s),
            linked_bytes=self.report.linked_bytes + sent.linked_bytes,
            why="",
        )
        return True

    def _summed(self, part: StoredPart) -> StoredPart:
        """The part with all sums, which are made once. Raises OSError, copy.Changed."""
        known = self._sums.get(part.path)
        if known is None or known.seal.sealed_s != part.seal.sealed_s or inventory.first_changed(known):
            self._sums = {part.path: inventory.summed(part)}
        return self._sums[part.path]

    # ------------------------------------------------------------------ keeping

    def _copies_here(self) -> list[StoredPart]:
        return [part for part in inventory.stored_parts(self.home) if not part.is_own]

    def _publish_lost(self) -> bool:
        """Bring the parts of lost nodes to the shared file system in their names."""
        done = False
        for part in self._copies_here() if self._ring.lost else ():
            seal = part.seal
            key = (seal.node, seal.token, seal.name)
            if seal.node not in self._ring.lost or key in self._published or inventory.first_changed(part):
                continue
            to = Publishing(self.config.to, seal.name, self.config.job, seal.token)
            try:
                if not publish.is_published(to.to, seal, self.config.owner) and not publish.has_part(
                    to, seal.node
                ):
                    publish.copy_and_publish(
                        Disk(), to, seal, part.path, owner=self.config.owner, pace=_no_pace
                    )
            except (OSError, copy.Changed) as error:
                self.report = self.report._replace(why=f"for {seal.node}: {error}"[:200])
                continue
            self._published.add(key)
            done = True
        return done

    def _clear(self) -> None:
        """Remove copies, and views of earlier starts, that no start will need."""
        ring = self._ring
        newer = None
        for part in self._copies_here():
            node = part.seal.node
            if node in ring.to:
                if ring.to[node] == self.config.node or token_of(part.seal.token) == token_of(ring.token):
                    continue
            else:
                newer = self._is_newer_published() if newer is None else newer
                if not newer or token_of(part.seal.token) == token_of(ring.token):
                    continue
            inventory.remove(f"{part.path}.json")
            inventory.remove(part.path)
        # Not those of a start to come, which is not in the ring yet.
        now = token_of(ring.token) or (0, 0)
        self._make_room()
        old = [name for name in inventory.listed(self.home.views) if (token_of(name) or (0, 0)) < now]
        if old and (self._is_newer_published() if newer is None else newer):
            for name in old:
                inventory.remove(f"{self.home.views}/{name}")

    def _make_room(self) -> None:
        """Where this node holds too much, older copies go; each node's newest stays."""
        kept = sorted(self._copies_here(), key=_newest, reverse=True)
        newest = {part.seal.node: part.path for part in reversed(kept)}
        spare = [part for part in kept if newest[part.seal.node] != part.path]
        while spare and not inventory.room_bytes(self.home, self._ring.limit):
            part = spare.pop()
            inventory.remove(f"{part.path}.json")
            inventory.remove(part.path)

    def _is_newer_published(self) -> bool:
        """Whether a checkpoint of the present start is on disk: no start resumes from an older one in memory."""
        own = (part.seal for part in inventory.own_parts(self.home) if part.seal.token == self._ring.token)
        return any(os.path.exists(f"{self.config.to}/{seal.name}/{MARKER}") for seal in own)

    # ------------------------------------------------------------------ telling

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


def _no_pace(_size_bytes: int) -> None:
    """Memory is as fast as it is."""


def main(arguments: list[str]) -> int:
    """Keep the copies until the parent process has ended. Always 0."""
    parent = Parent()
    parser = argparse.ArgumentParser(
        prog="ftrun-hook partner",
        description="Keep a copy of staged checkpoints in the memory of another node.",
    )
    parser.add_argument("--base", required=True, help="the folder of the job on its nodes")
    parser.add_argument("--attempt-folder", required=True, help="the folder of the present attempt")
    parser.add_argument("--job", required=True, help="the Slurm job whose checkpoints these are")
    parser.add_argument("--to", required=True, help="the folder that they are published to")
    parser.add_argument("--owner", default="{}", help="whose they are, as JSON")
    parser.add_argument("--node", default="", help="the name of this node (default: Slurm's)")
    args = parser.parse_args(arguments)
    if not os.path.isabs(args.base):
        raise UsageError("--base must be a full path")
    node = args.node or os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    _hold_back()
    partner = PartnerClient(
        PartnerConfig(args.base, args.attempt_folder, node, args.job, args.to, args.owner.encode())
    )
    while not parent.is_gone:
        done = False
        try:
            done = partner.run_round(time.monotonic())
        except OSError as error:
            print(f"ftrun-hook: partner: {error}", file=sys.stderr)
        if not done:
            time.sleep(PERIOD_S)
    return 0


def _hold_back() -> None:
    """Come last for the processor; leave when asked to."""
    for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(19)


# ---------------------------------------------------------------------- one transfer


SOCKET, STREAM = "socket", "stream"  # a connection of its own, and within srun's streams
PIECE = 1 << 18
ANSWERS_S = 40.0  # a step may wait for its node
STALLS_S = 20.0
CALLED_S = runtime_channel.CALL_S + 1.0
WORTH_BYTES = 8 << 20  # less than this says nothing about speed
SLOWEST_BYTES_PER_S = 2e6
REST_S = 3600.0  # before a connection is tried again that could not be made
USUAL_PATH = "/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin:/opt/slurm/bin"


class PeerLost(Exception):
    """The other end is gone, stalls, or cannot be reached; the message says why."""


class Target(NamedTuple):
    """Who is to keep the part: a node of Slurm job `job`.

    `base` is the folder of the run's job on each node, `limit` how much it may take there, `keep` the (token,
    set) pairs that the sender still has (None: what is there stays).
    """

    node: str
    job: str
    base: str
    limit: str
    keep: Optional[Sequence[tuple[str, str]]] = None


class Sent(NamedTuple):
    """The result.

    `kept` there, else `why` not; bytes that were sent, bytes that were linked there, seconds, and the way.
    """

    kept: bool
    why: str = ""
    sent_bytes: int = 0
    linked_bytes: int = 0
    seconds: float = 0.0
    way: str = ""


class Route:
    """Whether files go over a connection of their own, and the speed of the last large part.

    `is_direct`: it may be tried.
    """

    def __init__(self, *, is_direct: bool = True) -> None:
        self.bytes_per_s = 0.0
        self._rests_until_s = 0.0 if is_direct else math.inf

    def ways(self, now_s: float) -> Sequence[str]:
        """The ways to try, in order."""
        return (SOCKET, STREAM) if now_s >= self._rests_until_s else (STREAM,)

    def note(self, sent: Sent, failed: Sequence[str], now_s: float) -> None:
        """A part arrived after the ways `failed`; a connection that failed is not tried for a while."""
        if failed:
            self._rests_until_s = now_s + REST_S
        if sent.sent_bytes >= WORTH_BYTES and sent.seconds > 0:
            self.bytes_per_s = sent.sent_bytes / sent.seconds


def send(part: StoredPart, target: Target, route: Route) -> Sent:
    """Bring a part, whose seal has all sums, to another node.

    Never raises for what goes wrong there, nor for a file that changed here.
    """
    began_s, failed, why = time.monotonic(), [], ""
    for way in route.ways(began_s):
        try:
            with contextlib.closing(_Channel(_remote_command(target))) as channel:
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
    """A connection of its own to the other end, which was started from this address of ours.

    Raises PeerLost, OSError.
    """
    if not address:
        raise PeerLost("srun does not say where it is")
    with contextlib.closing(runtime_channel.Listener(address)) as listener:
        channel.say({"call": listener.port, "secret": listener.secret})
        line = listener.answer(CALLED_S)
        line.settimeout(STALLS_S)
        return line


def _send_file(line: socket.socket, path: str, size_bytes: int) -> None:
    """So many bytes of a file, which must be as long. Raises PeerLost, OSError."""
    with open(path, "rb") as stream:
        if size_bytes and line.sendfile(stream, 0, size_bytes) < size_bytes:
            raise PeerLost(f"{path} has become shorter")


# ---------------------------------------------------------------------- the channel


class _Channel:
    """A command with a pipe to it and one from it.

    Raises PeerLost where it is gone or says nothing for too long.
    """

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
    # No GPU: a step of a job whose GPUs were counted in all (--gpus) would want them all.
    return [
        srun, f"--jobid={target.job}", "--job-name=ftrun", "--overlap", "--nodes=1", "--ntasks=1",
        f"--nodelist={target.node}", "--mem=0", "--gres=none", "--cpu-bind=none", "--mpi=none",
        "--export=NONE", "--kill-on-bad-exit=0", "--no-kill", "--wait=0", "--quiet",
        "--unbuffered", "--chdir=/", "/bin/sh", "-c", line,
    ]  # fmt: skip


def _hook_line(args: Sequence[str]) -> str:
    """A line of sh that runs `ftrun-hook WORDS` on another node, from the same file, with its Python."""
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
    """What srun needs, and nothing that changes what it does."""
    kept = [
        "SLURM_CONF",
        "SLURM_CONF_SERVER",
        "SLURM_JWT",
        "SLURM_SACK_KEY",
        "SLURM_SACK_SOCKET",
        "HOME",
        "USER",
    ]
    found = {name: os.environ[name] for name in kept if name in os.environ}
    if "HOME" not in found:
        found["HOME"] = os.path.expanduser("~")
    return {**found, "PATH": f"{os.environ.get('PATH', '')}:{USUAL_PATH}", "LC_ALL": "C"}
