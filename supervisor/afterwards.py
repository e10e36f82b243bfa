"""Files that the user named besides the job's log, and what is read of them once a launch is over. (I/O)

How it thinks. Most of what `--ft-log` names are logs, and are followed. A flight recorder's dump or torchrun's error file is written
at the end and makes sense when it is whole; so it waits until the launch is judged. And only when no cause was found are the last words of
the logs compared with what this run printed while it was well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrun.slurm.records import replace
from ftrun.supervisor import context, inputs, lastwords, launchlogs
from ftrun.supervisor.model import Diagnosis, Evidence, FaultClass, Topology
from ftrun.supervisor.tail import LogPath

if TYPE_CHECKING:
    from ftrun.supervisor.run_context import RunContext

__all__ = ["attached", "extra_logs", "with_last_words"]

HEALTHY_MAX = 4
"""So many earlier launches are asked what they usually print."""


def extra_logs(ctx: RunContext) -> list[LogPath]:
    """The logs of `--ft-log`, relative to the folder of submission; what stood there before this start of the script is none of its."""
    sizes = ctx.attempt.launch.log_sizes
    return [LogPath(path, sizes.get(path, 0)) for path in _named(ctx) if not inputs.is_attachment(path)]


def attached(ctx: RunContext) -> tuple[Evidence, ...]:
    """What the other files of `--ft-log` tell, in order after all that the logs have told."""
    return inputs.told_by(_named(ctx), ctx.services.catalog(), ctx.observations.evidence)


def with_last_words(ctx: RunContext, found: Diagnosis, topology: Topology) -> Diagnosis:
    """`found`; of an unknown cause, with the lines that are new or odd among the last ones."""
    if found.fault is not FaultClass.UNKNOWN:
        return found
    attempt, report = ctx.attempt, ctx.observations.report
    progress = report.progress if report is not None else None
    own = launchlogs.of_launch(ctx.run_dir, attempt.number, attempt.launch.number) + extra_logs(ctx)
    explained = [
        (incident.attempt, incident.launch, incident.start)
        for incident in ctx.run.incidents
        if incident.fault != FaultClass.UNKNOWN
    ]
    places = explained[-HEALTHY_MAX:]
    healthy = [log for place in places for log in launchlogs.of_start(ctx.run_dir, *place)]
    offset_bytes = progress.offset_bytes if progress is not None else 0
    ours = launchlogs.ours(ctx.run_dir, attempt.number, attempt.launch.number)
    lines = lastwords.suspicious(
        own, topology, step_offset_bytes=offset_bytes, healthy=healthy, ours=ours.having(*attempt.family)
    )
    return replace(found, suspicious=lines) if lines else found


def _named(ctx: RunContext) -> list[str]:
    """The files that `--ft-log` names and that this launch has written."""
    return inputs.named(ctx.settings, context.cwd(ctx.run_dir), ctx.attempt.launch.started_at_s or 0.0)
