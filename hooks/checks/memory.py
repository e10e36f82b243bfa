"""The checks of memory: its size, its use, and the errors that hardware counts in it. (I/O)"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from ftrun.hooks.checks import kernel_log_reader
from ftrun.hooks.runtime.finding import Finding, Thresholds, bad, degraded, note, ok, skipped, unknown
from ftrun.hooks.runtime.host import Machine

GIB_IN_KIB = 1024**2


def probe_meminfo(machine: Machine, _thresholds: Thresholds) -> Optional[str]:
    """/proc/meminfo."""
    return machine.peek("/proc/meminfo")


# --- memory


def judge_memory(meminfo: Optional[str], thresholds: Thresholds) -> Sequence[Finding]:
    """Bad for much too little memory, degraded for too little."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", meminfo or "", re.MULTILINE)
    if found is None:
        return [unknown("/proc/meminfo does not tell MemTotal")]
    total = int(found[1]) / GIB_IN_KIB
    expected = float(thresholds["expected_gb"])
    told = f"{total:.1f} GiB"
    if expected:
        told += f" of {expected:.1f} GiB expected"
        for grade, percent in ((bad, thresholds["bad_percent"]), (degraded, thresholds["percent"])):
            if total < expected * percent / 100:
                return [grade(told, "memory", round(total, 2), "GiB", evidence=(found[0],))]
    return [ok(told, value=round(total, 2), unit="GiB")]


# --- swap


def judge_swap(meminfo: Optional[str], thresholds: Thresholds) -> Sequence[Finding]:
    """Degraded for much swap in use, or any swap space where there must be none."""
    sizes = dict(re.findall(r"^(Swap\w+):\s+(\d+) kB", meminfo or "", re.MULTILINE))
    if not {"SwapTotal", "SwapFree"} <= sizes.keys():
        return [unknown("/proc/meminfo does not tell of swap")]
    total = int(sizes["SwapTotal"]) / GIB_IN_KIB
    used = total - int(sizes["SwapFree"]) / GIB_IN_KIB
    told = f"{used:.1f} of {total:.1f} GiB of swap in use" if total else "no swap space"
    if total and not thresholds["allowed"]:
        message = f"{total:.1f} GiB of swap space where there must be none"
        return [degraded(message, "swap", round(total, 2), "GiB", fault="config")]
    if used > thresholds["used_gb"] and used > total * thresholds["used_percent"] / 100:
        return [degraded(told, "swap", round(used, 2), "GiB")]
    return [ok(told, value=round(used, 2), unit="GiB")]


# --- hugepages


class HugepagesFacts(NamedTuple):
    """/proc/meminfo and the setting of transparent huge pages, "" where they are not there."""

    meminfo: str
    transparent: str


def probe_hugepages(machine: Machine, _thresholds: Thresholds) -> HugepagesFacts:
    """Read both."""
    setting = machine.peek("/sys/kernel/mm/transparent_hugepage/enabled")
    return HugepagesFacts(machine.peek("/proc/meminfo") or "", setting or "")


