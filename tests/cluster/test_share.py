"""A folder of the head host on all hosts, by sshfs: ftrun's claims and folders hold there. Real hosts, real sshfs, as an ordinary user.

How it thinks. The folder lies on the disk of h1 alone (`/srv`); h2 and h3 mount it. What one host does is seen by another one within
the time that names are cached, and of two who want the same name one gets it.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ftrun.hooks.cluster.share import CACHE_S
from tests.cluster.hosts import RANK, ROOT, Hosts, left, nothing, state_at_end, wait

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.cluster,
    pytest.mark.skipif(
        shutil.which("sshfs") is None, reason="no sshfs here (.ci/env dev as root installs it)"
    ),
]
SHARE = "/srv/data"
SLACK_S = 0.5
RACES = 60
RACE = """\
import json, os, sys, time
from ftrun.hooks.runtime.ownership import is_taken
own, folder, start_s, count = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
draft = f"{folder}/draft.{own}"
open(draft, "w").close()
makers = {
    "symlink": lambda path: os.symlink(own, path),
    "mkdir": lambda path: os.mkdir(path, 0o700),
    "file": lambda path: os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)),
    "link": lambda path: os.link(draft, path),
}
told = {}
for number in range(count):
    for kind, make in makers.items():
        path = f"{folder}/{kind}.{number}"
        start_s += 0.02
        while time.time() < start_s:
            pass
        try:
            make(path)
            told[f"{kind}.{number}"] = "won"
        except OSError as error:
            told[f"{kind}.{number}"] = "lost" if is_taken(error, path) else repr(error)
print(json.dumps(told))
"""
# What another host did, and how soon a process that keeps looking sees it.
LOOK = """\
import os, sys, time
what, path = sys.argv[1:]
looks = {
    "name": lambda: os.path.lexists(path),
    "gone": lambda: not os.path.lexists(path),
    "listed": lambda: os.path.basename(path) in os.listdir(os.path.dirname(path)),
    "size": lambda: os.stat(path).st_size == 6,
    "content": lambda: open(path).read() == "second",
    "target": lambda: os.readlink(path) == "second",
}
print("looking", flush=True)
while True:
    try:
        if looks[what]():
            break
    except OSError:
        pass
    time.sleep(0.01)
