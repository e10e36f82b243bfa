"""One rank of a training that saves and resumes, which times what it does; where the interpreter has torch, its checkpoint writers, too. (standard library)

    srun -n 2 python stage_rank.py PLAN

PLAN is a JSON file: folder, to, home ($FTRUN_HOME), size_bytes, rounds, torch (whether to try its writers), steps_s (how long steps are counted). Rank 1 has the state, rank 0 a few bytes. In the first start
rank 1 saves in turns: a bare copy to its memory, a file system with fsync, the stage, and by torch.distributed.checkpoint. A set is published beside a *busy* trainer, where both ranks count steps (a checksum of 4 MiB
each), and beside one that leaves *room*, where rank 1 waits, as it would for its GPU; `cp`, at the keeper's priority, copies the same beside the same. In a later start rank 1 reads what it is told to resume from. Samples go to FOLDER/samples.jsonl.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import importlib
import json
import mmap
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

PARTS = 8
BLOCK = os.urandom(4 << 20)
STATE_BYTES = 256 << 20  # more than any cache of a processor holds; a larger state is this again and again
AT_THE_KEEPERS = ("nice", "-n", "10", "ionice", "-c", "2", "-n", "7")
BUSY, ROOM = "busy", "room"


class Rank:
    """One process of one start."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan, self.folder = plan, plan["folder"]
        self.rank = int(os.environ["SLURM_PROCID"])
        self.start = int(os.environ.get("FTRUN_RESTART") or 0) + 1
        self.node = os.environ["SLURMD_NODENAME"]
        self.state = bytearray()

    def note(self, what: str, **facts: Any) -> None:
        """One sample."""
        line = json.dumps({"what": what, "start": self.start, "node": self.node, "at": time.time(), **facts})
        with open(os.path.join(self.folder, "samples.jsonl"), "a") as stream:
            stream.write(line + "\n")

    def timed(self, what: str, act: Callable[..., Any], *arguments: Any) -> Any:
        """What it took is a sample."""
        began_s = time.monotonic()
        came = act(*arguments)
        self.note(what, s=time.monotonic() - began_s)
        return came

    def told(self, what: str) -> None:
        """Rank 1 tells, rank 0 and the bench hear."""
        path = os.path.join(self.folder, f"told.{self.start}.{what}")
        with open(path, "w"):
            pass

    def until(self, what: str) -> None:
        """Somebody told it."""
        path = os.path.join(self.folder, f"told.{self.start}.{what}")
        while not os.path.exists(path):
            time.sleep(0.02)

    # ---- saving

    def write(self, folder: str, lasting: bool = False) -> None:
        """The state as plain files, none of which is like another one, now or later: those would be linked and not sent."""
        os.makedirs(folder, exist_ok=True)
        for number in range(PARTS):
            self.state[:16] = os.urandom(16)
            with open(os.path.join(folder, f"part-{number}.bin"), "wb", buffering=0) as stream:
                left = self.plan["size_bytes"] // PARTS
                while left:
                    left -= stream.write(memoryview(self.state)[:left])
                if lasting:
                    os.fsync(stream.fileno())

    def staged(self, step: int) -> None:
        """The state through the hook."""
        stage: Any = importlib.import_module("ftrun.hooks").stage
        with stage(step) as folder:
            self.write(str(folder))

    def flushed(self, step: int, load: str) -> None:
        """Save, and wait until the set is on the shared file system."""
        steps = [self.steps(self.plan["steps_s"])] if load == BUSY else []
        self.told(f"save.{step}")
        before = self.keeper()
        self.timed("stage", self.staged, step)
        began_s, at = time.monotonic(), time.time()
        done = self.waiting(lambda: self.is_published(step), load)
        took_s = time.monotonic() - began_s
        if load == BUSY:
            steps.append(self.steps(self.plan["steps_s"]))
            self.note("steps kept", value=done / took_s / (sum(steps) / 2))
        else:
            time.sleep(self.plan["steps_s"])  # meanwhile the keeper tells
        after = self.keeper()
        self.note(f"flush {load}", s=took_s, window=[at, at + took_s])
        copied = {what: after[what] - before[what] for what in before}
        self.note(f"copying {load}", s=copied["flush_s"])
        self.note(f"keeper cpu {load}", s=copied["cpu_s"])
        self.note("keeper", peak_mib=after["peak_mib"])

    def keeper(self) -> dict[str, float]:
        """What the keeper of this node has done so far: seconds of copying, of processor time, and the most memory it had."""
        (path,) = glob.glob(f"{self.plan['home']}/runs/*/attempts/1/stage/{self.node}.json")
        with open(path) as stream:
            told = json.load(stream)
        with open(f"/proc/{told['pid']}/stat") as stream:
            words = stream.read().rpartition(")")[2].split()
        with open(f"/proc/{told['pid']}/status") as stream:
            peak = next(line.split()[1] for line in stream if line.startswith("VmHWM:"))
        cpu_s = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
        return {"flush_s": told["flush_s"], "cpu_s": cpu_s, "peak_mib": int(peak) / 1024}

    def is_published(self, step: int) -> bool:
        """The set of this step has its marker."""
        names = (name for name in os.listdir(self.plan["to"]) if name.endswith(f"-{step}"))
        return any(os.path.exists(os.path.join(self.plan["to"], name, ".ftrun-complete")) for name in names)

    def waiting(self, is_done: Callable[[], bool], load: str) -> int:
        """Until something is done, making steps or none; how many."""
        began_s, steps = time.monotonic(), 0
        while not is_done():
            if load == BUSY:
                hashlib.sha256(BLOCK).digest()
                steps += 1
            else:
                time.sleep(0.01)
            if time.monotonic() - began_s > 300.0:
                raise TimeoutError("nothing was done within five minutes")
        return steps

    def steps(self, lasting_s: float) -> float:
        """Steps that are made in a second, counted for so many."""
        give_up_s = time.monotonic() + lasting_s
        began_s = time.monotonic()
        return self.waiting(lambda: time.monotonic() > give_up_s, BUSY) / (time.monotonic() - began_s)

    # ---- what the two ranks do

    def save_all(self) -> None:
        """The first start of the rank that has the state."""
        self.state = bytearray(BLOCK * (min(self.plan["size_bytes"] // PARTS, STATE_BYTES) // len(BLOCK)))
        if not self.plan["rounds"]:
            self.flushed(1, ROOM)
            return
        memory, disk = "/dev/shm/bare", os.path.join(self.folder, "direct")
        self.write(memory)  # the first pages of a file system cost more
        shutil.rmtree(memory)
        for turn in range(self.plan["rounds"]):
            self.timed("bare", self.write, memory)
            shutil.rmtree(memory)
            self.timed("disk", self.write, disk, True)
            shutil.rmtree(disk)
            for at, load in enumerate((BUSY, ROOM)):
                at_s = time.time()
                if load == ROOM:
                    time.sleep(self.plan["steps_s"])  # rank 0 alone
                    self.note("alone", window=[at_s, time.time()])
                self.flushed(2 * turn + at + 1, load)
                self.write(memory)
                self.cp(memory, disk, load)
                shutil.rmtree(memory)
                shutil.rmtree(disk)
        if self.plan["torch"]:
            with contextlib.suppress(ImportError):
                self.by_torch(2 * self.plan["rounds"] + 1)

    def cp(self, source: str, target: str, load: str) -> None:
        """`cp`, and until it is on disk."""
        began_s, used = time.monotonic(), os.times()
        line = 'cp -r "$1" "$2" && sync "$2"/*'
        # In a session of its own, like the keeper: some kernels share the processor between sessions.
        child = subprocess.Popen(
            [*AT_THE_KEEPERS, "sh", "-c", line, "sh", source, target], start_new_session=True
        )
        self.waiting(lambda: child.poll() is not None, load)
        now = os.times()
        self.note(f"cp {load}", s=time.monotonic() - began_s)
        cpu_s = now.children_user + now.children_system - used.children_user - used.children_system
        self.note(f"cp cpu {load}", s=cpu_s)

    def by_torch(self, step: int) -> None:
        """The same state by torch.distributed.checkpoint: to memory, into the stage, to the disk, and in the background."""
        torch = importlib.import_module("torch")
        dcp = importlib.import_module("torch.distributed.checkpoint")

        size = self.plan["size_bytes"] // PARTS
        parts = [bytearray(BLOCK * (size // len(BLOCK))) for _ in range(PARTS)]
        state = {f"part-{n}": torch.frombuffer(part, dtype=torch.uint8) for n, part in enumerate(parts)}
        disk = os.path.join(self.folder, "direct")

        def save(where: str) -> None:
            dcp.save(state, checkpoint_id=where, no_dist=True)

        def background() -> Any:
            return dcp.async_save(state, storage_writer=dcp.FileSystemWriter(disk), no_dist=True)

        for turn in range(2):
            self.timed("dcp bare", save, "/dev/shm/bare")
            shutil.rmtree("/dev/shm/bare")
            self.told(f"save.{step + turn}")
            where = os.path.join(os.environ["FTRUN_STAGE_DIR"], f"step-{step + turn}")
            self.timed("dcp stage", save, where)
            self.waiting(functools.partial(self.is_published, step + turn), ROOM)
            self.timed("dcp disk", save, disk)
            shutil.rmtree(disk)
            began_s = time.monotonic()
            going = self.timed("dcp async", background)
            going.result()
            self.note("dcp async whole", s=time.monotonic() - began_s)
            shutil.rmtree(disk)

    def beside(self) -> None:
        """The first start of the other rank: a few bytes of each set, and steps all the time."""
        step = 1
        while not os.path.exists(os.path.join(self.folder, f"told.{self.start}.over")):
            began_s = time.time()
            self.note("beside", per_s=self.steps(0.1), window=[began_s, time.time()])
            if os.path.exists(os.path.join(self.folder, f"told.{self.start}.save.{step}")):
                with self.small(step) as folder, open(os.path.join(folder, "rank-0.bin"), "wb") as stream:
                    stream.write(b"of rank 0")
                step += 1

    @contextlib.contextmanager
    def small(self, step: int) -> Iterator[str]:
        """The folder of a set: of the hook, or for torch's sets just a folder."""
        if step <= max(1, 2 * self.plan["rounds"]):
            stage: Any = importlib.import_module("ftrun.hooks").stage
            with stage(step) as folder:
                yield str(folder)
        else:
            folder = os.path.join(os.environ["FTRUN_STAGE_DIR"], f"step-{step}")
            os.makedirs(folder, exist_ok=True)
            yield folder

    def read_all(self) -> None:
        """A later start of the rank that has the state."""
        source = os.environ["FTRUN_RESUME_FROM"]
        largest = max(os.scandir(source), key=lambda one: one.stat().st_size).path
        for _ in range(3):
            self.note("resume", s=load(source), source=os.path.realpath(largest))
            self.note("resume into", s=load(source, is_known=True))
            self.note("resume mapped", s=mapped(source))


def load(folder: str, *, is_known: bool = False) -> float:
    """Seconds to have all files of a folder in a process, one after the other: in memory that it asks for, as torch.load, or that it has already (`is_known`), as dcp.load."""
    paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if not name.startswith(".")]
    largest = max(map(os.path.getsize, paths))
    known, took_s = bytearray(b"x") * largest if is_known else bytearray(), 0.0
    for path in paths:
        began_s = time.monotonic()
        with open(path, "rb", buffering=0) as stream:
            size = os.path.getsize(path)
            left = memoryview(known)[:size] if is_known else memoryview(bytearray(size))
            while left:
                left = left[stream.readinto(left) :]
        took_s += time.monotonic() - began_s
    return took_s


def mapped(folder: str) -> float:
    """Seconds until all pages of all files of a folder are in a process, as safetensors and torch.load(mmap=True) have them: nothing is copied."""
    paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if not name.startswith(".")]
    maps, began_s = [], time.monotonic()
    for path in paths:
        with open(path, "rb") as stream:
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            maps.append(mmap.mmap(stream.fileno(), 0, flags=flags, prot=mmap.PROT_READ))
    return time.monotonic() - began_s


def main() -> None:
    """What this rank does in this start."""
    with open(sys.argv[1]) as stream:
        rank = Rank(json.load(stream))
    with open(os.path.join(rank.folder, f"pid.{rank.rank}"), "w") as stream:
        stream.write(str(os.getpid()))
    print(f"step {rank.start} loss 2.5", flush=True)
    if rank.start > 1 and rank.rank == 1:
        rank.read_all()
        rank.told("over")
    elif rank.rank == 1:
        rank.save_all()
        rank.told("over")
    elif rank.start == 1:
        rank.beside()
    rank.until("go")


if __name__ == "__main__":
    main()
