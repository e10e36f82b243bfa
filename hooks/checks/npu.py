"""The check of Ascend NPUs. (I/O)"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ftrun.hooks.checks.nvidia_smi import tokens
from ftrun.hooks.runtime.finding import Finding, Thresholds, bad, degraded, note, ok, skipped, unknown
from ftrun.hooks.runtime.host import Machine, NoAnswer

TABLE_LIMIT_S = 6.0
ONE_LIMIT_S = 2.0
HCCN = "/usr/local/Ascend/driver/tools/hccn_tool"

ROW = re.compile(
    r"^\s*\|\s*(\d+)\s*\|?\s*(\S+)\s*\|\s*(OK|Warning|Alarm|Critical|UNKNOWN|Offline)\s*\|\s*[\d.\-]+\s+(\d+)?",
    re.MULTILINE,
)
DOUBLE_BIT = re.compile(r"(HBM|DDR) Double Bit Error Count\s*:\s*(\d+)")
CODES = re.compile(r"Error Code\s*:\s*((?:(?:0x)?[0-9A-Fa-f]{8}[\s,]*)+)")

# MindCluster isolates the chip for these, or resets it: memory that is used up, heartbeats, multi-bit errors.
BAD_CODES = frozenset(
    {
        "80E18402", "80E18404", "80E0020B", "80DF8402", "80E3A201", "80818C00", "80818C05", "8F180200", "8F180201",
        "8F180202", "40F84E00", "80FA4E00", "812E4E00", "80C78008", "80CD8008", "80A38008", "80A58008", "80CF8008",
        "80BD8008", "80E18000", "80E18005", "80E18008", "80E1800A", "80F38008", "80B98000", "80B98008", "80C98001",
        "80CB8001",
    }
)  # fmt: skip


class Chip(NamedTuple):
    """A row of `npu-smi info`."""

    number: int
    product: str
    health: str
    temperature_c: int


class NpuFacts(NamedTuple):
    """What the tools printed: the table, and by NPU id the memory's errors, the codes of sick ones, the state
    of the link. `is_installed` tells a node without npu-smi from one whose npu-smi prints nothing.
    """

    table: str
    ecc: Mapping[int, str] = {}
    health: Mapping[int, str] = {}
    link: Mapping[int, str] = {}
    is_installed: bool = True


def probe_npu(machine: Machine, _thresholds: Thresholds) -> NpuFacts:
    """Ask for the table, then for each chip what the table does not tell."""
    if machine.tool("npu-smi") is None:
        return NpuFacts("", is_installed=False)
    output = machine.run(["npu-smi", "info"], TABLE_LIMIT_S)
    table = output.out or output.err
    found = chips(table)
    ids = sorted({chip.number for chip in found})
    sick = sorted({chip.number for chip in found if chip.health != "OK"})
    return NpuFacts(
        table,
        _each(machine, ids, "npu-smi", "info", "-t", "ecc", "-i"),
        _each(machine, sick, "npu-smi", "info", "-t", "health", "-i"),
        _each(machine, ids, HCCN, "-link", "-g", "-i") if machine.tool(HCCN) else {},
    )


def chips(table: str) -> list[Chip]:
    """The rows that tell the health of a chip."""
    return [
        Chip(int(found.group(1)), found.group(2), found.group(3), int(found.group(4) or 0))
        for found in ROW.finditer(table)
    ]


def codes(text: str) -> list[str]:
    """The fault codes that a text names, without 0x, in capitals."""
    told = [code for found in CODES.finditer(text) for code in re.findall(r"[0-9A-Fa-f]{8}", found.group(1))]
    return [code.upper() for code in told]


def judge_npu(facts: NpuFacts, thresholds: Thresholds) -> Sequence[Finding]:
    """Bad when chips are missing, critical, or bear a code that isolates; degraded for other alarms, errors
    and links.
    """
    found, expected = chips(facts.table), int(thresholds["expected"])
    if not facts.is_installed and not expected:
        return [skipped("npu-smi is not here")]
    lost = re.search(r"dcmi (?:module|model) initialize failed.*", facts.table)
    if lost and not found:
        return [bad("the driver does not answer", evidence=(lost.group(0),))]
    if not found and facts.is_installed:
        return [unknown(f"npu-smi lists no chip: {facts.table.strip()[:100] or 'nothing printed'}")]
    if len(found) < expected:
        return [bad(f"{len(found)} chip(s), {expected} expected", value=float(len(found)), unit="chips")]
    wanted = [int(token) for token in tokens(thresholds) if token.isdigit()]
    mine = [chip for chip in found if chip.number in wanted] or found
    told = [one for chip in mine for one in _npu_faults(chip, facts, thresholds)]
    told += _links(facts.link, {chip.number for chip in mine})
    return told or [ok(f"{len(mine)} chip(s) healthy")]


def _npu_faults(chip: Chip, facts: NpuFacts, thresholds: Thresholds) -> list[Finding]:
    device = str(chip.number)
    found = []
    if chip.health != "OK":
        named = codes(facts.health.get(chip.number, ""))
        isolating = [code for code in named if code in BAD_CODES]
        lines = (f"Health {chip.health}", *(f"Error Code {code}" for code in named))
        if chip.health == "UNKNOWN":
            found.append(unknown("its health is not known", device, evidence=lines))
        elif isolating or chip.health in ("Critical", "Offline"):
            message = f"its health is {chip.health}{': ' if named else ''}{', '.join(isolating or named)}"
            found.append(bad(message, device, evidence=lines))
        elif chip.health == "Alarm":
            message = f"its health is Alarm{': ' if named else ''}{', '.join(named)}"
            found.append(degraded(message, device, evidence=lines))
        else:
            found.append(note(f"its health is {chip.health}", device, evidence=lines))
    double = sum(int(count) for _, count in DOUBLE_BIT.findall(facts.ecc.get(chip.number, "")))
    if double > thresholds["double_bit"]:
        found.append(bad(f"{double} double-bit memory error(s)", device, float(double), "errors"))
    if chip.temperature_c >= thresholds["temperature_c"]:
        found.append(degraded(f"{chip.temperature_c} C", device, float(chip.temperature_c), "C"))
    return found


def _links(link: Mapping[int, str], mine: set[int]) -> list[Finding]:
    states = {
        number: found.group(1)
        for number, text in link.items()
        if (found := re.search(r"link status: (\w+)", text))
    }
    if "UP" not in states.values():
        return []  # nothing is cabled, or the tool may not be asked
    return [
        degraded(
            f"its network link is {state}", str(number), evidence=(f"link status: {state}",), fault="network"
        )
        for number, state in sorted(states.items())
        if state != "UP" and number in mine
    ]


def _each(machine: Machine, numbers: Sequence[int], *question: str) -> dict[int, str]:
    """What a tool says of each NPU; those after one that does not answer are not asked."""
    told = {}
    with contextlib.suppress(NoAnswer):
        for number in numbers:
            told[number] = machine.run([*question, str(number)], ONE_LIMIT_S).out
    return told


FUNCTIONS = {"npu": (probe_npu, judge_npu)}
