"""More nodes for a live start that has fewer than it could have: found while it works, joined at a checkpoint. (I/O)

How it thinks. Whether it pays is `growing`'s to say; here is found out what that rests on, and only for a run that is below its full size. Nothing of the run is touched before
everything is there: nodes of another job are asked for, awaited, swept and checked while the script works on, then its next checkpoint is asked for or awaited, then
everybody is asked once more, and only then the start is ended. Whatever comes in between (a fault, a stop, a pause, a node that somebody drains) goes first, and
what was asked for is given back. Nodes of the allocation that were set aside for a fault may come back when the run would use them in a new job, too: when
their exclusion is over.

Going on with fewer nodes of the same job, as its agent sees it.

Giving nodes of the job back: a dead one before Slurm ends the job for it, and one that was set aside once somebody is to mend it.
How it thinks. Slurm needs SlurmdTimeout to call a node down, and then ends every job on it that was not submitted with --no-kill. A job that no longer
holds the node by then is left alone. So where this job would be ended, and it goes on here, the nodes that do not answer are
given back right after the decision, all in one update that names everybody who stays. Nodes that answer are kept, good or bad: whoever got a bad one
next would suffer. A job with --no-kill needs none of it, and then a dead node is better kept than given to somebody's next job.

A refusal is final: Slurm will end this job, so it is left, and what follows is the supervisor's.

A bad node that answers stays aside in the job only until Slurm starts nothing on it any more. Whoever drained it wants to mend it, and cannot while it is held; given
back it hurts nobody, and once it is mended it may come back by a companion. So while a start works that does not use it, the job's nodes are
looked at now and then: those that are gone are noted, and the drained ones among those set aside are given back. This is a favour and no need: a refusal ends it
for this launch, and a job that may need its one release for a dead node keeps it for that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from typing import Any

from ftrun.slurm.client.cluster import JobRow, JobState
from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.client.options import OptionError
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.agent import companion_jobs, placement, start_monitor, stop_start
from ftrun.supervisor.agent.companion_jobs import HERE, WAITING, Companion, Companions
from ftrun.supervisor.agent.companion_prefetch import Apart
from ftrun.supervisor.agent.context import Desk, Suspicion, say
from ftrun.supervisor.agent.node_checks import Checks
from ftrun.supervisor.agent.node_liveness import Reach
from ftrun.supervisor.agent.start_monitor import Eye
from ftrun.supervisor.agent.stop_start import Boundary
from ftrun.supervisor.config import recovery_order, rungs
from ftrun.supervisor.config.node_counts import Sizes, sizes_of_settings
from ftrun.supervisor.diagnosis import inputs, suspicions
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.policy import elastic, estimates, save_request, start_case
from ftrun.supervisor.policy.elastic import Scene, Verdict
from ftrun.supervisor.policy.save_request import Occasion
from ftrun.supervisor.store import checkpoints, flag_files, journal, submission_context
from ftrun.supervisor.submission import plan

__all__ = ["LOOK_EVERY_S", "STARTS_WITHIN_S", "Growth", "Mending", "Room", "may", "outlives", "release"]


LOOK_EVERY_S = 30.0
SIGHT_EVERY_S = 5.0
STARTS_WITHIN_S = 60.0
"""A job that does not begin within this time has no idle nodes, whatever Slurm shows."""

STOP_S = 10.0
"""From the word that ends a start until the next one begins, where nothing was measured yet."""

ALONG_S = 600.0
"""So long a checkpoint is awaited while another job's nodes stand by."""

_GOING_ON = ("intended", "asked", "saved")


@dataclass(frozen=True, slots=True)
class Room:
    """What the rounds of a launch know: its companions, why no start can lie in two jobs, the nodes that no start may use now, and why nothing is to be done
    to the present start ("" = something may)."""

    companions: Companions
    apart: Apart
    aside: Callable[[], tuple[str, ...]]
    busy: Callable[[], str]


