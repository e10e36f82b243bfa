"""The folder that checkpoints are published to, as it is looked at when a job is submitted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftrun.supervisor import stagefolder
from ftrun.supervisor.errors import UserError
from ftrun.supervisor.settings import parse
from ftrun.supervisor.settings_errors import SettingError


def test_a_folder_that_is_missing_is_made_when_the_job_is_submitted(tmp_path: Path) -> None:
    """With those above it; a dry run makes none."""
    wanted = tmp_path / "run7" / "checkpoints"
    stagefolder.ready(str(wanted), make=False)
    assert not (tmp_path / "run7").exists()
    stagefolder.ready(str(wanted), make=True)
    assert wanted.is_dir()
    stagefolder.ready(str(wanted), make=True)


@pytest.mark.parametrize("inner", ["", "/inside/it"])
def test_what_is_no_folder_is_refused_in_one_line(inner: str, tmp_path: Path) -> None:
    """A file, or a path that leads through one."""
    (tmp_path / "passwd").write_text("x")
    with pytest.raises(UserError, match=f"^stage: {tmp_path}/passwd is no folder: ") as error:
        stagefolder.ready(f"{tmp_path}/passwd{inner}", make=True)
    assert error.value.exit_code == 2
    assert "\n" not in error.value.message


def test_a_folder_that_may_not_be_written_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is there, or would have to be made below one that is."""
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(tmp_path))
    for path in (tmp_path, tmp_path / "a" / "b"):
        with pytest.raises(UserError, match=f"^stage: you may not write to {tmp_path}"):
            stagefolder.ready(str(path), make=True)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("path", ["ckpt", "./ckpt", "../ckpt", "~other/ckpt"])
def test_a_path_that_is_not_full_is_refused(path: str) -> None:
    """The nodes, the job and whoever submits it may stand in different folders."""
    with pytest.raises(SettingError, match=r"^stage: a full path that all nodes see is wanted"):
        parse("stage", path)
    assert parse("stage", "~/ckpt") == "~/ckpt"
    assert not parse("stage", "")
