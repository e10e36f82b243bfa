"""`gpu-driver`: kernel module, library and firmware belong together, and are the same on all GPUs of the node. (I/O)

How it thinks. An update of packages on a running node replaces the library and not the loaded module: nvidia-smi then refuses, and so
does every CUDA program, until a reboot. The module tells its version in /proc, so the mismatch is proven without the tool.

Thresholds: `expected` driver version ("" for any) and `minimum` ("" for any); `devices` of the job.

Checked against: /proc/driver/nvidia/version as in public bug reports of the proprietary and the open module; "Driver/library
version mismatch" and "NVML library version" as nvidia-smi prints them; XML documents in Telegraf's test data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks import nvidia
from ftrun.hooks.findings import BAD, DEGRADED, NOTE, OK, Check, Finding
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "Facts", "judge"]

NAME = "gpu-driver"
FAULT = "node"
MODULE = re.compile(r"NVRM version:.*?(\d+\.\d+(?:\.\d+)?)\s")
SAME_ON_ALL = {"vbios_version": "VBIOS", "gsp_firmware_version": "GSP firmware"}


class Facts(NamedTuple):
    """What nvidia-smi answered, and the text of /proc/driver/nvidia/version ("" where there is none)."""

    answer: nvidia.Answer
    module: str


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> Facts:
    """Ask nvidia-smi and the loaded module."""
    return Facts(nvidia.probe(machine, thresholds), machine.read("/proc/driver/nvidia/version") or "")


def judge(facts: Facts, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad when module and library differ; degraded for a version that the site does not want; a note for GPUs that differ."""
    answer = facts.answer
    found = MODULE.search(facts.module)
    module = found.group(1) if found else ""
    library = answer.driver
    if "version mismatch" in answer.trouble or (module and library and module != library):
        message = f"the loaded module is {module or 'of another version'}, the library {library or 'newer'}: reboot it"
        evidence = tuple(line for line in (answer.trouble, facts.module.split("\n")[0]) if line)
        return [Finding(NAME, BAD, message, FAULT, "", evidence)]
    nothing = nvidia.unread(NAME, answer, thresholds)
    if nothing:
        return nothing
    expected, minimum = str(thresholds["expected"]), str(thresholds["minimum"])
    if (expected and library != expected) or (minimum and _parts(library) < _parts(minimum)):
        message = f"driver {library}, the site wants {expected or f'{minimum} or newer'}"
        return [Finding(NAME, DEGRADED, message, FAULT)]
    odd = [one for field, title in SAME_ON_ALL.items() for one in _odd(answer.gpus, field, title)]
    return odd or [Finding(NAME, OK, f"driver {library}", evidence=(library,))]


def _odd(gpus: Sequence[nvidia.Gpu], field: str, title: str) -> list[Finding]:
    """A note for each GPU whose version is not that of most GPUs of its product."""
    found = []
    for product in sorted({gpu.product for gpu in gpus}):
        versions = [gpu.word(field) for gpu in gpus if gpu.product == product and gpu.word(field)]
        usual = max(sorted(set(versions)), key=versions.count, default="")
        found += [
            Finding(NAME, NOTE, f"{title} {gpu.word(field)}, the others have {usual}", "", gpu.device)
            for gpu in gpus
            if gpu.product == product and gpu.word(field) not in ("", usual)
        ]
    return found


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


CHECK = Check(
    name=NAME,
    title="Kernel module, library and firmware of the GPUs belong together",
    tier="fast",
    fault=FAULT,
    needs=("nvidia-smi",),
    limit_s=nvidia.CHECK_LIMIT_S,
    thresholds={"expected": "", "minimum": "", "devices": ""},
    probe=probe,
    judge=judge,
)
