"""The faults that strike inside a rank of the drills' training. (I/O)

A fault prints what the kernel, CUDA, NCCL or Slurm print, and dies as a process dies of it. FAULTS lists
them.

Standard library only, Python 3.9: it runs on nodes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ftrun.supervisor.drill_trainer.checkpoint_files import write_checkpoint

SLOW_FACTOR = 3.0
KERNEL_FAILS_AFTER_S = 1.0


class Victim(Protocol):
    """What faults use of the trainer. `slowness`: factor on a step's time; `poisoned`: its loss is NaN."""

    folder: str
    job: str
    node: str
    plan: Mapping[str, Any]
    poisoned: bool
    rank: int
    slowness: float
    start: int
    step: int
    weights: list[int]

    def note(self, log: str, **facts: Any) -> None:
        """Append one event to a log."""

    def say(self, text: str, *, only_rank: int | None = None) -> None:
        """Print a line on stdout."""


def strike(trainer: Victim, step: int) -> None:
    """Let the faults of the plan for this rank and step strike."""
    for number, fault in enumerate(trainer.plan.get("faults", ())):
        if _struck(trainer, number, fault, step):
            trainer.note("hurt.log", what=fault["what"], step=step, rank=trainer.rank)
            FAULTS[fault["what"]](trainer)


def _struck(trainer: Victim, number: int, fault: Mapping[str, Any], step: int) -> bool:
    if fault["starts"] and trainer.start not in fault["starts"]:
        return False
    mark = os.path.join(trainer.folder, f"bad-node-{number}")
    if fault["sticky"] and os.path.exists(mark):
        with open(mark) as stream:
            return stream.read() == trainer.node
    if fault["rank"] not in (-1, trainer.rank) or not (fault.get("any_step") or step in fault["steps"]):
        return False
    if fault["sticky"]:
        with open(mark, "w") as stream:
            stream.write(trainer.node)
    return not fault.get("once") or _first_time(
        os.path.join(trainer.folder, f"struck-{number}-{trainer.rank}")
    )


def _first_time(mark: str) -> bool:
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def abort() -> int:
    """Die of SIGABRT, as CUDA and NCCL do, without a core file."""
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), signal.SIGABRT)
    return 134


def hang(_trainer: Victim) -> None:
    """Hang for ever."""
    while True:
        time.sleep(3600)


def _be_stopped(_trainer: Victim) -> None:
    """Stop all threads of the process, as a debugger or a frozen cgroup does."""
    os.kill(os.getpid(), signal.SIGSTOP)


def _kernel_says(trainer: Victim, text: str) -> None:
    """Print a kernel line, as a job does that follows the kernel log of its node."""
    trainer.say(f"{time.strftime('%b %d %H:%M:%S')} {trainer.node} kernel: {text}")


def _lose_gpu(trainer: Victim) -> None:
    """Print the kernel line and the CUDA error, then abort."""
    _kernel_says(trainer, f"NVRM: Xid (PCI:0000:3b:00): 79, pid={os.getpid()}, GPU has fallen off the bus.")
    trainer.say(f"[rank{trainer.rank}]: RuntimeError: CUDA error: unknown error")
    abort()


def _be_killed(_trainer: Victim) -> None:
    """Die of SIGKILL, without output."""
    os.kill(os.getpid(), signal.SIGKILL)


def _be_slow(trainer: Victim) -> None:
    trainer.slowness = SLOW_FACTOR


def _have_a_bug(trainer: Victim) -> None:
    """Raise TypeError, as a bug of the user does."""
    nothing: Any = None
    trainer.weights[0] += nothing


def _use_up_memory(trainer: Victim) -> None:
    """Print the lines of the kernel and of Slurm, then die of SIGKILL."""
    _kernel_says(
        trainer,
        f"Out of memory: Killed process {os.getpid()} (python3) total-vm:94371840kB, anon-rss:62914560kB",
    )
    step = f"{trainer.job}.{os.environ.get('SLURM_STEP_ID', '0')}"
    trainer.say(
        f"slurmstepd: error: Detected 1 oom_kill event in StepId={step}."
        " Some of the step tasks have been OOM Killed."
    )
    os.kill(os.getpid(), signal.SIGKILL)


