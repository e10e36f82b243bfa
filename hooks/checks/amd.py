"""The checks of AMD GPUs. (I/O)"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ftrun.hooks.checks.nvidia_smi import tokens
from ftrun.hooks.runtime.finding import Finding, Thresholds, bad, degraded, note, ok, skipped
from ftrun.hooks.runtime.host import Machine, NoAnswer
from ftrun.hooks.runtime.procfs import Owner, owner

DRM = "/sys/class/drm"
AMD = "0x1002"


def _cards(machine: Machine) -> list[str]:
    """The names of the AMD GPUs, in the order of /sys."""
    names = [name for name in machine.names(DRM) if re.fullmatch(r"card\d+", name)]
    vendors = machine.read_all([f"{DRM}/{name}/device/vendor" for name in names])
    mine = [name for name in names if vendors.get(f"{DRM}/{name}/device/vendor") == AMD]
    return sorted(mine, key=lambda name: int(name[4:]))


# --- amd-gpu

TOOL_LIMIT_S = 6.0
SENSORS = (1, 2, 3)  # edge, junction, memory


class Card(NamedTuple):
    """One GPU: `errors` is block -> (uncorrectable, corrected), `heat` is sensor -> (degrees C, critical degrees C)."""

    name: str
    errors: Mapping[str, tuple[int, int]]
    bad_pages: str
    heat: Mapping[str, tuple[float, Optional[float]]]


class GpuFacts(NamedTuple):
    """The cards in /sys, and what amd-smi printed ("" where it is not installed or does not answer)."""

    cards: tuple[Card, ...]
    metric: str = ""


def probe_gpu(machine: Machine, _thresholds: Thresholds) -> GpuFacts:
    """Read /sys; ask amd-smi where there is a card."""
    cards = tuple(_card(machine, name) for name in _cards(machine))
    metric = ""
    if cards and machine.tool("amd-smi"):
        try:
            metric = machine.run(["amd-smi", "metric", "--json"], TOOL_LIMIT_S).out
        except NoAnswer:  # /sys has told the rest
            metric = ""
    return GpuFacts(cards, metric)


def judge_gpu(facts: GpuFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Bad when cards are missing, or lost data, or memory cannot be set aside; degraded for heat and
    throttling.
    """
    if not facts.cards and not thresholds["expected"]:
        return [skipped("no AMD GPU here")]
    count = len(facts.cards)
    if count < thresholds["expected"]:
        message = f"{count} AMD GPU(s), {thresholds['expected']} expected"
        return [bad(message, value=float(count), unit="GPUs")]
    wanted = [int(token) for token in tokens(thresholds) if token.isdigit()]
    places = [place for place in wanted if place < count] if len(wanted) < count else []
    slow = throttled(facts.metric)
    found = []
    for place, card in enumerate(facts.cards):
        if not places or place in places:
            found += _gpu_faults(card, thresholds)
            if place in slow:
                found.append(degraded(f"it is throttled: {slow[place]}", card.name))
    return found or [ok(f"{count} GPU(s) without errors")]


def throttled(text: str) -> dict[int, str]:
    """GPU -> its throttle status, for those that are; {} where the text is no answer of amd-smi."""
    try:
        told = json.loads(text) if text.strip() else []
    except ValueError:
        return {}
    rows = told.get("gpu_data", []) if isinstance(told, dict) else told
    found = {}
    for row in rows if isinstance(rows, list) else []:
        power = row.get("power") if isinstance(row, dict) else None
        status = power.get("throttle_status") if isinstance(power, dict) else None
        if (
            isinstance(status, str)
            and status.upper().startswith("THROTTLED")
            and isinstance(row.get("gpu"), int)
        ):
            found[row["gpu"]] = status
    return found


def _gpu_faults(card: Card, thresholds: Thresholds) -> list[Finding]:
    found = []
    lost = {block: ue for block, (ue, _) in card.errors.items() if ue}
    if sum(lost.values()) > thresholds["uncorrectable"]:
        lines = tuple(f"{block} ue: {count}" for block, count in sorted(lost.items()))
        message = f"{sum(lost.values())} uncorrectable errors since the driver was loaded"
        found.append(bad(message, card.name, float(sum(lost.values())), "errors", evidence=lines))
    flags = [line.rsplit(":", 1)[-1].strip() for line in card.bad_pages.splitlines() if line.count(":") == 2]
    if "F" in flags:
        message = f"{flags.count('F')} bad page(s) of memory could not be set aside"
        found.append(bad(message, card.name, float(flags.count("F")), "pages"))
    elif "P" in flags:
        message = f"{flags.count('P')} bad page(s) of memory wait to be set aside"
        found.append(degraded(message, card.name, float(flags.count("P")), "pages"))
    corrected = sum(ce for _, ce in card.errors.values())
    if corrected > thresholds["corrected"]:
        message = f"{corrected} corrected errors since the driver was loaded"
        found.append(note(message, card.name, float(corrected), "errors"))
    for sensor, (now, critical) in card.heat.items():
        if critical is not None and now >= critical - thresholds["margin_c"]:
            found.append(degraded(f"{sensor} {now:.0f} C, critical at {critical:.0f} C", card.name, now, "C"))
    return found


