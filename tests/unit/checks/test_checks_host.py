"""Laws of the checks of a node as a place to work: its clock, its guests, its processes, control groups, processors, boot and versions. (I/O)

Answers of chronyc 4.3 and ntpq (NTPsec 1.2.2) were taken from daemons started for it, synchronised, alone, and dead; those of timedatectl follow the labels
and spans in its source (src/timedate/timedatectl.c). Trees of /proc and /sys are built in the formats of proc(5) and of the kernel's documents. Numbers are made up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.checks import clock, cpu, processes
from ftrun.hooks.main import main
from ftrun.hooks.runtime.device_counters import Growth
from ftrun.hooks.runtime.finding import BAD, DEGRADED, NOTE, OK, SKIPPED, UNKNOWN
from ftrun.hooks.runtime.host import Machine
from ftrun.hooks.runtime.procfs import Process
from tests.unit.checked import probed, severities, told, tree

CHRONY = "7F000001,127.0.0.1,4,1795250641.232410724,{offset},-0.000000402,0.000000402,-0.040,-0.000,1.146,{delay},{spread},2.0,{leap}\n"
CHRONY_ALONE = "00000000,,0,0.000000000,0.000000000,0.000000000,0.000000000,0.000,0.000,0.000,1.000000000,1.000000000,0.0,Not synchronised\n"
NTPQ = """\
associd=0 status=0618 leap_none, sync_ntp, 1 event, no_sys_peer,
leap=00, stratum=3, precision=-24, rootdelay=1.5, rootdisp={spread}, refid=192.0.2.1,
reftime=eeabd85c.00fd5696 2026-11-21T08:44:12.003Z, tc=6, peer=1210, offset={offset},
frequency=-9.1, sys_jitter=0.0, clk_jitter=6e-05,
clock=eeabd85c.00fd5696 2026-11-21T08:44:12.003Z, processor="x86_64",
system="Linux/6.1.0", version="ntpd ntpsec-1.2.2", clk_wander=0.0, mintc=0
"""
NTPQ_ALONE = """\
associd=0 status=c016 leap_alarm, sync_unspec, 1 event, restart,
leap=11, stratum=16, precision=-24, rootdelay=0.0, rootdisp=0.06, refid=INIT,
reftime=00000000.00000000 2036-02-07T06:28:16.000Z, tc=0, peer=0, offset=0.0,
"""
TIMESYNC = """\
       Server: 192.0.2.123 (ntp.example.org)
Poll interval: 34min 8s (min: 32s; max 34min 8s)
         Leap: {leap}
      Version: 4
      Stratum: 2
    Reference: C0000217
    Precision: 1us (-25)
Root distance: 20.133ms (max: 5s)
       Offset: {offset}
        Delay: 17.311ms
       Jitter: 2.106ms
 Packet count: 214
    Frequency: +4.178ppm
