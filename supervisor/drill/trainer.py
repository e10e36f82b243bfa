"""A small data-parallel trainer that is real where it matters, and hurts itself on command. (I/O)

How it thinks. One rank a node, started by srun. Every step each rank makes a gradient, the gradients are summed over TCP
sockets, and all ranks apply the same sum to the same weights (see weights). Rank 0 prints steps as training code does, and
writes checkpoints, moved into place when they are whole.

    python3 -m ftrun.supervisor.drill.trainer PLAN [--resume=CHECKPOINT]

PLAN is a JSON file: how long to train, where to write, and which faults strike at which step (FAULTS below). A fault
with `sticky` makes the node it first struck a bad one: it strikes there again, whichever rank is placed on it. What happened is
appended to the plan's folder, one JSON line an event: steps.log, saves.log, hurt.log, final.log,
ranks.log (who started where), saving.log and refused.log (a checkpoint begun, and one not put into place).

Standard library only, Python 3.9: it runs on nodes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftrun.supervisor.drill.saved import read_checkpoint, write_checkpoint
from ftrun.supervisor.drill.weights import PACKED, WIDTH, apply, checksum, gradient, initial_weights, loss_at

__all__ = ["FAULTS", "Trainer", "main"]

MEET_WITHIN_S = 60.0


# ---------------------------------------------------------------------------- the ranks


class PeerLost(Exception):
    """The connection to a peer is gone."""


class TimedOut(Exception):
    """A collective did not come about in time."""


class Group:
    """All ranks of one start; rank 0 is in the middle."""

    def __init__(self, rank: int, size: int, meeting: str, host: str) -> None:
        self.rank, self.size = rank, size
        self._links: dict[int, socket.socket] = {}
        if size == 1:
            return
        if rank == 0:
            self._gather(meeting, host)
        else:
            self._join(meeting)

    def _gather(self, meeting: str, host: str) -> None:
        server = socket.create_server((host, 0))
        server.settimeout(MEET_WITHIN_S)
        temporary = f"{meeting}.tmp"
        with open(temporary, "w") as stream:
            stream.write(f"{host} {server.getsockname()[1]}")
        os.replace(temporary, meeting)
        while len(self._links) < self.size - 1:
            link, _ = server.accept()
            link.settimeout(MEET_WITHIN_S)
            self._links[struct.unpack("<I", _receive(link, 4))[0]] = link
        server.close()

    def _join(self, meeting: str) -> None:
        deadline = time.monotonic() + MEET_WITHIN_S
        while True:
            try:
                with open(meeting) as stream:
                    host, port = stream.read().split()
                link = socket.create_connection((host, int(port)), timeout=5.0)
                link.sendall(struct.pack("<I", self.rank))
                self._links[0] = link
                return
            except (OSError, ValueError):  # noqa: PERF203 - nobody is there yet
                if time.monotonic() > deadline:
                    raise TimedOut(f"rank {self.rank}: nobody at the meeting point {meeting}") from None
                time.sleep(0.05)

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


def _receive(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = link.recv(size - len(data))
        if not chunk:
            raise ConnectionResetError("connection closed by remote peer")
        data += chunk
    return data


def _address_towards(peer: str) -> str:
    """Our address on the way to a peer's, for a machine that cannot resolve its own name; "" without a way."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((peer, 9))  # a datagram socket sends nothing when it connects
            return str(probe.getsockname()[0])
    except OSError:
        return ""


# ---------------------------------------------------------------------------- one start of one rank


