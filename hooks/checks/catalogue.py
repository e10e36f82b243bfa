"""The catalogue of checks: their names, what a site may set, and their documentation. (I/O)

The table has all that is needed to choose checks and to see whether their requirements are missing. The file of
a check is imported when the check runs, so a node without GPUs never loads the checks of GPUs. Its section
in checks.md documents it, in paragraphs that begin with "How it thinks.", "Thresholds:", "Files:" or "Formats:",
and "Checked against:". The command line and the documents print that text.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ftrun.hooks.runtime.finding import OWN_FAULT, TIERS, Check, Finding, Judge, Probe, Thresholds
from ftrun.hooks.runtime.host import Machine, UsageError

NVIDIA_S = 14.0
"""How long a check that asks nvidia-smi may take: the first to ask waits for the tool, the others for the first."""

SHM = "/dev/shm"  # noqa: S108

SECTIONS = ("prolog", "epilog", "health", "drain")
"""What a settings file holds beside checks: the switches of the hooks that Slurm calls."""


def _check(
    name: str,
    file: str,
    title: str,
    fault: str,
    *,
    limit_s: float,
    thresholds: Thresholds,
    needs: tuple[str, ...] = (),
    tier: str = "fast",
) -> Check:
    """A row of the table; its file is imported by whoever calls `probe` or `judge`."""

    def probe(machine: Machine, thresholds: Thresholds) -> Any:
        return _functions(file, name)[0](machine, thresholds)

    def judge(facts: Any, thresholds: Thresholds) -> Sequence[Finding]:
        return [
            one._replace(check=name, fault=fault if one.fault == OWN_FAULT else one.fault)
            for one in _functions(file, name)[1](facts, thresholds)
        ]

    return Check(name, title, tier, fault, needs, limit_s, thresholds, probe, judge, file)


def _functions(file: str, name: str) -> tuple[Probe, Judge]:
    found: tuple[Probe, Judge] = importlib.import_module(f"ftrun.hooks.checks.{file}").FUNCTIONS[name]
    return found


# Name, file, title, class of its faults.
# fmt: off
_TABLE = (
    _check("amd-gpu", "amd", "The AMD GPUs are all there, sound, cool and not held back", "hardware-gpu",
           limit_s=10.0,
           thresholds={"expected": 0, "uncorrectable": 0, "corrected": 10_000, "margin_c": 0, "devices": ""}),
    _check("amd-memory", "amd",
           "The memory of the AMD GPUs is free before the job, and nobody else computes on them", "node",
           limit_s=5.0, needs=("/sys/class/kfd",),
           thresholds={"used_mib": 1500, "job": "", "shared": False, "devices": ""}),
    _check("bmc", "bmc",
           "The board's controller has logged no fault (also of a dead node, from outside)", "hardware-other",
           limit_s=60.0, needs=("ipmitool",), tier="recheck",
           thresholds={"host": "", "user": "", "password_file": "", "interface": "lanplus", "since_s": 0,
                       "recent_s": 86_400, "last": 200, "power": True}),
    _check("bond", "ethernet", "Bonded links are up, all of them", "network",
           limit_s=5.0, needs=("/proc/net/bonding",), thresholds={"failures": 10}),
    _check("canary", "folders",
           "A small file can be written, read back and removed where the job writes", "storage", limit_s=10.0,
           thresholds={"folders": (), "deadline_s": 8.0, "slow_s": 3.0}),
    _check("cgroups", "processes", "The control groups that Slurm needs are there and not used up", "node",
           limit_s=4.0, thresholds={"expected": (), "conf": "", "percent": 80, "bad_percent": 99}),
    _check("clock", "clock", "The clock is right and follows a source", "node", limit_s=13.0,
           thresholds={"offset_s": 0.5, "bad_s": 60}),
    _check("cpu-frequency", "cpu",
           "The processors may run at their full clock, and are not held back by heat", "hardware-other",
           limit_s=6.0, needs=("/sys/devices/system/cpu",),
           thresholds={"governor": "", "percent": 90, "window_s": 1.0, "before": {}, "throttles": 0,
                       "expected": 0}),
    _check("dcgm", "nvidia_driver", "What NVIDIA's DCGM, where it runs, holds of the GPUs", "hardware-gpu",
           limit_s=10.0, needs=("dcgmi",), thresholds={"group": 0}),
    _check("disk-size cache", "folders", "The cache folder is large enough and has room", "storage",
           limit_s=6.0, thresholds={"folder": "", "size_gb": 32, "free_percent": 5}),
    _check("disk-size root", "folders", "The root file system is large enough and has room", "storage",
           limit_s=6.0, thresholds={"size_gb": 32, "free_percent": 2}),
    _check("disk-size shm", "folders", "Shared memory is large enough and has room", "storage",
           limit_s=6.0, needs=(SHM,), thresholds={"size_gb": 1, "free_percent": 20}),
    _check("dns", "reachability", "Every host of the job resolves", "network", limit_s=10.0,
           thresholds={"hosts": "", "hosts_file": "", "limit_s": 4.0}),
    _check("edac", "memory", "The memory controllers have met no errors", "hardware-other",
           limit_s=5.0, needs=("/sys/devices/system/edac/mc",),
           thresholds={"uncorrected": 0, "corrected_per_hour": 100, "corrected": 1000}),
    _check("folder-room", "folders", "The folders of the job have room and inodes left", "storage",
           limit_s=7.0, thresholds={"folders": (), "free_percent": 2, "free_gb": 0, "deadline_s": 5.0}),
    _check("gpu-check", "nvidia_driver",
           "As many accelerators as expected, and their driver answers", "hardware-gpu", limit_s=NVIDIA_S,
           thresholds={"expected": 0, "devices": ""}),
    _check("gpu-driver", "nvidia_driver",
           "Kernel module, library and firmware of the GPUs belong together", "node",
           limit_s=NVIDIA_S, needs=("nvidia-smi",),
           thresholds={"expected": "", "minimum": "", "devices": ""}),
    _check("gpu-ecc", "nvidia",
           "The memory of the GPUs is sound: ECC, row remapping, retired pages", "hardware-gpu",
           limit_s=NVIDIA_S, needs=("nvidia-smi",),
           thresholds={"uncorrectable": 0, "sram_corrected": 10_000, "dram_corrected": 20_000_000,
                       "devices": ""}),
    _check("gpu-fabric", "nvlink",
           "The GPUs have joined the NVLink fabric, and its manager runs", "hardware-gpu",
           limit_s=NVIDIA_S, needs=("nvidia-smi",),
           thresholds={"service": "nvidia-fabricmanager", "devices": ""}),
    _check("gpu-memory", "nvidia", "The memory of the GPUs is whole, and free before the job", "node",
           limit_s=NVIDIA_S, needs=("nvidia-smi",),
           thresholds={"used_mib": 1500, "missing_percent": 2, "devices": ""}),
    _check("gpu-mode", "nvidia",
           "All GPUs run in the same, usable mode: compute mode, MIG, ECC, persistence", "node",
           limit_s=NVIDIA_S, needs=("nvidia-smi",),
           thresholds={"compute_mode": "", "mig": "", "ecc": "", "persistence": "", "devices": ""}),
    _check("gpu-nvlink", "nvlink",
           "Every NVLink that should be up is up, and none counts errors", "hardware-gpu",
           limit_s=NVIDIA_S, needs=("nvidia-smi",),
           thresholds={"expected": 0, "recoveries": 1, "replays": 100_000, "checksums": 100_000,
                       "devices": ""}),
    _check("gpu-pcie", "nvidia", "Every GPU has its PCIe lanes and their speed", "hardware-gpu",
           limit_s=NVIDIA_S, needs=("nvidia-smi",),
           thresholds={"lanes": 0, "replays": 10_000, "devices": ""}),
    _check("gpu-processes", "nvidia", "No process of somebody else computes on the GPUs of the job", "node",
           limit_s=NVIDIA_S, needs=("nvidia-smi",),
           thresholds={"job": "", "shared": False, "allow": ( "nvidia-cuda-mps-server",
                       "nvidia-cuda-mps-control", "nvidia-persistenced", "nv-hostengine", "Xorg"),
                       "devices": ""}),
    _check("gpu-recovery", "nvidia", "No GPU asks for a reset or a reboot", "hardware-gpu",
           limit_s=NVIDIA_S, needs=("nvidia-smi",), thresholds={"devices": ""}),
    _check("gpu-temperature", "nvidia",
           "No GPU is near the heat at which it slows down or stops", "hardware-gpu",
           limit_s=NVIDIA_S, needs=("nvidia-smi",),
           thresholds={"margin_c": 3, "gpu_c": 90, "memory_c": 105, "above_others_c": 25, "devices": ""}),
    _check("gpu-throttle", "nvidia",
           "No GPU is slowed down by heat, by power or by its clock", "hardware-gpu",
           limit_s=NVIDIA_S, needs=("nvidia-smi",),
           thresholds={"clock_percent": 60, "power_percent": 95, "devices": ""}),
    _check("gpu-xid", "nvidia_driver",
           "The NVIDIA driver has written of no fault into the kernel's log", "hardware-gpu",
           limit_s=NVIDIA_S, needs=("/proc/driver/nvidia",),
           thresholds={"since_s": 0, "recent_s": 7200, "devices": ""}),
    _check("hugepages", "memory", "Huge pages are reserved as the site wants them", "config",
           limit_s=2.0, needs=("/proc/meminfo",), thresholds={"expected": None, "transparent": ""}),
    _check("ib-errors", "rdma", "The error counters of the RDMA ports do not grow", "network",
           limit_s=9.0, needs=("/sys/class/infiniband",),
           thresholds={"before": {}, "window_s": 1.0, "growth": {}, "total": 10_000, "ports": ()}),
    _check("ib-flaps", "rdma", "The RDMA links stay up", "network",
           limit_s=9.0, needs=("/sys/class/infiniband",),
           thresholds={"before": {}, "window_s": 1.0, "a_day": 5, "least": 5, "ports": ()}),
    _check("ib-port", "rdma", "The ports of the RDMA adapters are up", "network", limit_s=6.0,
           thresholds={"ports": (), "active": 0}),
    _check("ib-speed", "rdma", "Every active RDMA port has its full width and speed", "network",
           limit_s=6.0, needs=("/sys/class/infiniband",), thresholds={"gbps": 0, "lanes": 0, "ports": ()}),
    _check("kernel-log", "kernel_log", "The kernel has written of no fault since the job began", "node",
           limit_s=12.0, thresholds={"since_s": 0, "recent_s": 7200, "level": 3, "allow": ()}),
    _check("lustre-client", "mounts", "The Lustre client is healthy and connected", "storage", limit_s=7.0,
           thresholds={"recent_s": 3600}),
    _check("mce", "memory", "The processors have met no machine check", "hardware-other", limit_s=12.0,
           thresholds={"exceptions": 0}),
    _check("memory", "memory", "The node has the memory it should have", "hardware-other",
           limit_s=2.0, needs=("/proc/meminfo",),
           thresholds={"expected_gb": 0, "percent": 93, "bad_percent": 80}),
    _check("mount-present", "mounts", "What must be mounted is mounted", "storage", limit_s=3.0,
           thresholds={"expected": (), "fstab": True}),
    _check("mount-readonly", "mounts",
           "No file system that should be written has turned read-only", "storage", limit_s=3.0,
           thresholds={"writable": ()}),
    _check("mounts", "mounts", "Every mount of the job answers in time", "storage", limit_s=7.0,
           thresholds={"paths": (), "deadline_s": 5.0, "slow_s": 2.0}),
    _check("mtu", "ethernet",
           "The interfaces have the packet size that is expected, or that their equals have", "network",
           limit_s=5.0, needs=("/sys/class/net",), thresholds={"expected": {}}),
    _check("nic-errors", "ethernet", "The network cards receive and send without errors", "network",
           limit_s=6.0, needs=("/sys/class/net",), thresholds={"before": {}, "window_s": 1.0, "growth": {}}),
    _check("nic-link", "ethernet", "The network interfaces are up, at their full speed", "network",
           limit_s=5.0, needs=("/sys/class/net",), thresholds={"expected": {}}),
    _check("npu", "npu", "The Ascend NPUs are all there, healthy, and linked", "hardware-gpu", limit_s=14.0,
           thresholds={"expected": 0, "double_bit": 0, "temperature_c": 95, "devices": ""}),
    _check("nvme-health", "nvme", "The NVMe drives are sound", "hardware-other",
           limit_s=30.0, needs=("/sys/class/nvme",), tier="recheck",
           thresholds={"percent_used": 100, "media_errors": 0}),
    _check("pcie-aer", "pcie", "The PCI Express devices have met no errors", "hardware-other",
           limit_s=6.0, needs=("/sys/bus/pci/devices",),
           thresholds={"fatal": 0, "nonfatal": 0, "corrected_per_hour": 1000, "corrected": 10_000}),
    _check("pcie-link", "pcie",
           "Adapters, drives and accelerators have all their PCI Express lanes", "hardware-other",
           limit_s=4.0, needs=("/sys/bus/pci/devices",), thresholds={"addresses": (), "allow": ()}),
    _check("peers", "reachability", "The other nodes of the job can be reached", "network", limit_s=10.0,
           thresholds={"hosts": "", "port": 6818, "limit_s": 4.0}),
    _check("port-free", "reachability", "The port at which the job's processes meet is free", "port-conflict",
           limit_s=5.0, thresholds={"ports": ()}),
    _check("processes", "processes", "No process hangs in the kernel, and there is room for more", "node",
           limit_s=6.0, needs=("/proc/stat",),
           thresholds={"window_s": 2.0, "stuck": 0, "zombies": 100, "percent": 80}),
    _check("quota", "folders", "The user of the job is not over quota where the job writes", "storage",
           limit_s=8.0, thresholds={"user": "", "percent": 98}),
    _check("roce-config", "rdma", "The RoCE ports have the addresses that a job needs", "network",
           limit_s=8.0, needs=("/sys/class/infiniband",), thresholds={"gid_index": -1, "ports": ()}),
    _check("routes", "reachability", "There is a way to every host of the job", "network",
           limit_s=9.0, needs=("/proc/net/route",),
           thresholds={"default": False, "hosts": "", "limit_s": 3.0}),
    _check("stale-handle", "mounts", "No path of the job is a stale handle on this node", "storage",
           limit_s=7.0, thresholds={"paths": (), "deadline_s": 5.0}),
    _check("stranger-load", "processes", "Nobody computes on the node but Slurm's jobs", "node",
           limit_s=6.0, needs=("/proc/stat",),
           thresholds={"cores": 1.0, "system_cores": 2.0, "uid_min": 1000, "user": "", "window_s": 1.0}),
    _check("swap", "memory", "The node does not live from its swap space", "node",
           limit_s=2.0, needs=("/proc/meminfo",),
           thresholds={"used_percent": 25, "used_gb": 1.0, "allowed": True}),
    _check("ulimit", "processes",
           "Limits of memory, files, stack and processes are those a job needs", "config", limit_s=2.0,
           thresholds={"memlock_kib": 16_000, "open_files": 1_000_000, "stack_kib": 8_000,
                       "processes": 1_000_000, "enforce": False}),
    _check("uptime", "clock", "The node has not been booted while the job ran", "node",
           limit_s=2.0, needs=("/proc/uptime",), thresholds={"since_s": 0, "recent_s": 600, "slack_s": 60}),
    _check("versions", "versions", "Kernel, drivers and firmware are those that the site expects", "node",
           limit_s=3.0, needs=("/proc/sys/kernel/osrelease",), thresholds={"expected": {}}),
)
# fmt: on
CHECKS = {check.name: check for check in _TABLE}
"""Every check by its name, in alphabetical order."""


def checks(tier: str = "fast", names: Sequence[str] = ()) -> list[Check]:
    """The checks of a tier and of those before it, or those named. Raises UsageError for a name or tier that there is not."""
    if tier not in TIERS:
        raise UsageError(f"no tier is called {tier}; there are {', '.join(TIERS)}")
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        raise UsageError(f"no check is called {unknown[0]}; there are {', '.join(sorted(CHECKS))}")
    if names:
        return [CHECKS[name] for name in names]
    upto = TIERS[: TIERS.index(tier) + 1]
    return [one for one in CHECKS.values() if one.tier in upto]


def loaded(name: str) -> Check:
    """A check whose file is imported: for whoever asks it in one child process after the other."""
    check = CHECKS[name]
    _functions(check.file, name)
    return check


def strange(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What a settings file names and no check knows, a sentence each. To be told, and no error: the file may be another version's."""
    told = []
    for name, own in settings.items():
        if name in SECTIONS:
            continue
        if name not in CHECKS:
            told.append(f"no check is called {name}{_nearest(name, CHECKS)}")
            continue
        usual = ("enabled", *CHECKS[name].thresholds)
        told += [f"{name} has no setting {word}{_nearest(word, usual)}" for word in own if word not in usual]
    return told


