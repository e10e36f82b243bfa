"""A live attempt that looks broken: when may it be ended? (I/O)

Law P7. Slurm, the node or a process exit confirm a fault by themselves and end the launch without us. Otherwise a fatal
line must be followed by no progress for `max(end-wait, 5 x the median step)` while the log can be read: a line alone
never ends a live run, and a silent log alone is no hang. A script that restarts by itself gets that time, since new steps
take the suspicion back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrun.supervisor import sense, settle
from ftrun.supervisor.diagnose import diagnose
from ftrun.supervisor.lifecycle import State
from ftrun.supervisor.model import Diagnosis, FaultClass

if TYPE_CHECKING:
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World
    from ftrun.supervisor.watch import WatchReport

__all__ = ["fatal", "judge", "patience_s"]

_NOT_FATAL = frozenset(
    {FaultClass.HEALTHY, FaultClass.UNKNOWN, FaultClass.PREEMPTED, FaultClass.TIMELIMIT, FaultClass.CANCELLED}
)


def fatal(diagnosis: Diagnosis) -> bool:
    """A provisional diagnosis that training does not survive, should it be true. (pure)"""
    return diagnosis.fault not in _NOT_FATAL and bool(diagnosis.signature)


def patience_s(end_wait_s: float, median_step_s: float | None) -> float:
    """How long no progress must follow a fatal line before a live run may be ended. (pure)"""
    return max(end_wait_s, 5.0 * (median_step_s or 0.0))


def judge(keeper: Keeper, world: World, report: WatchReport) -> None:
    """Suspect, clear or end the live attempt by what its log says. Nothing while the log cannot be read."""
    memory = keeper.memory
    if not report.readable:
        memory.since.pop("suspect", None)
        return
    if report.evidence:
        memory.provisional = diagnose(
            report.evidence,
            settle.topology(keeper),
            ended=None,
            catalog=keeper.office.catalog(),
            progress=report.progress,
        )
    diagnosis = memory.provisional
    if diagnosis is None or not fatal(diagnosis):
        _clear(keeper, "what was seen is not fatal")
        return
    if keeper.run.state is State.RUNNING:
        memory.suspect_step = memory.step
        memory.since["suspect"] = world.mono_s
        keeper.record(
            "fault.suspected", signature=diagnosis.signature, title=diagnosis.title, step=memory.step
        )
        return
    if memory.step is not None and (memory.suspect_step is None or memory.step > memory.suspect_step):
        memory.suspect_step = memory.step
        memory.since["suspect"] = world.mono_s
        _clear(keeper, f"training went on to step {memory.step}")
        return
    waited = memory.for_how_long("suspect", world.mono_s)
    if waited >= patience_s(float(keeper.settings.get("end-wait", 60.0)), report.median_step_s):
        fresh = sense.watch(
            keeper, world, fresh=True
        )  # a network file system may have kept the last steps from us
        if fresh is None or not fresh.readable or (memory.step or 0) > (memory.suspect_step or 0):
            return
        keeper.intend_end(f"{diagnosis.title}; no progress for {waited:.0f} s since")


def _clear(keeper: Keeper, why: str) -> None:
    if keeper.run.state is State.SUSPECT:
        keeper.record("fault.survived", why=why)
