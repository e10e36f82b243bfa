"""A cluster on hosts without Slurm: by a bundle, made from packages of the distribution by an ordinary user. Real packages, hosts and jobs.

How it thinks. All files of Slurm, munge and the libraries that only they need are hidden on the hosts, and / is read-only there. The bundle is
made on no host, since a host has no network but that of the hosts; it is found in the user's home, as one that was carried there would be.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import made
from tests.cluster.hosts import ALICE, ROOT, Hosts, state_at_end, wait

pytestmark = pytest.mark.cluster
SHARE = "/srv/data"
BACK_S = 150.0
SAVED_S = 8.0
"""Within this time slurmctld has written to its disk that a job ended: else that job is back after the reboot."""
FTRUN = str(ROOT / ".venv/bin/ftrun")
MIRROR_S = 60.0
MAKE_S = 420.0
HELPER = "/usr/lib/apt/apt-helper"
PACKAGES = (
    "slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge", "libmunge2", "libhwloc15", "liblua5.1-0", "libjson-c5",
    "libyaml-0-2", "libnuma1",
)  # fmt: skip
OF_SLURM = ("SLURM", "ENVIRONMENT", "SRUN_DEBUG", "OMPI_", "PRTE_", "HYDRA_", "I_MPI_")
"""Variables of Slurm's own: it tells MPI launchers how to start ranks."""
SHOW = "env; echo ==; cat /proc/self/maps; ls -l /proc/self/fd"
TRAIN = """\
#!/bin/sh
#SBATCH -N2 -o train.log
echo "attempt $FTRUN_RESTART"
[ "$FTRUN_RESTART" != 0 ] || kill -9 $$
srun -N2 hostname
scontrol show job "$SLURM_JOB_ID" | grep JobState
"""


@pytest.fixture(scope="module")
def bare() -> Iterator[Hosts]:
    """Two hosts without any Slurm, and a bundle in the home of their user."""
    yield from _made(2, ALICE)


@pytest.fixture
def bare_of_root() -> Iterator[Hosts]:
    """The same, on which root says what is said."""
    yield from _made(1, "root")


def _made(count: int, user: str) -> Iterator[Hosts]:
    if shutil.which("dpkg-deb") is None or not os.path.exists(HELPER):
        pytest.skip("a bundle is made on a Debian or Ubuntu")
    for hosts in made(count, user, cron=True, hidden=_files_of_slurm()):
        _ask_mirror(hosts.folder)
        done = hosts.outside([FTRUN, "cluster", "bundle"], MAKE_S)
        assert 0 == done.returncode, done.stderr
        yield hosts


def _ask_mirror(folder: Path) -> None:
    form = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Component: main"]
    sites = subprocess.run(form, capture_output=True, text=True, check=True).stdout.split()
    suite = "noble" if "ubuntu" in sites[0] else "trixie"
    words = [HELPER, "download-file", f"{sites[0]}dists/{suite}/InRelease", str(folder / "InRelease")]
    try:
        done = subprocess.run(words, capture_output=True, timeout=MIRROR_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"the mirror of packages does not answer within {MIRROR_S:g} s")
    if done.returncode:
        pytest.skip(f"the mirror of packages does not answer: {done.stderr.decode().strip()}")


def _files_of_slurm() -> list[str]:
    """Programs, plugins and libraries that are installed here, those that only Slurm needs among them."""
    listed = subprocess.run(["dpkg", "-L", *PACKAGES], capture_output=True, text=True, check=False).stdout
    paths = {os.path.realpath(line) for line in listed.splitlines() if re.search(r"/s?bin/.|\.so", line)}
    return sorted(path for path in paths if os.path.isfile(path))


@pytest.fixture
def cluster(bare: Hosts) -> Iterator[Hosts]:
    """The hosts with a cluster on them."""
    done = bare.ftrun("h1", "cluster", "up", "h[1-2]")
    assert 0 == done.returncode, done.stderr
    yield bare
    bare.ftrun("h1", "cluster", "down", "--force")


