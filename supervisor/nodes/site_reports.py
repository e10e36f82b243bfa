"""Tells the site's ledger of incidents, so that a node that two users know to be bad is known to all. (I/O)

The entries of the user's own ledger are told, once each, when they are new there (`ledger.NodeLedger`): no
setting of the user's is needed. A report's id is made of the entry's, so one that is left twice, because a
crash came between, counts once. What cannot be left now (munge, a full disk) is tried again for an hour; the
runs do not wait for it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ftrun.slurm.client.cluster import ClusterFacts
from ftrun.slurm.client.errors import SlurmError
from ftrun.supervisor.model.node_entry import NodeEntry
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.nodes import spool
from ftrun.supervisor.nodes.drain_rules import DrainRequest
from ftrun.supervisor.nodes.machines import digests

SETTING = "site-spool"
NODES_MAX = 4  # of one incident: more of them are no node's own fault
LATEST_S = 3600.0  # the service refuses what was signed so long after the fault
AGAIN_S = 60.0
WAITING_MAX = 200
NOTHING: Mapping[str, Any] = MappingProxyType({})


class SiteReporter:
    """Leaves the reports of one home. `facts`: the settings of the cluster (raises SlurmError); `tell` logs."""

    def __init__(
        self, facts: Callable[[], ClusterFacts], now_s: Callable[[], float], tell: Callable[..., None]
    ) -> None:
        self._facts, self._now_s, self._tell = facts, now_s, tell
        self._waiting: list[tuple[str, DrainRequest]] = []
        self._again_s = 0.0

    def report(
        self, run: Run, entries: Sequence[NodeEntry], machines: Mapping[str, Mapping[str, str]] = NOTHING
    ) -> None:
        """Leave a report of each incident in these entries that is held against a node. Never raises.

        `machines`: node -> what is known of the machine that bears its name.
        """
        path, now_s = str(run.settings.get(SETTING, "")), self._now_s()
        if path:
            found = [(path, one) for entry in entries for one in reports_of(run, entry, machines)]
            self._waiting += [one for one in found if now_s - one[1].seen_s < LATEST_S]
            if found:
                self._again_s = 0.0
        if not self._waiting or now_s < self._again_s:
            return
        self._again_s = now_s + AGAIN_S
        waiting, self._waiting = self._waiting[-WAITING_MAX:], []
        for number, (folder, request) in enumerate(waiting):
            try:
                self._leave(folder, request)
            except (SlurmError, OSError) as error:
                why = error.message if isinstance(error, SlurmError) else f"{folder}: {error.strerror}"
                self._tell("site.not-told", run=request.run, node=request.node, why=why)
                self._waiting = [one for one in waiting[number:] if now_s - one[1].seen_s < LATEST_S]
                return

    def _leave(self, folder: str, request: DrainRequest) -> None:
        from ftrun.slurm.records import replace

        facts = self._facts()
        spool.leave_request(folder, replace(request, cluster=facts.name), facts.auth, facts.munge_socket)


def reports_of(
    run: Run, entry: NodeEntry, machines: Mapping[str, Mapping[str, str]] = NOTHING
) -> Iterator[DrainRequest]:
    """A report for each node that this incident is held against."""
    if entry.what != "incident" or entry.detail.get("strike") is not True or len(entry.nodes) > NODES_MAX:
        return
    incident = next((one for one in run.incidents if one.id == entry.detail["incident"]), None)
    attempt = next((one for one in run.attempts if incident and one.number == incident.attempt), None)
    if incident is None or attempt is None:
        return
    end, launch = attempt.launch.end, attempt.launch
    over_s = (end.slurm_at_s or end.at_s) if launch.number == incident.launch else None
    seen_s = min(incident.diagnosed_at_s, over_s or incident.diagnosed_at_s)
    began_s = launch.started_at_s if launch.number == incident.launch else None
    for node in entry.nodes:
        yield DrainRequest(
            id=hashlib.sha256(f"{entry.id}:{node}".encode()).hexdigest()[:32],
            cluster="",
            node=node,
            job=re.split(r"[_+]", attempt.holder(node))[0],
            run=run.id,
            fault=entry.fault,
            signature=re.sub(r"[^\w.-]", "-", entry.signature or entry.fault, flags=re.ASCII)[:64],
            seen_s=seen_s,
            want="report",
            digest=hashlib.sha256(str(entry.detail.get("evidence", "")).encode()).hexdigest(),
            confidence=min(1.0, max(0.0, float(incident.diagnosis.get("confidence", 0.0)))),
            machine=digests(machines.get(node, NOTHING)),
            ran_s=max(0.0, seen_s - began_s) if began_s else 0.0,
        )
