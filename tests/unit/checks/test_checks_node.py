"""Laws of the checks of a node itself: errors that the hardware counts, what the kernel says, and what stands in the way of a job. (I/O)

Trees of /proc and /sys are built in the formats of proc(5), of the kernel's documents and of this kernel; numbers and names are made up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.checks import kernel_log_reader, memory
from ftrun.hooks.checks.kernel_log_reader import Line, Log
from ftrun.hooks.runtime.finding import BAD, DEGRADED, NOTE, OK, SKIPPED, UNKNOWN
from ftrun.hooks.runtime.host import Machine
from tests.unit.checked import asked, severities, told, tree

MEMINFO = """\
MemTotal:       {kib} kB
MemFree:        23162296 kB
SwapTotal:      {swap} kB
SwapFree:       {free} kB
HugePages_Total:      {huge}
HugePages_Free:        3
Hugepagesize:       2048 kB
"""


def meminfo(gib: float = 1000, swap: int = 0, free: int = 0, huge: int = 0) -> str:
    return MEMINFO.format(kib=int(gib * 2**20), swap=swap * 2**20, free=free * 2**20, huge=huge)


@pytest.mark.parametrize(
    ("text", "expected_gb", "severity"),
    [
        (meminfo(1000), 0, OK),
        (meminfo(1000), 1024, OK),
        (meminfo(940), 1024, DEGRADED),
        (meminfo(768), 1024, BAD),
        ("MemFree: 3 kB\n", 1024, UNKNOWN),
        ("", 0, UNKNOWN),
        (None, 0, UNKNOWN),
    ],
)
def test_a_node_has_the_memory_it_should_have(text: str | None, expected_gb: float, severity: str) -> None:
    """The kernel keeps a few percent; a module that is missing is much more."""
    assert [severity] == severities("memory", text, expected_gb=expected_gb)


@pytest.mark.parametrize(
    ("text", "allowed", "severity"),
    [
        (meminfo(), False, OK),
        (meminfo(swap=16, free=16), True, OK),
        (meminfo(swap=16, free=14), True, OK),
        (meminfo(swap=16, free=4), True, DEGRADED),
        (meminfo(swap=16, free=16), False, DEGRADED),
        ("odd", True, UNKNOWN),
    ],
)
def test_a_node_does_not_live_from_its_swap(text: str, allowed: bool, severity: str) -> None:
    """The share in use counts."""
    assert [severity] == severities("swap", text, allowed=allowed)


@pytest.mark.parametrize(
    ("facts", "more", "expected"),
    [
        (memory.HugepagesFacts(meminfo(huge=8), "always [madvise] never\n"), {}, [OK]),
        (memory.HugepagesFacts(meminfo(huge=8), ""), {}, [OK]),
        (
            memory.HugepagesFacts(meminfo(huge=8), "[always] madvise never"),
            {"expected": 8, "transparent": "always"},
            [OK],
        ),
        (
            memory.HugepagesFacts(meminfo(huge=5), "always [madvise] never"),
            {"expected": 8, "transparent": "always"},
            [DEGRADED, DEGRADED],
        ),
        (memory.HugepagesFacts("", ""), {}, [UNKNOWN]),
    ],
)
def test_huge_pages_are_those_the_site_wants(
    facts: memory.HugepagesFacts, more: dict[str, Any], expected: list[str]
) -> None:
    """Nobody else knows which number is right."""
    assert expected == severities("hugepages", facts, **more)


def test_meminfo_is_read_where_it_is(tmp_path: Path) -> None:
    """Three checks read one file."""
    machine = tree(tmp_path, {"/proc/meminfo": meminfo(512)})

    assert [OK] * 3 == [asked(one, machine)[0].severity for one in ("memory", "swap", "hugepages")]
    assert 512 == asked("memory", machine)[0].value


@pytest.mark.parametrize(
    ("lost", "mended", "hours", "severity"),
    [
        (0, 0, 100, OK),
        (0, 12, 100, NOTE),
        (0, 900, 1, NOTE),
        (0, 50_000, 100, DEGRADED),
        (0, 50_000, 5000, NOTE),
        (1, 0, 100, BAD),
        (1, 3, 100, BAD),
    ],
)
def test_lost_data_are_bad_and_mended_ones_count_by_their_rate(
    tmp_path: Path, lost: int, mended: int, hours: int, severity: str
) -> None:
    """An uncorrected error is bad, a high rate degraded, and the module is named."""
    mc = "/sys/devices/system/edac/mc/mc0"
    machine = tree(
        tmp_path,
        {
            f"{mc}/ue_count": f"{lost}\n",
            f"{mc}/ce_count": f"{mended}\n",
            f"{mc}/seconds_since_reset": f"{hours * 3600}\n",
            f"{mc}/dimm0/dimm_label": "CPU_SrcID#0_MC#0_Chan#0_DIMM#0\n",
            f"{mc}/dimm0/dimm_ue_count": "0\n",
            f"{mc}/dimm0/dimm_ce_count": "0\n",
            f"{mc}/dimm1/dimm_label": "CPU_SrcID#0_MC#0_Chan#1_DIMM#0\n",
            f"{mc}/dimm1/dimm_ue_count": f"{lost}\n",
            f"{mc}/dimm1/dimm_ce_count": f"{mended}\n",
            "/sys/devices/system/edac/mc/mc1/ce_count": "odd",
        },
    )
    (found,) = asked("edac", machine)

    assert severity == found.severity
    if lost or mended:
        assert "CPU_SrcID#0_MC#0_Chan#1_DIMM#0" == found.device


def test_without_memory_controllers_nothing_is_said(tmp_path: Path) -> None:
    """A virtual machine has none."""
    assert [SKIPPED] == [one.severity for one in asked("edac", Machine(str(tmp_path)))]


# The form of the kernel's own print of a machine check (arch/x86/kernel/cpu/mce); b200... has bit 61 set, 8c00... has not.
UNCORRECTED = "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 4: b200000000070f0f"
CORRECTED = "mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: 8c00004000010090"
INTERRUPTS = "            CPU0       CPU1\n MCE:  {first:>10} {second:>10}   Machine check exceptions\n MCP:        344        344   Machine check polls\n"


NOW_S = 1_795_000_000.0
CLOSED = Log((), NOW_S, "dmesg: read kernel buffer failed: Operation not permitted")


def log(*texts: str, level: int | None = 3, age_s: float = 600.0) -> Log:
    return Log(tuple(Line(NOW_S - age_s, text, level) for text in texts), NOW_S)


@pytest.mark.parametrize(
    ("interrupts", "lines", "severity"),
    [
        (INTERRUPTS.format(first=0, second=0), log(), OK),
        (INTERRUPTS.format(first=0, second=0), CLOSED, OK),
        (INTERRUPTS.format(first=1, second=1), CLOSED, BAD),
        (INTERRUPTS.format(first=0, second=0), log(UNCORRECTED), BAD),
        ("", log(CORRECTED, CORRECTED), NOTE),
        ("", log("mce: [Hardware Error]: Machine check events logged"), OK),
        (" 1: 0 IO-APIC\n", CLOSED, SKIPPED),
    ],
)
def test_a_machine_check_is_the_processor_s_own_word(interrupts: str, lines: Log, severity: str) -> None:
    """Uncorrected is bad, corrected a note; where nothing tells, nothing is judged."""
    assert [severity] == severities("mce", memory.MceFacts(interrupts, lines))


def test_the_bank_of_a_machine_check_is_named() -> None:
    """Whoever changes the part needs to know which."""
    (found,) = told("mce", memory.MceFacts("", log(CORRECTED, UNCORRECTED)))

    assert ("CPU 3 bank 4", (UNCORRECTED,)) == (found.device, found.evidence)


@pytest.mark.parametrize(
    ("files", "hours", "expected"),
    [
        ({"correctable": "RxErr 0\nBadTLP 0\nTOTAL_ERR_COR 0\n"}, 100, [OK]),
        ({"correctable": "RxErr 5\nBadTLP 0\nTOTAL_ERR_COR 5\n"}, 100, [NOTE]),
        ({"correctable": "Receiver Error 500000\nTOTAL_ERR_COR 500000\n"}, 100, [DEGRADED]),
        ({"correctable": "NonFatalErr 500000\nTOTAL_ERR_COR 500000\n"}, 100, [OK]),
        ({"fatal": "DLP 1\nTOTAL_ERR_FATAL 1\n"}, 100, [BAD]),
        ({"nonfatal": "CmpltTO 2\nTOTAL_ERR_NONFATAL 2\n"}, 100, [DEGRADED]),
        ({"nonfatal": "UnsupReq 1\nTOTAL_ERR_NONFATAL 1\n"}, 100, [OK]),
        ({"fatal": "odd\n\nTLP x\n"}, 100, [OK]),
        ({}, 100, [SKIPPED]),
    ],
)
def test_links_that_lost_data_are_told(
    tmp_path: Path, files: dict[str, str], hours: int, expected: list[str]
) -> None:
    """Fatal is bad, non-fatal degraded, corrected ones by their rate."""
    texts = {f"/sys/bus/pci/devices/0000:17:00.0/aer_dev_{kind}": text for kind, text in files.items()}
    machine = tree(tmp_path, {"/proc/uptime": f"{hours * 3600}.25 1.0\n", **texts})
    found = asked("pcie-aer", machine)

    assert expected == [one.severity for one in found]
    assert all("0000:17:00.0" == one.device for one in found if one.fault)


def test_the_kernel_s_own_lines_are_read_and_no_others() -> None:
    """What programs write into the kernel's log proves nothing."""
    text = (
        "<6>[    0.000000] Linux version 6.1.0\n<3>[  12.500000] ata1: link is slow\n active_file:71\n"
        "<11>[   20.000001] systemd[1]: kernel BUG at nowhere\n<3\n"
    )

    assert [Line(1000.0, "Linux version 6.1.0", 6), Line(1012.5, "ata1: link is slow", 3)] == [
        line for line in kernel_log_reader.parsed(text, 1000.0) if line.at_s
    ]


