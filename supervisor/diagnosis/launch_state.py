"""What the log and the nodes of a live launch have shown so far. (pure)"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftrun.supervisor.diagnosis.node_findings import NodeFacts
from ftrun.supervisor.model.types import Diagnosis, Evidence

if TYPE_CHECKING:
    from ftrun.supervisor.telemetry.log_watcher import WatchReport

__all__ = ["LaunchState"]


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
