"""The command of the site that cuts off a node which Slurm has given up: power, or a switch's port. (I/O)

A node that only fell silent may still write, so its job counts as over after `fence-wait` (P6). Where such a command says that it
succeeded, nothing writes there any more, and the wait is over at once. It is run like the user's commands: journalled first, so
once for each node and launch, beside the loop, with a limit. Where it fails, the wait goes on.
"""

from __future__ import annotations

from ftrun.supervisor.context.cluster_view import GIVEN_UP
from ftrun.supervisor.context.run_context import RunContext
from ftrun.supervisor.controller import user_hooks
from ftrun.supervisor.controller.user_hooks import FENCE, FENCED, DueHook


def has_cut_off(ctx: RunContext, node: str) -> bool:
    """Whether the command has cut off a silent node of the launch; starts it once Slurm has given the node up.

    Raises LeaseLost, Stale, OSError (journal).
    """
    assert ctx.snapshot.nodes is not None
    row = ctx.snapshot.nodes.get(node)
    if not ctx.settings.get(FENCE) or row is None:
        return False
    key = f"{FENCE}.{ctx.attempt.number}.{ctx.attempt.launch.number}.{node}"
    if key not in ctx.run.hooks:
        if row.state in GIVEN_UP:
            facts = {"attempt": ctx.attempt.number, "nodes": (node,), "decision": "fence"}
            user_hooks.start(ctx, DueHook(key, FENCE, facts))
        return False
    if not ctx.run.hooks[key]:
        user_hooks.note_ends(ctx)
    return ctx.run.hooks[key] == FENCED
