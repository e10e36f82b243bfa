"""Hosts join a living cluster, leave it, and take no more jobs. Real hosts, real SSH, real Slurm, as an ordinary user."""

from __future__ import annotations

import re

import pytest

from tests.cluster.hosts import Hosts, left, left_on, nothing, wait

pytestmark = [pytest.mark.slurm, pytest.mark.cluster]
HOST_COUNT = 4
ADD_PLACES = (
    "add.intent",
    "add.planned",
    "claim.intent",
    "claim.done",
    "start.intent",
    "controller.done",
    "up.done",
)
REMOVE_PLACES = (
    "remove.drained",
    "remove.intent",
    "remove.planned",
    "remove.ended",
    "start.intent",
    "controller.done",
    "up.done",
)


def _slurm(hosts: Hosts, *words: str) -> str:
    done = hosts.ftrun("h1", "cluster", "run", "--", *words)
    assert 0 == done.returncode, (words, done.stderr)
    return done.stdout.strip()


def _submitted(hosts: Hosts, host: str, seconds: int) -> str:
    job = _slurm(
        hosts, "sbatch", "--parsable", "-o/dev/null", f"-w{host}", "--wrap", f"srun sleep {seconds}; exit 7"
    )
    wait(lambda: "RUNNING" == _slurm(hosts, "squeue", "-h", "-j", job, "-o", "%T"))
    return job


def _nodes(hosts: Hosts) -> dict[str, str]:
    rows = (line.split() for line in _slurm(hosts, "sinfo", "-h", "-N", "-o", "%N %T").splitlines())
    return {row[0]: row[1] for row in rows}


def test_a_host_joins_and_leaves_while_a_job_goes_on(cluster: Hosts) -> None:
    """The job outlives two changes of slurm.conf; srun runs on the new host in between; nothing is left there when it went."""
    job = _submitted(cluster, "h2", 40)
    added = cluster.ftrun("h1", "cluster", "add", "h4")
    assert 0 == added.returncode, added.stderr
    ran = _slurm(cluster, "srun", "-wh4", "hostname")
    status = cluster.ftrun("h4", "cluster", "status")
    removed = cluster.ftrun("h3", "cluster", "remove", "h4")
    again = cluster.ftrun("h1", "cluster", "remove", "h4")

    assert "h4" == ran
    assert 0 == status.returncode, status.stdout
    assert (0, "cluster default has 3 nodes: h4 was removed\n") == (removed.returncode, removed.stdout), (
        removed.stderr
    )
    assert (1, "ftrun: nothing was changed: h4: no host of cluster default\n") == (
        again.returncode,
        again.stderr,
    )
    assert [] == left_on(cluster, "h4")
    assert {"h1", "h2", "h3"} == set(_nodes(cluster))
    wait(lambda: "" == _slurm(cluster, "squeue", "-h"), 90)
    assert "ExitCode=7:0" in _slurm(cluster, "scontrol", "show", "job", job)


def test_a_host_with_jobs_is_not_removed_without_force(cluster: Hosts) -> None:
    """The refusal names the jobs and leaves the host as it was; --force ends them as a node's death does; it can be added again."""
    job = _submitted(cluster, "h3", 600)
    refused = cluster.ftrun("h1", "cluster", "remove", "h3")
    after = _nodes(cluster)
    forced = cluster.ftrun("h1", "cluster", "remove", "h3", "--force")
    gone = left_on(cluster, "h3")
    added = cluster.ftrun("h1", "cluster", "add", "h3")

    assert 1 == refused.returncode
    assert f"nothing was changed: 1 job not over ({job})" in refused.stderr
    assert after["h3"] in {"mixed", "allocated"}
    assert 0 == forced.returncode, forced.stderr
    assert [] == gone
    assert 0 == added.returncode, added.stderr
    assert "idle" == _nodes(cluster)["h3"]


def test_a_drained_host_takes_no_jobs_until_it_is_resumed(cluster: Hosts) -> None:
    """`up` takes it for usable: a person wants it so."""
    drained = cluster.ftrun("h1", "cluster", "drain", "h2", "--reason", "fan is loud")
    again = cluster.ftrun("h1", "cluster", "up", "h[1-3]")
    shown = cluster.ftrun("h1", "cluster", "status").stdout
    state = _nodes(cluster)["h2"]
    resumed = cluster.ftrun("h1", "cluster", "resume", "h[2-3]")

    assert (0, "h2 takes no more jobs; `ftrun cluster resume` ends that\n") == (
        drained.returncode,
        drained.stdout,
    )
    assert 0 == again.returncode, again.stderr
    assert "drained" == state
    assert "fan is loud" in shown
    assert 0 == resumed.returncode, resumed.stderr
    assert {"idle"} == set(_nodes(cluster).values())


@pytest.mark.parametrize("place", ADD_PLACES)
def test_an_add_that_was_cut_is_mended_by_the_next(cluster: Hosts, place: str) -> None:
    """kill -9 behind each record: the second `add` ends with a cluster of four, and `down` leaves nothing."""
    cut = cluster.ftrun("h1", "cluster", "add", "h4", env={"FTRUN_CRASH_AT": f"record:after:{place}"})
    again = cluster.ftrun("h1", "cluster", "add", "h4")
    ran = _slurm(cluster, "srun", "-N4", "hostname")
    cluster.ftrun("h1", "cluster", "down")

    assert -9 == cut.returncode
    assert 0 == again.returncode, again.stderr
    assert ["h1", "h2", "h3", "h4"] == sorted(ran.split())
    assert nothing(cluster) == left(cluster)


