"""Hosts that are hurt: a full disk, a clock ten minutes off, a stranger on a port or an accelerator. Real hosts, real Slurm, as an ordinary user."""

from __future__ import annotations

import contextlib
import glob
import json
import re
import time
from collections.abc import Iterator

import pytest

from tests.cluster.hosts import Hosts, left, nothing, state_at_end, wait

pytestmark = [pytest.mark.slurm, pytest.mark.cluster]
CONF = {"SLURM_CONF": "/var/tmp/ftrun-61001/default/etc/slurm.conf"}
FOLDER = "/var/tmp/ftrun-61001/default"
FAKETIME = next(iter(glob.glob("/usr/lib/*/faketime/libfaketime.so.1")), "")
LATE = {"LD_PRELOAD": FAKETIME, "FAKETIME": "-10m"}
OFF_S = 150.0
KEPT_S = 120.0
OWN_DEV = "mkdir /run/upper /run/work; mount -t overlay host -o lowerdir=/dev,upperdir=/run/upper,workdir=/run/work /dev; mknod -m 666 /dev/nvidia0 c 1 3"
"""A /dev of the host's own with the device file of a GPU in it."""


@pytest.fixture
def rebooted(hosts: Hosts) -> Iterator[Hosts]:
    """h3 is what it was after the test."""
    yield hosts
    hosts.die("h3")
    hosts.boot("h3", new_disk=True)


def _node(hosts: Hosts, name: str) -> str:
    return hosts.run("h1", ["sinfo", "-h", "-n", name, "-o", "%T"], env=CONF).stdout.strip()


def test_a_run_leaves_a_host_whose_disk_is_full(rebooted: Hosts) -> None:
    """slurmd cannot write the script there: the run goes on elsewhere, status says why, and with space again the keeper starts what died."""
    rebooted.run("h3", ["mount", "-t", "tmpfs", "-o", "size=600m,mode=1777", "host", "/var/tmp"], user="root")
    up = rebooted.ftrun("h1", "cluster", "up", "h[1-3]")
    assert 0 == up.returncode, up.stderr
    try:
        rebooted.run("h3", ["sh", "-c", "cat /dev/zero >/var/tmp/full"], user="root")
        rebooted.ftrun("h1", "cluster", "drain", "h[1-2]")
        home = rebooted.folder / "home" / rebooted.user
        (home / "full.sh").write_text("#!/bin/sh\n#SBATCH -o full.log\nhostname\n")
        job = rebooted.ftrun("h1", "sbatch", "--ft-log-quiet=1", "full.sh")
        assert 0 == job.returncode, job.stderr
        wait(lambda: _node(rebooted, "h3") != "idle", 90)
        rebooted.ftrun("h1", "cluster", "resume", "h[1-2]")
        run = json.loads(rebooted.ftrun("h1", "status", "--json").stdout)["runs"][0]["run"]
        state = state_at_end(rebooted, "h1", run, 300)
        shown = rebooted.ftrun("h1", "cluster", "status").stdout
        rebooted.kill("h3", "slurmd")
        rebooted.run("h3", ["rm", "/var/tmp/full"], user="root")
        wait(lambda: any("slurmd -f" in line for line in rebooted.processes("h3")), KEPT_S)
    finally:
        rebooted.ftrun("h1", "cluster", "down", "--force")

    assert "finished" == state
    assert (home / "full.log").read_text().split()[-1] in {"h1", "h2"}
    assert "note: h3: 0 MiB are free in /var/tmp: no job starts where slurmd cannot write" in shown


def test_a_host_without_space_is_refused(rebooted: Hosts) -> None:
    """Before anything is changed."""
    rebooted.run("h3", ["mount", "-t", "tmpfs", "-o", "size=100m,mode=1777", "host", "/var/tmp"], user="root")
    refused = rebooted.ftrun("h1", "cluster", "up", "h[1-3]")

    assert 1 == refused.returncode
    assert "nothing was changed: h3: disk: " in refused.stderr
    assert nothing(rebooted) == left(rebooted)


