"""Files that the user named besides the job's log, and what is read of them once a launch is over. (I/O)

How it thinks. Most of what `--ft-log` names are logs, and are followed. A flight recorder's dump or torchrun's error file is written
at the end and makes sense when it is whole; so it waits until the launch is judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrun.supervisor import context, inputs
from ftrun.supervisor.model import Evidence
from ftrun.supervisor.tail import LogPath

if TYPE_CHECKING:
    from ftrun.supervisor.run_context import RunContext

__all__ = ["attached", "extra_logs"]


def extra_logs(ctx: RunContext) -> list[LogPath]:
    """The logs of `--ft-log`, relative to the folder of submission; what stood there before this start of the script is none of its."""
    sizes = ctx.attempt.launch.log_sizes
    return [LogPath(path, sizes.get(path, 0)) for path in _named(ctx) if not inputs.is_attachment(path)]


def attached(ctx: RunContext) -> tuple[Evidence, ...]:
    """What the other files of `--ft-log` tell, in order after all that the logs have told."""
    return inputs.told_by(_named(ctx), ctx.services.catalog(), ctx.observations.evidence)


def _named(ctx: RunContext) -> list[str]:
    """The files that `--ft-log` names and that this launch has written."""
    return inputs.named(ctx.settings, context.cwd(ctx.run_dir), ctx.attempt.launch.started_at_s or 0.0)
