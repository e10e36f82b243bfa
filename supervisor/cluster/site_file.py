"""The settings of ftrun that a cluster brings along: a file beside its slurm.conf, in the place of a site's. (pure)

Clients of the cluster read it by FTRUN_SITE_CONFIG (`choice`). What /etc/ftrun/config.toml locks stays locked all the same.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from ftrun.slurm.cluster.plan import SETTINGS, Plan
from ftrun.supervisor.model.errors import UserError

RUNS = ".ftrun"
"""The folder of all runs in a folder that is shared for them."""


def files(plan: Plan) -> Mapping[str, str]:
    """Path below the cluster's folder -> text; {} where the cluster sets nothing."""
    rows: dict[str, object] = {}
    if plan.shared and plan.uid:  # users of root's cluster have homes of their own
        rows["home"] = f"{plan.shared}/{RUNS}"
    if plan.fence_command:
        rows["fence-command"] = plan.fence_command
    if plan.repair_commands:
        rows["recheck-step"] = list(plan.repair_commands)
    if not rows:
        return {}
    # TOML is written in the characters themselves: it has no pairs of surrogates.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in rows.items()]
    return {SETTINGS: "\n".join(["# Written by `ftrun cluster up`.", *lines]) + "\n"}


def checked(command: str) -> str:
    """A command of the user for one node, as it is; "" for none. Raises UserError where it is none."""
    if command:
        try:
            shlex.split(command)
        except ValueError as error:
            raise UserError(f"{command}: {error}") from None
        if "{node}" not in command:
            raise UserError(f"{command}: {{node}} has to stand where the name of the node belongs")
    return command
