"""Laws of the checks of GPUs that look beyond one document: kernel log, processes, fabric, links, versions. (I/O)

Lines of the kernel's log, of `nvidia-smi nvlink` and of /proc/driver/nvidia/version have the form of public reports and of the test
data of imbue's and leptonai's health checks; hosts, processes and numbers are made up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.checks import kernel_log_reader, nvidia, nvidia_driver, nvlink
from ftrun.hooks.checks.catalogue import CHECKS
from ftrun.hooks.checks.nvidia_smi import Answer, understood
from ftrun.hooks.runtime import procfs
from ftrun.hooks.runtime.finding import BAD, DEGRADED, NOTE, OK, SKIPPED, UNKNOWN
from ftrun.hooks.runtime.host import Machine, Output
from tests.unit.checked import severity

DATA = Path(__file__).parents[2] / "data" / "checks"
H100 = (DATA / "nvidia-smi-h100.xml").read_text()
MIG = (DATA / "nvidia-smi-a100-mig.xml").read_text()
DMESG = (DATA / "dmesg-xid.txt").read_text()
LINKS = (DATA / "nvidia-smi-nvlink-s.txt").read_text()
ERRORS = (DATA / "nvidia-smi-nvlink-e.txt").read_text()
BOOTED_S = 1_000_000.0


def answer(text: str = H100, *changes: tuple[str, str]) -> Answer:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return understood(Output(0, text, ""))


def changed(name: str, old: str, new: str) -> tuple[str, str]:
    return f"<{name}>{old}</{name}>", f"<{name}>{new}</{name}>"


@pytest.mark.parametrize("text", ["", "garbage", H100[:3000]])
@pytest.mark.parametrize(
    ("check", "facts"),
    [
        ("gpu-driver", lambda read: nvidia_driver.DriverFacts(read, "")),
        ("gpu-mode", lambda read: read),
        ("gpu-memory", lambda read: read),
        ("gpu-processes", lambda read: nvidia.ProcessesFacts(read, {})),
        ("gpu-fabric", nvlink.FabricFacts),
        ("gpu-nvlink", lambda read: nvlink.NvlinkFacts(read, LINKS, ERRORS)),
    ],
)
def test_an_answer_that_makes_no_sense_is_no_verdict(check: str, facts: Any, text: str) -> None:
    """Whatever else is known, GPUs that cannot be read are unknown."""
    assert UNKNOWN == severity(check, facts(answer(text)))


def log(text: str, now_s: float = BOOTED_S + 9000) -> kernel_log_reader.Log:
    return kernel_log_reader.Log(kernel_log_reader.parsed(text, BOOTED_S), now_s)


def xid(code: str, at: str = "8500.0") -> str:
    return f"[ {at}] NVRM: Xid (PCI:0000:3b:00): {code}\n"


def test_each_device_is_judged_by_its_worst_line_since_the_job_began() -> None:
    """One memory error of three lines is one finding; a clean-up and a fault of a program are notes; old lines are notes."""
    facts = nvidia_driver.XidFacts(log(DMESG))
    found = CHECKS["gpu-xid"].judge(facts, {**CHECKS["gpu-xid"].thresholds, "since_s": BOOTED_S + 7000})
    told = {one.device: one.severity for one in found}

    assert {"0000:05:00.0": NOTE, "0000:1b:00.0": NOTE, "0000:43:00.0": BAD, "0000:9d:00.0": NOTE} == told
    (memory,) = [one for one in found if one.severity == BAD]
    assert "Xid 48, Xid 63, Xid 94 (double-bit memory error)" == memory.message
    assert "An uncorrectable double bit error" in memory.evidence[0]
    assert NOTE == severity("gpu-xid", facts, since_s=BOOTED_S + 8100)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (xid("79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."), BAD),
        (xid("62, pid=1494, 0a71(2cd8) 00000000 00000000"), BAD),
        (
            xid(
                "74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 3(0x10000, 0x0, 0x0)"
            ),
            BAD,
        ),
        (xid("95, pid=4711, name=python3, Uncontained: FBHUB (0x1f, 0x0). RST: Yes, D-RST: No"), BAD),
        (xid("119, pid=4711, name=nvidia-smi, Timeout waiting for RPC from GSP! Expected function 103"), BAD),
        (xid("64, pid='<unknown>', name=<unknown>, Row Remapper Error: (0x00000002eebc4100)"), BAD),
        (xid("140, An uncorrectable ECC error detected (possible firmware handling failure) DRAM:1"), BAD),
        (xid("63, pid='<unknown>', name=<unknown>, Row Remapper: New row"), DEGRADED),
        (xid("92, pid='<unknown>', name=<unknown>, Ch 00000008"), DEGRADED),
        (xid("94, pid=4711, name=python3, Ch 00000008"), DEGRADED),
        (xid("13, pid=4711, name=python3, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0)"), NOTE),
        (xid("43, pid=4711, name=python3, channel 0x0b00000a"), NOTE),
        (xid("199, pid='<unknown>', name=<unknown>"), NOTE),
        (xid("145, RLW_REMAP Fatal XC1 i0 Link 12 (0x00000082 0x00000040)"), BAD),
        (xid("145, pid=4711, name=python3, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2)"), NOTE),
        (xid("154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"), BAD),
        (xid("154, GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (GPU Reset Required)"), BAD),
        (xid("154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"), NOTE),
        ("[ 8500.0] NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.\n", BAD),
        ("[ 8500.0] nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\n", BAD),
        ("<4>[ 8500.000001] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n", BAD),
        ("[ 8500.000001] gpu01 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n", BAD),
        (
            xid("79, GPU has fallen off the bus.", at="12.0"),
            NOTE,
        ),  # two hours and more ago, and no job is meant
        (
            "[ 8500.0] NVRM: Xid (PCI:0000:01:00 GPU-I:05): 95, pid=7194, Uncontained: LTC TAG (0x2,0x0)\n",
            BAD,
        ),  # of a MIG instance
        ("[ 8500.0] NVRM: Xid (0000:03:00): 79, GPU has fallen off the bus.\n", BAD),
        ("[ 8500.0] EXT4-fs (sda1): mounted filesystem\n", OK),
        ("[ 8500.0] NVRM: Xid (PCI:0000:3b:00): \n", OK),
    ],
)
def test_what_a_line_of_the_kernel_means(line: str, expected: str) -> None:
    """The class of the code, or what the line itself says."""
    assert expected == severity("gpu-xid", nvidia_driver.XidFacts(log(line)))


def test_a_log_that_may_not_be_read_proves_nothing() -> None:
    """Skipped, with the kernel's refusal in the message."""
    refused = kernel_log_reader.Log((), 0.0, "dmesg: read kernel buffer failed: Operation not permitted")
    (found,) = CHECKS["gpu-xid"].judge(nvidia_driver.XidFacts(refused), CHECKS["gpu-xid"].thresholds)

    assert (SKIPPED, True) == (found.severity, "Operation not permitted" in found.message)


