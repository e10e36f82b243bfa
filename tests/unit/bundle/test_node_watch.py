"""Laws of the watch over a node: what is new is told once, blindness is no health, and it costs next to nothing. (I/O)"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.bundle.zipapp import build_zipapp
from ftrun.hooks.health import node_monitor
from ftrun.hooks.runtime import node_report
from ftrun.hooks.runtime.finding import BAD, DEGRADED, OK, UNKNOWN, Finding
from ftrun.supervisor.store import node_reports
from tests.bench.bench_watch import put, put_devices

MEMORY_MAX_KIB = 20 * 1024


def _memory(root: Path, uncorrected: int) -> None:
    """A machine with one memory controller."""
    mc = "/sys/devices/system/edac/mc/mc0"
    put(root, f"{mc}/ue_count", uncorrected)
    put(root, f"{mc}/ce_count", 0)
    put(root, f"{mc}/seconds_since_reset", 5000)
    put(root, "/proc/mounts", "proc /proc proc rw 0 0")


def _port(root: Path, symbol_errors: int) -> None:
    port = "/sys/class/infiniband/mlx5_0/ports/1"
    put(root, f"{port}/state", "4: ACTIVE")
    put(root, f"{port}/phys_state", "5: LinkUp")
    put(root, f"{port}/rate", "400 Gb/sec (4X NDR)")
    put(root, f"{port}/counters/symbol_error", symbol_errors)


def _watch(root: Path) -> node_monitor.NodeMonitor:
    """Looks in these tests lie hours apart: on a busy machine a look may cost so much that the next one is put off."""
    return node_monitor.NodeMonitor(root=str(root), period_s=60.0, began_s=1000.0)


def _told(one: node_monitor.NodeMonitor) -> list[tuple[str, str, bool]]:
    rows = one.report("n0", 0.0)["findings"]
    return [(row["check"], row["severity"], row["until_s"] is None) for row in rows]


def test_a_number_that_rises_is_told_again(tmp_path: Path) -> None:
    """An error that training survived is one thing, the next one another: the report has the number of now."""
    _memory(tmp_path, 0)
    one = _watch(tmp_path)
    told = []
    for look, count in enumerate((0, 1, 1, 2)):
        _memory(tmp_path, count)
        changed = one.look(1000.0 + 10_000.0 * look)
        told.append((changed, [row["value"] for row in one.report("n0", 0.0)["findings"]]))

    assert told == [(False, []), (True, [1]), (False, [1]), (True, [2])]


def test_what_was_counted_before_the_job_is_not_told(tmp_path: Path) -> None:
    """Errors since boot may be of last year: only what comes on top while the job runs is of this job."""
    _memory(tmp_path, 3)
    one = _watch(tmp_path)

    assert not one.look(1000.0)
    assert not one.look(11_060.0)
    _memory(tmp_path, 4)
    assert one.look(21_120.0)

    assert _told(one) == [("edac", BAD, True)]
    row = one.report("n0", 21_120.0)["findings"][0]
    assert (row["at_s"], row["fault"], row["value"]) == (21_120.0, "hardware-other", 4)


def test_a_link_that_was_down_before_the_job_is_not_told(tmp_path: Path) -> None:
    """What the first look finds is not of this job, be it no counter."""
    _memory(tmp_path, 0)
    _port(tmp_path, 0)
    put(tmp_path, "/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
    one = _watch(tmp_path)

    assert not one.look(1000.0)
    assert _told(one) == []


def test_a_mount_that_hangs_is_told_from_the_first_look_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who begins beside a dead mount is told of it: it holds up whoever touches it."""
    _memory(tmp_path, 0)
    one = _watch(tmp_path)
    hung = Finding("mounts", BAD, "/data hangs", "storage", "/data")
    monkeypatch.setattr(
        node_monitor, "_ask", lambda *_: node_monitor._Asked({"mounts": [hung]}, {}, 0.0, hung=False)
    )

    assert one.look(1000.0)
    assert _told(one) == [("mounts", BAD, True)]


