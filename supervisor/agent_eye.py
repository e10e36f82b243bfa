"""What one start shows while it runs: its logs, its steps, its nodes' reports; and when it may be ended. (I/O)

How it thinks. The rules are the supervisor's own (`suspect`, P7): a fatal line, or a node that its watch finds bad, makes a start suspect, and the
witnesses of a hang need less then (`suspicious`). One thing is quicker from inside. A node that does not answer is a fault that the node itself confirms, so the nodes
are asked as soon as something fatal was printed, when srun says that a task failed, and when a start that was making steps stands still for much longer than it is used to; two such
answers in a row with no sign of life between them are enough, or one where srun says that it is ending the step, which it then cannot do on
that node for many seconds.

Nothing of it costs anything while all is well: a read of the log that yields nothing, and a look at the time stamp of a folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor import (
    afterwards,
    context,
    hang,
    inputs,
    launchlogs,
    nodereports,
    sense,
    suspect,
    suspicions,
)
from ftrun.supervisor.agent_desk import Where
from ftrun.supervisor.agent_talk import Started
from ftrun.supervisor.diagnosis_facts import Facts
from ftrun.supervisor.diagnosis_rules import diagnose
from ftrun.supervisor.lease import Clock
from ftrun.supervisor.model import Diagnosis, Evidence, Topology
from ftrun.supervisor.nodefacts import NodeFacts
from ftrun.supervisor.signatures import Catalog
from ftrun.supervisor.tail import LogPath
from ftrun.supervisor.watch import LogWatcher, WatchReport

__all__ = ["Eye", "Suspicion"]

REPORTS_EVERY_S = 2.0
NAMES_EVERY_S = 10.0
STILL_MIN_S = 15.0
STILL_STEPS = 10.0  # medians, or twice the longest gap so far: then the nodes are asked
ASKED_AGAIN_S = 5.0
ASKED_MAX_S = 600.0
ABSENT_S = 20.0  # looks further apart than this were no watch: the job was suspended, and we with it
STEP_ENDS = frozenset({"slurm-task-ended", "slurm-task-exit"})  # srun's own words about its step
ENDING_S = 60.0  # for so long they explain that a node is silent; another step may run by then


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Why a live start is to be ended, and how long it has stood still (seconds)."""

    diagnosis: Diagnosis
    waited_s: float
    rank_ended: bool = False  # srun had said that one of its tasks ended by itself