"""
TIMESYNC_NEW = (
    "       Server: n/a (ntp.example.org)\nPoll interval: 0 (min: 32s; max 34min 8s)\n Packet count: 0\n"
)


def chrony(offset: str = "-0.000001149", delay: str = "0.000006079", spread: str = "0.000014102") -> str:
    return CHRONY.format(offset=offset, delay=delay, spread=spread, leap="Normal")


@pytest.mark.parametrize(
    ("name", "text", "severity"),
    [
        ("chronyc", chrony(), OK),
        ("chronyc", chrony().replace("7F000001,127.0.0.1,", "7F000001,"), OK),
        ("chronyc", chrony(offset="0.700000000"), DEGRADED),
        ("chronyc", chrony(offset="-95.2"), BAD),
        ("chronyc", chrony(spread="3.100000000"), DEGRADED),
        ("chronyc", CHRONY_ALONE, DEGRADED),
        ("chronyc", "506 Cannot talk to daemon\n", UNKNOWN),
        ("chronyc", "", UNKNOWN),
        ("chronyc", "7F000001,127.0.0.1,4,179525", UNKNOWN),
        ("ntpq", NTPQ.format(offset="0.41", spread="12.7"), OK),
        ("ntpq", NTPQ.format(offset="-720.5", spread="12.7"), DEGRADED),
        ("ntpq", NTPQ.format(offset="0.1", spread="70000"), BAD),
        ("ntpq", NTPQ_ALONE, DEGRADED),
        ("ntpq", "associd=0 status=0618\nleap=00, stratum=3,\n", UNKNOWN),
        ("ntpq", "127.0.0.1: timed out, nothing received", UNKNOWN),
        ("timedatectl timesync-status", TIMESYNC.format(leap="normal", offset="+11.4ms"), OK),
        ("timedatectl timesync-status", TIMESYNC.format(leap="normal", offset="-51us"), OK),
        ("timedatectl timesync-status", TIMESYNC.format(leap="normal", offset="+2.5s"), DEGRADED),
        ("timedatectl timesync-status", TIMESYNC.format(leap="normal", offset="-1min 2.5s"), BAD),
        ("timedatectl timesync-status", TIMESYNC.format(leap="not synchronized", offset="+1ms"), DEGRADED),
        ("timedatectl timesync-status", TIMESYNC_NEW, DEGRADED),
        ("timedatectl timesync-status", "Server: x\nPacket count: 3\n", UNKNOWN),
        ("timedatectl show", "Timezone=UTC\nCanNTP=yes\nNTP=yes\nNTPSynchronized=yes\n", OK),
        ("timedatectl show", "Timezone=UTC\nNTPSynchronized=no\n", DEGRADED),
        ("timedatectl show", "Failed to connect to bus: Host is down\n", UNKNOWN),
    ],
)
def test_the_clock_is_judged_by_how_far_off_it_may_be(name: str, text: str, severity: str) -> None:
    """What is left to correct, half the way to the source, and what it may have drifted since."""
    assert [severity] == severities("clock", clock.ClockFacts(((name, text),)))


def test_a_node_without_a_time_service_is_skipped_and_a_silent_one_unknown() -> None:
    """Nobody knows how late it is."""
    assert [SKIPPED] == severities("clock", clock.ClockFacts(()))
    assert [UNKNOWN] == severities("clock", clock.ClockFacts((), "chronyc: 506 Cannot talk to daemon"))


def test_the_first_service_that_answers_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chronyc whose daemon is dead leaves the word to the next."""
    _tool(tmp_path, "chronyc", "echo '506 Cannot talk to daemon'; exit 1")
    _tool(tmp_path, "ntpq", f"cat <<'.'\n{NTPQ.format(offset='0.41', spread='12.7')}.")
    monkeypatch.setattr(
        Machine, "tool", lambda _self, name: str(tmp_path / name) if (tmp_path / name).exists() else None
    )
    (found,) = told("clock", probed("clock", Machine()))

    assert OK == found.severity
    assert found.message.startswith("ntpq: ")
    assert found.value is not None
    assert abs(found.value - 0.00041) < 1e-9


def _tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def busy(cores: float, uid: int = 2000, job: str = "", name: str = "python3") -> processes.Busy:
    return processes.Busy(4711, uid, name, job, cores)


@pytest.mark.parametrize(
    ("guests", "severity"),
    [
        ((), OK),
        ((busy(16.0, job="77"), busy(8.0, uid=3000, job="78")), OK),
        ((busy(16.0, uid=1500),), OK),
        ((busy(0.05),), OK),
        ((busy(0.4),), NOTE),
        ((busy(0.7), busy(0.7, uid=2001)), DEGRADED),
        ((busy(1.5, uid=0, name="lustre_scrub"),), OK),
        ((busy(3.5, uid=0, name="updatedb"),), NOTE),
        ((busy(3.5, uid=65534, name="node_exporter"),), NOTE),
    ],
)
def test_who_computes_outside_of_any_job_is_a_stranger(
    guests: tuple[processes.Busy, ...], severity: str
) -> None:
    """Jobs have a right to be here, the job's own user too; the system's accounts are a note."""
    facts = processes.StrangersFacts(guests, 1500, 200, 1.0)

    assert [severity] == severities("stranger-load", facts)


