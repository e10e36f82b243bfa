"""A second slurmctld: what is lost when it takes over, and what ftrun makes of it. Real hosts, real Slurm, as an ordinary user.

How it thinks. h1 has the first controller, h2 the second one, and both keep their state in the home, which all hosts see. Runs are looked
after on h3. slurmctld writes its state every five seconds or so, so who dies takes the last seconds with it.
"""

from __future__ import annotations

import itertools
import json
import re
import signal
import time
from collections.abc import Iterator

import pytest

from tests.cluster.hosts import Hosts, left, nothing, state_at_end, wait
from tests.told import told

pytestmark = [pytest.mark.slurm, pytest.mark.cluster]
TAKEN_OVER_S = 120.0
SAVED_S = 8.0
CONF = {
    "SLURM_CONF": "/var/tmp/ftrun-61001/default/etc/slurm.conf",
    "PATH": "/var/tmp/ftrun-61001/default/bin:/usr/local/bin:/usr/bin:/bin",
}
BUNDLE = told("FTRUN_CLUSTER_BUNDLE", "")
"""A file of `ftrun cluster bundle`: its Slurm in place of the hosts' own."""
LONG = """\
#!/bin/sh
#SBATCH -N1 -wh3 -o long.log
echo "in $$" >>ledger
[ "$FTRUN_ATTEMPT" = 1 ] && sleep 90
echo "out $$" >>ledger
"""
STEPS = """\
#!/bin/sh
#SBATCH -N2 -wh[2-3] -o steps.log
while [ ! -e step ]; do sleep 0.2; done
srun -N2 sleep 8
touch over
while [ ! -e go ]; do sleep 0.2; done
srun -N2 sh -c 'echo second $SLURMD_NODENAME' >>second
"""


@pytest.fixture
def doubled(hosts: Hosts) -> Iterator[Hosts]:
    """A cluster with two controllers. Its runs and files are gone after it; h1 is up."""
    words = ["--bundle", BUNDLE] if BUNDLE else []
    done = hosts.ftrun("h1", "cluster", "up", "h[1-3]", "--backup", "h2", *words)
    assert 0 == done.returncode, done.stderr
    yield hosts
    hosts.ftrun("h3", "cluster", "down", "--force")
    hosts.run("h3", ["sh", "-c", "rm -rf .local/state/ftrun/runs ledger step over go second *.log"])


def _file(hosts: Hosts, name: str) -> str:
    path = hosts.folder / "home" / hosts.user / name
    return path.read_text() if path.exists() else ""


def _submitted(hosts: Hosts, script: str, *words: str) -> tuple[str, str]:
    """The job and the run of a script that was submitted on h3."""
    (hosts.folder / "home" / hosts.user / "train.sh").write_text(script)
    done = hosts.ftrun("h3", "sbatch", "--parsable", *words, "train.sh")
    assert 0 == done.returncode, done.stderr
    run = json.loads(hosts.ftrun("h3", "status", "--json").stdout)["runs"][0]["run"]
    return done.stdout.strip(), run


def _slurm(hosts: Hosts, *words: str) -> str:
    done = hosts.run("h3", words, env=CONF)
    return done.stdout.strip() if done.returncode == 0 else "?"


def _back(hosts: Hosts) -> None:
    """The first host is there again, and the cluster as before."""
    hosts.boot("h1")
    up = hosts.ftrun("h3", "cluster", "up", "h[1-3]")
    assert 0 == up.returncode, up.stderr


def test_the_second_controller_takes_over_and_down_leaves_nothing(doubled: Hosts) -> None:
    """The first host dies: srun works, status says who is away; it comes back by another `up`; the shared state goes with `down`."""
    doubled.die("h1")
    try:
        wait(lambda: _slurm(doubled, "sinfo", "-h", "-n", "h3", "-o", "%T") == "idle", TAKEN_OVER_S)
        ran = _slurm(doubled, "srun", "-N2", "-wh[2-3]", "hostname")
        wait(lambda: _slurm(doubled, "sinfo", "-h", "-n", "h[2-3]", "-o", "%T") == "idle")  # not completing
        shown = doubled.ftrun("h3", "cluster", "status")
        removed = doubled.ftrun("h3", "cluster", "remove", "h2")
    finally:
        _back(doubled)
    ping = _slurm(doubled, "scontrol", "ping")
    down = doubled.ftrun("h3", "cluster", "down")

    assert ["h2", "h3"] == sorted(ran.split())
    assert 1 == shown.returncode
    assert "controller on h1 and h2" in shown.stdout
    assert "h2    idle" in shown.stdout
    assert "h2 runs the second controller" in removed.stderr
    assert 2 == ping.count("UP"), ping
    assert 0 == down.returncode, down.stderr
    gone = left(doubled)  # a bundle that was unpacked stays for the next `up`
    assert nothing(doubled) == {
        host: [one for one in paths if not BUNDLE or "/slurm_" not in one] for host, paths in gone.items()
    }
    assert [] == list((doubled.folder / "home" / doubled.user).glob(".ftrun-cluster*"))


