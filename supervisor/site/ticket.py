"""A ticket for the vendor of a node: what the machine is, what its hardware showed, and when. (pure)

It leaves the site. So it has no user, run, job, path or line of a log of theirs: only findings about hardware and
network are in it, by the class of their fault, and what the kernel or a tool wrote is cleaned of process names, paths
and known user names. Of the reports of users' runs it has the class, the signature and the time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor.nodes.machines import DECISIVE
from ftrun.supervisor.nodes.recheck_rules import CheckReport
from ftrun.supervisor.site.standing import Event, Report

HARDWARE = frozenset({"hardware-gpu", "hardware-other", "network"})
ALSO = frozenset({"versions", "gpu-driver"})  # what a vendor asks for first
TOLD = frozenset({"bad", "degraded", "note"})
EVENTS = {"out": "taken out of service", "back": "back in service", "checked": "checked", "swept": "swept while idle",
          "quarantined": "avoided for new jobs"}  # fmt: skip
LOG_DAYS = 30.0
_PROCESS = re.compile(
    r"\b(pid|tid|name|comm|task|uid|process|Comm:|PID:|UID:)(\s*[=:]?\s*)('[^']*'|\"[^\"]*\"|[^\s,;)]+)",
    re.IGNORECASE,
)
_PATH = re.compile(r"(?<![\w/])/(?!(?:dev|sys|proc)/)[^\s,;:'\")]+")
_IN_BRACKETS = re.compile(r"\b(process\s+\S+\s+)\([^)]*\)", re.IGNORECASE)  # Killed process 77 (python)
_MAIL = re.compile(r"\S+@\S+")


@dataclass(frozen=True, slots=True)
class Ticket:
    """All that is told. Times are in UTC, `findings` cleaned."""

    node: str
    machine: Mapping[str, str]
    looked: str  # when the node was visited for this, or why not
    findings: Sequence[Mapping[str, Any]]
    faults: Sequence[Mapping[str, Any]]  # class, signature, count, first, last
    events: Sequence[Mapping[str, str]]  # at, what


def clean(text: str, names: Collection[str] = ()) -> str:
    """The text without processes, paths, addresses of people, and these names of users."""
    text = _IN_BRACKETS.sub(r"\1(*)", text)
    text = _PATH.sub("<path>", _PROCESS.sub(r"\1\2*", _MAIL.sub("<address>", text)))
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "*", text)
    return text


def make_ticket(
    node: str,
    machine: Mapping[str, str],
    look: CheckReport,
    looked: str,
    *,
    reports: Iterable[Report],
    events: Iterable[Event],
    names: Collection[str],
    clock: Callable[[float], str],
) -> Ticket:
    """The ticket; `machine` and the history are those of the machine, whatever it was called."""
    faults: dict[tuple[str, str], list[float]] = {}
    for one in reports:
        faults.setdefault((one.fault, clean(one.signature, names)), []).append(one.seen_s)
    shown = {key: value for key, value in {**machine, **look.machine}.items() if key not in ("id", "boot")}
    return Ticket(
        node,
        shown,
        looked,
        [_cleaned(one, names) for one in look.findings if _belongs(one)],
        [
            {"class": fault, "signature": sign, "count": len(seen), "first": clock(min(seen)), "last": clock(max(seen))}
            for (fault, sign), seen in sorted(faults.items())
        ],
        [
            {"at": clock(one.at_s), "what": f"{EVENTS[one.what]} {one.detail.get('result', '')}".strip()}
            for one in events
            if one.what in EVENTS
        ],
    )  # fmt: skip


def _belongs(finding: Mapping[str, Any]) -> bool:
    return finding.get("severity") in TOLD | {"ok"} and (
        finding.get("fault") in HARDWARE or finding.get("check") in ALSO
    )


def _cleaned(finding: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    kept = {key: finding.get(key) for key in ("check", "severity", "fault", "device", "value", "unit")}
    lines = [clean(str(line), names) for line in finding.get("evidence") or ()]
    return {**kept, "message": clean(str(finding.get("message", "")), names), "evidence": lines}


def text_of(ticket: Ticket, cluster: str) -> str:
    """The ticket for people."""
    known = [
        f"{key}: {ticket.machine[key]}" for key in ("product", *DECISIVE, "pci") if ticket.machine.get(key)
    ]
    lines = [
        f"Node {ticket.node} of {cluster}",
        *(known or ["the machine tells neither maker nor serial number"]),
        "",
    ]
    lines += ["Faults of jobs on this machine", *(
        f"  {one['class']} {one['signature']}: {one['count']} times, {one['first']} to {one['last']}" for one in ticket.faults
    ), ""]  # fmt: skip
    lines += [f"Checks of the node: {ticket.looked}"]
    for one in sorted(ticket.findings, key=lambda f: (f["severity"] == "ok", str(f["check"]))):
        if one["severity"] == "ok":
            continue
        device = f" {one['device']}" if one["device"] else ""
        lines += [
            f"  {one['severity']} {one['check']}{device}: {one['message']}",
            *(f"      {line}" for line in one["evidence"]),
        ]
    lines += [
        f"  {sum(one['severity'] == 'ok' for one in ticket.findings)} other results about hardware and network are good",
        "",
    ]
    lines += ["History of this machine", *(f"  {one['at']} {one['what']}" for one in ticket.events), ""]
    return "\n".join(lines)
