"""The check of the processors' clock rate. (I/O)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Optional

from ftrun.hooks.runtime import state_dir
from ftrun.hooks.runtime.finding import Finding, Thresholds, degraded, note, ok, skipped
from ftrun.hooks.runtime.host import Machine
from ftrun.hooks.runtime.state_dir import Growth

FOLDER = "/sys/devices/system/cpu"
DYNAMIC_DRIVERS = ("intel_pstate", "amd-pstate-epp")
COUNTERS = ("core_throttle_count", "package_throttle_count")


class Clock(NamedTuple):
    """One processor's governor and driver, and the allowed and the possible clock in kHz (None: not told)."""

    name: str
    governor: str
    driver: str
    allowed_khz: Optional[int]
    possible_khz: Optional[int]


class FrequencyFacts(NamedTuple):
    """All clocks, throttle counts at two times, processors online and off."""

    clocks: tuple[Clock, ...]
    throttled: Growth
    online: int
    off: int
    has_smt_off: bool


def probe_frequency(machine: Machine, thresholds: Thresholds) -> FrequencyFacts:
    """Read clocks once and counts twice."""
    processors = [name for name in machine.names(FOLDER) if name[:3] == "cpu" and name[3:].isdigit()]
    clocks = tuple(one for one in (_clock(machine, name) for name in processors) if one)
    counts = {
        f"{FOLDER}/{name}/thermal_throttle/{one}": (name, one) for name in processors for one in COUNTERS
    }
    throttled = state_dir.over_time(lambda: state_dir.read_counts(machine, counts), thresholds)
    online, present = (members(machine.peek(f"{FOLDER}/{name}") or "") for name in ("online", "present"))
    smt = (machine.peek(f"{FOLDER}/smt/control") or "").strip()
    return FrequencyFacts(clocks, throttled, len(online), len(present - online), smt in ("off", "forceoff"))


def judge_frequency(facts: FrequencyFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Degraded for a wrong governor, a low limit, heat now, or processors that are missing; a note for heat
    since boot.
    """
    found = [*_governors(facts.clocks, thresholds), *_limits(facts.clocks, thresholds)]
    found += _heat(facts.throttled, thresholds)
    expected = int(thresholds["expected"])
    if expected and facts.online < expected:
        message = f"{facts.online} processors instead of {expected}"
        found.append(degraded(message, "online", facts.online, "processors"))
    elif facts.off and not facts.has_smt_off:
        found.append(note(f"{facts.off} processor(s) are switched off", "online", facts.online, "processors"))
    if found:
        return found
    if not facts.clocks and not facts.throttled.after:
        return [skipped("nothing tells of the processors' clock here")]
    governors = ", ".join(sorted({one.governor for one in facts.clocks if one.governor})) or "no governor"
    return [ok(f"{facts.online} processors, {governors}", value=facts.online, unit="processors")]


def _governors(clocks: Sequence[Clock], thresholds: Thresholds) -> list[Finding]:
    wanted = thresholds["governor"]
    saving = [one for one in clocks if one.governor == "powersave" and one.driver not in DYNAMIC_DRIVERS]
    wrong = [one for one in clocks if one.governor != wanted] if wanted else saving
    kinds = Counter(one.governor for one in clocks if one.governor)
    if wrong:
        message = f"{len(wrong)} of {len(clocks)} processors have the governor {wrong[0].governor or 'none'}"
        return [degraded(message, "governor", evidence=(f"{wrong[0].name}: {wrong[0].driver}",))]
    if len(kinds) > 1:
        told = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
        return [degraded(f"the governors differ: {told}", "governor")]
    return []


def _limits(clocks: Sequence[Clock], thresholds: Thresholds) -> list[Finding]:
    low = [
        one
        for one in clocks
        if one.allowed_khz and one.possible_khz
        and one.allowed_khz < one.possible_khz * thresholds["percent"] / 100
    ]  # fmt: skip
    if not low:
        return []
    worst = min(low, key=lambda one: (one.allowed_khz or 0) / (one.possible_khz or 1))
    allowed, possible = (worst.allowed_khz or 0) / 1e6, (worst.possible_khz or 0) / 1e6
    message = f"{len(low)} processors may run at {allowed:.2f} GHz of {possible:.2f} at most"
    return [degraded(message, "limit", round(allowed, 2), "GHz", evidence=(worst.name,))]


def _heat(throttled: Growth, thresholds: Thresholds) -> list[Finding]:
    new = {name: sum(state_dir.growth_of(throttled, name).values()) for name in throttled.after}
    hot = {name: count for name, count in new.items() if count > thresholds["throttles"]}
    if hot:
        name = max(hot, key=lambda one: hot[one])
        message = f"{len(hot)} processor(s) were throttled by heat just now"
        return [degraded(message, name, len(hot), "processors", evidence=(f"{name}: {hot[name]} times",))]
    since_boot = max((count for counts in throttled.after.values() for count in counts.values()), default=0)
    if since_boot:
        message = f"a processor was throttled by heat {since_boot} times since boot"
        return [note(message, "heat", since_boot, "times")]
    return []


def _clock(machine: Machine, name: str) -> Optional[Clock]:
    folder = f"{FOLDER}/{name}/cpufreq"
    fields = ("scaling_governor", "scaling_driver")
    governor, driver = ((machine.peek(f"{folder}/{one}") or "").strip() for one in fields)
    allowed, possible = (machine.number(f"{folder}/{one}_max_freq") for one in ("scaling", "cpuinfo"))
    return Clock(name, governor, driver, allowed, possible) if governor or allowed is not None else None


def members(text: str) -> set[int]:
    """The numbers of a kernel's list such as `0-3,8`; what is odd is left out."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            found |= set(range(int(first), min(int(last or first), int(first) + 65_536) + 1))
    return found


FUNCTIONS = {"cpu-frequency": (probe_frequency, judge_frequency)}
