"""`gpu-nvlink`: every NVLink that should be up is up, and none counts errors. (I/O)

How it thinks. How many links a GPU should have depends on the board, so it is told by its equals on the node, or by the site. A node where
no link is up has no bridges, which is no fault. With MIG a GPU lets its links rest, so such a one is left out. Counters
run since the last reset: a recovery is rare and tells of a bad link; replays and checksums are noise in small number.

Thresholds: `expected` active links a GPU (0: as many as its equals have); `recoveries` (1), `replays` and `checksums` (100,000 each);
`devices` of the job.

Checked against: `nvidia-smi nvlink -s` of A100 and A10 in leptonai's gpud, "<inactive>" and "all links are inActive" in public reports;
`nvidia-smi nvlink -e` of V100 and H100, among them the short form "Links 0-2, 4-5: Replay/Recovery/CRC Errors: 0".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ftrun.hooks import nvidia
from ftrun.hooks.findings import BAD, DEGRADED, NOTE, OK, SKIPPED, UNKNOWN, Check, Finding
from ftrun.hooks.machine import Machine, NoAnswer

__all__ = ["CHECK", "Facts", "errors", "judge", "links"]

NAME = "gpu-nvlink"
FAULT = "hardware-gpu"
TOOL_LIMIT_S = 6.0

HEAD = re.compile(r"^GPU (\d+):.*?(?:\(UUID: (\S+?)\))?\s*$")
SPEED = re.compile(r"^\s*Link (\d+): (?:([\d.]+) GB/s|(.*))$")
COUNT = re.compile(r"^\s*Link (\d+): (\w+)(?: \w+)* Errors: (\d+)")


class Facts(NamedTuple):
    """What nvidia-smi answered, and the text of `nvlink -s` and `nvlink -e`."""

    answer: nvidia.Answer
    status: str
    errors: str


def probe(machine: Machine, thresholds: Mapping[str, Any]) -> Facts:
    """Ask for the links and their errors."""
    answer = nvidia.probe(machine, thresholds)
    status = machine.run(["nvidia-smi", "nvlink", "-s"], TOOL_LIMIT_S).out
    try:
        counted = machine.run(["nvidia-smi", "nvlink", "-e"], TOOL_LIMIT_S).out
    except NoAnswer:  # the state of the links is worth more than their counters
        counted = ""
    return Facts(answer, status, counted)


def links(text: str) -> dict[int, dict[int, float]]:
    """GPU -> link -> speed in GB/s, 0 for one that is not up. A link with a word that is not known is left out.

    Where all links of a GPU are said to be down in one line, its link 0 stands for them.
    """
    found: dict[int, dict[int, float]] = {}
    place = -1
    for line in text.splitlines():
        head, link = HEAD.match(line), SPEED.match(line)
        if head:
            place = int(head.group(1))
            found[place] = {}
        elif "all links are inactive" in line.lower() and place >= 0:
            found[place] = {0: 0.0}
        elif link and place >= 0 and (link.group(2) or "inactive" in link.group(3).lower()):
            found[place][int(link.group(1))] = float(link.group(2) or 0)
    return found


def errors(text: str) -> dict[int, dict[str, int]]:
    """GPU -> kind of error in small letters (replay, recovery, crc) -> sum over its links."""
    found: dict[int, dict[str, int]] = {}
    place = -1
    for line in text.splitlines():
        head, count = HEAD.match(line), COUNT.match(line)
        if head:
            place = int(head.group(1))
        elif count and place >= 0:
            kinds = found.setdefault(place, {})
            kind = count.group(2).lower()
            kinds[kind] = kinds.get(kind, 0) + int(count.group(3))
    return found


def judge(facts: Facts, thresholds: Mapping[str, Any]) -> Sequence[Finding]:
    """Bad when a GPU has fewer links up than its equals or the site's number; degraded when links recover or count errors."""
    nothing = nvidia.unread(NAME, facts.answer, thresholds)
    if nothing:
        return nothing
    up = links(facts.status)
    counted = errors(facts.errors)
    most = int(thresholds["expected"])
    if not any(up.values()) and most:
        return [Finding(NAME, UNKNOWN, f"{most} NVLinks a GPU are expected, and nvidia-smi tells of none")]
    if not most and not any(speed for table in up.values() for speed in table.values()):
        return [Finding(NAME, SKIPPED, "no NVLink is up on any GPU of this node")]
    found = []
    for gpu in nvidia.chosen(facts.answer.gpus, nvidia.tokens(thresholds)):
        if gpu.has_mig or not up.get(gpu.place):
            continue  # with MIG links rest; of a GPU that is not listed nothing is known
        equals = [
            _active(up, one) for one in facts.answer.gpus if one.product == gpu.product and not one.has_mig
        ]
        found += _linked(gpu, up[gpu.place], most or max(equals))
        found += _counted(gpu, counted.get(gpu.place, {}), thresholds)
    return found or [Finding(NAME, OK, f"{sum(_active(up, gpu) for gpu in facts.answer.gpus)} links are up")]


def _active(up: Mapping[int, Mapping[int, float]], gpu: nvidia.Gpu) -> int:
    return sum(speed > 0 for speed in up.get(gpu.place, {}).values())


def _linked(gpu: nvidia.Gpu, table: Mapping[int, float], most: int) -> list[Finding]:
    active = sum(speed > 0 for speed in table.values())
    if active < most:
        down = tuple(f"Link {link}: inactive" for link, speed in sorted(table.items()) if not speed)
        message = f"{active} of {most} NVLinks are up"
        return [Finding(NAME, BAD, message, FAULT, gpu.device, down, float(active), "links")]
    speeds = {speed for speed in table.values() if speed}
    if len(speeds) > 1:
        message = f"its NVLinks differ in speed: {min(speeds):g} to {max(speeds):g} GB/s"
        return [Finding(NAME, DEGRADED, message, FAULT, gpu.device, (), min(speeds), "GB/s")]
    return []


def _counted(gpu: nvidia.Gpu, kinds: Mapping[str, int], thresholds: Mapping[str, Any]) -> list[Finding]:
    limits = {
        "recovery": thresholds["recoveries"],
        "replay": thresholds["replays"],
        "crc": thresholds["checksums"],
    }
    told = tuple(f"{kind} errors: {count}" for kind, count in kinds.items() if count)
    worst = [kind for kind, limit in limits.items() if kinds.get(kind, 0) >= limit]
    if worst:
        count = kinds[worst[0]]
        message = f"{count} {worst[0]} errors on its NVLinks"
        return [Finding(NAME, DEGRADED, message, FAULT, gpu.device, told, float(count), "errors")]
    return [Finding(NAME, NOTE, "its NVLinks have counted errors", "", gpu.device, told)] if told else []


CHECK = Check(
    name=NAME,
    title="Every NVLink that should be up is up, and none counts errors",
    tier="fast",
    fault=FAULT,
    needs=("nvidia-smi",),
    limit_s=nvidia.CHECK_LIMIT_S,
    thresholds={"expected": 0, "recoveries": 1, "replays": 100_000, "checksums": 100_000, "devices": ""},
    probe=probe,
    judge=judge,
)