def test_a_busy_process_is_seen_with_what_it_takes() -> None:
    """A child that counts takes about a core, or what others leave of it."""
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        for window_s in (0.5, 2.0, 8.0, 30.0):  # others may leave it next to nothing of the cores for a while
            facts = probed("stranger-load", Machine(), window_s=window_s)
            if any(one.pid == child.pid for one in facts.busy):
                break
    finally:
        child.kill()
        child.wait()
    (seen,) = (one for one in facts.busy if one.pid == child.pid)

    assert 0.0 < seen.cores < 1.5
    assert os.getuid() == seen.uid


def process(
    pid: int, state: str, *, began: int = 5, switches: int = 9, kernel: bool = False, parent: int = 1
) -> Process:
    return Process(pid, 1000, "python3", state, kernel, 100, began, switches, parent)


def looks(
    before: list[Process], after: list[Process], threads: int = 300, most: int = 32_768
) -> processes.ProcessesFacts:
    return processes.ProcessesFacts(
        {one.pid: one for one in before}, {one.pid: one for one in after}, threads, most
    )


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (looks([process(7, "S")], [process(7, "R")]), [OK]),
        (looks([process(7, "D")], [process(7, "D")]), [DEGRADED]),
        (looks([process(7, "D")], [process(7, "D", switches=10)]), [OK]),
        (looks([process(7, "D")], [process(7, "D", began=6)]), [OK]),
        (looks([], [process(7, "D")]), [OK]),
        (looks([process(7, "D", kernel=True)], [process(7, "D", kernel=True)]), [NOTE]),
        (looks([], [process(7, "Z")]), [NOTE]),
        (looks([], [process(pid, "Z", parent=3) for pid in range(10, 150)]), [DEGRADED]),
        (looks([], [process(7, "S")], threads=31_000), [DEGRADED]),
        (looks([], []), [UNKNOWN]),
    ],
)
def test_a_process_that_stands_still_in_the_kernel_hangs(
    facts: processes.ProcessesFacts, expected: list[str]
) -> None:
    """In D at both looks and not once awake in between; one that was awake waits like any other."""
    assert expected == severities("processes", facts)


def test_a_real_zombie_is_counted_with_its_parent() -> None:
    """Dead, and its parent does not ask for its end."""
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not asked for its end
    facts = probed("processes", Machine(), window_s=0.01)
    child.wait()

    assert "Z" == facts.after[child.pid].state
    assert os.getpid() == facts.after[child.pid].parent
    assert 0 < facts.threads < facts.threads_max


V2 = "/sys/fs/cgroup"
CONF = "CgroupPlugin=cgroup/v2\nConstrainCores=yes\nConstrainRAMSpace=YES\nConstrainDevices=yes\n#ConstrainSwapSpace=yes\n"
V1 = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpuset\t3\t12\t1\nmemory\t{memory}\t105\t{enabled}\ndevices\t5\t80\t1\nnet_prio\t0\t1\t1\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, [SKIPPED]),
        ({f"{V2}/cgroup.controllers": "cpuset cpu io memory pids\n", "/etc/slurm/cgroup.conf": CONF}, [OK]),
        ({f"{V2}/cgroup.controllers": "cpuset cpu io pids\n", "/etc/slurm/cgroup.conf": CONF}, [DEGRADED]),
        ({f"{V2}/cgroup.controllers": "cpuset cpu io pids\n"}, [OK]),
        ({f"{V2}/cgroup.controllers": "memory\n", f"{V2}/cgroup.stat": "nr_descendants 400\nnr_dying_descendants 60000\n"}, [DEGRADED]),
        ({f"{V2}/cgroup.controllers": "memory\n", f"{V2}/cgroup.stat": "nr_descendants 5400\nnr_dying_descendants 60000\n"}, [BAD]),
        ({f"{V2}/cgroup.controllers": "memory\n", f"{V2}/cgroup.stat": "odd\n", f"{V2}/cgroup.max.descendants": "max\n"}, [OK]),
        ({"/proc/cgroups": V1.format(memory=4, enabled=1), "/etc/slurm/cgroup.conf": CONF}, [OK]),
        ({"/proc/cgroups": V1.format(memory=0, enabled=0), "/etc/slurm/cgroup.conf": CONF}, [DEGRADED]),
        ({"/etc/slurm/cgroup.conf": CONF}, [DEGRADED, DEGRADED, DEGRADED]),
    ],
)  # fmt: skip
def test_the_control_groups_are_those_that_slurm_is_to_use(
    tmp_path: Path, files: dict[str, str], expected: list[str]
) -> None:
    """What cgroup.conf asks for must be there, and numbers for new groups left."""
    machine = tree(tmp_path, files)

    assert expected == severities("cgroups", probed("cgroups", machine))


