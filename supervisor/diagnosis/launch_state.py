"""What the log and the nodes of a live launch have shown so far, as its supervisor or its agent sees it. (pure)"""

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
    """Steps, growth, evidence and findings of one launch. Times are monotonic seconds."""

    attempt: int = 0
    launch: int = 0
    report: WatchReport | None = None
    step: int | None = None
    saved_step: int | None = None
    growth: float | None = None
    growth_seen_s: float | None = None
    steps_seen: int = 0
    moved_s: float | None = None  # when the counter of steps moved last, from its second move on
    longest_gap_s: float = 0.0  # between two such moves: what this launch is used to
    node_facts: NodeFacts = field(default_factory=NodeFacts)  # what the nodes' reports say
    node_stamp: int = 0  # of the reports as they were read last
    provisional: Diagnosis | None = None  # what the log so far would mean if it were all
    suspicion: Diagnosis | None = None  # what is suspected of the live launch now
    suspect_step: int | None = None
    survived: set[str] = field(default_factory=set)  # findings after which training went on
    findings_seen: set[str] = field(default_factory=set)  # at the last look

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """All that the logs of this launch have shown so far."""
        return self.report.evidence if self.report is not None else ()

    def note_growth(self, report: WatchReport, mono_s: float) -> bool:
        """Take up what the logs told. True where they have grown."""
        self.report = report
        if report.last_growth_s == self.growth:
            return False
        self.growth, self.growth_seen_s = report.last_growth_s, mono_s
        return True

    def note_pace(self, mono_s: float, report: WatchReport, steps_seen: int) -> None:
        """The longest time between two looks that saw steps; the first of all may have been spent on compiling."""
        if steps_seen == self.steps_seen:
            return
        if self.moved_s is not None and not report.behind:
            self.longest_gap_s = max(self.longest_gap_s, mono_s - self.moved_s)
        if self.steps_seen and not report.behind:
            self.moved_s = mono_s
        self.steps_seen = steps_seen