def judge_hugepages(facts: HugepagesFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Degraded where a setting is not the site's."""
    numbers = {
        name: int(count) for name, count in re.findall(r"^(Huge\w+):\s+(\d+)", facts.meminfo, re.MULTILINE)
    }
    if "HugePages_Total" not in numbers:
        return [unknown("/proc/meminfo does not tell of huge pages")]
    total, free = numbers["HugePages_Total"], numbers.get("HugePages_Free", 0)
    chosen = re.search(r"\[(\w+)\]", facts.transparent)
    transparent = chosen[1] if chosen else "absent"
    found = []
    if thresholds["expected"] is not None and total != thresholds["expected"]:
        message = f"{total} huge pages are reserved, {thresholds['expected']} are expected"
        found.append(degraded(message, "hugepages", total, "pages"))
    if thresholds["transparent"] not in ("", transparent):
        message = f"transparent huge pages: {transparent}, expected {thresholds['transparent']}"
        found.append(degraded(message, "transparent"))
    told = (
        f"{total} reserved, {free} free, of {numbers.get('Hugepagesize', 0)} kB; transparent: {transparent}"
    )
    return found or [ok(told, value=total, unit="pages")]


# --- edac

EDAC = "/sys/devices/system/edac/mc"


class Controller(NamedTuple):
    """One memory controller: uncorrected and corrected errors, seconds that they were counted, and both by module's label."""

    name: str
    uncorrected: int
    corrected: int
    counted_s: float
    modules: Mapping[str, tuple[int, int]]


def probe_edac(machine: Machine, _thresholds: Thresholds) -> tuple[Controller, ...]:
    """All controllers; one whose counters cannot be read is left out."""
    found = (_controller(machine, name) for name in machine.names(EDAC) if name.startswith("mc"))
    return tuple(one for one in found if one is not None)


def _controller(machine: Machine, name: str) -> Optional[Controller]:
    folder = f"{EDAC}/{name}"
    uncorrected, corrected = machine.number(f"{folder}/ue_count"), machine.number(f"{folder}/ce_count")
    if uncorrected is None or corrected is None:
        return None
    modules = {}
    for module in machine.names(folder):
        if module.startswith(("dimm", "rank")):
            label = (machine.peek(f"{folder}/{module}/dimm_label") or "").strip() or f"{name}/{module}"
            lost = machine.number(f"{folder}/{module}/dimm_ue_count") or 0
            modules[label] = (lost, machine.number(f"{folder}/{module}/dimm_ce_count") or 0)
    return Controller(
        name, uncorrected, corrected, machine.number(f"{folder}/seconds_since_reset") or 0, modules
    )


def judge_edac(controllers: Sequence[Controller], thresholds: Thresholds) -> Sequence[Finding]:
    """Bad for uncorrected errors, degraded for many corrected ones, a note for a few."""
    if not controllers:
        return [skipped("no memory controller tells of errors here")]
    found = [one for controller in controllers for one in _edac_faults(controller, thresholds)]
    return found or [ok(f"{len(controllers)} memory controller(s) without errors")]


def _edac_faults(one: Controller, thresholds: Thresholds) -> list[Finding]:
    place, evidence = _module(one)
    found = []
    if one.uncorrected > thresholds["uncorrected"]:
        message = f"{one.uncorrected} uncorrected memory error(s) at {place} since boot"
        found.append(bad(message, place, one.uncorrected, "errors", evidence=evidence))
    # Within the first hour a rate would be a guess from few minutes.
    rate = one.corrected / max(one.counted_s / 3600, 1.0)
    if rate > thresholds["corrected_per_hour"] and one.corrected > thresholds["corrected"]:
        message = f"{one.corrected} corrected memory errors at {place}, {rate:.0f} an hour"
        found.append(degraded(message, place, round(rate, 1), "errors/h", evidence=evidence))
    if one.corrected and not found:
        message = f"{one.corrected} corrected memory error(s) at {place}"
        found.append(note(message, place, one.corrected, "errors", evidence=evidence))
    return found


def _module(one: Controller) -> tuple[str, tuple[str, ...]]:
    """The module with most errors, and the counters of all that have some."""
    ill = {label: counts for label, counts in one.modules.items() if any(counts)}
    evidence = tuple(
        f"{label}: {lost} uncorrected, {mended} corrected" for label, (lost, mended) in ill.items()
    )
    return max(ill, key=lambda label: ill[label], default=one.name), evidence[:8]


# --- mce

MCE_UNCORRECTED = 1 << 61
EVIDENCE_LINES = 5
MCE_BANK = re.compile(r"CPU (\d+): Machine Check(?: Exception)?: \w+ Bank (\d+): ([0-9a-f]{16})")


class MceFacts(NamedTuple):
    """/proc/interrupts ("" where it is not there) and the kernel's log."""

    interrupts: str
    log: kernel_log_reader.Log


def probe_mce(machine: Machine, _thresholds: Thresholds) -> MceFacts:
    """Read both."""
    return MceFacts(machine.peek("/proc/interrupts") or "", kernel_log_reader.read(machine))


def judge_mce(facts: MceFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Bad for an uncorrected machine check since boot, a note for corrected ones."""
    counted = re.search(r"^\s*MCE:((?:\s+\d+)+)", facts.interrupts, re.MULTILINE)
    if counted is None and facts.log.why_not:
        return [skipped("neither interrupts nor the kernel's log tell of machine checks here")]
    # An exception is broadcast to all processors on many machines: the largest count is the number of events.
    events = max((int(word) for word in counted[1].split()), default=0) if counted else 0
    banks = [
        (found, line.text) for line in facts.log.lines for found in [MCE_BANK.search(line.text)] if found
    ]
    fatal = [(found, text) for found, text in banks if int(found[3], 16) & MCE_UNCORRECTED]
    number = max(events, len(fatal))
    if number > thresholds["exceptions"]:
        device = f"CPU {fatal[0][0][1]} bank {fatal[0][0][2]}" if fatal else "CPU"
        evidence = tuple(text for _, text in fatal[:EVIDENCE_LINES]) or (f"MCE: {events}",)
        message = f"{number} uncorrected machine check(s) since boot"
        return [bad(message, device, number, "events", evidence=evidence)]
    if banks:
        evidence = tuple(text for _, text in banks[:EVIDENCE_LINES])
        message = f"{len(banks)} corrected machine check(s) in the kernel's log"
        return [note(message, value=len(banks), unit="events", evidence=evidence)]
    return [ok("no machine check since boot", value=0, unit="events")]


FUNCTIONS = {
    "memory": (probe_meminfo, judge_memory),
    "swap": (probe_meminfo, judge_swap),
    "hugepages": (probe_hugepages, judge_hugepages),
    "edac": (probe_edac, judge_edac),
    "mce": (probe_mce, judge_mce),
}
