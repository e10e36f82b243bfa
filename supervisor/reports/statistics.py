"""The figures of one run or of many, from their time ledgers. (pure)

    goodput       productive seconds, as a share of the run's life without pauses and stops
    ettr          effective training time ratio: start-up, repeated steps, faults and recoveries are lost, the
                  queue counts as time, checkpoints as training (Meta, arXiv 2410.21680, section on ETTR)
    mtbf_s        seconds in which the script ran, for each fault that came by chance
    mttr_s        mean seconds from the first sign of a fault to the first new step, queue included
    steps_lost    steps that had been made when a start failed and that the next one made again
    node_hours    node-hours by what they were spent on

A fault that a person caused or has to mend (a mistake in the script, data, settings) and a planned end (a time
limit) is told, and does not count for `mtbf_s`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from ftrun.hooks.runtime.formats import duration_text
from ftrun.slurm.records import dataclass
from ftrun.supervisor.model.run import Incident, Run
from ftrun.supervisor.policy.estimates import NOT_FAULTS
from ftrun.supervisor.reports.time_ledger import (
    OF_PERSONS,
    PLANNED,
    RUNNING,
    Interval,
    Spent,
    TimeLedger,
    TimePoint,
)

SHOWN_S = 0.05
"""Less is not shown."""

OF_A_FAULT = (Spent.DETECTION, Spent.HUNG, Spent.RECOVERY, Spent.QUEUED, Spent.STARTUP)
"""What a fault costs until the first new step."""


@dataclass(frozen=True, slots=True)
class FaultCost:
    """What one fault cost. `seconds`: by OF_A_FAULT; `repair_s`: their sum, None while it is not over."""

    incident: str
    fault: str
    rung: str
    signature: str
    title: str
    nodes: tuple[str, ...]
    at_s: float
    seconds: Mapping[str, float]
    redone_s: float
    steps_lost: int
    node_hours: float
    over: bool

    @property
    def repair_s(self) -> float:
        """Seconds from its first sign to the first new step."""
        return sum(self.seconds.values())


@dataclass(frozen=True, slots=True)
class Mean:
    """So many faults, and the mean of their repair."""

    count: int
    mttr_s: float


@dataclass(frozen=True, slots=True)
class Statistics:
    """The figures of one run, or of several taken together. Ratios are 0..1; None where nothing was measured."""

    runs: int
    life_s: float
    seconds: Mapping[str, float]
    phases: Mapping[str, float]
    node_hours: Mapping[str, float]
    faults: tuple[FaultCost, ...]
    goodput: float | None
    ettr: float | None
    mtbf_s: float | None
    by_class: Mapping[str, Mean]
    by_rung: Mapping[str, Mean]
    steps_lost: int

    @property
    def node_hours_held(self) -> float:
        """Node-hours that the jobs had."""
        return sum(hours for name, hours in self.node_hours.items() if name != "smaller")

    @property
    def node_hours_lost(self) -> float:
        """Node-hours that were held, or waited for by a start on fewer nodes, and made no new step."""
        useful = (Spent.PRODUCTIVE, Spent.CHECKPOINT, Spent.UNMEASURED)
        return sum(self.node_hours.values()) - sum(self.node_hours[one.value] for one in useful)


def percent_text(value: float | None) -> str | None:
    """A ratio of 0..1 as a percentage; None for none."""
    return None if value is None else f"{value:.1%}"


def spent_rows(told: Statistics) -> list[list[object]]:
    """Rows of what was spent on, time, share of the life, node-hours; what took no time is left out."""
    rows: list[list[object]] = [
        [name, duration_text(value), percent_text(value / told.life_s), f"{told.node_hours[name]:.2f}"]
        for name, value in told.seconds.items()
        if value >= SHOWN_S
    ]
    beside = ((name, told.node_hours.get(name, 0.0)) for name in ("spare", "smaller"))
    return rows + [[name, None, None, f"{hours:.2f}"] for name, hours in beside if hours]


def phases_text(told: Statistics) -> str:
    """The phases of recovery with their times; "" where nothing was recovered."""
    parts = ", ".join(f"{name} {duration_text(value)}" for name, value in told.phases.items())
    return f"recovery by phase: {parts}" if parts else ""


def mean_rows(table: Mapping[str, Mean]) -> list[list[object]]:
    """Rows of name, count, mean repair."""
    return [[name, mean.count, duration_text(mean.mttr_s)] for name, mean in table.items()]


def statistics_of(ledgers: Iterable[tuple[Run, TimeLedger]]) -> Statistics:
    """The statistics of these runs together."""
    seconds = dict.fromkeys((spent.value for spent in Spent), 0.0)
    hours: dict[str, float] = {}
    phases: dict[str, float] = {}
    faults: list[FaultCost] = []
    runs, life_s = 0, 0.0
    for run, ledger in ledgers:
        runs, life_s = runs + 1, life_s + ledger.life_s
        for spent, value in ledger.seconds().items():
            seconds[spent.value] += value
        for table, parts, scale in ((hours, ledger.node_seconds(), 3600.0), (phases, ledger.phases(), 1.0)):
            for name, value in parts.items():
                table[name] = table.get(name, 0.0) + value / scale
        faults += fault_costs(run, ledger)
    ours_s = life_s - sum(seconds[spent.value] for spent in OF_PERSONS)
    goodput = goodput_of(seconds)
    trained_s = seconds[Spent.PRODUCTIVE.value] + seconds[Spent.CHECKPOINT.value]
    random = [one for one in faults if one.fault not in NOT_FAULTS]
    running_s = sum(seconds[spent.value] for spent in RUNNING)
    return Statistics(
        runs=runs,
        life_s=life_s,
        seconds=seconds,
        phases=phases,
        node_hours=hours,
        faults=tuple(faults),
        goodput=goodput,
        ettr=trained_s / ours_s if goodput is not None else None,
        mtbf_s=running_s / len(random) if random else None,
        by_class=_means(faults, lambda one: one.fault),
        by_rung=_means(faults, lambda one: one.rung),
        steps_lost=sum(one.steps_lost for one in faults),
    )


def goodput_of(seconds: Mapping[str, float]) -> float | None:
    """The goodput of seconds by what they were spent on; None where no step was measured."""
    useful_s = seconds.get(Spent.PRODUCTIVE.value, 0.0)
    measured = useful_s + seconds.get(Spent.REDONE.value, 0.0) > 0.0
    ours_s = sum(value for name, value in seconds.items() if name not in OF_PERSONS)
    return useful_s / ours_s if measured and ours_s else None


def fault_costs(run: Run, ledger: TimeLedger) -> list[FaultCost]:
    """What each fault of a run cost, oldest first."""
    parts: dict[str, list[Interval]] = {}
    for one in ledger.intervals:
        parts.setdefault(one.incident, []).append(one)
    times_s = [point.at_s for point in ledger.points]
    reached = [0, *accumulate((point.step for point in ledger.points), max)]
    found = []
    for incident in run.incidents:
        if incident.fault not in PLANNED:
            place = bisect_left(times_s, incident.decided_at_s or incident.began_at_s)
            first = ledger.points[place] if place < len(times_s) else None
            found.append(_cost(incident, parts.get(incident.id, []), first, reached[place]))
    return found


def _cost(incident: Incident, parts: Sequence[Interval], first: TimePoint | None, reached: int) -> FaultCost:
    """`first`: the first step after it; `reached`: the highest one before."""
    seconds = {spent.value: sum(p.seconds for p in parts if p.spent is spent) for spent in OF_A_FAULT}
    held = sum(part.seconds * part.held for part in parts) / 3600.0
    reached = max(reached, incident.step or 0)
    return FaultCost(
        incident=incident.id,
        fault=incident.fault,
        rung=(incident.rung or "stop") if incident.decision else "",
        signature=incident.signature,
        title=incident.title,
        nodes=incident.nodes,
        at_s=parts[0].begin_s if parts else incident.began_at_s,
        seconds=seconds,
        redone_s=sum(part.seconds for part in parts if part.spent is Spent.REDONE),
        steps_lost=max(0, reached - first.step + 1) if first is not None else 0,
        node_hours=held,
        over=first is not None,
    )


def _means(faults: Iterable[FaultCost], key: Any) -> dict[str, Mean]:
    table: dict[str, list[float]] = {}
    for one in faults:
        if one.over:
            table.setdefault(key(one), []).append(one.repair_s)
    return {name: Mean(len(values), sum(values) / len(values)) for name, values in sorted(table.items())}
