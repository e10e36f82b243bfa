"""Clusters of a federation beside this one: where Slurm may start a job that is not seen from here. (I/O)

How it thinks. A run lives on one cluster. In a federation of several, Slurm offers a job to each and starts it where it can first. Nobody is asked about that before a
submission: only jobs of a federation have ids of more than 26 bits (the upper ones are the number of the cluster), so elsewhere it costs nothing.
"""

from __future__ import annotations

import re

__all__ = ["may_leave", "siblings"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_LOCAL_ID_BITS = 26  # MAX_JOB_ID of slurm.h: what is above is the origin of a federated job
_ASK_S = 10.0


def may_leave(job: str, env: Mapping[str, str]) -> str:
    """The warning about a job that was submitted without naming this cluster; "" where it can start here only, or nothing can be found out."""
    if not job.isdigit() or not int(job) >> _LOCAL_ID_BITS:
        return ""
    import subprocess

    from ftrun.slurm.client.errors import SlurmError
    from ftrun.slurm.commands.process import reading_env, tool

    inner = reading_env(env)
    try:
        shown = subprocess.run(
            [tool("scontrol", inner), "show", "federation"], env=inner, capture_output=True, text=True, timeout=_ASK_S, check=False
        ).stdout  # fmt: skip
    except (OSError, SlurmError, subprocess.TimeoutExpired):
        return ""
    own, others = siblings(shown)
    if not others:
        return ""
    return (
        f"job {job} may be started on another cluster of its federation ({', '.join(others)}), where ftrun does not see it;"
        f" submit with -M {own} to keep a run here"
    )


def siblings(shown: str) -> tuple[str, list[str]]:
    """This cluster and the others that are in its federation, from `scontrol show federation`."""
    own = re.search(r"^Self:\s+([^:\s]+):", shown, re.MULTILINE)
    return own[1] if own else "", re.findall(r"^Sibling:\s+([^:\s]+):", shown, re.MULTILINE)
