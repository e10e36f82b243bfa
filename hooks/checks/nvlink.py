"""The checks of NVLink and of the fabric behind NVSwitches. (I/O)"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks.checks import nvidia_smi
from ftrun.hooks.runtime.finding import Finding, Thresholds, bad, degraded, note, ok, skipped, unknown
from ftrun.hooks.runtime.host import Machine, NoAnswer

# --- gpu-nvlink

NVLINK_LIMIT_S = 6.0

GPU_HEAD = re.compile(r"^GPU (\d+):.*?(?:\(UUID: (\S+?)\))?\s*$")
LINK_SPEED = re.compile(r"^\s*Link (\d+): (?:([\d.]+) GB/s|(.*))$")
LINK_ERRORS = re.compile(r"^\s*Link (\d+): (\w+)(?: \w+)* Errors: (\d+)")


class NvlinkFacts(NamedTuple):
    """What nvidia-smi answered, and the text of `nvlink -s` and `nvlink -e`."""

    answer: nvidia_smi.Answer
    status: str
    errors: str


def probe_nvlink(machine: Machine, thresholds: Thresholds) -> NvlinkFacts:
    """Ask for the links and their errors."""
    answer = nvidia_smi.probe(machine, thresholds)
    status = machine.run(["nvidia-smi", "nvlink", "-s"], NVLINK_LIMIT_S).out
    try:
        counted = machine.run(["nvidia-smi", "nvlink", "-e"], NVLINK_LIMIT_S).out
    except NoAnswer:  # the state of the links is worth more than their counters
        counted = ""
    return NvlinkFacts(answer, status, counted)


def links(text: str) -> dict[int, dict[int, float]]:
    """GPU -> link -> speed in GB/s, 0 for one that is not up. A link with a word that is not known is left
    out. Where all links of a GPU are said to be down in one line, its link 0 stands for them.
    """
    found: dict[int, dict[int, float]] = {}
    place = -1
    for line in text.splitlines():
        head, link = GPU_HEAD.match(line), LINK_SPEED.match(line)
        if head:
            place = int(head.group(1))
            found[place] = {}
        elif "all links are inactive" in line.lower() and place >= 0:
            found[place] = {0: 0.0}
        elif link and place >= 0 and (link.group(2) or "inactive" in link.group(3).lower()):
            found[place][int(link.group(1))] = float(link.group(2) or 0)
    return found


def errors(text: str) -> dict[int, dict[str, int]]:
    """GPU -> kind of error in small letters (replay, recovery, crc) -> sum over its links."""
    found: dict[int, dict[str, int]] = {}
    place = -1
    for line in text.splitlines():
        head, count = GPU_HEAD.match(line), LINK_ERRORS.match(line)
        if head:
            place = int(head.group(1))
        elif count and place >= 0:
            kinds = found.setdefault(place, {})
            kind = count.group(2).lower()
            kinds[kind] = kinds.get(kind, 0) + int(count.group(3))
    return found


def judge_nvlink(facts: NvlinkFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Bad when a GPU has fewer links up than its equals or the site's number; degraded when links recover or
    count errors.
    """
    nothing = nvidia_smi.unread(facts.answer, thresholds)
    if nothing:
        return nothing
    up = links(facts.status)
    counted = errors(facts.errors)
    most = int(thresholds["expected"])
    if not any(up.values()) and most:
        return [unknown(f"{most} NVLinks a GPU are expected, and nvidia-smi tells of none")]
    if not most and not any(speed for table in up.values() for speed in table.values()):
        return [skipped("no NVLink is up on any GPU of this node")]
    found = []
    for gpu in nvidia_smi.chosen(facts.answer.gpus, nvidia_smi.tokens(thresholds)):
        if gpu.has_mig or not up.get(gpu.place):
            continue  # with MIG links rest; of a GPU that is not listed nothing is known
        equals = [
            _active_links(up, one)
            for one in facts.answer.gpus
            if one.product == gpu.product and not one.has_mig
        ]
        found += _link_faults(gpu, up[gpu.place], most or max(equals))
        found += _error_faults(gpu, counted.get(gpu.place, {}), thresholds)
    return found or [ok(f"{sum(_active_links(up, gpu) for gpu in facts.answer.gpus)} links are up")]


def _active_links(up: Mapping[int, Mapping[int, float]], gpu: nvidia_smi.Gpu) -> int:
    return sum(speed > 0 for speed in up.get(gpu.place, {}).values())


