"""The process group of the drills' trainer: all-reduce over TCP, with rank 0 in the middle. (I/O)

Rank 0 listens at its node's address and writes the address to a file, where the other ranks find it. At each
meeting every rank sends its step and weights and gets the newest state of all. So a lost rank can be replaced
while the others keep their processes: these drop all connections and come to the next meeting. A sum needs
the parts of all ranks, so at a meeting no rank is more than one step behind.

Standard library only, Python 3.9: it runs on nodes.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Sequence
from typing import Optional

from ftrun.supervisor.drill_trainer.toy_model import PACKED

MEET_WITHIN_S = 60.0
AGAIN_S = 0.05
LENGTH = struct.Struct("<I")

State = tuple[int, list[int]]  # step, weights


class PeerLost(Exception):
    """The connection to a peer was lost."""


class TimedOut(Exception):
    """A collective did not complete in time."""


class ProcessGroup:
    """All ranks of one start. `meeting`: the file with the address; `host`: the address of rank 0."""

    def __init__(self, rank: int, size: int, meeting: str, host: str) -> None:
        self.rank, self.size = rank, size
        self._meeting, self._host = meeting, host
        self._links: dict[int, socket.socket] = {}
        self._server: Optional[socket.socket] = None

    # ---- meeting

    def meet(self, step: int, weights: Sequence[int]) -> State:
        """Connect all ranks and return the newest state of any of them. Raises TimedOut, PeerLost."""
        if self.size == 1:
            return step, list(weights)
        for link in self._links.values():
            link.close()
        self._links = {}
        deadline = time.monotonic() + MEET_WITHIN_S
        return (
            self._join(step, weights, deadline)
            if self.rank
            else self._gather((step, list(weights)), deadline)
        )

    def _gather(self, newest: State, deadline: float) -> State:
        if self._server is None:
            self._server = socket.create_server((self._host, 0))
            temporary = f"{self._meeting}.tmp"
            with open(temporary, "w") as stream:
                stream.write(f"{self._host} {self._server.getsockname()[1]}")
            os.replace(temporary, self._meeting)
        while len(self._links) < self.size - 1:
            self._server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                link, _ = self._server.accept()
            except socket.timeout:
                raise TimedOut(f"rank 0: {self.size - 1 - len(self._links)} ranks did not come") from None
            try:
                link.settimeout(5.0)
                rank, step, weights = _receive_message(link)
            except (OSError, ValueError):
                link.close()  # the peer died
                continue
            self._links[rank] = link
            newest = max(newest, (step, weights), key=lambda state: state[0])
        try:
            for link in self._links.values():
                _send(link, newest)
        except OSError as error:
            raise PeerLost(str(error)) from None
        return newest

    def _join(self, step: int, weights: Sequence[int], deadline: float) -> State:
        while True:
            link = None
            try:
                with open(self._meeting) as stream:
                    host, port = stream.read().split()
                link = socket.create_connection((host, int(port)), timeout=5.0)
                _send(link, (self.rank, step, list(weights)))
                link.settimeout(max(0.01, deadline - time.monotonic()))
                newest = _receive_message(link)
            except (OSError, ValueError):
                # Rank 0 is not there yet, or an earlier one has gone.
                if link is not None:
                    link.close()
                if time.monotonic() > deadline:
                    raise TimedOut(f"rank {self.rank}: nobody at the meeting point {self._meeting}") from None
                time.sleep(AGAIN_S)
            else:
                self._links[0] = link
                return newest[0], newest[1]

    # ---- summing

    def all_reduce(self, part: Sequence[int], timeout_s: float) -> list[int]:
        """The sum of every rank's part. Raises PeerLost, TimedOut."""
        deadline = time.monotonic() + timeout_s
        try:
            if self.rank:
                self._set_timeout(self._links[0], deadline)
                self._links[0].sendall(PACKED.pack(*part))
                return list(PACKED.unpack(_receive(self._links[0], PACKED.size)))
            total = list(part)
            for link in self._links.values():
                self._set_timeout(link, deadline)
                total = [a + b for a, b in zip(total, PACKED.unpack(_receive(link, PACKED.size)))]
            for link in self._links.values():
                link.sendall(PACKED.pack(*total))
            return total
        except socket.timeout:
            raise TimedOut("all_reduce") from None
        except OSError as error:
            raise PeerLost(str(error)) from None

    @staticmethod
    def _set_timeout(link: socket.socket, deadline: float) -> None:
        link.settimeout(max(0.01, deadline - time.monotonic()))


def _send(link: socket.socket, what: object) -> None:
    data = json.dumps(what).encode()
    link.sendall(LENGTH.pack(len(data)) + data)


def _receive_message(link: socket.socket) -> list:  # type: ignore[type-arg]  # as JSON gives it
    heard = json.loads(_receive(link, LENGTH.unpack(_receive(link, LENGTH.size))[0]))
    if not isinstance(heard, list):
        raise ValueError("not a word of ours")  # noqa: TRY004 - whatever it is, it is no peer
    return heard


def _receive(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = link.recv(size - len(data))
        if not chunk:
            raise ConnectionResetError("connection closed by remote peer")
        data += chunk
    return data


def address_towards(peer: str) -> str:
    """The local address on the route to a peer, for a host that cannot resolve its own name; "" if none."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((peer, 9))  # a datagram socket sends nothing when it connects
            return str(probe.getsockname()[0])
    except OSError:
        return ""