def _tear_checkpoint(trainer: Victim) -> None:
    """Die during a write of a checkpoint straight to its final path."""
    path = os.path.join(trainer.folder, "checkpoints", f"ckpt-{trainer.step + 1:06d}.pt")
    write_checkpoint(path + ".tmp", {"step": trainer.step, "weights": trainer.weights})
    os.truncate(path + ".tmp", os.path.getsize(path + ".tmp") // 2)
    os.replace(path + ".tmp", path)
    _lose_gpu(trainer)


def _save_nonsense(trainer: Victim) -> None:
    """Write a checkpoint that is intact as a file but cannot be loaded, then die."""
    path = os.path.join(trainer.folder, "checkpoints", f"ckpt-{trainer.step + 1:06d}.pt")
    state = {"step": trainer.step, "weights": trainer.weights, "checksum": "of another state"}
    write_checkpoint(path + ".tmp", state)
    os.replace(path + ".tmp", path)
    _lose_gpu(trainer)


def _be_poisoned(trainer: Victim) -> None:
    """Make the weights wrong and the loss NaN from now on."""
    trainer.poisoned = True
    trainer.weights[:] = [weight + 1 for weight in trainer.weights]


def _requeue_itself(trainer: Victim) -> None:
    """Requeue the own job, as scripts do shortly before their time limit."""
    if trainer.rank == 0:
        subprocess.run(["scontrol", "requeue", trainer.job], check=False)
    hang(trainer)


def _flap_link(trainer: Victim) -> None:
    """Print that a link went down and up; training does not notice."""
    _kernel_says(trainer, "mlx5_core 0000:5e:00.0 ibs3: Link down")
    _kernel_says(trainer, "mlx5_core 0000:5e:00.0 ibs3: Link up")


def _lose_link(trainer: Victim) -> None:
    """Print that a link went down and up, and hang."""
    _flap_link(trainer)
    hang(trainer)


class InjectedError(Exception):
    """An error that nothing in the training handles."""


def _raise_error(trainer: Victim) -> None:
    raise InjectedError(f"injected at step {trainer.step + 1}")


def _raise_from_thread(_trainer: Victim) -> None:
    """Let another thread raise in the main thread, as watchdogs written in Python do."""
    main = ctypes.c_ulong(threading.main_thread().ident or 0)
    sender = threading.Thread(
        target=lambda: ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(InjectedError))
    )
    sender.start()
    sender.join()


def _raise_in_handler(trainer: Victim) -> None:
    def handler(*_: Any) -> None:
        _raise_error(trainer)

    signal.signal(signal.SIGUSR2, handler)
    os.kill(os.getpid(), signal.SIGUSR2)


def _hold_the_gil(_trainer: Victim) -> None:
    """Compute for ever in C code that never lets another thread run: no thread and no signal handler in Python runs again."""
    re.match(r"(?:a?){64}a{64}", "a" * 64)


def _read_nowhere(_trainer: Victim) -> None:
    """Read at an address that is not mapped: SIGSEGV."""
    ctypes.string_at(0)


def _get_signal(number: int) -> Callable[[Victim], None]:
    def strike_with(_trainer: Victim) -> None:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    return strike_with


def _fail_on_gpu(trainer: Victim) -> None:
    """Print what PyTorch prints after a failed assertion in a kernel, and end: late, as a kernel's error shows at a later
    call only. By then the other ranks have printed the step before.
    """
    time.sleep(KERNEL_FAILS_AFTER_S)
    raise RuntimeError(
        "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some other API call,"
        f" so the stacktrace below might be incorrect. (rank {trainer.rank})"
    )


FAULTS: Mapping[str, Callable[[Any], None]] = {
    "gpu-lost": _lose_gpu,
    "killed": _be_killed,
    "slow": _be_slow,
    "hang": hang,
    "stopped": _be_stopped,
    "user-bug": _have_a_bug,
    "out-of-memory": _use_up_memory,
    "torn-save": _tear_checkpoint,
    "nonsense-save": _save_nonsense,
    "poisoned": _be_poisoned,
    "requeue-itself": _requeue_itself,
    "link-flap": _flap_link,
    "link-lost": _lose_link,
    "error": _raise_error,
    "error-from-thread": _raise_from_thread,
    "error-in-handler": _raise_in_handler,
    "gil-held": _hold_the_gil,
    "segfault": _read_nowhere,
    "sigint": _get_signal(signal.SIGINT),
    "sigterm": _get_signal(signal.SIGTERM),
    "abort": _get_signal(signal.SIGABRT),
    "gpu-assert": _fail_on_gpu,
}
