"""The nodes that a run avoids, from the node ledger and from its own exclusions. (I/O)

The ledger is consulted only when a fault is diagnosed, when an attempt opens, and when a first job waits in
the queue. If it cannot be read, the run goes on as if there were no ledger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrun.slurm.client.errors import SlurmError
from ftrun.supervisor.context.node_ledger_writer import Domains, rules_from, several_nodes_failed
from ftrun.supervisor.model.node_entry import NodeEntry as Entry
from ftrun.supervisor.nodes.history import NodeHistory as Book
from ftrun.supervisor.nodes.history import failures
from ftrun.supervisor.policy.correlated_failures import common_causes

if TYPE_CHECKING:
    from ftrun.supervisor.context.run_context import RunContext
    from ftrun.supervisor.model.types import Diagnosis

__all__ = ["common_cause", "domains", "excluded", "quarantined"]


def common_cause(ctx: RunContext, diagnosis: Diagnosis, now_s: float) -> str:
    """Why the fault is blamed on something that several nodes share; "" if it may be the node's own."""
    attempt = ctx.attempt
    culprits = tuple(node for node in diagnosis.nodes if node in attempt.reach)
    if not culprits:
        return ""
    this = Entry(
        now_s,
        "incident",
        culprits,
        id="now",
        run=ctx.run.id,
        signature=diagnosis.signature,
        fault=diagnosis.fault.value,
    )
    rules = rules_from(ctx.settings)
    entries = [entry for entry in ctx.services.ledger.entries() if abs(now_s - entry.at_s) <= rules.window_s]
    entries_now = [*entries, this]
    below = domains(ctx) if several_nodes_failed(entries_now, rules) else {}
    causes = common_causes(failures(entries_now), rules.window_s, rules.many, rules.several, below)
    ours = (cause for cause in causes if any(key == "now" for _, key in cause.failures))
    return next((cause.sentence for cause in ours), "")


def quarantined(ctx: RunContext, now_s: float) -> tuple[str, ...]:
    """The nodes that the next attempt avoids if it can, worst first: bad by other runs, or by people.

    () if the setting says so, or if sbatch refused this run with excluded nodes.
    """
    refused = any(a.launch.end.state == "REFUSED" and a.excluded for a in ctx.run.attempts)
    if refused or ctx.settings.get("quarantine", "auto") == "never":
        return ()
    return _folded_history(ctx).quarantined(now_s)


def excluded(ctx: RunContext, now_s: float) -> tuple[str, ...]:
    """The run's own exclusions, newest first, less the nodes that a person has released since."""
    own = sorted(
        (e for e in ctx.run.excluded if e.until_s > now_s), key=lambda e: (e.until_s, e.node), reverse=True
    )
    if not own:
        return ()
    known, for_s = _folded_history(ctx).nodes, rules_from(ctx.settings).base_s
    released = {name: record.released_at_s for name, record in known.items()}
    return tuple(dict.fromkeys(e.node for e in own if released.get(e.node, 0.0) <= e.until_s - for_s))


def _folded_history(ctx: RunContext) -> Book:
    return ctx.services.ledger.book(rules_from(ctx.settings), lambda: domains(ctx))


def domains(ctx: RunContext) -> Domains:
    """The nodes below each switch; {} if Slurm does not say so now."""
    try:
        return ctx.services.domains()
    except SlurmError:
        return {}
