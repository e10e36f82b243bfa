"""One snapshot of the cluster, and its freshness. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ftrun.slurm.client.cluster import JobRow, NodeRow
from ftrun.slurm.records import dataclass

STALE_AFTER_S = 10.0
ALL_RUNS = ""


class Stale(Exception):
    """The snapshot is too old to act on: take a new one first."""


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """One snapshot of the cluster.

    `jobs` and `nodes` are None while Slurm cannot be seen: then keep state and do nothing.
    """

    now_s: float
    mono_s: float
    jobs: Mapping[str, JobRow] | None
    nodes: Mapping[str, NodeRow] | None
    families: Mapping[str, tuple[JobRow, ...]] = field(
        default_factory=dict
    )  # job id of a submission -> its rows
    tokens: tuple[JobRow, ...] = ()  # not in each snapshot: jobs with a token that no present attempt owns
