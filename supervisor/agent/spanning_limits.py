"""Whether a start can span this job and a companion, and whether nodes for a companion are idle. (I/O)

The script's own calls say most: the shim notes each srun call that needs all processes in one MPI world, and
a script that never calls srun starts nothing on other nodes. Next comes the fabric: where each job has its
own keys, ranks of two jobs cannot reach each other (HPE Slingshot gives each job its VNIs, NVIDIA IMEX its
channel; manual pages of slurm.conf, 24.11 to 26.05). Other obstacles show only once: if the first start
across two jobs makes no step though all its nodes are well, this launch does not try again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ftrun.slurm.client.errors import SlurmError
from ftrun.supervisor.agent.context import AgentContext
from ftrun.supervisor.config import recovery_order
from ftrun.supervisor.config import rungs as config_rungs
from ftrun.supervisor.config.node_counts import Pool, parse_pool
from ftrun.supervisor.config.settings import text_of
from ftrun.supervisor.model.types import Diagnosis
from ftrun.supervisor.submission import companion

KEYS_PER_JOB = ("hpe_slingshot", "nvidia_imex")
SPANNING_FAILED = "the first start over both jobs came to nothing"
WORTH_S = 30.0  # of the job's time must be left to a start even if the companion comes as late as it may


def idle_count(ctx: AgentContext, but: Collection[str] = ()) -> int:
    """How many nodes of this job's partitions are idle and neither ours nor in `but`; 0 if Slurm does not
    answer.
    """
    try:
        nodes = ctx.cluster.nodes()
    except SlurmError:
        return 0
    own = {name for node in ctx.where.nodes if node in nodes for name in nodes[node].partitions}
    others = (row for name, row in nodes.items() if name not in ctx.nodes and name not in but)
    return sum(row.state == "idle" and row.available and bool(own & {*row.partitions}) for row in others)


def pool_with_idle_nodes(
    ctx: AgentContext, settings: Mapping[str, Any], count: int, exclude: Collection[str] = ()
) -> Pool | None:
    """The pool, if it has enough idle nodes now."""
    pool = parse_pool(text_of(settings, "pool"))
    try:
        if pool is not None:
            away = {*exclude, *ctx.nodes}
            idle = companion.idle_pool_nodes(ctx.cluster, pool, ctx.cluster.nodes(), away)
            return pool if len(idle) >= count else None
    except SlurmError:
        pass
    return None


def companion_is_possible(ctx: AgentContext, settings: Mapping[str, Any], start: int) -> bool:
    """Whether some idle node could join as a companion, as far as one query to Slurm tells."""
    orders = recovery_order.rung_rules_from(settings).orders.values()
    if not any(config_rungs.Rung.COMPANION in order for order in orders):
        return False
    if not ctx.channel.calls(start) or ctx.channel.no_span(start):
        return False
    return idle_count(ctx) > 0 or pool_with_idle_nodes(ctx, settings, 1) is not None


@dataclass
class SpanningLimits:
    """What is known about spanning in one launch. `why` is an obstacle that lasts."""

    ctx: AgentContext
    why: str = ""
    _switch: str | None = None
    _worked: bool = False

    def against(self, start: int, *, end_s: float | None, limit_s: float) -> str:
        """Why nodes of a companion are of no use after `start`; "" = they are.

        `end_s`: when the job's time is up (Unix seconds, None = unknown or never); `limit_s`: the longest
        wait for a companion.
        """
        if self.why:
            return self.why
        if not self.ctx.channel.calls(start):
            return "the script starts nothing by srun"
        if told := self.ctx.channel.no_span(start):
            return f"the script's srun cannot span two jobs: {told}"
        if end_s is not None and end_s - self.ctx.clock.now_s() < limit_s + WORTH_S:
            return f"only {end_s - self.ctx.clock.now_s():.0f} s are left of the job's time"
        return self._fabric()

    def after(
        self, start: int, settings: Mapping[str, Any], diagnosis: Diagnosis, end_s: float | None
    ) -> str:
        """The same for this diagnosis, with the time limit from the settings."""
        rungs = recovery_order.rung_rules_from(settings)
        limit_s = rungs.limit_s(config_rungs.Rung.COMPANION, diagnosis.fault, diagnosis.signature)
        return self.against(start, end_s=end_s, limit_s=limit_s)

    def note(self, nodes: tuple[str, ...], step: int | None, *, well: bool) -> None:
        """Record how a start on `nodes` went: its last step, and whether all its nodes stayed well."""
        held = {node for span in self.ctx.spans for node in span.nodes}
        if held.isdisjoint(nodes):
            return
        if step is not None:
            self._worked = True
        elif well and not self._worked:
            self.why = SPANNING_FAILED

    @property
    def useless(self) -> tuple[str, ...]:
        """The nodes of companions, if a start across two jobs came to nothing."""
        spans = self.ctx.spans if self.why == SPANNING_FAILED else ()
        return tuple(node for span in spans for node in span.nodes)

    def _fabric(self) -> str:
        if self._switch is None:
            try:
                self._switch = self.ctx.cluster.facts().switch
            except SlurmError as error:
                return f"the fabric of the cluster is not known: {error.message}"
        keys = next((kind for kind in KEYS_PER_JOB if kind in self._switch), "")
        return f"the fabric gives each job keys of its own (SwitchType={self._switch})" if keys else ""
