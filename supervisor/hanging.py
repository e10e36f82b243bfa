"""A live attempt that nobody looks after from inside: does it hang? (I/O)

How it thinks. The agent beside the script watches for hangs, and while it lives it alone does (P8). Where there is none, or it died, the supervisor watches in
the same way (`hangwatch`) with what is seen from its host: logs and beats on the shared folder, and stacks by a step of its own where Slurm lets it have one.

- **From afar less is seen.** Nobody knows from here what a node uses unless ranks or that step tell; what rests on less is given longer (`hang.limits_from`).
- **Only its own eyes count.** Each supervisor, and each one that takes over from an agent, begins with fresh clocks: a start is given its whole
  warm-up from then on. Looks too far apart, a log or beats that cannot be read, Slurm out of sight, a job that does not run: none is silence.
- **It waits for nobody.** Stacks are taken beside the loop, which serves all runs, and are judged when they are there.
- **Just before the end** Slurm is asked whether the job runs, and the logs are opened anew: a network file system may have kept lines from us.

What is decided is journalled, and the attempt is ended as after any other suspicion. The tasks of an array are watched one by one (`hanging_tasks`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor import attempts, ending, hang, hang_verdict, rows, sense, store
from ftrun.supervisor.hangwatch import ASK_LIMIT_S, ASK_QUIET_S, Answer, HangWatch, stacks_line
from ftrun.supervisor.stall import limits_while_suspect
from ftrun.supervisor.timers import Interval

if TYPE_CHECKING:
    from ftrun.slurm.client.cluster import JobRow
    from ftrun.slurm.commands.steps import Steps
    from ftrun.supervisor.run_context import RunContext
    from ftrun.supervisor.watch import WatchReport
    from ftrun.supervisor.world import ClusterSnapshot

__all__ = ["Errands", "RemoteHangWatch", "Watched", "leave_to_agent", "look"]

LOOK_EVERY_S = 2.0
ERRANDS_MAX = 4  # of all runs: a wide array may fall silent at once


@dataclass(frozen=True, slots=True)
class Watched:
    """Whose life is watched: a launch, or a task of an array.

    `place` is its folder, `token` its start, `nodes` those that it uses (() = all of its rows), `more` what its records say besides. `mine` picks its rows from those of the attempt, `read` reads
    its logs anew.
    """

    place: str
    token: str
    nodes: tuple[str, ...]
    mine: Callable[[Sequence[JobRow]], tuple[JobRow, ...]]
    read: Callable[[ClusterSnapshot], WatchReport | None]
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class _Errand:
    """Stacks that are being taken: who was asked, and who answered so far. Another thread writes, and `over` last."""

    asked: tuple[tuple[str, tuple[str, ...]], ...]  # job -> its nodes
    answered: list[str] = field(default_factory=list)
    over: bool = False

    def run(self, steps: Steps, lines: Mapping[str, str]) -> None:
        """Ask one job after the other."""
        try:
            for job, nodes in self.asked:
                told = steps.ask(job, nodes, lines[job], limit_s=ASK_LIMIT_S, quiet_s=ASK_QUIET_S)
                self.answered += [node for node in nodes if told.answers.get(node)]
        except SlurmError:
            pass  # no srun on this host: who answered until now has answered
        finally:
            self.over = True


@dataclass
class Errands:
    """Of all runs: stacks that are being taken beside the loop."""

    pending: list[_Errand] = field(default_factory=list)


@dataclass
class _Hands:
    """What a supervisor does for its watch. `world` is the present look, `report` what the logs told at it."""

    ctx: RunContext
    world: ClusterSnapshot
    watched: Watched
    report: WatchReport | None = None
    errand: _Errand | None = None

    def record(self, kind: str, data: Mapping[str, Any]) -> None:
        """See `Hands.record`."""
        self.ctx.record(kind, **{**data, **self.watched.more})

    def stands(self) -> bool | None:
        """See `Hands.stands`."""
        try:
            known = self.ctx.services.cluster.jobs((self.ctx.attempt.job,))
        except SlurmError:
            return None
        found = self.rows(replace(self.world, families=rows.families(known)))
        if not found:
            return None
        if any(row.state is not JobState.RUNNING for row in found):
            return False
        fresh = self.watched.read(self.world)
        if fresh is None or self.report is None or not fresh.readable or fresh.behind:
            return None
        return True if fresh.last_growth_s == self.report.last_growth_s else None

    def ask(self, folder: str) -> bool:
        """See `Hands.ask`. A run that may only be watched is not disturbed."""
        services = self.ctx.services
        steps, errands = services.steps, services.shared(Errands)
        errands.pending = [one for one in errands.pending if not one.over]
        if steps is None or self.ctx.watch_only or len(errands.pending) >= ERRANDS_MAX:
            return False
        asked = tuple(self._parties())
        lines = {job: self._line(job, folder) for job, _ in asked}
        errand = _Errand(asked)
        services.act("stacks", self.world, lambda: services.in_background(lambda: errand.run(steps, lines)))
        self.errand = errand
        errands.pending.append(errand)  # not sooner: what may not be begun is never over
        return True

    def answer(self) -> Answer | None:
        """See `Hands.answer`."""
        if self.errand is None or not self.errand.over:
            return None
        asked = tuple(node for _, nodes in self.errand.asked for node in nodes)
        return Answer(asked, tuple(self.errand.answered))

    def rows(self, world: ClusterSnapshot) -> tuple[JobRow, ...]:
        """The rows of whoever is watched."""
        return self.watched.mine(self.ctx.rows(world))

    def _line(self, job: str, folder: str) -> str:
        """What is run on the nodes of a job; the ranks in a companion are the main job's."""
        attempt, watched = self.ctx.attempt, self.watched
        theirs = attempt.job if job in attempt.joined else job
        return stacks_line(self.ctx.services.home, watched.place, watched.token, theirs, folder)

    def _parties(self) -> list[tuple[str, tuple[str, ...]]]:
        """Each plain job with the nodes that it uses; several for a heterogeneous one, and for a start that lies in companions, too."""
        found = []
        joined = (row for job in self.ctx.attempt.joined for row in self.world.families.get(job, ()))
        for row in (*self.rows(self.world), *joined):
            used = self.watched.nodes or row.nodes
            nodes = tuple(node for node in row.nodes if node in used)
            if row.state is JobState.RUNNING and nodes:
                found.append((row.raw_job_id or row.job_id, nodes))
        return found


