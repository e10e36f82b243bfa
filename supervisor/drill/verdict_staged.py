"""Did it come as it must, where checkpoints were staged or chosen? (pure)

Two laws are checked in every drill that stages: what says on disk that it is whole is whole, and of one start; and the memory of every living node is as empty
afterwards as it was before.
"""

from __future__ import annotations

from collections.abc import Iterator

from ftrun.supervisor.drill.terms import Check, Expect, Ledger, Scenario, Story

__all__ = ["resumptions", "staged_laws"]


def resumptions(expect: Expect, ledger: Ledger) -> Iterator[Check]:
    """Where each start began, and what the last one read."""
    if expect.resumed_min:
        began = _began(ledger)
        least = ", ".join(map(str, expect.resumed_min))
        held = len(began) == len(expect.resumed_min) and all(
            at >= wanted for at, wanted in zip(began, expect.resumed_min, strict=True)
        )
        yield Check(f"each start begins at least at step {least}", held, ", ".join(map(str, began)))
    if expect.read_from:
        places = _places(ledger)
        yield Check(
            f"the last start reads from {expect.read_from}", places == {expect.read_from}, ", ".join(places)
        )


def _began(ledger: Ledger) -> list[int]:
    """The step of each start, which any of its ranks read."""
    steps: dict[int, int] = {}
    for line in ledger.ranks:
        start = int(line["start"])
        steps[start] = max(steps.get(start, 0), int(line["resumed"]))
    return [steps[start] for start in sorted(steps)]


def _places(ledger: Ledger) -> set[str]:
    """Memory, disk, or both: where the files were that the ranks of the last start read, links followed."""
    last = max((int(line["start"]) for line in ledger.ranks), default=0)
    files = [str(path) for line in ledger.ranks if line["start"] == last for path in line.get("read", ())]
    return {"disk" if "/published/" in path else "memory" for path in files}


def staged_laws(scenario: Scenario, story: Story) -> Iterator[Check]:
    """What is on disk is whole and was saved by one start; what was to be there is; nothing is left in memory."""
    ledger = story.ledgers[0]
    saved = {(int(line["step"]), int(line["start"])) for line in ledger.saves}
    wrong = ""
    for path, state in story.published.items():
        if isinstance(state, str):
            wrong = f"{path}: {state}"
        elif (state["step"], state["start"]) not in saved:
            wrong = f"{path} is of step {state['step']} and start {state['start']}, which none saved"
    yield Check("what is published is whole", not wrong, wrong or f"{len(story.published)} checkpoints")
    steps = sorted(state["step"] for state in story.published.values() if not isinstance(state, str))
    missing = [step for step in scenario.expect.published if step not in steps]
    wanted = ", ".join(map(str, scenario.expect.published))
    if wanted:
        yield Check(f"published in the end: {wanted}", not missing, ", ".join(map(str, steps)) or "nothing")
    left = [f"{node}: {', '.join(jobs)}" for node, jobs in story.in_memory.items() if jobs]
    yield Check("nothing is left in the memory of the nodes", not left, "; ".join(left) or "nothing")
