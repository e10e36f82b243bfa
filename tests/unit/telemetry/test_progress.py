"""Progress is read from what frameworks print, and from nothing else."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrun.supervisor.telemetry import step_formats
from ftrun.supervisor.telemetry.progress import Progress, ProgressReader

BAR = "\u2588\u2588\u258f       "


def read(*lines: str, end: str = "\n") -> Progress:
    reader = ProgressReader()
    reader.feed("".join(line + end for line in lines).encode(), 0.0)
    assert reader.progress is not None
    return reader.progress


STEPS = {
    "megatron": (
        " iteration      120/  500000 | consumed samples: 15360 | elapsed time per iteration (ms): 5123.4 | lm loss: 2.300000E+00 |",
        (120, 500000, 2.3),
    ),
    "megatron with a colon": ("iteration:  2500/500000   0% | elapsed time: 07:41:19 | lr: 9.990E-06", (2500, 500000, None)),
    "deepspeed": ("[2026-01-02 20:50:31,653] [INFO] [logging.py:107:log_dist] [Rank 0] step=120, skipped=1, lr=[1e-05]", (120, None, None)),
    "deepspeed timer": ("epoch=0/micro_step=7/global_step=120, RunningAvgSamplesPerSec=6.6", (120, None, None)),
    "nemo": ("Epoch 3: global_step=120 reduced_train_loss=2.3", (120, None, 2.3)),
    "paddle": ("global step 120 / 1000, loss: 2.3, lr: 1e-4", (120, 1000, 2.3)),
    "verl": ("training/global_step:120 - actor/loss:2.3", (120, None, 2.3)),
    "fairseq": ("| INFO | train_inner | epoch 001:    100 / 900 loss=2.3, ppl=18.5, num_updates=120, lr=1e-5", (120, None, 2.3)),
    "maxtext": ("completed step: 120, seconds: 0.512, TFLOP/s/device: 90.1, loss: 2.3", (120, None, 2.3)),
    "mindformers": ("{ Epoch:[  2/  2], step:[   20/  100], loss:[2.3], per_step_time: 812ms", (120, 200, 2.3)),
    "tqdm": (f" 12%|{BAR}| 120/1000 [00:10<01:10, 12.0it/s]", (120, 1000, None)),
    "tqdm of srun -l": (f"0:  12%|{BAR}| 120/1000 [00:10<01:10, 12.0it/s]", (120, 1000, None)),
    "tqdm twice in a line": (
        f"  0%|          | 119/1000 [00:17<2:24:45, 17.41s/it] 12%|{BAR}| 120/1000 [00:18<?, ?it/s]",
        (120, 1000, None),
    ),
    "named tqdm": (f"Training:  12%|{BAR}| 120/1000 [00:10<01:10, 12.0it/s]", (120, 1000, None)),
    "lightning": (f"Epoch 1:  20%|{BAR}| 20/100 [00:10<00:12, 44.9it/s, loss=2.3, v_num=0]", (120, None, 2.3)),
    "lightning with epochs": (f"Epoch 1/9:  20%|{BAR}| 20/100 [00:10<00:12, 44.9it/s, loss=2.3]", (120, 900, 2.3)),
    "lightning's sentence": ("Epoch 0, global step 120: 'val_loss' was not in top 1", (120, None, None)),
    "keras": (" 120/1000 [====>.........................] - ETA: 3s - loss: 2.3 - acc: 0.9", (120, 1000, 2.3)),
    "keras 3": ("\x1b[1m 120/1000\x1b[0m \x1b[32m\u2501\u2501\u2501\x1b[0m loss: 2.3", (120, 1000, 2.3)),
    "pytorch example": ("Train Epoch: 3 [640/60000 (1%)]\tLoss: 2.300000", (120640, None, 2.3)),
    "imagenet example": ("Epoch: [1][  20/100]\tTime  0.312 ( 0.41)\tLoss 2.3e+00 (7.0e+00)", (120, None, 2.3)),
    "timm": ("Train: 1 [  20/100 (  1%)]  Loss: 2.3 (6.9)", (120, None, 2.3)),
    "mmengine epoch": ("mmengine - INFO - Epoch(train)  [2][  20/100]  lr: 1e-2  loss: 2.3", (120, None, 2.3)),
    "mmengine iter": ("mmengine - INFO - Iter(train) [ 120/1000]  lr: 1e-2  loss: 2.3", (120, 1000, 2.3)),
    "mxnet": ("Node[0] Epoch[0] Batch [100-120]\tSpeed: 11270.90 samples/sec\taccuracy=0.002", (120, None, None)),
    "tensorflow": ("INFO:tensorflow:loss = 2.3, step = 120 (2.5 sec)", (120, None, 2.3)),
    "torchtitan": ("[titan] 2026-01-02 03:04:05 - INFO - step: 120  loss:  2.3000  memory: 20.1GiB(25%)", (120, None, 2.3)),
    "nanogpt": ("iter 120: loss 2.3, time 120.5ms, mfu 40%", (120, None, 2.3)),
    "composer": ("[batch=120/1000]: loss: 2.3", (120, 1000, 2.3)),
    "hand-written": ("step 120 loss 2.3", (120, None, 2.3)),
    "mpirun --tag-output": ("[1,6]<stdout>:step 120 | loss 2.3", (120, None, 2.3)),
    "torchrun --tee": (f"[default3]: 12%|{BAR}| 120/1000 [00:10<01:10, 12.0it/s]", (120, 1000, None)),
    "a rank's own label": ("[rank3]:iter 120: loss 2.3", (120, None, 2.3)),
    "hand-written, colons": ("step: 120, loss: 2.3", (120, None, 2.3)),
    "hand-written, total": ("[Step 120/1000] Loss: 2.3 | Tokens/s: 1376.92", (120, 1000, 2.3)),
    "hand-written, of": ("step 120 of 1000, loss=2.3", (120, 1000, 2.3)),
    "hand-written, brackets": ("[120/1000] loss=2.3", (120, 1000, 2.3)),
    "a dictionary": ("{'step': 120, 'loss': 2.3, 'lr': 1e-05}", (120, None, 2.3)),
    "json": ('{"step": 120, "loss": 2.3}', (120, None, 2.3)),
    "glog": ("I1115 16:00:39.451247 1406417 trainer.py:501] Training: step 120", (120, None, None)),
    "a rank in front": ("[rank0]: step 120 loss 2.3", (120, None, 2.3)),
    "plain": ("global step 120", (120, None, None)),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_the_step_lines_of_the_frameworks_are_read(name: str) -> None:
    """Step, total and loss, from the line as the framework prints it."""
    line, expected = STEPS[name]
    progress = read(line)

    assert expected == (progress.step, progress.total, progress.loss)


NO_STEPS = (
    "slurmstepd: error: *** STEP 55595933.0 ON n17 CANCELLED AT 2026-01-10T15:27:25 DUE TO TIME LIMIT ***",
    "srun: Terminating StepId=203.0",
    "srun: Terminating job step 20370799.1",
    "srun: error: job step 203 aborted",
    "[2026-01-02 20:50:34,396] [WARNING] [stage3.py:2165:step] 2 pytorch allocator cache flushes since last step",
    "Epoch 3/10",
    "Epoch 3: starting",
    "listening on port 29500, epoch 2, step time 12.5 s",
    "Time per step: 120 ms",
    "step 0.35 s",
    "steps per second: 12",
    "max_steps: 1000",
    "Total optimization steps = 1,000",
    "num steps 1000",
    "saving every step 100",
    "warmup step 10/100",
    "eval step 20",
    "validation step: 20, loss: 3.1",
    "micro step 7",
    "sampling step 20/50",
    "resuming from step 500",
    "Loaded checkpoint from step 500",
    "loading checkpoint at iteration 500 from /x",
    "wandb:   train/global_step 260",
    "Loading checkpoint shards:  33%|###   | 1/3 [00:00<00:00,  5.00it/s]",
    "Fetching 18 files: 100%|######| 18/18 [00:00<00:00, 2145.73it/s]",
    "Map (num_proc=8):  50%|###   | 5000/10000 [00:02<00:02, 2000 examples/s]",
    "Validation: 100%|######| 18/18 [00:00<00:00, 2145.73it/s]",
    "INFO:tensorflow:global_step/sec: 40.1",
    "step 12:30:05 began",
    "step 50% done",
    "[1/4] Installing the loss package",
    "{'loss': 2.31, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'epoch': 0.12}",
    "/checkpoints/global_step500/mp_rank_00_model_states.pt",
)


@pytest.mark.parametrize("line", NO_STEPS)
def test_other_numbers_are_no_steps(line: str) -> None:
    """An epoch, a percentage, a port, a time, a Slurm step, an evaluation: none of them is a step of the run."""
    reader = ProgressReader()
    reader.feed(line.encode() + b"\n", 0.0)

    assert reader.progress is None or reader.progress.step is None


@pytest.mark.parametrize(
    ("line", "step", "path"),
    [
        ("  successfully saved checkpoint from iteration     500 to /ckpt [ t 1/8, p 1/1 ]", 500, "/ckpt"),
        ("successfully saved checkpoint at iteration 500 to /ckpt", 500, "/ckpt"),
        ("saved checkpoint to disk at step 500", 500, ""),
        ("Saved checkpoint /a/step_500.pt", 500, "/a/step_500.pt"),
        ("Checkpoint saved to /a/iter_0000500/", 500, "/a/iter_0000500/"),
        ("Model saved at checkpoints/step_500.pt", 500, "checkpoints/step_500.pt"),
        ("[Torch] Checkpoint global_step500 is ready now!", 500, ""),
        ("[thread=save_finalize][step=500] CheckpointManager Save Finalize is done on all hosts.", 500, ""),
        ("Saved checkpoint to /a/last.ckpt", None, "/a/last.ckpt"),
    ],
)
def test_checkpoint_lines_are_read(line: str, step: int | None, path: str) -> None:
    """Step and path of a checkpoint that was saved, as far as the line tells them."""
    progress = read(line)

    assert (step, path) == (progress.checkpoint_step, progress.checkpoint_path)


@pytest.mark.parametrize(
    "line",
    [
        "Loading checkpoint from /a/step_500.pt",
        "failed to save checkpoint at step 500",
        "Error saving checkpoint /a/step_500.pt",
        "will save checkpoint every 500 steps to /a",
        "Deleted checkpoint /a/step_400.pt, saved space",
        "wandb: Run data is saved locally in /x/wandb/run-20260821",
    ],
)
def test_other_lines_about_checkpoints_are_none(line: str) -> None:
    """Loading, failing, deleting and planning save nothing."""
    reader = ProgressReader()
    reader.feed(f"step 1\n{line}\n".encode(), 0.0)

    assert reader.progress is not None
    assert (None, "") == (reader.progress.checkpoint_step, reader.progress.checkpoint_path)


@pytest.mark.parametrize(
    "line",
    [
        "Saving model checkpoint to /x/checkpoint-500",
        "saving checkpoint at iteration     500 to /x/checkpoint-500 in torch_dist format",
        "INFO:tensorflow:Saving checkpoints for 500 into /x/checkpoint-500.",
    ],
)
def test_saving_is_a_checkpoint_once_training_goes_on(line: str) -> None:
    """A run that dies while it saves has no such checkpoint; a higher step, or the word "saved", confirms it."""
    assert None is read("step 500", line).checkpoint_step
    assert None is read("step 500", line, "step 500").checkpoint_step
    for confirmed in (
        read("step 500", line, "step 501"),
        read("step 500", line, "checkpoint saved at step 500"),
    ):
        assert (500, "/x/checkpoint-500") == (confirmed.checkpoint_step, confirmed.checkpoint_path)


def test_one_file_that_is_always_written_anew_is_of_the_step_before_it() -> None:
    """A line that names no step is as new a checkpoint as any: whoever waits for the next one sees it."""
    saved = "saved checkpoint /a/last.ckpt"
    assert 500 == read("step 500", saved, "step 501").checkpoint_step
    assert 550 == read("step 500", saved, "step 550", "saving checkpoint /a/last.ckpt", saved).checkpoint_step
    assert 550 == read("step 550", "saving checkpoint /a/last.ckpt", "step 551").checkpoint_step


def test_the_strongest_counter_wins_and_stays() -> None:
    """A global step beats a bar that is further, whichever is printed first."""
    bar = f" 45%|{BAR}| 450/1000 [00:10<01:10, 12.0it/s]"

    assert 7 == read(bar, "global_step=7", bar).step
    assert 7 == read("global_step=7", bar).step


def test_a_bar_of_an_evaluation_is_not_the_bar_of_the_training() -> None:
    """Among bars the one with the larger total is the run's; smaller ones come and go."""
    training = [f" 12%|{BAR}| {step}/1000 [00:10<01:10, 12.0it/s]" for step in (120, 121)]
    evaluation = f"100%|{BAR}| 75/75 [00:10<00:00, 12.0it/s]"

    assert (121, 1000) == (read(evaluation, training[0], evaluation, training[1], evaluation).step, 1000)


