"""Laws of the checks of other accelerators and of DCGM: AMD GPUs, Ascend NPUs, NVIDIA's own watch. (I/O)

The trees and tables have the form of the kernel's amdgpu documentation, of amd-smi's JSON since ROCm 7, of `npu-smi info` 23 to 25 and of
950 chips in public reports, of Huawei's command reference, and of the tables that DCGM's own tests expect; numbers are made up.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.checks import amd, npu
from ftrun.hooks.checks.catalogue import CHECKS
from ftrun.hooks.runtime.finding import BAD, DEGRADED, NOTE, OK, SKIPPED, UNKNOWN
from ftrun.hooks.runtime.host import Machine, Output
from tests.unit.checked import probed, severity

DATA = Path(__file__).parents[2] / "data" / "checks"
FAILURE = (DATA / "dcgmi-health-failure.txt").read_text()
TABLE = (DATA / "npu-smi-910b.txt").read_text()
NEW_TABLE = (DATA / "npu-smi-950.txt").read_text()
ECC = (DATA / "npu-smi-ecc.txt").read_text()
METRIC = (DATA / "amd-smi-metric.json").read_text()


SOUND = {
    "vendor": "0x1002", "ras/umc_err_count": "ue: 0\nce: 3", "ras/gfx_err_count": "ue: 0\nce: 0",
    "ras/gpu_vram_bad_pages": "", "hwmon/hwmon3/temp1_input": "41000", "hwmon/hwmon3/temp1_label": "edge",
    "hwmon/hwmon3/temp2_input": "44000", "hwmon/hwmon3/temp2_label": "junction",
    "hwmon/hwmon3/temp2_crit": "100000",
}  # fmt: skip


def cards(root: Path, *changes: dict[str, str]) -> amd.GpuFacts:
    for number, change in enumerate(changes):
        for name, text in {**SOUND, **change}.items():
            path = root / f"sys/class/drm/card{number}/device" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
    (root / "sys/class/drm/renderD128").mkdir(parents=True, exist_ok=True)
    (root / "sys/class/drm/card0-DP-1").mkdir(parents=True, exist_ok=True)
    return amd.probe_gpu(Machine(str(root)), CHECKS["amd-gpu"].thresholds)


PAGES = "0x027f5d43 : 0x00001000 : R\n0x027f5d4b : 0x00001000 : {}"


@pytest.mark.parametrize(
    ("change", "thresholds", "expected"),
    [
        ({}, {}, OK),
        ({}, {"expected": 2}, OK),
        ({}, {"expected": 8}, BAD),
        ({"vendor": "0x10de"}, {"expected": 2}, BAD),
        ({"ras/umc_err_count": "ue: 1\nce: 3"}, {}, BAD),
        ({"ras/umc_err_count": "ue: 1\nce: 3"}, {"devices": "0"}, OK),
        ({"ras/umc_err_count": "ue: 1\nce: 3"}, {"devices": "1"}, BAD),
        ({"ras/umc_err_count": "ue: 0\nce: 30000"}, {}, NOTE),
        ({"ras/umc_err_count": "odd"}, {}, OK),
        ({"ras/gpu_vram_bad_pages": PAGES.format("R")}, {}, OK),
        ({"ras/gpu_vram_bad_pages": PAGES.format("P")}, {}, DEGRADED),
        ({"ras/gpu_vram_bad_pages": PAGES.format("F")}, {}, BAD),
        ({"hwmon/hwmon3/temp2_input": "100000"}, {}, DEGRADED),
        ({"hwmon/hwmon3/temp2_input": "97000"}, {"margin_c": 5}, DEGRADED),
        ({"hwmon/hwmon3/temp2_input": "odd"}, {}, OK),
    ],
)
def test_amd_gpu(tmp_path: Path, change: dict[str, str], thresholds: dict[str, Any], expected: str) -> None:
    """Errors by block, bad pages and heat of each card; other makers' cards and displays are none."""
    assert expected == severity("amd-gpu", cards(tmp_path, {}, change), **thresholds)


def test_no_amd_gpu_is_skipped(tmp_path: Path) -> None:
    """Unless the site expects one."""
    facts = probed("amd-gpu", Machine(str(tmp_path)))

    assert (SKIPPED, BAD) == (severity("amd-gpu", facts), severity("amd-gpu", facts, expected=8))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (METRIC, {}),
        (METRIC.replace("UNTHROTTLED", "THROTTLED", 1), {0: "THROTTLED"}),
        (
            json.dumps(json.loads(METRIC)["gpu_data"]).replace("UNTHROTTLED", "THROTTLED"),
            {0: "THROTTLED", 1: "THROTTLED"},
        ),
        (METRIC.replace('"UNTHROTTLED"', '"N/A"'), {}),
        (METRIC[:300], {}),
        ("", {}),
        ("7", {}),
        ('{"gpu_data": ["odd", {"power": 3}]}', {}),
        ("ERROR: amdgpu not found in modules", {}),
    ],
)
def test_throttling_is_read_in_both_forms_of_amd_smi(text: str, expected: dict[int, str]) -> None:
    """A list up to ROCm 6, an object since; what is neither says nothing."""
    assert expected == amd.throttled(text)


