"""Write the states of a run and of its parts into docs/how-it-works.md, from their tables; `--check` compares. (I/O)"""

from __future__ import annotations

from marked import keep_current

from ftrun.supervisor.model.states import FINAL_STATES, PART_TRANSITIONS, TRANSITIONS, Part, State

BEGIN = "<!-- states: begin, written by `make docs` from supervisor/model/states.py -->"
END = "<!-- states: end -->"
BEGIN_PARTS = "<!-- states of parts: begin, written by `make docs` from supervisor/model/states.py -->"
END_PARTS = "<!-- states of parts: end -->"


def diagram() -> str:
    """Return the transitions as a mermaid diagram; arrows between the same two states are one arrow."""
    arrows: dict[tuple[State, State], list[str]] = {}
    for state, ways in TRANSITIONS.items():
        for kind, target in ways.items():
            arrows.setdefault((state, target), []).append(kind)
    first = next(iter(TRANSITIONS))
    lines = ["stateDiagram-v2", f"    [*] --> {first.value}"]
    lines += [f"    {a.value} --> {b.value}: {', '.join(kinds)}" for (a, b), kinds in arrows.items()]
    lines += [f"    {state.value} --> [*]" for state in sorted(FINAL_STATES)]
    return "\n".join(["```mermaid", *lines, "```"])


def table(part: Part) -> str:
    """Return the moves of a part of a run as a table."""
    rows = [
        "",
        f"{part.title}; it begins {_code(part.first)}:",
        "",
        "| record | from | to |",
        "|---|---|---|",
    ]
    rows += [
        f"| `{move.kind}` | {', '.join(map(_code, move.before))} | {_code(move.after)} |"
        for move in part.moves
    ]
    return "\n".join(rows)


def _code(state: str) -> str:
    return f"`{state}`" if state else "(none)"


if __name__ == "__main__":
    keep_current("how-it-works.md", "the diagram", BEGIN, END, diagram())
    tables = "\n".join(map(table, PART_TRANSITIONS.values())).lstrip("\n")
    keep_current("how-it-works.md", "the tables of a run's parts", BEGIN_PARTS, END_PARTS, tables)
