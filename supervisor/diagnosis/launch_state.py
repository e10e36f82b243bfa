"""What one live launch has shown so far, and whether it is healthy, suspect or recovered. (pure)

Law P7. A fatal line alone ends nothing: it makes a launch suspect, and a suspect launch needs a shorter
silence to count as hung. A step beyond all earlier ones clears the suspicion. Supervisor and agent go by the
same rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ftrun.supervisor.diagnosis.node_findings import SIGNATURE, NodeFacts
from ftrun.supervisor.diagnosis.rank_deaths import is_rank_death
from ftrun.supervisor.model.types import Diagnosis, Evidence, FaultClass
from ftrun.supervisor.telemetry.divergence import find_divergence

if TYPE_CHECKING:
    from ftrun.supervisor.telemetry.log_watcher import WatchReport


LEAVING_FOR_S = 60.0
_NOT_FATAL = frozenset(
    {FaultClass.HEALTHY, FaultClass.UNKNOWN, FaultClass.PREEMPTED, FaultClass.TIMELIMIT, FaultClass.CANCELLED}
)


def is_fatal(diagnosis: Diagnosis) -> bool:
    """Whether training cannot survive this provisional diagnosis, if it is right. (pure)"""
    return (diagnosis.fault not in _NOT_FATAL and bool(diagnosis.signature)) or is_rank_death(diagnosis)


def is_found_by_a_check(diagnosis: Diagnosis) -> bool:
    """A node check found the fault; no log line has such a signature. (pure)"""
    return diagnosis.signature.startswith(SIGNATURE)


class StallVerdict(StrEnum):
    """The judgement of one look at a live launch."""

    WELL = "well"  # nothing fatal was seen
    SUSPECT = "suspect"  # a fatal sign, and no new step since
    WENT_ON = "went on"  # a new highest step


@dataclass
class LaunchState:
    """Steps, log growth, evidence and findings of one launch, as its supervisor or agent sees them. Times are
    monotonic seconds.
    """

    attempt: int = 0
    launch: int = 0
    report: WatchReport | None = None
    step: int | None = None
    saved_step: int | None = None
    growth: float | None = None
    growth_seen_s: float | None = None
    steps_seen: int = 0
    moved_s: float | None = None  # when the step counter last moved, from its second move on
    longest_gap_s: float = 0.0  # the longest time between two such moves
    node_facts: NodeFacts = field(default_factory=NodeFacts)  # what the nodes' reports say
    node_stamp: int = 0  # of the reports when they were last read
    provisional: Diagnosis | None = None  # the diagnosis if the log ended here
    suspicion: Diagnosis | None = None  # the current suspicion about the live launch
    suspect_step: int | None = None
    survived: set[str] = field(default_factory=set)  # keys of findings after which training went on
    findings_seen: set[str] = field(default_factory=set)  # keys of the findings at the last look

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """The evidence from this launch's logs so far."""
        return self.report.evidence if self.report is not None else ()

    @property
    def diverged(self) -> bool:
        """Whether the log shows that the training has diverged."""
        report = self.report
        return report is not None and find_divergence(report.evidence, report.health) is not None

    def note_growth(self, report: WatchReport, mono_s: float) -> bool:
        """Store the report. True if the logs have grown."""
        self.report = report
        if report.last_growth_s == self.growth:
            return False
        self.growth, self.growth_seen_s = report.last_growth_s, mono_s
        return True

    def note_pace(self, mono_s: float, report: WatchReport, steps_seen: int) -> None:
        """Update the longest time between two looks that saw steps. The first gap may include compiling and
        does not count.
        """
        if steps_seen == self.steps_seen:
            return
        if self.moved_s is not None and not report.behind:
            self.longest_gap_s = max(self.longest_gap_s, mono_s - self.moved_s)
        if self.steps_seen and not report.behind:
            self.moved_s = mono_s
        self.steps_seen = steps_seen

    def note_progress(self, report: WatchReport, mono_s: float) -> bool:
        """Note steps and saved checkpoints. True for a step beyond all earlier ones."""
        progress = report.progress
        if progress is None or progress.step is None:
            return False
        if progress.checkpoint_step is not None:
            self.saved_step = progress.checkpoint_step
        self.note_pace(mono_s, report, progress.steps_seen)
        if self.step is not None and progress.step <= self.step:
            return False
        self.step = progress.step
        return True

    def judge(self, diagnosis: Diagnosis | None, *, suspected: bool) -> StallVerdict:
        """Judge the provisional diagnosis of a look. `suspected`: the launch was suspect before."""
        verdict = self._verdict(diagnosis, suspected=suspected)
        self.suspicion = diagnosis if verdict is StallVerdict.SUSPECT else None
        return verdict

    def _verdict(self, diagnosis: Diagnosis | None, *, suspected: bool) -> StallVerdict:
        # A new step clears findings of earlier looks; what came with the step may have been found after it.
        before, self.findings_seen = self.findings_seen, {one.key for one in self.node_facts.findings}
        if diagnosis is None or not is_fatal(diagnosis):
            return StallVerdict.WELL
        if not suspected:
            self.suspect_step = self.step
            return StallVerdict.SUSPECT
        if self.step is not None and (self.suspect_step is None or self.step > self.suspect_step):
            # Just after a takeover it is unknown when this step was made.
            if self.suspect_step is not None:
                self.survived |= before
            self.suspect_step = self.step
            return StallVerdict.WENT_ON
        return StallVerdict.SUSPECT


def exit_grace_s(settings: Mapping[str, Any]) -> float:
    """How long a job may take to end after its script: it publishes staged checkpoints and runs the user's
    hook. (pure)
    """
    hook_s = float(settings.get("hook-limit", 60.0)) if settings.get("post-hook") else 0.0
    return (
        LEAVING_FOR_S
        + hook_s
        + (float(settings.get("stage-flush-timeout", 120.0)) if settings.get("stage") else 0.0)
    )
