"""The series that metrics consist of, and their values for one run. (pure)

`SERIES` is the one table of names: the exporter refuses another one, docs/metrics.md is made from it.

Counters and histograms have no label of a run: they are sums over all runs, so that their number does not grow
with the runs. `Totals` is what one run adds to them; it can be added up, and kept as JSON once the run is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ftrun.slurm.records import dataclass
from ftrun.supervisor.config.node_counts import sizes_of_settings
from ftrun.supervisor.model.run import Record, Run
from ftrun.supervisor.model.states import State
from ftrun.supervisor.model.types import FaultClass
from ftrun.supervisor.policy.policy_input import limits_from
from ftrun.supervisor.reports.statistics import goodput_of
from ftrun.supervisor.reports.time_ledger import GrowingLedger

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
LABEL_LENGTH_MAX = 200
RECOVERY_BOUNDS_S = (5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 10800.0)
NO_CLASS = "none"

Key = tuple[str, ...]
"""A sample: its name, then the values of its labels."""
Totals = dict[Key, float]
Samples = dict[Key, float]


class Series(NamedTuple):
    """One row: all samples of a name. `labels`: beside `user`, or `cluster` for those of the site's service."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


SERIES = (
    Series("ftrun_build_info", GAUGE, ("version",), "The release of ftrun; always 1."),
    Series("ftrun_supervisor_seen_timestamp_seconds", GAUGE, (), "When the supervisor's loop last went round."),
    Series("ftrun_runs", GAUGE, ("state",), "Runs by state; those that ended long ago are not counted."),
    Series("ftrun_run_info", GAUGE, ("run", "name", "job", "partition"), "The job of each run's present attempt; always 1."),
    Series("ftrun_run_state", GAUGE, ("run", "state"), "The present state of each run; always 1."),
    Series("ftrun_run_attempts", GAUGE, ("run",), "Attempts (jobs) of the run so far."),
    Series("ftrun_run_incidents", GAUGE, ("run",), "Faults of the run so far."),
    Series("ftrun_run_nodes", GAUGE, ("run",), "Nodes that the present start of the script uses."),
    Series("ftrun_run_nodes_wanted", GAUGE, ("run",), "Nodes that the user asked for, where the run may be smaller (--ft-nodes)."),
    Series("ftrun_run_retries", GAUGE, ("run",), "Restarts that count against the limit."),
    Series("ftrun_run_retries_limit", GAUGE, ("run",), "How many of them are allowed (--ft-retries)."),
    Series("ftrun_run_step", GAUGE, ("run",), "The last training step that was noted, once a minute."),
    Series("ftrun_run_step_target", GAUGE, ("run",), "The last step of the training, where its log says so."),
    Series("ftrun_run_step_timestamp_seconds", GAUGE, ("run",), "When that step was noted."),
    Series("ftrun_run_step_seconds", GAUGE, ("run",), "Usual time of a step."),
    Series("ftrun_run_loss", GAUGE, ("run",), "The loss at that step."),
    Series("ftrun_checkpoint_age_seconds", GAUGE, ("run",), "Age of the newest complete checkpoint of a live run (--ft-checkpoint)."),
    Series("ftrun_goodput_ratio", GAUGE, ("run",), "Time with new steps as a share of the run's life without pauses (docs/stats.md)."),
    Series("ftrun_run_seconds_total", COUNTER, ("spent",), "Time of all runs, by what it was spent on (docs/stats.md)."),
    Series("ftrun_node_seconds_total", COUNTER, ("spent",), "Node-seconds of all runs, by what they were spent on."),
    Series("ftrun_submissions_total", COUNTER, (), "Jobs that Slurm accepted."),
    Series("ftrun_incidents_total", COUNTER, ("class", "rung"), "Faults, by class and by the rung of recovery; stop: not retried."),
    Series("ftrun_recovery_seconds", HISTOGRAM, ("class",), "Time from the first sign of a fault to the first new step."),
    Series("ftrun_runs_ended_total", COUNTER, ("state", "class"), "Ends of runs: finished, or stopped with the class of the last fault."),
    Series("ftrun_drains_total", COUNTER, ("result",), "Drains of nodes: done, refused, or asked of the site's service."),
    Series("ftrun_node_strikes", GAUGE, ("node",), "Strikes of a node in this user's history of nodes (ftrun nodes)."),
    Series("ftrun_site_seen_timestamp_seconds", GAUGE, (), "When the site's service last published."),
    Series("ftrun_site_nodes", GAUGE, ("state",), "Nodes that are corroborated, quarantined (placed last) or out of service."),
    Series("ftrun_site_node_score", GAUGE, ("node",), "How much runs of all users blame a node: each user at most 1."),
    Series("ftrun_site_reports", GAUGE, ("verdict",), "Reports of supervisors in the last 30 days: accepted, refused."),
    Series("ftrun_site_checks", GAUGE, ("result",), "Checks of corroborated nodes in the last 30 days."),
    Series("ftrun_site_drains", GAUGE, (), "Drains by ftrun in the last 30 days, whoever asked for them."),
)  # fmt: skip
NAMES: Mapping[str, Series] = {row.name: row for row in SERIES}

_ENDS = {"run.finished": "finished", "run.stopped": "stopped", "run.abandoned": "stopped"}
_DRAINS = {"drain.done": "done", "drain.refused": "refused", "drain.asked": "asked"}


