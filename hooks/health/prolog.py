"""`ftrun-hook prolog`: Slurm's Prolog; keeps a job from starting on a node that is bad now. (I/O)

A prolog delays every job, so it does as little as it can. It does not repeat a recent health check; it
repeats the checks that were bad then, and checks the accelerators that this job gets. For a job without
accelerators on a node of known health it starts no check at all.

Slurm drains the node and requeues the job (held, unless `nohold_on_prolog_fail`) for any status but 0. So the
hook first drains the node itself, under the cap and with a reason that `ftrun recheck` knows; if it does not,
the job starts.
"""

from __future__ import annotations

import os
import time

from ftrun.hooks.health.slurm_hook import EXIT_REFUSED, Hook, act_on_bad, log_findings, open_hook, run_checks

DEFAULTS = {
    "enabled": True,
    "on_bad": "drain",
    "fresh_s": 300,
    "checks": ["disk-size root", "disk-size shm", "memory", "mount-readonly"],
    "device_checks": ["gpu-check", "gpu-driver", "gpu-ecc", "gpu-recovery", "gpu-fabric", "amd-gpu", "npu"],
    "within_s": 8.0,  # Slurm's BatchStartTimeout and MessageTimeout default to 10 s
}


def main(arguments: list[str]) -> int:
    """Check the node before a job starts: 0 it may start, 69 it may not (and the node is out of service)."""
    hook = open_hook("prolog", arguments, DEFAULTS)
    if hook is None:
        return 0
    hook.kept.begin(hook.job.id)
    names = _wanted(hook)
    if not names:
        return 0
    found = run_checks(hook, names)
    log_findings(hook, found)
    bad = [one for one in found if one.severity == "bad"]
    if not act_on_bad(hook, bad):
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
    """Leave the reason for slurm.sh: slurmd's log shows the output of a failed prolog."""
    print(f"ftrun: no job on {hook.node}: {line}")
    try:
        with open(os.path.join(hook.kept.path, f"refused.{hook.job.id}"), "w", encoding="utf-8") as stream:
            stream.write(f"ftrun: no job on {hook.node}: {line}\n")
    except OSError:
        return
