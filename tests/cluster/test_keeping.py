"""A cluster stays up: what dies is started again, hosts that reboot come back. A real cron, real hosts, real Slurm, as an ordinary user."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest

from tests.cluster.hosts import Hosts, left, left_on, nothing, wait
from tests.told import told

pytestmark = [pytest.mark.slurm, pytest.mark.cluster]
CRON = True
FOLDER = "/var/tmp/ftrun-61001/default"
ROUNDS = int(told("FTRUN_CLUSTER_ROUNDS", "3"))
CRON_S = 90.0
"""cron looks once a minute."""


@pytest.fixture(autouse=True)
def _no_old_logs(hosts: Hosts) -> None:
    """Logs outlive `down`: those of an earlier test are no proof."""
    for name in hosts.names:
        hosts.run(name, ["rm", "-rf", f"{FOLDER}/log"])


def _status(hosts: Hosts, name: str = "h1") -> dict[str, dict[str, Any]]:
    done = hosts.ftrun(name, "cluster", "status", "--json")
    return {row["host"]: row for row in json.loads(done.stdout)["hosts"]}


def _kept(hosts: Hosts, name: str) -> list[tuple[str, str]]:
    """What the keeper of a host did: daemon and outcome."""
    text = hosts.run(name, ["cat", f"{FOLDER}/log/keeper.jsonl"]).stdout
    return [(row.get("daemon", ""), row["did"]) for row in map(json.loads, text.splitlines())]


def _keep(hosts: Hosts, name: str) -> dict[str, Any]:
    """Run the keeper of a host now, by the very line of the crontab."""
    lines = hosts.run(name, ["crontab", "-l"]).stdout.splitlines()
    command = next(line for line in lines if line.startswith("* * * * *"))[len("* * * * * ") :]
    done = hosts.run(name, ["sh", "-c", command.replace(">/dev/null 2>&1", "")])
    return dict(json.loads(done.stdout)["done"][0]) if done.stdout else {}


def _is_idle(hosts: Hosts, name: str) -> bool:
    done = hosts.ftrun("h1", "cluster", "run", "--", "sinfo", "-h", "-n", name, "-o", "%T")
    return done.stdout.strip() == "idle"


def test_a_daemon_that_was_killed_is_started_by_cron(cluster: Hosts) -> None:
    """slurmd of a host and the controller, by kill -9: both live again within a minute or so, and `status` tells by whom."""
    cluster.kill("h2", "slurmd")
    cluster.kill("h1", "slurmctld")
    wait(lambda: ("slurmd", "started") in _kept(cluster, "h2"), CRON_S)
    wait(lambda: ("slurmctld", "started") in _kept(cluster, "h1"), CRON_S)
    wait(lambda: all(_is_idle(cluster, name) for name in ("h1", "h2", "h3")))
    shown = cluster.ftrun("h1", "cluster", "status")

    assert ["cron"] * 3 == [row["kept_by"] for row in _status(cluster).values()]
    assert 0 == shown.returncode, shown.stdout
    assert "h2: cron started slurmd: it was dead" in shown.stdout
    assert [("slurmd", "started")] == _kept(cluster, "h2")


@pytest.mark.parametrize("name", ["h3", "h1"])
def test_a_host_that_reboots_comes_back_by_itself(cluster: Hosts, name: str) -> None:
    """Also the controller's: the line @reboot of a real cron starts its daemons; its jobs' state is on its disk."""
    job = cluster.ftrun(
        "h2", "cluster", "run", "--", "sbatch", "--parsable", "-wh2", "--wrap", "sleep 45"
    ).stdout.strip()
    wait(lambda: "sleep 45" in " ".join(cluster.processes("h2")))
    cluster.die(name)
    cluster.boot(name)
    wait(lambda: ("slurmd", "started") in _kept(cluster, name), CRON_S)
    wait(lambda: _is_idle(cluster, name))
    shown = cluster.ftrun("h2", "cluster", "status").stdout
    wait(
        lambda: (
            "COMPLETED" in cluster.ftrun("h2", "cluster", "run", "--", "scontrol", "show", "job", job).stdout
        ),
        90,
    )
    down = cluster.ftrun("h1", "cluster", "down")

    assert f"{name}: cron started slurmd: the host was off" in shown
    assert 0 == down.returncode, down.stderr
    assert nothing(cluster) == left(cluster)


def test_all_hosts_reboot_at_once_and_come_back(cluster: Hosts) -> None:
    """A slurmd waits for its controller, and the cluster works as before."""
    for name in cluster.names:
        cluster.die(name)
    for name in reversed(cluster.names):
        cluster.boot(name)
    wait(lambda: all(("slurmd", "started") in _kept(cluster, name) for name in cluster.names), 2 * CRON_S)
    wait(lambda: all(_is_idle(cluster, name) for name in cluster.names))
    ran = cluster.ftrun("h1", "cluster", "run", "--", "srun", "-N3", "hostname")

    assert ["h1", "h2", "h3"] == sorted(ran.stdout.split()), ran.stderr


def test_after_down_and_after_removal_nobody_starts_anything(cluster: Hosts) -> None:
    """No line of cron is left, a user's own lines stay, and two minutes later there is still no process."""
    cluster.run("h3", ["sh", "-c", "(crontab -l; echo '0 4 * * * true') | crontab -"])
    removed = cluster.ftrun("h1", "cluster", "remove", "h3")
    lines = cluster.run("h3", ["crontab", "-l"]).stdout
    cluster.run("h3", ["crontab", "-r"])
    gone = left_on(cluster, "h3")
    down = cluster.ftrun("h1", "cluster", "down")
    time.sleep(125)

    assert 0 == removed.returncode, removed.stderr
    assert "0 4 * * * true\n" == lines
    assert [] == gone
    assert 0 == down.returncode, down.stderr
    assert nothing(cluster) == left(cluster)


