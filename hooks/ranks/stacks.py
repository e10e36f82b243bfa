"""`ftrun-hook stacks`: records what the ranks of the present start are doing on this node. (I/O)

The rank must survive the question. The stack of a Python rank comes from py-spy if it is permitted; else from
faulthandler, by the signal that the rank registered (`progress.beat`), and only if it still catches it. The
state of each thread in the kernel is always added. Two looks are taken, some seconds apart: a rank whose
digest, processor time and bytes did not change stands still. Every question has a time limit.

NCCL's Flight Recorder is triggered by a rank's pipe, `TORCH_NCCL_DEBUG_INFO_PIPE_FILE` + rank + `.pipe`
(torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, `DumpPipe`, 2.3 and later; torch_npu: TORCH_HCCL_).

A rank is the topmost process that is neither a launcher (a shell, srun, mpirun, our rank wrapper) nor the
ancestor of processes with another rank, as torchrun is. Its children (data loaders, compilers) have the rank
in their environment as well, and are none. Names of ranks: RANK (torchrun, deepspeed), OMPI_COMM_WORLD_RANK
(Open MPI), PMI_RANK (MPICH, Intel MPI), RANK_ID (MindSpore), SLURM_PROCID (srun).

A rank that only spins changes the line of its innermost function and no other. So a digest covers file and
function of every frame, and the line of all but the innermost.

Formats: py-spy 0.3 and 0.4, `dump` (`Thread 41 (idle): "MainThread"`, ` wait (threading.py:320)`);
faulthandler of Python 3.9 to 3.14 (`Thread 0x... (most recent call first):`, ` File "threading.py", line 320
in wait`): the main thread comes last.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Optional

from ftrun.hooks.ranks import kill_stale
from ftrun.hooks.runtime import node_report
from ftrun.hooks.runtime.command_line import parser_of
from ftrun.hooks.runtime.host import Machine, NoAnswer
from ftrun.hooks.runtime.procfs import environments
from ftrun.hooks.runtime.procfs import user_processes as listed
from ftrun.hooks.runtime.slurm_env import node_name
from ftrun.hooks.runtime.start_processes import PresentStart, Process, parse_environment

USUAL_LIMIT_S = 20.0
USUAL_APART_S = 3.0
PYSPY_S = 5.0
FAULT_S = 2.0
AT_ONCE = 8
THREADS_MAX = 256
BELOW_MAX = 64
IDLE_S, IDLE_BYTES = 0.05, 4096
TEXT_MAX = 1 << 20
FROZEN = frozenset(
    {"do_freezer_trap", "__refrigerator", "do_signal_stop"}
)  # where the kernel holds such a process
PIPES = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_HCCL_DEBUG_INFO_PIPE_FILE")
ACCELERATORS: dict[str, tuple[str, ...]] = {
    "nvidia-smi": (
        "--query-gpu=index,uuid,utilization.gpu,utilization.memory,power.draw,memory.used",
        "--format=csv,noheader,nounits",
    ),
    "rocm-smi": ("--showuse", "--showpower", "--csv"),
    "npu-smi": ("info",),
}


RANKS_MAX = 64
AWAITING = frozenset(
    {"srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"}
)  # they end after their ranks
NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK_ID")
LAUNCHERS = frozenset(
    {
        "sh", "bash", "dash", "ash", "zsh", "ksh", "csh", "tcsh", "fish", "busybox", "slurm_script", "srun", "mpirun", "mpiexec",
        "mpiexec.hydra", "orterun", "orted", "prte", "prterun", "prted", "hydra_pmi_proxy", "hydra_bstrap_pr", "timeout", "env", "nice",
        "nohup", "setsid", "stdbuf", "time", "numactl", "ftrun-rank", "apptainer", "singularity", "starter", "starter-suid", "appinit",
        "sinit", "enroot", "podman", "docker", "conmon", "crun", "runc", "catatonit", "docker-init", "tini", "dumb-init",
    }
)  # fmt: skip

CLIENTS = frozenset({"srun", "podman", "docker"})  # what they started is elsewhere


def rank_variable(told: Mapping[str, str]) -> tuple[str, str]:
    """The variable that names a rank, and the rank; ("", "") without one, as for a batch script."""
    for name in NAMES:
        if told.get(name, "").isdigit():
            return name, told[name]
    if told.get("SLURM_STEP_ID") and told.get("SLURM_PROCID", "").isdigit():
        return "SLURM_PROCID", told["SLURM_PROCID"]
    return "", ""


def ranks_of(members: Mapping[int, Process], told: Mapping[int, Mapping[str, str]]) -> list[int]:
    """The pids of the ranks, 64 at most, among a start's processes here. `told`: pid -> its variables."""
    below: dict[int, list[int]] = {}
    for pid, one in sorted(members.items()):
        below.setdefault(one.parent, []).append(pid)
    names = {pid: rank_variable(told.get(pid, {})) for pid in members}
    found: list[int] = []
    waiting = [pid for pid, one in sorted(members.items()) if one.parent not in members]
    while waiting:
        pid = waiting.pop(0)
        is_between = members[pid].name in LAUNCHERS
        children = below.get(pid, [])
        if children and (is_between or _others_below(pid, below, names)):
            waiting = children + waiting
        elif not is_between or (names[pid][0] and members[pid].name not in CLIENTS):
            found.append(pid)
    return found[:RANKS_MAX]


