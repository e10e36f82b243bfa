"""Laws of reading the kernel's log: known faults are told, unknown errors are shown, healthy chatter is neither. (I/O)

The lines are those of ftrun's catalog of faults, whose signatures name their sources, and of `dmesg -r` of Linux 6.1 and 6.18; numbers are made up.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from ftrun.hooks.checks import kernel_log, kernel_rules
from ftrun.hooks.checks.kernel_log_reader import Line, Log, parsed
from ftrun.hooks.runtime.finding import BAD, DEGRADED, NOTE, OK, SKIPPED, Finding
from ftrun.supervisor.model.types import Action, FaultClass, Role, Source
from ftrun.supervisor.signatures import catalog
from ftrun.supervisor.signatures.catalog import Signature
from tests.unit import checked

NOW_S = 1_795_000_000.0
OWNED = "another check judges it"
# A journal's head; the kernel's own buffer has none of it.
HEAD = re.compile(r"^(?:\w{3}\s+\d+ [\d:]+ )?(?:\S+ kernel: )?(?:\[\s*[\d.]+\] )?")
# What daemons and tools write is not in the kernel's buffer.
DAEMON = re.compile(
    r"mmfs: |mount\.\w+: |kdump|crashdump|systemd|persistenced|fabric|modprobe|^\[\w{3} \d|^Failed to initialize NVML|^DIMM_"
)


def log(*texts: str, level: int | None = 3, age_s: float = 600.0) -> Log:
    return Log(tuple(Line(NOW_S - age_s, text, level) for text in texts), NOW_S)


def told(lines: Log, **more: Any) -> list[Finding]:
    return checked.told("kernel-log", lines, **more)


def kernel_lines() -> list[tuple[Signature, str]]:
    known = [one for one in catalog.load().signatures if one.sources[0] is Source.KERNEL]
    lines = [
        (one, HEAD.sub("", line)) for one in known for text in one.examples for line in text.splitlines()
    ]
    return [(one, line) for one, line in lines if not DAEMON.search(line)]


def test_a_fault_that_blames_a_device_or_a_node_is_known_to_the_check() -> None:
    """What the catalog drains or excludes for, the check calls bad or degraded, or leaves to the check that counts it."""
    missed = []
    for signature, line in kernel_lines():
        if signature.role is Role.INFO or signature.action not in (Action.DRAIN, Action.EXCLUDE):
            continue
        rule = kernel_rules.rule_of(line)
        if rule is None or (rule.severity not in (BAD, DEGRADED) and rule.title != OWNED):
            missed.append(f"{signature.id}: {line}")

    assert [] == missed


def test_what_the_catalog_calls_healthy_is_held_against_no_node() -> None:
    """Links that came up again, corrected errors, short throttling."""
    wrong = [
        f"{signature.id}: {line}"
        for signature, line in kernel_lines()
        if signature.fault is FaultClass.HEALTHY
        and (rule := kernel_rules.rule_of(line))
        and rule.severity in (BAD, DEGRADED)
    ]

    assert [] == wrong


def test_every_rule_blames_a_class_or_nobody() -> None:
    """A fault class for what is bad or degraded, none for the rest; no two rules look alike."""
    for rule in kernel_rules.RULES:
        assert (rule.severity in (BAD, DEGRADED)) == bool(rule.fault), rule.title
        assert not rule.fault or rule.fault in set(FaultClass)
    assert len({rule.expression for rule in kernel_rules.RULES}) == len(kernel_rules.RULES)


@pytest.mark.parametrize(
    ("line", "severity", "fault", "device"),
    [
        ("Memory failure: 0x7740c0: Sending SIGBUS to python3:48231 due to hardware memory corruption", BAD, "hardware-other", "0x7740c0"),
        ("nvme nvme3: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff", BAD, "storage", "nvme3"),
        ("blk_update_request: I/O error, dev sdc, sector 2048 op 0x0:(READ) flags 0x0", BAD, "storage", "sdc"),
        ("mlx5_core 0000:5e:00.0: poll_health:815:(pid 0): device's health compromised - reached miss count", BAD, "network", "0000:5e:00.0"),
        ("EXT4-fs (nvme0n1p2): Remounting filesystem read-only", BAD, "storage", "nvme0n1p2"),
        ("watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:81]", DEGRADED, "node", "CPU#18"),
        ("mce: CPU4: Package temperature above threshold, cpu clock throttled (total events = 40112)", DEGRADED, "hardware-other", "CPU4"),
        ("Out of memory: Killed process 8174 (python) total-vm:23588132kB, anon-rss:23564084kB", NOTE, "", ""),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_device_and_its_line(
    line: str, severity: str, fault: str, device: str
) -> None:
    """One finding for alike lines of one device."""
    (found,) = told(log(line, line))

    assert (severity, fault, device) == (found.severity, found.fault, found.device)
    assert (line, line) == found.evidence
    assert 2 == found.value


@pytest.mark.parametrize(
    "line",
    [
        "[Firmware Bug]: TSC doesn't count with P0 frequency!",
        "ACPI BIOS Error (bug): Could not resolve symbol [\\_SB.PCI0], AE_NOT_FOUND (20220331/dswload2-162)",
        "Memory cgroup out of memory: Killed process 4242 (python) total-vm:9182736kB, anon-rss:8388608kB",
        "Buffer I/O error on dev sr0, logical block 0, async page read",
        "sd 0:0:0:0: [sda] Assuming drive cache: write through",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.",
        "mlx5_core 0000:5e:00.0: mlx5_health_try_recover:360:(pid 811): health recovery succeeded",
        "mce: CPU0: Package temperature above threshold, cpu clock throttled (total events = 4)",
    ],
)
def test_chatter_of_healthy_machines_says_nothing(line: str) -> None:
    """Neither a fault nor a note, although the level is `error`."""
    assert [OK] == [one.severity for one in told(log(line))]


@pytest.mark.parametrize(
    "text",
    [
        "Oops: x[123]: segfault at 0 ip 0000 sp 0000 error 4 in a.out[400000+1000]",
        "a.out[123]: segfault at 0 ip 0 sp 0 error 4 in NVRM: Xid (PCI:0000:3b:00): 79, x[400000+1000]",
        "traps: hard LOCKUP[77] general protection fault ip:0 sp:0 error:0 in kernel BUG at[400000+1000]",
        "Memory cgroup out of memory: Killed process 12 (kernel BUG at) total-vm:1kB, anon-rss:1kB",
        "Out of memory: Killed process 12 (hard LOCKUP) total-vm:1kB",
        "Oops: invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,task=hard LOCKUP,pid=12,uid=1000",
        "[   1234]  1000  1234     1000      500    65536        0             0 hard LOCKUP",
        "CPU: 3 PID: 123 Comm: kernel BUG at Not tainted 6.1.0-13-amd64 #1 Debian 6.1.55-1",
        "process '/home/u/NVRM: Xid (PCI:0000:3b:00): 79' started with executable stack",
        'ptrace attach of "a"[12] was attempted by "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus"[13]',
        "tmpfs: Unknown parameter 'CPU 3: Machine Check: 0 Bank 5: be00000000800400'",
        "INFO: task hard LOCKUP:123 blocked for more than 120 seconds.",
        "watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [hard LOCKUP:123]",
        "hard LOCKUP: page allocation failure: order:4, mode:0x40dc0(GFP_KERNEL|__GFP_COMP|__GFP_ZERO)",
    ],
)
def test_what_a_user_writes_into_the_log_is_no_fault_of_the_machine(text: str) -> None:
    """A process, a file or an option may be called like a fault: only the kernel's own words are read, by every check."""
    raw = f"<3>[  100.000000] {text}\n"
    (line,) = parsed(raw, NOW_S - 200.0)
    assert not [one for one in told(Log((line,), NOW_S)) if one.severity == BAD]
    assert "NVRM" not in line.text
    assert "Machine Check" not in line.text


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", BAD),
        ("BUG: unable to handle page fault for address: ffffffff", BAD),
        ("Oops: 0002 [#1] PREEMPT SMP NOPTI", BAD),
        ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 3", BAD),
        ("INFO: task python3:123 blocked for more than 120 seconds.", DEGRADED),
        ("watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [python3:123]", DEGRADED),
    ],
)
def test_the_kernels_own_words_count(text: str, severity: str) -> None:
    """What is cut hides no fault."""
    (found,) = told(Log(parsed(f"<3>[  100.000000] {text}\n", NOW_S - 200.0), NOW_S))
    assert severity == found.severity


