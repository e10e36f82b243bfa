"""`ib-errors`: the error counters of the RDMA ports do not grow. (I/O)

How it thinks. Errors of the link itself (symbols, integrity, recoveries) come from cable, transceiver or port, and are this node's or its
switch port's. Lost, repeated and late packets of RoCE come as well from a crowded network, so they need a greater number, and
count as congestion. Counters that do not grow are history, and a note when they are great.

Thresholds: `before`, an earlier reading, or {} for two readings `window_s` (1) apart; `growth`: counter -> growth from which it is
degraded; `total` (10,000): a count of a link's errors since its counters were cleared that is worth a note; `ports` ([]: all).

Checked against: the kernel's ABI page for counters/, the mlx5 page of hw_counters/ and a tree of a public H100 node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks import growth, infiniband
from ftrun.hooks.findings import DEGRADED, NOTE, OK, SKIPPED, Check, Finding
from ftrun.hooks.growth import Growth
from ftrun.hooks.machine import Machine

__all__ = ["CHECK", "judge"]

NAME = "ib-errors"
FAULT = "network"

LINK = {
    "symbol_error": 10,
    "port_rcv_errors": 10,
    "local_link_integrity_errors": 1,
    "link_error_recovery": 1,
    "excessive_buffer_overrun_errors": 1,
    "port_rcv_remote_physical_errors": 100,
}
PACKETS = {
    "out_of_sequence": 10_000,
    "packet_seq_err": 1_000,
    "local_ack_timeout_err": 10,
    "rnr_nak_retry_err": 100,
    "roce_adp_retrans_to": 10,
    "rx_icrc_encapsulated": 10,
    "port_xmit_discards": 10_000,
}


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> Growth:
    """Two readings."""
    return growth.over_time(lambda: infiniband.counters(machine, [*LINK, *PACKETS]), thresholds)


def judge(facts: Growth, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Degraded when a counter grows faster than its limit."""
    only = list(thresholds["ports"])
    ports = [
        name for name in sorted(facts.after) if not only or name in only or name.partition("/")[0] in only
    ]
    if not ports:
        return [Finding(NAME, SKIPPED, "no RDMA port with counters here")]
    told = [one for port in ports for one in _looked(port, facts, thresholds)]
    return told or [Finding(NAME, OK, f"no counter of {len(ports)} port(s) grows")]


def _looked(port: str, facts: Growth, thresholds: Mapping[str, Any]) -> list[Finding]:
    limits = {**LINK, **PACKETS, **thresholds["growth"]}
    more = growth.grown(facts, port)
    span = f" in {facts.seconds:.0f} s" if facts.seconds else ""
    told = tuple(f"{name} +{count}{span}, {facts.after[port][name]} in all" for name, count in more.items())
    over = [name for name, count in more.items() if count >= limits.get(name, 1)]
    if over:
        count = more[over[0]]
        message = f"{', '.join(over)}: {count} more{span}"
        return [Finding(NAME, DEGRADED, message, FAULT, port, told, float(count), "errors")]
    if told:
        return [Finding(NAME, NOTE, f"{', '.join(more)} grow slowly", "", port, told)]
    great = [name for name in LINK if facts.after[port].get(name, 0) >= thresholds["total"]]
    if great:
        lines = tuple(f"{name} {facts.after[port][name]}" for name in great)
        return [
            Finding(NAME, NOTE, f"{', '.join(great)}: great numbers, and none of them new", "", port, lines)
        ]
    return []


CHECK = Check(
    name=NAME,
    title="The error counters of the RDMA ports do not grow",
    tier="fast",
    fault=FAULT,
    needs=(infiniband.FOLDER,),
    limit_s=9.0,
    thresholds={"before": {}, "window_s": 1.0, "growth": {}, "total": 10_000, "ports": ()},
    probe=probe,
    judge=judge,
)
