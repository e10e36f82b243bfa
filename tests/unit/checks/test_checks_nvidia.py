"""Laws of the checks that read nvidia-smi: what each says of a sound GPU, a sick one, and an answer that makes no sense. (I/O)

The data have the form of `nvidia-smi -q -x` as in Telegraf's public test data (schemas v12 and v13), shortened, with made-up
numbers; the messages of a driver that does not answer are as nvidia-smi's manual and public reports have them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.checks import nvidia_driver, nvidia_smi
from ftrun.hooks.runtime.finding import BAD, DEGRADED, NOTE, OK, SKIPPED, UNKNOWN
from ftrun.hooks.runtime.host import Machine, Output
from tests.unit.checked import probed, severity

DATA = Path(__file__).parents[2] / "data" / "checks"
H100 = (DATA / "nvidia-smi-h100.xml").read_text()
MIG = (DATA / "nvidia-smi-a100-mig.xml").read_text()
READERS = ["gpu-ecc", "gpu-pcie", "gpu-recovery", "gpu-temperature", "gpu-throttle"]


def answer(text: str = H100, *changes: tuple[str, str], code: int = 0, err: str = "") -> nvidia_smi.Answer:
    """What nvidia-smi said, each change made once: in the first GPU."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return nvidia_smi.understood(Output(code, text, err))


def tag(name: str, value: str) -> str:
    """A field of the document."""
    return f"<{name}>{value}</{name}>"


def changed(name: str, old: str, new: str) -> tuple[str, str]:
    """A change of one field."""
    return tag(name, old), tag(name, new)


def event(reason: str) -> tuple[str, str]:
    return changed(f"clocks_event_reason_{reason}", "Not Active", "Active")


@pytest.mark.parametrize("check", READERS)
@pytest.mark.parametrize("text", [H100, MIG], ids=["h100", "a100-mig"])
def test_a_sound_gpu_is_ok(check: str, text: str) -> None:
    """Healthy documents of two generations give ok, and one line."""
    assert OK == severity(check, answer(text))