def test_a_bar_that_was_full_and_begins_again_goes_on_counting() -> None:
    """Keras counts within epochs: a bar that reached its total adds it when the next one begins."""
    lines = [f" {step}/100 [====>....] - loss: 1.0" for step in (50, 100, 1, 50, 100, 20)]

    assert 220 == read(*lines).step


def test_a_bar_that_falls_back_half_way_is_a_restart_not_an_epoch() -> None:
    """A restart inside the log adds nothing: the highest step stays, while the counter is seen to move."""
    lines = [f"step {step}/1000" for step in (500, 501, 401, 402, 403, 404)]
    progress = read(*lines)

    assert 501 == progress.step
    assert read(*lines[:-1]).steps_seen < progress.steps_seen


def test_a_late_rank_is_no_restart() -> None:
    """Ranks print a step or two apart; that moves nothing."""
    assert (
        read("step 10", "step 11").steps_seen == read("step 10", "step 11", "step 10", "step 11").steps_seen
    )


def test_an_epoch_of_unknown_length_adds_nothing() -> None:
    """A counter that falls back without a total keeps its maximum: we do not guess how long an epoch is."""
    assert 400 == read(*(f"Epoch[{epoch}] Batch [0-{step}]" for epoch in (0, 1) for step in (200, 400))).step


