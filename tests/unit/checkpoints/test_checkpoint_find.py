"""What a pattern leads to: a checkpoint, or a folder of them. (I/O)"""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.hooks.checkpoints.find import find
from ftrun.hooks.checkpoints.model import COMPLETE
from ftrun.hooks.checkpoints.names import step_of
from tests.unit import written
from tests.unit.checkpoints.test_checkpoint_zips import noise, zipped


def laid(folder: Path, *names: str) -> Path:
    """A folder with files, zips where their name says so."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith((".pt", ".ckpt")):
            zipped(folder / name, {"data.pkl": noise(50)})
        else:
            (folder / name).write_text("x")
    return folder


def seen(folder: Path, *patterns: str, marker: str = "") -> list[tuple[str, str, int | None]]:
    """What is found, by its path in the folder."""
    found = find(patterns, cwd=str(folder), marker=marker)
    return [(one.path[len(str(folder)) + 1 :], one.layout, one.step) for one in found]


def test_files_of_steps_are_found_by_their_folder_and_by_a_pattern(tmp_path: Path) -> None:
    """`ckpts` and `ckpts/*.pt` mean the same; what has no step there is a part of something."""
    laid(tmp_path / "ckpts", "step_10.pt", "step_9.pt", "tokenizer.pt", "latest")

    both = [("ckpts/step_10.pt", "torch", 10), ("ckpts/step_9.pt", "torch", 9)]
    assert both == seen(tmp_path, "ckpts")
    assert both == seen(tmp_path, "ckpts/step*.pt", "ckpts/*9.pt")


def test_a_folder_that_is_a_step_is_one_checkpoint_whatever_lies_in_it(tmp_path: Path) -> None:
    """The script that wrote it loads the folder."""
    for name in ("step_1", "epoch-2", "300"):
        laid(tmp_path / "ckpts" / name, "model_step_5.pt", "optimizer_step_5.pt", "rank_0/state.pt")

    assert [("ckpts/300", "any", 300), ("ckpts/epoch-2", "any", 2), ("ckpts/step_1", "any", 1)] == seen(
        tmp_path, "ckpts/*"
    )


def test_folders_that_are_named_by_steps_are_found_in_their_folder(tmp_path: Path) -> None:
    """Whatever the script writes into them: the folder around them is no checkpoint, nor is what the link beside them leads to."""
    for name in ("checkpoint-100", "checkpoint-200"):
        laid(tmp_path / "ckpts" / name, "model_999.pt", "optimizer_999.pt")
    (tmp_path / "ckpts" / "latest").symlink_to("checkpoint-200")

    both = [("ckpts/checkpoint-100", "any", 100), ("ckpts/checkpoint-200", "any", 200)]
    assert both == seen(tmp_path, "ckpts")
    assert both == seen(tmp_path, "ckpts/*")


def test_a_folder_of_named_parts_is_one_checkpoint(tmp_path: Path) -> None:
    """A model and an optimizer beside each other, and folders of DCP for each of them, are no checkpoints of their own."""
    laid(tmp_path / "best", "model.pt", "optimizer.pt")
    laid(tmp_path / "good", "model/.metadata", "model/__0_0.distcp", "optim/.metadata", "model_1/.metadata")

    assert [("best", "any", None), ("good", "any", None)] == seen(tmp_path, "*")


def test_markers_manifests_and_trackers_are_no_checkpoints(tmp_path: Path) -> None:
    """They lie beside them and match the same pattern."""
    laid(
        tmp_path, "step_1.pt", "step_1.pt.done", "step_1.pt.ftrun-manifest.json", "step_1.pt.ftrun-complete", "latest",
        "latest_checkpointed_iteration.txt",
    )  # fmt: skip

    assert [("step_1.pt", "torch", 1)] == seen(tmp_path, "*", marker=".done")


def test_nothing_and_what_does_not_exist_is_an_empty_list(tmp_path: Path) -> None:
    """The first start of a run has none."""
    (tmp_path / "ckpts").mkdir()

    assert [] == seen(tmp_path, "nowhere/*", "ckpts/*")


def test_a_checkpoint_that_two_patterns_match_is_found_once(tmp_path: Path) -> None:
    """By its path."""
    laid(tmp_path, "step_1.pt")

    assert [("step_1.pt", "torch", 1)] == seen(tmp_path, "*.pt", "step_1.pt", ".")


@pytest.mark.parametrize(
    ("name", "step"),
    [("iter_0000100", 100), ("global_step7", 7), ("epoch=3-step=400.ckpt", 400), ("checkpoint-500", 500), ("ckpt_12.h5", 12),
     ("model.h5", 5), ("best", None), ("STEP_0009.pt", 9), ("step_00000000000000000000012", 12)],
)  # fmt: skip
def test_the_step_is_read_from_the_name(name: str, step: int | None) -> None:
    """The number behind step, iter or epoch, else the last one."""
    assert step == step_of(f"/a/step_1/{name}")


@pytest.mark.parametrize(
    "names",
    [("metadata.json", "model.bin"), (".metadata", "model.bin"), (".metadata/version", "model.bin"), ("mp_rank_00/mine.pt",),
     ("weights/a.bin", "context/b.txt"), ("model.pt", "common.txt")],
)  # fmt: skip
def test_a_folder_of_ones_own_with_a_name_that_others_use_too_is_complete(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    """`metadata.json` and `.metadata` are anybody's names: nothing is asked for that only a framework writes."""
    folder = laid(tmp_path / "iter_0000100", *names)

    judged = written.seen(folder)

    assert COMPLETE == judged.state, judged.why


def test_a_checkpoint_that_is_called_as_a_tracker_file_is_one(tmp_path: Path) -> None:
    """`latest` has one short line where a framework wrote it."""
    (tmp_path / "latest").write_bytes(noise(5000))
    (tmp_path / "latest_universal").write_text("global_step100_universal")

    assert [("latest", "any", None)] == seen(tmp_path, "*")
    assert [("latest_universal", "any", None)] == seen(tmp_path, "latest_universal")
