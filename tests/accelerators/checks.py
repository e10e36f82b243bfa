"""Cases of node checks: on a healthy device, and with harm that is safe. (I/O)"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from ftrun.hooks.checks import catalogue, nvidia_smi
from ftrun.hooks.runtime.finding import BAD, DEGRADED, OK, SKIPPED, UNKNOWN, Finding
from tests.accelerators.cases import Case
from tests.accelerators.here import Here, Seen

GPU_CHECKS = tuple(name for name in catalogue.CHECKS if name.startswith("gpu-"))
LOAD_S = 8.0
OTHER_VERSION = """
int nvmlInit_v2(void) { return 18; }
int nvmlInit(void) { return 18; }
int nvmlInitWithFlags(unsigned flags) { return 18; }
const char *nvmlErrorString(int code) { return "Driver/library version mismatch"; }
int nvmlSystemGetNVMLVersion(char *text, unsigned length) { text[0] = '1'; text[1] = 0; return 0; }
"""
"""A library of another version than the driver, as far as its users see: NVML_ERROR_LIB_RM_VERSION_MISMATCH is 18."""


def _told(found: dict[str, Finding], *severities: str) -> str:
    rows = [
        f"{one.check} {one.severity}: {one.message}" for one in found.values() if one.severity in severities
    ]
    return "; ".join(rows)


def healthy(here: Here) -> Seen:
    """All GPU checks on a device that nobody uses."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = time.monotonic()
    found = here.checks(*GPU_CHECKS)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    against = _told(found, BAD, DEGRADED)
    cost = f"{time.monotonic() - began_s:.1f} s, {cpu_s:.1f} s of processor time"
    return Seen(f"{against or 'no finding'} ({cost})", not against)


def answered(here: Here) -> Seen:
    """Each GPU check could judge."""
    found = here.checks(*GPU_CHECKS)
    skipped = [one.check for one in found.values() if one.severity == SKIPPED]
    unknown = _told(found, UNKNOWN)
    return Seen(f"{unknown or 'all judged'}; skipped: {', '.join(skipped) or 'none'}", not unknown)


def whole_node(here: Here) -> Seen:
    """All fast checks of the node, in time."""
    began_s = time.monotonic()
    found = here.checks()
    took_s = time.monotonic() - began_s
    return Seen(f"{took_s:.1f} s; {_told(found, BAD, DEGRADED, UNKNOWN) or 'no finding'}", took_s < 17)


def strangers_memory(here: Here) -> Seen:
    """Memory held by a process of no job."""
    with here.beside("hold", "3000") as pid:
        found = here.checks("gpu-processes", "gpu-memory")
    by_process = found["gpu-processes"].severity == DEGRADED and str(pid) in found["gpu-processes"].message
    return Seen(
        _told(found, BAD, DEGRADED) or "nothing", by_process or found["gpu-memory"].severity == DEGRADED
    )


def busy(here: Here) -> Seen:
    """A process computes: its checks for others are not misled by a device at work."""
    with here.beside("hold", "500", "busy"):
        time.sleep(LOAD_S)
        used = here.ask_smi().gpus[0]
        found = here.checks("gpu-pcie", "gpu-throttle", "gpu-temperature", "gpu-processes", "gpu-ecc")
    false = [
        one.message
        for one in found.values()
        if (one.severity == BAD) or (one.check == "gpu-pcie" and one.severity == DEGRADED)
    ]
    text = f"at {used.word('utilization/gpu_util')}, {used.word('clocks/sm_clock')}; {_told(found, BAD, DEGRADED) or 'nothing'}"
    return Seen(text, used.is_busy and found["gpu-processes"].severity == DEGRADED and not false)


def full(here: Here) -> Seen:
    """All memory held."""
    free = int(here.gpus[0].number("fb_memory_usage/free") or 0)
    with here.beside("hold", str(free - 1500)):
        now = here.ask_smi().gpus[0]
        found = here.checks("gpu-processes", "gpu-memory")
    text = f"{now.word('fb_memory_usage/used')} of {now.word('fb_memory_usage/total')}; {_told(found, BAD, DEGRADED) or 'nothing'}"
    return Seen(text, DEGRADED in {one.severity for one in found.values()})


def ecc(here: Here) -> Seen:
    """The counters are read, where the product has them."""
    gpu = here.gpus[0]
    counted = {
        name: gpu.number(name)
        for name in gpu.facts
        if "uncorrectable" in name and gpu.number(name) is not None
    }
    mode = gpu.word("ecc_mode/current_ecc")
    found = here.checks("gpu-ecc")["gpu-ecc"]
    known = any(path.rsplit("/", 1)[-1].startswith(("sram", "dram")) for path in counted)
    return Seen(f"ECC {mode or 'N/A'}, {len(counted)} counters; {found.message}", known or mode != "Enabled")


