"""Which lines announce that something long begins. (pure)"""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.supervisor.telemetry.log_watcher import LogWatcher
from ftrun.supervisor.telemetry.progress import ProgressReader, announced_phase
from ftrun.supervisor.telemetry.tail import LogPath

BEGIN = [
    (b"***** Running Evaluation *****", "eval"),
    (b"Evaluating:  12%|#2        | 12/100 [00:03<00:24,  3.6it/s]", "eval"),
    (b"Validation DataLoader 0:  10%|#         | 5/50 [00:01<00:12]", "eval"),
    (b"[2026-03-01 10:00:01] Evaluating on 3200 samples", "eval"),
    (b'begin validation on "valid" subset', "eval"),
    (b"Start evaluation at epoch 3", "eval"),
    (b"0: evaluating ...", "eval"),
    (b"Compiling jit(train_step) for with global shapes", "compile"),
    (b"start compiling the graph", "compile"),
    (b" > building indices for the training set", "data"),
    (b"Tokenizing shard 7", "data"),
]
OVER = [
    b"evaluation finished in 93.1 s",
    b" validation loss at iteration 2000 | lm loss value: 2.3 |",
    b"eval_loss: 2.31",
    b"Compiled train_step in 41.2 s",
    b"compilation took 12 s",
    b"done building the index",
]
NEITHER = [
    b"eval_interval=1000",
    b"evaluation_strategy: steps, evaluate every 500 steps",
    b"step 12 loss 2.3",
    b"retrieval of medieval data",
    b"ValidationError: 1 validation error for Config",
    b"model.eval",
]


@pytest.mark.parametrize(("line", "phase"), BEGIN, ids=lambda value: str(value)[:30])
def test_an_announcement_names_its_phase(line: bytes, phase: str) -> None:
    """What frameworks print before they evaluate, compile or prepare data is taken for that."""
    assert phase == announced_phase(line)


@pytest.mark.parametrize("line", OVER, ids=lambda value: str(value)[:30])
def test_a_result_ends_its_phase(line: bytes) -> None:
    """A line that tells how it went says that it is over."""
    assert announced_phase(line) == ""


@pytest.mark.parametrize("line", NEITHER, ids=lambda value: str(value)[:30])
def test_settings_and_other_words_announce_nothing(line: bytes) -> None:
    """An interval, a setting, an error and a word that merely looks so are no announcement."""
    assert announced_phase(line) is None


def test_a_phase_lasts_until_the_next_step() -> None:
    """What was announced goes on while no step is printed, and is over with the next one, however the text is cut."""
    reader = ProgressReader()
    reader.feed(b"step 10 loss 2.0\nEvalu", 1.0)
    assert reader.phase == ""
    reader.feed(b"ating on 100 samples\n", 2.0)
    assert reader.phase == "eval"
    reader.feed(b"some other words\n", 3.0)
    assert reader.phase == "eval"
    reader.feed(b"step 11 loss 2.0\n", 4.0)

    assert reader.phase == ""


def test_a_checkpoint_lasts_until_it_is_saved() -> None:
    """Saving is a phase from its announcement to the line that says that it is over."""
    reader = ProgressReader()
    reader.feed(b"step 10 loss 2.0\nsaving checkpoint to /ckpt/step_10\n", 1.0)
    assert reader.phase == "checkpoint"
    reader.feed(b"saved checkpoint to /ckpt/step_10\n", 2.0)

    assert reader.phase == ""


def test_old_text_announces_nothing() -> None:
    """What was written before anybody watched is no announcement now."""
    reader = ProgressReader()
    reader.feed(b"step 10\nEvaluating on 100 samples\n", 1.0, behind=True)

    assert reader.phase == ""


def test_what_another_file_announced_ends_with_a_step_too(tmp_path: Path) -> None:
    """Steps in one file end the phase that another one announced before."""
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_bytes(b"step 10 loss 2.0\n")
    err.write_bytes(b"")
    watcher = LogWatcher([LogPath(str(out)), LogPath(str(err))])
    assert watcher.poll(1.0).phase == ""
    with err.open("ab") as stream:
        stream.write(b"Evaluating on 100 samples\n")
    assert watcher.poll(2.0).phase == "eval"
    assert watcher.poll(3.0).phase == "eval"
    with out.open("ab") as stream:
        stream.write(b"step 11 loss 2.0\n")
    after = watcher.poll(4.0).phase
    watcher.close()

    assert after == ""
