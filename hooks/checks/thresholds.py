"""Thresholds of checks: as a user or a site sets them in a JSON file, and as the job around a check implies them. (I/O)

How it thinks. A check that is started inside a job, by its step or by Slurm's prolog, judges the accelerators
of that job. Where Slurm hands out shares of a GPU (gres `shard` and `mps`) other jobs' processes on it are at
home, too. What the site sets goes before. A device of a maker whose tool is not on the node is not missed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Optional

from ftrun.hooks.runtime.slurm_env import job_of

__all__ = ["DRIVERS", "SITES_OWN", "of_job", "read", "whole"]

SITES_OWN = "/etc/ftrun/checks.json"
DRIVERS = ("nvidia-smi", "rocm-smi", "amd-smi", "npu-smi")
"""Without any of them the devices of a job are of a maker that the checks do not know."""
SHARES = ("SLURM_SHARDS_ON_NODE", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")


def read(path: str, node: str) -> Optional[dict[str, dict[str, Any]]]:
    """What stands in a file ({node} in its name is this node's; one that is not there sets nothing), or in the site's own where none is named.

    None where a file cannot be read: it may be the one that switches a check off, so nothing is to be checked then.
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
    """What stands in a file that somebody names by hand. Raises ValueError, in one line that begins with the path, for anything amiss."""
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
    """Values for the thresholds `devices`, `job` and `shared`, as far as this environment tells them."""
    job = job_of(env)
    if not job.id:
        return {}
    found: dict[str, Any] = {"job": job.id, "shared": any(env.get(name) for name in SHARES)}
    if job.devices and has_driver:
        found["devices"] = job.devices
    return found
