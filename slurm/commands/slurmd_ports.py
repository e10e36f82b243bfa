"""Whether a node's slurmd port refuses connections: the quickest sign that slurmd is gone. (I/O)

A node that does not answer may be slow. One whose kernel refuses a connection to slurmd's port runs no
slurmd: it has rebooted after a crash, is shutting down, or is out of memory. That does not prove that the
node's processes are gone. A restart of slurmd looks the same for a second or two, so one look proves nothing;
the caller keeps looking. Only a refusal counts: a timeout, an unknown name, or an accepted connection mean
nothing here.

A thread does all of this: name resolution may take long, and no caller waits for it.
"""

from __future__ import annotations

import contextlib
import errno
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from ftrun.slurm.client.errors import SlurmError

USUAL_PORT = 6818
LOOK_EVERY_S = 0.25
LOOK_S = 0.2  # on a healthy network a refusal takes a round trip
STALE_S = 1.0
_NODE = re.compile(r"^NodeName=(\S+)")
_ADDRESS = re.compile(r"\sNodeAddr=(\S+)")
_PORT = re.compile(r"\sPort=(\d+)")


class SlurmdPorts(Protocol):
    """The slurmd ports of some nodes, polled until `close`."""

    def refused(self) -> frozenset[str]:
        """The nodes whose slurmd refused at the last look; none if that is too old."""

    def close(self) -> None:
        """Stop polling."""


class TcpSlurmdPorts:
    """`Doors` by TCP. `addresses` asks Slurm for the nodes' addresses; raises errors of `ftrun.slurm.client.errors`."""

    def __init__(self, addresses: Callable[[], Mapping[str, tuple[str, int]]]) -> None:
        self._addresses = addresses
        self._seen: tuple[float, frozenset[str]] = (float("-inf"), frozenset())
        self._closed = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def refused(self) -> frozenset[str]:
        """See `Doors.refused`."""
        at_s, nodes = self._seen
        return nodes if time.monotonic() - at_s < STALE_S else frozenset()

    def close(self) -> None:
        """See `Doors.close`."""
        self._closed.set()

    def _look(self) -> None:
        with contextlib.suppress(SlurmError, OSError):
            there = {node: _resolved(*address) for node, address in self._addresses().items()}
            while not self._closed.is_set():
                self._seen = (time.monotonic(), refusing({one: at for one, at in there.items() if at}))
                self._closed.wait(LOOK_EVERY_S)


def parse_slurmd_addresses(text: str, usual_port: int = USUAL_PORT) -> dict[str, tuple[str, int]]:
    """Node -> (address, port) from `scontrol -o show node`, which prints only an unusual port. (pure)"""
    found = {}
    for line in text.splitlines():
        name, address, port = _NODE.search(line), _ADDRESS.search(line), _PORT.search(line)
        if name and address:
            found[name[1]] = (address[1], int(port[1]) if port else usual_port)
    return found


def refusing(doors: Mapping[str, tuple[int, tuple[str, int]]]) -> frozenset[str]:
    """The names of these ports (name -> address family, socket address) that refuse a connection now."""
    found = set()
    give_up_s = time.monotonic() + LOOK_S
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as opened:
        for name, (family, address) in doors.items():
            door = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
            door.setblocking(False)
            code = door.connect_ex(address)
            if code == errno.ECONNREFUSED:
                found.add(name)
            elif code == errno.EINPROGRESS:
                selector.register(door, selectors.EVENT_WRITE, name)
        while selector.get_map() and (left_s := give_up_s - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                selector.unregister(key.fileobj)
                code = key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # type: ignore[union-attr]
                if code == errno.ECONNREFUSED:
                    found.add(key.data)
    return frozenset(found)


def _resolved(host: str, port: int) -> tuple[int, tuple[str, int]] | None:
    with contextlib.suppress(OSError, UnicodeError):
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            if family in (socket.AF_INET, socket.AF_INET6):
                return family, address  # type: ignore[return-value]
    return None