def pci(root: Path, address: str, files: dict[str, str], port: dict[str, str] | None = None) -> Machine:
    """A device on a port, in the tree of the bus, with the link that the kernel makes to it."""
    place = root / "sys/devices/pci0000:00/0000:00:01.0" / address
    place.mkdir(parents=True)
    for folder, texts in ((place, files), (place.parent, port or {})):
        for name, text in texts.items():
            (folder / name).write_text(f"{text}\n")
    links = root / "sys/bus/pci/devices"
    links.mkdir(parents=True, exist_ok=True)
    (links / address).symlink_to(place)
    return Machine(str(root))


def link(
    lanes: str = "16",
    most: str = "16",
    speed: str = "32.0 GT/s PCIe",
    fastest: str = "32.0 GT/s PCIe",
    kind: str = "0x020700",
) -> dict[str, str]:
    return {
        "class": kind, "vendor": "0x15b3", "current_link_width": lanes, "max_link_width": most, "current_link_speed": speed, "max_link_speed": fastest,
    }  # fmt: skip


WIDE = {"max_link_width": "16", "max_link_speed": "32.0 GT/s PCIe"}


@pytest.mark.parametrize(
    ("device", "port", "more", "severity"),
    [
        (link(), WIDE, {}, OK),
        (link(lanes="8"), WIDE, {}, DEGRADED),
        (link(lanes="8"), {**WIDE, "max_link_width": "8"}, {}, OK),
        (link(speed="16.0 GT/s PCIe"), WIDE, {}, DEGRADED),
        (link(speed="16.0 GT/s PCIe"), {**WIDE, "max_link_speed": "16.0 GT/s PCIe"}, {}, OK),
        (link(speed="8 GT/s", fastest="8 GT/s"), {}, {}, OK),
        (link(speed="Unknown speed"), WIDE, {}, OK),
        (link(speed="2.5 GT/s PCIe", kind="0x120000"), WIDE, {}, OK),
        (link(lanes="8", kind="0x120000"), WIDE, {}, DEGRADED),
        (link(lanes="8"), WIDE, {"allow": ["0000:01:00.0"]}, SKIPPED),
        (link(lanes="8"), WIDE, {"addresses": ["0000:02:00.0"]}, SKIPPED),
        ({**link(lanes="8", kind="0x030200"), "vendor": "0x10de"}, WIDE, {}, SKIPPED),
        (link(lanes="0"), WIDE, {}, SKIPPED),
        (link(lanes="63"), WIDE, {}, SKIPPED),
        (link(lanes="8", kind="0x060400"), WIDE, {}, SKIPPED),
        ({"class": "0x020700"}, {}, {}, SKIPPED),
    ],
)
def test_a_card_has_all_the_lanes_that_both_ends_have(
    tmp_path: Path, device: dict[str, str], port: dict[str, str], more: dict[str, Any], severity: str
) -> None:
    """Half of the lanes is half of the pace; a slot that has no more is no fault, and an idle accelerator rests."""
    machine = pci(tmp_path, "0000:01:00.0", device, port)

    assert [severity] == [one.severity for one in asked("pcie-link", machine, **more)]


