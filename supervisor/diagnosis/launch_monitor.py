"""The monitor of one live start: its logs, its steps, what its nodes report, whether it looks broken. (I/O)

The supervisor on the login node and the agent beside the script drive the same monitor; `MonitorBackend` is
what differs between them. A look at a healthy start costs one read of the logs and one stat of a folder: the
diagnosis is made anew only where there is news, a finding, or a fatal line that later steps may clear.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.launch_state import (
    LaunchState,
    StallVerdict,
    is_fatal,
    is_found_by_a_check,
)
from ftrun.supervisor.diagnosis.node_findings import NodeFacts
from ftrun.supervisor.diagnosis.rules import diagnose
from ftrun.supervisor.model.timers import Interval
from ftrun.supervisor.model.types import Diagnosis, Topology
from ftrun.supervisor.signatures.catalog import Catalog
from ftrun.supervisor.telemetry import hang_rules, log_watcher
from ftrun.supervisor.telemetry.hang_rules import HangLimits
from ftrun.supervisor.telemetry.line_owner import KnownOwners
from ftrun.supervisor.telemetry.log_watcher import LogWatcher, WatchReport
from ftrun.supervisor.telemetry.tail import LogPath

NAMES_EVERY_S = 5.0
REPORTS_EVERY_S = 2.0


class MonitorBackend(Protocol):
    """What differs between the supervisor and the agent."""

    def logs(self) -> list[LogPath]:
        """The job's own logs of the start; [] while none is known."""
        ...

    def other_logs(self) -> list[LogPath]:
        """Its other logs that there are by now: those of its steps and of `--ft-log`."""
        ...

    def owners(self) -> KnownOwners:
        """Whose lines count in these logs, by what the launch left behind."""
        ...

    def family(self) -> tuple[Collection[str], Collection[str]]:
        """The jobs and the nodes of the start now, companions included."""
        ...

    def nodes(self) -> tuple[str, ...]:
        """The nodes that the start uses."""
        ...

    def reports_stamp(self) -> int:
        """Changes when a node has written a report."""
        ...

    def node_reports(self) -> NodeFacts:
        """What the nodes report of themselves, read anew. Raises OSError (journal)."""
        ...


class LaunchMonitor:
    """Monitors one start. What it sees is in `state`. Times are those of the caller's monotonic clock."""

    def __init__(
        self,
        backend: MonitorBackend,
        state: LaunchState,
        settings: Mapping[str, Any],
        catalog: Callable[[], Catalog],
    ) -> None:
        self.state = state
        self._backend = backend
        self._settings = settings
        self._catalog = catalog
        self._watcher: LogWatcher | None = None
        self._names, self._reports = Interval(), Interval()
        self._news = False  # there is something that was not diagnosed yet

    # ------------------------------------------------------------------ looking

    def look(self, now_s: float, mono_s: float, *, fresh: bool = False) -> WatchReport | None:
        """Read new log lines; `fresh` opens every log anew. None while no log is known."""
        if self._watcher is None:
            paths = self._backend.logs()
            if not paths:
                return None
            self._watcher = LogWatcher(paths, catalog=self._catalog(), ours=self._backend.owners())
            self._names = Interval()
        if self._names.due(mono_s, NAMES_EVERY_S) or fresh:
            self._watcher.follow(self._backend.other_logs())
        self._watcher.admit(*self._backend.family())
        report = self._watcher.poll(now_s, fresh=fresh)
        self._news = self._news or bool(report.new)
        self.state.note_growth(report, mono_s)
        self.state.note_progress(report, mono_s)
        return report

    def close(self) -> None:
        """Close the log files; the next look reads all logs from the first byte of the start again."""
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def log_sizes(self, others: Collection[str]) -> dict[str, int]:
        """Log of the start -> its bytes now, as far as they are seen; `others` are further files of the start."""
        known = self._watcher.sizes() if self._watcher is not None else {}
        paths = {*(log.path for log in (*self._backend.logs(), *self._backend.other_logs())), *others}
        return {path: log_watcher.file_size(path) for path in paths if path not in known} | known

    def step_place(self) -> tuple[str, int] | None:
        """As `LogWatcher.step_place`."""
        return self._watcher.step_place() if self._watcher is not None else None

    def topology(self) -> Topology:
        """Which rank runs on which node, as far as known. Slurm's default, block distribution, is not
        assumed.
        """
        known, report = Topology(nodes=self._backend.nodes()), self.state.report
        return report.seats.added_to(known) if report is not None else known

    # ------------------------------------------------------------------ judging

    def judge(self, now_s: float, mono_s: float, *, suspected: bool) -> StallVerdict:
        """Judge the last look. `suspected`: the start was suspect before. Raises OSError (journal)."""
        return self.state.judge(self._provisional(now_s, mono_s), suspected=suspected)

    def suspect_limits(self, *, lost: bool = False, from_afar: bool = False) -> HangLimits | None:
        """The limits of the hang watch while a fatal sign was seen and not survived; None otherwise.

        `lost`: Slurm does not hear a node of the start.
        """
        found, known = self.state.suspicion, self._catalog().by_id
        if found is None:
            return None
        limits = hang_rules.hang_limits(self._settings, from_afar=from_afar)
        return hang_rules.after_fatal_line(
            limits or HangLimits(afar=from_afar),  # with `hang=never` a fatal line is still followed up
            found.title,
            max(
                float(self._settings.get("fault-grace", 60.0)), float(self._settings.get("own-restart", 0.0))
            ),
            at_once=found.signature in known and known[found.signature].at_once,
            confirmed=lost or is_found_by_a_check(found),
        )

    def _provisional(self, now_s: float, mono_s: float) -> Diagnosis | None:
        """The diagnosis if nothing more came; None if nothing was seen."""
        state, report = self.state, self.state.report
        if self._reports.due(mono_s, REPORTS_EVERY_S):
            stamp = self._backend.reports_stamp()
            if stamp != state.node_stamp:
                state.node_stamp, state.node_facts = stamp, self._backend.node_reports()
                self._news = True
        found = state.provisional
        # A fatal line is diagnosed at each look: later steps may clear it, and a finding may be gone.
        known = bool(state.evidence) if found is None else is_fatal(found)
        if self._news or state.node_facts.findings or known:
            self._news = False
            found = state.provisional = diagnose(
                Facts(
                    evidence=state.evidence,
                    topology=self.topology(),
                    catalog=self._catalog(),
                    progress=report.progress if report is not None else None,
                    nodes=state.node_facts.survived(state.survived),
                    now_s=now_s,
                )
            )
        return found
