"""Journals in the making: what a run would have written, at the seconds that a test says."""

from __future__ import annotations

import math
import random
from typing import Any

from ftrun.supervisor.model import events
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.reports.time_ledger import TimeLedger, ledger_of
from ftrun.supervisor.store import journal

CLASSES = ("node", "hardware-gpu", "network", "hang", "library-bug")


class Told:
    """A journal in the making: records at the seconds that a test says."""

    def __init__(self, **settings: Any) -> None:
        self.records: list[journal.Record] = []
        self.attempt, self.launch, self.start = 0, 0, 1
        self.say(0, "run.created", settings=settings, name="train")

    def say(self, at_s: float, kind: str, /, **data: Any) -> None:
        numbers = {"attempt": self.attempt, "launch": self.launch, "start": self.start, "job": "7"}
        seq = len(self.records)
        self.records.append(journal.new_record(kind, numbers, data, seq=seq, now_s=1000.0 + at_s))

    def inside(self, at_s: float, kind: str, /, *, copied_s: float | None = None, **data: Any) -> None:
        """A record of the agent, which the supervisor copied later."""
        told = {**data, "agent_seq": len(self.records), "at_s": 1000.0 + at_s}
        self.say(at_s if copied_s is None else copied_s, kind, **told)

    def opens(self, at_s: float, **data: Any) -> None:
        self.attempt, self.start = self.attempt + 1, 1
        self.say(at_s, "attempt.opened", **data)
        self.say(at_s, "submit.intended", token="t")
        self.say(at_s, "submit.done")

    def runs(self, at_s: float, nodes: int = 4) -> None:
        self.say(at_s, "job.started", nodes=[f"n{i}" for i in range(nodes)], started_at_s=1000.0 + at_s)

    def steps(self, at_s: float, step: int, step_s: float | None = 1.0) -> None:
        self.say(at_s, "launch.progress", step=step, step_s=step_s, total=None, loss=1.0)

    def fails(
        self, at_s: float, *, sign_s: float, step: int, fault: str = "node", settle_s: float = 2.0
    ) -> None:
        """The job ends then; it was seen at `sign_s` first."""
        self.say(at_s, "job.ended", state="FAILED")
        diagnosis = {"class": fault, "signature": "s", "title": "t", "nodes": ["n1"]}
        name = f"{self.attempt}.{self.launch}"
        first_s = 1000.0 + sign_s
        self.say(
            at_s + settle_s,
            "diagnosed",
            incident=name,
            diagnosis=diagnosis,
            step=step,
            first_evidence_at_s=first_s,
        )
        again = {"kind": "resubmit", "reason": "r", "spent": {}, "retries": 1}
        self.say(at_s + settle_s, "decided", incident=name, step=step, **again)

    def run(self, name: str = "r") -> Run:
        return events.fold(name, self.records)

    def ledger(self, now_s: float = 0.0) -> TimeLedger:
        return ledger_of(self.run(), self.records, 1000.0 + now_s)


def long_run(faults: int) -> tuple[Told, float]:
    """A training on eight nodes that met so many faults; and its last second."""
    luck, told, at_s, step = random.Random(faults), Told(), 120.0, 0
    told.opens(0)
    told.runs(at_s, 8)

    def stepped() -> None:
        loss = 8 * math.exp(-step / 4000) + 2 + luck.random() * 0.05
        told.say(at_s, "launch.progress", step=step, step_s=2.0, total=100_000, loss=loss)

    for _ in range(faults):
        at_s += 40
        step += 1
        stepped()
        for _ in range(luck.randint(2, 40)):
            at_s += 60
            step += 28
            stepped()
        told.fails(at_s + 30, sign_s=at_s + 20, step=step + 10, fault=luck.choice(CLASSES))
        at_s += 40
        told.opens(at_s)
        at_s += luck.random() * 300
        told.runs(at_s, 8)
        step = max(0, step - luck.randint(5, 60))
    at_s += 30
    step += 1
    stepped()
    return told, at_s