def test_a_throttled_card_is_degraded(tmp_path: Path) -> None:
    """By its number, which is its place."""
    facts = cards(tmp_path, {}, {})._replace(metric=METRIC.replace("UNTHROTTLED", "THROTTLED", 1))
    (found,) = CHECKS["amd-gpu"].judge(facts, CHECKS["amd-gpu"].thresholds)

    assert (DEGRADED, "card0") == (found.severity, found.device)


def health(word: str) -> str:
    return TABLE.replace("| OK            | 101.8", f"| {word:<13} | 101.8")


def error_codes(*told: str) -> dict[int, str]:
    return {
        0: f"NPU ID                         : 0\nHealth Status                  : Alarm\nError Code                     : {' '.join(told)}\n"
    }


@pytest.mark.parametrize(
    ("facts", "thresholds", "expected"),
    [
        (npu.NpuFacts(TABLE), {}, OK),
        (npu.NpuFacts(TABLE, {0: ECC, 1: ECC}), {"expected": 2}, OK),
        (npu.NpuFacts(TABLE), {"expected": 8}, BAD),
        (npu.NpuFacts(health("Warning")), {}, NOTE),
        (npu.NpuFacts(health("Alarm")), {}, DEGRADED),
        (npu.NpuFacts(health("Critical")), {}, BAD),
        (npu.NpuFacts(health("UNKNOWN")), {}, UNKNOWN),
        (npu.NpuFacts(health("Critical")), {"devices": "1"}, OK),
        (npu.NpuFacts(health("Alarm"), {}, error_codes("A4025021", "8C084E00")), {}, DEGRADED),
        (npu.NpuFacts(health("Alarm"), {}, error_codes("0x80E18402")), {}, BAD),
        (npu.NpuFacts(health("Warning"), {}, error_codes("80c98000", "80fa4e00")), {}, BAD),
        (npu.NpuFacts(NEW_TABLE), {}, DEGRADED),
        (
            npu.NpuFacts(
                TABLE,
                {
                    0: ECC.replace(
                        "HBM Double Bit Error Count               : 0", "HBM Double Bit Error Count : 1"
                    )
                },
            ),
            {},
            BAD,
        ),
        (npu.NpuFacts(TABLE.replace("101.8       43 ", "101.8       97 ")), {}, DEGRADED),
        (npu.NpuFacts(TABLE, link={0: "link status: UP\n", 1: "link status: DOWN\n"}), {}, DEGRADED),
        (npu.NpuFacts(TABLE, link={0: "link status: UP\n", 1: "link status: DOWN\n"}), {"devices": "0"}, OK),
        (npu.NpuFacts(TABLE, link={0: "link status: DOWN\n", 1: "link status: DOWN\n"}), {}, OK),
        (npu.NpuFacts(TABLE, link={0: "", 1: "not permitted"}), {}, OK),
        (npu.NpuFacts("dcmi module initialize failed. ret is -8005\n"), {}, BAD),
        (npu.NpuFacts(""), {}, UNKNOWN),
        (npu.NpuFacts("odd\n"), {}, UNKNOWN),
        (npu.NpuFacts(TABLE[:500]), {}, UNKNOWN),
        (npu.NpuFacts("", is_installed=False), {}, SKIPPED),
        (npu.NpuFacts("", is_installed=False), {"expected": 8}, BAD),
    ],
)
def test_npu(facts: npu.NpuFacts, thresholds: dict[str, Any], expected: str) -> None:
    """The word of the driver, its codes, double-bit errors, heat and links; an aggregate of former errors is none."""
    assert expected == severity("npu", facts, **thresholds)


def test_chips_are_read_in_both_forms_of_the_table() -> None:
    """With and without a bar between number and name."""
    assert [npu.Chip(0, "910B3", "OK", 43), npu.Chip(1, "910B3", "OK", 39)] == npu.chips(TABLE)
    assert [npu.Chip(0, "Ascend950PR", "Alarm", 41)] == npu.chips(NEW_TABLE)


HEALTHY = (
    "".join(FAILURE.splitlines(keepends=True)[:3])
    + "| Overall Health            | Healthy                          |\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEALTHY, OK),
        (FAILURE, BAD),
        (FAILURE.replace("Failure", "Warning"), DEGRADED),
        (HEALTHY.replace("Healthy", "Failure"), BAD),
        (HEALTHY.replace("Healthy", "Internal error"), UNKNOWN),
        ("Error: Health watches not enabled. Please enable watches. \n", SKIPPED),
        ("Error: Unable to connect to host engine. Host engine is not running.\n", SKIPPED),
        ("Error: Unable to check health watches. Return: The Group is not found\n", SKIPPED),
        ("", UNKNOWN),
        (FAILURE[:200], UNKNOWN),
    ],
)
def test_dcgm(text: str, expected: str) -> None:
    """Failure is bad, Warning degraded; where nobody watches nothing is known."""
    assert expected == severity("dcgm", Output(0, text, ""))


def test_dcgm_names_device_and_cause() -> None:
    """Each device once, with all that was told of it."""
    first, second = CHECKS["dcgm"].judge(Output(0, FAILURE, ""), CHECKS["dcgm"].thresholds)

    assert (DEGRADED, "GPU 0", BAD, "GPU 5") == (first.severity, first.device, second.severity, second.device)
    assert ("Memory system: Failure", "A double-bit ECC error was found on GPU 5.") == second.evidence
