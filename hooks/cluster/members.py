"""Which processes of this host belong to a cluster. (I/O)

What is up is read from /proc each time, never remembered: pid files of an earlier boot name strangers. A process belongs to the
cluster of a token and folder when
1. its environment has our mark with the token: munged, slurmctld and slurmd are started with it, and slurmstepd inherits it;
2. it is a slurmstepd that has the slurmd's log open (its title overwrites its environment);
3. its title has the file of the sshd that serves the cluster's folder (the title overwrites its environment, too);
4. its environment has the cluster's SLURM_CONF and a job's number: what a step left behind;
5. its environment has the cluster's SLURM_CONF and it is a supervisor of ftrun: nothing is left that it could look after;
6. it is a descendant of any of these.
The caller and its ancestors never belong to it. A shell with SLURM_CONF alone is a client. Anybody can give a process any title or
environment, and the token is no secret: daemons are this user's own processes, and others' count for nothing but as tasks on root's cluster.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from typing import NamedTuple

from ftrun.hooks.runtime.host import Machine
from ftrun.hooks.runtime.procfs import Process, environments, quick_processes, with_status

MARK = "FTRUN_CLUSTER_DAEMON"
SUPERVISOR = "ftrun.supervisor\0supervise"
ROUNDS_MAX = 50
READ_S = 10.0
"""On a busy host a reader may get no processor for a second; whom it leaves out would outlive `down`."""
END_WAIT_S = 10.0


class Members(NamedTuple):
    """The processes of a cluster on this host: `daemons` by name, and `everything` with steps and tasks."""

    daemons: dict[str, list[Process]]
    everything: list[Process]


def mark_of(token: str, daemon: str) -> str:
    """The value of MARK in the environment of a daemon."""
    return f"{token}/{daemon}"


def members(token: str, folder: str) -> Members:
    """Look at /proc once."""
    table = {
        pid: one
        for pid, one in quick_processes(Machine()).items()
        if not one.is_kernel and one.state not in "ZX"
    }
    pid = os.getpid()
    while pid in table:
        pid = table.pop(pid).parent
    daemons: dict[str, list[Process]] = {}
    ours: set[int] = set()
    mark, conf = f"{MARK}={token}/", f"SLURM_CONF={folder}/etc/slurm.conf"
    for pid, text, words in environments(table, empty=True, patience_s=READ_S):
        variables = text.split("\0")
        daemon = next((one[len(mark) :] for one in variables if one.startswith(mark)), "")
        daemon = daemon or (
            "sshd" if words.startswith("sshd: ") and f" {folder}/etc/share_sshd " in words else ""
        )
        is_client = conf in variables
        is_task = is_client and any(one.startswith("SLURM_JOB_ID=") for one in variables)
        is_supervisor = is_client and SUPERVISOR in words
        if not (daemon or is_task or is_supervisor or _is_step(pid, words, f"{folder}/log/slurmd.log")):
            continue
        owner = with_status(Machine(), table[pid])
        is_own = owner is not None and owner.uid == os.geteuid()
        if is_own or os.geteuid() == 0:
            ours.add(pid)
        if daemon and is_own and _is_daemon(words.split("\0"), folder):
            daemons.setdefault(daemon, []).append(table[pid])
    ours |= _descendants(ours, table)
    return Members(
        {name: sorted(found, key=lambda one: (one.began, one.pid)) for name, found in daemons.items()},
        [table[pid] for pid in ours],
    )


def variable_of(pid: int, name: str) -> str:
    """A variable in the environment of a living daemon; "" without one."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as stream:
        for one in stream.read().split(b"\0"):
            key, _, value = one.partition(b"=")
            if key.decode("utf-8", "replace") == name:
                return value.decode("utf-8", "replace")
    return ""


def _is_daemon(words: list[str], folder: str) -> bool:
    """Whether this is the daemon itself and no step, nor the ssh of a sshfs: its command line names a file of the cluster."""
    return any(folder in word for word in words) and os.path.basename(words[0]) not in {"slurmstepd", "ssh"}


def _is_step(pid: int, words: str, log: str) -> bool:
    if "slurmstepd" not in words.split("\0", 1)[0]:
        return False
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{number}").replace(" (deleted)", "") == log:
                    return True
    return False


def _descendants(pids: Iterable[int], table: dict[int, Process]) -> set[int]:
    children: dict[int, list[int]] = {}
    for one in table.values():
        children.setdefault(one.parent, []).append(one.pid)
    found: set[int] = set()
    waiting = list(pids)
    while waiting:
        fresh = [child for child in children.get(waiting.pop(), []) if child not in found]
        found.update(fresh)
        waiting += fresh
    return found


def end(token: str, folder: str) -> tuple[int, list[Process]]:
    """End every process of the cluster on this host.

    All are stopped before the first is killed, else a daemon would tell of its neighbour's death, or start something anew. Returns how
    many were ended, and those that resist SIGKILL.
    """
    ended: set[tuple[int, int]] = set()
    give_up_s = time.monotonic() + END_WAIT_S
    while True:
        stopped: dict[tuple[int, int], Process] = {}
        for _ in range(ROUNDS_MAX):
            fresh = {(one.pid, one.began): one for one in members(token, folder).everything}
            fresh = {key: one for key, one in fresh.items() if key not in stopped}
            if not fresh:
                break
            _send(fresh.values(), signal.SIGSTOP)
            stopped.update(fresh)
        _send(stopped.values(), signal.SIGKILL)
        ended |= set(stopped)
        left = members(token, folder).everything
        if not left or time.monotonic() > give_up_s:
            return len(ended), left
        time.sleep(0.05)


def _send(processes: Iterable[Process], number: signal.Signals) -> None:
    for one in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one.pid, number)
