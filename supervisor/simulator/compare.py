"""Several policies for the same run, side by side on the same virtual cluster. (pure)

Without ftrun, a person starts the job again, or Slurm requeues it. Both see a fault when the script ends: a
crash at once, a lost node when Slurm gives it up, a hang when the collectives give up. The person finds out
which node it was and excludes it. The requeue excludes nothing: Slurm leaves out nodes that do not answer
and nodes that the site has drained by then, so a broken node that still answers is used again, and fails
again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor.config import settings
from ftrun.supervisor.config.node_counts import sizes_of_settings
from ftrun.supervisor.config.recovery_order import rung_rules_from
from ftrun.supervisor.model.errors import SettingError
from ftrun.supervisor.model.types import FaultClass
from ftrun.supervisor.simulator.ftrun_rules import FtrunRules
from ftrun.supervisor.simulator.queue import QueuedJob, first_job
from ftrun.supervisor.simulator.scenario import Scenario
from ftrun.supervisor.simulator.tally import Row, row_of
from ftrun.supervisor.simulator.virtual_run import Fault, Rules, VirtualRun, simulate


class _NeverGrows:
    """A healthy run is left alone."""

    def look_at_s(self, _life: VirtualRun) -> float:
        """Never."""
        return math.inf

    def look(self, _life: VirtualRun) -> None:
        """Do nothing."""


class PersonRules(_NeverGrows):
    """A person who looks now and then."""

    def begin(self, life: VirtualRun) -> None:
        """Submit the first job."""
        first_job(life, 0)

    def recover(self, life: VirtualRun, fault: Fault) -> None:
        """Notice late, find the cause, start again by hand."""
        _until_over(life, fault)
        life.spend("person", life.wait(life.scenario["reaction"]), held=False)
        if fault.node:
            life.cluster.found(fault.node, life.now_s)
        _new_job(life, "by hand")


class RequeueRules(_NeverGrows):
    """`scontrol requeue` after each failed end of the script."""

    def begin(self, life: VirtualRun) -> None:
        """Submit the first job."""
        first_job(life, 0)

    def recover(self, life: VirtualRun, fault: Fault) -> None:
        """Requeue, whatever the fault was."""
        _until_over(life, fault)
        life.spend("queue", life.scenario["requeue"], held=False)
        _new_job(life, "requeue")


def _until_over(life: VirtualRun, fault: Fault) -> None:
    if fault.cause.fault is FaultClass.HANG:
        life.spend("detection", life.scenario["watchdog"])
    elif fault.cause.lost:
        life.spend("detection", life.scenario["lost-after"])


def _new_job(life: VirtualRun, how: str) -> None:
    QueuedJob(life, life.scenario.nodes).started()
    life.spend("restart", life.scenario["new-job"])
    life.restarted(how)


ITSELF: Mapping[str, str] = {
    "spares": " (--spares)",
    "nodes": " (--elastic)",
    "nodes-valid": " (--elastic)",
    "checkpoint": "",
}


@dataclass(frozen=True, slots=True)
class Policy:
    """A column: its name, and a function that makes its rules anew for each seed."""

    name: str
    rules: Callable[[], Rules]


def policies(
    scenario: Scenario, spares: Sequence[int], own: Mapping[str, Any], sizes: str = ""
) -> list[Policy]:
    """The columns.

    `own` are settings of ftrun, `sizes` those of the elastic column as `--ft-nodes` takes them.

    `sizes` "" = from half of the nodes to all. Raises SettingError for what no submission would accept.
    """
    for key in own:
        if key in ITSELF:
            raise SettingError(f"{key}: the simulation sets it itself{ITSELF[key]}")
        if key == "observe":
            raise SettingError("observe: what only watches has no column of its own: it is `none`")
    idle = int(scenario["idle"])
    for count in spares:
        if count > idle:
            raise SettingError(f"spares: {count} are more than the {idle} idle nodes of the cluster (--idle)")
        rung_rules_from({**settings.defaults(), **own, "spares": count})
    found = [Policy("none", PersonRules), Policy("requeue", RequeueRules)]
    counts = dict.fromkeys((0, *spares))
    found += [_ours(f"ftrun +{count}" if count else "ftrun", own, count) for count in counts]
    sizes = sizes or f"{max(1, scenario.nodes // 2)}-{scenario.nodes}"
    known = sizes_of_settings({"nodes": sizes})
    if known is None or known.full != scenario.nodes:
        raise SettingError(f"elastic: the largest size is the {scenario.nodes} nodes of the training")
    return [*found, _ours("elastic", {**own, "nodes": sizes}, 0)]


def _ours(name: str, own: Mapping[str, Any], spares: int) -> Policy:
    return Policy(name, lambda: FtrunRules(own, spares))


def compare(scenario: Scenario, found: Sequence[Policy], seeds: int) -> Iterator[Row]:
    """A row for each policy over the seeds 1..`seeds`, one after the other."""
    for way in found:
        outcomes = [simulate(scenario, seed, way.rules()) for seed in range(1, seeds + 1)]
        yield row_of(way.name, scenario.nodes, outcomes)
