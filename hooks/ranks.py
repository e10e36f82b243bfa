"""Which processes of a start are its ranks. (pure)

How it thinks. A step holds shells, launchers, ranks, and what ranks start (loaders of data, compilers). A rank is the first process from above
that is neither a go-between (a shell, srun, mpirun, our own parent of a rank) nor above processes with another rank than its own, as
torchrun is. What a rank started has its rank in the environment as well, and is none itself.

Names of ranks: RANK (torchrun, deepspeed), OMPI_COMM_WORLD_RANK (Open MPI), PMI_RANK (MPICH, Intel MPI), RANK_ID (MindSpore), SLURM_PROCID (srun).
"""

from __future__ import annotations

from collections.abc import Mapping

from ftrun.hooks.starts import Process

__all__ = ["RANKS_MAX", "name_of", "ranks_of"]

RANKS_MAX = 64
NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK_ID")
GO_BETWEENS = frozenset(
    {
        "sh", "bash", "dash", "ash", "zsh", "ksh", "csh", "tcsh", "fish", "busybox", "slurm_script", "srun", "mpirun", "mpiexec",
        "mpiexec.hydra", "orterun", "orted", "prte", "prterun", "prted", "hydra_pmi_proxy", "hydra_bstrap_pr", "timeout", "env", "nice",
        "nohup", "setsid", "stdbuf", "time", "numactl", "apptainer", "singularity", "starter", "starter-suid", "enroot", "ftrun-rank",
    }
)  # fmt: skip


def name_of(told: Mapping[str, str]) -> tuple[str, str]:
    """The variable that names a process's rank, and the rank; ("", "") where there is none. A batch script is no task 0."""
    for name in NAMES:
        if told.get(name, "").isdigit():
            return name, told[name]
    if told.get("SLURM_STEP_ID") and told.get("SLURM_PROCID", "").isdigit():
        return "SLURM_PROCID", told["SLURM_PROCID"]
    return "", ""


def ranks_of(members: Mapping[int, Process], told: Mapping[int, Mapping[str, str]]) -> list[int]:
    """The pids of the ranks among the processes of one start on one node, at most 64. `told`: pid -> its variables."""
    below: dict[int, list[int]] = {}
    for pid, one in sorted(members.items()):
        below.setdefault(one.parent, []).append(pid)
    names = {pid: name_of(told.get(pid, {})) for pid in members}
    found: list[int] = []
    waiting = [pid for pid, one in sorted(members.items()) if one.parent not in members]
    while waiting:
        pid = waiting.pop(0)
        is_between = members[pid].name in GO_BETWEENS
        children = below.get(pid, [])
        if children and (is_between or _others_below(pid, below, names)):
            waiting = children + waiting
        elif not is_between or (names[pid][0] and members[pid].name != "srun"):
            found.append(pid)
    return found[:RANKS_MAX]


def _others_below(pid: int, below: Mapping[int, list[int]], names: Mapping[int, tuple[str, str]]) -> bool:
    """Whether a process is above one that has another rank."""
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
