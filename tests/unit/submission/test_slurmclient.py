"""Laws of choosing how Slurm is asked: pyslurm is loaded by nobody who does not need it, and missed by nobody who does not want it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftrun.slurm.commands.cluster import CommandCluster
from ftrun.slurm.native.cluster import NativeCluster
from ftrun.supervisor.config import sources
from ftrun.supervisor.submission import cluster_client, first_attempt, start_supervisor


def wanted(tmp_path: Path, **told: str) -> sources.Config:
    """The settings with these in the environment, and nothing else."""
    env = {"HOME": str(tmp_path), "FTRUN_SITE_CONFIG": str(tmp_path / "none")}
    return sources.load(str(tmp_path), env | {f"FTRUN_{key.upper()}": value for key, value in told.items()})


@pytest.mark.parametrize(
    ("told", "here", "kind"),
    [
        ({}, False, CommandCluster),
        ({}, True, NativeCluster),
        ({"slurm_client": "commands"}, True, CommandCluster),
        ({"slurm_client": "pyslurm"}, False, NativeCluster),
        ({"pyslurm_python": "/opt/pyslurm/bin/python"}, False, NativeCluster),
        ({"pyslurm_python": "/opt/pyslurm/bin/python", "slurm_client": "commands"}, False, CommandCluster),
    ],
)
def test_pyslurm_is_asked_where_it_is_or_where_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: dict[str, str], here: bool, kind: type
) -> None:
    """By itself only where it is installed; nothing is started before the first question."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object() if here else None)
    said: list[object] = []
    cluster = cluster_client.open_cluster(wanted(tmp_path, **told), {}, timeout_s=1.0, tell=said.append)
    assert type(cluster) is kind
    assert said == []


def test_doctor_says_how_slurm_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That there is no pyslurm is no fault of a site; that one which somebody wants is of no use is told."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert cluster_client.examine_client(wanted(tmp_path), {}) == (
        "ok",
        "by Slurm's commands: pyslurm is not installed here",
        "",
    )
    never = cluster_client.examine_client(wanted(tmp_path, slurm_client="commands"), {})
    assert never == ("ok", "by Slurm's commands: slurm-client=commands", "")
    env = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    state, what, _ = cluster_client.examine_client(wanted(tmp_path, slurm_client="pyslurm"), env)
    assert (state, "SLURM_CONF" in what) == ("warn", True)


def test_who_asks_once_loads_nothing_of_it(tmp_path: Path) -> None:
    """Neither a submission nor a poll by the commands pays for the second way."""
    code = (
        "import sys, ftrun.supervisor.submission.plan, ftrun.supervisor.submission.first_attempt, ftrun.slurm.commands.cluster, ftrun.supervisor.submission.cluster_client as s;"
        "from ftrun.supervisor.config import sources as config;"
        f"c = config.load({str(tmp_path)!r}, {{'HOME': {str(tmp_path)!r}, 'FTRUN_SLURM_CLIENT': 'commands'}});"
        "s.open_cluster(c, {}, timeout_s=1, tell=print);"
        "print(*[name for name in sys.modules if 'native' in name or 'pyslurm' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.split() == []


@pytest.mark.parametrize("said", ["commands", ""])
def test_what_a_submission_says_of_it_is_for_the_supervisor_that_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """By the environment, which a supervisor keeps; where the submission says nothing, the supervisor has its own settings."""
    settings = wanted(tmp_path)
    settings.apply(sources.COMMAND_LINE, "", [("slurm-client", said)] if said else [])
    given: list[dict[str, str]] = []
    monkeypatch.setattr(start_supervisor, "ensure_supervisor", lambda _, env: given.append(env))
    asked: Any = SimpleNamespace(config=settings, env={"A": "b"}, kept=lambda *_: {})
    first_attempt.FirstAttempt(asked, str(tmp_path), str(tmp_path / "r-0001")).start_supervisor()
    assert given == [{"A": "b"} | ({"FTRUN_SLURM_CLIENT": said} if said else {})]
    assert {"FTRUN_SLURM_CLIENT", "FTRUN_PYSLURM_PYTHON"} <= {*start_supervisor._KEPT}
