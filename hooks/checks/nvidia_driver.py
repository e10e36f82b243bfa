"""The checks of NVIDIA GPUs as the bus, the driver, its log and DCGM see them. (I/O)"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from ftrun.hooks.checks import kernel_log_reader, nvidia_smi
from ftrun.hooks.runtime.finding import (
    BAD,
    DEGRADED,
    NOTE,
    OK,
    SEVERITIES,
    Finding,
    Thresholds,
    bad,
    degraded,
    finding,
    note,
    ok,
    skipped,
    unknown,
)
from ftrun.hooks.runtime.host import Machine, NoAnswer, Output

# --- gpu-check

# What the driver says when it, and not the permission of who asks, is the matter.
DEAD = re.compile(
    r"couldn't communicate with the NVIDIA driver|fallen off the bus|GPU is lost|[Uu]nable to determine the device handle"
    r"|Driver/library version mismatch|driver is not loaded|power cables|interrupt issue"
)


class PresenceFacts(NamedTuple):
    """`answer` is None where nvidia-smi is not installed; `on_bus` are PCI addresses of NVIDIA GPUs, `others` counts by maker."""

    answer: Optional[nvidia_smi.Answer]
    on_bus: tuple[str, ...] = ()
    set_aside: tuple[str, ...] = ()
    others: Mapping[str, int] = {}


def probe_presence(machine: Machine, thresholds: Thresholds) -> PresenceFacts:
    """Ask nvidia-smi and the kernel."""
    answer = nvidia_smi.probe(machine, thresholds) if machine.tool("nvidia-smi") else None
    on_bus = [address for address in machine.names("/sys/bus/pci/devices") if _is_gpu(machine, address)]
    aside = [address for address in on_bus if address in machine.names("/sys/bus/pci/drivers/vfio-pci")]
    others = {
        "AMD": len(
            [name for name in machine.names("/sys/class/kfd/kfd/topology/nodes") if _computes(machine, name)]
        ),
        "Ascend": len([name for name in machine.names("/dev") if re.fullmatch(r"davinci\d+", name)]),
    }
    return PresenceFacts(
        answer, tuple(on_bus), tuple(aside), {maker: count for maker, count in others.items() if count}
    )


def judge_presence(facts: PresenceFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Bad when accelerators are missing, lost, or the driver says that it cannot reach them."""
    wanted = nvidia_smi.tokens(thresholds)
    expected = int(thresholds["expected"])
    if wanted and not any(token.lower().startswith("mig-") for token in wanted):
        expected = len(wanted)
    if facts.answer is None:
        return _without_nvidia(facts, expected)
    if not facts.answer.gpus:
        return [_silent_driver(facts, facts.answer, expected)]
    lost = [gpu for gpu in nvidia_smi.chosen(facts.answer.gpus, wanted) if _is_lost(gpu)]
    found = [bad("the driver has lost this GPU", gpu.device, evidence=(gpu.uuid,)) for gpu in lost]
    return found or [_presence(facts, facts.answer, expected, in_job=bool(wanted))]


def _presence(facts: PresenceFacts, answer: nvidia_smi.Answer, expected: int, *, in_job: bool) -> Finding:
    count = len(answer.gpus)
    told = f"{count} GPU(s), driver {answer.driver}"
    if count < expected:
        missing = tuple(sorted(set(facts.on_bus) - {gpu.address for gpu in answer.gpus}))
        return bad(f"{told}: {expected} are expected", value=float(count), unit="GPUs", evidence=missing)
    if answer.trouble:
        message = f"{told}, but nvidia-smi complains: {answer.trouble}"
        return degraded(message, value=float(count), unit="GPUs")
    hidden = len(facts.on_bus) - len(facts.set_aside) - count
    if hidden > 0 and not in_job and not expected:
        message = f"{told}; {hidden} more on the PCI bus are not seen from here: another's, or not driven"
        return note(message, value=float(count), unit="GPUs")
    seats = tuple(f"{gpu.device} {gpu.uuid}" for gpu in answer.gpus)  # which card sits where: the ledger's
    return ok(told, value=float(count), unit="GPUs", evidence=seats)


