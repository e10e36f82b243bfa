"""Which processes belong to a sandbox, and to which of its nodes. (I/O)

Rules, from the surest to the widest; a process belongs to a node when any of them holds:
1. it is the node's daemon: slurmd or sshd started with this sandbox's configuration file;
2. it is a slurmstepd that writes this node's log (setproctitle leaves it no arguments to tell by);
3. its environment names this sandbox's SLURM_CONF and this SLURMD_NODENAME, as a slurmstepd's does at first;
4. it lives in the UTS namespace of one of the processes of rules 1 and 2, where nodes have one of their own:
   this finds what double-forked, started a session of its own and cleaned its environment;
5. it is a descendant of any of these.
A process that is just becoming another program shows neither arguments nor environment nor files: whoever ends
processes looks again until no such is left. Another sandbox's processes fulfil none of the rules. The caller and its ancestors never belong to a sandbox, and
a shell or a supervisor that merely has SLURM_CONF set is a client, not a part.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ftrun.slurm.records import dataclass
from ftrun.slurm.sandbox.plan import Plan

CLIENTS = frozenset(
    {"srun", "sbatch", "salloc", "squeue", "sinfo", "scontrol", "scancel", "sacct", "sattach", "sacctmgr"}
)
ROUNDS_MAX = 50
# A program starts within milliseconds, from a cold disk within tenths of a second; some processes never show arguments.
EXEC_WAIT_S = 0.5
KERNEL_THREAD = 0x00200000  # PF_KTHREAD of linux/sched.h, in field 9 of /proc/PID/stat


@dataclass(frozen=True, slots=True)
class Process:
    """One process as /proc shows it; `start` (clock ticks after boot) makes the pid unambiguous."""

    pid: int
    ppid: int
    start: int
    state: str
    comm: str
    cmdline: str


@dataclass(frozen=True, slots=True)
class Members:
    """The processes of a sandbox at one moment. `daemons` maps a daemon's name (slurmctld, munged, munged-n0,
    slurmd-n0, sshd-n0, slurmdbd, mariadbd) to its processes; `nodes` maps a node to all its processes,
    daemons included; `clients` are Slurm's own commands that talk to this sandbox from outside of it.
    """

    daemons: Mapping[str, frozenset[Process]]
    nodes: Mapping[str, frozenset[Process]]
    clients: frozenset[Process]

    @property
    def everything(self) -> frozenset[Process]:
        """Daemons, job steps, jobs' processes and clients."""
        return frozenset().union(self.clients, *self.daemons.values(), *self.nodes.values())


def members(plan: Plan) -> Members:
    """Look at /proc once and sort what belongs to the sandbox."""
    table = _table()
    pid = os.getpid()  # neither the caller nor its ancestors belong to a sandbox
    while pid in table:
        pid = table.pop(pid).ppid
    environments = {pid: _environment(pid) for pid in table}
    conf = f"SLURM_CONF={plan.slurm_conf_path}".encode()
    ours = {pid for pid, environment in environments.items() if conf in environment}

    daemons: dict[str, set[int]] = {}
    for process in table.values():
        name = _daemon_name(plan, process)
        if name:
            daemons.setdefault(name, set()).add(process.pid)
    nodes = {
        node: daemons.get(f"slurmd-{node}", set()) | daemons.get(f"sshd-{node}", set())
        for node in plan.node_names
    }
    _add_steps(plan, table, nodes)
    _add_namespaces(plan, table, nodes)
    for pid in ours:
        node = _value(environments[pid], b"SLURMD_NODENAME=")
        if node in nodes:
            nodes[node].add(pid)
    children = _children(table)
    for pids in [*nodes.values(), *daemons.values()]:
        pids.update(_descendants(pids, children))
    daemons.setdefault("slurmctld", set()).update(pid for pid in ours if table[pid].comm == "slurmscriptd")
    in_nodes = set().union(*nodes.values())
    clients = {pid for pid in ours if table[pid].comm in CLIENTS} - in_nodes

    def pick(pids: Iterable[int]) -> frozenset[Process]:
        return frozenset(table[pid] for pid in pids)

    return Members(
        daemons={name: pick(pids) for name, pids in daemons.items() if pids},
        nodes={node: pick(pids) for node, pids in nodes.items()},
        clients=pick(clients),
    )


def send(processes: Iterable[Process], signal_number: signal.Signals) -> None:
    """Signal processes, unless a pid has meanwhile become another process."""
    for process in processes:
        now = _process(process.pid)
        if now is None or now.start != process.start:
            continue
        try:
            os.kill(process.pid, signal_number)
        except (ProcessLookupError, PermissionError):
            continue  # gone already, or not ours: `end` reports what is left


