"""`gpu-check`: as many accelerators as expected, and their driver answers. (I/O)

How it thinks. Three sources are laid side by side: what the site or the job expects, what hangs on the PCI bus (the kernel's list, which
no container hides), and what the driver's own tool lists. A GPU that has fallen off the bus stays on the PCI list and is no
longer listed, or is listed with "GPU is lost" in the place of its values. A MIG instance is no GPU and none is missing for it.

Thresholds: `expected` accelerators of the node (0: unknown, then nothing is missing on that account); `devices` of the job: then
as many as it names are expected, because a job sees its own only.

Checked against: nvidia-smi's manual for its exit codes; messages as quoted in NVIDIA's forums and in Azure's node health checks;
PCI classes 0300 and 0302 with vendor 10de from the kernel's PCI ids. Other makers are counted by the device files of their drivers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ftrun.hooks import nvidia
from ftrun.hooks.findings import BAD, DEGRADED, NOTE, OK, SKIPPED, UNKNOWN, Check, Finding
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "Facts", "judge"]

NAME = "gpu-check"
FAULT = "hardware-gpu"

# What the driver says when it, and not the permission of who asks, is the matter.
DEAD = re.compile(
    r"couldn't communicate with the NVIDIA driver|fallen off the bus|GPU is lost|[Uu]nable to determine the device handle"
    r"|Driver/library version mismatch|driver is not loaded|power cables|interrupt issue",
)


class Facts(NamedTuple):
    """`answer` is None where nvidia-smi is not installed; `on_bus` are PCI addresses of NVIDIA GPUs, `others` counts by maker."""

    answer: Optional[nvidia.Answer]
    on_bus: tuple[str, ...] = ()
    set_aside: tuple[str, ...] = ()
    others: Mapping[str, int] = {}


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> Facts:
    """Ask nvidia-smi and the kernel."""
    answer = nvidia.probe(machine, thresholds) if machine.tool("nvidia-smi") else None
    on_bus = [address for address in machine.names("/sys/bus/pci/devices") if _is_gpu(machine, address)]
    aside = [address for address in on_bus if address in machine.names("/sys/bus/pci/drivers/vfio-pci")]
    others = {
        "AMD": len(
            [name for name in machine.names("/sys/class/kfd/kfd/topology/nodes") if _computes(machine, name)]
        ),
        "Ascend": len([name for name in machine.names("/dev") if re.fullmatch(r"davinci\d+", name)]),
    }
    return Facts(
        answer, tuple(on_bus), tuple(aside), {maker: count for maker, count in others.items() if count}
    )


def judge(facts: Facts, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad when accelerators are missing, lost, or the driver says that it cannot reach them."""
    wanted = nvidia.tokens(thresholds)
    expected = int(thresholds["expected"])
    if wanted and not any(token.lower().startswith("mig-") for token in wanted):
        expected = len(wanted)
    if facts.answer is None:
        return _without_nvidia(facts, expected)
    if not facts.answer.gpus:
        return [_silent(facts, facts.answer, expected)]
    lost = [gpu for gpu in nvidia.chosen(facts.answer.gpus, wanted) if _is_lost(gpu)]
    found = [
        Finding(NAME, BAD, "the driver has lost this GPU", FAULT, gpu.device, (gpu.uuid,)) for gpu in lost
    ]
    return found or [_counted(facts, facts.answer, expected, in_job=bool(wanted))]


def _counted(facts: Facts, answer: nvidia.Answer, expected: int, *, in_job: bool) -> Finding:
    count = len(answer.gpus)
    told = f"{count} GPU(s), driver {answer.driver}"
    if count < expected:
        missing = tuple(sorted(set(facts.on_bus) - {gpu.address for gpu in answer.gpus}))
        message = f"{told}: {expected} are expected"
        return Finding(NAME, BAD, message, FAULT, "", missing, float(count), "GPUs")
    if answer.trouble:
        message = f"{told}, but nvidia-smi complains: {answer.trouble}"
        return Finding(NAME, DEGRADED, message, FAULT, value=float(count), unit="GPUs")
    hidden = len(facts.on_bus) - len(facts.set_aside) - count
    if hidden > 0 and not in_job and not expected:
        message = f"{told}; {hidden} more on the PCI bus are not seen from here: another's, or not driven"
        return Finding(NAME, NOTE, message, value=float(count), unit="GPUs")
    seats = tuple(f"{gpu.device} {gpu.uuid}" for gpu in answer.gpus)  # which card sits where: the ledger's
    return Finding(NAME, OK, told, evidence=seats, value=float(count), unit="GPUs")


def _silent(facts: Facts, answer: nvidia.Answer, expected: int) -> Finding:
    """nvidia-smi is there and lists nothing."""
    told = answer.trouble or "nvidia-smi lists no GPU"
    if DEAD.search(told) or answer.code in (8, 9, 10, 15):
        if facts.on_bus or expected:
            return Finding(NAME, BAD, f"the driver does not answer: {told}", FAULT, evidence=(told,))
        return Finding(NAME, SKIPPED, f"no NVIDIA GPU on the PCI bus ({told})")
    if answer.code == 6:
        if expected:
            return Finding(
                NAME, BAD, f"{told}: {expected} are expected", FAULT, "", facts.on_bus, 0.0, "GPUs"
            )
        return Finding(NAME, SKIPPED, "no GPU can be seen from here")
    return Finding(NAME, UNKNOWN, f"nvidia-smi gave nothing to judge: {told}")


def _without_nvidia(facts: Facts, expected: int) -> list[Finding]:
    count = sum(facts.others.values())
    told = ", ".join(f"{count} {maker}" for maker, count in facts.others.items())
    if count < expected:
        message = (
            f"{expected} accelerators are expected, {told or 'none'} found, and nvidia-smi is not installed"
        )
        return [Finding(NAME, BAD, message, FAULT, "", facts.on_bus, float(count), "accelerators")]
    if count:
        return [Finding(NAME, OK, told, value=float(count), unit="accelerators")]
    if facts.on_bus:
        message = f"{len(facts.on_bus)} NVIDIA GPU(s) on the PCI bus, and nvidia-smi is not installed"
        return [Finding(NAME, NOTE, message, evidence=facts.on_bus)]
    return [Finding(NAME, SKIPPED, "no accelerator here, and none is expected")]


def _is_lost(gpu: nvidia.Gpu) -> bool:
    values = [
        gpu.facts.get(name, "").lower() for name in ("uuid", "temperature/gpu_temp", "fb_memory_usage/total")
    ]
    return any(word in value for value in values for word in nvidia.LOST_WORDS)


def _is_gpu(machine: Machine, address: str) -> bool:
    folder = f"/sys/bus/pci/devices/{address}"
    if (machine.read(f"{folder}/vendor") or "").strip() != "0x10de":
        return False
    return (machine.read(f"{folder}/class") or "").startswith(("0x0300", "0x0302"))


def _computes(machine: Machine, node: str) -> bool:
    """Whether a node of AMD's topology is a GPU: those of the CPUs have no SIMD units."""
    told = machine.read(f"/sys/class/kfd/kfd/topology/nodes/{node}/properties") or ""
    found = re.search(r"^simd_count (\d+)", told, re.MULTILINE)
    return bool(found) and int(found.group(1) if found else 0) > 0


CHECK = Check(
    name=NAME,
    title="As many accelerators as expected, and their driver answers",
    tier="fast",
    fault=FAULT,
    needs=(),
    limit_s=nvidia.CHECK_LIMIT_S,
    thresholds={"expected": 0, "devices": ""},
    probe=probe,
    judge=judge,
)