def test_a_neighbour_s_gpu_is_no_matter_of_the_job() -> None:
    """A device that is listed and not the job's does not count; one that is listed no more does."""
    facts = nvidia_driver.XidFacts(
        log(xid("79, GPU has fallen off the bus.").replace("3b:00", "43:00")), answer().gpus
    )
    gone = nvidia_driver.XidFacts(log(xid("79, GPU has fallen off the bus.")), answer().gpus)

    assert (OK, BAD, BAD) == (
        severity("gpu-xid", facts, devices="0"),
        severity("gpu-xid", facts, devices="1"),
        severity("gpu-xid", gone, devices="0"),
    )


PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Sat Aug 19 01:15:15 UTC 2025\nGCC version:  gcc version 12.2.0\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder@host)  Tue Jan 14\n"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 575.10\n"


@pytest.mark.parametrize(
    ("facts", "thresholds", "expected"),
    [
        (nvidia_driver.DriverFacts(answer(), PROPRIETARY.format("570.86.15")), {}, OK),
        (nvidia_driver.DriverFacts(answer(), OPEN.format("570.86.15")), {}, OK),
        (nvidia_driver.DriverFacts(answer(), ""), {}, OK),
        (nvidia_driver.DriverFacts(answer(), "odd"), {}, OK),
        (nvidia_driver.DriverFacts(answer(), OPEN.format("565.57.01")), {}, BAD),
        (nvidia_driver.DriverFacts(understood(Output(18, MISMATCH, "")), OPEN.format("570.86.15")), {}, BAD),
        (nvidia_driver.DriverFacts(answer(), ""), {"expected": "570.86.15"}, OK),
        (nvidia_driver.DriverFacts(answer(), ""), {"expected": "580.0"}, DEGRADED),
        (nvidia_driver.DriverFacts(answer(), ""), {"minimum": "570.9"}, OK),
        (nvidia_driver.DriverFacts(answer(), ""), {"minimum": "570.100"}, DEGRADED),
        (
            nvidia_driver.DriverFacts(
                answer(H100, changed("vbios_version", "96.00.74.00.01", "96.00.30.00.01")), ""
            ),
            {},
            NOTE,
        ),
    ],
)
def test_gpu_driver(facts: nvidia_driver.DriverFacts, thresholds: dict[str, Any], expected: str) -> None:
    """Module and library of one version, the one that the site wants, and one firmware on equal GPUs."""
    assert expected == severity("gpu-driver", facts, **thresholds)


