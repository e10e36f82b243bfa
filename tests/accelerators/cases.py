"""What a case is, how all of them are run within a time limit, and the two files that tell of it. (I/O)"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.accelerators.here import Here, NotHere, Seen

EXPECTED, OTHERWISE, NO_DEVICE, LEFT_OUT, NO_TIME, BROKEN = (
    "as expected", "OTHERWISE", "no device", "left out", "no time", "BROKEN",
)  # fmt: skip
"""Verdicts. BROKEN: the case itself failed, and says nothing of ftrun."""


class Case(NamedTuple):
    """One thing to try: `needs` of smi, torch, device, slurm, own-machine; `limit_s` is what it may take."""

    part: str
    name: str
    expected: str
    try_it: Callable[[Here], Seen]
    needs: tuple[str, ...] = ()
    limit_s: float = 30.0


class Result(NamedTuple):
    """What came of a case."""

    part: str
    case: str
    expected: str
    seen: str
    verdict: str
    took_s: float


def run(cases: Sequence[Case], here: Here, within_s: float, told: Callable[[Result], None]) -> list[Result]:
    """Try each case in its order, as long as there is time for it."""
    give_up_s = time.monotonic() + within_s
    results = []
    for case in cases:
        began_s = time.monotonic()
        seen, verdict = _tried(case, here, give_up_s - began_s)
        row = Result(case.part, case.name, case.expected, seen, verdict, round(time.monotonic() - began_s, 1))
        told(row)
        results.append(row)
    return results


def _tried(case: Case, here: Here, left_s: float) -> tuple[str, str]:
    lacking = here.lacks(case.needs)
    if lacking:
        return lacking, NO_DEVICE if lacking.startswith("no device") else LEFT_OUT
    if left_s < case.limit_s:
        return f"{left_s:.0f} s were left, it may take {case.limit_s:.0f}", NO_TIME
    try:
        seen = case.try_it(here)
    except NotHere as error:
        return str(error), LEFT_OUT
    except Exception as error:  # noqa: BLE001  whatever breaks one case must not cost the results of the others
        return f"{type(error).__name__}: {error}"[:400], BROKEN
    return seen.text, EXPECTED if seen.ok else OTHERWISE


def write(folder: Path, machine: Mapping[str, str], results: Sequence[Result]) -> tuple[Path, Path]:
    """The JSON and the Markdown file."""
    folder.mkdir(parents=True, exist_ok=True)
    table = {"machine": dict(machine), "cases": [row._asdict() for row in results]}
    (folder / "accelerators.json").write_text(json.dumps(table, indent=1) + "\n")
    lines = ["# ftrun on this machine", "", *(f"- {name}: {text}" for name, text in machine.items()), ""]
    lines += [
        summary(results),
        "",
        "| part | case | expected | seen | verdict | s |",
        "|---|---|---|---|---|---|",
    ]
    for row in results:
        cells = (row.part, row.case, row.expected, row.seen, row.verdict, f"{row.took_s:g}")
        lines.append("| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |")
    (folder / "accelerators.md").write_text("\n".join(lines) + "\n")
    return folder / "accelerators.json", folder / "accelerators.md"


def summary(results: Sequence[Result]) -> str:
    """How many cases have which verdict."""
    verdicts = [row.verdict for row in results]
    counts = [f"{verdicts.count(one)} {one}" for one in dict.fromkeys(verdicts)]
    return f"{len(results)} cases: {', '.join(counts) or 'none'}"