def _link_faults(gpu: nvidia_smi.Gpu, table: Mapping[int, float], most: int) -> list[Finding]:
    active = sum(speed > 0 for speed in table.values())
    if active < most:
        down = tuple(f"Link {link}: inactive" for link, speed in sorted(table.items()) if not speed)
        return [bad(f"{active} of {most} NVLinks are up", gpu.device, float(active), "links", evidence=down)]
    speeds = {speed for speed in table.values() if speed}
    if len(speeds) > 1:
        message = f"its NVLinks differ in speed: {min(speeds):g} to {max(speeds):g} GB/s"
        return [degraded(message, gpu.device, min(speeds), "GB/s")]
    return []


def _error_faults(gpu: nvidia_smi.Gpu, kinds: Mapping[str, int], thresholds: Thresholds) -> list[Finding]:
    limits = {
        "recovery": thresholds["recoveries"],
        "replay": thresholds["replays"],
        "crc": thresholds["checksums"],
    }
    told = tuple(f"{kind} errors: {count}" for kind, count in kinds.items() if count)
    worst = [kind for kind, limit in limits.items() if kinds.get(kind, 0) >= limit]
    if worst:
        count = kinds[worst[0]]
        message = f"{count} {worst[0]} errors on its NVLinks"
        return [degraded(message, gpu.device, float(count), "errors", evidence=told)]
    return [note("its NVLinks have counted errors", gpu.device, evidence=told)] if told else []


# --- gpu-fabric

SERVICE_LIMIT_S = 3.0


class FabricFacts(NamedTuple):
    """What nvidia-smi answered, how many NVSwitches hang on the bus, and what systemd says of the service ("" when not asked)."""

    answer: nvidia_smi.Answer
    switches: int = 0
    service: str = ""


def probe_fabric(machine: Machine, thresholds: Thresholds) -> FabricFacts:
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
    return FabricFacts(nvidia_smi.probe(machine, thresholds), switches, service)


def judge_fabric(facts: FabricFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Bad when a GPU has not joined or its fabric is unhealthy, or when older GPUs have a manager that
    failed.
    """
    nothing = nvidia_smi.unread(facts.answer, thresholds)
    if nothing:
        return nothing
    mine = nvidia_smi.chosen(facts.answer.gpus, nvidia_smi.tokens(thresholds))
    telling = [gpu for gpu in mine if gpu.word("fabric/state")]
    found = [one for gpu in telling for one in _fabric_faults(gpu)]
    if found:
        return found
    if telling:
        return [ok(f"{len(telling)} GPU(s) have joined the fabric")]
    if not facts.switches:
        return [skipped("no NVSwitch here, and no GPU that tells of a fabric")]
    return [_manager_finding(facts, thresholds["service"])]


def _fabric_faults(gpu: nvidia_smi.Gpu) -> list[Finding]:
    state, status = gpu.word("fabric/state"), gpu.word("fabric/status")
    told = (f"fabric state {state}, status {status}",)
    if state != "Completed":
        return [bad(f"it has not joined the fabric: {state}", gpu.device, evidence=told)]
    if status not in ("", "Success"):
        return [bad(f"it could not join the fabric: {status}", gpu.device, evidence=told)]
    summary = gpu.word("fabric/health/summary")
    bandwidth = gpu.word("fabric/health/bandwidth")
    if summary == "Unhealthy" or gpu.word("fabric/health/route_unhealthy") in ("True", "Yes"):
        return [bad("its fabric is unhealthy", gpu.device, evidence=(*told, f"summary {summary}"))]
    if summary == "Limited Capacity" or bandwidth == "Degraded":
        message = "its fabric has lost bandwidth"
        return [degraded(message, gpu.device, evidence=(*told, f"bandwidth {bandwidth}"))]
    return []


def _manager_finding(facts: FabricFacts, service: str) -> Finding:
    told = (f"systemctl is-active {service}: {facts.service}",)
    if facts.service == "failed":
        return bad(f"{facts.switches} NVSwitch(es), and {service} has failed", evidence=told)
    if facts.service in ("inactive", "activating", "deactivating"):
        return degraded(f"{facts.switches} NVSwitch(es), and {service} is {facts.service}", evidence=told)
    if facts.service != "active":
        return note(f"{facts.switches} NVSwitch(es), and {service} cannot be asked for", evidence=told)
    return ok(f"{service} runs")


def _is_switch(machine: Machine, folder: str) -> bool:
    if (machine.read(f"{folder}/class") or "")[:6] != "0x0680":
        return False
    return (machine.read(f"{folder}/vendor") or "").strip() == "0x10de"


FUNCTIONS: dict[str, Any] = {
    "gpu-nvlink": (probe_nvlink, judge_nvlink),
    "gpu-fabric": (probe_fabric, judge_fabric),
}