NO_INSTANCE = (MIG[MIG.index("<mig_device>") : MIG.rindex("</mig_device>") + len("</mig_device>")], "None")


@pytest.mark.parametrize(
    ("text", "changes", "thresholds", "expected"),
    [
        (H100, [], {}, OK),
        (MIG, [], {}, OK),
        (H100, [changed("compute_mode", "Default", "Prohibited")], {}, BAD),
        (H100, [changed("compute_mode", "Default", "Exclusive_Process")], {}, DEGRADED),
        (H100, [changed("compute_mode", "Default", "Exclusive_Process")], {"devices": "0"}, OK),
        (H100, [changed("current_ecc", "Enabled", "Disabled")], {}, DEGRADED),
        (H100, [changed("pending_ecc", "Enabled", "Disabled")], {}, NOTE),
        (H100, [changed("current_mig", "Disabled", "Enabled")], {}, DEGRADED),
        (H100, [changed("persistence_mode", "Enabled", "Disabled")], {}, NOTE),
        (H100, [], {"mig": "Enabled"}, DEGRADED),
        (MIG, [NO_INSTANCE], {}, DEGRADED),
    ],
)
def test_gpu_mode(
    text: str, changes: list[tuple[str, str]], thresholds: dict[str, Any], expected: str
) -> None:
    """A mode is judged by that of the other GPUs, or of the site; a partial allocation by its own devices only."""
    assert expected == severity("gpu-mode", answer(text, *changes), **thresholds)


def process(pid: int, kind: str, name: str, memory: str = "30000 MiB") -> tuple[str, str]:
    told = f"<pid>{pid}</pid><type>{kind}</type><process_name>{name}</process_name><used_memory>{memory}</used_memory>"
    return "<processes>", f"<processes><process_info>{told}</process_info>"


USED = changed("used", "1 MiB", "30000 MiB")


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        (H100, [], OK),
        (MIG, [], OK),
        (H100, [USED], DEGRADED),
        (H100, [USED, process(7, "C", "python3")], OK),
        (H100, [USED, changed("gpu_util", "0 %", "50 %")], OK),
        (H100, [changed("total", "81559 MiB", "76000 MiB")], DEGRADED),
        (H100, [changed("used", "1 MiB", "N/A"), changed("total", "81559 MiB", "N/A")], OK),
    ],
)
def test_gpu_memory(text: str, changes: list[tuple[str, str]], expected: str) -> None:
    """Memory that nobody holds, and memory that is missing."""
    assert expected == severity("gpu-memory", answer(text, *changes))


MINE = procfs.Owner(7, 1000, "42", "R", "python3")
OTHER = procfs.Owner(7, 1001, "41", "R", "python3")
STRAY = procfs.Owner(7, 1001, "", "D", "python3")


@pytest.mark.parametrize(
    ("kind", "name", "owner", "thresholds", "expected"),
    [
        ("C", "python3", MINE, {"job": "42"}, OK),
        ("C", "python3", OTHER, {"job": "42"}, DEGRADED),
        ("C", "python3", OTHER, {"job": "42", "shared": True}, OK),
        ("C", "python3", OTHER, {}, OK),
        ("C", "python3", STRAY, {"job": "42", "shared": True}, DEGRADED),
        ("C", "python3", STRAY, {}, DEGRADED),
        ("C", "python3", STRAY, {"devices": "1"}, OK),
        ("C", "python3", None, {"job": "42"}, NOTE),
        ("G", "/usr/lib/xorg/Xorg", STRAY, {}, OK),
        ("C", "/usr/bin/nvidia-cuda-mps-server", STRAY, {}, OK),
        ("M+C", "python3", OTHER, {"job": "42", "shared": True}, OK),
    ],
)
def test_gpu_processes(
    kind: str, name: str, owner: procfs.Owner | None, thresholds: dict[str, Any], expected: str
) -> None:
    """The job's own are at home, others only where GPUs are shared, and what no job holds is left over."""
    facts = nvidia.ProcessesFacts(answer(H100, process(7, kind, name)), {7: owner})

    assert expected == severity("gpu-processes", facts, **thresholds)