def mig(here: Here) -> Seen:
    """Whatever MIG is, it is left as it is."""
    before = [gpu.word("mig_mode/current_mig") for gpu in here.ask_smi().gpus]
    found = here.checks("gpu-mode")["gpu-mode"]
    after = [gpu.word("mig_mode/current_mig") for gpu in here.ask_smi().gpus]
    return Seen(
        f"{before} then {after}; {found.severity}: {found.message}", before == after and found.severity != BAD
    )


@contextlib.contextmanager
def _other_library(here: Here) -> Iterator[str]:
    """A folder with a libnvidia-ml.so.1 of another version."""
    compiler = next((tool for tool in ("cc", "gcc", "clang") if shutil.which(tool)), "")
    assert compiler, "no C compiler here: no library of another version can be made"
    folder = here.folder / "library"
    folder.mkdir(exist_ok=True)
    source = folder / "other.c"
    source.write_text(OTHER_VERSION)
    library = str(folder / "libnvidia-ml.so.1")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, str(source)], check=True, timeout=60)
    try:
        yield str(folder)
    finally:
        os.unlink(library)


def wrong_library(here: Here) -> Seen:
    """Another NVML is found before the driver's own."""
    with _other_library(here) as folder:
        found = here.checks("gpu-driver", "gpu-check", env={"LD_LIBRARY_PATH": folder})
    return Seen(_told(found, BAD, DEGRADED, UNKNOWN, OK), found["gpu-driver"].severity == BAD)


def one_too_few(here: Here) -> Seen:
    """One GPU more is expected than there is."""
    wanted = len(here.gpus) + 1
    found = here.checks("gpu-check", settings={"gpu-check": {"expected": wanted}})["gpu-check"]
    return Seen(f"{found.severity}: {found.message}", found.severity == BAD)


def kernel_log(here: Here) -> Seen:
    """The kernel's log is read, or it is said why not."""
    found = here.checks("gpu-xid")["gpu-xid"]
    return Seen(f"{found.severity}: {found.message}", found.severity in (OK, SKIPPED))


def chosen_devices(here: Here) -> Seen:
    """A job's devices by index, UUID and PCI address are the same GPU."""
    gpu, gpus = here.gpus[0], here.gpus
    names = ("0", gpu.uuid, gpu.uuid[:12], gpu.address)
    wrong = [name for name in names if nvidia_smi.chosen(gpus, [name])[:1] != [gpu]]
    told = here.program("properties").facts()
    uuid, total = str(told["uuid"]), gpu.number("fb_memory_usage/total") or 0
    same = (not uuid or uuid.lower() in gpu.uuid.lower()) and told["total_mib"] <= total
    text = f"torch: {uuid or 'no uuid'}, {told['total_mib']} MiB; nvidia-smi: {gpu.uuid}, {total:.0f} MiB"
    return Seen(text + (f"; not found: {wrong}" if wrong else ""), not wrong and same)


def silent_tool(here: Here) -> Seen:
    """nvidia-smi does not end: no node is condemned for that, and the checks end in time."""
    folder = here.folder / "tools"
    folder.mkdir(exist_ok=True)
    tool = Path(folder, "nvidia-smi")
    tool.write_text("#!/bin/sh\nexec sleep 600\n")
    tool.chmod(0o755)
    began_s = time.monotonic()
    found = here.checks("gpu-check", "gpu-ecc", "gpu-driver", env={"PATH": f"{folder}:{os.environ['PATH']}"})
    took_s = time.monotonic() - began_s
    kinds = {one.severity for one in found.values()}
    return Seen(f"{took_s:.0f} s, {', '.join(sorted(kinds))}", kinds == {UNKNOWN} and took_s < 20)


# fmt: off
CASES = [
    Case("checks", "healthy", "no check finds anything on an idle device", healthy, ("smi",)),
    Case("checks", "answered", "each GPU check can judge: none is unknown", answered, ("smi",)),
    Case("checks", "whole-node", "all fast checks of the node end within 17 s", whole_node),
    Case("checks", "strangers-memory", "gpu-processes (or gpu-memory, where processes cannot be seen) is degraded", strangers_memory, ("device",)),
    Case("checks", "busy", "gpu-processes names the stranger; nothing else is found", busy, ("device",)),
    Case("checks", "full", "gpu-processes or gpu-memory is degraded", full, ("device",)),
    Case("checks", "ecc", "counters are read where ECC is on", ecc, ("smi",)),
    Case("checks", "mig", "MIG is as before", mig, ("smi",)),
    Case("checks", "wrong-library", "gpu-driver is bad: module and library differ", wrong_library, ("smi",)),
    Case("checks", "one-too-few", "gpu-check is bad", one_too_few, ("smi",)),
    Case("checks", "kernel-log", "gpu-xid is ok, or skipped with the reason", kernel_log, ("smi",)),
    Case("checks", "chosen-devices", "index, UUID and PCI address name one GPU; torch tells the same", chosen_devices, ("device",)),
    Case("checks", "silent-tool", "unknown, within 20 s", silent_tool, limit_s=25.0),
]
# fmt: on