def _others_below(pid: int, below: Mapping[int, list[int]], names: Mapping[int, tuple[str, str]]) -> bool:
    """Whether a process has a descendant with another rank."""
    waiting, seen = list(below.get(pid, [])), {pid}
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        if names[one][0] and names[one] != names[pid]:
            return True
        waiting += below.get(one, [])
    return False


FRAMES_MAX = 100
_PYSPY_THREAD = re.compile(r"^Thread (?:0x)?([0-9A-Fa-f]+) \(.*?\)(?:: \"(.*)\")?")
_PYSPY_FRAME = re.compile(r"^ {4}(\S.*?) \((.+?)(?::(\d+))?\)$")
_FAULT_THREAD = re.compile(r"^(?:Current t|T)hread 0x[0-9a-f]+")
_FAULT_FRAME = re.compile(r'^ {2}File "(.*)", line (\d+|\?\?\?) in (.*)$')


class Frame(NamedTuple):
    """One call, innermost first in a stack; `file` with its folder; `line` is 0 if unknown."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


def main_of_pyspy(text: str, pid: int) -> tuple[Frame, ...]:
    """The main thread of a py-spy dump, innermost frame first; () without one."""
    threads: list[tuple[bool, list[Frame]]] = []
    for line in text.splitlines():
        head = _PYSPY_THREAD.match(line)
        if head:
            threads.append((head[2] == "MainThread" or head[1] == str(pid), []))
            continue
        frame = _PYSPY_FRAME.match(line)
        if frame and threads and len(threads[-1][1]) < FRAMES_MAX:
            threads[-1][1].append(Frame(frame[1], _short(frame[2]), int(frame[3] or 0)))
    return tuple(next((frames for is_main, frames in threads if is_main), threads[0][1] if threads else []))


def main_of_faulthandler(text: str) -> tuple[Frame, ...]:
    """The main thread of one faulthandler output; () without one."""
    frames: list[Frame] = []
    for line in text.splitlines():
        if _FAULT_THREAD.match(line):
            frames = []
            continue
        frame = _FAULT_FRAME.match(line)
        if frame and len(frames) < FRAMES_MAX:
            number = int(frame[2]) if frame[2].isdigit() else 0
            frames.append(Frame(frame[3], _short(frame[1]), number))
    return tuple(frames)


def _short(path: str) -> str:
    return "/".join(path.split("/")[-2:])


def digest(frames: Sequence[Frame]) -> str:
    """Twelve letters, equal for two looks at a process that did not move; "" without frames."""
    if not frames:
        return ""
    inner = frames[0]
    words = [
        f"{inner.file}:{inner.function}",
        *(f"{one.file}:{one.function}:{one.line}" for one in frames[1:]),
    ]
    return hashlib.sha256("\n".join(words).encode("utf-8", "replace")).hexdigest()[:12]


class Rank:
    """One rank of this node: its process, its variables, and the result of each look."""

    def __init__(self, process: Process, told: Mapping[str, str], below: Sequence[int] = ()) -> None:
        self.process, self.told, self.below = process, told, below
        self.pid, self.rank = process.pid, rank_variable(told)[1]
        self.looks: list[dict[str, Any]] = []
        self.text = ""

    def row(self) -> dict[str, Any]:
        """The rank's row in the node's table."""
        first, last = self.looks[0], self.looks[-1]
        digests = [one["digest"] for one in self.looks]
        cpu_s, moved_bytes = last["cpu_s"] - first["cpu_s"], last["bytes"] - first["bytes"]
        return {
            "rank": self.rank, "pid": self.pid, "name": self.process.name, "source": last["source"], "digest": digests[-1],
            "digests": digests, "moved": _moved(self.looks, cpu_s, moved_bytes), "top": last["top"],
            "state": last["state"], "stopped": all(one["stopped"] for one in self.looks), "wchan": last["wchan"], "threads": last["threads"],
            "cpu_s": round(cpu_s, 2), "bytes": moved_bytes, "cpu_all_s": round(last["cpu_s"], 2), "bytes_all": last["bytes"],
        }  # fmt: skip


def _moved(looks: Sequence[Mapping[str, Any]], cpu_s: float, moved_bytes: int) -> Optional[bool]:
    """Whether a rank was elsewhere at the second look; None if that is unknown. The kernel knows no
    functions. It shows a rank that computes in one place, or in several if the rank waits for its
    interpreter's lock now and then: so only of an idle one it tells whether that moved.
    """
    first, last = looks[0], looks[-1]
    if first["source"] != last["source"] or len(looks) < 2:
        return None
    if last["source"] == "proc" and (cpu_s >= IDLE_S or moved_bytes >= IDLE_BYTES):
        return None
    return bool(first["digest"] != last["digest"])


def processes_here(here: PresentStart, node: str) -> Mapping[int, tuple[Process, Mapping[str, str]]]:
    """The processes of the present start on this node, with their variables."""
    members = {
        pid: one
        for pid, (one, start) in kill_stale.processes_of_starts(here).items()
        if here.is_present(start)
    }
    told = {pid: parse_environment(text) for pid, text, _ in environments(sorted(members))}
    return {
        pid: (one, told.get(pid, {}))
        for pid, one in members.items()
        if _is_of(node, told.get(_top(pid, members), {}))
    }


def processes_of_task(
    folder: str, token: str, job: str, node: str
) -> Mapping[int, tuple[Process, Mapping[str, str]]]:
    """The processes of an array task on this node, with their variables. A task has no starts that could be
    fenced, so the environment alone identifies its processes.
    """
    processes = listed()
    told = {pid: parse_environment(text) for pid, text, _ in environments(sorted(processes))}
    names = {folder, os.path.realpath(folder)}
    return {
        pid: (processes[pid], one)
        for pid, one in told.items()
        if one.get("FTRUN_ATTEMPT_DIR") in names
        and (one.get("FTRUN_START_TOKEN"), one.get("SLURM_JOB_ID")) == (token, job)
        and _is_of(node, one)
    }


def ranks_among(members: Mapping[int, tuple[Process, Mapping[str, str]]]) -> list[Rank]:
    """The ranks among these processes."""
    ours = {pid: one for pid, (one, _) in members.items()}
    told = {pid: variables for pid, (_, variables) in members.items()}
    return [Rank(ours[pid], told[pid], _below(pid, ours)) for pid in ranks_of(ours, told)]


def _below(pid: int, members: Mapping[int, Process]) -> list[int]:
    """The descendants of a rank, such as data loaders: they work for it."""
    found = [pid]
    for one in found:
        found += [child for child, told in members.items() if told.parent == one and child not in found]
    return found[1 : BELOW_MAX + 1]


def _top(pid: int, members: Mapping[int, Process]) -> int:
    """The topmost ancestor that Slurm itself started: it knows its node; children of mpirun may not."""
    for _ in members:  # at most as many steps as processes
        pid = members[pid].parent if members[pid].parent in members else pid
    return pid


def _is_of(node: str, told: Mapping[str, str]) -> bool:
    """False for a task of another node: several nodes may be one machine."""
    return not told.get("SLURM_STEP_ID") or told.get("SLURMD_NODENAME", node) == node


def sample_stacks(ranks: Sequence[Rank], apart_s: float, limit_s: float) -> dict[str, Any]:
    """Look twice at these ranks, and at accelerators in between; the node's table without its name."""
    began_s = time.monotonic()
    machine = Machine("/", began_s + limit_s)
    _sample(machine, ranks)
    looked_s = time.monotonic()
    asked = [pipe for rank in ranks for pipe in _ask_recorder(rank)]
    accelerators: dict[str, list[str]] = {}
    _accelerators(machine, accelerators)
    pause_s = began_s + apart_s - time.monotonic()
    left_s = machine.left_s(limit_s)
    if ranks and left_s > 1.0:
        time.sleep(max(0.0, min(pause_s, left_s - 1.0)))
        _accelerators(machine, accelerators)
        _sample(machine, ranks)
    return {
        "took_s": round(time.monotonic() - began_s, 2), "apart_s": round(time.monotonic() - looked_s, 2), "ranks": [rank.row() for rank in ranks],
        "flight_recorder": asked, "accelerators": accelerators,
    }  # fmt: skip


