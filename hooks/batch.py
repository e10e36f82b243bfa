"""The text of batch.sh, the shipped part of every submitted file. (I/O)

It is put together once, when this module is imported: the part about starts stands in a file of its own.
"""

from __future__ import annotations

import os

__all__ = ["BATCH_SH", "SHIM_SH"]


def _read(name: str) -> bytes:
    with open(os.path.join(os.path.dirname(__file__), name), "rb") as file:
        return file.read()


BATCH_SH: bytes = _read("batch.sh").replace(b"#ftrun-starts#\n", _read("batch_starts.sh"))
"""batch.sh as it is installed, its `#!` line included, with batch_starts.sh in its place."""

SHIM_SH: bytes = _read("shim.sh")
"""What stands in front of Slurm's srun in a job that recovers inside its allocation."""