def test_hosts_without_slurm_get_a_cluster_by_a_bundle_and_keep_nothing_else(bare: Hosts) -> None:
    """The survey does not object; srun runs on all hosts; the second `up` copies nothing; `down` leaves logs and the bundle alone."""
    survey = bare.ftrun("h1", "cluster", "survey", "h[1-2]")
    up = bare.ftrun("h1", "cluster", "up", "h[1-2]")
    assert 0 == up.returncode, up.stderr
    ran = bare.ftrun("h1", "cluster", "run", "--", "srun", "-N2", "hostname")
    away = bare.run("h2", ["sh", "-c", f'eval "$({FTRUN} cluster env)"; srun -N2 hostname; sinfo -h -o %D'])
    inode = bare.run("h1", ["sh", "-c", "stat -c %i /var/tmp/ftrun-61001/slurm_*"]).stdout
    down = bare.ftrun("h1", "cluster", "down")
    left = {
        name: bare.processes(name) + bare.run(name, ["sh", "-c", _find()], user="root").stdout.split()
        for name in bare.names
    }
    again = bare.ftrun("h1", "cluster", "up", "h[1-2]")
    kept = bare.run("h1", ["sh", "-c", "stat -c %i /var/tmp/ftrun-61001/slurm_*"]).stdout
    bare.ftrun("h1", "cluster", "down")

    assert 0 == survey.returncode, survey.stdout
    assert "note: h[1-2]: Slurm: not installed: a bundle of Slurm is used on all hosts" in survey.stdout
    assert "Slurm 24.11" in up.stdout or "Slurm 23.11" in up.stdout
    assert ["h1", "h2"] == sorted(ran.stdout.split()), ran.stderr
    assert ["2", "h1", "h2"] == sorted(away.stdout.split()), away.stderr
    assert 0 == down.returncode, down.stderr
    assert {"h1": [], "h2": []} == left
    assert 0 == again.returncode, again.stderr
    assert inode == kept


def test_a_job_carries_no_trace_of_the_bundle(cluster: Hosts) -> None:
    """Neither a variable but Slurm's own and what the user gave, nor a library, nor an open file: in a step and in a batch script."""
    step = cluster.ftrun("h1", "cluster", "run", "--", "srun", "-N1", "sh", "-c", SHOW).stdout
    words = ["cluster", "run", "--", "sbatch", "-W", "-o", "batch.log", "--wrap", SHOW]
    assert 0 == cluster.ftrun("h1", *words).returncode
    batch = (cluster.folder / "home" / ALICE / "batch.log").read_text()

    for text in (step, batch):
        names = set(re.findall(r"^(\w+)=", text.partition("==\n")[0], re.MULTILINE))
        ours = {name for name in names if not name.startswith(OF_SLURM)}
        assert {"HOME", "USER", "PATH", "LANG", "PWD", "TMPDIR", "HOSTNAME"} >= ours
        assert "SLURM_JOB_ID" in names
        assert "/slurm_" not in text


def test_processes_are_called_as_those_of_an_installed_slurm(cluster: Hosts) -> None:
    """By name, and the title that slurmstepd gives itself is a part of its command line, where batch scripts look for ghosts of steps."""
    step = cluster.start("h1", [FTRUN, "cluster", "run", "--", "srun", "-N2", "sleep", "300"])
    look = "for p in /proc/[0-9]*; do echo $(cat $p/comm) $(tr '\\0' '|' <$p/cmdline); done 2>/dev/null"
    give_up_s = time.monotonic() + 60
    while "|slurmstepd: [" not in (said := cluster.run("h1", ["sh", "-c", look]).stdout):
        assert time.monotonic() < give_up_s, said
        time.sleep(0.5)
    cluster.ftrun("h1", "cluster", "run", "--", "scancel", "-u", ALICE)
    step.communicate(timeout=60)

    assert {"munged", "slurmctld", "slurmd", "slurmstepd", "srun"} <= {
        line.split()[0] for line in said.splitlines()
    }


