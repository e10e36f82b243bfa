"""Whether a request to drain is granted: rules over what was found out, never over what is claimed. (pure)

How it thinks. In this order, because the first questions cost little and the last ones a visit to the node:
1. Is the credential authentic, of this hour, not used before (`refused_credential`)?
2. Did the signer have a job on that node at that time, as Slurm tells it (`refused_stay`)?
3. Would the drain stay under the caps: share of each partition, drains an hour (`refused_cap`)?
4. Is the node sick? The checks that the operator itself sends there must find something bad of a class that a drain mends, that its
   peers do not show as well; or neither SSH nor Slurm reaches it, and it is not switched off or rebooted (`confirmed`). A node that the checks find healthy is never drained.

Every refusal is a sentence for the user who asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ftrun.slurm.client.cluster import NodeRow, PartitionRow, Stay
from ftrun.slurm.records import dataclass
from ftrun.supervisor.grounds import CLASS_RULES
from ftrun.supervisor.recheck import PREFIX, Report
from ftrun.supervisor.request import Request

__all__ = ["Limits", "confirmed", "controls", "refused_cap", "refused_credential", "refused_stay"]

HOUR_S = 3600.0
CONTROLS = 2
AWAY = frozenset({"unreachable", "timeout"})
# Out of reach because somebody, or Slurm's power saving, wants it so.
ON_PURPOSE = frozenset(
    {
        "maint", "power_down", "powered_down", "power_up", "powering_down", "powering_up",
        "reboot_issued", "reboot_requested",
    }
)  # fmt: skip
DRAINABLE = frozenset(fault.value for fault, rule in CLASS_RULES.items() if rule.drain)


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers. `share` of a partition may bear ftrun's drains (one node always may); `age_s` is how old a request may be,
    `slack_s` how far clocks and records may lie apart."""

    share: float = 0.05
    per_hour: int = 4
    per_user: int = 10
    age_s: float = 3600.0
    slack_s: float = 600.0


def refused_credential(encoded_s: float, now_s: float, limits: Limits, *, expired: bool, used: bool) -> str:
    """Why the credential does not count; "" where it does."""
    if used:
        return "the request was opened before: it counts once"
    if expired or now_s - encoded_s > limits.age_s:
        return f"the request is older than {limits.age_s / 60:.0f} minutes: the operator was away"
    if encoded_s - now_s > limits.slack_s:
        return "the request comes from the future: a clock is wrong"
    return ""


def refused_stay(request: Request, uid: int, stays: Iterable[Stay], now_s: float, limits: Limits) -> str:
    """Why the signer has no say about the node; "" where Slurm shows their job there at the time of the fault."""
    if now_s - request.seen_s > 2 * limits.age_s:
        return "the fault is too long ago"
    mine = [stay for stay in stays if stay.uid == uid]
    if not mine:
        return f"Slurm knows no job {request.job} of yours (any more)"
    there = [stay for stay in mine if request.node in stay.nodes]
    if not there:
        return f"job {request.job} was not on {request.node}"
    for stay in there:
        end_s = now_s if stay.end_s is None else stay.end_s
        if stay.start_s - limits.slack_s <= request.seen_s <= end_s + limits.slack_s:
            return ""
    return f"job {request.job} was not on {request.node} at that time"


def refused_cap(
    node: str,
    rows: Mapping[str, NodeRow],
    partitions: Iterable[PartitionRow],
    *,
    drained_s: Iterable[float],
    now_s: float,
    limits: Limits,
) -> str:
    """Why no further node may be drained now; "" where one may. `drained_s`: when the operator drained before."""
    if sum(now_s - at_s < HOUR_S for at_s in drained_s) >= limits.per_hour:
        return f"{limits.per_hour} nodes were drained within the last hour, which is the most"
    for partition in partitions:
        if node in partition.nodes:
            ours = sum(1 for name in partition.nodes if name in rows and rows[name].reason.startswith(PREFIX))
            cap = max(1, int(limits.share * len(partition.nodes)))
            if ours >= cap:
                return f"{ours} of {len(partition.nodes)} nodes of {partition.name} bear drains of ftrun, and {cap} may"
    return ""


def controls(
    node: str, rows: Mapping[str, NodeRow], partitions: Iterable[PartitionRow], without: Collection[str]
) -> tuple[str, ...]:
    """Peers of the node to look at beside it, idle ones first: what they show as well is no fault of the node."""
    peers = {name for partition in partitions if node in partition.nodes for name in partition.nodes} - {
        node,
        *without,
    }
    fit = [rows[name] for name in sorted(peers) if name in rows and rows[name].available]
    fit.sort(key=lambda row: row.state != "idle")
    return tuple(row.name for row in fit[:CONTROLS])


def confirmed(report: Report, row: NodeRow, peers: Collection[Report]) -> tuple[bool, str]:
    """Whether the node is sick, and what shows it or why it is not believed."""
    if report.state == "answered" and report.findings:
        bad = [f for f in report.findings if f.get("severity") == "bad"]
        seen = [peer for peer in peers if peer.state == "answered" and peer.findings]
        own = [f for f in bad if not seen or not all(_shows(peer, str(f.get("check"))) for peer in seen)]
        sick = [f for f in own if f.get("fault") in DRAINABLE]
        if sick:
            return True, f"{sick[0].get('check', '')}: {sick[0].get('message', '')}"
        if own:
            return False, f"the checks find {own[0].get('check', '')} bad, for which no node is drained"
        if bad:
            return (
                False,
                f"the checks find {bad[0].get('check', '')} bad on its peers as well: the site, not the node",
            )
        return False, "the checks find the node healthy"
    on_purpose = sorted(ON_PURPOSE & {*row.flags, row.state})
    if report.state in AWAY and on_purpose:
        return False, f"it is out of reach for a while, and meant to be ({', '.join(on_purpose)})"
    if report.state in AWAY and not row.responding:
        return True, f"neither SSH ({report.why or report.state}) nor Slurm ({row.state}) reaches it"
    if report.state in AWAY:
        return False, f"it cannot be reached by SSH ({report.why or report.state}), and Slurm hears it"
    return False, f"it could not be looked at: {report.why or report.state}"


def _shows(peer: Report, check: str) -> bool:
    return any(f.get("check") == check and f.get("severity") == "bad" for f in peer.findings)
