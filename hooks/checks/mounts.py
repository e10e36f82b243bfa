"""The checks of what is mounted, and of the Lustre client. (I/O)"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ftrun.hooks.runtime.finding import Finding, Thresholds, bad, degraded, note, ok, skipped, unknown
from ftrun.hooks.runtime.host import Machine, NoAnswer
from ftrun.hooks.runtime.mounts import (
    Mount,
    Touch,
    ask_paths,
    is_network,
    mount_of,
    mounted,
    parse_mounts,
    paths_to_check,
)

# --- mounts

DEAD_ERRORS = {
    errno.EIO, errno.ENOTCONN, errno.ESHUTDOWN, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ETIMEDOUT, errno.ENODEV,
    errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.ENXIO, errno.EREMOTEIO, errno.EUCLEAN,
}  # fmt: skip


def probe_mounts(machine: Machine, thresholds: Thresholds) -> dict[str, Touch]:
    """What came of asking each mount for its size."""

    def question(path: str) -> str:
        os.statvfs(machine.path(path))
        return ""

    return ask_paths(machine, paths_to_check(machine, thresholds), question, thresholds["deadline_s"])


def judge_mounts(touches: Mapping[str, Touch], thresholds: Thresholds) -> Sequence[Finding]:
    """Bad for what hangs or is dead, degraded for what is slow, a note for a path that is not there."""
    if not touches:
        return [skipped("no network file system is mounted")]
    found = [one for path, touch in touches.items() for one in _mounts_faults(path, touch, thresholds)]
    if found:
        return found
    slowest = max(touches, key=lambda path: touches[path].took_s)
    took = touches[slowest].took_s
    told = f"{len(touches)} mount(s) answer, the slowest ({slowest}) in {took * 1000:.0f} ms"
    return [ok(told, value=round(took, 4), unit="s")]


def _mounts_faults(path: str, touch: Touch, thresholds: Thresholds) -> list[Finding]:
    if touch.hung:
        return [bad(f"{path} hangs: no answer within {touch.took_s:g} s", path, touch.took_s, "s")]
    if touch.errno in DEAD_ERRORS:
        return [bad(f"{path} is dead: {touch.word}", path, evidence=(touch.word,))]
    if touch.errno == errno.ENOENT:
        return [note(f"{path} is not there", path)]
    if touch.took_s > thresholds["slow_s"]:
        message = f"{path} is slow: it answered in {touch.took_s:.1f} s"
        return [degraded(message, path, round(touch.took_s, 3), "s")]
    return []


# --- mount-present


class PresentFacts(NamedTuple):
    """What is mounted, and the text of /etc/fstab ("" where there is none)."""

    mounts: tuple[Mount, ...]
    fstab: str


def probe_present(machine: Machine, thresholds: Thresholds) -> PresentFacts:
    """The tables; no mount is touched."""
    return PresentFacts(mounted(machine), (machine.read("/etc/fstab") or "") if thresholds["fstab"] else "")


def judge_present(facts: PresentFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Bad for each mount point that is expected and not in the table."""
    expected = dict.fromkeys(thresholds["expected"], "the site expects it")
    for one in _fstab_mounts(facts.fstab):
        expected.setdefault(one.target, "/etc/fstab has it")
    if not expected:
        return [skipped("no mount is expected")]
    there = {one.target.rstrip("/") or "/" for one in facts.mounts}
    # An automount stands for what lies below it.
    lazy = tuple(one.target.rstrip("/") + "/" for one in facts.mounts if one.kind == "autofs")
    missing = [path for path in expected if path.rstrip("/") not in there and not path.startswith(lazy)]
    missing = [path for path in missing if path != "/"]
    if not missing:
        return [ok(f"{len(expected)} expected mount(s) are mounted", value=len(expected))]
    return [bad(f"{path} is not mounted: {expected[path]}", path) for path in missing]


def _fstab_mounts(fstab: str) -> list[Mount]:
    lines = [" ".join(line.split()) for line in fstab.splitlines() if not line.lstrip().startswith("#")]
    return [
        one
        for one in parse_mounts("\n".join(lines))
        if is_network(one) and not {"noauto", "nofail"} & set(one.options)
    ]


# --- mount-readonly

SHUT = {"shutdown", "emergency_ro"}


def probe_readonly(machine: Machine, _thresholds: Thresholds) -> tuple[Mount, ...]:
    """The table of mounts."""
    return mounted(machine)


def judge_readonly(mounts: Sequence[Mount], thresholds: Thresholds) -> Sequence[Finding]:
    """Bad for each mount that is read-only after an error or under a path that must be written."""
    found = {}
    for one in mounts:
        options = set(one.options)
        if SHUT & options or ("ro" in options and "errors=remount-ro" in options):
            found[one.target] = _readonly(
                one, f"{one.target} was made read-only by the kernel after an error"
            )
    for path in thresholds["writable"]:
        under = mount_of(mounts, path)
        if under is not None and "ro" in under.options and under.target not in found:
            message = f"{path} must be writable, and {under.target} is mounted read-only"
            found[under.target] = _readonly(under, message)
    return list(found.values()) or [ok("no file system has turned read-only")]


