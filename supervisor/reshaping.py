"""A job that waits in the queue, made smaller where it stands: the three numbers that Slurm is told, or why it must be submitted anew. (pure)

How it thinks. The numbers are taken from Slurm's own picture of the job, so whatever made them (an option, a variable, a site's default) needs no
guess: tasks and CPUs in proportion to the nodes. All three are told in one call, with an upper end for the nodes: Slurm 22.05 takes a missing CPU count for that of the old size,
and a missing upper end for the old one. What counts for the whole job or for each task (GPUs, memory for each GPU) cannot be told in that way, on
no version, and a number that does not divide has no share: such a job is submitted anew. What Slurm made of it is read back.
"""

from __future__ import annotations

from collections.abc import Mapping

from ftrun.slurm.records import dataclass

__all__ = ["Shape", "applied", "reshaped"]

_OF_THE_WHOLE = ("TresPerJob", "TresPerTask", "TresPerSocket", "CpusPerTres", "MemPerTres", "MemPerGpu")
_NONE = frozenset({"", "(null)", "N/A", "None"})


@dataclass(frozen=True, slots=True)
class Shape:
    """What a waiting job is to ask for: nodes, and its tasks and CPUs in all."""

    nodes: int
    tasks: int
    cpus: int


def reshaped(fields: Mapping[str, str], nodes: int) -> Shape | str:
    """The job that `scontrol show job` shows by these fields, asking for so many nodes; or why that cannot be told to Slurm."""
    for name in _OF_THE_WHOLE:
        counted = [part for part in fields.get(name, "").split(",") if part not in _NONE]
        if any(not part.startswith("cpu") for part in counted):
            return f"{name}={fields[name]} counts for the whole job or for each task"
    if fields.get("ReqNodeList", "") not in _NONE:
        return "it names its nodes"
    before, tasks, cpus = (_exactly(fields.get(name, "")) for name in ("NumNodes", "NumTasks", "NumCPUs"))
    if not before or not tasks or not cpus:
        return "Slurm shows no plain numbers of nodes, tasks and CPUs"
    if tasks * nodes % before or cpus * nodes % before:
        return f"{tasks} tasks with {cpus} CPUs on {before} nodes cannot be dealt out over {nodes}"
    return Shape(nodes, tasks * nodes // before, cpus * nodes // before)


def applied(fields: Mapping[str, str], shape: Shape) -> bool:
    """Whether Slurm shows the job in this shape."""
    found = tuple(_exactly(fields.get(name, "")) for name in ("NumNodes", "NumTasks", "NumCPUs"))
    return found == (shape.nodes, shape.tasks, shape.cpus)


def _exactly(text: str) -> int:
    """4 of 4 or 4-4; 0 for a range and for what is no number."""
    least, _, most = text.partition("-")
    return int(least) if least.isdigit() and most in ("", least) else 0