print(time.time(), flush=True)
"""
PYTHON = str(ROOT / ".venv/bin/python")


@pytest.fixture
def shared(hosts: Hosts) -> Iterator[Hosts]:
    """A cluster with SHARE on all hosts."""
    done = hosts.ftrun("h1", "cluster", "up", "h[1-3]", "--share", SHARE)
    assert 0 == done.returncode, done.stderr
    yield hosts
    hosts.ftrun("h1", "cluster", "down", "--force")
    hosts.run("h1", ["rm", "-rf", SHARE])


def _mounts(hosts: Hosts, name: str) -> list[str]:
    table = hosts.run(name, ["cat", "/proc/self/mounts"]).stdout
    return [line.split()[1] for line in table.splitlines() if line.split()[2] == "fuse.sshfs"]


def test_a_folder_of_the_head_host_is_on_all_hosts_and_down_unmounts_it(shared: Hosts) -> None:
    """What one host writes, all read; after `down` it lies on the head host alone, and nothing else is left."""
    words = ["sh", "-c", f"hostname >{SHARE}/$(hostname) && sleep {CACHE_S + SLACK_S} && cat {SHARE}/h[123]"]
    ran = shared.ftrun("h1", "cluster", "run", "--", "srun", "-N3", *words)
    status = json.loads(shared.ftrun("h2", "cluster", "status", "--json").stdout)
    down = shared.ftrun("h2", "cluster", "down")

    assert sorted(["h1", "h2", "h3"] * 3) == sorted(ran.stdout.split()), ran.stderr
    assert [["sshd"], ["sshfs"], ["sshfs"]] == [
        [name for name in row["daemons"] if "ssh" in name] for row in status["hosts"]
    ]
    assert (0, [[], [], []]) == (down.returncode, [_mounts(shared, name) for name in shared.names])
    assert nothing(shared) == left(shared)
    assert "h1\nh2\nh3\n" == shared.run("h1", ["ls", SHARE]).stdout
    assert "" == shared.run("h2", ["ls", "/srv"]).stdout


def test_of_two_hosts_that_want_a_name_one_gets_it_and_the_other_knows(shared: Hosts) -> None:
    """Links, folders, files and hard links: one winner each, and `is_taken` understands what the loser is told."""
    start = str(time.time() + 3)
    both = [shared.start(name, [PYTHON, "-c", RACE, name, SHARE, start, str(RACES)]) for name in ("h2", "h3")]
    told = [json.loads(one.communicate(timeout=120)[0]) for one in both]
    outcomes = {name: sorted(one[name] for one in told) for name in told[0]}

    assert {} == {name: how for name, how in outcomes.items() if how != ["lost", "won"]}


def test_a_run_on_it_recovers_and_every_host_reads_its_journal(shared: Hosts) -> None:
    """Runs lie in the shared folder by themselves: batch.sh claims on h2, the supervisor on h1 sees it; h3 shows the run."""
    disk = shared.folder / "disks" / "h1" / "srv" / "data"
    (disk / "rank.py").write_text(RANK)
    (disk / "train.sh").write_text(
        "#!/bin/sh\n#SBATCH -N2 -wh[2-3] -o train.log\nsrun -K1 python3 -u rank.py\n"
    )
    words = ["sh", "-c", f"cd {SHARE} && {ROOT}/.venv/bin/ftrun sbatch --ft-log-quiet=1 train.sh"]
    submitted = shared.run("h1", words)
    assert 0 == submitted.returncode, submitted.stderr
    run = json.loads(shared.ftrun("h1", "status", "--json").stdout)["runs"][0]["run"]

    state = state_at_end(shared, "h3", run)
    log = (disk / "train.log").read_text()

    assert "finished" == state, log
    assert 4 == len(re.findall(r"^\d: step 5$|^step 5$", log, re.MULTILINE)), log
    assert (disk / ".ftrun" / "runs" / run).is_dir()


def test_a_head_host_that_reboots_comes_back_with_its_folder(shared: Hosts) -> None:
    """Meanwhile the others are told EIO at once, and do not hang; another `up` brings it back without a new mount."""
    shared.run("h1", ["sh", "-c", f"echo kept >{SHARE}/file"])
    pids = {row["host"]: row["daemons"]["sshfs"]["pid"] for row in _rows(shared, "h2") if row["host"] != "h1"}
    shared.die("h1")
    began_s = time.monotonic()
    away = shared.run("h2", ["cat", f"{SHARE}/file"])
    took_s = time.monotonic() - began_s
    shared.boot("h1")
    again = shared.ftrun("h2", "cluster", "up", "h[1-3]")
    back = shared.run("h3", ["cat", f"{SHARE}/file"])
    rows = _rows(shared, "h2")

    assert (1, "Input/output error") == (away.returncode, away.stderr.strip().rpartition(": ")[2])
    assert took_s < 30
    assert 0 == again.returncode, again.stderr
    assert "kept\n" == back.stdout
    assert pids == {row["host"]: row["daemons"]["sshfs"]["pid"] for row in rows if row["host"] != "h1"}


def test_a_host_that_reboots_gets_its_mount_back(shared: Hosts) -> None:
    """By another `up`."""
    shared.run("h1", ["sh", "-c", f"echo kept >{SHARE}/file"])
    shared.die("h3")
    shared.boot("h3")
    again = shared.ftrun("h1", "cluster", "up", "h[1-3]")

    assert 0 == again.returncode, again.stderr
    assert "kept\n" == shared.run("h3", ["cat", f"{SHARE}/file"]).stdout


def test_a_mount_whose_sshfs_died_is_made_anew(shared: Hosts) -> None:
    """The kernel keeps the dead mount; `up` sees that, unmounts it and mounts it again."""
    pid = next(row["daemons"]["sshfs"]["pid"] for row in _rows(shared, "h1") if row["host"] == "h2")
    shared.run("h2", ["kill", "-9", str(pid)])
    wait(lambda: 0 != shared.run("h2", ["ls", SHARE]).returncode)
    again = shared.ftrun("h1", "cluster", "up", "h[1-3]")

    assert 0 == again.returncode, again.stderr
    assert 0 == shared.run("h2", ["ls", SHARE]).returncode


def _rows(hosts: Hosts, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(hosts.ftrun(name, "cluster", "status", "--json").stdout)["hosts"]
    return found


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/dev/fuse", "/dev/fuse is not there for you"),
        ("/usr/bin/fusermount3", "fusermount3 with its setuid bit was not found"),
        ("/usr/bin/sshfs", "sshfs was not found"),
    ],
)
def test_what_a_host_lacks_is_a_refusal_before_anything_is_changed(
    hosts: Hosts, path: str, told: str
) -> None:
    """One line names the host and what is missing."""
    hide = f"touch /run/nothing; chmod 0 /run/nothing; mount --bind /run/nothing {path}"
    hosts.run("h2", ["sh", "-c", hide], user="root")
    refused = hosts.ftrun("h1", "cluster", "up", "h[1-3]", "--share", SHARE)
    hosts.run("h2", ["umount", path], user="root")

    assert 1 == refused.returncode
    assert f"nothing was changed: h2: share: {told}" in refused.stderr
    assert nothing(hosts) == left(hosts)


def test_a_folder_that_is_not_empty_is_not_hidden(hosts: Hosts) -> None:
    """Whatever is in the way of the mount stays visible: a refusal."""
    hosts.run("h2", ["sh", "-c", f"mkdir {SHARE} && touch {SHARE}/mine"])
    refused = hosts.ftrun("h1", "cluster", "up", "h[1-3]", "--share", SHARE)
    hosts.run("h2", ["rm", "-r", SHARE])

    assert f"h2: share: {SHARE} is not empty there" in refused.stderr


def test_without_a_shared_folder_the_refusal_says_why_one_is_needed(hosts: Hosts) -> None:
    """And names both ways on."""
    refused = hosts.ftrun("h1", "cluster", "up", "h[1-3]", "--shared", "/srv")

    assert 1 == refused.returncode
    assert "runs, logs and checkpoints need one that all hosts see" in refused.stderr
    assert "--share DIR makes one by sshfs" in refused.stderr


def test_roots_cluster_shares_no_folder(hosts_of_root: Hosts) -> None:
    """What sshfs writes is one user's, whoever's job wrote it."""
    refused = hosts_of_root.ftrun("h1", "cluster", "up", "h[1-2]", "--share", SHARE)

    assert "a folder by sshfs belongs to one user" in refused.stderr


@pytest.fixture(scope="module")
def shared_once(hosts: Hosts) -> Iterator[Hosts]:
    """As `shared`, one for all tests that only look: they stand last."""
    done = hosts.ftrun("h1", "cluster", "up", "h[1-3]", "--share", SHARE)
    assert 0 == done.returncode, done.stderr
    yield hosts
    hosts.ftrun("h1", "cluster", "down", "--force")
    hosts.run("h1", ["rm", "-rf", SHARE])


@pytest.mark.parametrize(
    ("what", "before", "act"),
    [
        ("name", "true", "ln -s x {path}"),
        ("listed", "true", "touch {path}"),
        ("gone", "touch {path}", "rm {path}"),
        ("size", "printf one >{path}", "printf second >{path}"),
        ("content", "printf one >{path}", "printf second >{path}.new; mv {path}.new {path}"),
        ("target", "ln -s first {path}", "ln -s second {path}.new; mv -T {path}.new {path}"),
    ],
)
@pytest.mark.parametrize("actor", ["h1", "h2"])
def test_what_a_host_does_another_one_sees_within_the_time_of_the_cache(
    shared_once: Hosts, actor: str, what: str, before: str, act: str
) -> None:
    """Whether the one who does it is the head host itself or another one."""
    path = f"{SHARE}/{actor}.{what}"
    shared_once.run(actor, ["sh", "-c", before.format(path=path)])
    looking = shared_once.start("h3", [PYTHON, "-c", LOOK, what, path])
    assert looking.stdout is not None
    assert "looking\n" == looking.stdout.readline()
    time.sleep(0.3)  # it has looked in vain meanwhile, so the old answer is cached
    assert looking.poll() is None
    shared_once.run(actor, ["sh", "-c", act.format(path=path)])
    done_s = time.time()
    seen_s = float(looking.communicate(timeout=30)[0])

    assert seen_s - done_s <= CACHE_S + SLACK_S