GIB = 1 << 30
LEFT_OVER = {
    "status": "Name:\tpython3\nState:\tS (sleeping)\nUid:\t2000\t2000\t2000\t2000\n",
    "cgroup": "0::/system.slice/ssh.service\n",
}
OF_JOB = {**LEFT_OVER, "cgroup": "0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0\n"}


@pytest.mark.parametrize(
    ("used_gib", "process", "more", "expected"),
    [
        (0, None, {}, [OK]),
        (40, None, {}, [DEGRADED]),
        (40, OF_JOB, {"job": "77"}, [NOTE]),
        (40, OF_JOB, {"job": "78"}, [DEGRADED, DEGRADED]),
        (40, OF_JOB, {"job": "78", "shared": True}, [NOTE]),
        (0, LEFT_OVER, {"job": "77"}, [DEGRADED]),
        (0, LEFT_OVER, {}, [DEGRADED]),
        (40, None, {"devices": "1"}, [OK]),
    ],
)
def test_memory_of_amd_gpus_is_free_before_the_job(
    tmp_path: Path, used_gib: int, process: dict[str, str] | None, more: dict[str, Any], expected: list[str]
) -> None:
    """What a process left behind is told with the process."""
    files = {
        "/sys/class/drm/card0/device/vendor": "0x1a03\n",
        "/sys/class/drm/card1/device/vendor": "0x1002\n",
        "/sys/class/drm/card1/device/mem_info_vram_used": f"{used_gib * GIB}\n",
        "/sys/class/drm/card1/device/mem_info_vram_total": f"{192 * GIB}\n",
        "/sys/class/drm/card2/device/vendor": "0x1002\n",
        "/sys/class/drm/card2/device/mem_info_vram_used": "300000000\n",
        "/sys/class/drm/card2/device/mem_info_vram_total": f"{192 * GIB}\n",
        "/sys/class/kfd/kfd/topology/generation_id": "2\n",
    }
    if process:
        files["/sys/class/kfd/kfd/proc/4711/pasid"] = "32769\n"
        files |= {f"/proc/4711/{name}": text for name, text in process.items()}

    assert expected == [one.severity for one in asked("amd-memory", tree(tmp_path, files), **more)]


def test_without_amd_gpus_nothing_is_said(tmp_path: Path) -> None:
    """Neither of memory nor of processes."""
    assert [SKIPPED] == [one.severity for one in asked("amd-memory", Machine(str(tmp_path)))]
