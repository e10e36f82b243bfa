"""What a job's script and its user are told of staging: the folder, the batch script, the views. (I/O)"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ftrun.supervisor.config.settings import parse
from ftrun.supervisor.model.errors import SettingError, UserError
from ftrun.supervisor.reports.view_checkpoints import staged_text, staging_problem, sum_reports
from ftrun.supervisor.submission import in_allocation
from tests.unit.bundle.test_batch_sh import Attempt, attempt
from tests.unit.bundle.test_starts_sh import inside, plan

__all__ = ["attempt", "inside"]


def test_a_folder_that_is_missing_is_made_when_the_job_is_submitted(tmp_path: Path) -> None:
    """With those above it; a dry run makes none."""
    wanted = tmp_path / "run7" / "checkpoints"
    in_allocation.check_stage_dir(str(wanted), make=False)
    assert not (tmp_path / "run7").exists()
    in_allocation.check_stage_dir(str(wanted), make=True)
    assert wanted.is_dir()
    in_allocation.check_stage_dir(str(wanted), make=True)


@pytest.mark.parametrize("inner", ["", "/inside/it"])
def test_what_is_no_folder_is_refused_in_one_line(inner: str, tmp_path: Path) -> None:
    """A file, or a path that leads through one."""
    (tmp_path / "passwd").write_text("x")
    with pytest.raises(UserError, match=f"^stage: {tmp_path}/passwd is no folder: ") as error:
        in_allocation.check_stage_dir(f"{tmp_path}/passwd{inner}", make=True)
    assert error.value.exit_code == 2
    assert "\n" not in error.value.message


def test_a_folder_that_may_not_be_written_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is there, or would have to be made below one that is."""
    monkeypatch.setattr(os, "access", lambda path, mode: path != str(tmp_path))
    for path in (tmp_path, tmp_path / "a" / "b"):
        with pytest.raises(UserError, match=f"^stage: you may not write to {tmp_path}"):
            in_allocation.check_stage_dir(str(path), make=True)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("path", ["ckpt", "./ckpt", "../ckpt", "~other/ckpt"])
def test_a_path_that_is_not_full_is_refused(path: str) -> None:
    """The nodes, the job and whoever submits it may stand in different folders."""
    with pytest.raises(SettingError, match=r"^stage: a full path that all nodes see is wanted"):
        parse("stage", path)
    assert parse("stage", "~/ckpt") == "~/ckpt"
    assert not parse("stage", "")


# ---------------------------------------------------------------------- batch.sh

TELLS = '#!/bin/sh\necho "$FTRUN_START|$FTRUN_STAGE_DIR|$FTRUN_STAGE_TO"\n'


@pytest.fixture
def staging(inside: Attempt) -> Attempt:
    """An attempt that stages, on nodes a and b of three."""
    inside.values["stage"] = "out/ckpt\n/dev/shm/\n40%\n0\n2\nauto\n1"
    inside.env["SLURMD_NODENAME"] = "a"
    (inside.place / "stage").mkdir()
    return inside


def said(staging: Attempt, *names: str) -> None:
    """What the nodes have left in the attempt's folder."""
    for name in names:
        (staging.place / "stage" / name).write_text("no room" if name.startswith("refused") else "")


def test_each_start_has_a_folder_in_memory_of_its_own(staging: Attempt) -> None:
    """Once all its nodes are ready; the daemons get their words, and hear how each start ended."""
    said(staging, "ready.0.a", "ready.0.b", "flushed.0.2.a")
    plan(staging, "again|nodes=a,b", "end")
    code, out, err = staging.run(TELLS + "exit $((FTRUN_START + 4))\n")

    to = f"{staging.folder}/out/ckpt"
    first, second = (line.split("|") for line in out.splitlines())
    assert (code, err) == (6, "")
    assert first[0::2] == ["1", to]
    assert second[0::2] == ["2", to]
    assert first[1].startswith("/dev/shm/ftrun-")
    assert first[1].endswith("/r-0001.7/stage/0.1")
    assert second[1] == first[1].removesuffix("0.1") + "0.2"
    words = (staging.place / "stage" / "words.0").read_text().splitlines()
    told = dict(zip(words[0::2], words[1::2], strict=True))
    assert told["--base"] == first[1].removesuffix("/stage/0.1")
    assert (told["--to"], told["--attempt-folder"], told["--wait"]) == (to, str(staging.place), "1")
    assert [(staging.place / "stage" / f"over.0.{n}").read_text() for n in (1, 2)] == ["code=5\n", "code=6\n"]
    assert Path(to).is_dir()