class RemoteHangWatch:
    """The watch over one life, from the supervisor's host."""

    def __init__(
        self, ctx: RunContext, world: ClusterSnapshot, watched: Watched, limits: hang.Limits | None
    ) -> None:
        self._hands = _Hands(ctx, world, watched)
        self._watch = HangWatch(self._hands, watched.place, watched.token, limits, ctx.services.clock.mono_s)

    def look(
        self, world: ClusterSnapshot, report: WatchReport, *, over: bool, suspect: hang.Limits | None = None
    ) -> hang_verdict.Verdict | None:
        """The verdict where it hangs; None else. `over`: the script has ended; `suspect`: see `HangWatch.judge`.

        Raises OSError (journal), LeaseLost.
        """
        self._hands.world, self._hands.report = world, report
        found = self._hands.rows(world)
        runs = bool(found) and all(row.state is JobState.RUNNING for row in found)
        if not self._watch.poll():
            return None
        verdict = self._watch.judge(report, running=runs and not over, suspect=suspect)
        return verdict if verdict is not None and verdict.state is hang_verdict.State.HUNG else None


@dataclass
class _Watch:
    """Of one start of the script."""

    afar: RemoteHangWatch | None = None
    looked: Interval = field(default_factory=Interval)


def leave_to_agent(ctx: RunContext) -> None:
    """The agent inside the allocation watches: what was seen from afar counts no more (P8)."""
    ctx.observations.per_start(_Watch).afar = None


def look(ctx: RunContext, world: ClusterSnapshot, report: WatchReport) -> None:
    """One look at a live launch: end it where it hangs. Raises OSError (journal), LeaseLost."""
    seen, attempt = ctx.observations, ctx.attempt
    watch = seen.per_start(_Watch)
    if not watch.looked.due(world.mono_s, LOOK_EVERY_S):
        return
    if watch.afar is None:
        watched = Watched(
            store.attempt_dir(ctx.run_dir, attempt.number),
            f"{attempt.launch.number}.{attempt.launch.start.number}",
            attempt.used,
            tuple,
            lambda now: sense.watch(ctx, now, fresh=True),
        )
        watch.afar = RemoteHangWatch(ctx, world, watched, hang.limits_from(ctx.settings, from_afar=True))
    suspect, found = None, seen.suspicion
    if found is not None:
        lost = any(node in seen.silent for node in attempt.used)
        suspect = limits_while_suspect(ctx.settings, found, ctx.services.catalog(), lost=lost, from_afar=True)
    over = attempts.script_over(ctx.run_dir, attempt.number, attempt.launch.number)
    verdict = watch.afar.look(world, report, over=over, suspect=suspect)
    if verdict is not None:
        ending.intend(ctx, f"it hangs: {verdict.reason}")
