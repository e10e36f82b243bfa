"""A small data-parallel trainer, realistic where it matters, that injects faults into itself. (I/O)

srun starts one rank on each node. In every step each rank computes a gradient, the ranks sum the gradients
over TCP (`process_group`), and all apply the same sum to the same weights (`toy_model`). Rank 0 prints steps
as training code does, and writes checkpoints to a temporary file that it renames. On SIGUSR1 it saves a
checkpoint, even during a sum. With `rejoin`, a rank that lost a peer waits for the peer's successor and
continues in the same process.

    python3 -m ftrun.supervisor.drill_trainer.trainer PLAN [--resume=CHECKPOINT]

PLAN is a JSON file: how long to train, where to write, and which faults strike at which step (`faults`). A
fault with `sticky` makes the node it first struck a bad one: it strikes there again, whichever rank runs on
it. The trainer appends one JSON line for each event to logs in the plan's folder: steps.log, saves.log,
hurt.log, final.log, ranks.log (which process started where), ends.log (which process reached the end),
saving.log and refused.log (a checkpoint that was begun, and one that was not renamed).

Standard library only, Python 3.9: it runs on nodes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks import beat
from ftrun.supervisor.drill_trainer import checkpoint_files, faults
from ftrun.supervisor.drill_trainer.process_group import PeerLost, ProcessGroup, TimedOut, address_towards
from ftrun.supervisor.drill_trainer.toy_model import (
    WIDTH,
    apply,
    checksum,
    gradient,
    initial_weights,
    loss_at,
)


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
        self.memory = os.urandom(4).hex()  # identifies the process beyond its pid
        self.slowness, self.poisoned = 1.0, False
        self._summing = self._save_asked = False
        self.step = 0
        self.weights = initial_weights()
        self.way = str(plan.get("stage", ""))  # how checkpoints are staged; "" = they are not
        read = self._resume(resume) if resume else []
        signal.signal(signal.SIGUSR1, self._on_save_signal)
        self.group = self._group()
        pid, share = os.getpid(), self.weights
        self.note("ranks.log", rank=self.rank, resumed=self.step, pid=pid, memory=self.memory, read=read)
        self._take_seat()
        self._meet()
        self._require_whole_segment()
        if resume and self.way:  # each rank read its share; the sum is the whole
            self.weights = self._sum(share)

    def _resume(self, checkpoint: str) -> list[str]:
        """Load step and weights from a checkpoint; return the files read. Raises RuntimeError."""
        if self.way:
            state, read = checkpoint_files.read_part(checkpoint, self.rank, self.size)
        else:
            state, read = self._read(checkpoint), [checkpoint]
        self.step, self.weights = state["step"], state["weights"]
        self.say(f"resumed from {checkpoint} at step {self.step}", only_rank=0)
        return read

    def _read(self, checkpoint: str) -> dict[str, Any]:
        """Read a checkpoint, or fail as `loader` says. Raises RuntimeError, ValueError, KeyError."""
        loader = self.plan.get("loader")
        if loader == "bug":
            raise KeyError("optimizer")
        try:
            return checkpoint_files.read_checkpoint(checkpoint)
        except RuntimeError:
            if loader == "own":
                raise ValueError(f"checksum of {checkpoint} is wrong") from None
            raise

    def _group(self) -> ProcessGroup:
        """The process group; rank 0 listens at its node's address, which the others find in a file."""
        host = str(self.plan.get("host", ""))
        for name in (self.node, socket.gethostname()):
            with contextlib.suppress(OSError):
                host = host or socket.gethostbyname(name)
        if not host and "SLURM_LAUNCH_NODE_IPADDR" in os.environ:
            host = address_towards(os.environ["SLURM_LAUNCH_NODE_IPADDR"])
        meeting = os.path.join(self.folder, f"meet.{self.job}.{self.launch}.{self.start}")
        return ProcessGroup(self.rank, self.size, meeting, host)

    def _meet(self) -> None:
        """Connect all ranks, and continue from the newest state of any of them."""
        self.step, self.weights = self.group.meet(self.step, self.weights)
        self.say(
            f"{self.node}:{os.getpid()}:{os.getpid()} [0] NCCL INFO ncclCommInitRank comm 0x55d0c2a8e010 rank {self.rank} nranks"
            f" {self.size} cudaDev 0 busId 3b000 commId 0x9f1e - Init COMPLETE"
        )

    def _take_seat(self) -> None:
        """Tell the other ranks below which leaf of the topology this one runs."""
        leaves: Mapping[str, Sequence[str]] = self.plan.get("leaves") or {}
        leaf = next((leaf for leaf, nodes in leaves.items() if self.node in nodes), "")
        with open(self._seat(self.rank), "w") as stream:
            stream.write(leaf)

    def _seat(self, rank: int) -> str:
        return os.path.join(self.folder, f"seat.{self.job}.{self.launch}.{self.start}.{rank}")

    def _require_whole_segment(self) -> None:
        """Fail as a job does whose ranks want one NVLink domain and have two. Raises RuntimeError."""
        unit = int(self.plan.get("segment", 0))
        if not unit:
            return
        first = self.rank - self.rank % unit
        leaves = set()
        for rank in range(first, first + unit):
            with open(self._seat(rank)) as stream:
                leaves.add(stream.read())
        if len(leaves) > 1:
            raise RuntimeError(
                f"ranks {first} to {first + unit - 1} share no NVLink domain: {sorted(leaves)}"
            )

    def say(self, text: str, *, only_rank: int | None = None) -> None:
        """Print a line on stdout with one write."""
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
        """Train all remaining steps. Returns the exit status."""
        nodes = os.environ.get("SLURM_JOB_NODELIST", self.node)
        self.say(f"training on {nodes}: {self.size} ranks, from step {self.step}", only_rank=0)
        if self.start > 1:
            time.sleep(float(self.plan.get("load_s", 0.0)))
        while self.step < int(self.plan["steps"]):
            step = self.step + 1
            self._beat(step)
            faults.strike(self, step)
            time.sleep(float(self.plan["step_s"]) * self.slowness)
            self._beat(step, "sync")
            try:
                total = self._sum(self._gradient(step))
            except PeerLost as error:
                if self.plan.get("rejoin"):
                    self._meet_again()
                    continue
                return self._peer_lost(step, error)
            except TimedOut:
                return self._timed_out(step)
            self.weights, self.step = apply(self.weights, total, step), step
            self._after_step(int(self.plan["steps"]))
        self._finish()
        return 0

    def _gradient(self, step: int) -> list[int]:
        """The summed gradients of this rank's shares of the batch; with fewer ranks each has more."""
        shares = range(self.rank, max(self.size, int(self.plan.get("shares", 0))), self.size)
        parts = [gradient(self.weights, share, step) for share in shares]
        return [sum(column) for column in zip(*parts)]

    def _sum(self, part: Sequence[int]) -> list[int]:
        self._summing = True
        if self._save_asked:
            self._save_as_asked()
        try:
            return self.group.all_reduce(part, float(self.plan["collective_timeout_s"]))
        finally:
            self._summing = False

    def _beat(self, step: int, phase: str = "") -> None:
        if self.plan.get("heartbeats"):
            beat(step, phase)

    def _meet_again(self) -> None:
        """Wait for the successor of the lost rank; the successor may be lost as well."""
        while True:
            with contextlib.suppress(PeerLost):
                self._meet()
                return

    def _after_step(self, steps: int) -> None:
        if self.rank == 0:
            self.note("steps.log", step=self.step)
            loss = "nan" if self.poisoned else f"{loss_at(self.weights, self.step):.4f}"
            self.say(f"step {self.step}/{steps} loss {loss}")
        if self.step % int(self.plan["save_every"]) == 0:
            if self.way:
                self._stage()
            elif self.rank == 0:
                self._save()

    def _finish(self) -> None:
        self.note("ends.log", rank=self.rank, pid=os.getpid(), memory=self.memory)
        if self.rank == 0:
            self.note("final.log", step=self.step, checksum=checksum(self.weights))
            self.say(f"training finished: {self.step} steps, checksum {checksum(self.weights)}")

    # ---- checkpoints

    def _on_save_signal(self, *_: Any) -> None:
        """Save now during a sum; else before the next one, since state and step may not match yet."""
        self._save_asked = True
        if self._summing:
            self._save_as_asked()

    def _save_as_asked(self) -> None:
        self._save_asked = False
        if self.step and self.way:
            self._stage()
        elif self.step and self.rank == 0:
            self._save()

    def _stage(self) -> None:
        state = {"step": self.step, "weights": self.weights, "attempt": self.attempt, "start": self.start}
        began_s = time.monotonic()
        with checkpoint_files.save_folder(self.way, self.step) as folder:
            path = checkpoint_files.write_part(
                folder, self.rank, self.size, state, int(self.plan.get("pad_kib", 0)) << 10
            )
        if self.rank == 0:
            self.note(
                "saves.log", step=self.step, path=os.path.dirname(path), pause_s=time.monotonic() - began_s
            )
            self.say(f"saved checkpoint {os.path.dirname(path)} at step {self.step}")

    def _save(self) -> None:
        path = os.path.join(self.folder, "checkpoints", f"ckpt-{self.step:06d}.pt")
        temporary = f"{path}.{self.job}.{self.launch}.{self.start}.tmp"
        state = {"step": self.step, "weights": self.weights, "checksum": checksum(self.weights), "attempt": self.attempt,
                 "start": self.start, "job": self.job}  # fmt: skip
        checkpoint_files.write_checkpoint(temporary, state)
        if self.plan.get("save_s"):
            self.note("saving.log", step=self.step)
            time.sleep(float(self.plan["save_s"]))
        if self._replaced():
            os.unlink(temporary)
            self.note("refused.log", step=self.step)
            self.say(f"checkpoint {path} not written: start {self.start} is no longer the run's")
            os._exit(1)
        os.replace(temporary, path)
        if self.plan.get("marker"):
            with open(path + str(self.plan["marker"]), "w", encoding="utf-8"):
                pass
        self.note("saves.log", step=self.step, path=path)
        self.say(f"saved checkpoint {path} at step {self.step}")

    def _replaced(self) -> bool:
        """Whether a later start has begun: a node that froze must not overwrite its checkpoints."""
        run_dir = os.environ.get("FTRUN_RUN_DIR")
        if not run_dir:
            return False
        with contextlib.suppress(OSError):
            current = os.readlink(os.path.join(os.environ.get("FTRUN_ATTEMPT_DIR", ""), "current"))
            if current != os.environ.get("FTRUN_START_TOKEN", current):
                return True
        attempts = os.path.join(run_dir, "attempts")
        if os.path.lexists(os.path.join(attempts, str(self.attempt + 1))):
            return True
        return os.path.lexists(os.path.join(attempts, str(self.attempt), f"claim.{self.launch + 1}"))

    # ---- what training code prints when a peer is lost

    def _peer_lost(self, step: int, error: PeerLost) -> int:
        if self.plan.get("on_peer_lost") == "wait":  # the silence of a node without power
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
            faults.hang(self)
        self.say(
            f"[rank{self.rank}]:[E{stamp}.000000000 ProcessGroupNCCL.cpp:630] [Rank {self.rank}] To avoid data inconsistency,"
            " we are taking the entire process down."
        )
        return faults.abort()


def main(arguments: Sequence[str]) -> int:
    """Train as the plan says. Returns the exit status."""
    resume = [word[len("--resume=") :] for word in arguments if word.startswith("--resume=")]
    with open(arguments[0]) as stream:
        plan = json.load(stream)
    try:
        trainer = Trainer(plan, resume[-1] if resume else "")
    except RuntimeError:
        if plan.get("loader") == "silent":  # srun --kill-on-bad-exit cuts off the last output of the ranks
            return 1
        raise
    return trainer.train()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