def test_a_run_on_a_bundle_recovers_and_finishes(cluster: Hosts) -> None:
    """`ftrun sbatch` finds the cluster and its commands by itself; the script, too, and the second attempt."""
    home = cluster.folder / "home" / ALICE
    (home / "train.sh").write_text(TRAIN)
    first = cluster.ftrun("h1", "sbatch", "--ft-log-quiet=1", "--ft-retries=3", "train.sh")
    assert 0 == first.returncode, first.stderr
    run = json.loads(cluster.ftrun("h1", "status", "--json").stdout)["runs"][0]["run"]
    state = state_at_end(cluster, "h1", run)
    log = (home / "train.log").read_text()

    assert "finished" == state, log
    assert {"h1", "h2", "JobState=RUNNING"} <= set(log.split())


def test_every_program_and_plugin_finds_its_libraries_where_there_is_nothing_else(cluster: Hosts) -> None:
    """The bundle's folder as the root of all files: its loader finds every library."""
    script = (
        "cd /var/tmp/ftrun-61001/slurm_*; loader=$(echo lib/ld-*);"
        'for file in real/* plugins/*; do unshare -r -R "$PWD" "/$loader" --library-path /lib --list "/$file" >/tmp/said 2>&1'
        ' && ! grep -q "not found" /tmp/said || { echo "$file"; cat /tmp/said; }; done; ls plugins | wc -l'
    )
    checked = cluster.run("h2", ["sh", "-c", script]).stdout

    assert re.fullmatch(r"\d+\n", checked), checked
    assert int(checked) > 60


def test_a_cut_up_is_mended_and_a_host_that_does_not_see_the_bundle_is_sent_it(bare: Hosts) -> None:
    """ftrun's own folder lies on the disk of h1; kill -9 once the hosts have their Slurm; the bundle was carried there as a file."""
    carried = bare.run(
        "h1",
        ["sh", "-c", "cp .local/state/ftrun/bundles/*.gz carried && rm -rf /var/tmp/ftrun-61001/slurm_*; ls"],
    )
    bare.run("h2", ["sh", "-c", "rm -rf /var/tmp/ftrun-61001/slurm_*"])
    env = {"FTRUN_HOME": "/tmp/home"}
    words = ["cluster", "up", "h[1-2]", "--bundle", "carried"]
    cut = bare.ftrun("h1", *words, env={**env, "FTRUN_CRASH_AT": "record:after:bundle.done"})
    lost = bare.run("h1", ["sh", "-c", "rm -r /tmp/home/bundles"])
    again = bare.ftrun("h1", *words, env=env)
    ran = bare.ftrun("h1", "cluster", "run", "--", "srun", "-N2", "hostname", env=env)
    down = bare.ftrun("h1", "cluster", "down", "--force", env=env)

    assert "carried" in carried.stdout.split()
    assert (-9, 0) == (cut.returncode, lost.returncode), cut.stderr
    assert 0 == again.returncode, again.stderr
    assert ["h1", "h2"] == sorted(ran.stdout.split()), ran.stderr
    assert 0 == down.returncode, down.stderr


def test_the_controller_reads_its_settings_anew_and_a_dead_daemon_comes_back(cluster: Hosts) -> None:
    """Both start a program again by the path that they were started by."""
    anew = cluster.ftrun("h1", "cluster", "run", "--", "scontrol", "reconfigure")
    status = json.loads(cluster.ftrun("h1", "cluster", "status", "--json").stdout)
    pid = status["hosts"][1]["daemons"]["slurmd"]["pid"]
    cluster.run("h2", ["kill", "-9", str(pid)])
    again = cluster.ftrun("h1", "cluster", "up", "h[1-2]")
    ran = cluster.ftrun("h1", "cluster", "run", "--", "srun", "-N2", "hostname")

    assert 0 == anew.returncode, anew.stderr
    assert 0 == again.returncode, again.stderr
    assert ["h1", "h2"] == sorted(ran.stdout.split()), ran.stderr


