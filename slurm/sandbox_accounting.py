"""Accounting for a sandbox: a MariaDB and a slurmdbd of its own. (I/O)"""

from __future__ import annotations

from ftrun.slurm.sandbox_plan import Plan, SandboxError

__all__ = ["start"]


def start(plan: Plan) -> None:
    """Start the database and slurmdbd and register the cluster."""
    raise SandboxError("accounting is not available in a sandbox yet", wrong_usage=True)
