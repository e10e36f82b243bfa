"""Several ways to look after the same run, side by side on the same virtual cluster. (pure)"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor import settings
from ftrun.supervisor.rungs import rungs_from
from ftrun.supervisor.settings_errors import SettingError
from ftrun.supervisor.sizes import sizes_of_settings
from ftrun.supervisor.virtual.life import Rules, live
from ftrun.supervisor.virtual.looked_after import LookedAfter
from ftrun.supervisor.virtual.plain import Person, Requeue
from ftrun.supervisor.virtual.scenario import Scenario
from ftrun.supervisor.virtual.tally import Row, row_of

__all__ = ["Way", "compare", "ways"]


ITSELF: Mapping[str, str] = {
    "spares": " (--spares)",
    "nodes": " (--elastic)",
    "nodes-valid": " (--elastic)",
    "checkpoint": "",
}


@dataclass(frozen=True, slots=True)
class Way:
    """A column: its name, and what makes its rules anew for each seed."""

    name: str
    rules: Callable[[], Rules]


def ways(scenario: Scenario, spares: Sequence[int], own: Mapping[str, Any], sizes: str = "") -> list[Way]:
    """The columns. `own` are settings of ftrun, `sizes` the ones of the elastic column as `--ft-nodes` takes them; "" = from half of the nodes to all.

    Raises SettingError for what no submission would let through.
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
        rungs_from({**settings.defaults(), **own, "spares": count})
    found = [Way("none", Person), Way("requeue", Requeue)]
    counts = dict.fromkeys((0, *spares))
    found += [_ours(f"ftrun +{count}" if count else "ftrun", own, count) for count in counts]
    sizes = sizes or f"{max(1, scenario.nodes // 2)}-{scenario.nodes}"
    known = sizes_of_settings({"nodes": sizes})
    if known is None or known.full != scenario.nodes:
        raise SettingError(f"elastic: the largest size is the {scenario.nodes} nodes of the training")
    return [*found, _ours("elastic", {**own, "nodes": sizes}, 0)]


def _ours(name: str, own: Mapping[str, Any], spares: int) -> Way:
    return Way(name, lambda: LookedAfter(own, spares))


def compare(scenario: Scenario, found: Sequence[Way], seeds: int) -> Iterator[Row]:
    """A row for each way over the seeds 1..`seeds`, one after the other."""
    for way in found:
        outcomes = [live(scenario, seed, way.rules()) for seed in range(1, seeds + 1)]
        yield row_of(way.name, scenario.nodes, outcomes)
