"""batch.sh and staged checkpoints, under each POSIX shell: what the script is told, and what the nodes are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_batch_sh import Attempt, attempt
from tests.unit.test_starts_sh import inside, plan

__all__ = ["attempt", "inside"]

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
    """Once all its nodes are ready; the keepers get their words, and hear how each start ended."""
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
