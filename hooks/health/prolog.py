"""`ftrun-hook prolog`: Slurm's Prolog; a job does not begin on a node that is found bad now. (I/O)

How it thinks. A prolog stands in the way of every job, so it does as little as it can. What the health check found a while ago is not
looked for again; what it found bad is looked at anew, and so are the accelerators that this job gets. A job without
accelerators on a node whose health is known starts no check at all.

Slurm drains the node and queues the job again (held, unless `nohold_on_prolog_fail`) for any status but 0. So the node
is drained by ourselves first, under the cap and with a reason that `ftrun recheck` knows; where that is not done, the job begins.
"""

from __future__ import annotations

import os
import time

from ftrun.hooks.health.slurm_hook import EXIT_REFUSED, Hook, act, look, opened, tell

__all__ = ["DEFAULTS", "main"]

DEFAULTS = {
    "enabled": True,
    "on_bad": "drain",
    "fresh_s": 300,
    "checks": ["disk-size root", "disk-size shm", "memory", "mount-readonly"],
    "device_checks": ["gpu-check", "gpu-driver", "gpu-ecc", "gpu-recovery", "gpu-fabric", "amd-gpu", "npu"],
    "within_s": 8.0,  # Slurm's BatchStartTimeout and MessageTimeout are 10 s where a site has not set them
}


def main(arguments: list[str]) -> int:
    """Look at the node before a job begins: 0 it may begin, 69 it may not (and the node is out of service)."""
    hook = opened("prolog", arguments, DEFAULTS)
    if hook is None:
        return 0
    hook.kept.begin(hook.job.id)
    names = _wanted(hook)
    if not names:
        return 0
    found = look(hook, names)
    tell(hook, found)
    bad = [one for one in found if one.severity == "bad"]
    if not act(hook, bad):
        return 0
    _say(hook, f"{bad[0].check}: {bad[0].message}")
    return EXIT_REFUSED


def _wanted(hook: Hook) -> list[str]:
    """The names of the checks to run now."""
    devices = _names(hook.own["device_checks"]) if hook.job.devices else []
    at_s, ill = hook.kept.health()
    age_s = time.time() - at_s if at_s is not None else -1.0
    if not 0 <= age_s < float(hook.own["fresh_s"]):
        return [*_names(hook.own["checks"]), *devices]
    return [*(name for name in ill if name not in devices), *devices]


def _names(told: object) -> list[str]:
    return [str(name) for name in told] if isinstance(told, list) else []


def _say(hook: Hook, line: str) -> None:
    """For whoever called us: Slurm writes a failed prolog's words into slurmd's log."""
    print(f"ftrun: no job on {hook.node}: {line}")
    try:
        with open(os.path.join(hook.kept.path, f"refused.{hook.job.id}"), "w", encoding="utf-8") as stream:
            stream.write(f"ftrun: no job on {hook.node}: {line}\n")
    except OSError:
        return
