"""Keeps the first job of a run off nodes that a person has excluded, or that the site places last. (I/O)

Without such nodes nobody is asked. Otherwise Slurm is, since the promise is that a job is never made to wait
or refused for it: the nodes are left out as far as `exclude-cap` and the size of the job permit, never one that
the user asks for by name, and only where sbatch itself says that such a job can be placed (`--test-only`).
Jobs in a reservation and heterogeneous jobs are left alone, as in the queue.
"""

from __future__ import annotations

import contextlib
import subprocess
import time

from ftrun.supervisor.model.errors import SubmitImpossible
from ftrun.supervisor.store import site_nodes, user_exclusions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ftrun.supervisor.submission.arguments import Submission
    from ftrun.supervisor.submission.plan import SbatchCall

ASK_S = 10.0


def nodes_to_avoid(asked: Submission, home: str) -> tuple[str, ...]:
    """The nodes that the first job is to be kept off; () where Slurm does not answer."""
    given, chosen = asked.given, asked.config.values
    now_s, spool = time.time(), str(chosen.get("site-spool") or "")
    wanted = (*user_exclusions.read_exclusions(home, now_s), *site_nodes.quarantined_nodes(spool, now_s))
    if not wanted or chosen.get("quarantine") == "never" or given.shape == "het":
        return ()
    if given.get("reservation", "SBATCH_RESERVATION"):
        return ()
    from ftrun.slurm.client.cluster import Rights
    from ftrun.slurm.client.errors import SlurmError
    from ftrun.slurm.commands.cluster import CommandCluster
    from ftrun.supervisor.policy import node_placement, policy_input
    from ftrun.supervisor.submission import resize, sbatch_options

    cluster = CommandCluster(asked.env, timeout_s=ASK_S)
    needed = 0
    try:
        required = sbatch_options.required_nodes(given)
        own = set(sbatch_options.excluded_nodes(given))
        partitions, nodes = cluster.partitions(), cluster.nodes()
        with contextlib.suppress(SubmitImpossible):
            needed = resize.requested_nodes(given)[0]
    except (SlurmError, SubmitImpossible):
        return ()
    view = policy_input.ClusterView.of(
        partitions,
        {name: row for name, row in nodes.items() if name not in own},
        Rights(False, ""),
        names=given.get("partition", "SBATCH_PARTITION").split(","),
        lost=(),
        nodes_needed=max(1, needed, len(required)) + int(str(chosen.get("spares") or 0)),
        may_ask=False,
    )
    free = [node for node in dict.fromkeys(wanted) if node not in required and node not in own]
    cap = policy_input.limits_from(chosen).exclude_cap
    return node_placement.nodes_to_exclude(view, (), (), (), quarantined=free, cap=cap)


def can_be_placed(asked: Submission, call: SbatchCall) -> bool:
    """Whether sbatch would place such a job at any time; nothing is submitted."""
    words = call.argv[: call.argv.index(call.path)] if not call.stdin else call.argv
    try:
        done = subprocess.run(
            [asked.sbatch, "--test-only", *words],
            env=asked.raw_env,
            input=call.content,
            capture_output=True,
            timeout=ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