def test_an_error_that_nobody_knows_is_shown_and_proves_nothing() -> None:
    """Alike ones as one, by level, and only since the job began."""
    lines = log("frobnicator 12: valve 7 stuck", "frobnicator 13: valve 9 stuck")
    (found,) = told(lines)

    assert (NOTE, 2) == (found.severity, found.value)
    assert "frobnicator 13: valve 9 stuck" in found.message
    assert [OK] == [one.severity for one in told(log("frobnicator 12: hello", level=6))]
    assert [OK] == [one.severity for one in told(log("frobnicator 12: hello", level=None))]
    assert [OK] == [one.severity for one in told(log("frobnicator 12: valve stuck", age_s=90_000))]
    assert [OK] == [one.severity for one in told(lines, allow=("^frobnicator",))]


def test_what_was_before_the_job_is_a_note() -> None:
    """A reset or an exchange of the part may have mended it since."""
    line = "nvme nvme3: controller is down; will reset: CSTS=0x3, PCI_STATUS=0x10"

    assert [NOTE] == [one.severity for one in told(log(line, age_s=90_000))]
    assert [NOTE] == [one.severity for one in told(log(line), since_s=NOW_S - 60)]
    assert [BAD] == [one.severity for one in told(log(line), since_s=NOW_S - 3600)]


def test_a_log_that_may_not_be_read_is_skipped() -> None:
    """kernel.dmesg_restrict is a site's choice."""
    closed = Log((), NOW_S, "dmesg: read kernel buffer failed: Operation not permitted")

    assert [SKIPPED] == [one.severity for one in told(closed)]


def test_a_flood_of_lines_makes_a_short_report() -> None:
    """A driver gone mad fills the log, not the report; the newest lines count."""
    old, new = (
        "nvme nvme3: controller is down; will reset: CSTS=0x3",
        "usb 1-1: device descriptor read/64, error -71",
    )
    assert [OK] == [one.severity for one in told(log(old, *[new] * kernel_log.LINES_MAX))]
    lines = [f"widget {chr(97 + n % 26)}{chr(97 + n // 26)} broken" for n in range(500)]
    lines += [
        f"blk_update_request: I/O error, dev sd{chr(97 + n % 26)}{chr(97 + n // 26)}, sector 8"
        for n in range(500)
    ]

    assert len(told(log(*lines))) <= 30
