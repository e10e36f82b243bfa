"""The model of the drills' trainer: weights and gradients. (pure)

The arithmetic is exact and depends on the order of steps: weights that equal those of an undisturbed training
prove that no step was lost and none was applied twice. Standard library only, Python 3.9: it runs on nodes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

WIDTH = 8
PRIME = 2_147_483_647
PACKED = struct.Struct(f"<{WIDTH}Q")


def initial_weights() -> list[int]:
    """The weights before the first step."""
    return [1000 + i for i in range(WIDTH)]


def gradient(weights: Sequence[int], rank: int, step: int) -> list[int]:
    """One rank's gradient of one step."""
    return [(w * (rank + 3) + step * 7919 + i * 104_729) % PRIME for i, w in enumerate(weights)]


def apply(weights: Sequence[int], total: Sequence[int], step: int) -> list[int]:
    """The weights after one step; order matters."""
    return [(w * 48_271 + t + step) % PRIME for w, t in zip(weights, total)]


def weights_after(steps: int, size: int) -> list[int]:
    """The weights of an undisturbed training of `size` ranks."""
    weights = initial_weights()
    for step in range(1, steps + 1):
        parts = [gradient(weights, rank, step) for rank in range(size)]
        weights = apply(weights, [sum(column) for column in zip(*parts)], step)
    return weights


def checksum(weights: Sequence[int]) -> str:
    """A CRC of the weights, in hex."""
    return f"{zlib.crc32(PACKED.pack(*weights)):08x}"


def loss_at(weights: Sequence[int], step: int) -> float:
    """A number that falls from step to step, as a loss does."""
    return 10.0 / (1.0 + step / 8.0) + (weights[0] % 1000) / 20_000.0