class Growth:
    """Looks after one start. After `look` has said that it is to be ended, `nodes` has those of the next one."""

    def __init__(self, desk: Desk, eye: Eye, settings: Mapping[str, Any], room: Room) -> None:
        self._desk, self._eye, self._settings, self._room = desk, eye, settings, room
        self._sizes = sizes_of_settings(settings)
        self._min_stay_s = float(settings.get("grow-min-interval", 1800.0))
        self._every_s = min(LOOK_EVERY_S, max(2.0, self._min_stay_s / 4.0))
        self._next_s = self._sight_s = desk.clock.mono_s()
        self._seen: tuple[save_request.Sight, float] | None = None
        self._saves: list[float] = [
            desk.clock.mono_s()
        ]  # when a checkpoint was seen to be new; first: the start's begin
        self._told = ""
        self._found: Verdict | None = None  # to grow so, if all goes well
        self._asked: tuple[Companion, float] | None = None  # the companion, since when
        self._boundary: tuple[Boundary, float] | None = None
        self._checks: Checks | None = None
        self._scene_then: Scene | None = None  # what that rests on
        self._own: tuple[str, ...] = ()  # nodes of the job that would be taken
        self.nodes: tuple[str, ...] = ()

    def look(self) -> Suspicion | None:
        """Why this start is to be ended now; None where it is not. Raises OSError (journal), GivenUp."""
        if self._sizes is None or self.nodes or len(self._eye.started.nodes) >= self._sizes.full:
            return None
        self._note_saves()
        if self._found is None:
            self._perhaps_begin()
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
        """More nodes are looked at, or waited for."""
        return self._found is not None

    def close(self) -> None:
        """The start is over. What was asked for and is not used is given back. Raises OSError (journal), GivenUp."""
        if self._boundary is not None:
            self._boundary[0].close()
            self._boundary = None
        if self._checks is not None:
            self._checks.let_go()
        if self._found is not None and not self.nodes:
            self._drop("the start ended before")

    # ------------------------------------------------------------------ whether

    def _perhaps_begin(self) -> None:
        mono_s = self._desk.clock.mono_s()
        if mono_s < self._next_s or self._eye.memory.step is None:
            return
        self._next_s = mono_s + self._every_s
        run = self._run()
        if run is None or self._sizes is None:
            return
        scene = self._scene(run, elastic.usable(self._sizes, run.sizes_aside))
        found = elastic.look(scene)
        if not found.size:
            self._tell(found)
            return
        self._found, self._scene_then = found, scene
        self._own = self._free(run)[: found.size - scene.size - found.missing]
        say(f"start {self._eye.started.number}: to grow {found.reason}")
        self._desk.book.record(
            "grow.begun", size=found.size, missing=found.missing, own=list(self._own), reason=found.reason
        )
        if self._own and self._settings.get("after-checks") != "never":
            self._checks = Checks(self._desk, self._eye.started, self._settings)
            self._checks.begin(self._own)
        if found.missing:
            away = {*run.excluded_at(self._desk.clock.now_s()), *self._room.aside()}
            left_s = scene.left_s
            asked = self._room.companions.ask(found.missing, away, left_s, f"the run grows {found.reason}")
            self._asked = (asked, mono_s)
        else:
            self._begin_boundary(found)

    def _scene(self, run: Run, sizes: Sizes) -> Scene:
        """What is known now; Slurm is asked only where nothing else speaks against growing."""
        now_s, size = self._desk.clock.now_s(), len(self._eye.started.nodes)
        restart_s = estimates.restart_s(run) or (self._eye.to_first_step_s or elastic.STANDSTILL_S) + STOP_S
        scene = Scene(
            size=size,
            sizes=sizes,
            past=elastic.past_of(run, now_s, self._min_stay_s, restart_s),
            free=len(self._free(run)),
            between_s=estimates.between_s(run, now_s, size),
            restart_s=restart_s,
            min_stay_s=self._min_stay_s,
            saved=self._saved(run),
            next_save_s=self._next_save_s(),
            busy=self._room.busy() or _busy(run),
            wanted=str(self._settings.get("grow", "auto")) != "never",
        )
        if elastic.look(scene).word not in ("grow", "unknown", "price"):
            return scene
        return self._as_slurm_says(scene, run)

    def _as_slurm_says(self, scene: Scene, run: Run) -> Scene:
        """The scene with idle nodes like ours, whether others wait for them, and what is left of the job's time."""
        desk = self._desk
        try:
            row = desk.cluster.jobs((desk.where.job,)).get(desk.where.job)
        except SlurmError as error:
            return replace(scene, busy=f"Slurm does not answer: {error.message}")
        if row is None or row.is_cut_short:
            return replace(
                scene, busy="Slurm does not show the job" if row is None else "the job is being preempted"
            )
        now_s = desk.clock.now_s()
        view = placement.view(desk, dict(self._settings), run)
        idle = len(view.idle - {*desk.nodes, *run.excluded_at(now_s)}) if view.partition else None
        return replace(
            scene,
            idle=idle,
            alone=self._alone(row.limit_end_s),
            others_wait=bool(idle) and placement.others_wait(desk),
            left_s=None if row.limit_end_s is None else row.limit_end_s - now_s,
        )

    def _alone(self, end_s: float | None) -> str:
        if rungs.Rung.COMPANION not in recovery_order.rungs_from(self._settings).orders[""]:
            return "companion is not among its rungs"
        return self._room.apart.against(self._eye.started.number, end_s=end_s, limit_s=STARTS_WITHIN_S)

    def _free(self, run: Run) -> tuple[str, ...]:
        """Nodes of the job that the next start could have, unless they turn out bad."""
        used, out = set(self._eye.started.nodes), set(self._room.aside())
        back = _may_return(
            run, out, self._desk.clock.now_s(), float(self._settings.get("exclude-for", 86_400.0))
        )
        free = [node for node in self._desk.nodes if node not in used and node not in out]
        back -= self._desk.drained  # not mended yet
        return (*free, *(node for node in self._desk.nodes if node in back and node not in used))

    def _run(self) -> Run | None:
        try:
            return self._desk.book.run()
        except (OSError, ValueError, journal.JournalDamaged, journal.JournalTooNew) as error:
            say(f"the run cannot be read, so it does not grow: {error}")
            return None

    def _tell(self, found: Verdict) -> None:
        """Say why it does not grow, once for each kind of reason."""
        if found.word != self._told:
            self._told = found.word
            self._desk.book.record("grow.stays", word=found.word, reason=found.reason)

    # ------------------------------------------------------------------ how

    def _await_companion(self, found: Verdict) -> None:
        assert self._asked is not None
        asked, since_s = self._asked
        told = self._room.companions.look() if asked.state == WAITING else asked
        if told.state == WAITING:
            if self._desk.clock.mono_s() - since_s > STARTS_WITHIN_S:
                self._drop(f"no nodes came within {STARTS_WITHIN_S:.0f} s", failed=True)
            return
        self._asked = (told, since_s)
        if told.state != HERE:
            self._drop(told.reason, failed=True)
            return
        unfit = companion_jobs.fit(self._desk, self._settings, self._eye.started, told, lives=True)
        if unfit:
            self._drop("; ".join(f"{node}: {why}" for node, why in sorted(unfit.items())), failed=True)
            return
        self._begin_boundary(found)

    def _begin_boundary(self, found: Verdict) -> None:
        boundary = Boundary(
            self._desk, self._eye, self._settings, Occasion.GROW, f"the run grows {found.reason}"
        )
        self._boundary = boundary, self._desk.clock.mono_s()

    def _await_checkpoint(self, found: Verdict, boundary: Boundary, since_s: float) -> Suspicion | None:
        verdict = boundary.look()
        if not verdict.end:
            if self._asked is not None and self._desk.clock.mono_s() - since_s > ALONG_S:
                self._drop("no checkpoint came while the nodes stood by", failed=True)
            return None
        run = self._run()
        why = verdict.reason if not verdict.saved else "the run cannot be read" if run is None else _busy(run)
        if why or run is None:
            self._drop(why, failed=not verdict.saved)
            return None
        if self._checks is not None:
            self._checks.finish(self._own, self._desk.alive)
        reach = start_monitor.reach_all(self._desk, self._eye.started.token, self._eye)
        if (why := self._too_late(found, reach)) != "":
            self._drop(why)
            return None
        nodes = self._fitting(reach)
        if len(nodes) != found.size:
            self._drop(
                f"not all nodes are well: {reach.why or ', '.join(sorted({*reach.silent, *reach.unfit}))}",
                failed=True,
            )
            return None
        self.nodes = nodes
        return Suspicion(suspicions.grown(found.reason), 0.0)

    def _too_late(self, found: Verdict, reach: Reach) -> str:
        """Why it does not pay any more; "" where it does. A checkpoint may have been awaited for hours, and the job's end may be another one by now."""
        if reach.end_s is None or self._scene_then is None:
            return ""
        left_s = reach.end_s - self._desk.clock.now_s()
        now = elastic.look(replace(self._scene_then, left_s=left_s, next_save_s=0.0))
        return "" if now.size == found.size else now.reason

    def settled(self, reach: Reach) -> tuple[str, ...]:
        """The nodes of the next start once this one is over: as many as before where one of the new ones has failed meanwhile, () where one of the old ones
        has: then that is a fault. Raises OSError (journal), GivenUp."""
        nodes = self._fitting(reach)
        if self._found is not None and len(nodes) == len(self._eye.started.nodes):
            self._drop("a node failed at the last moment", failed=True)
        return nodes

    def _fitting(self, reach: Reach) -> tuple[str, ...]:
        """The nodes of the next start, those of the present one first; see `settled`."""
        if not reach.known or self._found is None:
            return ()
        where, present = self._desk.where, self._eye.started.nodes
        facts = inputs.read_node_reports(
            where.run_dir, where.attempt, where.launch, self._desk.nodes, start=self._eye.started.number
        )
        came = self._asked[0].nodes[: self._found.missing] if self._asked is not None else ()
        wanted = (*present, *self._own, *came)
        well = start_case.usable(
            wanted, active=present, aside=(), answered=reach.answered, unfit=reach.unfit, facts=facts
        )
        answers = set(reach.answered) - set(reach.unfit)
        if not answers.issuperset(present):
            return ()
        return wanted if {*present, *well} == set(wanted) else present

    def _drop(self, why: str, *, failed: bool = False) -> None:
        """It comes to nothing; the start goes on as it is."""
        say(f"start {self._eye.started.number}: it does not grow: {why}")
        if self._boundary is not None:
            self._boundary[0].close()
        if self._asked is not None and self._asked[0].number:
            self._room.companions.end(self._asked[0].number, f"the run does not grow: {why}")
        self._desk.book.record("grow.dropped", reason=f"it did not grow: {why}", failed=failed)
        if self._checks is not None:
            self._checks.let_go()
        self._found = self._asked = self._boundary = self._checks = None
        self._own, self._told = (), ""

    # ------------------------------------------------------------------ checkpoints

    def _note_saves(self) -> None:
        mono_s = self._desk.clock.mono_s()
        if mono_s < self._sight_s:
            return
        self._sight_s = mono_s + min(SIGHT_EVERY_S, self._every_s)
        before = self._seen
        self._seen = stop_start.sight(self._desk, self._eye, self._settings, mono_s, before)
        if before is not None and save_request.new(before[0], self._seen[0]):
            self._saves = [*self._saves[-1:], mono_s] if len(self._saves) > 1 else [*self._saves, mono_s]

    def _saved(self, run: Run) -> bool:
        """This start has written a checkpoint."""
        if len(self._saves) > 1 or self._eye.memory.saved_step is not None:
            return True
        launch = self._eye.started.launch
        path = self._seen[0].path if self._seen is not None else ""
        before = run.best_checkpoint or launch.resume_from
        return bool(path) and checkpoints.newer(path, before, launch.started_s or 0.0)

    def _next_save_s(self) -> float:
        """Until the next checkpoint; 0 where somebody listens to a wish for one."""
        if save_request.split_signal(str(self._settings.get("save-signal", "")))[0]:
            return 0.0
        if flag_files.is_read(self._desk.where.place, self._eye.started.token):
            return 0.0
        if len(self._saves) < 2:
            return 0.0
        before_s, last_s = self._saves[-2:]
        return max(0.0, last_s + (last_s - before_s) - self._desk.clock.mono_s())


