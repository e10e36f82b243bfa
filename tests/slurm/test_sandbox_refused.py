"""Laws of sandboxes that do not come up: why, in one line, and that nothing of them stays. Some change what this process finds."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from ftrun.slurm.sandbox import boot
from ftrun.slurm.sandbox.handle import Sandbox
from ftrun.slurm.sandbox.lifecycle import find, up
from ftrun.slurm.sandbox.plan import SandboxError
from tests.slurm.post import traces

pytestmark = pytest.mark.slurm


def test_missing_packages_are_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Slurm nothing is made; the one line names the packages."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(boot, "SBIN", ())

    with pytest.raises(SandboxError, match=r"apt-get install .*munge slurm-wlm") as refused:
        up(tmp_path / "box")

    assert refused.value.wrong_usage
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "box").exists()


def test_accounting_names_its_own_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accounting needs a database server: only who asks for it is told to install one."""
    which = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda tool, path=None: None if "mariadb" in tool else which(tool, path=path)
    )

    with pytest.raises(SandboxError, match=r"apt-get install .*mariadb-server-core"):
        up(tmp_path / "box", accounting=True)


def test_folders_and_ports_of_others_are_left_alone(tmp_path: Path) -> None:
    """A folder that holds something else, or a port that somebody has, is refused."""
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SandboxError, match="not empty and no sandbox"):
        up(tmp_path)
    with pytest.raises(SandboxError, match="without spaces"):
        up(tmp_path / "a b")
    with pytest.raises(SandboxError, match="no sandbox in"):
        find(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SandboxError, match="is in use"):
        up(tmp_path / "box", base_port=taken.getsockname()[1])


def test_a_daemon_that_does_not_start_is_reported_and_nothing_stays(tmp_path: Path) -> None:
    """A slurm.conf that Slurm refuses ends in one line with Slurm's own words, and no process."""
    with pytest.raises(SandboxError, match=r"slurmctld did not start: .*NoSuchSetting"):
        up(tmp_path / "box", conf={"NoSuchSetting": "1"})

    assert traces(tmp_path) == []


def test_a_slurm_with_one_slurmd_a_host_is_refused_where_nodes_have_no_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several nodes on a Slurm built without --enable-multiple-slurmd need host names: without them every step would fail later."""
    monkeypatch.setattr(Sandbox, "has_multiple_slurmd", lambda box: False)

    with pytest.raises(SandboxError, match="--enable-multiple-slurmd") as refused:
        up(tmp_path / "box", nodes=2, uts=False)

    assert refused.value.wrong_usage
    assert traces(tmp_path) == []
