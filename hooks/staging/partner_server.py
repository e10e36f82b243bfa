"""`ftrun-hook receive`: receives a sealed part from another node into this node's memory. (I/O)

It exchanges lines of JSON with the sender (partner_client) over stdin and stdout, with the bytes of files
between them, or on a connection that it opens to the sender. A file that is here already under the same
checksum is linked and not sent. A part that does not fit is refused before a byte is sent. Only a complete
and verified part gets its seal; the next receiver removes what a dead one left.

    sender: {"seal": TEXT, "keep": [[token, set], ...] or null, "limit": "40%"}
    here:   {"have": true} or {"refused": why} or {"want": [path, ...], "srun": address}
    sender: {"call": port, "secret": word}, where it waits for a connection
            {"file": path, "size_bytes": n, "line": true} and n bytes over that connection, or
            {"file": path, "size_bytes": n, "line": false} and n bytes; ...
            {"end": true}
    here:   {"done": true, "linked_bytes": n} or {"done": false, "why": why}
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import signal
import stat
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO, Optional

from ftrun.hooks.runtime import channel
from ftrun.hooks.runtime.command_line import parser_of
from ftrun.hooks.runtime.host import UsageError
from ftrun.hooks.staging import inventory
from ftrun.hooks.staging.records import File, Home, Seal, is_inner_path, read_seal, seal_json

PIECE = 1 << 20
LINE_MAX_BYTES = 1 << 28
STALLS_S = 60  # a sender that says nothing for so long is gone


class Refused(Exception):
    """The part cannot be received; the message says why."""


class Source:
    """What the sender sends, with an alarm in case it vanishes without closing it. Both raise EOFError then."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream

    def readinto(self, room: memoryview) -> int:
        """The number of bytes read into `room`; 0 at the end."""
        signal.alarm(STALLS_S)
        return self._stream.readinto1(room)

    def readline(self) -> bytes:
        """A line; a file may come over the connection meanwhile."""
        signal.alarm(STALLS_S * 15)
        return self._stream.readline(LINE_MAX_BYTES)


class Reception:
    """One part on its way: `seal` as the sender has it, `into` where its files are gathered."""

    def __init__(self, home: Home, seal: Seal) -> None:
        self.home, self.seal = home, seal
        self.place = home.partner(seal.node, seal.token, seal.name)
        folder, name = os.path.split(self.place)
        self.into = f"{folder}/.{name}.{os.getpid()}.incoming"
        self.linked_bytes = 0
        self._files: dict[str, File] = {}

    def is_here(self) -> bool:
        """Whether this part is here already."""
        known = inventory.stored_part(self.home, self.seal.node, self.seal.token, self.seal.name)
        return known is not None and not known.is_own and _sums(known.seal) == _sums(self.seal)

    def begin(self, limit: str) -> list[str]:
        """Link files that are here already; returns those to send. Raises Refused, OSError, ValueError."""
        found: dict[tuple[str, int], str] = {}
        for part in inventory.stored_parts(self.home):
            for inner, one in part.seal.files.items():
                path, key = inventory.file_path(part, inner), (one.sha256, one.size_bytes)
                if one.sha256 and key not in found and inventory.is_unchanged(path, one):
                    found[key] = path
        known = {inner: found.get((one.sha256, one.size_bytes)) for inner, one in self.seal.files.items()}
        wanted = [inner for inner, path in known.items() if path is None]
        needed = sum(self.seal.files[inner].size_bytes for inner in wanted)
        room = inventory.room_bytes(self.home, limit)
        if needed > room:
            raise Refused(f"no room in memory: {needed >> 20} MiB are needed, {room >> 20} may be taken")
        os.makedirs(self.into, mode=0o700)
        for inner, source in known.items():
            if source is not None:
                path = self._made(inner)
                os.link(source, path)
                self.linked_bytes += self.seal.files[inner].size_bytes
                self._note(inner, path)
        return wanted

    def write(self, inner: str, stream: Source, size_bytes: int) -> None:
        """Write a file of the part from the stream and verify it. Raises Refused, OSError, EOFError."""
        path, digest, left = self._made(inner), hashlib.sha256(), size_bytes
        room = memoryview(bytearray(min(PIECE, size_bytes)))
        with open(path, "wb") as out:
            while left:
                piece = room[: stream.readinto(room[:left])]
                if not piece:
                    raise EOFError
                digest.update(piece)
                out.write(piece)
                left -= len(piece)
        if digest.hexdigest() != self.seal.files[inner].sha256:
            raise Refused(f"{inner or self.seal.name} does not have the checksum that the sender told")
        self._note(inner, path)

    def finish(self) -> None:
        """Move the complete part to its place and seal it. Raises Refused, OSError."""
        missing = next((inner for inner in self.seal.files if inner not in self._files), None)
        if missing is not None:
            raise Refused(f"{missing or self.seal.name} is missing")
        own = f"{self.place}.json"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(own)
        inventory.remove(self.place)
        os.rename(self._made("") if self.seal.is_file else self._root, self.place)
        with open(f"{self.into}.seal", "w", encoding="utf-8", errors="surrogateescape") as stream:
            stream.write(seal_json(self.seal._replace(files=self._files)))
        os.replace(f"{self.into}.seal", own)

    def clear(self) -> None:
        """Remove an incomplete part."""
        inventory.remove(self.into)
        inventory.remove(f"{self.into}.seal")

    @property
    def _root(self) -> str:
        return f"{self.into}/set"

    def _made(self, inner: str) -> str:
        """The path that a file is written to; makes its folder."""
        if inner not in self.seal.files:
            raise Refused(f"{inner} is no file of this part")
        path = f"{self._root}/{inner}" if inner else self._root
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        return path

    def _note(self, inner: str, path: str) -> None:
        fact = os.lstat(path)
        told = self.seal.files[inner]
        if fact.st_size != told.size_bytes:
            raise Refused(f"{inner or self.seal.name} has {fact.st_size} bytes instead of {told.size_bytes}")
        self._files[inner] = told._replace(mtime_ns=fact.st_mtime_ns, inode=fact.st_ino)


