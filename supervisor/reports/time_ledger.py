"""Where the time of a run went: one fold over its journal names every second of its life. (pure)

The intervals of a ledger follow each other without a gap, from `run.created` to the run's last record (or to
now, while it lives), so their seconds add up to the life of the run. Each second is spent on one of:

    queued      the job waits for its nodes: from `sbatch` until Slurm starts it
    startup     the script runs and has not made a step yet
    productive  steps that were made for the first time
    redone      steps that an earlier start had made already
    checkpoint  training beyond the usual time of its steps: checkpoints, evaluation, slow input
    unmeasured  the script runs, and no start of this run ever showed a step
    detection   from the first sign of a fault until it was decided what to do
    hung        from the last step of a start that hung until it was ended
    recovery    from that decision until the job waits or the script runs again; by phase
    ending      the script was over and nothing had failed
    paused      a person had paused the run
    stopped     the run had stopped, and a person resumed it later

Phases of recovery: `stop` (what is left of the start is ended and fenced), `place` (nodes are chosen),
`launch` (the script is started on them), `grow` (a restart for more nodes).

Steps are journalled once a minute. Between two such records the usual time of a step says how long the steps
took. The records of an agent carry the time of its own node; a record cannot be later than the next one in
the journal, so a clock that jumped moves a border and never makes a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import Any

from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.config.node_counts import sizes_of_settings
from ftrun.supervisor.model.agent_events import GROW_RUNG
from ftrun.supervisor.model.run import Incident, Record, Run
from ftrun.supervisor.model.types import FaultClass

SLURM_ROUNDS_S = 1.0
"""Slurm tells times in whole seconds."""

HANG = FaultClass.HANG.value
PLANNED = frozenset({FaultClass.HEALTHY.value, FaultClass.CANCELLED.value})
"""An end of these classes is no fault."""


class Spent(StrEnum):
    """What a second of a run's life was spent on."""

    QUEUED = "queued"
    STARTUP = "startup"
    PRODUCTIVE = "productive"
    REDONE = "redone"
    CHECKPOINT = "checkpoint"
    UNMEASURED = "unmeasured"
    DETECTION = "detection"
    HUNG = "hung"
    RECOVERY = "recovery"
    ENDING = "ending"
    PAUSED = "paused"
    STOPPED = "stopped"


OF_PERSONS = frozenset({Spent.PAUSED, Spent.STOPPED})
"""Time that waits for a person."""

UNDECIDED = frozenset({Spent.DETECTION, Spent.ENDING})
"""Time after the end of a start of which it is not decided yet what it was."""

RUNNING = frozenset({Spent.STARTUP, Spent.PRODUCTIVE, Spent.REDONE, Spent.CHECKPOINT, Spent.UNMEASURED})
"""Time in which the script runs and does not hang."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Part of a run's life, in Unix seconds. `held`: nodes that its jobs had; `used`: those of the script."""

    begin_s: float
    end_s: float
    spent: Spent
    phase: str = ""  # of a recovery
    attempt: int = 0
    launch: int = 0
    start: int = 0
    incident: str = ""  # the fault that it belongs to
    used: int = 0
    held: int = 0

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end_s - self.begin_s


@dataclass(frozen=True, slots=True)
class TimePoint:
    """A step that the log showed. `loss`, `step_s`: as the record has them."""

    at_s: float
    step: int
    loss: float | None = None
    step_s: float | None = None
    attempt: int = 0
    start: int = 0