def _sample(machine: Machine, ranks: Sequence[Rank]) -> None:
    """One look at all ranks in parallel: py-spy, else faulthandler, and the kernel's state."""
    texts: dict[int, tuple[str, str]] = {}
    awake = [rank for rank in ranks if not _is_stopped(machine, rank.pid)]  # others answer nobody
    if machine.tool("py-spy"):
        with ThreadPoolExecutor(AT_ONCE) as several:
            for rank, text in zip(awake, several.map(lambda one: _pyspy(machine, one), awake)):
                if text:
                    texts[rank.pid] = ("py-spy", text)
    rest = [rank for rank in awake if rank.pid not in texts]
    texts.update((pid, ("faulthandler", text)) for pid, text in _faulthandler_stacks(machine, rest).items())
    for rank in ranks:
        source, text = texts.get(rank.pid, ("proc", ""))
        frames = main_of_pyspy(text, rank.pid) if source == "py-spy" else main_of_faulthandler(text)
        kernel = _kernel(machine, rank.pid)
        rank.looks.append(
            {
                "source": source, "top": [str(frame) for frame in frames[:8]], "digest": digest(frames) or kernel.digest,
                "state": kernel.state, "stopped": _is_stopped(machine, rank.pid), "wchan": kernel.wchan, "threads": len(kernel.threads), **_used(machine, rank),
            }
        )  # fmt: skip
        at = time.strftime("%H:%M:%S %Z")
        head = f"== look {len(rank.looks)} at {at}: rank {rank.rank or '?'}, pid {rank.pid}, {rank.process.name}, {source}"
        rank.text += "\n".join([head, text, *kernel.threads, ""])


