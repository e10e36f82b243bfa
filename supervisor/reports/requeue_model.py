"""What a plain `scontrol requeue` would have made of a run's own faults. (I/O)

The model is that of `ftrun simulate`: its column `requeue`, on a virtual cluster of the same size, for the same
time, with this run's faults by class and its own cost of a checkpoint, a start and the queue. What the run
cannot tell (how long a broken node stays broken) is as in the preset of Llama 3. It is a model, not a measurement.
"""

from __future__ import annotations

from collections import Counter

from ftrun.supervisor.model.run import Run
from ftrun.supervisor.model.types import FaultClass
from ftrun.supervisor.policy.estimates import NOT_FAULTS
from ftrun.supervisor.reports.statistics import Statistics
from ftrun.supervisor.reports.time_ledger import RUNNING, Spent
from ftrun.supervisor.simulator import presets
from ftrun.supervisor.simulator.compare import RequeueRules
from ftrun.supervisor.simulator.scenario import Cause, Scenario
from ftrun.supervisor.simulator.virtual_run import simulate

SEEDS = 20
LEAST_S = 3600.0
"""The shortest life that a model says anything about."""

PRESET = "llama3-16k"


def goodput(run: Run, told: Statistics, nodes: int) -> float | None:
    """The mean goodput of such a life; None for a short one, or one whose faults did not come by chance."""
    counts = Counter(one.fault for one in told.faults if one.fault not in NOT_FAULTS)
    running_s = sum(told.seconds[spent.value] for spent in RUNNING)
    if told.life_s < LEAST_S or not nodes or not counts or told.goodput is None or not running_s:
        return None
    known = presets.read_preset(PRESET, {})
    days = running_s * nodes / 86_400.0
    causes = tuple(_cause(known, fault, count / days) for fault, count in sorted(counts.items()))
    starts = 1 + len(told.faults)
    given = {
        "nodes": float(nodes),
        "days": max(0.01, told.life_s / 86_400.0),
        "launch": told.seconds[Spent.STARTUP.value] / starts,
        "queue": told.seconds[Spent.QUEUED.value] / max(1, len(run.attempts)),
    }
    scenario = Scenario(causes, given)
    return sum(simulate(scenario, seed, RequeueRules()).goodput for seed in range(1, SEEDS + 1)) / SEEDS


def _cause(known: Scenario, fault: str, per_node_day: float) -> Cause:
    """The most frequent published cause of this class, at this rate."""
    alike = [cause for cause in known.causes if cause.fault == fault]
    first = max(alike or known.causes, key=lambda cause: cause.per_node_day)
    lasts, lost = (first.lasts, first.lost) if alike else (0.0, False)
    return Cause(fault, FaultClass(fault), per_node_day, lasts, first.named, lost)
