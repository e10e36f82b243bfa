"""What a publisher is, and what it is told about a run. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor.model.run import Record, Run

Kept = Mapping[str, Any]
"""What a publisher keeps of a run that is followed no more; JSON."""


@dataclass(slots=True)
class FollowedRun:
    """A run as its journal tells it now; `run` is the fold of all records that were read so far."""

    dir: str
    run: Run


class Publisher:
    """Publishes what happens to runs; each publisher overrides what it needs. All calls come from one thread, and
    one that raises is told in `ftrun status` and hinders no other publisher.

    A call must return within seconds: whoever has to wait for a network does it in a child or thread of its own.
    """

    name: str = ""  # one word; its own files are $FTRUN_HOME/publish/<name>*
    supervisor_seen_s: float = 0.0  # when the supervisor's loop last went round (Unix seconds); 0 = not yet

    def on_events(self, run: FollowedRun, events: Sequence[Record]) -> None:
        """These records were journalled since the last call, oldest first; nobody has published them yet.

        A process that crashes may be told the last ones once more when it begins again.
        """

    def on_history(self, run: FollowedRun, records: Sequence[Record]) -> None:
        """All records of this run that were published before, by an earlier process or before the journal had
        to be read again; oldest first. It comes once before the first `on_events` of a run; later calls replace
        whatever was told of that run. Where nothing was ever published in this home, all that is there is history.
        """

    def on_left(self, run: FollowedRun) -> Kept:  # noqa: ARG002 - as its overrides have it
        """This run is followed no more: it ended a while ago, or its folder is gone. Return what has to be
        known of it later, briefly ({} = nothing).
        """
        return {}

    def on_kept(self, run_id: str, kept: Kept) -> None:
        """An earlier process returned this from `on_left`. Told at the beginning, before any other call."""

    def on_back(self, run_id: str, kept: Kept) -> None:
        """That run is followed again, since a person resumed it: it counts as live, and no longer as kept."""

    def tick(self, now_s: float) -> None:
        """Every few seconds, after the events (Unix seconds)."""

    def close(self, now_s: float) -> None:
        """The process ends."""

    def problem(self) -> str:
        """Why it cannot publish, and what mends that, in one line; "" where all is well."""
        return ""
