"""Checkpoints of the Hugging Face Trainer and Accelerate, as transformers 5.23 and accelerate 1.15 wrote them. (I/O)"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ftrun.hooks.checkpoints.model import COMPLETE, DEEP, EMPTY, QUICK, TEMPORARY, TORN, WRITING
from tests.unit import written

TRAINER = "transformers/checkpoint-4"
STATE = "accelerate/checkpoint_0"
FSDP = "fsdp/step_100"


@pytest.mark.parametrize("level", [QUICK, DEEP])
@pytest.mark.parametrize(
    ("name", "layout", "step"),
    [(TRAINER, "transformers", 4), (STATE, "accelerate", 0), (FSDP, "accelerate", 100)],
)
def test_what_the_libraries_wrote_is_complete_with_its_step_and_its_ranks(
    kept: Path, name: str, layout: str, step: int, level: str
) -> None:
    """A checkpoint of two ranks is known by its layout, and nothing speaks against it on either level."""
    judged = written.seen(kept / name, level=level)

    assert (COMPLETE, layout, step, 2, level) == (
        judged.state,
        judged.found.layout,
        judged.found.step,
        judged.world,
        judged.level,
    ), judged.why


def test_the_trainers_output_folder_is_a_folder_of_checkpoints(kept: Path, tmp_path: Path) -> None:
    """Also when the training is over, and the final model and the Trainer's state lie beside its checkpoints."""
    output = written.copied(kept / "transformers", tmp_path / "out")
    for name in ("model.safetensors", "trainer_state.json", "training_args.bin"):
        written.copied(output / "checkpoint-4" / name, output / name)

    found = written.inside(output)

    assert [("transformers", 2), ("transformers", 4)] == [(one.layout, one.step) for one in found]


@pytest.mark.parametrize(
    ("name", "needed"),
    [(TRAINER, "trainer_state.json"), (STATE, "random_states_0.pkl"), (FSDP, "pytorch_model_fsdp_0/.metadata"),
     (FSDP, "pytorch_model_fsdp_0/__1_0.distcp"), (FSDP, "optimizer_0/__0_0.distcp")],
)  # fmt: skip
def test_a_file_that_resuming_needs_is_missed_by_its_name(
    kept: Path, tmp_path: Path, name: str, needed: str
) -> None:
    """What is written last, or named by metadata, is missing: torn, and while it is young still being written."""
    copy = written.copied(kept / name, tmp_path / Path(name).name)
    (copy / needed).unlink()

    judged = written.seen(copy)

    assert TORN == judged.state
    assert needed.rpartition("/")[2] in judged.why
    assert WRITING == written.seen(copy, now_s=judged.written_s + 1).state


@pytest.mark.parametrize(
    ("name", "gone", "told"),
    [
        (TRAINER, "model.safetensors", "its weights are missing"),
        (STATE, "model.safetensors", "its weights are missing"),
        (FSDP, "pytorch_model_fsdp_0", "its weights are missing"),
        (TRAINER, "optimizer.pt", "optimizer.pt is missing"),
        (TRAINER, "scheduler.pt", "scheduler.pt is missing"),
        (STATE, "optimizer.bin", "optimizer.bin is missing"),
    ],
)
def test_weights_and_optimizer_that_are_gone_are_missed_though_no_list_names_them(
    kept: Path, tmp_path: Path, name: str, gone: str, told: str
) -> None:
    """A checkpoint that somebody began to delete has its last file still; the Trainer goes on without its optimizer, and says nothing."""
    copy = written.copied(kept / name, tmp_path / Path(name).name)
    shutil.rmtree(copy / gone) if (copy / gone).is_dir() else (copy / gone).unlink()

    judged = written.seen(copy)

    assert TORN == judged.state
    assert told in judged.why


@pytest.mark.parametrize(
    "weights",
    ["adapter_model.safetensors", "mm_projector.bin", "unet/model.safetensors", "custom_checkpoint_0.pkl"],
)
@pytest.mark.parametrize("name", [TRAINER, STATE])
def test_weights_may_have_any_name(kept: Path, tmp_path: Path, name: str, weights: str) -> None:
    """Adapters, a projector, what hooks save into folders of their own: only where there is nothing else are weights missed."""
    copy = written.copied(kept / name, tmp_path / Path(name).name)
    (copy / weights).parent.mkdir(exist_ok=True)
    (copy / "model.safetensors").rename(copy / weights)
    if not weights.endswith(".safetensors"):
        shutil.copy(copy / ("optimizer.pt" if name == TRAINER else "optimizer.bin"), copy / weights)

    assert COMPLETE == written.seen(copy).state