@pytest.mark.skipif(shutil.which("sshfs") is None, reason="no sshfs here (.ci/env dev as root installs it)")
def test_with_a_shared_folder_it_grows_survives_a_reboot_of_all_hosts_and_leaves_nothing(bare: Hosts) -> None:
    """`add` brings Slurm and folder to h2; after the reboot cron starts all, whoever is back first; `remove` takes all away again."""
    up = bare.ftrun("h1", "cluster", "up", "h1", "--share", SHARE)
    assert 0 == up.returncode, up.stderr
    added = bare.ftrun("h1", "cluster", "add", "h2")
    assert 0 == added.returncode, added.stderr
    words = ["cluster", "run", "--", "srun", "-N2", "sh", "-c", f"touch {SHARE}/$(hostname); ls {SHARE}"]
    before = bare.ftrun("h1", *words)
    time.sleep(SAVED_S)
    for name in ("h1", "h2"):
        bare.die(name)
    for name in ("h2", "h1"):
        bare.boot(name)
    sinfo = ["cluster", "run", "--", "sinfo", "-h", "-o", "%D %T"]
    wait(lambda: "2 idle\n" == bare.ftrun("h1", *sinfo).stdout, BACK_S)
    after = bare.ftrun("h1", *words)
    status = bare.ftrun("h2", "cluster", "status")
    removed = bare.ftrun("h1", "cluster", "remove", "h2")
    rest = bare.processes("h2")
    down = bare.ftrun("h1", "cluster", "down")
    rest += bare.run("h2", ["sh", "-c", f"{_find()}; ls /srv"], user="root").stdout.split()

    assert {"h1", "h2"} == set(before.stdout.split()), before.stderr
    assert {"h1", "h2"} == set(after.stdout.split()), after.stderr
    assert 0 == status.returncode, status.stdout
    assert "h2: cron started sshfs: the host was off" in status.stdout
    assert "h2: cron started slurmd: the host was off" in status.stdout
    assert (0, [], 0) == (removed.returncode, rest, down.returncode), removed.stderr + down.stderr


def test_a_host_that_lost_its_bundle_says_so_until_another_up(cluster: Hosts) -> None:
    """Its keeper tries twice and then waits; `up` unpacks the bundle again and starts what is dead."""
    cluster.run("h2", ["sh", "-c", "rm -r /var/tmp/ftrun-61001/slurm_*"])
    cluster.kill("h2", "slurmd")
    cluster.kill("h2", "munged")
    keeper = ["sh", "-c", "/bin/sh /var/tmp/ftrun-61001/default/keep/keeper"]
    said = [cluster.run("h2", keeper).stdout for _ in range(4)]
    shown = cluster.ftrun("h1", "cluster", "status").stdout
    again = cluster.ftrun("h1", "cluster", "up", "h[1-2]")
    ran = cluster.ftrun("h1", "cluster", "run", "--", "srun", "-N2", "hostname")

    assert "it died again and again" in said[-1]
    assert "did not start munged" in shown
    assert 0 == again.returncode, again.stderr
    assert ["h1", "h2"] == sorted(ran.stdout.split()), ran.stderr


def test_root_makes_one_as_another_user_and_everybody_can_use_it(bare_of_root: Hosts) -> None:
    """A cluster of root runs jobs of other users by the bundle; none of them can write what runs."""
    up = bare_of_root.ftrun("h1", "cluster", "up", "localhost")
    conf = {
        "SLURM_CONF": "/var/tmp/ftrun-0/default/etc/slurm.conf",
        "PATH": "/var/tmp/ftrun-0/default/bin:/usr/bin:/bin",
    }
    words = ["sh", "-c", "cd /tmp && srun id -un; find /var/tmp/ftrun-0/ -writable ! -type l 2>/dev/null"]
    ran = bare_of_root.run("h1", words, env=conf, user=ALICE)
    down = bare_of_root.ftrun("h1", "cluster", "down")

    assert 0 == up.returncode, up.stderr
    assert "alice" in ran.stdout.split(), ran.stderr
    assert [] == [path for path in ran.stdout.split()[1:] if not path.endswith("munge.sock")]
    assert 0 == down.returncode, down.stderr


def _find() -> str:
    return "find /var/tmp /tmp -mindepth 1 ! -type d ! -path '*/log/*' ! -path '*/slurm_*'; find /mnt/home -name munge.key"
