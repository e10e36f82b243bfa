"""What the steps of a request do on one host, with real files and processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftrun.hooks.cluster import claim, daemons, keeper_install, members, place
from ftrun.hooks.cluster.errors import HostError
from ftrun.hooks.cluster.launch import launch
from ftrun.slurm.records import replace
from ftrun.supervisor.cluster import hosts
from ftrun.supervisor.cluster.state import ClusterState
from ftrun.supervisor.model.errors import UserError
from tests.unit.cluster_plan import plan_of

NOBODY = 65534


@pytest.fixture
def step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A request about a cluster of token `ours` whose folder is on this host, and which nobody has claimed."""
    monkeypatch.setattr(claim, "PATH", str(tmp_path / "claim"))
    folder = tmp_path / "clusters" / "mine"
    place.open_folder(str(folder))
    (folder / "etc" / "slurm.conf").write_text("")
    (folder / "keep" / "request.json").write_text("{}")
    return {"token": "ours", "folder": str(folder)}


def _take_over(step: dict[str, Any]) -> None:
    """Another cluster has this host now, with a folder of the same name."""
    os.symlink(json.dumps({"token": "theirs", "name": "mine", "folder": step["folder"]}), claim.PATH)


@pytest.fixture
def task(step: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that a job of the cluster in the folder left behind."""
    env = {"SLURM_CONF": f"{step['folder']}/etc/slurm.conf", "SLURM_JOB_ID": "1"}
    process = subprocess.Popen(["sleep", "60"], env=env)
    yield process
    process.kill()
    process.wait()


def test_a_cluster_that_lost_the_host_leaves_the_next_one_alone(
    step: dict[str, Any], task: subprocess.Popen[bytes]
) -> None:
    """A person gave the host to another cluster of the same folder: a late `down` of the first one ends and removes nothing of it."""
    _take_over(step)
    answers = [keeper_install.uninstall(step), daemons.stop(step), place.remove(step), claim.release(step)]

    assert [{"removed": False}, {"ended": 0}, {"logs": ""}, {"released": False}] == answers
    assert task.poll() is None
    assert {"etc", "keep"} <= set(os.listdir(step["folder"]))
    assert Path(step["folder"], "keep", "request.json").exists()


def test_after_a_stop_nobody_starts_a_daemon_any_more(
    step: dict[str, Any], task: subprocess.Popen[bytes]
) -> None:
    """An `up` that was killed may still be at work on the host: what it starts next is refused."""
    ended = daemons.stop(step)
    task.wait(10)

    assert {"ended": 1} == ended
    with pytest.raises(OSError, match=r"slurm\.conf"):
        launch(step, "slurmctld", ["true"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_a_process_of_another_user_is_no_daemon_whatever_it_calls_itself(step: dict[str, Any]) -> None:
    """Else it would pass for one that lives, or keep `down` from its end: neither title nor token is a secret."""
    title = f"sshd: {step['folder']}/etc/share_sshd "
    env = {members.MARK: members.mark_of("ours", "slurmd"), "PATH": os.defpath}
    stranger = subprocess.Popen(
        ["bash", "-c", f"exec -a '{title}' sleep 60"], env=env, user=NOBODY, cwd="/", start_new_session=True
    )
    try:
        give_up_s = time.monotonic() + 30
        while title not in Path(f"/proc/{stranger.pid}/cmdline").read_text() and time.monotonic() < give_up_s:
            time.sleep(0.01)
        found = members.members("ours", step["folder"])
    finally:
        stranger.kill()
        stranger.wait()

    assert {} == found.daemons


def test_a_step_is_started_by_a_python_whose_path_has_blanks(step: dict[str, Any], tmp_path: Path) -> None:
    """The kernel cuts such a first line, and one that is too long."""
    python = tmp_path / "my tools" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    script = tmp_path / "slurmstepd"
    text = place.before_stepd(str(python), "/bin/echo")
    script.write_text(text)
    script.chmod(0o700)

    assert (
        "a  b c\n" == subprocess.run([script, "a  b", "c"], capture_output=True, text=True, check=True).stdout
    )
    assert place.before_stepd("/usr/bin/python3", "/bin/echo").startswith("#!/usr/bin/python3 -IS\n")


def test_a_claim_that_another_user_holds_says_who_can_remove_it(step: dict[str, Any]) -> None:
    """The folder's sticky bit keeps everybody else from it."""
    _take_over(step)
    if os.geteuid() == 0:
        os.lchown(claim.PATH, 23456, 23456)
    with pytest.raises(HostError, match=r"rm \S+, as user 23456 or root" if os.geteuid() == 0 else "rm "):
        claim.take(dict.fromkeys(claim.FIELDS, "x"))


@pytest.mark.parametrize("word", ["-oProxyCommand@h1", "-h1", "-l@h1"])
def test_no_host_is_an_option_of_ssh(word: str) -> None:
    """Whatever a group or a hostfile says."""
    with pytest.raises(UserError, match="is no name of a host"):
        hosts.targets([word])


def test_hosts_that_were_given_up_are_remembered_until_nothing_is_left(tmp_path: Path) -> None:
    """Also where the next cluster of that name is there; the key of a plan that lost it is made anew."""
    state = ClusterState("mine", {"FTRUN_HOME": str(tmp_path)})
    plan = plan_of("a", "b")
    with state.lock():
        state.give_up(replace(plan, leaving=plan.hosts[1:]))
        state.keep_plan(plan)
        state.forget()
        state.keep_plan(plan)
        assert [["h2"]] == [[host.name for host in one.leaving] for one in state.given_up()]
        assert 1024 == len(state.key())
        state.give_up(plan)
        assert [] == state.given_up()