class Eye:
    """Looks at one start. `silent` asks the nodes and returns those of the start that do not answer, None where that is not known; `survived` are the nodes' findings after which a start of this launch went
    on, and takes up those of this one; `companions` are the jobs that hold nodes for this one."""

    def __init__(
        self,
        where: Where,
        started: Started,
        settings: Mapping[str, Any],
        catalog: Callable[[], Catalog],
        silent: Callable[[], tuple[str, ...] | None],
        *,
        clock: Clock,
        survived: set[str] | None = None,
        companions: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self._where = where
        self.started = started
        self._settings, self._catalog, self._silent = settings, catalog, silent
        self._clock, self._companions = clock, companions
        self._judged_s: float | None = None
        self.memory = sense.Memory(attempt=where.attempt, launch=where.launch)
        if survived is not None:
            self.memory.survived = survived
        self._watcher: LogWatcher | None = None
        self._extra: frozenset[str] = frozenset()
        self._suspected = self._ending = False
        self._news = False  # evidence that was not judged yet
        self._ending_s = 0.0
        self._began_s = self._quiet_since_s = self._clock.mono_s()
        self.to_first_step_s: float | None = None  # how long this start took to its first step
        self._ask_after_s = 0.0  # how long it must stand still before the nodes are asked (again)
        self.unheard: tuple[str, ...] = ()  # the silent nodes at the last answer
        self.first_evidence_s: dict[str, float] = {}  # signature -> when it was seen first (Unix seconds)

    # ------------------------------------------------------------------ looking

    def look(self, *, fresh: bool = False) -> WatchReport | None:
        """Read what is new. None where no log is known."""
        self._follow_named()
        if self._watcher is None:
            paths = launchlogs.of_record(self.started.launch) + [
                LogPath(path) for path in sorted(self._extra)
            ]
            if not paths:
                return None
            where = self._where
            ours = launchlogs.ours(where.run_dir, where.attempt, where.launch)
            self._watcher = LogWatcher(paths, catalog=self._catalog(), ours=ours)
        self._watcher.admit((self._where.job, *self._companions()), (*self._where.nodes, *self.started.nodes))
        memory, mono_s = self.memory, self._clock.mono_s()
        report = self._watcher.poll(self._clock.now_s(), fresh=fresh)
        memory.report = report
        self._news = self._news or bool(report.new)
        for evidence in report.new:
            self.first_evidence_s.setdefault(evidence.signature, evidence.at_s or self._clock.now_s())
        if report.last_growth_s != memory.growth:
            memory.growth, memory.growth_seen_s = report.last_growth_s, mono_s
            self._quiet_since_s = mono_s
        progress = report.progress
        if progress is not None and progress.step is not None:
            before = memory.steps_seen
            if progress.checkpoint_step is not None:
                memory.saved_step = progress.checkpoint_step
            if self.to_first_step_s is None:
                self.to_first_step_s = mono_s - self._began_s
            sense.note_pace(memory, mono_s, report, progress.steps_seen)
            memory.step = max(progress.step, memory.step if memory.step is not None else progress.step)
            if memory.steps_seen != before:
                self._ask_after_s, self.unheard, self._ending = 0.0, (), False
        if any(one.signature in STEP_ENDS for one in report.new):
            self._ask_after_s, self._ending, self._ending_s = 0.0, True, mono_s
        return report

    def stirs(self) -> bool:
        """Look, and say whether srun has just said that a step ends: that is not left for the next turn."""
        before_s = self._ending_s
        self.look()
        return self._ending and self._ending_s != before_s

    @property
    def is_ending(self) -> bool:
        """srun says that it ends its step."""
        return self._ending

    def quiet_s(self) -> float:
        """For how long no log has grown."""
        return self._clock.mono_s() - self._quiet_since_s

    def named(self) -> list[str]:
        """The files of `--ft-log` that this start has written."""
        if not self._settings.get("log"):
            return []
        since_s = self.started.launch.started_s or 0.0
        return afterwards.named(self._settings, context.cwd(self._where.run_dir), since_s)

    def _follow_named(self) -> None:
        """Where there are new logs, all are read from the start's first byte again."""
        if self._settings.get("log") and self.memory.due("log-names", self._clock.mono_s(), NAMES_EVERY_S):
            paths = frozenset(path for path in self.named() if not inputs.is_attachment(path))
            if paths - self._extra:
                self._extra |= paths
                self.close()

    def close(self) -> None:
        """Give the descriptors back."""
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def evidence(self, *, over: bool = False) -> tuple[Evidence, ...]:
        """What the logs have shown; at the end, with what those files tell that are only whole then."""
        found = self.memory.evidence
        return (*found, *afterwards.told_by(self.named(), self._catalog(), found)) if over else found

    def topology(self) -> Topology:
        """Who sits where."""
        known, report = Topology(nodes=self.started.nodes), self.memory.report
        return report.seats.added_to(known) if report is not None else known

    def facts(self, *, lives: bool = False) -> NodeFacts:
        """What the nodes say of themselves, read anew. While the start `lives`, the checks of its end say nothing yet: some nodes may be at it still."""
        where, started = self._where, self.started
        return nodereports.read(
            where.run_dir, where.attempt, where.launch, started.nodes, start=started.number + lives
        )

    # ------------------------------------------------------------------ judging

    def judge(self) -> Suspicion | None:
        """Look, and say whether and why the start is to be ended."""
        report = self.look()
        if report is None or not report.readable or report.behind:
            return None
        mono_s = self._clock.mono_s()
        if self._judged_s is not None and mono_s - self._judged_s > ABSENT_S:
            self._quiet_since_s, self._ask_after_s, self.unheard = mono_s, 0.0, ()
        self._judged_s = mono_s
        diagnosis = self._provisional(report)
        seen = suspect.look(self.memory, diagnosis, suspected=self._suspected)
        if seen is suspect.Look.SUSPECT and not self._suspected:
            self._ask_after_s = 0.0
        self._suspected = seen is suspect.Look.SUSPECT
        self.memory.suspicion = diagnosis if self._suspected else None
        return self._unanswered(report)

    def suspicious(self) -> hang.Limits | None:
        """What the witnesses of a hang need now, where something fatal was seen and not survived; None where nothing was."""
        found = self.memory.suspicion
        return suspect.limits_while_suspect(self._settings, found, self._catalog()) if found else None

    def hung(self, verdict: hang.Verdict) -> Suspicion:
        """The suspicion of a start that is held to hang: what confirms a fault explains more than its silence."""
        found = self.memory.suspicion
        if found is None or not suspect.is_found_by_a_check(found):
            found = suspicions.hung(verdict, self.started.nodes)
        return Suspicion(found, verdict.quiet_s, verdict.rank_ended)

    def _provisional(self, report: WatchReport) -> Diagnosis | None:
        """What is seen so far would mean if it were all; None where nothing is."""
        memory = self.memory
        if memory.due("node-reports", self._clock.mono_s(), REPORTS_EVERY_S):
            stamp = nodereports.stamp(self._where.run_dir, self._where.attempt)
            if stamp != memory.node_stamp:
                memory.node_stamp, memory.node_facts = stamp, self.facts(lives=True)
                self._news = True
        found = memory.provisional
        # What is fatal is asked about each time: steps that come after a line may take it back, and a finding may be gone.
        known = report.evidence if found is None else suspect.fatal(found)
        if self._news or memory.node_facts.findings or known:
            self._news = False
            found = memory.provisional = diagnose(
                Facts(
                    evidence=report.evidence,
                    topology=self.topology(),
                    catalog=self._catalog(),
                    progress=report.progress,
                    nodes=memory.node_facts.survived(memory.survived),
                    now_s=self._clock.now_s(),
                )
            )
        return found

    def _unanswered(self, report: WatchReport) -> Suspicion | None:
        """Nodes of the start that did not answer twice while it showed no life."""
        memory, quiet_s = self.memory, self.quiet_s()
        self._ending = self._ending and self._clock.mono_s() - self._ending_s < ENDING_S
        if not self._suspected and not self._ending:
            if memory.steps_seen < 2:
                return None
            habit_s = max(STILL_STEPS * (report.median_step_s or 0.0), 2.0 * memory.longest_gap_s)
            if quiet_s < max(STILL_MIN_S, habit_s):
                return None
        if quiet_s < self._ask_after_s:
            return None
        before, silent = self.memory.steps_seen, self._silent()
        twice = tuple(node for node in silent or () if node in self.unheard)
        self.unheard = silent or ()
        # To ask takes seconds, in which a node that stood still may have come back.
        still = bool(silent) and self.look(fresh=True) is not None and self.memory.steps_seen == before
        if twice and still and self.quiet_s() >= ASKED_AGAIN_S:
            return Suspicion(suspicions.lost(twice), self.quiet_s())
        if still and silent and self._ending:
            return Suspicion(suspicions.lost(silent), self.quiet_s())
        pause_s = ASKED_AGAIN_S if self.unheard else min(ASKED_MAX_S, max(STILL_MIN_S, 2.0 * self.quiet_s()))
        self._ask_after_s = self.quiet_s() + pause_s
        return None
