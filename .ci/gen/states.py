"""Draws the life of a run into docs/how-it-works.md from the table itself; `--check` compares. (I/O)"""

from __future__ import annotations

from marked import keep_current

from ftrun.supervisor.model.states import FINAL, TRANSITIONS, State

BEGIN = "<!-- states: begin, written by `make docs` from supervisor/model/states.py -->"
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


if __name__ == "__main__":
    keep_current("how-it-works.md", "the diagram", BEGIN, END, diagram())
