"""Whether the hosts of a cluster reach each other: ports through the firewalls, names, the shared folder. (I/O)

All hosts do this at the same time. Each listens on the very ports that Slurm will use, at the address by which the others know it, and
calls all others. Each puts a file with its name into the shared folder and looks for those of the others. A host ends when it has seen
and was seen by all, or when time is up: then what it has not seen is the answer.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import select
import socket
import threading
import time
from typing import Any

TRY_AGAIN_S = 0.05
CALL_S = 1.0
LINE_MAX = 200


def reach(step: dict[str, Any]) -> dict[str, Any]:
    """What this host (`own`) sees of `hosts` (name -> address) within `limit_s`.

    Returns {"busy": ports that are taken here, "bad_address": why, "unreached": {name: why}, "unheard": [name], "unresolved": {name:
    address or ""}, "unshared": {name: why}, "share": why the folder cannot be used}. `ports` may be empty: nothing is listened on then.

    `members`: names of hosts on which Slurm's daemons hold these ports already. They listen on none and do not call each other; who calls
    one of them is content with a connection to its slurmd, at the second of `ports`.
    """
    own, hosts, members = step["own"], dict(step["hosts"]), frozenset(step.get("members", ()))
    others = {name: address for name, address in hosts.items() if name != own}
    give_up_s = time.monotonic() + float(step["limit_s"])
    listeners, answer = _listening(hosts[own], [] if own in members else step["ports"])
    answer["unresolved"] = {
        name: found for name, address in hosts.items() if (found := resolved(name)) != address
    }
    marks, answer["share"] = _put_mark(step.get("shared", ""), step["token"], own)
    heard: set[str] = set()
    threading.Thread(
        target=_answer_calls, args=(listeners, step["token"], heard, give_up_s), daemon=True
    ).start()
    called = [name for name in others if not (own in members and name in members)]
    unreached = {name: "no answer" for name in called if step["ports"]}
    to_hear = set(others) if listeners else set()
    unseen = set(others) if marks else set()
    while (unreached or to_hear - heard or unseen) and time.monotonic() < give_up_s:
        for name in list(unreached):
            unreached[name] = (
                _connect(others[name], step["ports"][1])
                if name in members
                else _call(others[name], step["ports"], step["token"], own)
            )
            if not unreached[name]:
                del unreached[name]
        unseen = {name for name in unseen if not os.path.exists(f"{marks}.{name}")}
        time.sleep(TRY_AGAIN_S)
    unshared = {name: f"{own} sees no file of {name} in {step.get('shared')}" for name in sorted(unseen)}
    return {**answer, "unreached": unreached, "unheard": sorted(to_hear - heard), "unshared": unshared}


def unmark(step: dict[str, Any]) -> dict[str, Any]:
    """Remove the files that `reach` left in the shared folder: when all hosts have looked."""
    for path in glob.glob(os.path.join(glob.escape(step["shared"]), f".ftrun-reach-{step['token']}.*")):
        with contextlib.suppress(OSError):
            os.unlink(path)
    return {}


def resolved(name: str) -> str:
    """The IPv4 address that this host finds for a name; "" for none."""
    try:
        return str(socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return ""


def _listening(address: str, ports: list[int]) -> tuple[list[socket.socket], dict[str, Any]]:
    """Listen on all ports; those that are taken are told."""
    listeners, busy, bad = [], [], ""
    for port in ports:
        one = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((address, port))
            one.listen(128)
            listeners.append(one)
        except OSError as error:
            one.close()
            if error.errno == errno.EADDRINUSE:
                busy.append(port)
            else:
                bad = f"{address}: {error.strerror}"
    return listeners, {"busy": busy, "bad_address": bad}


def _answer_calls(listeners: list[socket.socket], token: str, heard: set[str], give_up_s: float) -> None:
    """Add the names of those who call with the right token to `heard`, until time is up. Runs in a thread of its own."""
    while listeners and time.monotonic() < give_up_s:
        for server in select.select(listeners, [], [], 1.0)[0]:
            caller, _ = server.accept()
            with caller, contextlib.suppress(OSError):
                caller.settimeout(CALL_S)
                said = caller.recv(LINE_MAX).decode("utf-8", "replace").split()
                if len(said) == 2 and said[0] == token:
                    caller.sendall(b"yes\n")
                    heard.add(said[1])


def _call(address: str, ports: list[int], token: str, own: str) -> str:
    """Why one of a host's ports does not answer; "" if all do."""
    return next((why for port in ports if (why := _call_port(address, port, token, own))), "")


def _connect(address: str, port: int) -> str:
    """Why there is no connection to a port; "" if there is."""
    try:
        socket.create_connection((address, port), timeout=CALL_S).close()
    except OSError as error:
        return f"{address}:{port}: {error.strerror or error}"
    return ""


def _call_port(address: str, port: int, token: str, own: str) -> str:
    try:
        with socket.create_connection((address, port), timeout=CALL_S) as line:
            line.settimeout(CALL_S)
            line.sendall(f"{token} {own}\n".encode())
            is_right = line.recv(8) == b"yes\n"
    except OSError as error:
        return f"{address}:{port}: {error.strerror or error}"
    return "" if is_right else f"{address}:{port}: something else answers there"


def _put_mark(folder: str, token: str, own: str) -> tuple[str, str]:
    """The path of this host's file in the shared folder without its name at the end, and why there is none."""
    if not folder:
        return "", ""
    path = os.path.join(folder, f".ftrun-reach-{token}")
    try:
        os.close(os.open(f"{path}.{own}", os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError as error:
        return "", f"{folder}: {error.strerror}"
    return path, ""