@dataclass(frozen=True, slots=True)
class TimeLedger:
    """A run's life, part by part. `asked`: nodes that its user wanted; `points`: the steps that were seen."""

    intervals: tuple[Interval, ...]
    asked: int
    points: tuple[TimePoint, ...]

    @property
    def life_s(self) -> float:
        """Seconds from the run's creation to its end, or to now."""
        return self.intervals[-1].end_s - self.intervals[0].begin_s if self.intervals else 0.0

    def seconds(self) -> dict[Spent, float]:
        """Seconds by what they were spent on; they add up to `life_s`."""
        table = dict.fromkeys(Spent, 0.0)
        for one in self.intervals:
            table[one.spent] += one.seconds
        return table

    def phases(self) -> dict[str, float]:
        """Seconds of recovery by phase."""
        table: dict[str, float] = {}
        for one in self.intervals:
            if one.phase:
                table[one.phase] = table.get(one.phase, 0.0) + one.seconds
        return table

    def node_seconds(self) -> dict[str, float]:
        """Node-seconds by what they were spent on, and `spare`: held and not used. They add up to all that
        the run's jobs held. `smaller` is on top of that: what the script lacked while it ran.
        """
        table = dict.fromkeys([*(spent.value for spent in Spent), "spare", "smaller"], 0.0)
        for one in self.intervals:
            used = min(one.used, one.held)
            table[one.spent.value] += used * one.seconds
            table["spare"] += (one.held - used) * one.seconds
            if one.spent in RUNNING or one.spent is Spent.HUNG:
                table["smaller"] += max(0, self.asked - used) * one.seconds
        return table


def ledger_of(run: Run, records: Sequence[Record], now_s: float) -> TimeLedger:
    """The ledger of a run. `records`: its journal, oldest first; `run`: the fold of them."""
    moments = _moments(records)
    if not moments:
        return TimeLedger((), 0, ())
    sizes = sizes_of_settings(run.settings)
    shows_steps = any(_step_of(record) is not None for _, record in moments)
    told = [float(record["data"]["step_s"]) for _, record in moments if record["data"].get("step_s")]
    usual_s = median(told) if told else None
    sweep = _Sweep(run, moments[0][0], shows_steps=shows_steps, usual_s=usual_s)
    for at_s, record in moments:
        sweep.take(at_s, record)
    sweep.finish(max(now_s, moments[-1][0]) if not run.final else moments[-1][0])
    asked = sizes.full if sizes is not None else max((one.used for one in sweep.intervals), default=0)
    return TimeLedger(tuple(_merged(sweep.intervals)), asked, tuple(sweep.points))


class GrowingLedger:
    """The time of a run that is followed while it lives, at the cost of what is new. Only what is certain counts:
    the time of a start up to its last step, that of a fault once it was decided what to do. So figures grow
    and never fall by more than the second to which Slurm rounds; over a whole life they are those of `ledger_of`
    (nearly so after `PENDING` records).
    """

    PENDING = 128  # so many records are held for those that arrive late: an agent's are copied
    LATE_S = 60.0  # so much later than it happened a record may arrive

    def __init__(self) -> None:
        self._pending: list[Record] = []
        self._sweep: _Sweep | None = None
        self._seconds: dict[str, float] = {}
        self._node_seconds: dict[str, float] = {}

    def take(self, run: Run, records: Sequence[Record]) -> None:
        """The next records of its journal; `run`: the fold with them."""
        for begin in range(0, len(records), self.PENDING):
            self._pending += [_slim(record) for record in records[begin : begin + self.PENDING]]
            if len(self._pending) > 2 * self.PENDING:
                self._settle(run)

    def spent(self, run: Run, now_s: float) -> tuple[dict[str, float], dict[str, float]]:
        """Seconds and node-seconds until now, by what they were spent on, as `TimeLedger` has them."""
        moments = _moments(self._pending)
        seconds, node_seconds = dict(self._seconds), dict(self._node_seconds)
        sweep = self._sweep_at(run, moments)
        if sweep is None:
            return seconds, node_seconds
        sweep = replace(sweep, intervals=list(sweep.intervals), sizes=list(sweep.sizes), points=[])
        for at_s, record in moments:
            sweep.take(at_s, record)
        if run.final:
            sweep.finish(moments[-1][0] if moments else sweep.since_s)
        sweep.settle()
        sweep.run_on(now_s - self.LATE_S)
        border_s = sweep.since_s if run.final else sweep.certain_s
        certain = [
            replace(one, end_s=min(one.end_s, border_s)) for one in sweep.intervals if one.begin_s < border_s
        ]
        _add_up(run, certain, seconds, node_seconds)
        return seconds, node_seconds

    def _settle(self, run: Run) -> None:
        """Tell what happened long ago for good."""
        moments = _moments(self._pending)
        sweep = self._sweep = self._sweep_at(run, moments)
        if sweep is None:
            return
        count = len(moments) - self.PENDING
        while count and moments[count - 1][1]["kind"] not in _CERTAIN_AFTER:
            count -= 1
        if not count and len(moments) > 8 * self.PENDING:
            count = len(moments) - self.PENDING
        old = moments[:count]
        for at_s, record in old:
            sweep.take(at_s, record)
        sweep.settle()
        sweep.points.clear()
        told, sweep.intervals = sweep.intervals[:-1], sweep.intervals[-1:]
        _add_up(run, told, self._seconds, self._node_seconds)
        gone = {id(record) for _, record in old}
        self._pending = [record for record in self._pending if id(record) not in gone]

    def _sweep_at(self, run: Run, moments: Sequence[tuple[float, Record]]) -> _Sweep | None:
        if self._sweep is not None:
            return replace(self._sweep, run=run)
        if not moments:
            return None
        return _Sweep(run, moments[0][0], shows_steps=False, usual_s=None)


