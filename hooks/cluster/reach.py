"""Whether the hosts of a cluster reach each other: ports through the firewalls, names, the shared folder. (I/O)

All hosts do this at the same time. Each listens on the very ports that Slurm will use, at the address by which the others know it, and
calls all others. Each puts a file with its name into the shared folder and looks for those of the others. A host ends when it has seen
and was called by all, on every port, or when time is up: then what it has not seen is the answer.

Hosts begin at different times: a busy one seconds after the others. So who refuses a call or is slow to answer it is waited for longer:
no firewall swallows what is refused.
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
from concurrent.futures import ThreadPoolExecutor
from typing import Any

CALLS_AT_ONCE = 16
TRY_AGAIN_S = 0.05
CALL_S = 1.0
LINE_MAX = 200
BLOCKED = "-"
"""What stands before the answer of a call that nothing came back from: it may be a firewall."""


def reach(step: dict[str, Any]) -> dict[str, Any]:
    """What this host (`own`) sees of `hosts` (name -> address).

    Returns {"own": its name, "busy": ports that are taken here, "bad_address": why, "unreached": {name: why}, "silent": {name: why}, "unresolved": {name:
    address or ""}, "unshared": {name: why}, "share": why the folder cannot be used}. `unreached`: no connection came about, for `limit_s`;
    `silent`: calls were refused, or not answered by who was meant, for `late_s`. Two hosts that have met have `limit_s` from then on, two
    that have not `late_s`. `ports` may be empty: nothing is listened on then.

    `members`: hosts on which daemons of a cluster hold such ports already -> which. They listen on none and do not call each other; who
    calls one of them is content with a connection.
    """
    own, hosts, members = step["own"], dict(step["hosts"]), dict(step.get("members", {}))
    others = {name: address for name, address in hosts.items() if name != own}
    limit_s, late_s = float(step["limit_s"]), float(step["late_s"])
    began_s = time.monotonic()
    listeners, answer = _listening(hosts[own], [] if own in members else step["ports"])
    marks, answer["share"] = _put_mark(step.get("shared", ""), step["token"], own)
    heard: dict[str, set[int]] = {}
    met_s: dict[str, float] = {}
    is_over = threading.Event()
    answering = threading.Thread(
        target=_answer_calls, args=(listeners, step["token"], heard, met_s, is_over), daemon=True
    )
    answering.start()
    called = {name for name in others if not (own in members and name in members)}
    why = dict.fromkeys(called if step["ports"] else (), f"{BLOCKED}no answer")
    to_hear = called if listeners else set()
    unseen = set(others) if marks else set()

    def is_late(name: str) -> bool:
        now_s, is_blocked = time.monotonic(), why.get(name, "").startswith(BLOCKED)
        if name in met_s:
            return now_s - met_s[name] > limit_s
        return now_s - began_s > (limit_s if is_blocked else late_s)

    def call(name: str) -> None:
        """Call all ports of a host until one does not answer."""
        ports, token = (members[name], "") if name in members else (step["ports"], step["token"])
        answers = (_call(others[name], port, token, own) for port in ports)
        why[name] = next(filter(None, answers), "")
        if token and not why[name]:
            met_s.setdefault(name, time.monotonic())

    # A name server that does not answer delays no call.
    with ThreadPoolExecutor(CALLS_AT_ONCE) as pool, ThreadPoolExecutor(CALLS_AT_ONCE) as asking:
        found = asking.map(resolved, hosts)
        while True:
            list(pool.map(call, [name for name, one in why.items() if one]))
            unseen = {name for name in unseen if not os.path.exists(f"{marks}.{name}")}
            to_hear = {name for name in to_hear if len(heard.get(name, ())) < len(listeners)}
            lacking = {*(name for name, one in why.items() if one), *to_hear, *unseen}
            if all(map(is_late, lacking)):
                break
            time.sleep(TRY_AGAIN_S)
    is_over.set()
    answering.join()
    return {
        **answer,
        "own": own,
        "unresolved": {name: one for (name, address), one in zip(hosts.items(), found) if one != address},
        "unreached": {
            name: one.removeprefix(BLOCKED) for name, one in why.items() if one.startswith(BLOCKED)
        },
        "silent": {name: one for name, one in why.items() if one and not one.startswith(BLOCKED)},
        "unshared": {
            name: f"{own} sees no file of {name} in {step.get('shared')}" for name in sorted(unseen)
        },
    }


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


def _answer_calls(
    listeners: list[socket.socket],
    token: str,
    heard: dict[str, set[int]],
    met_s: dict[str, float],
    is_over: threading.Event,
) -> None:
    """Note who calls with the right token, on which ports and since when; close the listeners in the end. Runs in a thread of its own."""
    while not is_over.is_set():
        for server in select.select(listeners, [], [], TRY_AGAIN_S)[0]:
            caller, _ = server.accept()
            with caller, contextlib.suppress(OSError):
                caller.settimeout(CALL_S)
                said = caller.recv(LINE_MAX).decode("utf-8", "replace").split()
                if len(said) == 2 and said[0] == token:
                    caller.sendall(b"yes\n")
                    met_s.setdefault(said[1], time.monotonic())
                    heard.setdefault(said[1], set()).add(server.getsockname()[1])
    for server in listeners:
        server.close()


def _call(address: str, port: int, token: str, own: str) -> str:
    """Why a port does not answer a call with `token`, or without one is not there; "" if it does."""
    why = ""
    try:
        with socket.create_connection((address, port), timeout=CALL_S) as line:
            if token:
                why = _asked(line, f"{token} {own}\n")
    except ConnectionRefusedError as error:
        why = str(error.strerror)
    except OSError as error:
        return f"{BLOCKED}{address}:{port}: {error.strerror or error}"
    return why and f"{address}:{port}: {why}"


def _asked(line: socket.socket, text: str) -> str:
    try:
        line.settimeout(CALL_S)
        line.sendall(text.encode())
        return "" if line.recv(8) == b"yes\n" else "something else answers there"
    except OSError as error:
        return str(error.strerror or error)


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