def test_up_and_down_many_times_leave_nothing(hosts: Hosts) -> None:
    """FTRUN_CLUSTER_ROUNDS times (`make test-cluster-rounds`): no process, file, key, claim or line of cron, and as many processes as before."""
    for number in range(ROUNDS):
        up = hosts.ftrun("h1", "cluster", "up", "h[1-3]")
        down = hosts.ftrun(f"h{number % 3 + 1}", "cluster", "down")

        assert (0, 0) == (up.returncode, down.returncode), (number, up.stderr, down.stderr)
        assert nothing(hosts) == left(hosts), number


def test_a_host_that_was_removed_while_it_was_off_leaves_when_it_is_back(cluster: Hosts) -> None:
    """The controller does not know it any more: its keeper ends and removes all, and starts no slurmd."""
    cluster.die("h3")
    removed = cluster.ftrun("h1", "cluster", "remove", "h3", "--force")
    cluster.boot("h3")
    wait(lambda: [] == left_on(cluster, "h3"), CRON_S)
    added = cluster.ftrun("h1", "cluster", "add", "h3")

    assert 0 == removed.returncode, removed.stderr
    assert 0 == added.returncode, added.stderr
    assert _is_idle(cluster, "h3")
    assert ("slurmd", "started") not in _kept(cluster, "h3")


def test_a_frozen_host_goes_on_when_it_thaws(cluster: Hosts) -> None:
    """Nothing of it is started a second time."""
    before = {name: one["pid"] for name, one in _status(cluster)["h3"]["daemons"].items()}
    cluster.send("h3", signal.SIGSTOP)
    time.sleep(5)
    cluster.send("h3", signal.SIGCONT)
    wait(lambda: _is_idle(cluster, "h3"))

    assert before == {name: one["pid"] for name, one in _status(cluster)["h3"]["daemons"].items()}
    assert [] == _kept(cluster, "h3")


def test_a_daemon_that_dies_at_each_start_is_not_started_for_ever(cluster: Hosts) -> None:
    """The second start is at once; each later one waits twice as long, and says so."""
    hold = f"import os,socket,time; open('/tmp/stranger','w').write(str(os.getpid())); s=socket.socket(); s.setsockopt(1,2,1); s.bind(('{cluster.address('h3')}',17818)); s.listen(); time.sleep(300)"
    cluster.kill("h3", "slurmd")
    stranger = cluster.start("h3", ["python3", "-c", hold])
    wait(lambda: _port_is_held(cluster))
    answers = [_keep(cluster, "h3") for _ in range(4)]
    cluster.run("h3", ["sh", "-c", "kill $(cat /tmp/stranger)"])
    stranger.communicate(timeout=10)
    mended = cluster.ftrun("h1", "cluster", "up", "h[1-3]")

    assert 2 == sum("slurmd" in one["failed"] for one in answers if one), answers
    assert "it died again and again: the next start is in" in answers[-1]["postponed"]["slurmd"]
    assert 0 == mended.returncode, mended.stderr


def _port_is_held(hosts: Hosts) -> bool:
    return ":459A 00000000:0000 0A" in hosts.run("h3", ["cat", "/proc/net/tcp"]).stdout


def test_a_keeper_that_runs_beside_another_or_without_its_claim_does_nothing(cluster: Hosts) -> None:
    """The claim was taken by hand: the daemons stay, but none is started, and cron forgets the cluster."""
    cluster.run("h3", ["rm", "/var/tmp/ftrun-cluster.claim"])
    cluster.kill("h3", "slurmd")
    answer = _keep(cluster, "h3")
    lines = cluster.run("h3", ["crontab", "-l"]).stdout
    living = " ".join(cluster.processes("h3"))

    assert answer.get("left", True)
    assert "" == lines
    assert "munged" in living
    assert "slurmd" not in living