@pytest.mark.skipif(not FAKETIME, reason="no libfaketime here (.ci/env cluster as root installs it)")
def test_a_clock_ten_minutes_off_is_refused_and_told(rebooted: Hosts) -> None:
    """`up` refuses the host. In a living cluster its messages are refused: its node goes down, status says why, and it is back once mended."""
    _say_late(rebooted)
    refused = rebooted.ftrun("h1", "cluster", "up", "h[1-3]")
    untouched = left(rebooted)
    _say_in_time(rebooted)
    up = rebooted.ftrun("h1", "cluster", "up", "h[1-3]")
    assert 0 == up.returncode, up.stderr
    try:
        _say_late(rebooted)
        rebooted.kill("h3", "munged")
        key, run = f"{FOLDER}/key/munge.key", f"{FOLDER}/run"
        munged = ["/usr/sbin/munged", f"--socket={FOLDER}/munge/munge.sock", f"--key-file={key}", f"--pid-file={run}/munged.pid", f"--seed-file={run}/munged.seed",
                  f"--log-file={FOLDER}/log/munged.log", "--force"]  # fmt: skip
        mark = json.loads(rebooted.run("h1", ["readlink", "/var/tmp/ftrun-cluster.claim"]).stdout)["token"]
        env = {**LATE, "PATH": "/usr/sbin:/usr/bin:/bin", "FTRUN_CLUSTER_DAEMON": f"{mark}/munged"}
        rebooted.run("h3", munged, env=env)
        wait(lambda: _node(rebooted, "h3").startswith("down"), OFF_S)
        shown = rebooted.ftrun("h1", "cluster", "status").stdout
        _say_in_time(rebooted)
        rebooted.kill("h3", "munged")
        rebooted.kill(
            "h3", "slurmd"
        )  # it registers when it starts; Slurm itself asks a node that is down minutes later
        wait(lambda: _node(rebooted, "h3") == "idle", KEPT_S)
    finally:
        rebooted.ftrun("h1", "cluster", "down", "--force")

    assert re.search(r"nothing was changed: h3: clock: is -(599|600|601) s off", refused.stderr), (
        refused.stderr
    )
    assert nothing(rebooted) == untouched
    assert re.search(r"note: h3: its clock is -(599|600|601) s off", shown), shown


def _say_late(hosts: Hosts) -> None:
    """What is said on h3 over SSH is said at a time ten minutes ago."""
    _restart_sshd(hosts, " ".join(["SetEnv", *(f"{key}={value}" for key, value in LATE.items())]) + "\n")


def _say_in_time(hosts: Hosts) -> None:
    _restart_sshd(hosts, "")


def _restart_sshd(hosts: Hosts, more: str) -> None:
    config = hosts.folder / "etc" / "sshd-h3"
    lines = [line for line in config.read_text().splitlines(keepends=True) if not line.startswith("SetEnv")]
    config.write_text("".join(lines) + more)
    pid = hosts.run("h3", ["cat", "/run/sshd.pid"], user="root").stdout.strip()
    assert int(pid) > 1
    hosts.run("h3", ["kill", "-HUP", pid], user="root")  # it starts itself again
    time.sleep(1)


@contextlib.contextmanager
def _stranger(hosts: Hosts, does: str) -> Iterator[None]:
    """A program of the user on h3 that does something, and stays until the block ends."""
    code = f"import os, socket, time; {does}; print(os.getpid(), flush=True); time.sleep(300)"
    stranger = hosts.start("h3", ["python3", "-c", code])
    assert stranger.stdout is not None
    pid = int(stranger.stdout.readline())
    assert pid > 1
    try:
        yield
    finally:
        hosts.run("h3", ["kill", str(pid)])
        stranger.communicate(timeout=10)


def test_a_stranger_on_a_port_is_a_refusal_and_other_ports_go(hosts: Hosts) -> None:
    """The line names host, port and the way on, and nothing that only follows from it."""
    with _stranger(hosts, f"s = socket.create_server(('{hosts.address('h3')}', 17818))"):
        refused = hosts.ftrun("h1", "cluster", "up", "h[1-3]")
        untouched = left(hosts)["h1"]
        elsewhere = hosts.ftrun("h1", "cluster", "up", "h[1-3]", "--base-port", "19000")
        down = hosts.ftrun("h1", "cluster", "down")

    assert 1 == refused.returncode
    assert "h3: ports: port 17818 is taken by another program: choose others by --base-port" in refused.stderr
    assert "more: ftrun cluster survey" not in refused.stderr
    assert [] == untouched
    assert (0, 0) == (elsewhere.returncode, down.returncode), elsewhere.stderr


def test_a_stranger_on_an_accelerator_is_told_and_two_jobs_never_get_the_same(rebooted: Hosts) -> None:
    """The survey names who holds the device file. Of two jobs that want the one GPU the second waits."""
    rebooted.run("h3", ["sh", "-c", OWN_DEV], user="root")
    with _stranger(rebooted, "f = open('/dev/nvidia0')"):
        up = rebooted.ftrun("h1", "cluster", "up", "h[1-3]")
    assert 0 == up.returncode, up.stderr
    try:
        script = "hostname; echo $CUDA_VISIBLE_DEVICES; sleep 60"
        jobs = [
            rebooted.run("h1", ["sbatch", "--gres=gpu:1", "-ogpu.log", "--wrap", script], env=CONF)
            for _ in range(2)
        ]
        wait(lambda: "RUNNING" in rebooted.run("h1", ["squeue", "-h", "-o", "%T"], env=CONF).stdout)
        states = rebooted.run("h1", ["squeue", "-h", "-o", "%T"], env=CONF).stdout.split()
        log = rebooted.folder / "home" / rebooted.user / "gpu.log"
        wait(lambda: log.exists() and len(log.read_text().split()) == 2)
    finally:
        rebooted.ftrun("h1", "cluster", "down", "--force")

    assert "note: h3: accelerators: /dev/nvidia0 is held by python3 (" in up.stdout
    assert [0, 0] == [one.returncode for one in jobs]
    assert ["PENDING", "RUNNING"] == sorted(states)
    assert ["h3", "0"] == log.read_text().split()