@pytest.mark.parametrize("place", REMOVE_PLACES)
def test_a_removal_that_was_cut_is_mended_by_the_next(cluster: Hosts, place: str) -> None:
    """kill -9 behind each record: the second `remove` ends with a cluster of two and nothing on the third host."""
    cut = cluster.ftrun("h1", "cluster", "remove", "h3", env={"FTRUN_CRASH_AT": f"record:after:{place}"})
    again = cluster.ftrun("h1", "cluster", "remove", "h3")
    ran = _slurm(cluster, "srun", "-N2", "hostname")
    gone = left_on(cluster, "h3")
    cluster.ftrun("h1", "cluster", "down")

    assert -9 == cut.returncode
    assert 0 == again.returncode, again.stderr
    assert ["h1", "h2"] == sorted(ran.split())
    assert [] == gone
    assert nothing(cluster) == left(cluster)


def test_a_removal_that_was_cut_behind_its_drain_is_told_and_leaves_no_drain(cluster: Hosts) -> None:
    """`status` says so; a `remove` that is refused because of a job gives the host back; what a person drained stays drained."""
    job = _submitted(cluster, "h3", 600)
    cut = cluster.ftrun(
        "h1", "cluster", "remove", "h3", "--force", env={"FTRUN_CRASH_AT": "record:after:remove.drained"}
    )
    shown = cluster.ftrun("h1", "cluster", "status").stdout
    refused = cluster.ftrun("h1", "cluster", "remove", "h3")
    given_back = _nodes(cluster)["h3"]
    cluster.ftrun("h1", "cluster", "drain", "h3", "--reason", "fan is loud")
    again = cluster.ftrun("h1", "cluster", "remove", "h3")
    after = cluster.ftrun("h1", "cluster", "status").stdout

    assert -9 == cut.returncode
    assert (
        "note: h3: its removal was cut: `ftrun cluster remove h3` ends it, `ftrun cluster resume h3`" in shown
    )
    assert (1, 1) == (refused.returncode, again.returncode)
    assert f"1 job not over ({job})" in refused.stderr
    assert given_back in {"mixed", "allocated"}
    assert "fan is loud" in after
    assert "removal was cut" not in after
    assert "draining" == _nodes(cluster)["h3"]


def test_a_dead_host_keeps_others_out_until_it_is_removed(cluster: Hosts) -> None:
    """All hosts need the new slurm.conf. --force removes a host that cannot be asked, and says what becomes of it."""
    cluster.die("h3")
    try:
        add = cluster.ftrun("h1", "cluster", "add", "h4")
        remove = cluster.ftrun("h1", "cluster", "remove", "h3")
        forced = cluster.ftrun("h1", "cluster", "remove", "h3", "--force")
        added = cluster.ftrun("h1", "cluster", "add", "h4")
        nodes = _nodes(cluster)
    finally:
        cluster.boot("h3", new_disk=True)  # with its old one it would say whose host it was

    assert re.fullmatch(r"ftrun: nothing was changed: h3: .*: mend or remove it first\n", add.stderr), (
        add.stderr
    )
    assert re.fullmatch(
        r"ftrun: nothing was changed: h3: .*: --force removes it all the same\n", remove.stderr
    )
    assert 0 == forced.returncode, forced.stderr
    assert "h3 could not be asked" in forced.stderr
    assert 0 == added.returncode, added.stderr
    assert {"h1": "idle", "h2": "idle", "h4": "idle"} == nodes


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["add", "h2", "h4"], "nothing was changed: h2: a host of cluster default already"),
        (["add", "h4", "h4"], "named twice: h4"),
        (["add", "h9"], "nothing was changed: h9: ssh: cannot be asked: .*"),
        (["add"], "name the hosts: .*"),
        (["add", "localhost"], "localhost cannot be one of several hosts: .*"),
        (["remove", "h9"], "nothing was changed: h9: no host of cluster default"),
        (["remove", "h1"], "nothing was changed: h1 runs the controller and has the state of all jobs: .*"),
        (["remove", "h[1-3]"], "nothing was changed: no host would be left: `ftrun cluster down .*"),
        (["remove"], "name the hosts: .*"),
        (["drain", "h9"], "nothing was changed: h9: no host of cluster default"),
        (["resume", "h4"], "nothing was changed: h4: no host of cluster default"),
        (["drain", "h[1-"], "not a node list.*"),
    ],
)
def test_bad_input_is_one_line(living: Hosts, words: list[str], told: str) -> None:
    """What is wrong, what to do, and nothing was changed."""
    done = living.ftrun("h1", "cluster", *words)
    lines = [line for line in done.stderr.splitlines() if not line.endswith(" ...")]

    assert done.returncode in {1, 2}
    assert 1 == len(lines), done.stderr
    assert re.fullmatch(f"ftrun: {told}", lines[0]), done.stderr
    assert {"h1", "h2", "h3"} == set(_nodes(living))


def test_who_is_a_host_already_is_mended(living: Hosts) -> None:
    """`add` said twice is no error."""
    done = living.ftrun("h1", "cluster", "add", "h2")

    assert (0, "cluster default has 3 nodes: nobody was added") == (done.returncode, done.stdout[:45]), (
        done.stderr
    )


def test_a_host_of_another_cluster_is_not_added(living: Hosts) -> None:
    """The refusal says whose it is, and leaves that one alone."""
    other = living.ftrun("h4", "cluster", "up", "localhost", "--name", "other")
    added = living.ftrun("h1", "cluster", "add", "h4", "--name", "default")
    alive = living.ftrun("h4", "cluster", "status", "--name", "other")
    living.ftrun("h4", "cluster", "down", "--name", "other")

    assert 0 == other.returncode, other.stderr
    assert 1 == added.returncode
    assert "h4: claim: belongs to cluster other of alice" in added.stderr
    assert 0 == alive.returncode, alive.stdout
