"""A cluster on three hosts: up, used, hurt, down. Real hosts, real SSH, real Slurm, as an ordinary user.

How it thinks. The hosts have this machine's Slurm installed and nothing configured. What is said is said on h1, as a person would; what must
be gone is looked for as root.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cluster.hosts import ALICE, RANK, ROOT, Hosts, left, nothing, state_at_end, wait

pytestmark = [pytest.mark.slurm, pytest.mark.cluster]
PLACES = (
    "plan.intent",
    "plan.done",
    "claim.intent",
    "claim.done",
    "start.intent",
    "controller.done",
    "up.done",
)
# A task that wants to outlive its step: a session of its own, no parent, no environment.
RUNAWAY = "setsid sh -c 'env -i sleep 4711 </dev/null >/dev/null 2>&1 & exit' ; sleep 300"


@pytest.mark.parametrize("path", ["/usr/lib", "/etc", "/lib64", "/opt", str(ROOT)])
def test_no_host_can_write_what_is_the_machines(hosts: Hosts, path: str) -> None:
    """Whatever a test or ftrun does on a host as root: programs, libraries, settings and sources of the machine stay as they are."""
    tried = hosts.run("h1", ["touch", f"{path}/ftrun-was-here"], user="root")
    there = Path(path, "ftrun-was-here").exists()
    Path(path, "ftrun-was-here").unlink(missing_ok=True)

    assert (1, False) == (tried.returncode, there)


def test_a_run_on_the_cluster_recovers_from_a_killed_rank(cluster: Hosts) -> None:
    """`ftrun sbatch` finds the cluster by itself and says so once; its run survives the death of a rank."""
    home = cluster.folder / "home" / cluster.user
    (home / "rank.py").write_text(RANK)
    (home / "train.sh").write_text("#!/bin/sh\n#SBATCH -N2 -o train.log\nsrun -K1 python3 -u rank.py\n")
    first = cluster.ftrun("h1", "sbatch", "--ft-log-quiet=1", "train.sh")
    assert 0 == first.returncode, first.stderr
    assert "using your cluster default" in first.stderr
    assert "using your cluster" not in cluster.ftrun("h1", "status").stderr
    run = json.loads(cluster.ftrun("h1", "status", "--json").stdout)["runs"][0]["run"]
    state = state_at_end(cluster, "h1", run)
    log = (home / "train.log").read_text()

    assert "finished" == state, log
    assert 4 == len(re.findall(r"^\d: step 5$", log, re.MULTILINE))


def test_what_leaves_its_group_and_its_parent_ends_with_its_step(cluster: Hosts) -> None:
    """A task that forks twice, takes a session of its own and drops its environment is dead once its job is."""
    submitted = cluster.ftrun(
        "h1",
        "cluster",
        "run",
        "--",
        "sbatch",
        "--parsable",
        "-o/dev/null",
        "-wh2",
        "--wrap",
        f"srun sh -c {RUNAWAY!r}",
    )
    job = submitted.stdout.strip()
    assert job.isdigit(), submitted.stderr
    wait(lambda: any("sleep 4711" in line for line in cluster.processes("h2")))
    cluster.ftrun("h1", "cluster", "run", "--", "scancel", job)
    wait(lambda: "" == cluster.ftrun("h1", "cluster", "run", "--", "squeue", "-h").stdout.strip())

    assert [] == [line for line in cluster.processes("h2") if "sleep" in line]


@pytest.mark.parametrize("place", PLACES)
def test_an_up_that_was_cut_is_mended_by_the_next(hosts: Hosts, place: str) -> None:
    """kill -9 behind each record of the journal: the second `up` ends with a cluster that works, and `down` leaves nothing."""
    cut = hosts.ftrun("h1", "cluster", "up", "h[1-3]", env={"FTRUN_CRASH_AT": f"record:after:{place}"})
    again = hosts.ftrun("h1", "cluster", "up", "h[1-3]")
    ran = hosts.ftrun("h1", "cluster", "run", "--", "srun", "-N3", "hostname")
    hosts.ftrun("h1", "cluster", "down")

    assert -9 == cut.returncode
    assert 0 == again.returncode, again.stderr
    assert ["h1", "h2", "h3"] == sorted(ran.stdout.split())
    assert nothing(hosts) == left(hosts)


@pytest.mark.parametrize("place", ["down.intent", "down.ended"])
def test_a_down_that_was_cut_is_ended_by_the_next(cluster: Hosts, place: str) -> None:
    """kill -9 behind the intent; then a host that cannot be asked; the next `down` ends it all the same."""
    cluster.ftrun("h1", "cluster", "down", env={"FTRUN_CRASH_AT": f"record:after:{place}"})
    again = cluster.ftrun("h1", "cluster", "down")

    assert 0 == again.returncode, again.stderr
    assert nothing(cluster) == left(cluster)


def test_a_host_belongs_to_one_cluster(cluster: Hosts) -> None:
    """A second cluster on a host of a living one is refused in one line, which says whose it is; nothing is changed."""
    second = cluster.ftrun("h2", "cluster", "up", "h[2-3]", "--name", "other")
    alive = cluster.ftrun("h1", "cluster", "status")

    assert 1 == second.returncode
    assert re.fullmatch(
        r"ftrun: nothing was changed: h2: .*belongs to cluster default of alice.*\n",
        second.stderr.splitlines(True)[-1],
    )
    assert 0 == alive.returncode, alive.stdout
    assert "other" not in cluster.ftrun("h2", "cluster", "list").stdout


def test_jobs_keep_a_cluster_from_being_taken_down(cluster: Hosts) -> None:
    """`down` names the jobs and does nothing; --force ends them."""
    cluster.ftrun("h1", "cluster", "run", "--", "sbatch", "-o/dev/null", "--wrap", "sleep 600")
    refused = cluster.ftrun("h1", "cluster", "down")
    forced = cluster.ftrun("h1", "cluster", "down", "--force")

    assert (1, "ftrun: 1 job not over (1): end them first (scancel), or say --force") == (
        refused.returncode,
        refused.stderr.strip(),
    )
    assert 0 == forced.returncode, forced.stderr
    assert nothing(cluster) == left(cluster)


def test_the_key_is_on_no_command_line_and_daemons_listen_on_one_address(cluster: Hosts) -> None:
    """Ports of Slurm are bound to the address of the host; the key is a file that only its user can read."""
    for name in cluster.names:
        table = cluster.run(name, ["cat", "/proc/net/tcp"]).stdout
        listening = {
            words[1].split(":")[0] for line in table.splitlines()[1:] if (words := line.split())[3] == "0A"
        }
        own = "".join(f"{int(part):02X}" for part in reversed(cluster.address(name).split(".")))
        assert {own} == listening
        mode = cluster.run(
            name, ["stat", "-c", "%a", "/var/tmp/ftrun-61001/default/key/munge.key"]
        ).stdout.strip()
        assert "600" == mode


def test_a_host_that_dies_is_down_and_comes_back_by_another_up(cluster: Hosts) -> None:
    """Its processes, claim and files are gone; the second `up` starts it anew, and the others were not touched."""
    before = json.loads(cluster.ftrun("h1", "cluster", "status", "--json").stdout)["hosts"][0]["daemons"][
        "slurmctld"
    ]["pid"]
    cluster.die("h3")
    cluster.boot("h3", new_disk=True)
    half = cluster.ftrun("h1", "cluster", "status")
    again = cluster.ftrun("h1", "cluster", "up", "h[1-3]")
    after = json.loads(cluster.ftrun("h1", "cluster", "status", "--json").stdout)

    assert 1 == half.returncode
    assert 0 == again.returncode, again.stderr
    assert (True, before) == (after["up"], after["hosts"][0]["daemons"]["slurmctld"]["pid"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["h1", "h1"], "named twice: h1"),
        (
            ["localhost", "h2"],
            "localhost beside other hosts: call this host by the name under which the others know it",
        ),
        (["h[1-"], "not a node list"),
        (["@nobody"], "no host in @nobody"),
        (["--hostfile", "none.txt"], "none.txt: No such file or directory"),
        ([], "name the hosts: .*"),
    ],
)
def test_bad_input_is_one_line(hosts: Hosts, words: list[str], told: str) -> None:
    """Exit status 2, and what is wrong."""
    done = hosts.ftrun("h1", "cluster", "up", *words)

    assert 2 == done.returncode
    assert re.match(f"ftrun: {told}", done.stderr), done.stderr
    assert 1 == len(done.stderr.splitlines())


def test_a_host_that_is_not_there_changes_nothing_and_partial_goes_on(hosts: Hosts) -> None:
    """One bad host of three: a refusal that names it and the way on, without any effect; then a cluster of two."""
    refused = hosts.ftrun("h1", "cluster", "up", "h[1-2],h9")
    untouched = left(hosts)
    partial = hosts.ftrun("h1", "cluster", "up", "h[1-2],h9", "--partial")
    nodes = hosts.ftrun("h1", "cluster", "run", "--", "sinfo", "-h", "-o", "%D %T").stdout.strip()
    hosts.ftrun("h1", "cluster", "down")

    assert 1 == refused.returncode
    assert "nothing was changed: h9: ssh: cannot be asked" in refused.stderr
    assert "--partial" in refused.stderr
    assert nothing(hosts) == untouched
    assert (0, "2 idle") == (partial.returncode, nodes)


def test_one_machine_is_a_cluster(hosts: Hosts) -> None:
    """`localhost` needs no SSH."""
    up = hosts.ftrun("h2", "cluster", "up", "localhost", "--name", "one")
    ran = hosts.ftrun("h2", "cluster", "run", "--name", "one", "--", "srun", "hostname")
    hosts.ftrun("h2", "cluster", "down", "--name", "one")

    assert 0 == up.returncode, up.stderr
    assert "h2\n" == ran.stdout
    assert nothing(hosts) == left(hosts)


def test_a_cluster_of_root_runs_the_jobs_of_other_users(hosts_of_root: Hosts) -> None:
    """Every user of the hosts is a client of it, each job runs as its user, and nobody but root reads the key."""
    up = hosts_of_root.ftrun("h1", "cluster", "up", "h[1-2]")
    conf = {"SLURM_CONF": "/var/tmp/ftrun-0/default/etc/slurm.conf"}
    words = ["sh", "-c", "cd /tmp && srun -N2 id -un; cat /var/tmp/ftrun-0/default/key/munge.key"]
    ran = hosts_of_root.run("h1", words, env=conf, user=ALICE)
    down = hosts_of_root.ftrun("h1", "cluster", "down")

    assert 0 == up.returncode, up.stderr
    assert "alice\nalice\n" == ran.stdout
    assert "Permission denied" in ran.stderr
    assert 0 == down.returncode, down.stderr
    assert nothing(hosts_of_root) == left(hosts_of_root)
