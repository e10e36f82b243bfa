"""`dcgm`: what NVIDIA's DCGM, where it runs, holds of the GPUs. (I/O)

How it thinks. DCGM watches what single readings miss, if somebody has told it to: its health watches are off by default, and setting
them needs rights and changes the node, so they are only read. Failure is NVIDIA's own word for a GPU that should be taken out;
Warning is degraded. A host engine that does not run is no fault.

Thresholds: `group` (0: all GPUs).

Checked against: DCGM's source (dcgmi/Health.cpp and its tests): the tree with "Overall Health", "GPU", "-> 0" and "-> Memory system", and
the messages for watches that are off and for an engine that cannot be reached.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks.findings import BAD, DEGRADED, OK, SKIPPED, UNKNOWN, Check, Finding
from ftrun.hooks.machine import Machine, Output

__all__ = ["CHECK", "judge"]

NAME = "dcgm"
FAULT = "hardware-gpu"
TOOL_LIMIT_S = 8.0
SEVERITY = {"Failure": BAD, "Warning": DEGRADED, "Healthy": OK}
OFF = re.compile(
    r"Health watches not enabled|Unable to connect to host engine|The Group is not found", re.IGNORECASE
)
ROW = re.compile(r"^\|\s*(?P<key>[^|]*?)\s*\|\s*(?P<value>[^|]*?)\s*\|?\s*$")


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> Output:
    """Ask the host engine for what its watches have found."""
    return machine.run(["dcgmi", "health", "-c", "-g", str(thresholds["group"])], TOOL_LIMIT_S)


def judge(output: Output, _thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad for Failure, degraded for Warning; skipped where nobody watches."""
    text = f"{output.out}\n{output.err}"
    rows = [
        (found.group("key"), found.group("value"))
        for found in map(ROW.match, output.out.splitlines())
        if found
    ]
    overall = next((value for key, value in rows if key == "Overall Health"), "")
    if not overall:
        off = OFF.search(text)
        if off:
            return [Finding(NAME, SKIPPED, f"nobody watches here: {off.group(0)}")]
        return [
            Finding(NAME, UNKNOWN, f"dcgmi says nothing of health: {text.strip()[:100] or 'nothing printed'}")
        ]
    if overall not in SEVERITY:
        return [Finding(NAME, UNKNOWN, f"DCGM's verdict is {overall}")]
    found = _entities(rows)
    if not found and overall != "Healthy":
        found = [Finding(NAME, SEVERITY[overall], f"DCGM's verdict is {overall}", FAULT)]
    return found or [Finding(NAME, OK, "DCGM holds all GPUs to be healthy")]


def _entities(rows: Sequence[tuple[str, str]]) -> list[Finding]:
    """A finding for each device that is not healthy: `-> 0` begins one, `-> Memory system` names what is wrong with it."""
    found: list[Finding] = []
    kind = ""
    for key, value in rows:
        kind = key if key and not value and not key.startswith("->") else kind
        device = re.fullmatch(r"-> (\d+)", key)
        system = re.fullmatch(r"-> (\D.*)", key)
        if device and value in SEVERITY:
            found.append(Finding(NAME, SEVERITY[value], "", FAULT, f"{kind} {device.group(1)}".strip()))
        elif device:
            found.append(
                Finding(
                    NAME, UNKNOWN, f"DCGM's verdict is {value}", device=f"{kind} {device.group(1)}".strip()
                )
            )
        elif found and (system or (value and not key)):
            last = found[-1]
            line = f"{system.group(1)}: {value}" if system else value
            found[-1] = last._replace(evidence=(*last.evidence, line))
    return [
        one._replace(message=f"DCGM finds: {'; '.join(one.evidence) or 'not healthy'}"[:300])
        for one in found
        if one.severity != OK
    ]


CHECK = Check(
    name=NAME,
    title="What NVIDIA's DCGM, where it runs, holds of the GPUs",
    tier="fast",
    fault=FAULT,
    needs=("dcgmi",),
    limit_s=10.0,
    thresholds={"group": 0},
    probe=probe,
    judge=judge,
)
