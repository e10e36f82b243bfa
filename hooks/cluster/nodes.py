"""What Slurm says of the nodes and jobs of a cluster, and states that are set on its nodes; asked on the controller's host. (I/O)"""

from __future__ import annotations

import time
from typing import Any

from ftrun.hooks.cluster import claim
from ftrun.hooks.cluster.daemons import ask_slurm
from ftrun.hooks.cluster.launch import POLL_S

SETTLED = frozenset(
    {"idle", "mixed", "allocated", "completing", "drained", "draining", "reserved", "planned", "maint"}
)
"""States of a node whose slurmd answers: jobs start there, or a person does not want that."""


def nodes_of_slurm(step: dict[str, Any]) -> dict[str, Any]:
    """Node -> {"state", "reason"} as sinfo on this host says; waits at most `wait_s` until all are in one of SETTLED. Raises
    HostError where Slurm does not answer.
    """
    give_up_s = time.monotonic() + float(step.get("wait_s", 0))
    while True:
        rows = [
            line.split("|", 2)
            for line in ask_slurm(step, ["sinfo", "-h", "-N", "-o", "%N|%T|%E"]).splitlines()
        ]
        found = {
            row[0]: {"state": row[1], "reason": "" if row[2] == "none" else row[2]}
            for row in rows
            if len(row) == 3
        }
        if all(row["state"] in SETTLED for row in found.values()) or time.monotonic() > give_up_s:
            return found
        time.sleep(POLL_S)


def jobs_of_slurm(step: dict[str, Any]) -> list[str]:
    """The numbers of the jobs that run or wait; of those that are on `nodes`, where the step has them. Waits at most `wait_s`
    until there is none. None of a cluster that has lost this host to another one (`token`). Raises HostError where Slurm does not answer.
    """
    if step.get("token") and claim.is_anothers(step):
        return []
    give_up_s = time.monotonic() + float(step.get("wait_s", 0))
    where = ["-w", ",".join(step["nodes"])] if step.get("nodes") else []
    while True:
        found = ask_slurm(step, ["squeue", "-h", "-o", "%i", *where]).split()
        if not found or time.monotonic() > give_up_s:
            return found
        time.sleep(POLL_S)


def set_state(step: dict[str, Any]) -> dict[str, str]:
    """Set the `state` (drain, resume, down) of `nodes`, with the `reason` where Slurm wants one; node -> its state before.

    A node is not resumed that is neither drained nor down: Slurm refuses that. Raises HostError where Slurm refuses.
    """
    before = {name: row["state"] for name, row in nodes_of_slurm({**step, "wait_s": 0}).items()}
    state = step["state"]
    wanted = [
        name
        for name in step["nodes"]
        if state != "resume" or before.get(name, "").startswith(("drain", "drng", "down", "fail"))
    ]
    if wanted:
        words = ["scontrol", "update", f"nodename={','.join(wanted)}", f"state={state}"]
        ask_slurm(step, [*words, *([f"reason={step['reason']}"] if step.get("reason") else [])])
    return {name: before.get(name, "unknown") for name in step["nodes"]}
