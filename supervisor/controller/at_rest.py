"""Which runs a round leaves out, because nothing has happened to them. (I/O)

A step of a run takes a third of a millisecond of processor time, so that a thousand runs at each poll would take
a sixth of a core. Most rounds find nothing new. A run that waits in the queue, or runs without any suspicion, is left
out while all of this is as it was at its last step: the run itself, Slurm's rows of its job and nodes, and the times of
its folders, which show requests, conditions of stop, and what its job writes there. Its time limits and stopwatches
still need a step now and then: it comes after `SHARE` times the processor time of a step of all runs, after
`REST_MAX_S` at most. With few runs that is at each round. Logs are read by glances, which leave out none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ftrun.slurm.client.cluster import NodeRow
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.context.services import ClusterSnapshot
from ftrun.supervisor.controller import user_hooks
from ftrun.supervisor.model.states import State
from ftrun.supervisor.store import run_dir as store_run_dir
from ftrun.supervisor.store.run_dir import FolderTimes

SHARE = 30.0
REST_MAX_S = 10.0
_RESTFUL = frozenset({State.QUEUED, State.RUNNING})


@dataclass
class _Known:
    """What a run was at its last step."""

    stepped_s: float = float("-inf")
    run: Any = None
    rows: Any = None
    folders: FolderTimes = field(default_factory=FolderTimes)


class Rests:
    """The runs of one supervisor. Times are those of its monotonic clock."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._nodes: Mapping[str, NodeRow] = {}
        self._node_changed_s: dict[str, float] = {}
        self._step_cpu_s = 0.0  # usual processor time of a step

    def begin_round(self, snapshot: ClusterSnapshot, runs: Mapping[str, object]) -> None:
        """A new snapshot of the cluster, for these runs."""
        for gone in self._known.keys() - runs.keys():
            del self._known[gone]
        nodes = snapshot.nodes or {}
        if nodes is not self._nodes:
            for name, row in nodes.items():
                if self._nodes.get(name) != row:
                    self._node_changed_s[name] = snapshot.mono_s
            self._nodes = nodes

    def left_out(self, ctx: RunContext, snapshot: ClusterSnapshot) -> bool:
        """Whether this run need not be stepped now; if it must, that step is noted."""
        known, run = self._known.setdefault(ctx.run_dir, _Known()), ctx.run
        attempt = run.attempt
        if attempt is None or snapshot.jobs is None or snapshot.nodes is None:
            known.run = None
            return False
        rest_s = min(REST_MAX_S, SHARE * self._step_cpu_s * len(self._known))
        rows = snapshot.families.get(attempt.job)
        quiet = (
            known.run is run
            and known.rows == rows
            and rows is not None
            and run.state in _RESTFUL
            and snapshot.mono_s - known.stepped_s < rest_s
            and not snapshot.tokens
            and not _busy(ctx)
            and all(self._node_changed_s.get(node, 0.0) <= known.stepped_s for node in attempt.nodes)
        )
        folders = (
            ctx.run_dir,
            os.path.join(ctx.run_dir, "requests"),
            store_run_dir.attempt_dir(ctx.run_dir, attempt.number),
        )
        if not known.folders.changed(folders) and quiet:
            return True
        known.stepped_s, known.rows, known.run = snapshot.mono_s, rows, None  # until the step has succeeded
        return False

    def stepped(self, ctx: RunContext, cpu_s: float) -> None:
        """The run was stepped, which took so much processor time."""
        self._known.setdefault(ctx.run_dir, _Known()).run = ctx.run
        self._step_cpu_s += (cpu_s - self._step_cpu_s) / 64


def _busy(ctx: RunContext) -> bool:
    """Whether something is under way that no folder and no row tells of."""
    run = ctx.run
    return bool(
        run.wish
        or run.halt
        or run.leaving
        or run.asked
        or ctx.just_submitted
        or ctx.attempt.companions
        or user_hooks.has_pending_hooks(ctx)
    )