def _pyspy(machine: Machine, rank: Rank) -> str:
    """A py-spy dump; "" if it is not permitted or does not end in time."""
    try:
        done = machine.run(["py-spy", "dump", "--pid", str(rank.pid)], PYSPY_S)
    except NoAnswer:
        return ""
    return done.out[:TEXT_MAX] if done.code == 0 else ""


def _faulthandler_stacks(machine: Machine, ranks: Sequence[Rank]) -> dict[int, str]:
    """Pid -> what faulthandler wrote at its signal, for ranks that registered one and catch it."""
    waiting: dict[int, tuple[str, int]] = {}
    for rank in ranks:
        place, number = _registered(machine, rank)
        if number and _catches(machine, rank.pid, number):
            with contextlib.suppress(OSError):
                size = os.stat(place).st_size
                os.kill(rank.pid, number)
                waiting[rank.pid] = (place, size)
    found: dict[int, str] = {}
    sizes: dict[int, int] = {}
    give_up = time.monotonic() + machine.left_s(FAULT_S)
    while waiting and time.monotonic() < give_up:
        time.sleep(0.05)
        for pid, (place, before) in list(waiting.items()):
            size = _size(place)
            if size > before and size == sizes.get(pid):  # it has stopped growing
                found[pid] = _since(place, before)
                del waiting[pid]
            sizes[pid] = size
    return found