_CERTAIN_AFTER = frozenset(("launch.progress", "attempt.opened", "job.started", "start.begun"))
"""What went before such a record stays as it is told."""

_READ = frozenset({
    "agent_seq", "at_s", "started_at_s", "slurm_end_s", "step", "step_s", "nodes", "spares", "code", "signal", "state", "rung",
    "kind", "incident", "want",
})  # fmt: skip
"""What the fold reads of a record."""


def _slim(record: Record) -> Record:
    data = {key: value for key, value in record["data"].items() if key in _READ}
    return {key: record[key] for key in ("kind", "at", "attempt", "launch", "start")} | {"data": data}


def _add_up(
    run: Run, intervals: Sequence[Interval], seconds: dict[str, float], node_seconds: dict[str, float]
) -> None:
    sizes = sizes_of_settings(run.settings)
    ledger = TimeLedger(tuple(intervals), sizes.full if sizes is not None else 0, ())
    for spent, value in ledger.seconds().items():
        seconds[spent.value] = seconds.get(spent.value, 0.0) + value
    for name, value in ledger.node_seconds().items():
        node_seconds[name] = node_seconds.get(name, 0.0) + value


def _moments(records: Sequence[Record]) -> list[tuple[float, Record]]:
    """Each record with the time at which it happened, in that order. No time is later than that of a later
    record of the same writer: what is known last is right.
    """
    limits: dict[bool, float] = {}
    found: list[tuple[float, int, Record]] = []
    for place in range(len(records) - 1, -1, -1):
        record = records[place]
        of_agent = "agent_seq" in record["data"]
        at_s = min(_happened_at_s(record), float(record["at"]), limits.get(of_agent, float("inf")))
        if of_agent:  # it was copied: it cannot be of later
            at_s = min(at_s, limits.get(False, at_s))
        limits[of_agent] = at_s
        found.append((at_s, place, record))
    begun_s = found[-1][0] if found else 0.0
    return [(max(at_s, begun_s), record) for at_s, _, record in sorted(found, key=lambda one: one[:2])]


def _happened_at_s(record: Record) -> float:
    data = record["data"]
    if "agent_seq" in data:
        return float(data.get("at_s", record["at"]))
    if record["kind"] == "job.started" and data.get("started_at_s") is not None:
        return float(data["started_at_s"])
    if data.get("slurm_end_s") is not None:
        return float(data["slurm_end_s"]) + SLURM_ROUNDS_S
    return float(record["at"])