def _nearest(word: str, words: Iterable[str]) -> str:
    import difflib  # not for a prolog, which counts milliseconds

    near = difflib.get_close_matches(word, list(words), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def entry(check: Check) -> dict[str, Any]:
    """A check in words: its row of the table, and the paragraphs of its section in checks.md."""
    texts = _texts()[check.name]
    return {
        **{name: getattr(check, name) for name in ("name", "title", "tier", "fault", "needs", "limit_s")},
        "thresholds": dict(check.thresholds),
        "thinking": _after(texts, "How it thinks."),
        "thresholds_told": _after(texts, "Thresholds:"),
        "formats": _after(texts, "Files:") or _after(texts, "Formats:"),
        "checked_against": _after(texts, "Checked against:"),
    }


@functools.cache
def _texts() -> dict[str, list[str]]:
    """The paragraphs of checks.md by check."""
    import os.path  # not for a prolog
    import re

    spec: Any = __spec__  # a file of the zipapp too, from whichever loader
    text = spec.loader.get_data(os.path.join(os.path.dirname(spec.origin), "checks.md")).decode()
    words = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return {
        name: [" ".join(paragraph.split()) for paragraph in section.split("\n\n")]
        for name, section in zip(words[1::2], words[2::2])
    }


def _after(texts: list[str], word: str) -> str:
    """The paragraph that begins with a word, without it; "" where there is none."""
    return next((text[len(word) :].strip() for text in texts if text.startswith(word)), "")