def test_a_process_is_known_by_its_cgroup(tmp_path: Path) -> None:
    """In both hierarchies of cgroups, and none where the files are odd."""
    status = "Name:\tpython3\nState:\tS (sleeping)\nUid:\t1000\t1000\t1000\t1000\n"
    second = "0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_3\n"
    first = "4:memory:/slurm/uid_1000/job_42/step_batch\n"
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/status").write_text(status)
    (tmp_path / "proc/7/cgroup").write_text(second)

    assert procfs.Owner(7, 1000, "42", "S", "python3") == procfs.owner(Machine(str(tmp_path)), 7)
    assert procfs.owner_from(7, status, first) == procfs.owner_from(7, status, second)
    assert procfs.owner(Machine(str(tmp_path)), 8) is None
    assert procfs.owner_from(7, "odd", "") is None


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (nvlink.FabricFacts(answer()), OK),
        (nvlink.FabricFacts(answer(), 4, "inactive"), OK),
        (nvlink.FabricFacts(answer(H100, changed("state", "Completed", "In Progress"))), BAD),
        (nvlink.FabricFacts(answer(H100, changed("status", "Success", "Unknown Error"))), BAD),
        (nvlink.FabricFacts(answer(H100, changed("summary", "N/A", "Healthy"))), OK),
        (nvlink.FabricFacts(answer(H100, changed("summary", "N/A", "Unhealthy"))), BAD),
        (nvlink.FabricFacts(answer(H100, changed("summary", "N/A", "Limited Capacity"))), DEGRADED),
        (nvlink.FabricFacts(answer(MIG)), SKIPPED),
        (nvlink.FabricFacts(answer(MIG), 6, "active"), OK),
        (nvlink.FabricFacts(answer(MIG), 6, "failed"), BAD),
        (nvlink.FabricFacts(answer(MIG), 6, "inactive"), DEGRADED),
        (nvlink.FabricFacts(answer(MIG), 6, "unknown"), NOTE),
    ],
)
def test_gpu_fabric(facts: nvlink.FabricFacts, expected: str) -> None:
    """GPUs that tell are believed; for older ones the manager's service speaks."""
    assert expected == severity("gpu-fabric", facts)


DOWN = ("Link 2: 26.562 GB/s", "Link 2: <inactive>")
ALL_DOWN = "NVML: Unable to retrieve NVLink information as all links are inActive\n"


@pytest.mark.parametrize(
    ("status", "errors", "thresholds", "expected"),
    [
        (LINKS, ERRORS, {}, OK),
        (LINKS, "", {"expected": 4}, OK),
        (LINKS, "", {"expected": 18}, BAD),
        (LINKS.replace(*DOWN, 1), ERRORS, {}, BAD),
        (LINKS.replace(*DOWN, 1), ERRORS, {"devices": "1,2"}, OK),
        (LINKS.replace("Link 2: 26.562", "Link 2: 13.281", 1), "", {}, DEGRADED),
        (LINKS.replace("26.562 GB/s", "<inactive>"), "", {}, SKIPPED),
        (ALL_DOWN, "", {}, SKIPPED),
        ("", "", {}, SKIPPED),
        ("", "", {"expected": 18}, UNKNOWN),
        (LINKS[: LINKS.index("GPU 2") + 40], "", {}, OK),
        (LINKS[: LINKS.index("GPU 2") + 78] + "\n" + ALL_DOWN, "", {}, BAD),
        (LINKS, ERRORS.replace("Recovery Errors: 0", "Recovery Errors: 3", 1), {}, DEGRADED),
        (LINKS, ERRORS.replace("Replay Errors: 0", "Replay Errors: 148", 1), {}, NOTE),
        (LINKS, ERRORS.replace("CRC Errors: 0", "CRC Errors: 6553500", 1), {}, DEGRADED),
        (LINKS, "Link 0: odd", {}, OK),
    ],
)
def test_gpu_nvlink(status: str, errors: str, thresholds: dict[str, Any], expected: str) -> None:
    """As many links as its equals, or as the site says; recoveries count, replays only in great number."""
    assert expected == severity("gpu-nvlink", nvlink.NvlinkFacts(answer(), status, errors), **thresholds)


def test_links_of_a_gpu_with_mig_rest() -> None:
    """A GPU that is cut into instances is not held against its equals."""
    cut = answer(H100, changed("current_mig", "Disabled", "Enabled"))
    status = LINKS.replace("26.562 GB/s", "<inactive>", 4)

    assert OK == severity("gpu-nvlink", nvlink.NvlinkFacts(cut, status, ""))