def _readonly(mount: Mount, message: str) -> Finding:
    line = f"{mount.source} {mount.target} {mount.kind} {','.join(mount.options)}"
    return bad(message, mount.target, evidence=(line,))


# --- stale-handle


def probe_stale(machine: Machine, thresholds: Thresholds) -> dict[str, Touch]:
    """What came of opening each path."""

    def question(path: str) -> str:
        whole = machine.path(path)
        if not os.path.isdir(whole):
            os.stat(whole)
            return ""
        with os.scandir(whole) as entries:
            next(entries, None)
        return ""

    return ask_paths(machine, paths_to_check(machine, thresholds), question, thresholds["deadline_s"])


def judge_stale(touches: Mapping[str, Touch], _thresholds: Thresholds) -> Sequence[Finding]:
    """Bad for each stale path."""
    if not touches:
        return [skipped("no network file system is mounted")]
    stale = [path for path, touch in touches.items() if touch.errno == errno.ESTALE]
    if stale:
        word = touches[stale[0]].word
        return [bad(f"{path} is a stale handle on this node", path, evidence=(word,)) for path in stale]
    hung = [path for path, touch in touches.items() if touch.hung]
    if len(hung) == len(touches):
        return [unknown(f"{hung[0]} did not answer", hung[0])]
    return [ok(f"none of {len(touches)} path(s) is stale")]


# --- lustre-client

LUSTRE_FOLDERS = ("/proc/fs/lustre", "/sys/kernel/debug/lustre")
LUSTRE_WELL = {"FULL", "IDLE", "NEW"}


class LustreFacts(NamedTuple):
    """The client's own word, the state texts by device, and the time in epoch seconds."""

    health: str
    states: Mapping[str, str]
    now_s: float


def probe_lustre(machine: Machine, _thresholds: Thresholds) -> LustreFacts:
    """Read what the client tells; ask lctl where the files are not readable."""
    health = machine.peek("/sys/fs/lustre/health_check") or machine.peek("/proc/fs/lustre/health_check") or ""
    states = {}
    for folder in LUSTRE_FOLDERS:
        for kind in ("mdc", "osc", "mgc"):
            for device in machine.names(f"{folder}/{kind}"):
                text = machine.peek(f"{folder}/{kind}/{device}/state")
                if text:
                    states[device] = text
    if not states and machine.tool("lctl"):
        states = _lctl_states(machine)
    return LustreFacts(health, states, time.time())


def _lctl_states(machine: Machine) -> dict[str, str]:
    try:
        told = machine.run(["lctl", "get_param", "mdc.*.state", "osc.*.state", "mgc.*.state"], 5.0).out
    except NoAnswer:
        return {}
    parts = re.split(r"^(?:mdc|osc|mgc)\.(\S+)\.state=", told, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def judge_lustre(facts: LustreFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Bad for an unhealthy client, degraded for targets that are not connected or were lost lately."""
    if not facts.health and not facts.states:
        return [skipped("no Lustre client runs here")]
    found = []
    word = facts.health.strip()
    if "LBUG" in word or "NOT HEALTHY" in word:
        line = " ".join(word.split())[:200]
        found.append(bad(f"the Lustre client says {line}", "lustre", evidence=(line,)))
    for device, text in facts.states.items():
        found += _target_faults(device, text, facts.now_s, thresholds["recent_s"])
    if found:
        return found
    if word and word != "healthy":
        return [unknown(f"the Lustre client says {word[:100]}")]
    return [ok(f"healthy, {len(facts.states)} target(s) connected")]


def _target_faults(device: str, text: str, now_s: float, recent_s: float) -> list[Finding]:
    current = re.search(r"current_state:\s*(\w+)", text)
    evicted = [int(stamp) for stamp in re.findall(r"\[\s*(\d+),\s*EVICTED\s*\]", text)]
    if current and current[1] not in LUSTRE_WELL:
        return [degraded(f"{device} is not connected: {current[1]}", device, evidence=(current[0],))]
    recent = [stamp for stamp in evicted if now_s - stamp < recent_s]
    if recent:
        message = f"{device} was evicted {(now_s - max(recent)) / 60:.0f} min ago"
        return [degraded(message, device, len(recent), "evictions", evidence=(f"{max(recent)} EVICTED",))]
    if evicted:
        return [note(f"{device} was evicted {len(evicted)} time(s)", device, len(evicted))]
    return []


FUNCTIONS = {
    "mounts": (probe_mounts, judge_mounts),
    "mount-present": (probe_present, judge_present),
    "mount-readonly": (probe_readonly, judge_readonly),
    "stale-handle": (probe_stale, judge_stale),
    "lustre-client": (probe_lustre, judge_lustre),
}