def test_a_node_without_room_sends_the_script_to_the_shared_folder(staging: Attempt) -> None:
    """Said once in the log, with the node's reason; the script runs as ever, and there is nothing to wait for at its end."""
    said(staging, "ready.0.a", "refused.0.b")
    to = f"{staging.folder}/out/ckpt"
    assert staging.run(TELLS) == (
        0, f"1|{to}|{to}\n", f"ftrun: checkpoints go straight to {to}: b: no room\n",
    )  # fmt: skip


def test_a_spare_without_room_is_nobodys_concern(staging: Attempt) -> None:
    """Only the nodes of the start count."""
    said(staging, "ready.0.a", "ready.0.b", "refused.0.c", "flushed.0.1.a")
    assert "/dev/shm/" in staging.run(TELLS)[1]


def test_without_an_agent_the_script_is_told_the_shared_folder(staging: Attempt) -> None:
    """Nobody would look after memory."""
    staging.values |= {"agent": "", "stage": staging.values["stage"].replace("out/ckpt", "~/ckpt")}
    to = f"{staging.folder}/ckpt"
    assert staging.run(TELLS) == (0, f"1|{to}|{to}\n", "")
    assert Path(to).is_dir()


def test_where_nothing_is_staged_nothing_is_told(inside: Attempt) -> None:
    """No variable, no folder."""
    assert inside.run(TELLS)[1] == "1||\n"
    assert not (inside.place / "stage").exists()


# ---------------------------------------------------------------------- views


def report(*sets: tuple[str, str, str], **more: Any) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {"set": name, "start": "0.1", "state": state, "size_bytes": 1 << 30, "sealed_s": float(n), "why": why}
        for n, (name, state, why) in enumerate(sets)
    ]
    waiting = sum(row["size_bytes"] for row in rows if row["state"] == "sealed")
    return {
        "sets": rows,
        "backlog_bytes": waiting,
        "used_bytes": 5,
        "limit_bytes": 9,
        "dropped": [],
        "why": "",
        **more,
    }


def test_a_set_is_as_far_as_its_slowest_node() -> None:
    """Published where every node that has a part says so; what one of them refuses is told with its reason."""
    told = sum_reports([
        report(("step-1", "published", ""), ("step-2", "published", ""), ("step-3", "sealed", "")),
        report(("step-1", "published", ""), ("step-2", "refused", "x is not the same on a and b"), ("step-3", "published", "")),
    ])  # fmt: skip
    assert [(one["set"], one["state"], one["nodes"]) for one in told["sets"]] == [
        ("step-1", "published", 2),
        ("step-2", "refused", 2),
        ("step-3", "sealed", 2),
    ]
    line = staged_text(told)
    assert "step-1 published; step-3 in memory (1.0 GiB to go out)" in line
    assert "step-2 refused: x is not the same" in line


def test_what_is_in_the_way_is_told() -> None:
    """A full disk and dropped checkpoints stand in the line; without any set it says that none is published."""
    told = sum_reports([report(why="/shared is full", dropped=["step-1"])])
    assert staged_text(told) == "none published yet; dropped for want of room: step-1; /shared is full"


def test_what_was_refused_is_told_with_its_reason() -> None:
    """None is published because one was refused: that one and why, in `status`, too; no longer once the name is published."""
    why = "/shared/last was saved by a later start"
    told = sum_reports(
        [report(("last", "refused", why)), report(("step-2", "given up", "rank 1 died before it was done"))]
    )
    assert (
        staged_text(told)
        == f"none published; last refused: {why}; step-2 given up: rank 1 died before it was done"
    )
    assert staging_problem(told) == "step-2 given up: rank 1 died before it was done"
    later = sum_reports(
        [report(("last", "refused", why), ("last", "published", ""), ("step-2", "published", ""))]
    )
    later["sets"][0]["state"] = "published"
    assert staging_problem(later) == ""


def test_a_set_that_got_another_name_says_so() -> None:
    """It is published, and not where one would look for it."""
    told = sum_reports(
        [
            report(("last", "published", "it is published as last.of-bcdfgh")),
            report(("last", "published", "")),
        ]
    )
    assert staged_text(told) == "last published (it is published as last.of-bcdfgh)"
