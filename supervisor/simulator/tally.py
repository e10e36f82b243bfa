"""Where the time of a virtual run went, and what several seeds say together. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from ftrun.slurm.records import dataclass
from ftrun.supervisor.simulator.formulas import mean_interval

LOSSES = ("detection", "restart", "lost steps", "queue", "person", "smaller size", "checkpointing")
"""Causes of lost time. Idle spares are shown separately: they take nothing from the training."""


@dataclass(slots=True)
class Outcome:
    """One seed: seconds of training; `spare_node_s`: spares times the seconds that they stood by."""

    span_s: float
    useful_s: float = 0.0
    lost_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LOSSES, 0.0))
    spare_node_s: float = 0.0
    faults: int = 0
    restarts: dict[str, int] = field(default_factory=dict)
    stops: dict[str, int] = field(default_factory=dict)

    @property
    def goodput(self) -> float:
        """The share of time in new useful steps."""
        return self.useful_s / self.span_s


@dataclass(frozen=True, slots=True)
class Row:
    """One policy over all seeds: means per seed.

    `half_width` is half of the 95 % interval of the goodput; None with one seed. `goodput_of_all` counts
    idle spares, too: useful node-hours over those of the training and its spares.
    """

    policy: str
    goodput: float
    half_width: float | None
    goodput_of_all: float
    node_hours: dict[str, float]
    lost: dict[str, float]  # the same as shares of the time
    spare_node_hours: float
    faults: float
    restarts: dict[str, float]
    stops: dict[str, float]


def row_of(policy: str, nodes: int, outcomes: Sequence[Outcome]) -> Row:
    """The summary of one policy's seeds."""
    count = len(outcomes)
    mean, half = mean_interval([one.goodput for one in outcomes])
    spare_hours = sum(one.spare_node_s for one in outcomes) / count / 3600.0
    whole_hours = outcomes[0].span_s * nodes / 3600.0
    return Row(
        policy=policy,
        goodput=mean,
        half_width=half if count > 1 else None,
        goodput_of_all=mean * whole_hours / (whole_hours + spare_hours),
        node_hours={
            name: sum(one.lost_s[name] for one in outcomes) / count * nodes / 3600.0 for name in LOSSES
        },
        lost={name: sum(one.lost_s[name] / one.span_s for one in outcomes) / count for name in LOSSES},
        spare_node_hours=spare_hours,
        faults=sum(one.faults for one in outcomes) / count,
        restarts=_means([one.restarts for one in outcomes]),
        stops=_means([one.stops for one in outcomes]),
    )


def _means(counts: Sequence[dict[str, int]]) -> dict[str, float]:
    names = sorted({name for one in counts for name in one})
    return {name: sum(one.get(name, 0) for one in counts) / len(counts) for name in names}