def test_a_trainer_that_saves_its_model_alone_has_no_optimizer_to_miss(kept: Path, tmp_path: Path) -> None:
    """`save_only_model`: neither optimizer nor scheduler is there."""
    copy = written.copied(kept / TRAINER, tmp_path / "checkpoint-4")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth"):
        (copy / name).unlink()

    assert COMPLETE == written.seen(copy).state


@pytest.mark.parametrize(
    ("name", "spare"),
    [(TRAINER, "rng_state_1.pth"), (STATE, "scheduler.bin"), (STATE, "random_states_1.pkl")],
)
def test_what_resuming_goes_on_without_is_not_missed(
    kept: Path, tmp_path: Path, name: str, spare: str
) -> None:
    """A random state that another rank did not come to write costs no checkpoint."""
    copy = written.copied(kept / name, tmp_path / Path(name).name)
    (copy / spare).unlink()

    assert COMPLETE == written.seen(copy).state


@pytest.mark.parametrize("name", [TRAINER, STATE, FSDP])
def test_a_file_that_was_cut_anywhere_is_noticed(kept: Path, tmp_path: Path, name: str) -> None:
    """Every file of weights, optimizer, states and metadata, at a dozen places and one byte before its end."""
    unnoticed = {
        file: sizes
        for file in written.files(kept / name)
        if (sizes := written.unnoticed_cuts(kept / name, file, tmp_path))
    }

    assert {} == unnoticed


@pytest.mark.parametrize("name", [TRAINER, STATE])
def test_a_file_without_a_byte_is_called_empty(kept: Path, tmp_path: Path, name: str) -> None:
    """What a machine that lost power leaves of a file that nobody had synced."""
    copy = written.copied(kept / name, tmp_path / Path(name).name)
    written.cut(copy / "model.safetensors", 0)

    judged = written.seen(copy)

    assert (EMPTY, "model.safetensors has no byte") == (judged.state, judged.why)


def test_a_trainer_that_was_killed_before_its_optimizer_left_a_torn_checkpoint(
    kept: Path, tmp_path: Path
) -> None:
    """The model and training_args.bin are there, what follows them is not."""
    copy = written.copied(kept / TRAINER, tmp_path / "checkpoint-4")
    for file in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth", "trainer_state.json"):
        (copy / file).unlink()

    assert ("transformers", TORN) == (written.seen(copy).found.layout, written.seen(copy).state)


def test_the_folder_that_older_trainers_rename_is_temporary(kept: Path, tmp_path: Path) -> None:
    """`tmp-checkpoint-4` is what has not got its name yet."""
    copy = written.copied(kept / TRAINER, tmp_path / "tmp-checkpoint-4")

    assert TEMPORARY == written.seen(copy).state


def test_a_model_that_somebody_saved_under_the_trainers_name_is_no_torn_checkpoint(
    kept: Path, tmp_path: Path
) -> None:
    """save_pretrained writes no state; where nothing of the Trainer lies, none is asked for."""
    copy = written.copied(kept / "model" / "single", tmp_path / "checkpoint-500")

    judged = written.seen(copy)

    assert (COMPLETE, "safetensors", 500) == (judged.state, judged.found.layout, judged.found.step)


def test_a_loop_of_ones_own_that_uses_the_trainers_folder_names_is_not_asked_for_its_state(
    kept: Path, tmp_path: Path
) -> None:
    """save_pretrained and torch.save(optimizer) into checkpoint-500: the Trainer itself has its arguments there first."""
    copy = written.copied(kept / TRAINER, tmp_path / "checkpoint-500")
    for name in ("trainer_state.json", "training_args.bin", *(one.name for one in copy.glob("rng_state*"))):
        (copy / name).unlink()

    assert COMPLETE == written.seen(copy).state


@pytest.mark.parametrize("missing", ["model.safetensors", "optimizer.bin", "scheduler.bin"])
def test_a_rank_that_was_faster_than_the_main_process_does_not_make_it_complete(
    kept: Path, tmp_path: Path, missing: str
) -> None:
    """random_states_1.pkl is written at once, while the main process still writes the model."""
    copy = written.copied(kept / STATE, tmp_path / "checkpoint_0")
    (copy / missing).unlink()
    (copy / "random_states_0.pkl").unlink()

    assert ("accelerate", TORN) == (written.seen(copy).found.layout, written.seen(copy).state)


@pytest.mark.parametrize(("folder", "state"), [("checkpoints/checkpoint_7", TORN), ("mine/step_7", COMPLETE)])
def test_only_where_accelerate_chose_the_name_are_random_states_missed(
    kept: Path, tmp_path: Path, folder: str, state: str
) -> None:
    """Loops of one's own save model, optimizer and scheduler under the same names, and no random states."""
    copy = written.copied(kept / STATE, tmp_path / folder)
    for name in ("random_states_0.pkl", "random_states_1.pkl"):
        (copy / name).unlink()

    assert state == written.seen(copy).state