def test_carriage_returns_end_lines() -> None:
    """A progress bar that overwrites itself is read as it goes."""
    bars = [f"{step // 10}%|{BAR}| {step}/1000 [00:10<01:10, 12.0it/s]" for step in range(100, 110)]

    assert (109, 10) == (read(*bars, end="\r").step, read(*bars, end="\r").steps_seen)


def test_a_line_of_any_length_costs_little() -> None:
    """Of an endless line only its beginning is kept."""
    reader = ProgressReader()
    reader.feed(b"step 7 loss 1.0 ", 0.0)
    for _ in range(100):
        reader.feed(b"so on. " * 100_000, 0.0)
    reader.feed(b"\nstep 8\n", 0.0)

    assert reader.progress is not None
    assert (8, 16 + 100 * 700_000 + 1) == (reader.progress.step, reader.progress.offset_bytes)


def test_nan_is_no_number() -> None:
    """A loss that is not finite leaves the last one that was."""
    assert 2.3 == read("step 1 loss 2.3", "step 2 loss nan", "step 3 loss inf").loss


def test_the_usual_time_of_a_step_is_learnt_from_looks() -> None:
    """The median over looks, of the time between two that saw steps divided by the steps; one stall changes nothing."""
    reader = ProgressReader()
    reader.feed(b"step 1\nstep 2\n", 0.0)
    assert reader.median_step_s is None
    step, now_s = 2, 0.0
    for count in (1, 2, 4, 1, 2):
        now_s += 10.0 * count
        for _ in range(count):
            step += 1
            reader.feed(f"step {step}\n".encode(), now_s)
        reader.feed(b"nothing\n", now_s + 1)
    reader.feed(f"step {step + 1}\n".encode(), now_s + 3600)

    assert 10.0 == reader.median_step_s


