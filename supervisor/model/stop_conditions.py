"""The conditions under which a person wants a run to stop or pause. (pure)

`halt.json` in the run's folder holds them. `ftrun stop` and `ftrun pause` write it; `{}` in it takes the
conditions back. The supervisor journals what the file says (`halt.set`) and that a condition has come true
(`halt.due`). Only then is it a request, which ends the attempt gracefully and submits nothing more. Until
then the run goes on as usual, and faults are recovered. A pause is a stop that is neither a fault nor an
end: `ftrun resume` goes on with the budgets as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor.model.run import Attempt, Run

HALT_FILE = "halt.json"
LATEST_S = 250_000_000_000.0  # in the year 9892: calendars go no further than 9999
TIME_LIMIT_MARGIN_S = (
    30.0  # between the end of the wait for a checkpoint and a time limit: what it takes to notice
)


class BadStopConditions(ValueError):
    """A halt.json that no ftrun wrote so. The message is one line."""


@dataclass(frozen=True, slots=True)
class StopConditions:
    """The conditions under which a run is to stop; the first that holds counts. `token` tells one request
    from the next.

    `now`: at once, saved or not; `after_checkpoint`: as soon as there is a new checkpoint; `at_step`: when
    training has made that step; `before_s`: early enough to be over by then (Unix seconds). None of them: no
    request.
    """

    token: str = ""
    pause: bool = False
    now: bool = False
    after_checkpoint: bool = False
    at_step: int | None = None
    before_s: float | None = None
    by: str = ""

    @property
    def wanted(self) -> bool:
        """Whether there is any condition."""
        return self.now or self.after_checkpoint or self.at_step is not None or self.before_s is not None

    @property
    def word(self) -> str:
        """stop or pause."""
        return "pause" if self.pause else "stop"

    def to_json(self) -> dict[str, Any]:
        """What stands in the file and in the journal."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> StopConditions:
        """The halt that a file says; keys that are unknown or missing mean nothing. Raises BadStopConditions."""
        if not isinstance(data, Mapping):
            raise BadStopConditions("an object is wanted")
        step, before_s = data.get("at_step"), data.get("before_s")
        if step is not None and (isinstance(step, bool) or not isinstance(step, int) or step < 0):
            raise BadStopConditions(f"at_step: a step is wanted, not {step!r}")
        number = isinstance(before_s, (int, float)) and not isinstance(before_s, bool)
        if before_s is not None and not (number and 0 <= before_s <= LATEST_S):
            raise BadStopConditions(f"before_s: a time in Unix seconds is wanted, not {before_s!r}")
        token, by = data.get("token", ""), data.get("by", "")
        return cls(
            token=token if isinstance(token, str) else "",
            pause=data.get("pause") is True,
            now=data.get("now") is True,
            after_checkpoint=data.get("after_checkpoint") is True,
            at_step=step,
            before_s=None if before_s is None else float(before_s),
            by=" ".join(by.split())[:64] if isinstance(by, str) else "",
        )

    def due(self, *, step: int | None, now_s: float, save_wait_s: float) -> str:
        """The condition that holds now, in words; "" = none yet."""
        if self.now or self.after_checkpoint:
            return "now"
        if self.at_step is not None and step is not None and step >= self.at_step:
            return f"step {self.at_step} is reached"
        if self.before_s is not None and now_s >= self.before_s - save_wait_s - TIME_LIMIT_MARGIN_S:
            return "its time has come"
        return ""

    def wait_s(self, *, now_s: float, save_wait_s: float, listens: bool) -> float | None:
        """Return how long to wait for a new checkpoint once a condition is due; None = until there is one.

        A person who asked for the next checkpoint gets it, however long the script takes, unless the script
        is known to save on request (`listens`): then `save_wait_s` is enough. A time that was set is kept.
        """
        patience: float | None = save_wait_s
        if self.after_checkpoint and not self.now and not listens:
            patience = None
        if self.before_s is not None and not self.now:
            left_s = max(0.0, self.before_s - now_s)
            patience = left_s if patience is None else min(patience, left_s)
        return patience


def stopped_on_request(run: Run, attempt: Attempt, step: int | None) -> bool:
    """Whether the script was asked to save for a stop or pause and exited 0 before its last step, or nobody
    knows which step is the last.

    A stop that told the script nothing but by a file, upon which it saved nothing, had no part in its end.
    """
    asked = run.leaving
    if run.wish == "stop" and not asked.get("signal") and asked.get("stage") != "saved":
        return False
    if (
        run.wish not in ("stop", "pause")
        or attempt.launch.end.state != "COMPLETED"
        or asked.get("stage") == "intended"
    ):
        return False
    if (asked.get("occasion"), asked.get("attempt"), asked.get("launch")) != (
        run.wish,
        attempt.number,
        attempt.launch.number,
    ):
        return False
    return attempt.total_steps is None or step is None or step < attempt.total_steps
