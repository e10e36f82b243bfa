"""A journal checked against the tables of the parts of a run: which moves they do not list. (pure)"""

from __future__ import annotations

from collections.abc import Iterable

from ftrun.supervisor.model.events import apply
from ftrun.supervisor.model.run import Record, Run
from ftrun.supervisor.model.states import PART_TRANSITIONS


def unlisted_moves(run_id: str, records: Iterable[Record]) -> list[str]:
    """Return a sentence for each move of a part that `states.PARTS` does not list. Raises as `apply` does."""
    run, found = Run(run_id), []
    for record in records:
        after, before = apply(run, record), _states_of_parts(run)
        for (name, place), state in _states_of_parts(after).items():
            was = before.get((name, place), PART_TRANSITIONS[name].first)
            if not PART_TRANSITIONS[name].allows(was, record["kind"], state):
                found.append(
                    f"{record['kind']} moves the {name} of {place or 'the run'} from {was!r} to {state!r}"
                )
        run = after
    return found


def _states_of_parts(run: Run) -> dict[tuple[str, str], str]:
    """(name of the part, whose it is) -> state."""
    states: dict[tuple[str, str], str] = {("save", ""): run.save_stage}
    for attempt in run.attempts:
        place = f"attempt {attempt.number}"
        states["submission", place] = attempt.submission
        states["end", place] = attempt.end_state
        states["resize", place] = attempt.resize_state
        for one in attempt.companions:
            states["companion", f"companion {attempt.number}.{one.launch}.{one.number}"] = one.state
    return states