def _busy(run: Run) -> str:
    """What else is done with the run. (pure)"""
    if run.wish:
        return f"a person said {run.wish}"
    if run.halt:
        return "it is to stop soon"
    if run.leaving.get("stage") in _GOING_ON:
        return f"it is being left: {run.leaving.get('occasion', '')}"
    return ""


def _may_return(run: Run, aside: set[str], now_s: float, exclude_for_s: float) -> set[str]:
    """Of the nodes that were set aside, those whose exclusion is over: a new job would use them, too. (pure)"""
    blamed = {node: one.decided_at_s or now_s for one in run.incidents for node in one.nodes if node in aside}
    out = set(run.excluded_at(now_s))
    return {node for node, at_s in blamed.items() if now_s - at_s >= exclude_for_s and node not in out}


def may(settings: Mapping[str, Any], active: int) -> bool:
    """Whether a start on so many nodes could be followed by one on fewer: then the loss of a node is not the loss of the job."""
    sizes = sizes_of_settings(settings)
    if sizes is None or not sizes.at_most(active - 1):
        return False
    return any(rungs.Rung.SHRINK in order for order in recovery_order.rungs_from(settings).orders.values())


MENDED = "so that they can be mended: Slurm starts nothing on them any more"  # behind "given back"


def release(desk: Desk, silent: Collection[str]) -> str:
    """Give back the job's own nodes among the silent ones where it would be ended for them; why the job cannot go on, "" = it can.

    Raises OSError (journal), GivenUp.
    """
    gone = [node for node in desk.where.nodes if node in silent]
    if not gone or outlives(desk.where.run_dir):
        return ""
    try:
        row = desk.cluster.jobs((desk.where.job,)).get(desk.where.job)
    except SlurmError as error:
        return _ends(error.message)
    if row is None:
        return _ends("Slurm does not show the job")
    gone = [node for node in gone if node in row.nodes]
    stay = [node for node in row.nodes if node not in gone]
    if not gone:
        return ""
    refused = _give_back(desk, stay, gone)
    return _ends(refused) if refused else ""


