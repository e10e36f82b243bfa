"""Which cluster a command uses where the user named none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ftrun.hooks.cluster import claim
from ftrun.hooks.cluster.errors import HostError
from ftrun.supervisor.cluster import choice
from ftrun.supervisor.model.errors import UserError


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """This machine is a host of a cluster `mine`, and no other Slurm is configured; the path of its slurm.conf."""
    folder = tmp_path / "mine"
    for name in ("etc", "run"):
        (folder / name).mkdir(parents=True)
    (folder / "etc" / "slurm.conf").write_text("")
    (folder / "etc" / "slurm.conf").chmod(0o644)
    monkeypatch.setattr(claim, "PATH", str(tmp_path / "claim"))
    monkeypatch.setattr(choice, "CONFIGURED", (str(tmp_path / "configured"),))
    os.symlink(json.dumps({"token": "t", "name": "mine", "user": "me", "folder": str(folder)}), claim.PATH)
    return str(folder / "etc" / "slurm.conf")


def _variables(conf: str, path: str = os.defpath) -> dict[str, str]:
    return {"SLURM_CONF": conf, "PATH": f"{conf.removesuffix('/etc/slurm.conf')}/bin:{path}"}


def test_the_commands_of_the_cluster_stand_first_in_path_and_once(conf: str) -> None:
    """Also where a command is started by another that chose the same cluster; without PATH there is no empty part, which is the cwd."""
    first = choice.changes({"PATH": "/a:/b"})

    assert _variables(conf, "/a:/b") == first
    assert first == choice.changes({"PATH": first["PATH"], "FTRUN_CLUSTER": "mine"})
    assert choice.variables("/f", {"PATH": ""}, has_settings=False)["PATH"] == "/f/bin"


def test_the_cluster_of_this_host_is_used_and_said_once(
    conf: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first command says so, the second does not."""
    assert _variables(conf) == choice.changes({})
    assert "using your cluster mine" in capsys.readouterr().err
    assert _variables(conf) == choice.changes({})
    assert "" == capsys.readouterr().err


@pytest.mark.parametrize(
    "env",
    [{"SLURM_CONF": "/x"}, {"SLURM_CONF_SERVER": "x"}, {"FTRUN_CLUSTER": "none"}, {"SLURM_JOB_ID": "1"}],
)
def test_another_slurm_in_the_environment_is_left_alone(conf: str, env: dict[str, str]) -> None:
    """What is configured, and the job that one stands in, go before."""
    assert {} == choice.changes(env)


def test_another_slurm_on_the_machine_is_left_alone_unless_the_cluster_is_named(
    conf: str, tmp_path: Path
) -> None:
    """Its slurm.conf lies where administrators put it."""
    (tmp_path / "configured").write_text("")

    assert {} == choice.changes({})
    assert _variables(conf) == choice.changes({"FTRUN_CLUSTER": "mine"})
    assert _variables(conf) == choice.changes({"SLURM_CONF": "/x"}, "mine")


def test_a_cluster_that_is_not_here_is_refused(conf: str) -> None:
    """One line that says how to get there."""
    with pytest.raises(UserError, match=r"no host of a cluster 'other' of yours: `ftrun cluster run"):
        choice.changes({}, "other")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's link")
def test_the_claim_of_another_user_chooses_nothing(conf: str) -> None:
    """Whoever puts a link there cannot make others clients of his Slurm; nor can he by a slurm.conf that he may write."""
    os.lchown(claim.PATH, 23456, 23456)
    assert {} == choice.changes({})
    with pytest.raises(UserError, match="no host of a cluster 'mine' of yours"):
        choice.changes({}, "mine")
    os.lchown(claim.PATH, 0, 0)
    os.chown(conf, 23456, 23456)
    assert {} == choice.changes({})


@pytest.mark.parametrize("text", ["", "no json", "[]", '"text"', "[" * 4000])
def test_what_is_no_claim_chooses_nothing(conf: str, text: str) -> None:
    """A link that says something else, or a file."""
    os.unlink(claim.PATH)
    if text:
        os.symlink(text, claim.PATH)
    else:
        Path(claim.PATH).write_text("x")

    assert {} == choice.changes({})


def test_what_a_claim_says_can_be_shown_on_a_terminal(conf: str) -> None:
    """Every user of the host can make one: no control characters, and no other fields."""
    os.unlink(claim.PATH)
    os.symlink(json.dumps({"name": "\x1b[2Jx", "user": ["\n"], "since_s": 1e300, "more": 1}), claim.PATH)
    held = claim.held()

    assert ("[2Jx", "", {*claim.FIELDS, "uid"}) == (held["name"], held["user"], set(held))
    with pytest.raises(HostError, match="since when is unknown"):
        claim.take(dict.fromkeys(claim.FIELDS, "t"))


def test_the_settings_of_the_cluster_come_with_it_unless_others_are_named(conf: str) -> None:
    """They lie beside its slurm.conf."""
    settings = Path(conf).with_name("ftrun.toml")
    settings.write_text("")

    assert {**_variables(conf), "FTRUN_SITE_CONFIG": str(settings)} == choice.changes({})
    assert _variables(conf) == choice.changes({"FTRUN_SITE_CONFIG": "/own.toml"})