def _registered(machine: Machine, rank: Rank) -> tuple[str, int]:
    """The file to which this very process writes its stacks, and the signal for it; ("", 0) without one."""
    folder = rank.told.get("FTRUN_BEAT_DIR", "")
    if not folder or not rank.rank:
        return "", 0
    # In a container the rank may have another number, another name of the host, and a folder that only it sees.
    numbers = re.search(r"^NSpid:.*?(\d+)$", machine.peek(f"/proc/{rank.pid}/status") or "", re.MULTILINE)
    own = int(numbers[1]) if numbers else rank.pid
    hosts = {os.uname().nodename[:64]} if _shares_host_name(rank.pid) else None
    for place in (folder, f"/proc/{rank.pid}/root{folder}"):
        for name in {rank.rank, rank.told.get("SLURM_PROCID", "")}:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                with open(os.path.join(place, name), encoding="utf-8") as stream:
                    told = json.loads(stream.read(4096))
                if told.get("pid") == own and (hosts is None or told.get("host") in hosts):
                    return os.path.join(place, f"{name}.stack"), int(told.get("stack_signal") or 0)
    return "", 0


def _shares_host_name(pid: int) -> bool:
    """Whether a process has our UTS namespace; also where that cannot be told."""
    try:
        return os.readlink(f"/proc/{pid}/ns/uts") == os.readlink("/proc/self/ns/uts")
    except OSError:
        return True


def _catches(machine: Machine, pid: int, number: int) -> bool:
    """Whether a process handles a signal: without a handler the signal would kill it."""
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", machine.peek(f"/proc/{pid}/status") or "", re.MULTILINE)
    return 0 < number <= 64 and caught is not None and bool(int(caught[1], 16) & (1 << (number - 1)))


def _size(place: str) -> int:
    try:
        return os.stat(place).st_size
    except OSError:
        return 0


def _since(place: str, start: int) -> str:
    try:
        with open(place, "rb") as stream:
            stream.seek(start)
            return stream.read(TEXT_MAX).decode("utf-8", "replace")
    except OSError:
        return ""


class _Kernel(NamedTuple):
    """The state of one process in /proc: its main thread, and a line for each thread."""

    state: str
    wchan: str
    call: str
    threads: Sequence[str]

    @property
    def digest(self) -> str:
        """Where the main thread waits in the kernel."""
        return f"{self.wchan or '?'}:{self.call or '?'}"


def _kernel(machine: Machine, pid: int) -> _Kernel:
    threads = [_thread(machine, pid, task) for task in machine.names(f"/proc/{pid}/task")[:THREADS_MAX]]
    call = (machine.peek(f"/proc/{pid}/syscall") or "").partition(" ")[0].strip()
    return _Kernel(
        _stat(machine, f"/proc/{pid}")[0] or "gone", _wchan(machine, f"/proc/{pid}"), call, threads
    )


def _is_stopped(machine: Machine, pid: int) -> bool:
    """Whether a signal stopped the process, or its cgroup is frozen; a debugger's stop (t) is a person's."""
    return _stat(machine, f"/proc/{pid}")[0] == "T" or _wchan(machine, f"/proc/{pid}") in FROZEN


def _used(machine: Machine, rank: Rank) -> dict[str, Any]:
    """Processor time, and bytes read and written, of a rank and its descendants."""
    ticks = moved = 0
    for pid in (rank.pid, *rank.below):
        ticks += _stat(machine, f"/proc/{pid}")[1]
        numbers = re.findall(r"^[rw]char: (\d+)$", machine.peek(f"/proc/{pid}/io") or "", re.MULTILINE)
        moved += sum(map(int, numbers))
    return {"cpu_s": ticks / os.sysconf("SC_CLK_TCK"), "bytes": moved}


def _thread(machine: Machine, pid: int, task: str) -> str:
    """A line for one thread, and its kernel stack if that may be read."""
    place = f"/proc/{pid}/task/{task}"
    name, call = ((machine.peek(f"{place}/{one}") or "").strip() for one in ("comm", "syscall"))
    state = _stat(machine, place)[0] or "?"
    head = f"thread {task} {name} {state} wchan={_wchan(machine, place) or '?'} syscall={call or '?'}"
    stack = (machine.peek(f"{place}/stack") or "").rstrip()
    return head + ("\n" + stack if stack else "")


