"""Nodes as facts for people and programs: what `ftrun nodes` and its sub-commands print. (I/O)

Each function takes records of the ledger and rows of Slurm and returns plain values (the `--json` form).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftrun.slurm import records
from ftrun.slurm.client.cluster import NodeRow
from ftrun.supervisor.model.node_entry import NodeEntry
from ftrun.supervisor.nodes.history import NodeHistory, NodeRecord, strike_key
from ftrun.supervisor.nodes.lemon_score import WINDOW_S, Score, score
from ftrun.supervisor.nodes.machines import reason_of_others

UNKNOWN = ""


def slurm_state(row: NodeRow | None) -> str:
    """The state with its flags, as sinfo has it: `idle+drain`; "" if Slurm does not show the node."""
    return UNKNOWN if row is None else "+".join([row.state, *sorted(row.flags)])


def node_row(record: NodeRecord, row: NodeRow | None, now_s: float) -> dict[str, Any]:
    """The facts of one row of the table."""
    until_s = record.quarantined_until_s
    last = record.last_fault
    found = score(record, now_s)
    return {
        "node": record.node,
        "slurm": slurm_state(row),
        "reason": row.reason if row is not None else "",
        "reason_of_others": reason_of_others(row.reason) if row is not None else "",
        "strikes": len(record.strikes),
        "last_fault": (last.signature or last.fault) if last else "",
        "last_fault_at": last.at_s if last else None,
        "quarantined": until_s > now_s,
        "quarantined_until": until_s if until_s > now_s else None,
        "why": record.why if until_s > now_s else "",
        "association": association_facts(record),
        "score": found.score,
        "lemon": found.lemon,
    }


def association_facts(record: NodeRecord) -> dict[str, Any] | None:
    """How failures for no known cause go with the node; None where too few are known to tell."""
    found = record.association
    if found is None:
        return None
    return {
        "failed": found.failed,
        "starts": found.starts,
        "failed_elsewhere": found.failed_elsewhere,
        "starts_elsewhere": found.starts_elsewhere,
        "chance": found.chance,
        "nodes_tested": found.tested,
        "chance_corrected": found.corrected,
        "suspect": found.suspect,
        "excluded": found.excluded,
        "runs": list(found.runs),
        "sentence": found.sentence,
    }


def node_facts(record: NodeRecord, row: NodeRow | None, now_s: float) -> dict[str, Any]:
    """Everything about one node."""
    return node_row(record, row, now_s) | {
        "open_strikes": [
            records.columns(strike, "at=at_s until=until_s run class=fault signature device serial")
            for strike in record.strikes
        ],
        "strikes_taken_back": record.faded,
        "lies": record.lies,
        "machine": dict(record.machine),
        "machine_replaced_at": list(record.replaced),
        "served_hours": round(record.served_h, 2),
        "devices": [
            records.columns(device, "device serial strikes incidents replaced") for device in record.devices
        ],
        "signals": score_facts(score(record, now_s))["signals"],
        "history": [
            entry_facts(entry, shared=strike_key(entry) in record.common) for entry in record.history
        ],
    }


def entry_facts(entry: NodeEntry, *, shared: bool) -> dict[str, Any]:
    """One entry of the ledger. `shared`: it is not counted as a fault of the node."""
    facts = records.columns(entry, "at=at_s what run class=fault signature device serial detail")
    return facts | {"common": shared}


def score_facts(found: Score) -> dict[str, Any]:
    """The score of one node with its signals."""
    facts = records.columns(found, "node score lemon runs")
    return facts | {"signals": dict(found.signals) | {"single_node_share": found.share}}


def correlated_facts(book: NodeHistory, now_s: float) -> list[dict[str, Any]]:
    """Faults that several nodes had together in the last weeks, newest last."""
    return [
        records.columns(cause, "at=at_s fault=like where nodes sentence")
        for cause in book.common
        if cause.until_s >= now_s - WINDOW_S
    ]


def names_to_show(book: NodeHistory, rows: Mapping[str, NodeRow], *, every: bool) -> list[str]:
    """The nodes of the table: those with a history, those that ftrun drained or another service has taken, or all."""
    told = {
        name
        for name, record in book.nodes.items()
        if record.history or every or (record.association is not None and record.association.suspect)
    }
    drained = {
        name
        for name, row in rows.items()
        if row.reason.startswith("ftrun:") or reason_of_others(row.reason) or every
    }
    return sorted(told | drained)
