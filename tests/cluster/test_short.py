"""The one test of a cluster in `./test`; all others: `make test-cluster`."""

from __future__ import annotations

import pytest

from tests.cluster.hosts import Hosts, left, nothing

pytestmark = pytest.mark.slurm
HOST_COUNT = 2


def test_a_cluster_comes_up_runs_on_all_hosts_and_leaves_nothing(hosts: Hosts) -> None:
    """One command brings it up, srun runs on all hosts, and after `down` there is no process, key, claim or file but logs."""
    up = hosts.ftrun("h1", "cluster", "up", "h[1-2]")
    assert 0 == up.returncode, up.stderr
    conf = {"SLURM_CONF": "/var/tmp/ftrun-61001/default/etc/slurm.conf"}
    ran = hosts.run("h1", ["srun", "-N2", "hostname"], env=conf)
    down = hosts.ftrun("h2", "cluster", "down")

    assert ["h1", "h2"] == sorted(ran.stdout.split()), ran.stderr
    # Two munged, a slurmctld with its helper, two slurmd; and what looks after the hosts over SSH, as they have no cron.
    assert 0 == down.returncode, down.stderr
    assert down.stdout in {f"cluster default is down: {count} processes ended\n" for count in (6, 7)}
    assert nothing(hosts) == left(hosts)
