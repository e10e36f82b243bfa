"""What a rank waits in, by the innermost frames of its stack. (pure)

How it thinks. The innermost Python frames of a rank that waits for others are those of its framework's collectives; one that waits for its
accelerator sits in a call that synchronises. A name alone says little (`wait`, `send`), so the file must be the framework's too. What is
not known is work.

Names: torch.distributed, torch.autograd, torch.cuda, Horovod, DeepSpeed and JAX, as their released sources name them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

__all__ = ["COLLECTIVE", "DEVICE", "all_wait_in", "elsewhere", "waits_in"]

COLLECTIVE, DEVICE = "collective", "device"
_COLLECTIVE = re.compile(
    r"\b(?:distributed/(?:distributed_c10d|rendezvous|\w*collectives\w*)|comm/(?:comm|torch|ccl)|torch/mpi_ops|horovod/\w+)\.py"
    r"[:, \w\"]*?\b_?\w*(?:all_?reduce|all_?gather|reduce_scatter|broadcast|barrier|all_?to_?all|gather|scatter|reduce|send|recv|wait"
    r"|synchronize)\w*"
)
_DEVICE = re.compile(
    r"\b(?:cuda/(?:__init__|streams)\.py[:, \w\"]*?\bsynchronize|autograd/(?:graph|__init__)\.py[:, \w\"]*?\b_?(?:engine_run_)?backward"
    r"|npu/utils\.py[:, \w\"]*?\bsynchronize|(?:array|api)\.py[:, \w\"]*?\b(?:_value|block_until_ready))\b"
)


def waits_in(frames: str) -> str:
    """What the rank waits in: "collective", "device" or "". `frames`: the innermost few, as "folder/file.py:function < ..." or faulthandler's lines."""
    if _COLLECTIVE.search(frames):
        return COLLECTIVE
    return DEVICE if _DEVICE.search(frames) else ""


def all_wait_in(frames: Mapping[int, str]) -> str:
    """What all ranks wait in; "" where any of them does something else, or there are none."""
    kinds = {waits_in(text) for text in frames.values()}
    if not kinds or "" in kinds:
        return ""
    return COLLECTIVE if kinds == {COLLECTIVE} else DEVICE


def elsewhere(frames: Mapping[int, str]) -> tuple[int, ...]:
    """The ranks that do not wait in a collective where most others do, in order."""
    kinds = {rank: waits_in(text) for rank, text in frames.items()}
    if 2 * Counter(kinds.values())[COLLECTIVE] <= len(kinds):
        return ()
    return tuple(sorted(rank for rank, kind in kinds.items() if kind != COLLECTIVE))
