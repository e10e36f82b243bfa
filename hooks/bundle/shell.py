"""The texts that ftrun submits, as they are installed: what opens an attempt, what stands before srun, what holds a companion. (I/O)

They are put together once, when this module is imported: what is common to two of them, and what is long, stands in a file of its own.
"""

from __future__ import annotations

import os

from ftrun.hooks.runtime.ownership import RUNNER

__all__ = ["BATCH_SH", "COMPANION_SH", "SHIM_SH", "SPAN_SH"]


def _read(name: str) -> bytes:
    with open(os.path.join(os.path.dirname(__file__), name), "rb") as file:
        return file.read()


_RUNNER = f"_ft_runner='{RUNNER}'\n".encode()
_NODES = _read("batch_nodes.sh").replace(b"#ftrun-runner#\n", _RUNNER)

BATCH_SH: bytes = (
    _read("batch.sh")
    .replace(b"#ftrun-pick#\n", _read("batch_pick.sh"))
    .replace(b"#ftrun-starts#\n", _read("batch_starts.sh"))
    .replace(b"#ftrun-spans#\n", _read("batch_spans.sh"))
    .replace(b"#ftrun-caches#\n", _read("batch_caches.sh"))
    .replace(b"#ftrun-stage#\n", _read("batch_stage.sh"))
    .replace(b"#ftrun-nodes#\n", _NODES)
)
"""batch.sh, its `#!` line included, with its parts in their places."""

COMPANION_SH: bytes = _read("companion.sh").replace(b"#ftrun-nodes#\n", _NODES)
"""The script of a job that holds nodes for another one, its `#!` line included."""

SHIM_SH: bytes = _read("shim.sh").replace(b"#ftrun-runner#\n", _RUNNER)
"""What stands in front of Slurm's srun in a job that recovers inside its allocation."""

SPAN_SH: bytes = _read("shim_span.sh")
"""What it reads in a start that spans several jobs."""
