"""`ftrun-hook epilog`: Slurm's Epilog; checks how a job left the node: processes and accelerators. (I/O)

The job is over and the next one waits, so nothing here may affect more than this node. The status is 0,
because Slurm drains a node for any other one, without a cap and with a meaningless reason. Findings are
logged; the node is drained, and leftover processes are killed, only if the site has enabled that.

`expedite`: on a node that this hook has just drained under the cap, the epilog fails on purpose. From 25.11 on
Slurm then puts a job that was submitted with --requeue=expedite before all others.

Memory that staged checkpoints of the job still hold is freed by a child process under the job's user id, so
it can delete only what that user could.
"""

from __future__ import annotations

import os
import time

from ftrun.hooks.health.slurm_hook import (
    EXIT_REFUSED,
    Hook,
    act_on_bad,
    log_findings,
    open_hook,
    run_checks,
)

DEFAULTS = {
    "enabled": True,
    "on_bad": "report",
    "leftovers": True,
    "kill": False,
    "expedite": False,
    "device_checks": [
        "gpu-check", "gpu-ecc", "gpu-recovery", "gpu-xid", "gpu-memory", "gpu-processes", "amd-gpu", "npu",
    ],
    "stage": True,
    "stage_dirs": ["/dev/shm"],  # noqa: S108  the site's values of the setting stage-dir
    "within_s": 20.0,
}  # fmt: skip


def main(arguments: list[str]) -> int:
    """Check the node after a job: 0, or 69 where `expedite` wants a failed epilog on a drained node."""
    hook = open_hook("epilog", arguments, DEFAULTS)
    if hook is None:
        return 0
    if hook.own["leftovers"]:
        _leftovers(hook)
    if hook.own["stage"]:
        _staged(hook)
    drained = False
    names = [str(name) for name in hook.own["device_checks"]] if hook.job.devices else []
    if names:
        began_s = hook.kept.began_s(hook.job.id)
        since = {"gpu-xid": {"since_s": began_s}} if began_s else None
        found = run_checks(hook, names, more=since)
        log_findings(hook, found)
        drained = act_on_bad(hook, [one for one in found if one.severity == "bad"])
    hook.kept.end(hook.job.id)
    if not drained or hook.own["expedite"] is not True:
        return 0
    hook.kept.log(f"epilog job={hook.job.id}: fails on purpose (expedite)")
    return EXIT_REFUSED


def _leftovers(hook: Hook) -> None:
    from ftrun.hooks.health import leftovers
    from ftrun.hooks.runtime.host import Machine

    machine = Machine(deadline_s=time.monotonic() + hook.left_s() / 2)
    left = leftovers.job_processes(machine, hook.job.id, hook.job.uid, hook.job.cluster)
    log_findings(hook, [leftovers.leftover_finding(left, hook.job.id)])
    if left and hook.own["kill"] is True:
        ended = leftovers.kill_processes(machine, left)
        hook.kept.log(f"epilog job={hook.job.id}: killed {' '.join(map(str, ended)) or 'none'}")


def _staged(hook: Hook) -> None:
    told = hook.own["stage_dirs"]
    for folder in told if isinstance(told, list) else ():
        if not os.path.isdir(f"{folder}/ftrun-{hook.job.uid}"):
            continue
        from ftrun.hooks.staging import workspace

        gone = workspace.clear_as_user(str(folder), hook.job.uid, hook.job.id, hook.left_s() / 2)
        if gone:
            hook.kept.log(
                f"epilog job={hook.job.id}: gave back what was staged in {folder}: {' '.join(gone)}"
            )