def send_until_stable(
    find: Callable[[], Iterable[Process]], signal_number: signal.Signals
) -> frozenset[Process]:
    """Signal what `find` finds until it finds nothing new: a process may fork while we look."""
    reached: set[Process] = set()
    seen: set[tuple[int, int]] = set()
    for _ in range(ROUNDS_MAX):
        fresh = [process for process in find() if (process.pid, process.start) not in seen]
        if not fresh:
            break
        # Parents before children: a daemon that is stopped cannot report its children's fate.
        send(sorted(fresh, key=lambda process: process.start), signal_number)
        reached.update(fresh)
        seen.update((process.pid, process.start) for process in fresh)
    return frozenset(reached)


def end(find: Callable[[], Iterable[Process]], wait_s: float) -> tuple[int, frozenset[Process]]:
    """Stop and then kill what `find` finds until nothing is left. Returns how many processes were ended and
    those that resisted SIGKILL for `wait_s` seconds.
    """
    ended: set[tuple[int, int]] = set()
    deadline = time.monotonic() + wait_s
    while True:
        # Stopping first gives a machine's sudden death: nobody sees a neighbour die and tells about it.
        reached = send_until_stable(find, signal.SIGSTOP)
        send(reached, signal.SIGKILL)
        ended.update((process.pid, process.start) for process in reached)
        _wait_for_programs(EXEC_WAIT_S)
        left = frozenset(find())
        if not left or time.monotonic() > deadline:
            return len(ended), left
        time.sleep(0.02)


def _wait_for_programs(wait_s: float) -> None:
    """Return when every process that is between two programs now has become one, or is gone."""
    deadline = time.monotonic() + wait_s
    between = _between_programs()
    while between and time.monotonic() < deadline:
        time.sleep(0.005)
        between &= _between_programs()


def _between_programs() -> set[tuple[int, int]]:
    return {(process.pid, process.start) for process in _table().values() if not process.cmdline}


def _daemon_name(plan: Plan, process: Process) -> str:
    words = process.cmdline.split("\0")
    if process.comm == "munged":
        folders = plan.munged_folders.items()
        return next((name for name, folder in folders if f"--socket={folder}/munge.sock" in words), "")
    if process.comm == "slurmctld":
        return "slurmctld" if plan.slurm_conf_path in words else ""
    if process.comm == "slurmd" and plan.slurm_conf_path in words and "-N" in words[:-1]:
        return f"slurmd-{words[words.index('-N') + 1]}"
    if process.comm == "sshd":
        # sshd writes its title as one string: "sshd: /usr/sbin/sshd -f PATH ... [listener] ..."
        title = process.cmdline.replace("\0", " ").split()
        return next((f"sshd-{node}" for node in plan.node_names if plan.sshd_config_path(node) in title), "")
    if process.comm in ("mariadbd", "mysqld"):
        return "mariadbd" if f"--datadir={plan.run_dir}/mysql" in words else ""
    if process.comm == "slurmdbd":
        conf = f"SLURM_CONF={plan.slurm_conf_path}".encode()
        return "slurmdbd" if conf in _environment(process.pid) else ""
    return ""


def _add_steps(plan: Plan, table: Mapping[int, Process], nodes: Mapping[str, set[int]]) -> None:
    by_log = {plan.slurmd_log(node): node for node in plan.node_names}
    for pid, process in table.items():
        if process.comm.startswith("slurmstepd"):
            node = next((by_log[path] for path in _open_files(pid) if path in by_log), None)
            if node:
                nodes[node].add(pid)


def _add_namespaces(plan: Plan, table: Mapping[int, Process], nodes: Mapping[str, set[int]]) -> None:
    if not plan.marked:
        return
    of_machine = {_uts("self"), _uts("1"), ""}
    node_of = {_uts(str(pid)): node for node, pids in nodes.items() for pid in pids}
    for pid in table:
        uts = _uts(str(pid))
        if uts not in of_machine and uts in node_of:
            nodes[node_of[uts]].add(pid)


def _table() -> dict[int, Process]:
    found = (_process(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {process.pid: process for process in found if process is not None}


def _process(pid: int) -> Process | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        cmdline = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None
    comm, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    if fields[0] in "ZX" or int(fields[6]) & KERNEL_THREAD:  # dead already: only its parent removes the entry
        return None
    return Process(pid, int(fields[1]), int(fields[19]), fields[0], comm, cmdline)


def _environment(pid: int) -> frozenset[bytes]:
    try:
        return frozenset(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return frozenset()


def _value(environment: frozenset[bytes], key: bytes) -> str:
    return next(
        (entry[len(key) :].decode(errors="replace") for entry in environment if entry.startswith(key)), ""
    )


def _open_files(pid: int) -> list[str]:
    try:
        # The log's folder may be gone while a step of old still writes.
        return [str(fd.readlink()).removesuffix(" (deleted)") for fd in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []


def _uts(pid: str) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/uts").readlink())
    except OSError:
        return ""


def _children(table: Mapping[int, Process]) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process.pid)
    return children


def _descendants(pids: Iterable[int], children: Mapping[int, list[int]]) -> set[int]:
    found: set[int] = set()
    queue = list(pids)
    while queue:
        fresh = [child for child in children.get(queue.pop(), []) if child not in found]
        found.update(fresh)
        queue += fresh
    return found
