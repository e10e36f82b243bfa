"""What each thing that a run can do about faults is worth: one change after another, and a curve over what is assumed. (pure)

CHANGES are cumulative. A change sets settings of ftrun, or replaces a quantity by what a bench of this repository
measured: each such figure stands in MEASURED, with where it was measured. Fault rates, repair, reaction and the cost of
a save to the shared file system stay as the scenario has them. ASSUMED lists every other quantity with its range and
where the range comes from; `curve` moves one of them at a time, with all changes made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.simulator.formulas import daly_s
from ftrun.supervisor.simulator.ftrun_rules import FtrunRules
from ftrun.supervisor.simulator.scenario import READ_SPEEDUP, STAGED_PAUSE_S, Cause, Scenario
from ftrun.supervisor.simulator.tally import Row, row_of
from ftrun.supervisor.simulator.virtual_run import simulate

COPY_LAG_S = 26.0
QUIET_S, STEP_REST_S, SWAP_REST_S = 2.0, 0.4, 0.8

MEASURED: Mapping[str, str] = {
    "checkpoint-cost": "pause of a staged save of 1 GiB a rank, both cores busy (docs/stage-proofs.md); Llama 3's rank has 0.32 GiB",
    "checkpoint-every": "computed: Daly's best interval for that pause",
    "copy-lag": "2.6 GiB of a node to its partner at 100 MiB/s, both on two busy cores (docs/stage-proofs.md)",
    "launch": f"its part that loads the checkpoint, assumed as long as writing one, is {READ_SPEEDUP} times as quick from memory (docs/stage-proofs.md)",
    "in-place-step": "2.5 s on an idle machine, first step included; the 2 s in which the log must be quiet do not grow with the nodes (docs/benchmarks.md)",
    "in-place-swap": "3.0 s on an idle machine, the same (docs/benchmarks.md)",
}
"""Quantity -> where its new value comes from."""


@dataclass(frozen=True, slots=True)
class Change:
    """One row: what the run does in addition, by which option of `ftrun sbatch` ("" = nothing to set).

    `own` are settings of ftrun, `quantities` computes what changes in the scenario.
    """

    name: str
    option: str
    own: Mapping[str, Any]
    quantities: Callable[[Scenario], Mapping[str, float]] = lambda _scenario: {}
    spares: bool = False


def _measured_in_place(scenario: Scenario) -> Mapping[str, float]:
    scale = max(1.0, math.log2(scenario.nodes))
    return {
        "in-place-step": QUIET_S + STEP_REST_S * scale,
        "in-place-swap": QUIET_S + SWAP_REST_S * scale,
    }


def _staged_saves(scenario: Scenario) -> Mapping[str, float]:
    every_s = daly_s(STAGED_PAUSE_S, scenario.between_s) if scenario.causes else scenario["checkpoint-every"]
    return {
        "checkpoint-cost": STAGED_PAUSE_S,
        "checkpoint-every": max(1.0, min(every_s, scenario["checkpoint-every"])),
        "copy-lag": COPY_LAG_S,
    }


def _load_from_memory(scenario: Scenario) -> Mapping[str, float]:
    load_s = min(scenario["checkpoint-cost"], scenario["launch"])
    return {"launch": scenario["launch"] - load_s + load_s / READ_SPEEDUP}


CHANGES: tuple[Change, ...] = (
    Change("every fault a new job", "", {"recover": "resubmit", "hang": "never"}),
    Change("detection in seconds", "--ft-hang=auto (default)", {"hang": "auto"}),
    Change("restart in place: today's defaults", "--ft-recover (default)", {"recover": None}),
    Change("spares in the job", "--ft-spares", {}, spares=True),
    Change("restart in place as measured now", "", {}, _measured_in_place),
    Change("saves into memory, partner copies", "--ft-stage", {}, _staged_saves),
    Change("resume from memory", "--ft-stage", {}, _load_from_memory),
    Change("spares that queue before they are needed", "--ft-spares-refill=auto", {"spares-refill": "auto"}),
)
"""A value of None gives a setting its default back."""


@dataclass(frozen=True, slots=True)
class Step:
    """One row of the waterfall: the change, its outcome, and the quantities that it replaced: key -> (old, new)."""

    change: Change
    row: Row
    replaced: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the changes lead: scenario, settings, number of spares."""

    scenario: Scenario
    own: Mapping[str, Any]
    spares: int

    def run(self, name: str, seeds: int) -> Row:
        """The outcome over the seeds 1..`seeds`."""
        lives = [
            simulate(self.scenario, seed, FtrunRules(self.own, self.spares)) for seed in range(1, seeds + 1)
        ]
        return row_of(name, self.scenario.nodes, lives)


def stages(scenario: Scenario, spares: int, own: Mapping[str, Any]) -> Iterator[tuple[Change, Stage]]:
    """Each change with all changes up to it made; settings of the user's own hold throughout."""
    stage, settings = Stage(scenario, own, 0), dict[str, Any]()
    for change in CHANGES:
        settings |= change.own
        given = {key: value for key, value in settings.items() if value is not None}
        # What loads a checkpoint is measured against the save that the scenario had.
        based = scenario if change.quantities is _load_from_memory else stage.scenario
        changed = replace(
            stage.scenario, given={**stage.scenario.given, **_lower(stage.scenario, change.quantities(based))}
        )
        stage = Stage(changed, {**given, **own}, spares if change.spares else stage.spares)
        yield change, stage


