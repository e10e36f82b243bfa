"""The check of NVMe drives. (I/O)"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks.runtime.finding import Finding, Thresholds, bad, degraded, ok, skipped, unknown
from ftrun.hooks.runtime.host import Machine, NoAnswer

BITS = (
    (0x01, bad, "its spare blocks are used up"),
    (0x02, degraded, "it is too hot or too cold"),
    (0x04, bad, "it is unreliable"),
    (0x08, bad, "it has turned read-only"),
    (0x10, degraded, "the backup of its volatile memory has failed"),
    (0x20, bad, "its persistent memory has turned read-only"),
)


def probe_nvme(machine: Machine, _thresholds: Thresholds) -> dict[str, str]:
    """By drive what the tool printed. Raises NoAnswer where no tool answered at all."""
    drives = [name for name in machine.names("/sys/class/nvme") if re.fullmatch(r"nvme\d+", name)]
    told: dict[str, str] = {}
    for drive in drives:
        for question in (
            ["nvme", "smart-log", f"/dev/{drive}", "-o", "json"],
            ["smartctl", "-j", "-A", "-H", f"/dev/{drive}"],
        ):
            if machine.tool(question[0]) and not told.get(drive, "").strip():
                told[drive] = _said(machine, question)
    return told


def _said(machine: Machine, question: Sequence[str]) -> str:
    try:
        output = machine.run(question, 5.0)
    except NoAnswer as error:
        return json.dumps({"no answer": str(error)})
    return output.out if "{" in output.out else json.dumps({"no answer": output.err.strip()[:200]})


def judge_nvme(told: Mapping[str, str], thresholds: Thresholds) -> Sequence[Finding]:
    """Bad for a drive that has failed, degraded for one that wears out or is hot."""
    if not told:
        return [skipped("no NVMe drive, or neither nvme nor smartctl is here")]
    found = [one for drive, text in told.items() for one in _drive(drive, _log(text), thresholds)]
    return found or [ok(f"{len(told)} drive(s) are sound")]


def _log(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text[text.index("{") :])
    except ValueError:
        return {}
    inner = document.get("nvme_smart_health_information_log", document)
    return inner if isinstance(inner, dict) else {}


def _drive(drive: str, log: Mapping[str, Any], thresholds: Thresholds) -> list[Finding]:
    if "critical_warning" not in log:
        reason = str(log.get("no answer", "its health is not told"))
        denied = any(word in reason.lower() for word in ("permission", "not permitted", "denied"))
        return [(skipped if denied else unknown)(f"{drive}: {reason or 'nothing was said'}", drive)]
    warning = log["critical_warning"]
    bits = _integer(warning.get("value") if isinstance(warning, dict) else warning)
    found = [
        grade(f"{drive}: {message}", drive, bits, evidence=(f"critical_warning {bits:#04x}",))
        for bit, grade, message in BITS
        if bits & bit
    ]
    lost = _integer(log.get("media_errors"))
    if lost > thresholds["media_errors"]:
        message = f"{drive}: {lost} errors of its medium in its life"
        found.append(degraded(message, drive, lost, "errors", evidence=(f"media_errors {lost}",)))
    used = _integer(log.get("percent_used", log.get("percentage_used")))
    if used >= thresholds["percent_used"]:
        message = f"{drive}: {used} % of its endurance is used"
        found.append(degraded(message, drive, used, "%", evidence=(f"percentage used {used}",)))
    return found


def _integer(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0


FUNCTIONS = {"nvme-health": (probe_nvme, judge_nvme)}
