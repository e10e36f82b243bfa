"""Thresholds of checks: set by a user or a site in a JSON file, or implied by the job around a check. (I/O)

A check that runs inside a job, in its step or in Slurm's prolog, judges the accelerators of that job. If
Slurm hands out shares of a GPU (gres `shard` and `mps`), processes of other jobs on it are legitimate, too.
Settings of the site take precedence. A device whose vendor's tool is not on the node is not reported as
missing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Optional

from ftrun.hooks.runtime.slurm_env import job_of

SITES_OWN = "/etc/ftrun/checks.json"
DRIVERS = ("nvidia-smi", "rocm-smi", "amd-smi", "npu-smi")
"""Without any of them the job's devices are of a vendor that the checks do not know."""
SHARES = ("SLURM_SHARDS_ON_NODE", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")


def read(path: str, node: str) -> Optional[dict[str, dict[str, Any]]]:
    """The thresholds in a file, or in the site's own if none is named; a missing file sets nothing. {node} in
    its name is this node's. None if a file cannot be read: it may be the one that disables a check, so no
    check may run then.
    """
    path = path.replace("{node}", node) or SITES_OWN
    if not os.path.exists(path):
        return {}
    try:
        with open(path, encoding="utf-8") as stream:
            table = json.load(stream)
    except (OSError, ValueError) as error:
        print(f"ftrun-hook: {path}: {error}", file=sys.stderr)
        return None
    if not isinstance(table, dict):
        print(f"ftrun-hook: {path}: it must hold an object", file=sys.stderr)
        return None
    return {name: own for name, own in table.items() if isinstance(own, dict)}


def whole(path: str) -> dict[str, dict[str, Any]]:
    """The thresholds in a file that a user names. Raises ValueError with one line that begins with the path."""
    try:
        with open(path, encoding="utf-8") as stream:
            table = json.load(stream)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(table, dict) or not all(isinstance(own, dict) for own in table.values()):
        raise ValueError(f"{path}: it must hold an object of objects, one for each check")
    return table


def of_job(env: Mapping[str, str], *, has_driver: bool) -> dict[str, Any]:
    """Values for the thresholds `devices`, `job` and `shared`, as far as this environment has them."""
    job = job_of(env)
    if not job.id:
        return {}
    found: dict[str, Any] = {"job": job.id, "shared": any(env.get(name) for name in SHARES)}
    if job.devices and has_driver:
        found["devices"] = job.devices
    return found
