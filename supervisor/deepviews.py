"""What was found in a run's checkpoints that were read to their end in the background, as `ftrun show` tells it. (I/O)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ftrun.hooks.checkpoints import deep_results
from ftrun.hooks.checkpoints.model import COMPLETE

__all__ = ["facts", "words", "worth_telling"]


def facts(run_dir: str) -> list[dict[str, Any]]:
    """Each checkpoint that was read, the last one last: what was found, when (Unix seconds), how long that took."""
    return [
        {
            "path": one.path,
            "state": one.state,
            "level": one.level,
            "why": one.why,
            "size_bytes": one.size_bytes,
            "at": one.at_s,
            "seconds": one.seconds,
        }
        for one in deep_results.load_all(run_dir)
    ]


def worth_telling(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that are broken, and the last one."""
    return [row for row in rows if row["state"] != COMPLETE or row is rows[-1]]


def words(row: dict[str, Any]) -> str:
    """One of them in a line."""
    took = f"{row['size_bytes'] / (1 << 20):.1f} MiB in {row['seconds']:.0f} s"
    return f"{row['path']}: {row['state']}: {row['why']} ({took})"