@pytest.mark.parametrize("check", READERS)
@pytest.mark.parametrize("text", ["", "garbage", H100[: len(H100) // 2], "<nvidia_smi_log></nvidia_smi_log>"])
def test_an_answer_that_makes_no_sense_is_no_verdict(check: str, text: str) -> None:
    """Empty, foreign, cut and empty documents are unknown, whatever the check."""
    assert UNKNOWN == severity(check, answer(text))


@pytest.mark.parametrize("check", READERS)
def test_a_document_of_another_version_is_no_verdict_on_the_node(check: str) -> None:
    """A GPU of which nothing is told but its address is not held to be sick."""
    assert OK == severity(check, answer('<nvidia_smi_log><gpu id="00000000:1B:00.0"></gpu></nvidia_smi_log>'))


WELL = (changed("gpu_util", "0 %", "97 %"), changed("clocks_event_reason_gpu_idle", "Active", "Not Active"))


@pytest.mark.parametrize(
    ("check", "changes", "expected"),
    [
        ("gpu-ecc", [changed("dram_uncorrectable", "0", "3")], BAD),
        ("gpu-ecc", [changed("sram_uncorrectable_parity", "0", "1")], BAD),
        ("gpu-ecc", [changed("remapped_row_failure", "No", "Yes")], BAD),
        ("gpu-ecc", [changed("sram_threshold_exceeded", "No", "Yes")], BAD),
        ("gpu-ecc", [changed("remapped_row_pending", "No", "Yes")], DEGRADED),
        ("gpu-ecc", [changed("pending_retirement", "N/A", "Yes")], DEGRADED),
        ("gpu-ecc", [changed("channel_repair_pending", "No", "Yes")], DEGRADED),
        ("gpu-ecc", [changed("row_remapper_histogram_none", "0 bank(s)", "2 bank(s)")], DEGRADED),
        ("gpu-ecc", [changed("sram_correctable", "0", "10001")], DEGRADED),
        ("gpu-ecc", [changed("dram_correctable", "0", "4096")], OK),
        (
            "gpu-ecc",
            [changed("dram_uncorrectable", "0", "N/A"), changed("dram_uncorrectable", "0", "5")],
            NOTE,
        ),
        ("gpu-throttle", [event("hw_thermal_slowdown"), event("hw_slowdown")], DEGRADED),
        ("gpu-throttle", [event("hw_power_brake_slowdown")], DEGRADED),
        ("gpu-throttle", [event("sw_power_cap"), *WELL], OK),
        ("gpu-throttle", WELL, DEGRADED),
        ("gpu-throttle", [*WELL, changed("sm_clock", "345 MHz", "1755 MHz")], OK),
        ("gpu-throttle", [changed("current_power_limit", "700.00 W", "400.00 W")], NOTE),
        ("gpu-temperature", [changed("gpu_temp_tlimit", "56 C", "-2 C")], DEGRADED),
        ("gpu-temperature", [changed("gpu_temp_tlimit", "56 C", "-8 C")], BAD),
        ("gpu-temperature", [changed("gpu_temp_tlimit", "56 C", "0 C")], NOTE),
        ("gpu-temperature", [changed("memory_temp", "42 C", "107 C")], DEGRADED),
        ("gpu-temperature", [changed("gpu_temp", "31 C", "64 C")], NOTE),
        (
            "gpu-temperature",
            [changed("gpu_temp_tlimit", "56 C", "N/A"), changed("gpu_temp", "31 C", "91 C")],
            DEGRADED,
        ),
        ("gpu-pcie", [changed("current_link_width", "16x", "8x")], DEGRADED),
        ("gpu-pcie", [changed("current_link_gen", "5", "1"), changed("performance_state", "P0", "P8")], OK),
        ("gpu-pcie", [changed("current_link_gen", "5", "1")], DEGRADED),
        ("gpu-pcie", [changed("current_link_gen", "5", "3"), changed("gpu_util", "0 %", "99 %")], DEGRADED),
        ("gpu-pcie", [changed("replay_counter", "0", "123456")], NOTE),
        ("gpu-recovery", [changed("gpu_recovery_action", "None", "GPU Reset Required")], BAD),
        ("gpu-recovery", [changed("gpu_recovery_action", "None", "Node Reboot Required")], BAD),
        ("gpu-recovery", [changed("gpu_recovery_action", "None", "Drain and Reset")], BAD),
        ("gpu-recovery", [changed("gpu_recovery_action", "None", "Reset")], BAD),
        ("gpu-recovery", [changed("gpu_recovery_action", "None", "System Reboot")], BAD),
        ("gpu-recovery", [changed("gpu_recovery_action", "None", "Recover IMEX Domain")], NOTE),
        ("gpu-recovery", [changed("gpu_recovery_action", "None", "Drain P2P")], DEGRADED),
        ("gpu-recovery", [changed("gpu_recovery_action", "None", "Wait And See")], NOTE),
        ("gpu-recovery", [changed("gpu_recovery_action", "None", "N/A")], OK),
    ],
)
def test_what_a_check_of_a_gpu_finds(check: str, changes: list[tuple[str, str]], expected: str) -> None:
    """One field changed, one severity."""
    assert expected == severity(check, answer(H100, *changes))


@pytest.mark.parametrize(
    ("check", "changes", "expected"),
    [
        ("gpu-ecc", [changed("sram_uncorrectable", "0", "0"), changed("dram_uncorrectable", "0", "1")], BAD),
        ("gpu-temperature", [changed("gpu_temp", "27 C", "90 C")], DEGRADED),
        ("gpu-temperature", [changed("gpu_temp", "27 C", "93 C")], BAD),
        ("gpu-temperature", [changed("memory_temp", "44 C", "96 C")], DEGRADED),
        ("gpu-recovery", [changed("reset_required", "No", "Yes")], BAD),
        ("gpu-recovery", [changed("drain_and_reset_recommended", "No", "Yes")], DEGRADED),
    ],
)
def test_what_a_check_finds_in_an_older_document(
    check: str, changes: list[tuple[str, str]], expected: str
) -> None:
    """Fields that newer drivers have renamed are understood under their old names."""
    assert expected == severity(check, answer(MIG, *changes))


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ("", BAD),
        ("0", BAD),
        ("1,2", OK),
        (["2"], OK),
        ("GPU-1111", BAD),
        ("GPU-22222222-0000-4000-8000-000000000000", OK),
        ("43:00.0", OK),
        ("6,7", BAD),  # the node's own numbers, while the job sees its devices only
    ],
)
def test_a_partial_allocation_is_judged_by_its_own_devices(devices: Any, expected: str) -> None:
    """What a neighbour's GPU has does not count; devices that cannot be told apart all count."""
    sick = answer(H100, changed("gpu_recovery_action", "None", "GPU Reset Required"))

    assert expected == severity("gpu-recovery", sick, devices=devices)


def test_a_mig_instance_belongs_to_its_gpu() -> None:
    """Old and new names of instances lead to the GPU that they are cut from."""
    instance = changed("compute_instance_id", "0", "0")
    named = (instance[0], instance[1] + tag("uuid", "MIG-12345678-0000-4000-8000-000000000000"))
    (gpu,) = answer(MIG, named).gpus

    assert (True, 2) == (gpu.has_mig, gpu.mig_instances)
    for token in (gpu.mig_uuids[0], f"MIG-{gpu.uuid}/3/0", gpu.uuid):
        assert [gpu] == nvidia_smi.chosen([gpu], [token])


def test_a_value_that_is_not_known_is_not_zero() -> None:
    """N/A is None, and a unit is not part of a number."""
    gpu = answer(H100).gpus[0]

    assert (None, 31.0, -8.0) == (
        gpu.number("retired_pages/pending_retirement"),
        gpu.number("temperature/gpu_temp"),
        gpu.number("temperature/gpu_temp_max_tlimit_threshold"),
    )
    assert "0000:1b:00.0" == gpu.address


BUS = ("0000:1b:00.0", "0000:43:00.0", "0000:9d:00.0")
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.86\n"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
NO_HANDLE = "Unable to determine the device handle for GPU0000:43:00.0: Unknown Error\n"
LOST = changed("gpu_temp", "31 C", "GPU is lost")


@pytest.mark.parametrize(
    ("facts", "thresholds", "expected"),
    [
        (nvidia_driver.PresenceFacts(answer(), BUS), {}, OK),
        (nvidia_driver.PresenceFacts(answer(), BUS), {"expected": 3}, OK),
        (nvidia_driver.PresenceFacts(answer(), BUS), {"expected": 8}, BAD),
        (nvidia_driver.PresenceFacts(answer(), BUS), {"expected": 8, "devices": "0,1,2"}, OK),
        (nvidia_driver.PresenceFacts(answer(), BUS), {"devices": "0,1,2,3"}, BAD),
        (nvidia_driver.PresenceFacts(answer(MIG), BUS[:1]), {"devices": "MIG-a,MIG-b,MIG-c"}, OK),
        (nvidia_driver.PresenceFacts(answer(), (*BUS, "0000:d1:00.0")), {}, NOTE),
        (nvidia_driver.PresenceFacts(answer(), (*BUS, "0000:d1:00.0"), ("0000:d1:00.0",)), {}, OK),
        (nvidia_driver.PresenceFacts(answer(), (*BUS, "0000:d1:00.0")), {"devices": "0"}, OK),
        (nvidia_driver.PresenceFacts(answer(H100, LOST), BUS), {}, BAD),
        (nvidia_driver.PresenceFacts(answer(H100, LOST), BUS), {"devices": "1"}, OK),
        (nvidia_driver.PresenceFacts(answer(NO_HANDLE, code=255), BUS), {}, BAD),
        (nvidia_driver.PresenceFacts(answer("", code=15), BUS), {}, BAD),
        (nvidia_driver.PresenceFacts(answer(NO_DRIVER, code=9), BUS), {}, BAD),
        (nvidia_driver.PresenceFacts(answer(NO_DRIVER, code=9), ()), {}, SKIPPED),
        (nvidia_driver.PresenceFacts(answer(MISMATCH, code=18), BUS), {}, BAD),
        (nvidia_driver.PresenceFacts(answer("No devices were found\n", code=6), ()), {}, SKIPPED),
        (nvidia_driver.PresenceFacts(answer("No devices were found\n", code=6), BUS), {"expected": 3}, BAD),
        (
            nvidia_driver.PresenceFacts(
                answer("Failed to initialize NVML: Insufficient Permissions\n", code=4), BUS
            ),
            {},
            UNKNOWN,
        ),
        (nvidia_driver.PresenceFacts(answer("", code=0), BUS), {}, UNKNOWN),
        (
            nvidia_driver.PresenceFacts(
                answer(H100, code=14, err="WARNING: infoROM is corrupted at gpu 0000:43:00.0"), BUS
            ),
            {},
            DEGRADED,
        ),
        (nvidia_driver.PresenceFacts(None), {}, SKIPPED),
        (nvidia_driver.PresenceFacts(None, BUS), {}, NOTE),
        (nvidia_driver.PresenceFacts(None), {"expected": 8}, BAD),
        (nvidia_driver.PresenceFacts(None, others={"AMD": 8}), {"expected": 8}, OK),
        (nvidia_driver.PresenceFacts(None, others={"Ascend": 7}), {"expected": 8}, BAD),
    ],
)
def test_gpu_check(facts: nvidia_driver.PresenceFacts, thresholds: dict[str, Any], expected: str) -> None:
    """As many as expected, by whatever maker; a driver that is dead is bad, one that may not be asked is unknown."""
    assert expected == severity("gpu-check", facts, **thresholds)


def test_the_bus_is_read_from_the_kernel(tmp_path: Path) -> None:
    """GPUs of NVIDIA by vendor and class, not its bridges and not other makers' cards; AMD's by their SIMD units."""
    bus = tmp_path / "sys/bus/pci/devices"
    for address, vendor, kind in [
        ("0000:1b:00.0", "0x10de", "0x030200"),
        ("0000:1c:00.0", "0x10de", "0x068000"),
        ("0000:02:00.0", "0x1a03", "0x030000"),
    ]:
        (bus / address).mkdir(parents=True)
        (bus / address / "vendor").write_text(f"{vendor}\n")
        (bus / address / "class").write_text(f"{kind}\n")
    for node, units in (("0", 0), ("1", 1216)):
        folder = tmp_path / "sys/class/kfd/kfd/topology/nodes" / node
        folder.mkdir(parents=True)
        (folder / "properties").write_text(f"cpu_cores_count 0\nsimd_count {units}\nmem_banks_count 1\n")
    facts = probed("gpu-check", Machine(str(tmp_path)))

    assert (("0000:1b:00.0",), {"AMD": 1}) == (facts.on_bus, facts.others)
