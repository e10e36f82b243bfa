"""Files that the user named besides the job's log, and what is read of them once a launch is over. (I/O)

How it thinks. Most of what `--ft-log` names are logs, and are followed. A flight recorder's dump or torchrun's error file is written
at the end and makes sense when it is whole; so it waits until the launch is judged.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ftrun.slurm.records import replace
from ftrun.supervisor import context, inputs
from ftrun.supervisor.model import Evidence
from ftrun.supervisor.tail import LogPath

if TYPE_CHECKING:
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.signatures import Catalog

__all__ = ["attached", "extra_logs", "named", "told_by"]


def extra_logs(keeper: Keeper) -> list[LogPath]:
    """The logs of `--ft-log`, relative to the folder of submission; what stood there before this start of the script is none of its."""
    sizes = keeper.attempt.log_sizes
    return [LogPath(path, sizes.get(path, 0)) for path in _named(keeper) if not inputs.is_attachment(path)]


def attached(keeper: Keeper) -> tuple[Evidence, ...]:
    """What the other files of `--ft-log` tell, in order after all that the logs have told."""
    return told_by(_named(keeper), keeper.office.catalog(), keeper.memory.evidence)


def told_by(paths: Sequence[str], catalog: Catalog, evidence: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """What those of these files tell that are no logs, in order after `evidence`."""
    found = inputs.attached(paths, catalog=catalog)
    last = max((one.order for one in evidence), default=0)
    return tuple(replace(one, order=last + one.order) for one in found)


def _named(keeper: Keeper) -> list[str]:
    """The files that `--ft-log` names and that this launch has written."""
    return named(keeper.settings, context.cwd(keeper.run_dir), keeper.attempt.started_at_s or 0.0)


def named(settings: Mapping[str, Any], base: str, since_s: float) -> list[str]:
    """The files that `--ft-log` names, relative to `base`, of those that were written since (Unix seconds)."""
    patterns = settings.get("log", [])
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    found = [
        path for pattern in patterns if pattern for path in sorted(glob.glob(os.path.join(base, pattern)))
    ]
    return [path for path in found if _written_s(path) >= since_s - 1.0]


def _written_s(path: str) -> float:
    """When a file was written last; never, where it cannot be seen (a link that leads nowhere)."""
    try:
        return os.path.getmtime(path)
    except OSError:
        return float("-inf")
