"""The nodes that a submission names, and those that a run's first job is kept off. (I/O)

A list with a slash in it names a file of nodes, which is read.

The first job is kept off nodes that a person has excluded, or that the site places last. Without such nodes
nobody is asked. Otherwise Slurm is, since the promise is that a job is never made to wait
or refused for it: the nodes are left out as far as `exclude-cap` and the size of the job permit, never one that
the user asks for by name, and only where sbatch itself says that such a job can be placed (`--test-only`).
Jobs in a reservation and heterogeneous jobs are left alone, as in the queue.
"""

from __future__ import annotations

import contextlib
import os
import time

from ftrun.slurm.client.options import SbatchOptions
from ftrun.supervisor.model.errors import SubmitImpossible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

ASK_S = 10.0


def nodes_to_avoid(
    given: SbatchOptions, chosen: Mapping[str, Any], env: Mapping[str, str], home: str
) -> tuple[str, ...]:
    """The nodes that the first job is to be kept off; () where Slurm does not answer."""
    from ftrun.supervisor.store import site_nodes, user_exclusions

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
    from ftrun.supervisor.submission import resize

    cluster = CommandCluster(env, timeout_s=ASK_S)
    needed = 0
    try:
        required = required_nodes(given)
        own = set(excluded_nodes(given))
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


def required_nodes(given: SbatchOptions, cwd: str = "") -> list[str]:
    """The nodes that the user names by -w or -F (job of one component).

    Raises SubmitImpossible if the file is unreadable. `cwd` is where the job was submitted ("" = here).
    """
    return expanded_names(given.get("nodelist"), given.get("nodefile"), cwd)


def excluded_nodes(given: SbatchOptions, cwd: str = "") -> list[str]:
    """The nodes that the user excludes by -x (job of one component).

    Raises SubmitImpossible if the file is unreadable.
    """
    from ftrun.slurm.client import nodeset

    return list(nodeset.expand(node_list(given.get("exclude"), cwd)))


def expanded_names(named: str | None, file: str | None, cwd: str) -> list[str]:
    """The nodes named by -w, or by -F where there is none. Raises SubmitImpossible."""
    from ftrun.slurm.client import nodeset  # most submissions name no node

    return list(nodeset.expand(node_list(named or "", cwd) or (_from_file(file, cwd) if file else "")))


def node_list(nodes: str, cwd: str = "") -> str:
    """A node list as given to -w and -x: with a slash in it, it names a file of nodes.

    Raises SubmitImpossible.
    """
    return _from_file(nodes, cwd) if "/" in nodes else nodes


def _from_file(path: str, cwd: str) -> str:
    """The names in a file of nodes, as sbatch reads it.

    Lines, lists, `n1*2` for a name twice, `#` for a comment.
    """
    try:
        with open(os.path.join(cwd, path), encoding="utf-8") as stream:
            lines = [text.partition("#")[0] for text in stream]
    except OSError as error:
        raise SubmitImpossible(f"the node list {path} cannot be read: {error.strerror}") from None
    return ",".join(word.partition("*")[0] for word in " ".join(lines).split())