def _sums(seal: Seal) -> dict[str, str]:
    return {path: one.sha256 for path, one in seal.files.items()}


def receive(home: Home, messages: Source, say: BinaryIO) -> None:
    """Serve one sender. Raises OSError if it is gone."""
    reception: Optional[Reception] = None
    try:
        hello = _message(messages)
        seal = read_seal(str(hello.get("seal", "")))
        if seal is None or not seal.has_sums or not all(is_inner_path(inner) for inner in seal.files):
            raise Refused("the sender's seal cannot be read, or has no checksums")
        _clear_away(home, seal.node, hello.get("keep"))
        reception = Reception(home, seal)
        if reception.is_here():
            _answer(say, {"have": True})
            return
        os.makedirs(os.path.dirname(reception.place), mode=0o700, exist_ok=True)
        wanted = reception.begin(str(hello.get("limit", "40%")))
        address = channel.address_of_srun()
        _answer(say, {"want": wanted, "srun": address})
        _take_files(reception, messages, address)
        reception.finish()
        _answer(say, {"done": True, "linked_bytes": reception.linked_bytes})
    except (Refused, OSError, ValueError, KeyError, TypeError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        _answer(say, {"refused": why, "done": False, "why": why})
    except EOFError:
        pass
    finally:
        if reception is not None:
            reception.clear()


def _take_files(reception: Reception, messages: Source, address: str) -> None:
    """Receive all wanted files. Raises Refused, OSError, EOFError, ValueError, KeyError."""
    with contextlib.ExitStack() as opened:
        line: Optional[Source] = None
        while not (word := _message(messages)).get("end"):
            if "call" in word:
                called = channel.connect(address, int(word["call"]), str(word["secret"]), STALLS_S)
                line = Source(opened.enter_context(opened.enter_context(called).makefile("rb")))
                continue
            stream = line if word.get("line") and line is not None else messages
            reception.write(str(word.get("file", "")), stream, int(word["size_bytes"]))


def _clear_away(home: Home, node: str, keep: Any) -> None:
    """Remove copies of parts that the node itself has dropped, and what dead receivers left."""
    kept = None if keep is None else {(str(token), str(name)) for token, name in keep}
    for token in inventory.listed(f"{home.base}/partner/{node}"):
        folder = f"{home.base}/partner/{node}/{token}"
        for name in inventory.listed(folder):
            if name.endswith((".incoming", ".incoming.seal")):
                pid = name.split(".incoming")[0].rpartition(".")[2]
                is_needed = pid.isdigit() and os.path.exists(f"/proc/{pid}")
            else:
                is_needed = kept is None or (token, name[:-5] if name.endswith(".json") else name) in kept
            if not is_needed:
                inventory.remove(f"{folder}/{name}")


def _message(stream: Source) -> Mapping[str, Any]:
    """The sender's next line. Raises EOFError without one, ValueError if it is invalid."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    word = json.loads(line)
    return {**word}


def _answer(stream: BinaryIO, word: Mapping[str, Any]) -> None:
    stream.write(json.dumps(word).encode() + b"\n")
    stream.flush()


def _give_up(_number: int, _frame: object) -> None:
    raise EOFError


def _is_ours(base: str) -> bool:
    """Whether the job's folder, which is made if it is missing, belongs to this user."""
    above = os.path.dirname(base)
    with contextlib.suppress(OSError):
        os.makedirs(base, mode=0o700, exist_ok=True)
        facts = (os.lstat(above), os.lstat(base))
        return all(stat.S_ISDIR(one.st_mode) and one.st_uid == os.getuid() for one in facts)
    return False


def main(arguments: list[str]) -> int:
    """Receive one part. Always 0: the status of this step must not become what Slurm records for the job."""
    text = "Take a sealed part of a staged checkpoint from another node."
    args = parser_of("receive", text, "--base").parse_args(arguments)
    uid = os.path.basename(os.path.dirname(os.path.abspath(args.base)))
    if uid != f"ftrun-{os.getuid()}":
        raise UsageError("--base is not the folder of a job of this user: STAGE-DIR/ftrun-UID/RUN.JOB")
    os.umask(0o077)
    signal.signal(signal.SIGALRM, _give_up)
    with contextlib.suppress(OSError):
        os.nice(19)
    if not _is_ours(args.base):
        raise UsageError(f"{args.base} is not, or not only, this user's own")
    with contextlib.suppress(OSError), open(0, "rb", closefd=False) as stdin:
        receive(Home(args.base), Source(stdin), sys.stdout.buffer)
    return 0
