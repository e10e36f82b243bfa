"""Hosts that are gone for good, controllers that are dead, strangers on a host: `down` ends all the same, and nothing else. Real hosts, real Slurm."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import time

import pytest

from ftrun.slurm.cluster.plan import CRED_EXPIRE_S
from tests.cluster.hosts import Hosts, left, left_on, nothing, wait

pytestmark = [pytest.mark.slurm, pytest.mark.cluster]
AGE_S = 35.0
"""A younger job that a node does not have is taken for one that is still on its way there (BatchStartTimeout and MessageTimeout)."""
FOLDER = "/var/tmp/ftrun-61001/default"


def test_a_host_that_is_gone_for_good_is_given_up_and_cleaned_should_it_come_back(cluster: Hosts) -> None:
    """Rented hosts vanish, also the first one. Without --force `down` says so; the next `up` on the host ends what was left there."""
    cluster.die("h1")
    refused = cluster.ftrun("h2", "cluster", "down")
    given_up = cluster.ftrun("h2", "cluster", "down", "--force")
    rest = [left_on(cluster, name) for name in ("h2", "h3")]
    elsewhere = cluster.ftrun("h2", "cluster", "up", "h[2-3]")
    cluster.ftrun("h2", "cluster", "down")
    cluster.boot("h1")
    claimed = cluster.run("h1", ["readlink", "/var/tmp/ftrun-cluster.claim"]).returncode
    again = cluster.ftrun("h2", "cluster", "up", "h[1-3]")
    down = cluster.ftrun("h2", "cluster", "down")

    assert (1, 0) == (refused.returncode, given_up.returncode), given_up.stderr
    assert "--force gives up hosts that cannot be reached" in refused.stderr
    assert "h1 was given up" in given_up.stderr
    assert [[], []] == rest
    assert 0 == elsewhere.returncode, elsewhere.stderr
    assert 0 == claimed
    assert 0 == again.returncode, again.stderr
    assert "ending what an earlier cluster default left on 1 host" in again.stderr
    assert 0 == down.returncode, down.stderr
    assert nothing(cluster) == left(cluster)


def test_a_dead_controller_does_not_hide_the_jobs(cluster: Hosts) -> None:
    """Nobody can tell which jobs run, but steps do: `down` ends them by --force alone."""
    job = cluster.run(
        "h1",
        ["sbatch", "-N3", "-o/dev/null", "--wrap", "srun sleep 300"],
        env={"SLURM_CONF": f"{FOLDER}/etc/slurm.conf"},
    )
    assert 0 == job.returncode, job.stderr
    wait(lambda: any(line.endswith("sleep 300") for line in cluster.processes("h3")))
    cluster.run("h1", ["sh", "-c", f"rm -f {FOLDER}/keep/request.json"])
    cluster.kill("h1", "slurmctld")
    refused = cluster.ftrun("h1", "cluster", "down")
    alive = cluster.processes("h3")
    down = cluster.ftrun("h1", "cluster", "down", "--force")

    assert 1 == refused.returncode
    assert "slurmctld does not answer" in refused.stderr
    assert any(line.endswith("sleep 300") for line in alive)
    assert 0 == down.returncode, down.stderr
    assert nothing(cluster) == left(cluster)


def test_a_job_whose_host_reboots_before_slurm_misses_it_waits_for_one_credential(cluster: Hosts) -> None:
    """Slurm learns of it when the node registers, and lets the job wait until its credential has expired: CRED_EXPIRE_S, not two minutes."""
    home = cluster.folder / "home" / cluster.user
    (home / "job.sh").write_text(
        "#!/bin/sh\n#SBATCH -wh3 -o/dev/null\necho $SLURM_RESTART_COUNT. >>began\nsleep 600\n"
    )
    conf = {"SLURM_CONF": f"{FOLDER}/etc/slurm.conf"}
    job = cluster.run("h1", ["sbatch", "--parsable", "job.sh"], env=conf).stdout.strip()
    wait((home / "began").exists)
    time.sleep(AGE_S)
    cluster.die("h3")
    cluster.boot("h3")
    kept = cluster.run("h3", ["sh", f"{FOLDER}/keep/keeper"])
    shown: list[str] = []

    def is_requeued() -> bool:
        shown[:] = cluster.run("h1", ["scontrol", "show", "job", "-o", job], env=conf).stdout.split()
        return "Restarts=1" in shown

    wait(is_requeued, 300)
    times = {
        key: dt.datetime.fromisoformat(value)
        for key, _, value in (word.partition("=") for word in shown)
        if key in {"SubmitTime", "EligibleTime"}
    }
    wait(lambda: (home / "began").read_text().split() == [".", "1."], 300)

    assert 0 == kept.returncode, kept.stdout
    assert (times["EligibleTime"] - times["SubmitTime"]).total_seconds() <= CRED_EXPIRE_S + 1


def test_another_user_of_a_host_can_neither_end_nor_keep_a_cluster(cluster: Hosts) -> None:
    """Who knows token and titles starts processes that bear them: they are neither taken for daemons nor do they keep `down` from its end."""
    held = json.loads(cluster.run("h2", ["readlink", "/var/tmp/ftrun-cluster.claim"]).stdout)
    mark = f"FTRUN_CLUSTER_DAEMON={held['token']}/slurmd"
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
    title = f"sshd: {FOLDER}/etc/share_sshd "
    script = f"exec -a '{title}' sleep 300"
    stranger = subprocess.Popen(
        [*cluster.words("h2", "root"), *as_nobody, "env", mark, "bash", "-c", script],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait(lambda: title in cluster.run("h2", ["sh", "-c", "cat /proc/[0-9]*/cmdline"], user="root").stdout)
        looks = [
            cluster.run("h2", [*as_nobody, *words], user="root").returncode
            for words in (
                ["rm", "-f", "/var/tmp/ftrun-cluster.claim"],
                ["ls", FOLDER],
                ["cat", f"{FOLDER}/key/munge.key"],
                ["env", f"SLURM_CONF={FOLDER}/etc/slurm.conf", "sinfo"],
            )
        ]
        cluster.kill("h2", "slurmd")
        status = json.loads(cluster.ftrun("h1", "cluster", "status", "--json").stdout)
        again = cluster.ftrun("h1", "cluster", "up", "h[1-3]")
        down = cluster.ftrun("h1", "cluster", "down")
    finally:
        stranger.kill()
        stranger.wait(30)

    assert 0 not in looks
    assert ["munged"] == sorted(status["hosts"][1]["daemons"])
    assert (0, 0) == (again.returncode, down.returncode), again.stderr + down.stderr
    assert "slurmd" not in json.dumps(left_on(cluster, "h2"))
