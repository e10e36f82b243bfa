"""What a shared folder needs, and the settings that a cluster brings along."""

from __future__ import annotations

import dataclasses
import errno
import os
import tomllib
from pathlib import Path

import pytest

from ftrun.hooks.runtime.ownership import is_taken
from ftrun.slurm.cluster.plan import SETTINGS
from ftrun.supervisor.cluster import share, site_file
from ftrun.supervisor.cluster.state import ClusterState
from ftrun.supervisor.config import sources
from ftrun.supervisor.model.errors import UserError
from tests.unit.cluster_plan import plan_of

GOOD = {"uid": 1000, "sshd": "/s", "sshfs": "/s", "fuse": True, "fusermount3": "/f", "share": "absent"}
PLAN = plan_of("h1", "h2")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"sshfs": ""}, "sshfs"),
        ({"fuse": False}, "/dev/fuse"),
        ({"fusermount3": ""}, "setuid"),
        ({"share": "full"}, "not empty"),
        ({"share": "closed"}, "fusermount3 -u"),
        ({"uid": 0}, "one user"),
    ],
)
def test_what_a_host_that_mounts_lacks_is_bad(changes: dict[str, object], word: str) -> None:
    """The head host needs none of it but an ordinary user and sshd."""
    found = share.findings_of({"h1": GOOD, "h2": {**GOOD, **changes}}, "/data")

    assert [("h2", "bad")] == [(one.target, one.level) for one in found]
    assert word in found[0].text


def test_the_head_host_needs_sshd_and_its_folder_may_have_something_in_it() -> None:
    """It mounts nothing."""
    bare = {**GOOD, "sshfs": "", "fuse": False, "fusermount3": "", "share": "full"}

    assert [] == share.findings_of({"h1": bare, "h2": GOOD}, "/data")
    assert ["h1"] == [
        one.target for one in share.findings_of({"h1": {**bare, "sshd": ""}, "h2": GOOD}, "/data")
    ]


@pytest.mark.parametrize(
    ("path", "shared", "targets"),
    [("/data", "/other", ["h1", "h2"]), ("/data", "", ["localhost"]), ("/my data", "", ["h1", "h2"])],
)
def test_a_folder_that_cannot_be_shared_is_refused(path: str, shared: str, targets: list[str]) -> None:
    """Both kinds at once, one machine, a path that slurm.conf or ssh would misread."""
    with pytest.raises(UserError):
        share.checked_folder(path, shared, targets)


def test_the_keys_of_a_folder_are_made_once_and_go_with_the_cluster(tmp_path: Path) -> None:
    """Head host and others get halves that fit, at each `up` the same ones; 0600."""
    state = ClusterState("mine", {"FTRUN_HOME": str(tmp_path)})
    plan = dataclasses.replace(PLAN, share="/data")
    with state.lock():
        serve = share.fields(state, plan, plan.hosts[0])
        mount = share.fields(state, plan, plan.hosts[1])
        again = share.fields(state, plan, plan.hosts[1])
        none = share.fields(state, PLAN, plan.hosts[1])
    path = tmp_path / "cluster" / "mine" / "share.json"
    kept = path.stat().st_mode & 0o777
    state.forget()

    assert {"host_key", "allowed"} == set(serve["share_keys"])
    assert {} == none
    assert mount == again
    assert mount["share_keys"]["known"].startswith("ssh-ed25519 ")
    assert mount["share_keys"]["key"].startswith("-----BEGIN OPENSSH PRIVATE KEY-----")
    assert (0o600, False) == (kept, path.exists())


def test_a_cluster_without_wishes_sets_nothing() -> None:
    """Then a site's own file counts."""
    assert {} == site_file.files(PLAN)


def test_what_a_cluster_sets_is_read_as_a_sites_settings(tmp_path: Path) -> None:
    """Runs lie in the shared folder; commands keep quotes and braces."""
    command = """ipmitool -H '{node}-bmc' "power" off"""
    plan = dataclasses.replace(PLAN, shared="/data", repair_commands=(command, "reset {node}"))
    path = tmp_path / "site.toml"
    path.write_text(site_file.files(plan)[SETTINGS])
    path.chmod(0o600)
    config = sources.load(str(tmp_path), {"FTRUN_SITE_CONFIG": str(path), "HOME": str(tmp_path)})

    assert "/data/.ftrun" == config.home({})
    assert [command, "reset {node}"] == config["recheck-step"]
    rare = dataclasses.replace(PLAN, shared="/data/\U0001f9ea é")
    assert "/data/\U0001f9ea é/.ftrun" == tomllib.loads(site_file.files(rare)[SETTINGS])["home"]
    assert "home" not in tomllib.loads(site_file.files(dataclasses.replace(plan, uid=0))[SETTINGS])


@pytest.mark.parametrize(
    ("number", "is_there", "expected"),
    [
        (errno.EEXIST, True, True),
        (errno.EPERM, True, True),
        (errno.EPERM, False, False),
        (errno.EIO, True, False),
        (errno.EACCES, True, False),
    ],
)
def test_sftp_says_eperm_where_a_name_is_taken(
    tmp_path: Path, number: int, is_there: bool, expected: bool
) -> None:
    """A file system without such links says EPERM, too: there the name is not there."""
    path = tmp_path / "claim"
    if is_there:
        path.symlink_to("nowhere")

    assert expected == is_taken(OSError(number, os.strerror(number)), str(path))