def point_of(record: Record, at_s: float) -> TimePoint | None:
    """The step that a record of the journal tells; None for none."""
    step, data = _step_of(record), record["data"]
    if step is None:
        return None
    return TimePoint(at_s, step, data.get("loss"), data.get("step_s"), record["attempt"], record["start"])


def _step_of(record: Record) -> int | None:
    told = record["kind"] in ("launch.progress", "start.first-step")
    return record["data"].get("step") if told else None


@dataclass(slots=True)
class _Sweep:
    """The fold: what goes on now, and since when."""

    run: Run
    since_s: float
    shows_steps: bool
    usual_s: float | None  # of a step, over the whole run
    intervals: list[Interval] = field(default_factory=list)
    points: list[TimePoint] = field(default_factory=list)  # of all starts
    here: Interval = Interval(0.0, 0.0, Spent.QUEUED)  # the state; its times do not count
    sizes: list[tuple[float, int]] = field(default_factory=list)  # of this start: (since, nodes held)
    script: bool = False  # the script runs
    seen: list[TimePoint] = field(default_factory=list)  # steps of the present start that are not told yet
    first: TimePoint | None = None  # of them all
    usual_here_s: float | None = None  # of a step, in the present start
    certain_s: float = 0.0  # what is told of the time before stays so
    best: int = 0  # the highest step so far
    spares: int = 0
    wish: str = ""

    def take(self, at_s: float, record: Record) -> None:
        """One record that happened then."""
        kind, data = str(record["kind"]), record["data"]
        if kind in ("launch.progress", "start.first-step"):
            self._note_step(at_s, record)
        elif kind in ("attempt.opened", "launch.kept", "run.resumed"):
            self._end_script(at_s, record)
            self.spares = int(data.get("spares") or self.run.settings.get("spares") or 0)
            self._go_on(at_s, Spent.QUEUED, attempt=record["attempt"], held=0, used=0)
        elif kind == "job.started":
            self._job_started(at_s, record)
        elif kind in ("start.begun", "rank.again"):
            self._start_begun(at_s, record)
        elif kind in ("companion.here", "companion.gone"):
            self._resized(at_s, len(data.get("nodes", ())) * (1 if kind.endswith("here") else -1))
        elif kind in ("start.over", "job.ended", "job.requeued"):
            self._end_script(at_s, record)
            if kind != "start.over":
                self._go_on(at_s, self.here.spent, phase=self.here.phase, held=0, used=0)
        elif kind in ("decided", "start.decided"):
            self._decided(at_s, record)
        elif kind in ("start.stopped", "start.placed") and self.here.spent is Spent.RECOVERY:
            phase = "place" if kind == "start.stopped" else "launch"
            self._go_on(at_s, Spent.RECOVERY, phase="grow" if self.here.phase == "grow" else phase)
        elif kind in ("run.finished", "run.stopped", "run.abandoned"):
            self._end_script(at_s, record)
            spent = Spent.PAUSED if self.wish == "pause" else Spent.STOPPED
            self._go_on(at_s, spent, held=0, used=0, incident="")
        self.wish = _wish_after(self.wish, kind, data)
        self._note_certain()

    def finish(self, until_s: float) -> None:
        """The run is over, or lives until then."""
        if self.script:
            self._close_script(until_s, None)
        self._go_on(until_s, self.here.spent)

    def run_on(self, until_s: float) -> None:
        """It goes on so until then, where that can have been nothing else."""
        if not (self.script or self.run.final or self.here.spent in UNDECIDED):
            self._go_on(until_s, self.here.spent, phase=self.here.phase)
            self._note_certain()

    def _note_certain(self) -> None:
        if self.here.spent not in UNDECIDED:
            self.certain_s = self.since_s

    def _go_on(self, at_s: float, spent: Spent, *, phase: str = "", **changes: Any) -> None:
        """From then on time is spent on this."""
        self._add(self.since_s, at_s, self.here.spent, phase=self.here.phase)
        self.since_s = max(self.since_s, at_s)
        if "held" in changes:
            self.sizes = []
        self.here = replace(self.here, spent=spent, phase=phase, **changes)

    def _add(self, begin_s: float, end_s: float, spent: Spent, **changes: Any) -> None:
        """Add a part of the run's life, cut where the number of nodes changed."""
        later = [(at_s, held) for at_s, held in self.sizes if begin_s < at_s < end_s]
        known = [held for at_s, held in self.sizes if at_s <= begin_s]
        parts = [(begin_s, known[-1] if known else self.here.held), *later, (end_s, 0)]
        for (from_s, held), (to_s, _) in pairwise(parts):
            if to_s > from_s:
                one = replace(self.here, begin_s=from_s, end_s=to_s, spent=spent, held=held, **changes)
                self.intervals.append(one)

    def _note_step(self, at_s: float, record: Record) -> None:
        point = point_of(record, at_s)
        here = (self.here.attempt, self.here.start)
        if point is None or not self.script or (point.attempt, point.start) != here:
            return
        if not self.seen or (point.at_s >= self.seen[-1].at_s and point.step > self.seen[-1].step):
            self.seen.append(point)
            self.points.append(point)
            self.shows_steps = True

    def _job_started(self, at_s: float, record: Record) -> None:
        self._end_script(at_s, record)
        held = len(record["data"]["nodes"])
        used = max(1, held - self.spares) if held else 0
        place = {"attempt": record["attempt"], "launch": record["launch"], "start": 1}
        self._begin_script(at_s, held=held, used=used, **place)

    def _start_begun(self, at_s: float, record: Record) -> None:
        used = len(record["data"].get("nodes", ())) or self.here.used
        place = {"attempt": record["attempt"], "launch": record["launch"], "start": record["start"]}
        same = all(getattr(self.here, key) == value for key, value in place.items())
        if self.script and same:
            self.here = replace(self.here, used=used)
            return
        self._end_script(at_s, record)
        self._begin_script(at_s, used=used, held=max(self.here.held, used), **place)

    def _begin_script(self, at_s: float, **place: Any) -> None:
        self._go_on(at_s, Spent.STARTUP, **place)
        self.script, self.seen, self.sizes, self.first = True, [], [], None
        self.usual_here_s = self.usual_s

    def _resized(self, at_s: float, nodes: int) -> None:
        """A companion brought nodes, or took them along."""
        if self.here.held:
            known = self.sizes[-1][1] if self.sizes else self.here.held
            self.sizes.append((at_s, max(0, known + nodes)))

    def _decided(self, at_s: float, record: Record) -> None:
        data = record["data"]
        rung = data.get("rung", data.get("kind", ""))
        if not rung:
            return
        self._end_script(at_s, record)
        grows = rung == GROW_RUNG  # nothing had failed
        incident = "" if grows else data.get("incident", self.here.incident)
        self._go_on(at_s, Spent.RECOVERY, phase="grow" if grows else "stop", incident=incident)

    # ------------------------------------------------------------------ one start of the script

    def _end_script(self, at_s: float, record: Record) -> None:
        """The script is over: what its time was spent on, and what follows."""
        if not self.script:
            return
        incident = self._incident()
        self._close_script(at_s, incident)
        data = record["data"]
        failed = data.get("code") or data.get("signal") or data.get("state", "COMPLETED") != "COMPLETED"
        planned = incident is not None and incident.fault in PLANNED
        spent = Spent.DETECTION if (incident is not None or failed) and not planned else Spent.ENDING
        self.here = replace(self.here, spent=spent, incident=incident.id if incident is not None else "")

    def _incident(self) -> Incident | None:
        """The fault that ended the present start, as far as it is known."""
        place = (self.here.attempt, self.here.launch, self.here.start)
        of_start = (one for one in self.run.incidents if (one.attempt, one.launch, one.start) == place)
        return next((one for one in of_start if one.diagnosed_at_s >= self.since_s), None)

    def settle(self) -> None:
        """Add what is certain of the present start, whatever comes: the time up to its last step."""
        if not self.script or not self.seen:
            return
        if self.first is None:
            self.first = self.seen[0]
            self._add(self.since_s, self.first.at_s, Spent.STARTUP)
            self.best = max(self.best, self.first.step - 1)
        for before, after in pairwise(self.seen):
            self.usual_here_s = after.step_s or self.usual_here_s
            steps = after.step - before.step
            self._trained(before.at_s, after.at_s, steps, before.step, self.usual_here_s)
        self.seen = self.seen[-1:]
        self.since_s = max(self.since_s, self.seen[0].at_s)
        self.certain_s = max(self.certain_s, self.since_s)

    def _close_script(self, end_s: float, incident: Incident | None) -> None:
        """Add the intervals of the present start, from its begin to `end_s`."""
        self.settle()
        begin_s, self.script = self.since_s, False
        end_s = max(begin_s, end_s)
        self.since_s = end_s
        name = incident.id if incident is not None else ""
        sign_s, sign = end_s, Spent.DETECTION
        if incident is not None and incident.fault in PLANNED:
            sign = Spent.ENDING
        if incident is not None and incident.first_evidence_at_s is not None:
            sign_s = min(max(begin_s, incident.first_evidence_at_s), end_s)
        if not self.seen:
            spent = Spent.STARTUP if self.shows_steps else Spent.UNMEASURED
            self._add(begin_s, sign_s, spent)
            self._add(sign_s, end_s, sign, incident=name)
            return
        last, until_s = self.seen[-1], sign_s
        usual_s = last.step_s or self.usual_here_s or _mean_step_s(self.first, last)
        if incident is not None:
            more = max(0, (incident.step or 0) - last.step)
            stepped_s = min(last.at_s + more * (usual_s or 0.0), end_s)
            hung = incident.fault == HANG
            until_s = stepped_s if hung or incident.first_evidence_at_s is None else max(sign_s, stepped_s)
            self._trained(last.at_s, until_s, more, last.step, usual_s)
            self._add(until_s, end_s, Spent.HUNG if hung else sign, incident=name)
        else:
            more = int((end_s - last.at_s) / usual_s) if usual_s else 1
            self._trained(last.at_s, end_s, more, last.step, usual_s)

    def _trained(self, begin_s: float, end_s: float, steps: int, first: int, usual_s: float | None) -> None:
        """So many steps were made in this time, after step `first`: those made before, new ones, the rest."""
        if self.intervals:
            begin_s = max(begin_s, self.intervals[-1].end_s)
        if end_s <= begin_s:
            return
        steps_s = end_s - begin_s if usual_s is None else min(end_s - begin_s, steps * usual_s)
        again = min(max(0, self.best - first), steps)
        redone_s = begin_s + (steps_s * again / steps if steps else 0.0)
        self._add(begin_s, redone_s, Spent.REDONE)
        self._add(redone_s, begin_s + steps_s, Spent.PRODUCTIVE, incident="")
        self._add(begin_s + steps_s, end_s, Spent.CHECKPOINT, incident="")
        self.best = max(self.best, first + steps)


def _mean_step_s(first: TimePoint | None, last: TimePoint) -> float | None:
    if first is None or last.step == first.step:
        return None
    return (last.at_s - first.at_s) / (last.step - first.step)


def _wish_after(wish: str, kind: str, data: Mapping[str, Any]) -> str:
    """What a person wants of the run after this record."""
    if kind in ("request.seen", "halt.due"):
        return str(data.get("want", wish))
    return "" if kind in ("halt.set", "run.resumed") else wish


def _merged(intervals: Iterable[Interval]) -> Iterable[Interval]:
    """The same, with neighbours that differ in their times alone as one."""
    last: Interval | None = None
    for one in intervals:
        if last is not None and replace(last, begin_s=one.begin_s, end_s=one.end_s) == one:
            last = replace(last, end_s=one.end_s)
            continue
        if last is not None:
            yield last
        last = one
    if last is not None:
        yield last