def test_the_same_finding_changes_the_report_once(tmp_path: Path) -> None:
    """A fault that stays is written when it appears and not every minute."""
    _memory(tmp_path, 0)
    one = _watch(tmp_path)
    one.look(1000.0)
    _memory(tmp_path, 1)

    assert one.look(11_060.0)
    assert not one.look(11_060.0 + 60 * node_monitor.SPACING_MAX)


def test_counters_that_grow_fast_are_told_and_forgiven(tmp_path: Path) -> None:
    """A link whose errors grew between two looks is degraded; when they stand still again, that is told, too."""
    _memory(tmp_path, 0)
    _port(tmp_path, 5)
    one = _watch(tmp_path)
    one.look(1000.0)
    _port(tmp_path, 500)
    assert one.look(11_060.0)
    assert _told(one) == [("ib-errors", DEGRADED, True)]

    assert one.look(21_120.0)

    assert _told(one) == [("ib-errors", DEGRADED, False)]


@pytest.mark.parametrize(
    "answer", [None, [Finding("edac", UNKNOWN, "the driver does not answer")]], ids=["nothing", "unknown"]
)
def test_a_check_that_cannot_see_takes_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Sequence[Finding] | None
) -> None:
    """Blindness is neither sick nor well: what was found stays as it was told."""
    _memory(tmp_path, 0)
    one = _watch(tmp_path)
    one.look(1000.0)
    _memory(tmp_path, 1)
    one.look(11_060.0)

    def judge(_facts: object, _thresholds: object) -> Sequence[Finding]:
        if answer is None:
            raise RuntimeError("a mistake of ours")
        return answer

    for member in one._members:
        member.checks = [check._replace(judge=judge) for check in member.checks]

    assert not one.look(21_120.0)
    assert _told(one) == [("edac", BAD, True)]


def test_a_site_can_switch_a_check_off_or_set_its_marks(tmp_path: Path) -> None:
    """The thresholds of the checks before a job hold for the watch as well."""
    _memory(tmp_path, 0)
    off = node_monitor.NodeMonitor(root=str(tmp_path), began_s=0.0, settings={"edac": {"enabled": False}})
    mild = node_monitor.NodeMonitor(root=str(tmp_path), began_s=0.0, settings={"edac": {"uncorrected": 5}})
    for one in (off, mild):
        one.look(1000.0)
    _memory(tmp_path, 3)

    assert "edac" not in off.checks
    assert not mild.look(11_060.0)


def test_what_costs_much_is_asked_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver's tool that takes a second of CPU time is not started every minute."""
    _memory(tmp_path, 0)
    one = _watch(tmp_path)
    asked = []

    def ask(checks: Sequence[Any], _thresholds: object, _root: str) -> node_monitor._Asked:
        asked.append([check.name for check in checks])
        return node_monitor._Asked(
            {check.name: [Finding(check.name, OK, "")] for check in checks}, {}, 1.0, False
        )

    monkeypatch.setattr(node_monitor, "_ask", ask)
    one.look(1000.0)
    first = len(asked)
    one.look(1060.0)

    assert len(asked) == first
    one.look(1000.0 + 1.0 / 0.0001 + 60)
    assert len(asked) == 2 * first


