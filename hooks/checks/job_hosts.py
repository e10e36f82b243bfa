"""The hosts of the job: which they are, whether their names resolve, whether they answer. (I/O)

A resolver that waits for a dead server does so for half a minute and longer, so each name is
asked by a thread of its own in a process that can be left behind; what had no answer in time has none. Most
nodes have no host to ask for: what that takes is imported then.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from ftrun.hooks.runtime.host import Machine, NoAnswer

HOSTS_MAX = 4096
THREADS_MAX = 64
NO_ANSWER = "no answer in time"

_RANGE = r"[0-9]+(?:-[0-9]+)?"
_LIST = re.compile(rf"(?:[^\[\]\s]|\[{_RANGE}(?:,{_RANGE})*\])*")
_NAME = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")  # between the commas that stand outside of brackets


def all_of(machine: Machine, thresholds: Mapping[str, Any]) -> list[str]:
    """`hosts` of the thresholds, else the nodes of the Slurm job around us; and those of `hosts_file`, one a line."""
    told = thresholds["hosts"] or os.environ.get("SLURM_JOB_NODELIST", "")
    names = _expanded(told) if isinstance(told, str) else [str(one) for one in told]
    path = thresholds.get("hosts_file", "")
    lines = (machine.read(path) or "").splitlines() if path else []
    names += [line.split("#")[0].split()[0] for line in lines if line.split("#")[0].strip()]
    return list(dict.fromkeys(names))[:HOSTS_MAX]


def asked(
    machine: Machine, hosts: Sequence[str], question: Callable[[str], str], limit_s: float
) -> dict[str, str]:
    """What `question` says of each host, asked side by side; NO_ANSWER where the time is up."""

    def all_answers() -> bytes:
        import threading

        answers: dict[str, str] = {}
        waiting = list(hosts)
        give_up = time.monotonic() + limit_s

        def work() -> None:
            while waiting and time.monotonic() < give_up:
                try:
                    host = waiting.pop(0)
                except IndexError:  # another thread was faster
                    return
                answers[host] = question(host)

        threads = [threading.Thread(target=work, daemon=True) for _ in hosts[:THREADS_MAX]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, give_up - time.monotonic()))
        return json.dumps(dict(answers)).encode()

    told = json.loads(machine.ask(all_answers, limit_s + 1.0, "the network") or b"{}")
    return {host: told.get(host, NO_ANSWER) for host in hosts}


def resolved(machine: Machine, thresholds: Mapping[str, Any]) -> dict[str, str]:
    """What the resolver says of each host of the thresholds, as `resolve` tells it."""
    return asked(machine, all_of(machine, thresholds), resolve, thresholds["limit_s"])


def resolve(host: str) -> str:
    """The addresses of a host, separated by spaces; "!" and the reason where there are none."""
    import socket

    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return f"!{getattr(error, 'strerror', None) or error}"
    return " ".join(dict.fromkeys(str(one[4][0]) for one in found))


def connect(host: str, port: int, limit_s: float) -> str:
    """ "ok", "refused" (the host answers, nothing listens), or "!" and the reason."""
    import socket

    try:
        with socket.create_connection((host, port), limit_s):
            return "ok"
    except ConnectionRefusedError:
        return "refused"
    except (OSError, UnicodeError) as error:
        return f"!{getattr(error, 'strerror', None) or error}"


def _expanded(told: str) -> list[str]:
    """The names of Slurm's list: `n[0-2,05]-ib,gpu` has five. Raises NoAnswer where it is none.

    Slurm's own tool is not asked: a node may have that of another Slurm on its PATH, or none.
    """
    told = re.sub(r"\s*,\s*", ",", told.strip())
    if not _LIST.fullmatch(told):
        raise NoAnswer(f"{told} is no list of nodes")
    names: list[str] = []
    for name in _NAME.findall(told):
        outside_and_inside = enumerate(re.split(r"[\[\]]", name))
        parts = (_numbers(part) if at % 2 else [part] for at, part in outside_and_inside)
        names += map("".join, itertools.islice(itertools.product(*parts), HOSTS_MAX))
    return names


def _numbers(ranges: str) -> list[str]:
    """The numbers within brackets with their leading zeros, HOSTS_MAX of each range at most: `08-10,3` has four."""
    found: list[str] = []
    for one in ranges.split(","):
        first, _, last = one.partition("-")
        numbers = range(int(first), int(last or first) + 1)[:HOSTS_MAX]
        found += [str(number).zfill(len(first)) for number in numbers]
    return found
