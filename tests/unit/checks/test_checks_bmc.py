"""Laws of asking a board's own controller: what it logged, since when, and whether its node has power. (I/O)

tests/data/checks/ipmitool-sel-list.txt: printed by ipmitool 1.8.19 from records of every kind, read beside a controller simulated by OpenIPMI's ipmi_sim; other lines
follow what 1.8.18 and boards of Supermicro, Dell and Intel print in public logs. Names and numbers are made up.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.checks import bmc
from ftrun.hooks.runtime.finding import BAD, DEGRADED, NOTE, OK, SEVERITIES, SKIPPED, UNKNOWN, Finding
from ftrun.hooks.runtime.host import Machine, NoAnswer
from tests.unit import checked

SEL = (Path(__file__).parents[2] / "data" / "checks" / "ipmitool-sel-list.txt").read_text()
NOW_S = 1_795_255_000.0  # 2026-11-21 09:50 UTC: all events of the file are of the last two hours
EMPTY = "SEL has no entries\n"


def told(log: str, *, power: str = "", now_s: float = NOW_S, **more: Any) -> list[Finding]:
    return checked.told("bmc", bmc.BmcFacts(log, power, now_s), **more)


def worst_by_sensor(found: list[Finding]) -> dict[str, str]:
    worst: dict[str, str] = {}
    for one in found:
        worst[one.device] = max(worst.get(one.device, OK), one.severity, key=SEVERITIES.index)
    return worst


def test_every_kind_of_event_has_its_weight() -> None:
    """What the controller saw break is bad, what it saw suffer degraded, the rest a note or nothing."""
    assert {
        "Memory #0x53": BAD,
        "Power Supply #0x64": NOTE,  # it lost its power and got it back
        "Power Supply #0x65": DEGRADED,
        "Power Unit #0x02": NOTE,
        "Processor #0x2f": BAD,
        "Critical Interrupt #0x18": BAD,
        "Temperature #0x04": DEGRADED,
        "Fan #0x30": DEGRADED,
        "Drive Slot / Bay #0x60": DEGRADED,
        "Event Logging Disabled #0x09": NOTE,
        "Watchdog2 #0x03": DEGRADED,
        "OS Critical Stop #0x0c": DEGRADED,
        "Chip Set #0x18": BAD,
        "Voltage #0x19": DEGRADED,
    } == worst_by_sensor(told(SEL))


def test_what_was_before_the_job_is_a_note() -> None:
    """A part may have been changed since; so are events without a sensible time."""
    assert {NOTE} == {one.severity for one in told(SEL, now_s=NOW_S + 10 * 86_400)}
    assert {NOTE} == {one.severity for one in told(SEL, since_s=NOW_S)}
    line = "   1 |  Pre-Init  |0000023425| Memory #0x53 | Uncorrectable ECC | Asserted\n"
    assert [NOTE] == [one.severity for one in told(line)]


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        (" 2cd | 11/21/2026 | 09:00:27 | Memory Mmry ECC Sensor | Uncorrectable ECC | Asserted", BAD),
        ("  34 | 11/21/2026 | 09:20:09 | Memory #0x02 | Uncorrectable ECC (UnCorrectable ECC |  DIMMD7) | Asserted", BAD),
        ("   4 | 11/21/26 | 09:02:11 AM UTC | Processor CPU1 Status | IERR | Asserted", BAD),
        ("   5 | 11/21/2026 | 09:02:11 | Temperature Inlet Temp | Upper Critical going high | Asserted | Reading 48 > Threshold 45 degrees C", DEGRADED),
        ("   6 | 11/21/2026 | 09:02:11 | Temperature nvme0 | Upper Non-critical going high | Asserted | Reading 72 > Threshold 70 degrees C", NOTE),
        ("   7 | 11/21/2026 | 09:02:11 | Cooling Device Leak Detect 1 | State Asserted | Asserted", BAD),
        ("   8 | 11/21/2026 | 09:02:11 | Memory #0x88 | Correctable ECC (CPU0_G1) | Asserted", NOTE),
        ("   9 | 11/21/2026 | 09:02:11 | System Event #0x83 | Timestamp Clock Sync | Asserted", OK),
        ("   a | 11/21/2026 | 09:02:11 | Critical Interrupt PCIe Cor Sensor |  | Asserted", OK),
        ("   b | Linux kernel panic: Fatal excep", OK),
        ("ffff | 99/99/9999 | 99:99:99 | x | y | Asserted", OK),
        ("|||||||", OK),
        ("", OK),
        (EMPTY, OK),
    ],
)  # fmt: skip
def test_lines_of_other_boards_are_understood_or_left(line: str, severity: str) -> None:
    """Both forms of dates, a zone or none, details in brackets, readings; odd ones say nothing."""
    assert [severity] == [one.severity for one in told(line)]


def test_a_node_without_power_is_bad_whatever_the_log_says() -> None:
    """Only from outside can that be seen."""
    found = told(EMPTY, power="Chassis Power is off\n")

    assert [(BAD, "node", "power")] == [(one.severity, one.fault, one.device) for one in found]
    assert [OK] == [one.severity for one in told(EMPTY, power="Chassis Power is on\n")]
    silent = bmc.BmcFacts("", "Chassis Power is on\n", NOW_S, "Get SEL Info command failed")
    assert [UNKNOWN] == checked.severities("bmc", silent)


def _ipmitool(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """A tool that notes its arguments and answers like ipmitool."""
    path, notes = folder / "ipmitool", folder / "asked"
    path.write_text(f'#!/bin/sh\necho "$TZ $*" >>{notes}\n{script}\n')
    path.chmod(0o755)
    monkeypatch.setattr(
        Machine, "tool", lambda _self, name: str(path) if name == "ipmitool" else f"/usr/bin/{name}"
    )
    return notes


def _asked(machine: Machine, **more: Any) -> list[Finding]:
    return checked.asked("bmc", machine, **more)


def test_a_controller_is_asked_from_outside_with_its_password_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Power first, then the log; times in UTC; no password among the arguments, and nothing that writes."""
    script = (
        'case "$*" in *power*) echo "Chassis Power is off";; *) echo "SEL has no entries" >&2; exit 1;; esac'
    )
    notes = _ipmitool(tmp_path, monkeypatch, script)
    found = _asked(Machine(), host="n3-bmc", user="operator", password_file="/etc/ftrun/bmc")

    assert [BAD] == [one.severity for one in found]
    head = "UTC -I lanplus -N 2 -R 2 -H n3-bmc -U operator -f /etc/ftrun/bmc"
    assert [f"{head} chassis power status", f"{head} sel list last 200"] == notes.read_text().splitlines()


def test_the_node_s_own_controller_is_asked_where_its_device_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a device, or without the right to open it, it is skipped."""
    notes = _ipmitool(
        tmp_path, monkeypatch, "echo 'Could not open device at /dev/ipmi0: Permission denied' >&2; exit 1"
    )
    assert [SKIPPED] == [one.severity for one in _asked(Machine(str(tmp_path)))]
    assert not notes.exists()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "ipmi0").touch()
    assert [SKIPPED] == [one.severity for one in _asked(Machine(str(tmp_path)))]
    assert ["UTC sel list last 200"] == notes.read_text().splitlines()


def test_a_controller_that_does_not_answer_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its network may be down, the node be well."""
    _ipmitool(tmp_path, monkeypatch, "echo 'Error: Unable to establish IPMI v2 / RMCP+ session' >&2; exit 1")

    with pytest.raises(NoAnswer, match="Unable to establish"):
        _asked(Machine(), host="n3-bmc")