def test_what_hangs_is_asked_less_and_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that hangs in the kernel stays there, so the next ones come at growing distances, up to a limit."""
    _memory(tmp_path, 0)
    one = _watch(tmp_path)
    monkeypatch.setattr(node_monitor, "_ask", lambda *_: node_monitor._Asked({}, {}, 0.0, hung=True))
    looks = []
    for minute in range(100):
        before = [member.due_s for member in one._members]
        one.look(1000.0 + 60 * minute)
        if [member.due_s for member in one._members] != before:
            looks.append(minute)

    assert looks[:4] == [0, 2, 6, 14]
    assert looks[-1] - looks[-2] == node_monitor.SPACING_MAX


def test_a_report_is_bounded(tmp_path: Path) -> None:
    """A node that finds a thousand things writes a file that its reader takes, the worst of them first."""
    found = [
        Finding("a", DEGRADED, "x" * 5000, device=str(n), evidence=("y" * 5000,) * 50) for n in range(999)
    ]
    found.append(Finding("z", BAD, "the one that counts"))
    rows = [one._asdict() for one in found]

    node_report.write_report(str(tmp_path / "nodes"), 0, {"kind": "watch", "node": "n0", "findings": rows})

    path = Path(node_report.report_path(str(tmp_path / "nodes"), "watch", 0, "n0"))
    assert path.stat().st_size < node_reports.REPORT_BYTES_MAX
    assert json.loads(path.read_text())["findings"][0]["severity"] == BAD


def _start(tmp_path: Path, root: Path, period_s: float) -> subprocess.Popen[bytes]:
    (tmp_path / "attempt").mkdir(exist_ok=True)
    packed = build_zipapp(str(tmp_path / "home"))
    words = [
        "watch",
        "--folder",
        str(tmp_path / "attempt" / "nodes"),
        "--node",
        "n0",
        "--period",
        str(period_s),
    ]
    words += ["--root", str(root).replace("n0", "{node}")]
    return subprocess.Popen([sys.executable, packed, *words], env={"PATH": os.environ["PATH"]})


def _wait_for(path: Path) -> dict[str, Any]:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.05)
    told: dict[str, Any] = json.loads(path.read_text())
    return told


def _is_ready(process: subprocess.Popen[bytes]) -> bool:
    """It catches the signal by which it is asked to leave."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (signal.SIGUSR2 - 1) & 1)


def _ready(process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not _is_ready(process):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_watch_finds_what_happens_while_it_runs_and_leaves_when_asked(tmp_path: Path) -> None:
    """From the packed archive, on a bare Python: a fault is in the attempt's folder within a period; SIGUSR2 ends it with 0."""
    root = tmp_path / "root-of-n0"
    _memory(root, 0)
    process = _start(tmp_path, root, 0.5)
    _ready(process)
    for number in (signal.SIGUSR1, signal.SIGQUIT, signal.SIGALRM, signal.SIGXCPU, signal.SIGRTMIN + 1):
        process.send_signal(number)  # of --signal: not for us
    path = tmp_path / "attempt" / "nodes" / "watch.0.n0.json"
    for count in range(2, 600, 2):  # on a busy machine the first look, against which it counts, comes late
        _memory(root, count)
        time.sleep(0.3)
        if path.exists():
            break

    report = _wait_for(path)
    process.send_signal(signal.SIGUSR2)

    assert process.wait(60) == 0
    assert (report["kind"], report["node"], report["worst"]) == ("watch", "n0", BAD)
    assert [one["check"] for one in report["findings"]] == ["edac"]


def test_a_watch_ends_with_its_attempt(tmp_path: Path) -> None:
    """Where nobody could ask it to leave, it leaves when the script's end is on record."""
    root = tmp_path / "root-of-n0"
    _memory(root, 0)
    process = _start(tmp_path, root, 0.2)
    _ready(process)
    (tmp_path / "attempt" / "exit.0").write_text("code=0\n")

    assert process.wait(120) == 0


def test_a_watch_is_small(tmp_path: Path) -> None:
    """Less than 20 MB of memory, with eight adapters and sixty devices to look at. What a look costs is a bench (`make bench`, watch)."""
    root = tmp_path / "root-of-n0"
    put_devices(root)
    process = _start(tmp_path, root, 60.0)
    _ready(process)
    time.sleep(1.5)
    status = Path(f"/proc/{process.pid}/status").read_text()
    process.send_signal(signal.SIGUSR2)
    process.wait(60)
    rss_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert rss_kib < MEMORY_MAX_KIB
