"""Hosts that have neither systemd nor cron are looked after over SSH, from where `up` was said."""

from __future__ import annotations

import json
import signal

import pytest

from tests.cluster.hosts import Hosts, left, nothing, wait

pytestmark = [pytest.mark.slurm, pytest.mark.cluster]
FOLDER = "/var/tmp/ftrun-61001/default"


def _done(hosts: Hosts, name: str) -> list[tuple[str, str]]:
    """What was started again on a host, and by whom."""
    text = hosts.run(name, ["cat", f"{FOLDER}/log/keeper.jsonl"]).stdout
    return [
        (row["daemon"], row["by"]) for row in map(json.loads, text.splitlines()) if row["did"] == "started"
    ]


def test_hosts_without_cron_are_looked_after_over_ssh_and_it_is_said_what_that_means(hosts: Hosts) -> None:
    """A killed slurmd and a rebooted host are started again; the process that does it ends with `down`, and starts again with `status`."""
    up = hosts.ftrun("h1", "cluster", "up", "h[1-3]")
    assert 0 == up.returncode, up.stderr
    hosts.kill("h2", "slurmd")
    hosts.die("h3")
    hosts.boot("h3")
    wait(lambda: ("slurmd", "alice@h1 over SSH") in _done(hosts, "h2"), 120)
    wait(lambda: ("slurmd", "alice@h1 over SSH") in _done(hosts, "h3"), 120)
    hosts.run("h1", ["sh", "-c", "kill $(cut -d' ' -f1 .local/state/ftrun/cluster/default/watch.lock)"])
    wait(lambda: not _watches(hosts, "h1"))
    status = hosts.ftrun("h1", "cluster", "status")
    watches = _watches(hosts, "h1")
    down = hosts.ftrun("h2", "cluster", "down")

    assert (
        "note: h[1-3]: neither systemd with linger nor cron: does not come back by itself after a reboot"
        in up.stdout
    )
    assert "note: h[1-3]: neither systemd" in status.stdout
    assert 1 == watches
    assert 0 == down.returncode, down.stderr
    assert nothing(hosts) == left(hosts)


def test_a_down_that_met_a_frozen_host_is_said_again(hosts: Hosts) -> None:
    """It says which host does not answer, and keeps the plan; after the thaw nothing is left, also nobody who looks after the hosts."""
    up = hosts.ftrun("h1", "cluster", "up", "h[2-3]")
    assert 0 == up.returncode, up.stderr
    hosts.send("h3", signal.SIGSTOP)
    frozen = hosts.ftrun("h1", "cluster", "down")
    hosts.send("h3", signal.SIGCONT)
    down = hosts.ftrun("h1", "cluster", "down")

    assert 1 == frozen.returncode
    assert "not all of cluster default is down: h3: " in frozen.stderr
    assert 0 == down.returncode, down.stderr
    assert nothing(hosts) == left(hosts)


def _watches(hosts: Hosts, name: str) -> int:
    return sum("ftrun.supervisor.cluster.watch" in line for line in hosts.processes(name))
