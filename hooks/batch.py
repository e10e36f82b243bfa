"""The text of batch.sh, the shipped part of every submitted file. (I/O)

It is read once, when this module is imported.
"""

from __future__ import annotations

import os

__all__ = ["BATCH_SH"]


def _read() -> bytes:
    with open(os.path.join(os.path.dirname(__file__), "batch.sh"), "rb") as file:
        return file.read()


BATCH_SH: bytes = _read()
"""batch.sh as it is installed, its `#!` line included."""