def test_a_job_that_began_two_seconds_before_runs_once(doubled: Hosts) -> None:
    """The second controller has it as pending and starts it again, in spite of --no-requeue: the claim ends that, and the run goes on once."""
    job, run = _submitted(doubled, LONG, "--no-requeue", "--hold")
    time.sleep(SAVED_S)
    _slurm(doubled, "scontrol", "release", job)
    wait(lambda: "in" in _file(doubled, "ledger"))
    time.sleep(2)
    doubled.die("h1")
    try:
        wait(lambda: _slurm(doubled, "squeue", "-h", "-o", "%i") != "?", TAKEN_OVER_S)
        _slurm(doubled, "scontrol", "release", job)  # the hold may be back
        state = state_at_end(doubled, "h3", run, 300)
    finally:
        _back(doubled)
    told = doubled.ftrun("h3", "explain", run).stdout

    assert "finished" == state, told
    _one_at_a_time(_file(doubled, "ledger"))


def _one_at_a_time(ledger: str) -> None:
    """Each start but a killed one has its end before the next; the last one ended by itself."""
    pids = re.findall(r"^in (\d+)$", ledger, re.MULTILINE)
    assert ledger.splitlines()[-1] == f"out {pids[-1]}", ledger
    for pid, following in itertools.pairwise(pids):
        rest = ledger[ledger.index(f"in {following}\n") :]
        assert f"out {pid}\n" not in rest, ledger


def test_a_step_that_ended_a_second_before_keeps_no_later_one_waiting(doubled: Hosts) -> None:
    """The second controller has it as running: the next srun of the script goes through with --overlap where it would wait for ever."""
    _, run = _submitted(doubled, STEPS)
    wait(lambda: _slurm(doubled, "squeue", "-h", "-o", "%T") == "RUNNING")
    time.sleep(SAVED_S)
    (doubled.folder / "home" / doubled.user / "step").touch()
    wait((doubled.folder / "home" / doubled.user / "over").exists)
    time.sleep(1)
    doubled.die("h1")
    try:
        wait(lambda: _slurm(doubled, "squeue", "-h", "-o", "%i") not in {"?", ""}, TAKEN_OVER_S)
        (doubled.folder / "home" / doubled.user / "go").touch()
        state = state_at_end(doubled, "h3", run, 240)
    finally:
        _back(doubled)

    assert "finished" == state, _file(doubled, "steps.log")
    assert ["second h2", "second h3"] == sorted(_file(doubled, "second").splitlines())


def test_a_controller_that_froze_is_ended_before_it_thaws(doubled: Hosts) -> None:
    """Clients would wait for it in vain, and it would come back with the memory of then: its keeper starts it anew."""
    doubled.kill("h1", "slurmctld", signal.SIGSTOP)
    wait(
        lambda: "slurmctld: it was frozen, and the other" in doubled.ftrun("h3", "cluster", "status").stdout,
        300,
    )
    wait(lambda: _slurm(doubled, "scontrol", "ping").count("UP") == 2, 60)
    ran = _slurm(doubled, "srun", "-N3", "hostname")

    assert ["h1", "h2", "h3"] == sorted(ran.split())


def test_a_job_that_began_while_the_first_host_was_frozen_runs_once(doubled: Hosts) -> None:
    """The whole host thaws and takes over with the memory of then, in which the job waits: it does not train twice."""
    _, run = _submitted(doubled, LONG, "--begin=now+30")
    time.sleep(SAVED_S)
    doubled.send("h1", signal.SIGSTOP)
    try:
        wait(lambda: "in" in _file(doubled, "ledger"), TAKEN_OVER_S + 60)
        time.sleep(SAVED_S)
    finally:
        doubled.send("h1", signal.SIGCONT)
    state = state_at_end(doubled, "h3", run, 300)
    told = doubled.ftrun("h3", "explain", run).stdout

    assert "finished" == state, told
    _one_at_a_time(_file(doubled, "ledger"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--backup", "h1"], "--backup h1: it has to be one of the other hosts"),
        (["--backup", "h9"], "--backup h9: it has to be one of the other hosts"),
        (["--backup", "h2", "--share", "/srv/data"], "--backup with --share: "),
    ],
)
def test_what_cannot_be_a_second_controller_is_refused_in_one_line(
    hosts: Hosts, words: list[str], told: str
) -> None:
    """Before anything is changed."""
    before = left(hosts)
    done = hosts.ftrun("h1", "cluster", "up", "h[1-3]", *words)

    assert done.returncode
    assert told in done.stderr.splitlines()[-1]
    assert before == left(hosts)
