"""Whether the slurmd of a node refuses a connection: the quickest sign that it is gone. (I/O)

How it thinks. A node that answers nothing may be slow; one whose kernel says that nobody listens at slurmd's port runs no slurmd, be the node up again
after a crash, going down in good order, or out of memory. It is no sign that its processes are gone. A restart of slurmd looks the same for a second or two, so that one
look proves nothing; who wants to know keeps looking. Only a refusal counts: a time-out, an unknown name, a connection that is taken say nothing here.

All of it happens in a thread: names are resolved, which may take long, and nobody waits for it.
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

__all__ = ["Doors", "SlurmdDoors", "parse_doors", "refusing"]

USUAL_PORT = 6818
LOOK_EVERY_S = 0.25
LOOK_S = 0.2  # on a network that is well a refusal takes a round trip
STALE_S = 1.0
_NODE = re.compile(r"^NodeName=(\S+)")
_ADDRESS = re.compile(r"\sNodeAddr=(\S+)")
_PORT = re.compile(r"\sPort=(\d+)")


class Doors(Protocol):
    """The doors of some nodes, looked at again and again until `close`."""

    def refused(self) -> frozenset[str]:
        """The nodes whose slurmd refused at the last look; none where that was long ago."""
        ...

    def close(self) -> None:
        """Look no more."""
        ...


class SlurmdDoors:
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


def parse_doors(text: str, usual_port: int = USUAL_PORT) -> dict[str, tuple[str, int]]:
    """Node -> (address, port) from `scontrol -o show node`, which tells a port only where it is not the usual one. (pure)"""
    found = {}
    for line in text.splitlines():
        name, address, port = _NODE.search(line), _ADDRESS.search(line), _PORT.search(line)
        if name and address:
            found[name[1]] = (address[1], int(port[1]) if port else usual_port)
    return found


def refusing(doors: Mapping[str, tuple[int, tuple[str, int]]], wait_s: float = LOOK_S) -> frozenset[str]:
    """Those of these doors (name -> address family, socket address) where nobody listens now."""
    found = set()
    give_up_s = time.monotonic() + wait_s
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
