"""What has happened since the last look, in lines for a person. (pure)

Two folds of the same run are compared, so the journal's records are read in one place only (events.fold).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ftrun.supervisor.drill.terms import Ledger
from ftrun.supervisor.lifecycle import State
from ftrun.supervisor.run_types import Attempt, Incident, Run

__all__ = ["Chronicle"]


class Chronicle:
    """Remembers what was told."""

    def __init__(self) -> None:
        self._runs: Mapping[str, Run] = {}
        self._hurts: dict[int, int] = {}
        self._refused: dict[int, int] = {}

    def news(self, runs: Sequence[Run], ledgers: Sequence[Ledger]) -> list[str]:
        """Lines about what is new in these runs and in what the trainers wrote down."""
        lines: list[str] = []
        for number, ledger in enumerate(ledgers):
            lines += _hurts(ledger, self._hurts.get(number, 0))
            lines += [
                f"attempt {line['attempt']} woke up and left its checkpoint of step {line['step']} unwritten"
                for line in ledger.refused[self._refused.get(number, 0) :]
            ]
            self._hurts[number], self._refused[number] = len(ledger.hurts), len(ledger.refused)
        for run in runs:
            before = self._runs.get(run.id)
            name = f"{run.id}: " if len(runs) > 1 else ""
            lines += [name + line for line in _news(before, run)]
        self._runs = {run.id: run for run in runs}
        return lines


def _hurts(ledger: Ledger, told: int) -> Iterator[str]:
    seen: set[tuple[str, int]] = {(line["what"], line["start"]) for line in ledger.hurts[:told]}
    for line in ledger.hurts[told:]:
        key = (line["what"], line["start"])
        if key not in seen:
            seen.add(key)
            yield f"!! {line['what']} strikes rank {line['rank']} on {line['node']} at step {line['step']}"


def _news(before: Run | None, now: Run) -> Iterator[str]:
    for number, attempt in enumerate(now.attempts):
        old = before.attempts[number] if before and len(before.attempts) > number else None
        yield from _attempt(old, attempt)
    told = {i.id: i for i in before.incidents} if before else {}
    for incident in now.incidents:
        yield from _incident(told.get(incident.id), incident)
    if before is None or now.state is not before.state:
        yield from _state(now)
    for message in now.warnings[len(before.warnings) if before else 0 :]:
        yield f"warning: {message}"


def _attempt(old: Attempt | None, now: Attempt) -> Iterator[str]:
    if now.job and (old is None or old.job != now.job):
        without = f", without {', '.join(now.excluded)}" if now.excluded else ""
        size = f" of {now.size} nodes" if now.size else ""
        yield f"attempt {now.number} is job {now.job}{size}{without}"
    if now.launch.running_seen_at_s and (
        old is None or old.launch.running_seen_at_s != now.launch.running_seen_at_s
    ):
        yield f"attempt {now.number} runs on {','.join(now.nodes)}"
    if now.launch.start.resume_from and (
        old is None or old.launch.start.resume_from != now.launch.start.resume_from
    ):
        yield f"attempt {now.number} resumes from {now.launch.start.resume_from.rpartition('/')[2]}"
    if now.end_intended and (old is None or old.end_intended != now.end_intended):
        yield f"attempt {now.number} is to be ended: {now.end_intended}"
    if (
        now.launch.end.state
        and now.launch.end.at_s
        and (old is None or old.launch.end.at_s != now.launch.end.at_s)
    ):
        yield f"attempt {now.number}: {now.launch.end.state} {now.launch.end.reason}".rstrip()
    if now.launch.over and not (old and old.launch.over):
        yield f"attempt {now.number} is over for certain"


def _incident(old: Incident | None, now: Incident) -> Iterator[str]:
    if old is None:
        blamed = f", to blame: {', '.join(now.nodes)}" if now.nodes else ""
        yield f"diagnosed as {now.fault} ({now.signature or 'no signature'}): {now.title}{blamed}"
    if now.decision and not (old and old.decision):
        yield f"decided: {now.decision.get('kind')}, {now.decision.get('reason')}"


def _state(run: Run) -> Iterator[str]:
    if run.state is State.SUSPECT:
        yield "something fatal was seen; does training go on?"
    elif run.state is State.FINISHED:
        yield "finished"
    elif run.state is State.STOPPED:
        yield f"stopped: {run.final_reason}"