def test_old_text_teaches_no_times() -> None:
    """What is caught up with was written long ago: its steps say nothing about the time between them."""
    reader = ProgressReader()
    for now in range(5):
        reader.feed(f"step {now * 1000}\n".encode(), now, behind=True)
    reader.feed(b"step 5000\n", 5.0)

    assert reader.median_step_s is None


WORDS = st.sampled_from(
    [line for line, _ in STEPS.values()]
    + [
        "\n",
        "\r",
        "\r\n",
        "step 12",
        "3",
        " loss 2.5",
        "Traceback",
        "\x00",
        "saved checkpoint /a/step_9.pt",
        "step 13\n",
        "step 14\r",
    ]
)


@settings(max_examples=150, deadline=None)
@given(words=st.lists(WORDS, max_size=12), cuts=st.lists(st.integers(0, 2000), max_size=8))
def test_however_the_text_is_cut_progress_is_the_same(words: list[str], cuts: list[int]) -> None:
    """Pieces of any size, also within a character or a number, and a look at the end of each, change nothing."""
    text = "".join(words).encode()
    whole, pieces = ProgressReader(), ProgressReader()
    whole.feed(text, 0.0)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    for begin, end in pairwise(places):
        pieces.feed(text[begin:end], float(end))
        pieces.at_rest()
    resting = whole.at_rest()

    assert (whole.progress, whole.advances) == (pieces.progress, pieces.advances)
    assert resting == pieces.at_rest()
    whole.flush()
    assert resting == (whole.progress, whole.advances, whole.losses.seen)


def test_lines_that_differ_in_their_digits_alone_are_read_alike() -> None:
    """What was learnt of a line's layout gives each line its own numbers, however often, and a longer number a layout of its own."""
    for first, last, value in ((7, 9, 1.25), (1, 9, 2.5), (10, 99, 0.125), (7, 9, 1.25)):
        line = f"[2026-01-01 10:00:00] step {first}/{last} loss: {value} saved checkpoint /ckpt/step-{first}.pt".encode()
        seen, loss, saved = step_formats.parse_line(line)
        assert seen is not None
        assert (seen.step, seen.total, loss) == (first, last, value)
        assert saved == step_formats.SavedCheckpoint(first, f"/ckpt/step-{first}.pt", done=True)