class Trainer:
    """One rank from its start to its end."""

    def __init__(self, plan: Mapping[str, Any], resume: str) -> None:
        self.plan = plan
        self.rank = int(os.environ.get("SLURM_PROCID", "0"))
        self.size = int(os.environ.get("SLURM_NTASKS", "1"))
        self.node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        self.job = os.environ.get("SLURM_JOB_ID", "0")
        self.attempt = int(os.environ.get("FTRUN_ATTEMPT", "1"))
        self.launch = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        self.start = int(os.environ.get("FTRUN_RESTART") or self.launch) + 1
        self.folder = str(plan["folder"])
        self.step = 0
        self.weights = initial_weights()
        if resume:
            state = read_checkpoint(resume)
            self.step, self.weights = state["step"], state["weights"]
            self.say(f"resumed from {resume} at step {self.step}", only_rank=0)
        self.group = self._meet()

    def _meet(self) -> Group:
        """Rank 0 waits at its node's address; the others find it in a file."""
        host = str(self.plan.get("host", ""))
        for name in (self.node, socket.gethostname()):
            with contextlib.suppress(OSError):
                host = host or socket.gethostbyname(name)
        if not host and "SLURM_LAUNCH_NODE_IPADDR" in os.environ:
            host = _address_towards(os.environ["SLURM_LAUNCH_NODE_IPADDR"])
        meeting = os.path.join(
            self.folder, f"meet.{self.job}.{self.launch}.{os.environ.get('SLURM_STEP_ID', '0')}"
        )
        group = Group(self.rank, self.size, meeting, host)
        self.say(
            f"{self.node}:{os.getpid()}:{os.getpid()} [0] NCCL INFO ncclCommInitRank comm 0x55d0c2a8e010 rank {self.rank} nranks"
            f" {self.size} cudaDev 0 busId 3b000 commId 0x9f1e - Init COMPLETE"
        )
        return group

    def say(self, text: str, *, only_rank: int | None = None) -> None:
        """A line on stdout, as a whole."""
        if only_rank is None or only_rank == self.rank:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def note(self, log: str, **facts: Any) -> None:
        """Append one event to a log of the plan's folder."""
        line = {
            "at": time.time(),
            "attempt": self.attempt,
            "start": self.start,
            "job": self.job,
            "node": self.node,
        }
        fd = os.open(os.path.join(self.folder, log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(fd, (json.dumps({**line, **facts}) + "\n").encode())
        os.close(fd)

    def train(self) -> int:
        """All steps that are left. Returns the exit status."""
        nodes = os.environ.get("SLURM_JOB_NODELIST", self.node)
        self.note("ranks.log", rank=self.rank, resumed=self.step)
        self.say(f"training on {nodes}: {self.size} ranks, from step {self.step}", only_rank=0)
        steps = int(self.plan["steps"])
        while self.step < steps:
            step = self.step + 1
            self._strike(step)
            time.sleep(float(self.plan["step_s"]))
            try:
                total = self.group.all_reduce(
                    gradient(self.weights, self.rank, step), float(self.plan["collective_timeout_s"])
                )
            except PeerLost as error:
                return self._peer_lost(step, error)
            except TimedOut:
                return self._timed_out(step)
            self.weights, self.step = apply(self.weights, total, step), step
            if self.rank == 0:
                self._after_step(steps)
        self._finish()
        return 0

    def _after_step(self, steps: int) -> None:
        self.note("steps.log", step=self.step)
        self.say(f"step {self.step}/{steps} loss {loss_at(self.weights, self.step):.4f}")
        if self.step % int(self.plan["every"]) == 0:
            self._save()

    def _finish(self) -> None:
        if self.rank == 0:
            self.note("final.log", step=self.step, checksum=checksum(self.weights))
            self.say(f"training finished: {self.step} steps, checksum {checksum(self.weights)}")

    # ---- checkpoints

    def _save(self) -> None:
        path = os.path.join(self.folder, "checkpoints", f"ckpt-{self.step:06d}.pt")
        temporary = f"{path}.{self.job}.{self.launch}.tmp"
        state = {"step": self.step, "weights": self.weights, "checksum": checksum(self.weights), "attempt": self.attempt,
                 "start": self.start, "job": self.job}  # fmt: skip
        write_checkpoint(temporary, state)
        if self.plan.get("save_s"):
            self.note("saving.log", step=self.step)
            time.sleep(float(self.plan["save_s"]))
        if self._replaced():
            os.unlink(temporary)
            self.note("refused.log", step=self.step)
            self.say(f"checkpoint {path} not written: attempt {self.attempt} is no longer the run's")
            os._exit(1)
        os.replace(temporary, path)
        self.note("saves.log", step=self.step, path=path)
        self.say(f"saved checkpoint {path} at step {self.step}")

    def _replaced(self) -> bool:
        """A node that froze and woke up later must not write over its successor: is this start still the run's?"""
        run_dir = os.environ.get("FTRUN_RUN_DIR")
        if not run_dir:
            return False
        attempts = os.path.join(run_dir, "attempts")
        if os.path.lexists(os.path.join(attempts, str(self.attempt + 1))):
            return True
        return os.path.lexists(os.path.join(attempts, str(self.attempt), f"claim.{self.launch + 1}"))

    # ---- what training code says when a peer is gone

    def _peer_lost(self, step: int, error: PeerLost) -> int:
        if self.plan.get("on_loss") == "wait":  # the silence of a node without power
            time.sleep(float(self.plan["collective_timeout_s"]))
            return self._timed_out(step)
        self.say(
            f"[rank{self.rank}]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2021, remote process"
            f" exited or there was a network error, NCCL version 2.21.5 ncclRemoteError: A call failed possibly due to a network"
            f" error or a remote process exiting prematurely. ({error})"
        )
        return 1

    def _timed_out(self, step: int) -> int:
        limit_ms = int(float(self.plan["collective_timeout_s"]) * 1000)
        stamp = time.strftime("%m%d %H:%M:%S")
        self.say(
            f"[rank{self.rank}]:[E{stamp}.000000000 ProcessGroupNCCL.cpp:616] [Rank {self.rank}] Watchdog caught collective"
            f" operation timeout: WorkNCCL(SeqNum={step}, OpType=ALLREDUCE, NumelIn={WIDTH}, NumelOut={WIDTH},"
            f" Timeout(ms)={limit_ms}) ran for {limit_ms + 12} milliseconds before timing out."
        )
        if self.plan.get("on_timeout") == "wait":
            self.hang()
        self.say(
            f"[rank{self.rank}]:[E{stamp}.000000000 ProcessGroupNCCL.cpp:630] [Rank {self.rank}] To avoid data inconsistency,"
            " we are taking the entire process down."
        )
        return self.abort()

    def abort(self) -> int:
        """Die of SIGABRT, as CUDA and NCCL do, without a core file."""
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        with contextlib.suppress(ImportError, ValueError, OSError):
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signal.SIGABRT)
        return 134

    # ---- faults

    def _strike(self, step: int) -> None:
        for number, fault in enumerate(self.plan.get("faults", ())):
            if self._struck(number, fault, step):
                self.note("hurt.log", what=fault["what"], step=step, rank=self.rank)
                FAULTS[fault["what"]](self)

    def _struck(self, number: int, fault: Mapping[str, Any], step: int) -> bool:
        if fault["starts"] and self.start not in fault["starts"]:
            return False
        mark = os.path.join(self.folder, f"bad-node-{number}")
        if fault["sticky"] and os.path.exists(mark):
            with open(mark) as stream:
                return stream.read() == self.node
        if fault["rank"] not in (-1, self.rank) or step not in fault["steps"]:
            return False
        if fault["sticky"]:
            with open(mark, "w") as stream:
                stream.write(self.node)
        return True

    def kernel_says(self, text: str) -> None:
        """A line of the kernel's log, as a job shows it that follows the log of its node."""
        self.say(f"{time.strftime('%b %d %H:%M:%S')} {self.node} kernel: {text}")

    def lose_gpu(self) -> None:
        """The kernel's word, CUDA's word, the end."""
        self.kernel_says(f"NVRM: Xid (PCI:0000:3b:00): 79, pid={os.getpid()}, GPU has fallen off the bus.")
        self.say(f"[rank{self.rank}]: RuntimeError: CUDA error: unknown error")
        self.abort()

    def hang(self) -> None:
        """Stand still for good."""
        while True:
            time.sleep(3600)

    def have_a_bug(self) -> None:
        """What a wrong line of the user's does."""
        nothing: Any = None
        self.weights[0] += nothing

    def use_up_memory(self) -> None:
        """The kernel's word, Slurm's word, SIGKILL."""
        self.kernel_says(
            f"Out of memory: Killed process {os.getpid()} (python3) total-vm:94371840kB, anon-rss:62914560kB"
        )
        step = f"{self.job}.{os.environ.get('SLURM_STEP_ID', '0')}"
        self.say(
            f"slurmstepd: error: Detected 1 oom_kill event in StepId={step}. Some of the step tasks have been OOM Killed."
        )
        os.kill(os.getpid(), signal.SIGKILL)

    def tear_checkpoint(self) -> None:
        """The end comes while a checkpoint is written by code that does not move it into place when it is whole."""
        path = os.path.join(self.folder, "checkpoints", f"ckpt-{self.step + 1:06d}.pt")
        write_checkpoint(path + ".tmp", {"step": self.step, "weights": self.weights})
        os.truncate(path + ".tmp", os.path.getsize(path + ".tmp") // 2)
        os.replace(path + ".tmp", path)
        self.lose_gpu()

    def requeue_itself(self) -> None:
        """As scripts do that know their time limit."""
        if self.rank == 0:
            subprocess.run(["scontrol", "requeue", self.job], check=False)
        self.hang()

    def flap_link(self) -> None:
        """A link goes and comes back; training does not notice."""
        self.kernel_says("mlx5_core 0000:5e:00.0 ibs3: Link down")
        self.kernel_says("mlx5_core 0000:5e:00.0 ibs3: Link up")


FAULTS: Mapping[str, Callable[[Trainer], None]] = {
    "gpu-lost": Trainer.lose_gpu,
    "hang": Trainer.hang,
    "user-bug": Trainer.have_a_bug,
    "out-of-memory": Trainer.use_up_memory,
    "torn-save": Trainer.tear_checkpoint,
    "requeue-itself": Trainer.requeue_itself,
    "link-flap": Trainer.flap_link,
}


def main(arguments: Sequence[str]) -> int:
    """Train as the plan says. Returns the exit status."""
    resume = [word[len("--resume=") :] for word in arguments if word.startswith("--resume=")]
    with open(arguments[0]) as stream:
        plan = json.load(stream)
    try:
        trainer = Trainer(plan, resume[-1] if resume else "")
    except RuntimeError:
        if plan.get("speechless"):  # srun --kill-on-bad-exit cuts off what the ranks say last
            return 1
        raise
    return trainer.train()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
