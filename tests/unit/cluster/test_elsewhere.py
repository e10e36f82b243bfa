"""On which machine a command of the user's cluster runs."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ftrun.hooks.cluster import claim
from ftrun.supervisor.cluster import choice, on_head_host
from ftrun.supervisor.cluster.state import ClusterState
from tests.unit.cluster_plan import plan_of

PLAN = replace(plan_of("alice@far"), fence_command="off {node}")


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables of a machine with one cluster, of which it is no host, and without Slurm."""
    monkeypatch.setattr(claim, "PATH", str(tmp_path / "claim"))
    monkeypatch.setattr(choice, "CONFIGURED", (str(tmp_path / "configured"),))
    env = {"FTRUN_HOME": str(tmp_path / "home"), "PATH": str(tmp_path)}
    state = ClusterState("mine", env)
    with state.lock():
        state.keep_plan(PLAN)
    return env


def test_where_there_is_no_slurm_the_only_cluster_is_meant(laptop: dict[str, str], tmp_path: Path) -> None:
    """Not where an sbatch is, another Slurm is configured, or a job runs; and not where two clusters could be meant."""
    assert "mine" == choice.elsewhere(laptop)
    assert "" == choice.elsewhere(laptop | {"SLURM_CONF": "/x"})
    assert "" == choice.elsewhere(laptop | {"SLURM_JOB_ID": "1"})
    assert "" == choice.elsewhere(laptop | {"FTRUN_CLUSTER": "none"})
    other = ClusterState("other", laptop)
    with other.lock():
        other.keep_plan(PLAN)
    assert "" == choice.elsewhere(laptop)
    assert "other" == choice.elsewhere(laptop, "other")
    other.forget()
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\n")
    sbatch.chmod(0o755)
    assert "" == choice.elsewhere(laptop)
    assert "mine" == choice.elsewhere(laptop | {"FTRUN_CLUSTER": "mine", "SLURM_CONF": "/x"})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's link")
def test_the_claim_of_another_user_keeps_nobody_from_his_cluster(laptop: dict[str, str]) -> None:
    """On a host of bob's cluster `mine`, alice's commands go to hers."""
    os.symlink('{"token": "x", "name": "mine", "folder": "/var/tmp/ftrun-23456/mine"}', claim.PATH)
    os.lchown(claim.PATH, 23456, 23456)

    assert ("mine", "mine") == (choice.elsewhere(laptop), choice.elsewhere(laptop, "mine"))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--ft-cluster=a", "x.sh"], "a"),
        (["-N", "4", "--ft-cluster", "a", "x.sh"], "a"),
        (["x.sh"], ""),
        ([], ""),
        (["--ft-cluster"], ""),
    ],
)
def test_the_cluster_that_a_submission_names(arguments: list[str], name: str) -> None:
    """In both spellings."""
    assert name == choice.wish_in(arguments)


def _ran(text: str, home: Path, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", text],
        env={"HOME": str(home), "PATH": str(path)},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_first_host_gets_every_word_as_it_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, laptop: dict[str, str]
) -> None:
    """Quotes, blanks and dollars; with the variables of the cluster, in the folder of the same path."""
    (tmp_path / "it's here").mkdir()
    monkeypatch.chdir(tmp_path / "it's here")
    monkeypatch.setattr("sys.argv", ["/not/there/ftrun"])
    (tmp_path / "ftrun").write_text(
        '#!/bin/sh\npwd\necho "$SLURM_CONF $FTRUN_SITE_CONFIG"\nprintf "%s\\n" "$@"\n'
    )
    (tmp_path / "ftrun").chmod(0o755)
    arguments = ["sbatch", "--wrap", "echo \"$HOME\" 'a  b'", "-N2"]
    done = _ran(on_head_host.remote_script(PLAN, arguments, PLAN.head.target), tmp_path, tmp_path)

    folder = "/var/tmp/ftrun-1000/mine/etc"
    assert [
        f"{tmp_path}/it's here",
        f"{folder}/slurm.conf {folder}/ftrun.toml",
        *arguments,
    ] == done.stdout.splitlines()
    assert "" == done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["sbatch", "-N", "4", "--ft-retries", "3", "none.sh", "x"], 2, "there is no none.sh on alice@far"),
        (["status"], 127, "ftrun is not installed on alice@far"),
    ],
)
def test_what_the_first_host_lacks_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, told: str
) -> None:
    """The script that is named, or ftrun itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["/not/there/ftrun"])
    done = _ran(on_head_host.remote_script(PLAN, arguments, PLAN.head.target), tmp_path, tmp_path)

    assert (code, "", 1) == (done.returncode, done.stdout, len(done.stderr.splitlines()))
    assert told in done.stderr
