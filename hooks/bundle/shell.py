"""The shell scripts that ftrun submits, assembled: batch.sh, the srun shim, and the companion's script. (I/O)

They are assembled once, at import. Long parts, and parts that two scripts share, have files of their own.
"""

from __future__ import annotations

import os

from ftrun.hooks.runtime.ownership import RUNNER


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
    .replace(b"#ftrun-trackers#\n", _read("batch_trackers.sh"))
    .replace(b"#ftrun-stage#\n", _read("batch_stage.sh"))
    .replace(b"#ftrun-nodes#\n", _NODES)
)
"""batch.sh with its `#!` line and all its parts."""

COMPANION_SH: bytes = _read("companion.sh").replace(b"#ftrun-nodes#\n", _NODES)
"""The script of a companion job, which holds nodes for another one, with its `#!` line."""

SHIM_SH: bytes = (
    _read("shim.sh")
    .replace(b"#ftrun-containers#\n", _read("shim_containers.sh"))
    .replace(b"#ftrun-runner#\n", _RUNNER)
)
"""The shim in front of Slurm's srun, in a job that recovers inside its allocation."""

SPAN_SH: bytes = _read("shim_span.sh")
"""The part of the shim for a start that spans several jobs."""