def cpus(governors: list[str], driver: str = "acpi-cpufreq", allowed: int = 3_500_000) -> dict[str, str]:
    folder = cpu.FOLDER
    files = {
        f"{folder}/online": f"0-{len(governors) - 1}\n",
        f"{folder}/present": f"0-{len(governors) - 1}\n",
    }
    for number, governor in enumerate(governors):
        files |= {
            f"{folder}/cpu{number}/cpufreq/scaling_governor": f"{governor}\n",
            f"{folder}/cpu{number}/cpufreq/scaling_driver": f"{driver}\n",
            f"{folder}/cpu{number}/cpufreq/scaling_max_freq": f"{allowed}\n",
            f"{folder}/cpu{number}/cpufreq/cpuinfo_max_freq": "3500000\n",
        }
    return files


@pytest.mark.parametrize(
    ("files", "more", "expected"),
    [
        ({}, {}, [SKIPPED]),
        (cpus(["performance"] * 4), {}, [OK]),
        (cpus(["powersave"] * 4, "intel_pstate"), {}, [OK]),
        (cpus(["powersave"] * 4), {}, [DEGRADED]),
        (cpus(["schedutil"] * 4), {"governor": "performance"}, [DEGRADED]),
        (cpus(["performance", "schedutil"]), {}, [DEGRADED]),
        (cpus(["performance"] * 2, allowed=1_200_000), {}, [DEGRADED]),
        (cpus(["performance"] * 2), {"expected": 4}, [DEGRADED]),
        ({**cpus(["performance"] * 2), f"{cpu.FOLDER}/present": "0-3\n"}, {}, [NOTE]),
        ({**cpus(["performance"] * 2), f"{cpu.FOLDER}/present": "0-3\n", f"{cpu.FOLDER}/smt/control": "off\n"}, {}, [OK]),
        ({**cpus(["performance"]), f"{cpu.FOLDER}/cpu0/thermal_throttle/core_throttle_count": "812\n"}, {}, [NOTE]),
        ({**cpus(["performance"]), f"{cpu.FOLDER}/cpu0/thermal_throttle/core_throttle_count": "812\n"}, {"before": {"cpu0": {"core_throttle_count": 800}}}, [DEGRADED]),
        ({**cpus(["performance"]), f"{cpu.FOLDER}/cpu0/cpufreq/scaling_max_freq": "odd"}, {}, [OK]),
    ],
)  # fmt: skip
def test_processors_may_run_at_their_full_clock(
    tmp_path: Path, files: dict[str, str], more: dict[str, Any], expected: list[str]
) -> None:
    """A governor that saves, a limit, heat just now, or processors that are missing."""
    facts = probed("cpu-frequency", tree(tmp_path, files), **{"window_s": 0.01, **more})

    assert expected == severities("cpu-frequency", facts, **more)


