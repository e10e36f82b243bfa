"""Laws of asking a sick machine: nothing is waited for without end, and what is not there is told. (I/O)"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ftrun.hooks.checks import processes
from ftrun.hooks.checks.catalogue import CHECKS
from ftrun.hooks.checks.folders import Room
from ftrun.hooks.runtime.finding import BAD, DEGRADED, OK, SKIPPED, UNKNOWN, Finding, worst
from ftrun.hooks.runtime.host import Machine, NoAnswer


def test_a_command_that_hangs_is_left_behind() -> None:
    """A tool that waits for a dead device costs its limit, and no more."""
    began = time.monotonic()
    with pytest.raises(NoAnswer, match=r"sleep did not end within 0.3 s"):
        Machine().run(["sleep", "600"], 0.3)

    assert time.monotonic() - began < 500  # it was not waited for


def test_a_command_that_is_not_there_is_told() -> None:
    """No traceback: what is missing, in one line."""
    with pytest.raises(NoAnswer, match="no-such-tool is not installed"):
        Machine().run(["no-such-tool"])


def test_what_a_command_says_is_kept_whole() -> None:
    """Exit code and both streams."""
    assert (3, "a\n", "b\n") == Machine().run(["sh", "-c", "echo a; echo b >&2; exit 3"])


def test_a_file_that_hangs_is_left_behind(tmp_path: Path) -> None:
    """Reading from a dead mount never returns; a pipe that nobody writes to stands for it here."""
    os.mkfifo(tmp_path / "dead")
    (tmp_path / "alive").write_text("yes")
    machine = Machine(str(tmp_path))

    with pytest.raises(NoAnswer, match=r"/dead did not answer within 0.2 s"):
        machine.read("/dead", 0.2)
    assert "yes" == machine.read("/alive", 60.0)
    assert machine.read("/nowhere") is None


def test_many_are_asked_side_by_side() -> None:
    """One that hangs costs the others nothing, and the time is that of one."""

    def refuse() -> bytes:
        raise PermissionError

    def hang() -> bytes:
        time.sleep(600)
        return b""

    began = time.monotonic()
    for limit_s in (1.0, 5.0, 60.0):  # a busy machine takes seconds to ask at all
        questions = {"dead": hang, "alive": lambda: b"yes", "lost": refuse, "deaf": hang}
        answers = Machine().ask_all(questions, limit_s)
        if answers["alive"] == b"yes" and answers["lost"] is None:
            break

    assert (b"yes", None) == (answers["alive"], answers["lost"])
    assert f"dead did not answer within {limit_s:g} s" == str(answers["dead"])
    assert isinstance(answers["deaf"], NoAnswer)
    assert time.monotonic() - began < 500  # nobody waited for those that hang


def test_many_files_are_read_at_once(tmp_path: Path) -> None:
    """What cannot be read is missing; what hangs is left behind."""
    (tmp_path / "one").write_text("1\n")
    os.mkfifo(tmp_path / "dead")
    machine = Machine(str(tmp_path))

    assert {"/one": "1"} == machine.read_all(["/one", "/two"], 60.0)
    assert {} == machine.read_all([])
    with pytest.raises(NoAnswer, match=r"/one did not answer within 0.2 s"):
        machine.read_all(["/one", "/dead"], 0.2)


def test_no_time_is_asked_for_beyond_the_check_s_own() -> None:
    """A check that has used its time gets none for one more question."""
    with pytest.raises(NoAnswer):
        Machine(deadline_s=time.monotonic() - 1).run(["sleep", "5"], 10)


def test_what_several_checks_ask_is_asked_once(tmp_path: Path) -> None:
    """A slow tool runs once for all checks of a run, and what it said, or that it said nothing, is the answer for all."""
    shelf, log = tmp_path / "shelf", tmp_path / "log"
    shelf.mkdir()
    question = ["sh", "-c", f"echo asked >> {log}; echo answer; exit 2"]
    machines = [Machine(shelf=str(shelf)), Machine(shelf=str(shelf))]

    assert [(2, "answer\n", "")] * 2 == [machine.once(question) for machine in machines]
    assert "asked\n" == log.read_text()
    for machine in machines:
        with pytest.raises(NoAnswer, match="no-such-tool is not installed"):
            machine.once(["no-such-tool"])


def test_without_a_shelf_everybody_asks(tmp_path: Path) -> None:
    """A node with no room for a folder is checked all the same."""
    assert (0, "a\n", "") == Machine().once(["echo", "a"])
    assert (0, "a\n", "") == Machine(shelf=str(tmp_path / "nowhere")).once(["echo", "a"])


def test_the_worst_finding_speaks() -> None:
    """Bad stands above degraded, degraded above ok; nothing found is ok."""
    found = [Finding("c", OK, ""), Finding("c", BAD, ""), Finding("c", DEGRADED, "")]

    assert (BAD, OK) == (worst(found), worst([]))


@pytest.mark.parametrize(
    ("room", "severity"),
    [
        (Room(64 * 10**9, 20 * 10**9, 1000, 900), OK),
        (Room(32 * 10**9, 20 * 10**9, 1000, 900), BAD),
        (Room(64 * 10**9, 10**8, 1000, 900), DEGRADED),
        (Room(64 * 10**9, 20 * 10**9, 1000, 3), DEGRADED),
        (Room(64 * 10**9, 20 * 10**9, 0, 0), OK),
        (None, UNKNOWN),
    ],
)
def test_a_disk_is_large_enough_and_has_room(room: Room | None, severity: str) -> None:
    """More than its size, with room and inodes left."""
    for check, more in ((CHECKS["disk-size root"], {}), (CHECKS["disk-size cache"], {"folder": "/cache"})):
        (found,) = check.judge(room, {**check.thresholds, **more})
        assert (check.name, severity) == (found.check, found.severity)


def test_shared_memory_is_asked_and_a_cache_without_a_name_is_not(tmp_path: Path) -> None:
    """64 MB of shared memory end the first data loader; a site that names no cache has none to check."""
    (small,) = CHECKS["disk-size shm"].judge(
        Room(64 * 2**20, 2**20, 0, 0), CHECKS["disk-size shm"].thresholds
    )
    (unnamed,) = CHECKS["disk-size cache"].judge(
        CHECKS["disk-size cache"].probe(Machine(), CHECKS["disk-size cache"].thresholds),
        CHECKS["disk-size cache"].thresholds,
    )

    assert (BAD, SKIPPED) == (small.severity, unnamed.severity)


@pytest.mark.parametrize(
    ("soft", "rdma", "enforce", "severities"),
    [
        ({"memlock_kib": -1, "open_files": -1, "stack_kib": -1, "processes": -1}, True, True, [OK]),
        ({"memlock_kib": 64, "open_files": -1, "stack_kib": -1, "processes": -1}, False, True, [OK]),
        (
            {"memlock_kib": 64, "open_files": 1024, "stack_kib": 8192, "processes": -1},
            True,
            False,
            [DEGRADED] * 2,
        ),
        ({"memlock_kib": 64, "open_files": 2_000_000, "stack_kib": 8192, "processes": -1}, True, True, [BAD]),
    ],
)
def test_limits_are_those_a_job_needs(
    soft: dict[str, int], rdma: bool, enforce: bool, severities: list[str]
) -> None:
    """Memory need be locked only where InfiniBand is; below a mark is bad only where the site says so."""
    found = CHECKS["ulimit"].judge(
        processes.Limits(soft, rdma), {**CHECKS["ulimit"].thresholds, "enforce": enforce}
    )

    assert severities == [one.severity for one in found]


def test_settings_of_the_kernel_are_read_whole() -> None:
    """Files of /proc/sys refuse large reads; both ways of reading get around it."""
    machine = Machine()

    assert os.uname().release == (machine.peek("/proc/sys/kernel/osrelease") or "").strip()
    assert os.uname().release == (machine.read("/proc/sys/kernel/osrelease") or "").strip()
