"""A laptop that is no host of the cluster, a workstation without sshd, and a node that is cut off. As an ordinary user.

How it thinks. h3 is the laptop: what it keeps lies on its own disk, and its PATH has ssh and no Slurm. h2 is the workstation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.hosts import Hosts, left, nothing, state_at_end, state_of, wait

pytestmark = [pytest.mark.slurm, pytest.mark.cluster]
FTRUN_ON_LAPTOP = {"FTRUN_HOME": "/srv/ftrun", "PATH": "/mnt/bin"}
RANK = """\
import os, pathlib, signal, sys, time
file = pathlib.Path("ckpt/step")
first = int(file.read_text()) + 1 if file.exists() else 1
print(f"from {first}", flush=True)
for step in range(first, 11):
    print(f"step {step}", flush=True)
    if step == 5 and not pathlib.Path("killed").exists():
        pathlib.Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    file.write_text(str(step))
    time.sleep(0.1)
"""


@pytest.fixture(autouse=True)
def _programs(hosts: Hosts) -> None:
    """The laptop has no others."""
    programs = hosts.folder / "bin"
    programs.mkdir(exist_ok=True)
    for name in ("ssh", "sh"):
        if not (programs / name).exists():
            (programs / name).symlink_to(f"/usr/bin/{name}")


@pytest.fixture
def laptop(hosts: Hosts) -> Iterator[dict[str, str]]:
    """The variables of commands on h3, which brought up a cluster on the two others."""
    up = hosts.ftrun("h3", "cluster", "up", "h[1-2]", env=FTRUN_ON_LAPTOP)
    assert 0 == up.returncode, up.stderr
    yield FTRUN_ON_LAPTOP
    hosts.ftrun("h3", "cluster", "down", "--force", env=FTRUN_ON_LAPTOP)


def test_a_run_goes_on_while_the_laptop_that_submitted_it_is_off(
    hosts: Hosts, laptop: dict[str, str]
) -> None:
    """`ftrun sbatch` there runs on the first host and says so once; so do the other commands, and the supervisor stays there."""
    home = hosts.folder / "home" / hosts.user
    (home / "train.sh").write_text("#!/bin/sh\n#SBATCH -o train.log\nsleep 8\necho done\n")
    job = hosts.ftrun("h3", "sbatch", "--parsable", "train.sh", env=laptop)
    again = hosts.ftrun("h3", "status", "--json", env=laptop)
    hosts.die("h3")
    run = json.loads(again.stdout)["runs"][0]["run"]
    state = state_at_end(hosts, "h1", run)
    hosts.boot("h3")

    assert (0, True) == (job.returncode, job.stdout.strip().isdigit()), job.stderr
    assert 1 == job.stderr.count("run on h1, of your cluster default")
    assert "of your cluster" not in again.stderr
    assert "finished" == state
    assert "done\n" == (home / "train.log").read_text()


def test_a_script_that_is_not_on_the_first_host_is_told_in_one_line(
    hosts: Hosts, laptop: dict[str, str]
) -> None:
    """And nothing is submitted; by stdin it goes along."""
    words = ["sh", "-c", 'cd /srv && printf "#!/bin/sh\\ntrue\\n" >own.sh && "$@"', "sh"]
    program = str(Path(__file__).parents[2] / ".venv/bin/ftrun")
    refused = hosts.run("h3", [*words, program, "sbatch", "own.sh"], env=laptop)
    words[2] = words[2].replace('"$@"', '"$@" <own.sh')
    sent = hosts.run("h3", [*words, program, "sbatch", "-o/dev/null"], env=laptop)

    assert 2 == refused.returncode
    assert "there is no own.sh on h1: copy it there first: scp own.sh h1:" in refused.stderr
    assert "Submitted batch job 1\n" == sent.stdout, sent.stderr


def test_an_exit_status_and_stdout_are_those_of_the_first_host(hosts: Hosts, laptop: dict[str, str]) -> None:
    """As if it had been said there."""
    bad = hosts.ftrun("h3", "sbatch", "-pnone", "--wrap", "true", env=laptop)
    gone = hosts.ftrun("h3", "show", "nothing-0001", env=laptop)

    assert (1, "") == (bad.returncode, bad.stdout), bad.stderr
    assert gone.returncode
    assert "nothing-0001" in gone.stderr


def test_commands_of_a_laptop_go_to_the_controller_that_is_in_control(hosts: Hosts) -> None:
    """The first host dies, the second one takes over: the next `ftrun sbatch` runs there and says so, and its run ends there."""
    up = hosts.ftrun("h3", "cluster", "up", "h[1-2]", "--backup", "h2", env=FTRUN_ON_LAPTOP)
    assert 0 == up.returncode, up.stderr
    words = ("sbatch", "--parsable", "-wh2", "-o/dev/null", "--wrap", "hostname >who")
    try:
        before = hosts.ftrun("h3", "status", env=FTRUN_ON_LAPTOP)
        hosts.die("h1")
        wait(lambda: hosts.ftrun("h3", *words, env=FTRUN_ON_LAPTOP).returncode == 0, 180)
        said = hosts.ftrun("h3", "status", "--all", "--json", env=FTRUN_ON_LAPTOP)
        run = json.loads(said.stdout)["runs"][-1]["run"]
        state = state_at_end(hosts, "h2", run)
    finally:
        hosts.boot("h1")
        hosts.ftrun("h3", "cluster", "up", "h[1-2]", env=FTRUN_ON_LAPTOP)
        hosts.ftrun("h3", "cluster", "down", "--force", env=FTRUN_ON_LAPTOP)

    assert (0, False) == (before.returncode, "this runs on" in before.stderr), before.stderr
    assert "this runs on h2" in said.stderr
    assert "finished" == state
    assert "h2\n" == (hosts.folder / "home" / hosts.user / "who").read_text()


def test_a_workstation_without_sshd_restarts_a_rank_and_resumes(hosts: Hosts) -> None:
    """`up localhost`, `ftrun sbatch`, a killed rank, a resume from what was saved: nothing of it asks for SSH."""
    hosts.die("h2")
    hosts.boot("h2", with_sshd=False)
    home = hosts.folder / "home" / hosts.user
    (home / "rank.py").write_text(RANK)
    (home / "one.sh").write_text(
        "#!/bin/sh\n#SBATCH -o one.log\nmkdir -p ckpt\nsrun -K1 python3 -u rank.py\n"
    )
    up = hosts.ftrun("h2", "cluster", "up", "localhost", "--name", "one")
    job = hosts.ftrun("h2", "sbatch", "--ft-log-quiet=1", "one.sh")
    assert (0, 0) == (up.returncode, job.returncode), up.stderr + job.stderr
    run = json.loads(hosts.ftrun("h2", "status", "--json").stdout)["runs"][0]["run"]
    state = state_at_end(hosts, "h2", run)
    log = (home / "one.log").read_text()
    down = hosts.ftrun("h2", "cluster", "down", "--name", "one")
    gone = left(hosts)
    hosts.die("h2")
    hosts.boot("h2")

    assert "finished" == state, log
    assert ["1", "5"] == re.findall(r"^(?:0: )?from (\d+)$", log, re.MULTILINE), log
    assert (0, nothing(hosts)) == (down.returncode, gone), down.stderr


def test_a_dead_host_that_the_fence_command_cuts_off_is_waited_for_no_longer(hosts: Hosts) -> None:
    """The command of the cluster is called once with the host's name, and the run goes on elsewhere; a later `up` changes it."""
    home = hosts.folder / "home" / hosts.user
    command = "echo {node} >>~/cut"
    up = hosts.ftrun(
        "h1", "cluster", "up", "h[1-3]", "--fence-command", command, "--repair-command", "true {node}"
    )
    assert 0 == up.returncode, up.stderr
    try:
        _shorten_slurmd_timeout(hosts)
        (home / "long.sh").write_text(
            "#!/bin/sh\n#SBATCH -N1 -xh1 -o long.log\n[ $FTRUN_ATTEMPT = 1 ] || exit 0\nsleep 600\n"
        )
        job = hosts.ftrun("h1", "sbatch", "--ft-fence-wait=1h", "long.sh")
        assert 0 == job.returncode, job.stderr
        run = json.loads(hosts.ftrun("h1", "status", "--json").stdout)["runs"][0]["run"]
        wait(lambda: state_of(hosts, "h1", run) == "running", 60)
        node = hosts.ftrun("h1", "cluster", "run", "--", "squeue", "-h", "-o%N").stdout.strip()
        hosts.die(node)
        state_at_end(hosts, "h1", run, 240)
        told = hosts.ftrun("h1", "explain", run).stdout
        hosts.boot(node)
        hosts.ftrun("h1", "cluster", "up", "h[1-3]", "--fence-command", "false {node}")
        file = hosts.run("h1", ["cat", "/var/tmp/ftrun-61001/default/etc/ftrun.toml"]).stdout
    finally:
        hosts.ftrun("h1", "cluster", "down", "--force")

    assert [node] == (home / "cut").read_text().split(), told
    assert f"fenced: {node}" in told
    assert 'fence-command = "false {node}"' in file
    assert 'recheck-step = ["true {node}"]' in file


def _shorten_slurmd_timeout(hosts: Hosts) -> None:
    """A dead host is given up after 10 s instead of a minute."""
    conf = "/var/tmp/ftrun-61001/default/etc/slurm.conf"
    for name in hosts.names:
        hosts.run(name, ["sed", "-i", "s/^SlurmdTimeout=.*/SlurmdTimeout=10/", conf])
    hosts.ftrun("h1", "cluster", "run", "--", "scontrol", "reconfigure")