class RunFigures:
    """What is counted of one run, from its records; `totals` and `samples` tell it."""

    def __init__(self) -> None:
        self._ledger = GrowingLedger()
        self._counts: Totals = {}
        self._loss: float | None = None
        self._seconds: Mapping[str, float] = {}

    def take(self, run: Run, records: Sequence[Record]) -> None:
        """The next records of its journal; `run`: the fold with them."""
        self._ledger.take(run, records)
        for record in records:
            kind, data = str(record["kind"]), record["data"]
            if kind == "launch.progress" and isinstance(data.get("loss"), int | float):
                self._loss = float(data["loss"])
            elif kind == "submit.done":
                _add(self._counts, ("ftrun_submissions_total",))
            elif kind in _DRAINS:
                _add(self._counts, ("ftrun_drains_total", _DRAINS[kind]))
            elif kind in _ENDS:
                fault = str(data.get("class") or NO_CLASS)
                _add(self._counts, ("ftrun_runs_ended_total", _ENDS[kind], fault))

    def totals(self, run: Run, now_s: float) -> Totals:
        """What the run adds to the counters and histograms."""
        found = dict(self._counts)
        self._seconds, node_seconds = self._ledger.spent(run, now_s)
        for name, table in (
            ("ftrun_run_seconds_total", self._seconds),
            ("ftrun_node_seconds_total", node_seconds),
        ):
            found.update({(name, spent): value for spent, value in table.items() if value > 0.0})
        for incident in run.incidents:
            if incident.decision or run.final:
                _add(found, ("ftrun_incidents_total", incident.fault, incident.rung or "stop"))
            if incident.first_step_at_s is not None:
                _observe(found, incident.fault, incident.first_step_at_s - incident.began_at_s)
        return found

    def samples(self, run: Run) -> Samples:
        """The gauges of the run; `totals` was called before."""
        attempt = run.attempt
        sizes = sizes_of_settings(run.settings)
        found: dict[str, float | None] = {
            "ftrun_run_attempts": len(run.attempts),
            "ftrun_run_incidents": len(run.incidents),
            "ftrun_run_retries": run.retries,
            "ftrun_run_retries_limit": limits_from(run.settings).retries,
            "ftrun_run_nodes_wanted": sizes.full if sizes is not None else None,
            "ftrun_goodput_ratio": goodput_of(self._seconds),
        }
        job = partition = ""
        if attempt is not None:
            job, partition = attempt.job, attempt.partition
            here = not run.final and attempt.launch.started_at_s is not None and not attempt.launch.end.state
            found["ftrun_run_nodes"] = len(attempt.used) if here else 0
        stepped = next((one for one in reversed(run.attempts) if one.stepped_at_s is not None), None)
        if stepped is not None:
            found["ftrun_run_step"] = stepped.last_step
            found["ftrun_run_step_target"] = stepped.total_steps
            found["ftrun_run_step_timestamp_seconds"] = stepped.stepped_at_s
            found["ftrun_run_step_seconds"] = stepped.step_s
            found["ftrun_run_loss"] = self._loss
        table: Samples = {(name, run.id): float(value) for name, value in found.items() if value is not None}
        table["ftrun_run_state", run.id, run.state.value] = 1.0
        table["ftrun_run_info", run.id, label_text(run.name), label_text(job), label_text(partition)] = 1.0
        return table


@dataclass(slots=True)
class Sum:
    """The counters of all runs. They never fall: `floor` is what was told before."""

    floor: Totals

    def of(self, parts: Iterable[Totals]) -> Totals:
        """The sums of these parts, no less than what was told before, and remembered as such."""
        found: Totals = {}
        for part in parts:
            for key, value in part.items():
                found[key] = found.get(key, 0.0) + value
        for key, value in self.floor.items():
            found[key] = max(value, found.get(key, 0.0))
        self.floor = found
        return found


def known_from_the_start() -> Totals:
    """Counters that are told as 0 before they count: the first increase can be seen only so."""
    ends: dict[Key, float] = {("ftrun_runs_ended_total", "finished", NO_CLASS): 0.0}
    for fault in (NO_CLASS, *(one.value for one in FaultClass)):
        ends["ftrun_runs_ended_total", "stopped", fault] = 0.0
    drains: dict[Key, float] = {("ftrun_drains_total", result): 0.0 for result in _DRAINS.values()}
    return {**ends, **drains, ("ftrun_submissions_total",): 0.0}


def runs_by_state(runs: Iterable[Run]) -> Samples:
    """How many runs are in each state; every state is told."""
    found: Samples = {("ftrun_runs", state.value): 0.0 for state in State}
    for run in runs:
        found["ftrun_runs", run.state.value] += 1
    return found


def label_text(text: str) -> str:
    """A text as the value of a label: printable, and not long."""
    return "".join(c if c.isprintable() else "?" for c in text[:LABEL_LENGTH_MAX])


def totals_to_json(totals: Totals) -> list[list[object]]:
    """Totals as JSON; `totals_from_json` reads them."""
    return [[*key, round(value, 3)] for key, value in totals.items()]


def totals_from_json(told: object) -> Totals:
    """Those of `totals_to_json`; what is none, or of series that are no more, is left out."""
    found: Totals = {}
    for row in told if isinstance(told, list) else ():
        if (
            isinstance(row, list)
            and len(row) > 1
            and isinstance(row[-1], int | float)
            and abs(row[-1]) < 1e300
        ):
            key = tuple(map(str, row[:-1]))
            if key[0] in NAMES:
                found[key] = float(row[-1])
    return found


def _add(totals: Totals, key: Key, value: float = 1.0) -> None:
    totals[key] = totals.get(key, 0.0) + value


def _observe(totals: Totals, fault: str, seconds: float) -> None:
    """One observation of the histogram: buckets as Prometheus has them, each counts all that is not above."""
    name, seconds = "ftrun_recovery_seconds", max(0.0, seconds)
    _add(totals, (name, fault, "sum"), seconds)
    for bound in RECOVERY_BOUNDS_S:
        _add(totals, (name, fault, str(bound)), float(seconds <= bound))
    _add(totals, (name, fault, "+Inf"))
