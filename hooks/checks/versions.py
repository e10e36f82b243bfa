"""The check of versions: kernel, drivers, firmware. (I/O)"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ftrun.hooks.runtime.finding import Finding, Thresholds, degraded, ok, unknown
from ftrun.hooks.runtime.host import Machine

MODULES = (
    "amdgpu", "beegfs", "bnxt_en", "drv_pcie_host", "efa", "gdrdrv", "habanalabs", "hfi1", "ice", "lnet", "lustre", "mlx5_core", "mmfs26", "nvidia",
    "nvidia_peermem", "zfs",
)  # fmt: skip
FILES = {
    "kernel": "/proc/sys/kernel/osrelease",
    "product": "/sys/class/dmi/id/product_name",
    "bios": "/sys/class/dmi/id/bios_version",
}


def probe_versions(machine: Machine, _thresholds: Thresholds) -> dict[str, str]:
    """Component -> version, of those that are here."""
    found = {component: machine.peek(path) or "" for component, path in FILES.items()}
    system = dict(re.findall(r"^(\w+)=\"?([^\"\n]*)", machine.peek("/etc/os-release") or "", re.MULTILINE))
    found["system"] = " ".join(system[key] for key in ("ID", "VERSION_ID") if key in system)
    microcode = re.search(r"^microcode\s*:\s*(\S+)", machine.peek("/proc/cpuinfo") or "", re.MULTILINE)
    found["microcode"] = microcode[1] if microcode else ""
    for module in MODULES:
        found[module] = machine.peek(f"/sys/module/{module}/version") or ""
    for port in machine.names("/sys/class/infiniband"):
        found[f"firmware {port}"] = machine.peek(f"/sys/class/infiniband/{port}/fw_ver") or ""
    return {component: version.strip() for component, version in found.items() if version.strip()}


def judge_versions(versions: Mapping[str, str], thresholds: Thresholds) -> Sequence[Finding]:
    """A finding for each component; degraded where the site expects another version."""
    expected: Mapping[str, str] = thresholds["expected"]
    found = [
        _told(component, version, expected.get(component, "")) for component, version in versions.items()
    ]
    found += [
        degraded(f"{component} is not here, the site expects {version}", component)
        for component, version in expected.items()
        if component not in versions
    ]
    return found or [unknown("nothing tells its version here")]


def _told(component: str, version: str, expected: str) -> Finding:
    if expected and version != expected:
        return degraded(f"{component} {version}, the site expects {expected}", component, evidence=(version,))
    return ok(f"{component} {version}", component, evidence=(version,))


FUNCTIONS = {"versions": (probe_versions, judge_versions)}
