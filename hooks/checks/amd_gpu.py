"""`amd-gpu`: the AMD GPUs of this node are all there, sound, cool and not held back. (I/O)

How it thinks. The kernel tells most of it in /sys to every user, at once and in the same words for years, so it is asked first: errors by
block (RAS), bad pages of memory, temperatures with the card's own limits. Only whether a GPU is throttled comes from
amd-smi. The error state of XGMI is left alone on purpose: reading it clears it, and the next who looks is deceived.

Thresholds: `expected` GPUs (0: unknown), `uncorrectable` (0) errors since the driver was loaded, `corrected` (10,000), `margin_c` (0)
before a card's critical temperature; `devices` of the job, by number in the order of /sys.

Checked against: the kernel's amdgpu documentation for ras/*_err_count ("ue: 0", "ce: 0"), gpu_vram_bad_pages (R, P, F) and hwmon;
`amd-smi metric --json` in AMD's changelog and public documents (a list up to ROCm 6, "gpu_data" since 7); rocm-smi's JSON in
Telegraf's test data. Partitions and XGMI were not verified.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from ftrun.hooks.findings import BAD, DEGRADED, NOTE, OK, SKIPPED, Check, Finding
from ftrun.hooks.machine import Machine, NoAnswer
from ftrun.hooks.nvidia import tokens

__all__ = ["CHECK", "Card", "Facts", "judge", "throttled"]

NAME = "amd-gpu"
FAULT = "hardware-gpu"
FOLDER = "/sys/class/drm"
TOOL_LIMIT_S = 6.0
SENSORS = (1, 2, 3)  # edge, junction, memory


class Card(NamedTuple):
    """One GPU: `errors` is block -> (uncorrectable, corrected), `heat` is sensor -> (degrees C, critical degrees C)."""

    name: str
    errors: Mapping[str, tuple[int, int]]
    bad_pages: str
    heat: Mapping[str, tuple[float, Optional[float]]]


class Facts(NamedTuple):
    """The cards in /sys, and what amd-smi printed ("" where it is not installed or does not answer)."""

    cards: tuple[Card, ...]
    metric: str = ""


def probe(machine: Machine, _thresholds: Mapping[str, Any]) -> Facts:
    """Read /sys; ask amd-smi where there is a card."""
    names = [name for name in machine.names(FOLDER) if re.fullmatch(r"card\d+", name)]
    vendors = machine.read_all([f"{FOLDER}/{name}/device/vendor" for name in names])
    mine = [name for name in names if vendors.get(f"{FOLDER}/{name}/device/vendor") == "0x1002"]
    cards = tuple(_card(machine, name) for name in sorted(mine, key=lambda name: int(name[4:])))
    metric = ""
    if cards and machine.tool("amd-smi"):
        try:
            metric = machine.run(["amd-smi", "metric", "--json"], TOOL_LIMIT_S).out
        except NoAnswer:  # /sys has told the rest
            metric = ""
    return Facts(cards, metric)


def judge(facts: Facts, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad when cards are missing, or lost data, or memory cannot be set aside; degraded for heat and throttling."""
    if not facts.cards and not thresholds["expected"]:
        return [Finding(NAME, SKIPPED, "no AMD GPU here")]
    count = len(facts.cards)
    if count < thresholds["expected"]:
        message = f"{count} AMD GPU(s), {thresholds['expected']} expected"
        return [Finding(NAME, BAD, message, FAULT, "", (), float(count), "GPUs")]
    wanted = [int(token) for token in tokens(thresholds) if token.isdigit()]
    places = [place for place in wanted if place < count] if len(wanted) < count else []
    slow = throttled(facts.metric)
    found = []
    for place, card in enumerate(facts.cards):
        if not places or place in places:
            found += _looked(card, thresholds)
            if place in slow:
                found.append(Finding(NAME, DEGRADED, f"it is throttled: {slow[place]}", FAULT, card.name))
    return found or [Finding(NAME, OK, f"{count} GPU(s) without errors")]


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


def _looked(card: Card, thresholds: Mapping[str, Any]) -> list[Finding]:
    found = []
    lost = {block: ue for block, (ue, _) in card.errors.items() if ue}
    if sum(lost.values()) > thresholds["uncorrectable"]:
        lines = tuple(f"{block} ue: {count}" for block, count in sorted(lost.items()))
        message = f"{sum(lost.values())} uncorrectable errors since the driver was loaded"
        found.append(
            Finding(NAME, BAD, message, FAULT, card.name, lines, float(sum(lost.values())), "errors")
        )
    flags = [line.rsplit(":", 1)[-1].strip() for line in card.bad_pages.splitlines() if line.count(":") == 2]
    if "F" in flags:
        message = f"{flags.count('F')} bad page(s) of memory could not be set aside"
        found.append(Finding(NAME, BAD, message, FAULT, card.name, (), float(flags.count("F")), "pages"))
    elif "P" in flags:
        message = f"{flags.count('P')} bad page(s) of memory wait to be set aside"
        found.append(Finding(NAME, DEGRADED, message, FAULT, card.name, (), float(flags.count("P")), "pages"))
    corrected = sum(ce for _, ce in card.errors.values())
    if corrected > thresholds["corrected"]:
        message = f"{corrected} corrected errors since the driver was loaded"
        found.append(Finding(NAME, NOTE, message, "", card.name, (), float(corrected), "errors"))
    for sensor, (now, critical) in card.heat.items():
        if critical is not None and now >= critical - thresholds["margin_c"]:
            message = f"{sensor} {now:.0f} C, critical at {critical:.0f} C"
            found.append(Finding(NAME, DEGRADED, message, FAULT, card.name, (), now, "C"))
    return found


def _card(machine: Machine, name: str) -> Card:
    device = f"{FOLDER}/{name}/device"
    blocks = [one for one in machine.names(f"{device}/ras") if one.endswith("_err_count")]
    hwmons = [f"{device}/hwmon/{one}" for one in machine.names(f"{device}/hwmon")]
    sensors = [f"{hwmon}/temp{number}" for hwmon in hwmons for number in SENSORS]
    paths = [f"{device}/ras/{block}" for block in blocks]
    paths += [f"{sensor}_{part}" for sensor in sensors for part in ("input", "label", "crit")]
    texts = machine.read_all([*paths, f"{device}/ras/gpu_vram_bad_pages"])
    errors = {
        block[: -len("_err_count")]: _counts(texts.get(f"{device}/ras/{block}", "")) for block in blocks
    }
    heat = {}
    for sensor in sensors:
        now, critical = (_degrees(texts.get(f"{sensor}_{part}", "")) for part in ("input", "crit"))
        if now is not None:
            heat[texts.get(f"{sensor}_label", "temperature")] = (now, critical)
    return Card(name, errors, texts.get(f"{device}/ras/gpu_vram_bad_pages", ""), heat)


def _counts(text: str) -> tuple[int, int]:
    found = dict(re.findall(r"\b(ue|ce): (\d+)", text))
    return int(found.get("ue", 0)), int(found.get("ce", 0))


def _degrees(text: str) -> Optional[float]:
    """hwmon tells thousandths of a degree; a limit of zero is none."""
    return int(text) / 1000 if text.isdigit() and int(text) else None


CHECK = Check(
    name=NAME,
    title="The AMD GPUs are all there, sound, cool and not held back",
    tier="fast",
    fault=FAULT,
    needs=(),
    limit_s=10.0,
    thresholds={"expected": 0, "uncorrectable": 0, "corrected": 10_000, "margin_c": 0, "devices": ""},
    probe=probe,
    judge=judge,
)
