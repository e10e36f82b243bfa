"""`gpu-fabric`: the GPUs have joined the NVLink fabric, and its manager runs where there are switches. (I/O)

How it thinks. Behind NVSwitches a GPU computes only after the fabric manager has registered it: without, CUDA does not even start
("system not yet initialized"). Since Hopper each GPU tells its state; older ones tell nothing, and the service is all there is to
ask. Where GPUs have joined, a manager that is not seen from here (in a container, on a switch tray) is no fault.

Thresholds: `service` (nvidia-fabricmanager); `devices` of the job.

Checked against: XML documents v12 and v13 in Telegraf's test data for the fields; leptonai's gpud for the words of the health
summary (Healthy, Unhealthy, Limited Capacity); PCI class 0680 of NVSwitches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks import nvidia
from ftrun.hooks.findings import BAD, DEGRADED, NOTE, OK, SKIPPED, Check, Finding
from ftrun.hooks.machine import Machine, NoAnswer

__all__ = ["CHECK", "Facts", "judge"]

NAME = "gpu-fabric"
FAULT = "hardware-gpu"
SERVICE_LIMIT_S = 3.0


class Facts(NamedTuple):
    """What nvidia-smi answered, how many NVSwitches hang on the bus, and what systemd says of the service ("" when not asked)."""

    answer: nvidia.Answer
    switches: int = 0
    service: str = ""


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> Facts:
    """Ask nvidia-smi, count switches, and where there are any ask systemd for the manager."""
    folder = "/sys/bus/pci/devices"
    switches = sum(_is_switch(machine, f"{folder}/{address}") for address in machine.names(folder))
    service = ""
    if switches:
        try:
            service = machine.run(
                ["systemctl", "is-active", thresholds["service"]], SERVICE_LIMIT_S
            ).out.strip()
        except NoAnswer:
            service = "unknown"
    return Facts(nvidia.probe(machine, thresholds), switches, service)


def judge(facts: Facts, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad when a GPU has not joined or its fabric is unhealthy, or when older GPUs have a manager that failed."""
    nothing = nvidia.unread(NAME, facts.answer, thresholds)
    if nothing:
        return nothing
    mine = nvidia.chosen(facts.answer.gpus, nvidia.tokens(thresholds))
    telling = [gpu for gpu in mine if gpu.word("fabric/state")]
    found = [one for gpu in telling for one in _looked(gpu)]
    if found:
        return found
    if telling:
        return [Finding(NAME, OK, f"{len(telling)} GPU(s) have joined the fabric")]
    if not facts.switches:
        return [Finding(NAME, SKIPPED, "no NVSwitch here, and no GPU that tells of a fabric")]
    return [_manager(facts, thresholds["service"])]


def _looked(gpu: nvidia.Gpu) -> list[Finding]:
    state, status = gpu.word("fabric/state"), gpu.word("fabric/status")
    told = (f"fabric state {state}, status {status}",)
    if state != "Completed":
        return [Finding(NAME, BAD, f"it has not joined the fabric: {state}", FAULT, gpu.device, told)]
    if status not in ("", "Success"):
        return [Finding(NAME, BAD, f"it could not join the fabric: {status}", FAULT, gpu.device, told)]
    summary = gpu.word("fabric/health/summary")
    bandwidth = gpu.word("fabric/health/bandwidth")
    if summary == "Unhealthy" or gpu.word("fabric/health/route_unhealthy") in ("True", "Yes"):
        return [
            Finding(NAME, BAD, "its fabric is unhealthy", FAULT, gpu.device, (*told, f"summary {summary}"))
        ]
    if summary == "Limited Capacity" or bandwidth == "Degraded":
        message = "its fabric has lost bandwidth"
        return [Finding(NAME, DEGRADED, message, FAULT, gpu.device, (*told, f"bandwidth {bandwidth}"))]
    return []


def _manager(facts: Facts, service: str) -> Finding:
    told = (f"systemctl is-active {service}: {facts.service}",)
    if facts.service == "failed":
        return Finding(
            NAME, BAD, f"{facts.switches} NVSwitch(es), and {service} has failed", FAULT, evidence=told
        )
    if facts.service in ("inactive", "activating", "deactivating"):
        message = f"{facts.switches} NVSwitch(es), and {service} is {facts.service}"
        return Finding(NAME, DEGRADED, message, FAULT, evidence=told)
    if facts.service != "active":
        return Finding(
            NAME, NOTE, f"{facts.switches} NVSwitch(es), and {service} cannot be asked for", evidence=told
        )
    return Finding(NAME, OK, f"{service} runs")


def _is_switch(machine: Machine, folder: str) -> bool:
    if (machine.read(f"{folder}/class") or "")[:6] != "0x0680":
        return False
    return (machine.read(f"{folder}/vendor") or "").strip() == "0x10de"


CHECK = Check(
    name=NAME,
    title="The GPUs have joined the NVLink fabric, and its manager runs",
    tier="fast",
    fault=FAULT,
    needs=("nvidia-smi",),
    limit_s=nvidia.CHECK_LIMIT_S,
    thresholds={"service": "nvidia-fabricmanager", "devices": ""},
    probe=probe,
    judge=judge,
)
