"""A host on which the user has a systemd of his own that lingers: a real `systemd --user`, in cgroups of its own."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.hosts import ALICE_UID, Hosts, left, wait

pytestmark = [pytest.mark.slurm, pytest.mark.cluster]
HOST_COUNT = 2
SHARE = "/srv/data"
SYSTEMD = "/lib/systemd/systemd"
RUNTIME = {"XDG_RUNTIME_DIR": f"/run/user/{ALICE_UID}"}
AS_ALICE = f"setpriv --reuid={ALICE_UID} --regid={ALICE_UID} --clear-groups"


@pytest.fixture
def lingering(hosts: Hosts) -> Iterator[Hosts]:
    """h1 has a running systemd of the user."""
    yield from _lingering(hosts, "h1")


@pytest.fixture
def lingering_member(hosts: Hosts) -> Iterator[Hosts]:
    """h2 has one."""
    yield from _lingering(hosts, "h2")


def _lingering(hosts: Hosts, name: str) -> Iterator[Hosts]:
    groups = [Path("/sys/fs/cgroup", name, f"ftrun-test-{os.getpid()}") for name in ("systemd", "unified")]
    if not os.path.exists(SYSTEMD) or not all(one.parent.is_dir() for one in groups):
        pytest.skip("no systemd here, or no cgroups in which it could run")
    for one in groups:
        one.mkdir()
        os.chown(one, ALICE_UID, ALICE_UID)
        for path in one.iterdir():
            os.chown(path, ALICE_UID, ALICE_UID)
    runtime = RUNTIME["XDG_RUNTIME_DIR"]
    script = (
        f"mkdir -p /run/systemd/system {runtime}; chown {ALICE_UID}:{ALICE_UID} {runtime}; chmod 700 {runtime}\n"
        "mount -t tmpfs host /var/lib/systemd; mkdir /var/lib/systemd/linger; touch /var/lib/systemd/linger/alice\n"
        f"{_entered(groups)}\n"
        f"exec setsid {AS_ALICE} env XDG_RUNTIME_DIR={runtime} {SYSTEMD} --user >/dev/null 2>&1 </dev/null &"
    )
    try:
        hosts.run(name, ["sh", "-c", script], user="root")
        show = ["systemctl", "--user", "show", "--property=Version"]
        wait(lambda: 0 == hosts.run(name, show, env=RUNTIME).returncode)
        # What is said on the host is said in the user's own cgroups, as after a login: else systemd may not move it into a scope.
        (hosts.folder / "in-session").write_text(f'#!/bin/sh\n{_entered(groups)}\nexec {AS_ALICE} "$@"\n')
        sshd = f"kill $(cat /run/sshd.pid); {_entered(groups)}; exec /usr/sbin/sshd -f /mnt/etc/sshd-{name}"
        hosts.run(name, ["sh", "-c", sshd], user="root")
        yield hosts
    finally:
        hosts.die(name)
        for one in groups:
            _remove(one)
        hosts.boot(name, new_disk=True)


def _entered(groups: list[Path]) -> str:
    return "; ".join(f"echo $$ >{one}/cgroup.procs" for one in groups)


def _remove(group: Path) -> None:
    give_up_s = time.monotonic() + 10
    while group.exists() and time.monotonic() < give_up_s:
        for path, _, _ in os.walk(group, topdown=False):
            try:
                os.rmdir(path)
            except OSError:  # processes of a dead host are still leaving
                time.sleep(0.05)


def test_daemons_live_in_scopes_of_their_own_and_a_timer_looks_after_them(lingering: Hosts) -> None:
    """The keeper's unit ends and the daemon that it started lives on; `down` leaves no unit."""
    python = Path(__file__).resolve().parents[2] / ".venv" / "bin" / "ftrun"
    home = f"/mnt/home/{lingering.user}"
    words = ["sh", "/mnt/in-session", "env", f"HOME={home}", str(python), "cluster", "up", "localhost"]
    up = lingering.run("h1", words, user="root")
    assert 0 == up.returncode, up.stderr
    lingering.kill("h1", "slurmd")
    wait(
        lambda: "systemd started slurmd: it was dead" in lingering.ftrun("h1", "cluster", "status").stdout,
        120,
    )
    units = lingering.run(
        "h1", ["systemctl", "--user", "list-units", "--all", "--no-pager"], env=RUNTIME
    ).stdout
    status = lingering.ftrun("h1", "cluster", "status")
    down = lingering.ftrun("h1", "cluster", "down")
    after = lingering.run(
        "h1", ["systemctl", "--user", "list-timers", "--all", "--no-pager"], env=RUNTIME
    ).stdout

    assert "neither systemd" not in up.stdout
    assert any(".scope" in line and "slurmd -f" in line for line in units.splitlines()), units
    assert 0 == status.returncode, status.stdout
    assert 0 == down.returncode, down.stderr
    assert "ftrun" not in after
    assert [] == [
        line for line in left(lingering)["h1"] if line != f"{SYSTEMD} --user" and "sd-pam" not in line
    ]


@pytest.mark.skipif(shutil.which("sshfs") is None, reason="no sshfs here (.ci/env dev as root installs it)")
def test_a_shared_folder_outlives_the_session_and_the_unit_that_mounted_it(lingering_member: Hosts) -> None:
    """sshfs has a scope of its own. Killed, it is mounted anew by the timer's keeper, and outlives that unit, too; `down` leaves nothing."""
    hosts = lingering_member
    up = hosts.ftrun("h1", "cluster", "up", "h[1-2]", "--share", SHARE)
    assert 0 == up.returncode, up.stderr
    try:
        hosts.run("h1", ["sh", "-c", f"echo kept >{SHARE}/file"])
        first = _scopes(hosts)
        hosts.kill("h2", "sshfs")
        wait(
            lambda: "h2: systemd started sshfs: it was dead" in hosts.ftrun("h1", "cluster", "status").stdout,
            150,
        )
        time.sleep(3)  # the unit that started it is over
        second = _scopes(hosts)
        read = hosts.run("h2", ["cat", f"{SHARE}/file"])
    finally:
        down = hosts.ftrun("h1", "cluster", "down", "--force")

    assert 1 == len(first) == len(second), (first, second)
    assert "kept\n" == read.stdout, read.stderr
    assert 0 == down.returncode, down.stderr
    assert SHARE not in hosts.run("h2", ["cat", "/proc/self/mounts"]).stdout
    assert [] == [line for line in left(hosts)["h2"] if line != f"{SYSTEMD} --user" and "sd-pam" not in line]


def _scopes(hosts: Hosts) -> list[str]:
    """The scopes on h2 in which a sshfs lives."""
    units = hosts.run("h2", ["systemctl", "--user", "list-units", "--no-pager"], env=RUNTIME).stdout
    return [line for line in units.splitlines() if ".scope" in line and "sshfs" in line]
