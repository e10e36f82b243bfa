"""Logs of any size in the formats that trainers really print: a normal one, and a storm. (pure)

The forms are those of torchrun with the transformers Trainer, Megatron-LM, DeepSpeed, Lightning, MindSpore, JAX, NCCL's INFO lines, Python's
logging and warnings, progress bars redrawn by carriage returns, and srun's label. Numbers are drawn from a seed, so a run can be repeated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

__all__ = ["normal", "storm"]

STORM_SHARE = 0.3
"""So many lines of a storm match."""

VOICES = 40
"""So many different lines make the noise of a storm."""

_DISTINCT_BYTES = 64 << 20  # beyond, the text repeats


def normal(size_bytes: int, seed: int = 1) -> bytes:
    """About `size_bytes` of a training run that goes well."""
    draw = random.Random(seed)
    return _long(size_bytes, lambda step: draw.choice(_FORMS)(draw, step))


def storm(size_bytes: int, examples: Sequence[str], seed: int = 1) -> bytes:
    """The same with `STORM_SHARE` of the lines from `VOICES` of `examples`, each with its own running number behind it."""
    draw = random.Random(seed)
    loud = draw.sample(list(examples), min(VOICES, len(examples)))

    def line(step: int) -> str:
        if draw.random() < STORM_SHARE:
            return f"{draw.choice(loud)} ({step})"
        return draw.choice(_FORMS)(draw, step)

    return _long(size_bytes, line)


def _long(size_bytes: int, line: Callable[[int], str]) -> bytes:
    lines: list[str] = []
    size = step = 0
    while size < min(size_bytes, _DISTINCT_BYTES):
        step += 1
        lines.append(line(step) + "\n")
        size += len(lines[-1])
    text = "".join(lines).encode()
    return text * max(1, size_bytes // len(text))


def _trainer(draw: random.Random, step: int) -> str:
    loss, norm = draw.uniform(1, 3), draw.uniform(0.1, 2)
    return f"{{'loss': {loss:.4f}, 'grad_norm': {norm:.6f}, 'learning_rate': {3e-4 * draw.random():.6e}, 'epoch': {step / 9000:.2f}}}"


def _megatron(draw: random.Random, step: int) -> str:
    return (
        f" [2026-11-21 03:{step // 60 % 60:02}:{step % 60:02}] iteration {step:8}/  500000 | consumed samples: {step * 1024:12} | elapsed time per"
        f" iteration (ms): {draw.uniform(4000, 5000):.1f} | throughput per GPU (TFLOP/s/GPU): {draw.uniform(380, 420):.1f} | learning rate: 1.499E-04"
        f" | global batch size:  1024 | lm loss: {draw.uniform(1, 3):.6E} | loss scale: 1.0 | grad norm: {draw.random():.3f} | number of skipped"
        " iterations:   0 | number of nan iterations:   0 |"
    )


def _deepspeed(draw: random.Random, step: int) -> str:
    return (
        f"[2026-11-21 03:11:07,{step % 1000:03}] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped=0, lr=[9.6e-05, 9.6e-05],"
        f" mom=[(0.9, 0.95), (0.9, 0.95)] | time (ms) | fwd: {draw.uniform(100, 200):.2f} | bwd: {draw.uniform(200, 400):.2f} | step: 12.31"
    )


def _bar(draw: random.Random, step: int) -> str:
    done = step % 1000
    return "\r".join(
        f"Epoch {step // 1000}: {at / 10:3.0f}%|{'#' * (at // 50):<20}| {at}/1000 [{at // 60:02}:{at % 60:02}<12:31,  {draw.uniform(1, 2):.2f}it/s, v_num=7]"
        for at in range(done, done + 3)
    )


def _nccl(draw: random.Random, step: int) -> str:
    rank = step % 64
    return (
        f"gpu{rank // 8:03}:{draw.randint(10000, 99999)}:{draw.randint(10000, 99999)} [{rank % 8}] NCCL INFO Channel {step % 32:02}/1 :"
        f" {rank}[{rank % 8}] -> {(rank + 8) % 64}[{rank % 8}] [send] via NET/IB/{rank % 8}/GDRDMA"
    )


def _python(draw: random.Random, step: int) -> str:
    return (
        f"{step % 64:>2}: 2026-11-21 03:12:44,{step % 1000:03} - INFO - train.loop - step {step} tokens/s {draw.uniform(9e3, 1e4):.0f} loss {draw.uniform(1, 3):.4f}"
        f" mem {draw.uniform(60, 75):.1f}GiB data_wait {draw.random() / 100:.4f}s"
    )


def _warning(draw: random.Random, step: int) -> str:
    line = draw.randint(10, 900)
    return f"[rank{step % 8}]: /opt/venv/lib/python3.11/site-packages/torch/utils/checkpoint.py:{line}: UserWarning: the use_reentrant parameter should be passed explicitly."


def _mindspore(draw: random.Random, step: int) -> str:
    return (
        f"2026-11-21 03:13:01,{step % 1000:03} - mindformers[mindformers/core/callback/callback.py:530] - INFO - {{ Epoch:[  1/  3], step:[{step:5}/ 9000],"
        f" loss: {draw.uniform(1, 3):.3f}, per_step_time: {draw.uniform(800, 900):.0f}ms, lr: 1e-05, overflow cond: False, loss_scale: 65536.0"
    )


def _jax(draw: random.Random, step: int) -> str:
    return (
        f"I1121 03:14:15.{draw.randint(0, 999999):06} {draw.randint(100000, 999999)} metric_logger.py:181] completed step: {step}, seconds: {draw.uniform(2, 3):.3f},"
        f" TFLOP/s/device: {draw.uniform(400, 450):.3f}, Tokens/s/device: {draw.uniform(3e3, 4e3):.3f}, loss: {draw.uniform(1, 3):.3f}"
    )


_FORMS = (
    _trainer,
    _megatron,
    _deepspeed,
    _bar,
    _nccl,
    _python,
    _warning,
    _mindspore,
    _jax,
)