def test_the_hottest_processor_is_named() -> None:
    """By the growth of its counts."""
    counts = Growth({"cpu0": {"core_throttle_count": 5}, "cpu9": {"core_throttle_count": 5}}, {"cpu0": {"core_throttle_count": 5}, "cpu9": {"core_throttle_count": 17}}, 1.0)  # fmt: skip
    (found,) = told("cpu-frequency", cpu.FrequencyFacts((), counts, 16, 0, has_smt_off=False))

    assert ("cpu9", ("cpu9: 12 times",)) == (found.device, found.evidence)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0-3\n", {0, 1, 2, 3}), ("0-1,8\n", {0, 1, 8}), ("", set()), ("odd", set()), ("3-", {3}), ("5", {5})],
)
def test_lists_of_the_kernel_are_read(text: str, numbers: set[int]) -> None:
    """Ranges and single ones; nothing where the text is odd."""
    assert numbers == cpu.members(text)


NOW_S = 1_795_000_000.0


@pytest.mark.parametrize(
    ("up_s", "since_s", "severity"),
    [
        (900_000.0, 0.0, OK),
        (900_000.0, NOW_S - 3600, OK),
        (300.0, 0.0, NOTE),
        (300.0, NOW_S - 3600, BAD),
        (3590.0, NOW_S - 3600, OK),
        (None, NOW_S - 3600, UNKNOWN),
    ],
)
def test_a_node_that_was_booted_under_its_job_is_found(
    up_s: float | None, since_s: float, severity: str
) -> None:
    """It looks healthy again, and its job is gone."""
    assert [severity] == severities("uptime", clock.UptimeFacts(up_s, NOW_S), since_s=since_s)


def test_every_version_is_a_finding_of_its_own(tmp_path: Path) -> None:
    """With the component as the device and the version as evidence, so that nodes can be compared."""
    machine = tree(
        tmp_path,
        {
            "/proc/sys/kernel/osrelease": "6.1.0-28-amd64\n",
            "/etc/os-release": 'ID=rocky\nVERSION_ID="9.4"\nPRETTY_NAME="Rocky Linux 9.4 (Blue Onyx)"\n',
            "/proc/cpuinfo": "processor\t: 0\nmicrocode\t: 0x2b000603\n",
            "/sys/module/mlx5_core/version": "24.10-1.1.4\n",
            "/sys/class/infiniband/mlx5_0/fw_ver": "28.43.1014\n",
        },
    )
    found = told(
        "versions", probed("versions", machine), expected={"kernel": "6.1.0-30-amd64", "lustre": "2.15.5"}
    )

    assert {
        "kernel": (DEGRADED, ("6.1.0-28-amd64",)),
        "system": (OK, ("rocky 9.4",)),
        "microcode": (OK, ("0x2b000603",)),
        "mlx5_core": (OK, ("24.10-1.1.4",)),
        "firmware mlx5_0": (OK, ("28.43.1014",)),
        "lustre": (DEGRADED, ()),
    } == {one.device: (one.severity, one.evidence) for one in found}
    assert [UNKNOWN] == severities("versions", {})


def test_after_a_failure_a_boot_under_the_script_is_found(tmp_path: Path) -> None:
    """Checks that look back look back to the start of the script."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "uptime").write_text("300.00 500.00\n")
    folder = tmp_path / "nodes"
    words = ["post-failure-check", "--folder", str(folder), "--node", "n4", "--root", str(tmp_path)]
    worst = {}
    for since_s in (time.time() - 3600, time.time() - 200):
        assert 0 == main([*words, "--since", str(since_s)])
        report = json.loads((folder / "after.0.n4.json").read_text())
        (found,) = (one for one in report["findings"] if one["check"] == "uptime")
        worst[found["severity"]] = found["fault"]
        assert "uptime" in report["since"]  # what it found came while the script ran
        assert "disk-size shm" not in report["since"]

    assert {"bad": "node", "note": ""} == worst
