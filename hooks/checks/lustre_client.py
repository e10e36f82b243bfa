"""`lustre-client`: the Lustre client of this node is healthy and connected. (I/O)

How it thinks. The client says of itself whether it is healthy (`health_check`), and every target of a server has an import with a state.
FULL is connected, IDLE is at rest. LBUG, or a client that calls itself unhealthy, is bad; an import that is not connected is
degraded, since the server may be the one that is away, and then all nodes say so. Evictions are counted where the history of an import's
states has them: one within `recent_s` is degraded, older ones are a note.

Thresholds: `recent_s` 3600.

Files: /sys/fs/lustre/health_check ("healthy", "NOT HEALTHY", "LBUG"), and `import` and `state` of mdc, osc and mgc devices in /proc/fs/lustre,
/sys/kernel/debug/lustre (root) or from `lctl get_param`, as in the Lustre manual; `state` lists pairs of epoch seconds and state.

Checked against: trees and texts built after the Lustre manual; no Lustre was at hand.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks.findings import BAD, DEGRADED, NOTE, OK, SKIPPED, UNKNOWN, Check, Finding
from ftrun.hooks.machine import Machine, NoAnswer

__all__ = ["CHECK", "Facts", "judge"]

NAME = "lustre-client"
FOLDERS = ("/proc/fs/lustre", "/sys/kernel/debug/lustre")
WELL = {"FULL", "IDLE", "NEW"}


class Facts(NamedTuple):
    """The client's own word, the state texts by device, and the time in epoch seconds."""

    health: str
    states: Mapping[str, str]
    now_s: float


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> Facts:
    """Read what the client tells; ask lctl where the files are not readable."""
    health = machine.peek("/sys/fs/lustre/health_check") or machine.peek("/proc/fs/lustre/health_check") or ""
    states = {}
    for folder in FOLDERS:
        for kind in ("mdc", "osc", "mgc"):
            for device in machine.names(f"{folder}/{kind}"):
                text = machine.peek(f"{folder}/{kind}/{device}/state")
                if text:
                    states[device] = text
    if not states and machine.tool("lctl"):
        states = _asked(machine)
    return Facts(health, states, time.time())


def _asked(machine: Machine) -> dict[str, str]:
    try:
        told = machine.run(["lctl", "get_param", "mdc.*.state", "osc.*.state", "mgc.*.state"], 5.0).out
    except NoAnswer:
        return {}
    parts = re.split(r"^(?:mdc|osc|mgc)\.(\S+)\.state=", told, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def judge(facts: Facts, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad for an unhealthy client, degraded for targets that are not connected or were lost lately."""
    if not facts.health and not facts.states:
        return [Finding(NAME, SKIPPED, "no Lustre client runs here")]
    found = []
    word = facts.health.strip()
    if "LBUG" in word or "NOT HEALTHY" in word:
        line = " ".join(word.split())[:200]
        found.append(Finding(NAME, BAD, f"the Lustre client says {line}", "storage", "lustre", (line,)))
    for device, text in facts.states.items():
        found += _device(device, text, facts.now_s, thresholds["recent_s"])
    if found:
        return found
    if word and word != "healthy":
        return [Finding(NAME, UNKNOWN, f"the Lustre client says {word[:100]}")]
    return [Finding(NAME, OK, f"healthy, {len(facts.states)} target(s) connected")]


def _device(device: str, text: str, now_s: float, recent_s: float) -> list[Finding]:
    current = re.search(r"current_state:\s*(\w+)", text)
    evicted = [int(stamp) for stamp in re.findall(r"\[\s*(\d+),\s*EVICTED\s*\]", text)]
    if current and current[1] not in WELL:
        message = f"{device} is not connected: {current[1]}"
        return [Finding(NAME, DEGRADED, message, "storage", device, (current[0],))]
    recent = [stamp for stamp in evicted if now_s - stamp < recent_s]
    if recent:
        message = f"{device} was evicted {(now_s - max(recent)) / 60:.0f} min ago"
        line = f"{max(recent)} EVICTED"
        return [Finding(NAME, DEGRADED, message, "storage", device, (line,), len(recent), "evictions")]
    if evicted:
        return [
            Finding(
                NAME, NOTE, f"{device} was evicted {len(evicted)} time(s)", device=device, value=len(evicted)
            )
        ]
    return []


CHECK = Check(
    name=NAME,
    title="The Lustre client is healthy and connected",
    tier="fast",
    fault="storage",
    needs=(),
    limit_s=7.0,
    thresholds={"recent_s": 3600},
    probe=probe,
    judge=judge,
)