def _card(machine: Machine, name: str) -> Card:
    device = f"{DRM}/{name}/device"
    blocks = [one for one in machine.names(f"{device}/ras") if one.endswith("_err_count")]
    hwmons = [f"{device}/hwmon/{one}" for one in machine.names(f"{device}/hwmon")]
    sensors = [f"{hwmon}/temp{number}" for hwmon in hwmons for number in SENSORS]
    paths = [f"{device}/ras/{block}" for block in blocks]
    paths += [f"{sensor}_{part}" for sensor in sensors for part in ("input", "label", "crit")]
    texts = machine.read_all([*paths, f"{device}/ras/gpu_vram_bad_pages"])
    errors = {
        block[: -len("_err_count")]: _ras_counts(texts.get(f"{device}/ras/{block}", "")) for block in blocks
    }
    heat = {}
    for sensor in sensors:
        now, critical = (_degrees(texts.get(f"{sensor}_{part}", "")) for part in ("input", "crit"))
        if now is not None:
            heat[texts.get(f"{sensor}_label", "temperature")] = (now, critical)
    return Card(name, errors, texts.get(f"{device}/ras/gpu_vram_bad_pages", ""), heat)


def _ras_counts(text: str) -> tuple[int, int]:
    found = dict(re.findall(r"\b(ue|ce): (\d+)", text))
    return int(found.get("ue", 0)), int(found.get("ce", 0))


def _degrees(text: str) -> Optional[float]:
    """hwmon tells thousandths of a degree; a limit of zero is none."""
    return int(text) / 1000 if text.isdigit() and int(text) else None


# --- amd-memory

KFD = "/sys/class/kfd/kfd/proc"
MIB = 1 << 20


class MemoryFacts(NamedTuple):
    """Memory in use and in all by card, in MiB, in the order of /sys; who has opened the compute driver (None: gone, or not to be seen)."""

    memory: tuple[tuple[str, float, float], ...]
    owners: Mapping[int, Optional[Owner]]


def probe_memory(machine: Machine, _thresholds: Thresholds) -> MemoryFacts:
    """Read both trees."""
    memory = []
    for name in _cards(machine):
        used, total = (
            machine.number(f"{DRM}/{name}/device/mem_info_vram_{one}") for one in ("used", "total")
        )
        if used is not None and total:
            memory.append((name, used / MIB, total / MIB))
    pids = [int(name) for name in machine.names(KFD) if name.isdigit()]
    return MemoryFacts(tuple(memory), {pid: owner(machine, pid) for pid in pids})


def judge_memory(facts: MemoryFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Degraded where strangers hold the driver, or memory is taken and no job is around; a note where the job
    itself may have taken it.
    """
    if not facts.memory:
        return [skipped("no AMD GPU tells of its memory here")]
    found = [_stranger(pid, one) for pid, one in facts.owners.items() if _is_stranger(one, thresholds)]
    places = [int(token) for token in tokens(thresholds) if token.isdigit()]
    mine = [facts.memory[place] for place in places if place < len(facts.memory)] or list(facts.memory)
    job = str(thresholds["job"])
    at_home = any(one and one.job and one.job == job for one in facts.owners.values())
    for name, used, total in mine:
        if used > thresholds["used_mib"]:
            grade = note if at_home or thresholds["shared"] else degraded
            message = f"{used:.0f} of {total:.0f} MiB are in use"
            found.append(grade(message, name, round(used), "MiB"))
    return found or [ok(f"{len(mine)} GPU(s) with free memory")]


def _is_stranger(one: Optional[Owner], thresholds: Thresholds) -> bool:
    job = str(thresholds["job"])
    if one is None or one.state == "Z":
        return False
    return not one.job or bool(job and one.job != job and not thresholds["shared"])


def _stranger(pid: int, one: Optional[Owner]) -> Finding:
    name, uid, whose = (
        (one.name, one.uid, f"of job {one.job}" if one.job else "of no job") if one else ("", -1, "")
    )
    return degraded(f"process {pid} ({name}) {whose}, user {uid}, holds the compute driver", f"pid {pid}")


FUNCTIONS: dict[str, Any] = {"amd-gpu": (probe_gpu, judge_gpu), "amd-memory": (probe_memory, judge_memory)}