def _silent_driver(facts: PresenceFacts, answer: nvidia_smi.Answer, expected: int) -> Finding:
    """nvidia-smi is there and lists nothing."""
    told = answer.trouble or "nvidia-smi lists no GPU"
    if DEAD.search(told) or answer.code in (8, 9, 10, 11, 15, 16):
        if facts.on_bus or expected:
            return bad(f"the driver does not answer: {told}", evidence=(told,))
        return skipped(f"no NVIDIA GPU on the PCI bus ({told})")
    if answer.code == 6:
        if expected:
            return bad(f"{told}: {expected} are expected", value=0.0, unit="GPUs", evidence=facts.on_bus)
        return skipped("no GPU can be seen from here")
    return unknown(f"nvidia-smi gave nothing to judge: {told}")


def _without_nvidia(facts: PresenceFacts, expected: int) -> list[Finding]:
    count = sum(facts.others.values())
    told = ", ".join(f"{count} {maker}" for maker, count in facts.others.items())
    if count < expected:
        message = (
            f"{expected} accelerators are expected, {told or 'none'} found, and nvidia-smi is not installed"
        )
        return [bad(message, value=float(count), unit="accelerators", evidence=facts.on_bus)]
    if count:
        return [ok(told, value=float(count), unit="accelerators")]
    if facts.on_bus:
        message = f"{len(facts.on_bus)} NVIDIA GPU(s) on the PCI bus, and nvidia-smi is not installed"
        return [note(message, evidence=facts.on_bus)]
    return [skipped("no accelerator here, and none is expected")]


def _is_lost(gpu: nvidia_smi.Gpu) -> bool:
    values = [
        gpu.facts.get(name, "").lower() for name in ("uuid", "temperature/gpu_temp", "fb_memory_usage/total")
    ]
    return any(word in value for value in values for word in nvidia_smi.LOST_WORDS)


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


# --- gpu-driver

MODULE_VERSION = re.compile(r"NVRM version:.*?(\d+\.\d+(?:\.\d+)?)\s")
SAME_ON_ALL = {"vbios_version": "VBIOS", "gsp_firmware_version": "GSP firmware"}


class DriverFacts(NamedTuple):
    """What nvidia-smi answered, and the text of /proc/driver/nvidia/version ("" where there is none)."""

    answer: nvidia_smi.Answer
    module: str


def probe_driver(machine: Machine, thresholds: Thresholds) -> DriverFacts:
    """Ask nvidia-smi and the loaded module."""
    return DriverFacts(
        nvidia_smi.probe(machine, thresholds), machine.read("/proc/driver/nvidia/version") or ""
    )