@dataclasses.dataclass
class Mending:
    """The nodes of the job that no start uses, through one launch."""

    desk: Desk
    settings: Mapping[str, Any]
    _next_s: float = 0.0
    _over: bool = False  # nothing is given back any more
    _every_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._every_s = min(
            LOOK_EVERY_S, max(2.0, float(self.settings.get("grow-min-interval", 1800.0)) / 4.0)
        )

    def look(self, used: Collection[str], aside: tuple[str, ...], *, busy: bool) -> tuple[str, ...]:
        """Those of `aside` that the job still has. `used` are the nodes of the start that works, which are never touched; `busy`: it is about to be ended, or
        others want something of the nodes. Raises OSError (journal), GivenUp."""
        desk, mono_s = self.desk, self.desk.clock.mono_s()
        unused = [node for node in desk.where.nodes if node not in used and node not in desk.left]
        if not unused or mono_s < self._next_s:
            return aside
        self._next_s = mono_s + self._every_s
        try:
            row = desk.cluster.jobs((desk.where.job,)).get(desk.where.job)
            if row is None or row.state is not JobState.RUNNING or desk.where.node not in row.nodes:
                return aside
            desk.left |= {node for node in unused if node not in row.nodes}
            held = [node for node in unused if node in aside and node in row.nodes]
            known = desk.cluster.nodes(held) if held else {}
            desk.drained = frozenset(node for node in held if node in known and known[node].drained)
            if not busy:
                self._give_back(row)
        except SlurmError as error:
            say(f"the nodes that are set aside cannot be looked at: {error.message}")
        return tuple(node for node in aside if node in desk.nodes)

    def _give_back(self, row: JobRow) -> None:
        """Raises OSError (journal), GivenUp."""
        desk = self.desk
        gone = [node for node in row.nodes if node in desk.drained and node != desk.where.node]
        if self._over or not gone:
            return
        self._over = not outlives(desk.where.run_dir)
        if self._over:
            return
        stay = [node for node in row.nodes if node not in gone]
        self._over = bool(_give_back(desk, stay, gone, why=MENDED))
        if not self._over:
            desk.left |= {*gone}


def outlives(run_dir: str) -> bool:
    """Whether Slurm lets the jobs of a run go on without a node that it lost, by what was asked for and by what ftrun adds. False where that is not known."""
    try:
        return plan.outlives(*plan.load(run_dir))
    except (submission_context.ContextError, OptionError):
        return False


def _give_back(desk: Desk, stay: list[str], gone: list[str], **more: str) -> str:
    """Why Slurm refused; "" = they are given back. Raises OSError (journal), GivenUp."""
    desk.book.record("release.intended", nodes=stay, gone=gone, **more)
    refused: list[str] = []
    desk.book.act("release", lambda: _release(desk, stay, refused))
    if refused:
        desk.book.record("release.refused", message=refused[0], **more)
        return refused[0]
    desk.book.record("release.done", nodes=stay, gone=gone, **more)
    return ""


def _release(desk: Desk, stay: list[str], refused: list[str]) -> None:
    desk.alive()
    try:
        desk.steps.keep_nodes(desk.where.job, stay)
    except SlurmError as error:
        say(f"nodes cannot be given back: {error.message}")
        refused.append(error.message)


def _ends(message: str) -> str:
    return f"Slurm will end this job for its lost node, which could not be given back: {message}"
