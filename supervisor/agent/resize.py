"""Grow a live start that has fewer nodes than it could use. (I/O)

`policy.elastic` decides whether growing pays; this module collects the facts for it, and only for a run below
its full size. The agent prepares everything while the script works: it asks another job for nodes, waits for
them, sweeps and checks them, then asks for or awaits the next checkpoint, then queries all nodes once more.
Only then does it end the start. Anything that comes in between (a fault, a stop, a pause, a drain) takes
precedence, and the agent gives back what it had asked for. Nodes of the allocation that were excluded after a
fault may come back when a new job of the run could use them too, that is when their exclusion is over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.client.topology import whole_segments
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.agent import allocation, companion_jobs, start_monitor, stop_start
from ftrun.supervisor.agent.companion_jobs import READY, WAITING, Companion, Companions
from ftrun.supervisor.agent.context import AgentContext, Suspicion, log_line
from ftrun.supervisor.agent.node_checks import FailureChecks
from ftrun.supervisor.agent.node_liveness import NodeAnswers
from ftrun.supervisor.agent.spanning_limits import SpanningLimits
from ftrun.supervisor.agent.start_monitor import StartMonitor
from ftrun.supervisor.agent.stop_start import CheckpointWait
from ftrun.supervisor.config import recovery_order, rungs
from ftrun.supervisor.config.node_counts import SIZES_MAX, Sizes, segment_size, sizes_of_settings
from ftrun.supervisor.config.settings import number_of, text_of
from ftrun.supervisor.diagnosis import suspicions
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.model.types import CheckpointState
from ftrun.supervisor.policy import elastic, estimates, save_request, start_decision
from ftrun.supervisor.policy.elastic import GrowthDecision, GrowthInput
from ftrun.supervisor.policy.save_request import Occasion
from ftrun.supervisor.store import checkpoints, flag_files, journal

LOOK_EVERY_S = 30.0
SIGHT_EVERY_S = 5.0
STARTS_WITHIN_S = 60.0
"""A companion that does not start within this time has no idle nodes, whatever Slurm shows."""

STOP_S = 10.0
"""From the end of a start until the next one begins, where nothing was measured yet."""

ALONG_S = 600.0
"""The longest wait for a checkpoint while nodes of another job stand by."""

_SAVE_STAGES = ("intended", "asked", "saved")


@dataclass(frozen=True, slots=True)
class GrowContext:
    """What the main loop of a launch knows.

    `companions`, `apart` (why a start cannot span two jobs), `aside` (nodes that no start may use now),
    `busy` (why nothing may be done to the present start; "" = something may).
    """

    companions: Companions
    apart: SpanningLimits
    aside: Callable[[], tuple[str, ...]]
    busy: Callable[[], str]


class GrowMonitor:
    """Grows one start. After `look` has returned a suspicion, `nodes` are those of the next start."""

    def __init__(
        self, ctx: AgentContext, monitor: StartMonitor, settings: Mapping[str, Any], room: GrowContext
    ) -> None:
        self._ctx, self._monitor, self._settings, self._room = ctx, monitor, settings, room
        self._sizes, self._unit = sizes_of_settings(settings), segment_size(settings)
        self._outside: frozenset[str] = (
            frozenset()
        )  # nodes that a companion must not have, for whole segments
        self._min_stay_s = number_of(settings, "grow-min-interval")
        self._every_s = min(LOOK_EVERY_S, max(2.0, self._min_stay_s / 4.0))
        self._next_s = self._sight_s = ctx.clock.mono_s()
        self._watch = checkpoints.CheckpointWatch()
        self._seen: CheckpointState | None = None
        self._saves: list[float] = [
            ctx.clock.mono_s()
        ]  # when a new checkpoint was seen; first: the begin of the start
        self._told = ""
        self._found: GrowthDecision | None = None  # the growth that is being prepared
        self._asked: tuple[Companion, float] | None = None  # (companion, since when)
        self._boundary: tuple[CheckpointWait, float] | None = None
        self._checks: FailureChecks | None = None
        self._scene_at_begin: GrowthInput | None = None  # the input of `_found`
        self._own: tuple[str, ...] = ()  # nodes of the job that the growth would use
        self.nodes: tuple[str, ...] = ()

    def look(self) -> Suspicion | None:
        """Why to end this start now; None = go on. Raises OSError (journal), GivenUp."""
        if self._sizes is None or self.nodes or len(self._monitor.started.nodes) >= self._sizes.full:
            return None
        self._track_saves()
        if self._found is None:
            self._begin_if_worth()
            return None
        if (why := self._room.busy()) != "":
            self._drop(why)
            return None
        if self._boundary is None:
            self._await_companion(self._found)
            return None
        return self._await_checkpoint(self._found, *self._boundary)

    @property
    def busy(self) -> bool:
        """A growth is being prepared."""
        return self._found is not None

    def close(self) -> None:
        """The start is over: give back what is not used. Raises OSError (journal), GivenUp."""
        if self._boundary is not None:
            self._boundary[0].close()
            self._boundary = None
        if self._checks is not None:
            self._checks.let_go()
        if self._found is not None and not self.nodes:
            self._drop("the start ended before")

    # ------------------------------------------------------------------ whether

    def _begin_if_worth(self) -> None:
        mono_s = self._ctx.clock.mono_s()
        if mono_s < self._next_s or self._monitor.memory.step is None:
            return
        self._next_s = mono_s + self._every_s
        run = self._run()
        if run is None or self._sizes is None:
            return
        scene = self._scene(run, elastic.usable_sizes(self._sizes, run.sizes_aside))
        found = elastic.decide_growth(scene)
        if not found.size:
            self._journal_refusal(found)
            return
        self._found, self._scene_at_begin = found, scene
        self._own = self._free(run)[: found.size - scene.size - found.missing]
        log_line(f"start {self._monitor.started.number}: to grow {found.reason}")
        self._ctx.journal.record(
            "grow.begun", size=found.size, missing=found.missing, own=list(self._own), reason=found.reason
        )
        if self._own and self._settings.get("after-checks") != "never":
            self._checks = FailureChecks(self._ctx, self._monitor.started, self._settings)
            self._checks.begin(self._own)
        if found.missing:
            away = {*run.excluded_at(self._ctx.clock.now_s()), *self._room.aside(), *self._outside}
            left_s = scene.left_s
            asked = self._room.companions.ask(found.missing, away, left_s, f"the run grows {found.reason}")
            self._asked = (asked, mono_s)
        else:
            self._begin_boundary(found)

    def _scene(self, run: Run, sizes: Sizes) -> GrowthInput:
        """What is known now; Slurm is asked only if nothing else is against growing."""
        now_s, size = self._ctx.clock.now_s(), len(self._monitor.started.nodes)
        restart_s = (
            estimates.restart_s(run) or (self._monitor.to_first_step_s or elastic.STANDSTILL_S) + STOP_S
        )
        scene = GrowthInput(
            size=size,
            sizes=sizes,
            past=elastic.resize_history(run, now_s, self._min_stay_s, restart_s),
            free=len(self._free(run)),
            between_s=estimates.fault_interval_s(run, now_s, size),
            restart_s=restart_s,
            min_stay_s=self._min_stay_s,
            saved=self._saved(run),
            next_save_s=self._next_save_s(),
            busy=self._room.busy() or _busy(run),
            wanted=text_of(self._settings, "grow") != "never",
        )
        if elastic.decide_growth(scene).word not in ("grow", "unknown", "price"):
            return scene
        return self._with_slurm_facts(scene, run)

    def _with_slurm_facts(self, scene: GrowthInput, run: Run) -> GrowthInput:
        """The scene with idle nodes like ours, whether others wait for them, and the remaining time of the
        job.
        """
        ctx = self._ctx
        try:
            row = ctx.cluster.jobs((ctx.where.job,)).get(ctx.where.job)
        except SlurmError as error:
            return replace(scene, busy=f"Slurm does not answer: {error.message}")
        if row is None or row.is_cut_short:
            return replace(
                scene, busy="Slurm does not show the job" if row is None else "the job is being preempted"
            )
        now_s = ctx.clock.now_s()
        view = allocation.view_cluster(ctx, dict(self._settings), run)
        found = sorted(view.idle - {*ctx.nodes, *run.excluded_at(now_s)})
        if self._unit:
            found = list(self._whole(found, most=scene.sizes.full - scene.size - scene.free))
            self._outside = frozenset(view.partition) - frozenset(found)
        idle = len(found) if view.partition else None
        return replace(
            scene,
            idle=idle,
            alone=self._companion_objection(row.limit_end_s),
            others_wait=bool(idle) and allocation.other_jobs_wait(ctx),
            left_s=None if row.limit_end_s is None else row.limit_end_s - now_s,
        )

    def _companion_objection(self, end_s: float | None) -> str:
        if rungs.Rung.COMPANION not in recovery_order.rung_rules_from(self._settings).orders[""]:
            return "companion is not among its rungs"
        return self._room.apart.against(self._monitor.started.number, end_s=end_s, limit_s=STARTS_WITHIN_S)

    def _free(self, run: Run) -> tuple[str, ...]:
        """Nodes of the job that the next start could use, unless they turn out to be bad."""
        used, out = set(self._monitor.started.nodes), set(self._room.aside())
        back = _may_return(run, out, self._ctx.clock.now_s(), number_of(self._settings, "exclude-for"))
        free = [node for node in self._ctx.nodes if node not in used and node not in out]
        back -= self._ctx.drained  # not repaired yet
        found = (*free, *(node for node in self._ctx.nodes if node in back and node not in used))
        return self._whole(found) if self._unit else found

    def _whole(self, nodes: Sequence[str], most: int = SIZES_MAX) -> tuple[str, ...]:
        """As many of these nodes as make whole segments, `most` at most."""
        segments = whole_segments(nodes, self._unit, self._ctx.cluster.topology())
        return tuple(node for segment in segments[: most // self._unit] for node in segment)

    def _run(self) -> Run | None:
        try:
            return self._ctx.journal.run()
        except (OSError, ValueError, journal.JournalDamaged, journal.JournalTooNew) as error:
            log_line(f"the run cannot be read, so it does not grow: {error}")
            return None

    def _journal_refusal(self, found: GrowthDecision) -> None:
        if found.word != self._told:
            self._told = found.word
            self._ctx.journal.record("grow.stays", word=found.word, reason=found.reason)

    # ------------------------------------------------------------------ how

    def _await_companion(self, found: GrowthDecision) -> None:
        assert self._asked is not None
        asked, since_s = self._asked
        told = self._room.companions.look() if asked.state == WAITING else asked
        if told.state == WAITING:
            if self._ctx.clock.mono_s() - since_s > STARTS_WITHIN_S:
                self._drop(f"no nodes came within {STARTS_WITHIN_S:.0f} s", failed=True)
            return
        self._asked = (told, since_s)
        if told.state != READY:
            self._drop(told.reason, failed=True)
            return
        unfit = companion_jobs.unfit_nodes(self._ctx, self._settings, self._monitor.started, told, lives=True)
        if unfit:
            self._drop("; ".join(f"{node}: {why}" for node, why in sorted(unfit.items())), failed=True)
            return
        self._begin_boundary(found)

    def _begin_boundary(self, found: GrowthDecision) -> None:
        boundary = CheckpointWait(
            self._ctx, self._monitor, self._settings, Occasion.GROW, f"the run grows {found.reason}"
        )
        self._boundary = boundary, self._ctx.clock.mono_s()

    def _await_checkpoint(
        self, found: GrowthDecision, boundary: CheckpointWait, since_s: float
    ) -> Suspicion | None:
        verdict = boundary.look()
        if not verdict.end:
            if self._asked is not None and self._ctx.clock.mono_s() - since_s > ALONG_S:
                self._drop("no checkpoint came while the nodes stood by", failed=True)
            return None
        run = self._run()
        why = verdict.reason if not verdict.saved else "the run cannot be read" if run is None else _busy(run)
        if why or run is None:
            self._drop(why, failed=not verdict.saved)
            return None
        if self._checks is not None:
            self._checks.finish(self._own, self._ctx.alive)
        reach = start_monitor.query_all_nodes(self._ctx, self._monitor.started.token, self._monitor)
        if (why := self._late_objection(found, reach)) != "":
            self._drop(why)
            return None
        nodes = self._next_nodes(reach)
        if len(nodes) != found.size:
            self._drop(
                f"not all nodes are well: {reach.why or ', '.join(sorted({*reach.silent, *reach.unfit}))}",
                failed=True,
            )
            return None
        self.nodes = nodes
        return Suspicion(suspicions.growth_suspicion(found.reason), 0.0)

    def _late_objection(self, found: GrowthDecision, reach: NodeAnswers) -> str:
        """Why growing no longer pays; "" if it does. The wait for the checkpoint may have taken hours, and
        the end of the job may have changed.
        """
        if reach.end_s is None or self._scene_at_begin is None:
            return ""
        left_s = reach.end_s - self._ctx.clock.now_s()
        now = elastic.decide_growth(replace(self._scene_at_begin, left_s=left_s, next_save_s=0.0))
        return "" if now.size == found.size else now.reason

    def nodes_after_end(self, reach: NodeAnswers) -> tuple[str, ...]:
        """The nodes of the next start once this one is over.

        As many as before if one of the new nodes has failed meanwhile; () if one of the old ones has, which
        is a fault. Raises OSError (journal), GivenUp.
        """
        nodes = self._next_nodes(reach)
        if self._found is not None and len(nodes) == len(self._monitor.started.nodes):
            self._drop("a node failed at the last moment", failed=True)
        return nodes

    def _next_nodes(self, reach: NodeAnswers) -> tuple[str, ...]:
        """The nodes of the next start, those of the present one first; see `nodes_after_end`."""
        if not reach.known or self._found is None:
            return ()
        where, present = self._ctx.where, self._monitor.started.nodes
        facts = where.node_facts(self._ctx.nodes, start=self._monitor.started.number)
        came = self._asked[0].nodes[: self._found.missing] if self._asked is not None else ()
        wanted = (*present, *self._own, *came)
        well = start_decision.usable_spares(
            wanted, active=present, aside=(), answered=reach.answered, unfit=reach.unfit, facts=facts
        )
        answers = set(reach.answered) - set(reach.unfit)
        if not answers.issuperset(present):
            return ()
        return wanted if {*present, *well} == set(wanted) else present

    def _drop(self, why: str, *, failed: bool = False) -> None:
        """Give up this growth; the start goes on as it is."""
        log_line(f"start {self._monitor.started.number}: it does not grow: {why}")
        if self._boundary is not None:
            self._boundary[0].close()
        if self._asked is not None and self._asked[0].number:
            self._room.companions.end(self._asked[0].number, f"the run does not grow: {why}")
        self._ctx.journal.record("grow.dropped", reason=f"it did not grow: {why}", failed=failed)
        if self._checks is not None:
            self._checks.let_go()
        self._found = self._asked = self._boundary = self._checks = None
        self._own, self._told = (), ""

    # ------------------------------------------------------------------ checkpoints

    def _track_saves(self) -> None:
        mono_s = self._ctx.clock.mono_s()
        if mono_s < self._sight_s:
            return
        self._sight_s = mono_s + min(SIGHT_EVERY_S, self._every_s)
        before = self._seen
        self._seen = stop_start.checkpoint_state(self._ctx, self._monitor, self._settings, self._watch)
        if before is not None and save_request.is_new(before, self._seen):
            self._saves = [*self._saves[-1:], mono_s] if len(self._saves) > 1 else [*self._saves, mono_s]

    def _saved(self, run: Run) -> bool:
        if len(self._saves) > 1 or self._monitor.memory.saved_step is not None:
            return True
        launch = self._monitor.started.launch
        path = self._seen.path if self._seen is not None else ""
        before = run.best_checkpoint or launch.resume_from
        return bool(path) and checkpoints.is_newer(path, before, launch.started_s or 0.0)

    def _next_save_s(self) -> float:
        """Seconds until the next checkpoint; 0 if the script can be asked for one."""
        if save_request.parse_save_signal(text_of(self._settings, "save-signal"))[0]:
            return 0.0
        if flag_files.script_reads_save_file(self._ctx.where.place, self._monitor.started.token):
            return 0.0
        if len(self._saves) < 2:
            return 0.0
        before_s, last_s = self._saves[-2:]
        return max(0.0, last_s + (last_s - before_s) - self._ctx.clock.mono_s())


def _busy(run: Run) -> str:
    """What else is in progress for the run; "" = nothing. (pure)"""
    if run.wish:
        return f"a person said {run.wish}"
    if run.halt:
        return "it is to stop soon"
    if run.leaving.get("stage") in _SAVE_STAGES:
        return f"it is being left: {run.leaving.get('occasion', '')}"
    return ""


def _may_return(run: Run, aside: set[str], now_s: float, exclude_for_s: float) -> set[str]:
    """The excluded nodes whose exclusion is over: a new job would use them, too. (pure)"""
    blamed = {node: one.decided_at_s or now_s for one in run.incidents for node in one.nodes if node in aside}
    out = set(run.excluded_at(now_s))
    return {node for node, at_s in blamed.items() if now_s - at_s >= exclude_for_s and node not in out}


def shrink_is_possible(settings: Mapping[str, Any], active: int) -> bool:
    """Whether a start on `active` nodes could be followed by a smaller one, so that a lost node is not a lost
    job.
    """
    sizes = sizes_of_settings(settings)
    if sizes is None or not sizes.at_most(active - 1):
        return False
    return any(
        rungs.Rung.SHRINK in order for order in recovery_order.rung_rules_from(settings).orders.values()
    )
