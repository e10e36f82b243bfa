"""The folder that leads a framework to the checkpoint that was chosen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftrun.hooks.checkpoints import resume_view
from ftrun.hooks.checkpoints.model import Found


def tags(folder: Path, *names: str, **trackers: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
    for name, said in trackers.items():
        (folder / name.replace("_txt", ".txt")).write_text(said)


def root(tmp_path: Path, layout: str, name: str, step: int, *passed: str) -> tuple[Path, dict[str, str]]:
    """Where the framework is led, and what lies there: a tracker's words, or where a link leads."""
    path = str(tmp_path / "c" / name)
    newer = [str(tmp_path / "c" / one) for one in passed]
    told = Path(resume_view.resume_root(Found(path, layout, step), newer, str(tmp_path / "view")))
    return told, {
        file.name: os.readlink(file) if file.is_symlink() else file.read_text()
        for file in told.iterdir()
        if file.is_symlink() or file.is_file()
    }


@pytest.mark.parametrize(
    ("layout", "names", "tracker", "said", "wanted"),
    [
        ("megatron", ("iter_0000010", "iter_0000020"), "latest_checkpointed_iteration.txt", "20", "10"),
        ("deepspeed", ("global_step10", "global_step20"), "latest", "global_step20", "global_step10"),
    ],
)
def test_a_tracker_that_names_another_is_stood_in_for(
    tmp_path: Path, layout: str, names: tuple[str, str], tracker: str, said: str, wanted: str
) -> None:
    """Ours names the chosen one, in the words of that framework; the user's stays as it is."""
    tags(tmp_path / "c", *names)
    (tmp_path / "c" / tracker).write_text(said + "\n")
    told, there = root(tmp_path, layout, names[0], 10, names[1])

    assert tmp_path / "view" == told
    assert {names[0]: str(tmp_path / "c" / names[0]), tracker: wanted} == there
    assert said + "\n" == (tmp_path / "c" / tracker).read_text()
    assert tmp_path / "c" == root(tmp_path, layout, names[1], 20)[0]  # the one that it names needs no view


def test_a_crash_between_checkpoint_and_tracker_costs_nothing(tmp_path: Path) -> None:
    """The checkpoint is whole, and the tracker names the one before, or is not there yet."""
    tags(tmp_path / "c", "global_step10", "global_step20", latest="global_step10")
    assert "global_step20" == root(tmp_path, "deepspeed", "global_step20", 20)[1]["latest"]
    (tmp_path / "c" / "latest").unlink()
    assert {"global_step20", "latest"} == set(root(tmp_path, "deepspeed", "global_step20", 20)[1])


def test_who_takes_the_highest_step_sees_one(tmp_path: Path) -> None:
    """Without trackers a view is made where something newer must not be loaded, and only there."""
    tags(tmp_path / "c", "checkpoint-10", "checkpoint-20")

    assert {"checkpoint-10"} == set(root(tmp_path, "transformers", "checkpoint-10", 10, "checkpoint-20")[1])
    assert tmp_path / "c" == root(tmp_path, "transformers", "checkpoint-20", 20)[0]


def test_a_view_of_a_start_that_was_cut_off_is_made_anew(tmp_path: Path) -> None:
    """What it led to before is not there any more."""
    tags(tmp_path / "c", "checkpoint-10", "checkpoint-20", "checkpoint-30")
    root(tmp_path, "transformers", "checkpoint-20", 20, "checkpoint-30")

    names = root(tmp_path, "transformers", "checkpoint-10", 10, "checkpoint-30", "checkpoint-20")[1]
    assert {"checkpoint-10"} == set(names)


def test_folders_of_ranks_stay_together(tmp_path: Path) -> None:
    """One file of many leads to the folder of all ranks."""
    (tmp_path / "c" / "rank_0").mkdir(parents=True)
    (tmp_path / "c" / "rank_0" / "net-2_400.ckpt").write_text("x")

    assert (
        tmp_path / "c"
        == root(tmp_path, "mindspore", "rank_0/net-2_400.ckpt", 400, "rank_0/net-3_400.ckpt")[0]
    )
