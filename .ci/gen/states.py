"""Draws the life of a run into docs/how-it-works.md from the table itself; `--check` compares. (I/O)"""

from __future__ import annotations

import sys
from pathlib import Path

from ftrun.supervisor.lifecycle import FINAL, TRANSITIONS, State

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-it-works.md"
BEGIN = "<!-- states: begin, written by `make docs` from supervisor/lifecycle.py -->"
END = "<!-- states: end -->"


def diagram() -> str:
    """Return the transitions as a mermaid diagram; arrows between the same two states are one arrow."""
    arrows: dict[tuple[State, State], list[str]] = {}
    for state, ways in TRANSITIONS.items():
        for kind, target in ways.items():
            arrows.setdefault((state, target), []).append(kind)
    first = next(iter(TRANSITIONS))
    lines = ["stateDiagram-v2", f"    [*] --> {first.value}"]
    lines += [f"    {a.value} --> {b.value}: {', '.join(kinds)}" for (a, b), kinds in arrows.items()]
    lines += [f"    {state.value} --> [*]" for state in sorted(FINAL)]
    return "\n".join(["```mermaid", *lines, "```"])


def renewed(text: str) -> str:
    """Return the page's text with the diagram between the two marks replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit(f"{PAGE.name} must have these two lines once:\n{BEGIN}\n{END}")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{diagram()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    present = PAGE.read_text(encoding="utf-8")
    if "--check" not in sys.argv:
        PAGE.write_text(renewed(present), encoding="utf-8")
    elif present != renewed(present):
        sys.exit("the diagram in docs/how-it-works.md is not current: run `make docs`")