def _stat(machine: Machine, place: str) -> tuple[str, int]:
    """The state's letter and the ticks of processor time; ("", 0) of one that is gone."""
    fields = (machine.peek(f"{place}/stat") or "").rpartition(")")[2].split()
    return (fields[0], int(fields[11]) + int(fields[12])) if len(fields) > 12 else ("", 0)


def _wchan(machine: Machine, place: str) -> str:
    text = (machine.peek(f"{place}/wchan") or "").strip()
    return "" if text == "0" else text


def _ask_recorder(rank: Rank) -> list[str]:
    """Request a dump through the pipes of a rank; returns those that have a reader."""
    asked = []
    for name in PIPES:
        stem = rank.told.get(name, "")
        if not stem or not rank.rank:
            continue
        # The path in the rank's own root: it may be in a container.
        inside = f"/proc/{rank.pid}/" + (f"root{stem}" if stem.startswith("/") else f"cwd/{stem}")
        with contextlib.suppress(OSError):
            pipe = os.open(f"{inside}{rank.rank}.pipe", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                if stat.S_ISFIFO(os.fstat(pipe).st_mode) and os.write(pipe, b"1\n"):
                    asked.append(f"{stem}{rank.rank}.pipe")
            finally:
                os.close(pipe)
    return asked


def _accelerators(machine: Machine, found: dict[str, list[str]]) -> None:
    """Append to `found`: tool -> its output on utilisation and power, one text for each look."""
    for tool, words in ACCELERATORS.items():
        if machine.tool(tool):
            with contextlib.suppress(NoAnswer):
                found.setdefault(tool, []).append(machine.run([tool, *words], 5.0).out[:16384])


def main(arguments: list[str]) -> int:
    """Look, write a text for each rank and a table for the node, and print one line. Always 0."""
    text = "Write down what the ranks on this node are doing."
    parser = parser_of("stacks", text, "--attempt-folder", "--node")
    add = parser.add_argument
    add("--token", required=True, help="of the present start, LAUNCH.START")
    add("--out", required=True, help="the folder for NODE.PID.txt and NODE.json")
    add("--limit", type=float, default=USUAL_LIMIT_S, help="seconds that all of it may take")
    add("--apart", type=float, default=USUAL_APART_S, help="seconds between the two looks")
    add("--job", default=os.environ.get("SLURM_JOB_ID", ""), help="the Slurm job (default: the one around)")
    words = parser.parse_args(arguments)
    node = node_name(words.node)
    folder, _, task = words.attempt_folder.rstrip("/").rpartition("/tasks/")
    if folder and task.isdigit():
        members = processes_of_task(words.attempt_folder.rstrip("/"), words.token, words.job, node)
    else:
        cluster = os.environ.get("SLURM_CLUSTER_NAME", "")
        members = processes_here(
            kill_stale.present_start(words.attempt_folder, words.token, words.job, cluster), node
        )
    ranks = ranks_among(members)
    table = {
        "schema": 1,
        "node": node,
        "token": words.token,
        "at_s": round(time.time(), 3),
        "launchers": sorted({one.name for one, _ in members.values()} & AWAITING),
        **sample_stacks(ranks, words.apart, words.limit),
    }
    trouble = _written(words.out, node, table, ranks)
    print(json.dumps({"node": node, "ranks": len(ranks), "trouble": trouble}), flush=True)
    return 0


def _written(folder: str, node: str, table: Mapping[str, Any], ranks: Sequence[Rank]) -> Optional[str]:
    """Why something could not be written; None if all was."""
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        for rank in ranks:
            with open(os.path.join(folder, f"{node}.{rank.pid}.txt"), "w", encoding="utf-8") as stream:
                stream.write(rank.text)
        node_report.write_json(os.path.join(folder, f"{node}.json"), table)
    except OSError as error:
        return f"{error.filename or folder}: {error.strerror}"
    return None
