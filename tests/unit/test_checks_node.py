"""Laws of the checks of a node itself: errors that the hardware counts, what the kernel says, and what stands in the way of a job. (I/O)

Trees of /proc and /sys are built in the formats of proc(5), of the kernel's documents and of this kernel; numbers and names are made up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks import kernel_log
from ftrun.hooks.checks import edac, hugepages, mce, memory, pcie_aer, swap
from ftrun.hooks.findings import BAD, DEGRADED, NOTE, OK, SKIPPED, UNKNOWN, Check, Finding
from ftrun.hooks.kernel_log import Line, Log
from ftrun.hooks.machine import Machine

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


def told(check: Check, facts: Any, **more: Any) -> list[Finding]:
    found = list(check.judge(facts, {**check.thresholds, **more}))
    for one in found:
        assert check.name == one.check
        assert (one.severity in (BAD, DEGRADED)) == bool(one.fault)
    return found


def severities(check: Check, facts: Any, **more: Any) -> list[str]:
    return [one.severity for one in told(check, facts, **more)]


def tree(root: Path, files: dict[str, str]) -> Machine:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(str(root))


def asked(check: Check, machine: Machine, **more: Any) -> list[Finding]:
    return told(check, check.probe(machine, {**check.thresholds, **more}), **more)


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
    assert [severity] == severities(memory.CHECK, text, expected_gb=expected_gb)


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
    assert [severity] == severities(swap.CHECK, text, allowed=allowed)


@pytest.mark.parametrize(
    ("facts", "more", "expected"),
    [
        (hugepages.Facts(meminfo(huge=8), "always [madvise] never\n"), {}, [OK]),
        (hugepages.Facts(meminfo(huge=8), ""), {}, [OK]),
        (
            hugepages.Facts(meminfo(huge=8), "[always] madvise never"),
            {"expected": 8, "transparent": "always"},
            [OK],
        ),
        (
            hugepages.Facts(meminfo(huge=5), "always [madvise] never"),
            {"expected": 8, "transparent": "always"},
            [DEGRADED, DEGRADED],
        ),
        (hugepages.Facts("", ""), {}, [UNKNOWN]),
    ],
)
def test_huge_pages_are_those_the_site_wants(
    facts: hugepages.Facts, more: dict[str, Any], expected: list[str]
) -> None:
    """Nobody else knows which number is right."""
    assert expected == severities(hugepages.CHECK, facts, **more)


def test_meminfo_is_read_where_it_is(tmp_path: Path) -> None:
    """Three checks read one file."""
    machine = tree(tmp_path, {"/proc/meminfo": meminfo(512)})

    assert [OK] * 3 == [asked(one.CHECK, machine)[0].severity for one in (memory, swap, hugepages)]
    assert 512 == asked(memory.CHECK, machine)[0].value


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
    (found,) = asked(edac.CHECK, machine)

    assert severity == found.severity
    if lost or mended:
        assert "CPU_SrcID#0_MC#0_Chan#1_DIMM#0" == found.device


def test_without_memory_controllers_nothing_is_said(tmp_path: Path) -> None:
    """A virtual machine has none."""
    assert [SKIPPED] == [one.severity for one in asked(edac.CHECK, Machine(str(tmp_path)))]


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
    assert [severity] == severities(mce.CHECK, mce.Facts(interrupts, lines))


def test_the_bank_of_a_machine_check_is_named() -> None:
    """Whoever changes the part needs to know which."""
    (found,) = told(mce.CHECK, mce.Facts("", log(CORRECTED, UNCORRECTED)))

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
    found = asked(pcie_aer.CHECK, machine)

    assert expected == [one.severity for one in found]
    assert all("0000:17:00.0" == one.device for one in found if one.fault)


def test_the_kernel_s_own_lines_are_read_and_no_others() -> None:
    """What programs write into the kernel's log proves nothing."""
    text = (
        "<6>[    0.000000] Linux version 6.1.0\n<3>[  12.500000] ata1: link is slow\n active_file:71\n"
        "<11>[   20.000001] systemd[1]: kernel BUG at nowhere\n<3\n"
    )

    assert [Line(1000.0, "Linux version 6.1.0", 6), Line(1012.5, "ata1: link is slow", 3)] == [
        line for line in kernel_log.parsed(text, 1000.0) if line.at_s
    ]
