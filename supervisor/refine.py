"""The same words mean something else by the numbers around them. (pure)

How it thinks. A signature sees one line. These rules see its neighbours: how many hosts say it, and whether a step was
ever done. Each changes a diagnosis in one way, and says so in `rests_on`; the first that applies is the only one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ftrun.slurm.records import replace
from ftrun.supervisor.culprits import rank_of, speaker
from ftrun.supervisor.model import Action, Blame, Diagnosis, Evidence, FaultClass, Topology

__all__ = ["REFINEMENTS", "refined"]

CORRECTED = frozenset({"memory-corrected"})
"""Signatures of errors that were corrected; what they say is in their number."""

STREAM = 5
"""So many corrected errors in what was read are a stream."""

CRASHES = frozenset(
    {"process-segfault", "slurm-task-crash", "fortran-crash", "mpi-rank-crashed", "cann-core-exception"}
)
"""Signatures of a process that died of its own memory."""

LOW = frozenset({"slurmd-low-resources", "slurm-node-low-resources"})
"""Signatures of a node that has less than slurm.conf says."""

NEARLY_ALL = 0.9
"""What lacks less than this share of its memory lacks no module: the kernel and the firmware keep some for themselves."""

_LESS_THAN = re.compile(r"\b(\d+) < (?:[\d.]+% of configured:)?(\d+)\b")
DEFECTS = frozenset(
    {
        "torch-inductor",
        "torch-internal-assert",
        "compiler-assertion",
        "megatron-grad-norm",
        "rocm-memory-fault",
    }
)
"""Signatures of a library that finds itself wrong, or computes nonsense: no machine does that at the very start."""

_PID = re.compile(r"\bPID\W{1,3}(\d+)")

Refinement = Callable[[Diagnosis, Sequence[Evidence], Topology, bool], Diagnosis | None]


def refined(found: Diagnosis, lines: Sequence[Evidence], topology: Topology, *, trained: bool) -> Diagnosis:
    """`found`, by the first refinement that applies; `lines` are those of its cause, `trained` says that steps were done."""
    for refinement in REFINEMENTS:
        better = refinement(found, lines, topology, trained)
        if better is not None:
            return better
    return found


def _wrong_before_the_first_step(
    found: Diagnosis, lines: Sequence[Evidence], _topology: Topology, trained: bool
) -> Diagnosis | None:
    """A result that is wrong before any was right is the software's, however much the line accuses a device."""
    steps = [line.captures.get("step", "") for line in lines]
    if (
        found.fault is not FaultClass.HARDWARE_GPU
        or trained
        or not all(_is_before_first(step) for step in steps)
    ):
        return None
    words = (*found.rests_on, "before the first step was done: the set-up, not the device")
    return replace(
        found,
        fault=FaultClass.LIBRARY_BUG,
        retry=False,
        action=Action.STOP,
        nodes=(),
        exclude=False,
        blame=Blame.JOB,
        confidence=round(found.confidence * 0.7, 2),
        rests_on=words,
    )


def _crashed_everywhere_at_start(
    found: Diagnosis, lines: Sequence[Evidence], topology: Topology, trained: bool
) -> Diagnosis | None:
    """A program that crashes on several hosts, or in several processes of one, before its first step does so every time."""
    if found.fault not in {FaultClass.LIBRARY_BUG, FaultClass.USER_CODE} or not found.retry or trained:
        return None
    hosts = {who for line in lines if (who := speaker(line, topology)) and not who.startswith("rank ")}
    processes = {who for line in lines if (who := _process(line))}
    if len(hosts) < 2 and len(processes) < 2:
        return None
    several = f"on {len(hosts)} hosts" if len(hosts) > 1 else f"in {len(processes)} processes"
    words = (*found.rests_on, f"the same {several} before the first step: the program, every time")
    return replace(found, retry=False, action=Action.STOP, rests_on=words)


def _broken_before_the_first_step(
    found: Diagnosis, _lines: Sequence[Evidence], _topology: Topology, trained: bool
) -> Diagnosis | None:
    """What crashed, or failed in a library, before it did a step does so again; what trained for a while may not."""
    if found.signature not in CRASHES | DEFECTS or not found.retry or trained:
        return None
    words = (*found.rests_on, "no step was seen before it: the program or its build, every time")
    return replace(found, retry=False, action=Action.STOP, rests_on=words)


def _damaged_for_every_rank(
    found: Diagnosis, lines: Sequence[Evidence], _topology: Topology, trained: bool
) -> Diagnosis | None:
    """A file that several ranks cannot read before the first step is one they all read: the configuration, not a sample."""
    ranks = {rank for line in lines if (rank := rank_of(line)) is not None}
    if found.fault is not FaultClass.DATA or trained or len(ranks) < 2:
        return None
    words = (*found.rests_on, f"the same for {len(ranks)} ranks before the first step: a file of the set-up")
    return replace(
        found, fault=FaultClass.CONFIG, confidence=round(found.confidence * 0.8, 2), rests_on=words
    )


def _corrected_and_rare(
    found: Diagnosis, lines: Sequence[Evidence], _topology: Topology, _trained: bool
) -> Diagnosis | None:
    """A corrected error is what the correction is for; only a stream of them is worth a node."""
    if found.signature not in CORRECTED:
        return None
    seen = sum(line.count * int(line.captures.get("code", "1")) for line in lines)
    if seen >= STREAM:
        return None
    words = (*found.rests_on, f"{seen} corrected errors are no stream: the node is kept")
    return replace(found, exclude=False, nodes=(), action=Action.RESUBMIT, rests_on=words)


def _a_little_less_than_promised(
    found: Diagnosis, lines: Sequence[Evidence], _topology: Topology, _trained: bool
) -> Diagnosis | None:
    """A node without a memory module has a good deal less; one that has nearly all is whole, and slurm.conf is wrong."""
    told = [numbers for line in lines if (numbers := _LESS_THAN.search(line.text))]
    if found.signature not in LOW or len(told) < len(lines):
        return None
    if any(int(numbers[1]) < NEARLY_ALL * int(numbers[2]) for numbers in told):
        return None
    return replace(
        found,
        fault=FaultClass.CONFIG,
        nodes=(),
        exclude=False,
        action=Action.RESUBMIT,
        blame=Blame.CLUSTER,
        rests_on=(*found.rests_on, "it has nearly all that was promised: the promise is wrong, not the node"),
        advice="An administrator corrects slurm.conf: `slurmd -C` on the node prints what it has.",
    )


REFINEMENTS: tuple[Refinement, ...] = (
    _a_little_less_than_promised,
    _wrong_before_the_first_step,
    _crashed_everywhere_at_start,
    _broken_before_the_first_step,
    _damaged_for_every_rank,
    _corrected_and_rare,
)


def _process(line: Evidence) -> str:
    """Which process of the job crashed: its rank, or its number where only that is told."""
    rank = rank_of(line)
    told = _PID.search(line.text)
    return f"rank {rank}" if rank is not None else (told[1] if told else "")


def _is_before_first(step: str) -> bool:
    return step.startswith("-") or (step.isdecimal() and int(step) == 0)