def judge_driver(facts: DriverFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Bad when module and library differ; degraded for a version that the site does not want; a note for GPUs
    that differ.
    """
    answer = facts.answer
    found = MODULE_VERSION.search(facts.module)
    module = found.group(1) if found else ""
    library = answer.driver
    if "version mismatch" in answer.trouble or (module and library and module != library):
        message = f"the loaded module is {module or 'of another version'}, the library {library or 'newer'}: reboot it"
        evidence = tuple(line for line in (answer.trouble, facts.module.split("\n")[0]) if line)
        return [bad(message, evidence=evidence)]
    nothing = nvidia_smi.unread(answer, thresholds)
    if nothing:
        return nothing
    expected, minimum = str(thresholds["expected"]), str(thresholds["minimum"])
    if (expected and library != expected) or (minimum and _parts(library) < _parts(minimum)):
        return [degraded(f"driver {library}, the site wants {expected or f'{minimum} or newer'}")]
    odd = [one for field, title in SAME_ON_ALL.items() for one in _odd_versions(answer.gpus, field, title)]
    return odd or [ok(f"driver {library}", evidence=(library,))]


def _odd_versions(gpus: Sequence[nvidia_smi.Gpu], field: str, title: str) -> list[Finding]:
    """A note for each GPU whose version is not that of most GPUs of its product."""
    found = []
    for product in sorted({gpu.product for gpu in gpus}):
        versions = [gpu.word(field) for gpu in gpus if gpu.product == product and gpu.word(field)]
        usual = max(sorted(set(versions)), key=versions.count, default="")
        found += [
            note(f"{title} {gpu.word(field)}, the others have {usual}", gpu.device)
            for gpu in gpus
            if gpu.product == product and gpu.word(field) not in ("", usual)
        ]
    return found


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


# --- gpu-xid

EVIDENCE_MAX = 3

# "(PCI:0000:01:00 GPU-I:05)" where a MIG instance is meant; "(0000:01:00)" by drivers before 2013.
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)(?: GPU-I:\w+)?\): (\d+)")
SXID = re.compile(r"SXid \(PCI:([0-9a-fA-F:.]+)\): (\d+), (Fatal|Non-fatal)")
OFF_BUS = re.compile(r"NVRM: GPU (?:at PCI:)?([0-9a-fA-F:.]+): GPU has fallen off the bus")

# Reset, reboot or replace the device, by NVIDIA's catalog.
BAD_XIDS = frozenset((
    46, 48, 54, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 155, 158, 166, 167, 169, 170, 171, 172, 173, 175,
))  # fmt: skip
# It goes on, worse: rows remapped, corrected errors in great number, a contained error, a channel that timed out.
DEGRADED_XIDS = frozenset((61, 63, 92, 93, 94, 109, 122, 123, 124, 125, 156, 157, 160, 161, 168, 176))
SELF_TOLD_XIDS = frozenset((144, 145, 146, 147, 148, 149, 150))
TITLES = {
    48: "double-bit memory error", 62: "micro-controller halt", 63: "row of memory remapped", 64: "row of memory not remapped",
    74: "NVLink error", 79: "GPU has fallen off the bus", 92: "many single-bit errors", 94: "contained memory error",
    95: "uncontained memory error", 119: "GSP does not answer", 120: "GSP error", 140: "unrecovered memory error",
    154: "recovery action", 13: "fault of a program", 31: "fault of a program", 43: "fault of a program", 45: "clean-up",
}  # fmt: skip


class XidFacts(NamedTuple):
    """The kernel's log, and the GPUs where nvidia-smi lists them: they tell which addresses are the job's."""

    log: kernel_log_reader.Log
    gpus: tuple[nvidia_smi.Gpu, ...] = ()


class Event(NamedTuple):
    """One line on one device: `code` is "Xid 79" or "SXid 12028", `at_s` seconds of the epoch or 0."""

    at_s: float
    address: str
    code: str
    severity: str
    title: str
    line: str


def probe_xid(machine: Machine, thresholds: Thresholds) -> XidFacts:
    """Read the log; ask nvidia-smi only where a job's devices must be told from others."""
    log = kernel_log_reader.read(machine)
    gpus: tuple[nvidia_smi.Gpu, ...] = ()
    if nvidia_smi.tokens(thresholds) and log.lines:
        try:
            gpus = nvidia_smi.probe(machine, thresholds).gpus
        except NoAnswer:  # a driver that is dead is when the log is needed most: every device counts then
            gpus = ()
    return XidFacts(log, gpus)


def judge_xid(facts: XidFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """By the class of the worst code of each device since the job began; a note for what is older."""
    if not facts.log.lines:
        return [skipped(f"the kernel's log cannot be read: {facts.log.why_not}")]
    since = thresholds["since_s"] or facts.log.now_s - thresholds["recent_s"]
    events = [
        event for event in map(_event_of, facts.log.lines) if event and _is_ours(event, facts, thresholds)
    ]
    found = []
    for address in sorted({event.address for event in events}):
        mine = [event for event in events if event.address == address]
        fresh = [event for event in mine if event.at_s >= since]
        found.append(_device_finding(address, fresh or mine, fresh=bool(fresh)))
    return found or [ok("the driver has written of no fault since boot")]


def _device_finding(address: str, events: Sequence[Event], *, fresh: bool) -> Finding:
    top = max(events, key=lambda event: SEVERITIES.index(event.severity))
    codes = ", ".join(dict.fromkeys(event.code for event in events))
    evidence = tuple(event.line for event in events if event.code == top.code)[:EVIDENCE_MAX]
    title = f" ({top.title})" if top.title else ""
    if not fresh:
        return note(f"{codes}{title}, not since the job began", address, evidence=evidence)
    return finding(top.severity, f"{codes}{title}", address, float(len(events)), "lines", evidence=evidence)


def _event_of(line: kernel_log_reader.Line) -> Event | None:
    at_s = line.at_s or 0.0
    found = XID.search(line.text)
    if found:
        number = int(found.group(2))
        address, severity = _address(found.group(1)), _xid_severity(number, line.text)
        return Event(at_s, address, f"Xid {number}", severity, TITLES.get(number, ""), line.text)
    found = SXID.search(line.text)
    if found:
        severity = BAD if found.group(3) == "Fatal" else NOTE
        return Event(
            at_s, _address(found.group(1)), f"SXid {found.group(2)}", severity, "NVSwitch", line.text
        )
    found = OFF_BUS.search(line.text)
    if found:
        return Event(at_s, _address(found.group(1)), "off the bus", BAD, TITLES[79], line.text)
    return None


def _xid_severity(number: int, text: str) -> str:
    if number in BAD_XIDS:
        return BAD
    if number in DEGRADED_XIDS:
        return DEGRADED
    if number in SELF_TOLD_XIDS:
        return BAD if re.search(r"\bFatal\b", text) else NOTE
    if number == 154:
        # "changed from 0x0 (None) to 0x1 (GPU Reset Required)": what it has become counts.
        return BAD if re.search(r" to 0x[0-9a-f]+ \(.*(?:Reset|Reboot)", text) else NOTE
    return NOTE


def _address(text: str) -> str:
    """0000:3b:00 and 0000:3B:00.0 are one device."""
    parts = text.lower().rstrip(".").split(":")
    return ":".join([*parts[:-1], parts[-1] if "." in parts[-1] else f"{parts[-1]}.0"])


def _is_ours(event: Event, facts: XidFacts, thresholds: Thresholds) -> bool:
    """Whether a device concerns the job; NVSwitches and devices that are listed no more concern all."""
    wanted = nvidia_smi.tokens(thresholds)
    if not wanted or event.address not in {gpu.address for gpu in facts.gpus}:
        return True
    return event.address in {gpu.address for gpu in nvidia_smi.chosen(facts.gpus, wanted)}


# --- dcgm

TOOL_LIMIT_S = 8.0
DCGM_SEVERITY = {"Failure": BAD, "Warning": DEGRADED, "Healthy": OK}
DCGM_OFF = re.compile(
    r"Health watches not enabled|Unable to connect to host engine|The Group is not found", re.IGNORECASE
)
DCGM_ROW = re.compile(r"^\|\s*(?P<key>[^|]*?)\s*\|\s*(?P<value>[^|]*?)\s*\|?\s*$")


def probe_dcgm(machine: Machine, thresholds: Thresholds) -> Output:
    """Ask the host engine for what its watches have found."""
    return machine.run(["dcgmi", "health", "-c", "-g", str(thresholds["group"])], TOOL_LIMIT_S)


def judge_dcgm(output: Output, _thresholds: Thresholds) -> Sequence[Finding]:
    """Bad for Failure, degraded for Warning; skipped where nobody watches."""
    text = f"{output.out}\n{output.err}"
    rows = [
        (found.group("key"), found.group("value"))
        for found in map(DCGM_ROW.match, output.out.splitlines())
        if found
    ]
    overall = next((value for key, value in rows if key == "Overall Health"), "")
    if not overall:
        off = DCGM_OFF.search(text)
        if off:
            return [skipped(f"nobody watches here: {off.group(0)}")]
        return [unknown(f"dcgmi says nothing of health: {text.strip()[:100] or 'nothing printed'}")]
    if overall not in DCGM_SEVERITY:
        return [unknown(f"DCGM's verdict is {overall}")]
    found = _entities(rows)
    if not found and overall != "Healthy":
        found = [finding(DCGM_SEVERITY[overall], f"DCGM's verdict is {overall}")]
    return found or [ok("DCGM holds all GPUs to be healthy")]


def _entities(rows: Sequence[tuple[str, str]]) -> list[Finding]:
    """A finding for each device that is not healthy: `-> 0` begins one, `-> Memory system` names what is wrong with it."""
    found: list[Finding] = []
    kind = ""
    for key, value in rows:
        kind = key if key and not value and not key.startswith("->") else kind
        device = re.fullmatch(r"-> (\d+)", key)
        system = re.fullmatch(r"-> (\D.*)", key)
        if device and value in DCGM_SEVERITY:
            found.append(finding(DCGM_SEVERITY[value], "", f"{kind} {device.group(1)}".strip()))
        elif device:
            found.append(unknown(f"DCGM's verdict is {value}", f"{kind} {device.group(1)}".strip()))
        elif found and (system or (value and not key)):
            last = found[-1]
            line = f"{system.group(1)}: {value}" if system else value
            found[-1] = last._replace(evidence=(*last.evidence, line))
    return [
        one._replace(message=f"DCGM finds: {'; '.join(one.evidence) or 'not healthy'}"[:300])
        for one in found
        if one.severity != OK
    ]


FUNCTIONS = {
    "gpu-check": (probe_presence, judge_presence),
    "gpu-driver": (probe_driver, judge_driver),
    "gpu-xid": (probe_xid, judge_xid),
    "dcgm": (probe_dcgm, judge_dcgm),
}