def _lower(scenario: Scenario, wanted: Mapping[str, float]) -> Mapping[str, float]:
    """Without those that would make it worse than the scenario says: its own figures may be better than ours."""
    return {key: value for key, value in wanted.items() if key == "copy-lag" or value < scenario[key]}


def waterfall(scenario: Scenario, spares: int, own: Mapping[str, Any], seeds: int) -> Iterator[Step]:
    """A row for each change, one after the other."""
    before = scenario
    for change, stage in stages(scenario, spares, own):
        replaced = {
            key: (before[key], stage.scenario[key]) for key in MEASURED if before[key] != stage.scenario[key]
        }
        before = stage.scenario
        yield Step(change, stage.run(change.name, seeds), replaced)


@dataclass(frozen=True, slots=True)
class Assumption:
    """A quantity that nobody measured for this scenario, values to try, and where the range comes from."""

    key: str
    values: tuple[float, ...]
    source: str


ASSUMED: tuple[Assumption, ...] = (
    Assumption(
        "launch",
        (30.0, 60.0, 90.0, 300.0, 600.0),
        "published: collectives of more than 10,000 GPUs in under 30 s, of 2,048 in 1,047 s before it was tuned (MegaScale, arXiv"
        " 2402.15627); whole starts of minutes (BootSeer, arXiv 2507.12619)",
    ),
    Assumption(
        "checkpoint-cost",
        (0.2, 1.0, 1.7, 3.0),
        "0.2 s: eight ranks copy 0.32 GiB each side by side; 1.7 s: one after the other; 3 s: a fifth of the save to disk, as in our bench",
    ),
    Assumption("copy-lag", (0.0, 120.0), "quick links, to one that other traffic fills"),
    Assumption("checkpoint-every", (60.0, 300.0, 600.0), "a minute to today's ten"),
    Assumption("in-place", (0.5, 2.0, 4.0), "times as long: measured on a few nodes only"),
    Assumption("new-job", (20.0, 300.0), "prolog alone, to cold containers (BootSeer: minutes)"),
    Assumption("queue", (0.0, 1_800.0, 7_200.0), "a reservation of one's own, to a busy cluster"),
    Assumption("contended", (0.0, 0.9), "nobody else waits, to a full cluster"),
    Assumption("idle", (8.0, 16.0, 128.0), "as many as the spares, to one for 16 nodes"),
    Assumption("found", (600.0, 86_400.0), "a health check every ten minutes, to a daily look"),
    Assumption("reboot", (300.0, 3_600.0), "a quick firmware, to a slow one"),
    Assumption("relapse", (60.0, 3_600.0), "fails at the first step, to fails within the hour"),
    Assumption("lost-after", (60.0, 600.0), "SlurmdTimeout as sites set it"),
    Assumption("step", (1.0, 30.0), "small to large models"),
    Assumption("named", (0.5, 0.7, 1.0), "share of faults whose node the diagnosis names, all causes"),
    Assumption("lasts", (0.0, 0.5, 1.0), "share of broken nodes that stay broken, all causes"),
)


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the curve: the goodput with all changes made where `key` has this value."""

    key: str
    value: float
    row: Row


def curve(scenario: Scenario, spares: int, own: Mapping[str, Any], seeds: int) -> Iterator[Point]:
    """The goodput over the range of each assumption, one moved at a time."""
    *_, (_, last) = stages(scenario, spares, own)
    for assumed in ASSUMED:
        for value in assumed.values:
            if assumed.key == "idle" and value < spares:
                continue
            moved = replace(last, scenario=with_assumption(last.scenario, assumed.key, value))
            yield Point(assumed.key, value, moved.run(f"{assumed.key}={value:g}", seeds))


def with_assumption(scenario: Scenario, key: str, value: float) -> Scenario:
    """The scenario with another value of one assumption; `in-place` multiplies, `named` and `lasts` count for all causes."""
    if key == "in-place":
        both = {name: scenario[name] * value for name in ("in-place-step", "in-place-swap")}
        return replace(scenario, given={**scenario.given, **both})
    if key in ("named", "lasts"):
        return replace(scenario, causes=tuple(_with_share(one, key, value) for one in scenario.causes))
    given = {**scenario.given, key: value}
    if key == "checkpoint-cost":
        given["checkpoint-every"] = max(1.0, daly_s(value, scenario.between_s))
    return replace(scenario, given=given)


def _with_share(cause: Cause, key: str, value: float) -> Cause:
    lasts = value if key == "lasts" and cause.lasts else cause.lasts
    return replace(cause, lasts=lasts, named=value if key == "named" else cause.named)


def gains(steps: Sequence[Step]) -> list[float]:
    """What each step adds to the goodput; 0 for the first."""
    shares = [step.row.goodput for step in steps]
    return [0.0, *(after - before for before, after in pairwise(shares))]
