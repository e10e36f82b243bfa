"""Figures and how they are printed: percentiles, ratios, one line each with its rival and its aim. (pure)"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Figure", "percentiles", "ratio", "table"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured thing beside its rival.

    `ours` and `rival` are percentiles of samples of one unit ("least", "p50", "p90", "p99", "most", "n"), or single numbers
    by name. `value` is what the aim speaks of; `held` is None where there is no aim.
    """

    name: str
    unit: str
    ours: Mapping[str, float]
    rival_name: str
    rival: Mapping[str, float]
    value: float
    value_name: str
    aim: str = ""
    held: bool | None = None
    notes: tuple[str, ...] = ()
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # where the time goes

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def percentiles(samples: Sequence[float], *, digits: int = 3) -> dict[str, float]:
    """Least, median, 90th and 99th in a hundred, most, and how many there were. Nothing of no samples."""
    if not samples:
        return {"n": 0}
    several = list(samples) * 2 if len(samples) == 1 else list(samples)
    marks = statistics.quantiles(several, n=100, method="inclusive")
    told = {"least": min(samples), "p50": statistics.median(samples), "p90": marks[89], "p99": marks[98]}
    return {name: round(value, digits) for name, value in (told | {"most": max(samples)}).items()} | {
        "n": len(samples)
    }


def ratio(ours: Sequence[float], rival: Sequence[float]) -> float:
    """Of the medians; infinite where there is nothing to divide by."""
    if not ours or not rival or not statistics.median(rival):
        return float("inf")
    return round(statistics.median(ours) / statistics.median(rival), 2)


def table(figures: Sequence[Figure]) -> str:
    """What a person reads."""
    lines = []
    for figure in figures:
        verdict = {True: "aim held", False: "AIM MISSED", None: ""}[figure.held]
        lines.append(f"{figure.name}")
        rows = {"ftrun": figure.ours, figure.rival_name: figure.rival}
        rows |= {f"  {part}": values for part, values in figure.parts.items()}
        width = max(len(name) for name in rows)
        lines += [f"    {name:<{width}}  {_told(values)} {figure.unit}" for name, values in rows.items()]
        aim = f"  (aim: {figure.aim}: {verdict})" if figure.aim else ""
        lines.append(f"  = {figure.value_name} {figure.value:g}{aim}")
        lines += [f"    {note}" for note in figure.notes]
        lines.append("")
    return "\n".join(lines)


def _told(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:g}" for name, value in values.items())
