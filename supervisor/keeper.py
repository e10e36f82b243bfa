"""One run, looked after: what is seen becomes records, and each state has one handler. (I/O)

How it thinks. `step(world)` is level-based: it compares what the journal says with what the world shows and writes down
the difference. It never waits and never loops for long; whatever needs time is asked again at the next look. All that
must survive a crash is in the journal; `Memory` holds only what can be found out again (log positions, how long
something has been so by our own monotonic clock), and starting it anew only makes ftrun more patient.

Blindness is neither clean nor dead: while Slurm cannot be seen nothing moves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ftrun.slurm.client.cluster import JobRow, JobState
from ftrun.supervisor import (
    absent,
    arrays,
    asking,
    beside,
    companions,
    dependents,
    drains,
    ends,
    halting,
    hanging,
    hanging_tasks,
    journal,
    lastgasp,
    outcome,
    queue_desk,
    recover,
    rows,
    sense,
    settle,
    store,
    strays,
    suspect,
    waiting,
    wishes,
)
from ftrun.supervisor.events import apply, fold
from ftrun.supervisor.lease import LeaseLost
from ftrun.supervisor.lifecycle import State, next_state
from ftrun.supervisor.office import Office, World
from ftrun.supervisor.run_types import Attempt, Run
from ftrun.supervisor.sense import Memory

__all__ = ["Keeper", "Moved"]

FRONT_PATIENCE_S = 180.0  # how long an `ftrun sbatch` on another host may sit between its records
JUST_SUBMITTED_S = 20.0
PROOF_LASTS_S = 1.0  # for a record; an effect is proven by itself
INSIDE_EVERY_S = 1.0  # an agent's journal is on the shared file system
STEPS_MAX = 6  # transitions of one run in one look


class Keeper:
    """Looks after one run. Raises JournalDamaged/JournalTooNew at creation."""

    def __init__(self, run_dir: str, office: Office) -> None:
        self.run_dir = run_dir
        self.office = office
        self.memory = Memory()
        self._journal: journal.Journal | None = None
        self._stays_open = False  # the journal counts as one of the descriptors
        self._sizes: dict[str, int] = {}
        self._lengths: dict[str, int] = {}
        self.run: Run = Run(os.path.basename(run_dir))
        self.reload()

    def reload(self) -> None:
        """Fold the journal anew (while another process still writes it)."""
        self._sizes = journal.sizes(self.run_dir)
        self._lengths = journal.believed_lengths(self.run_dir)
        self.run = fold(os.path.basename(self.run_dir), journal.read_run(self.run_dir))

    @property
    def attempt(self) -> Attempt:
        """The present attempt."""
        attempt = self.run.attempt
        assert attempt is not None
        return attempt

    @property
    def settings(self) -> Mapping[str, Any]:
        """The validated settings of the run."""
        return self.run.settings

    @property
    def just_submitted(self) -> bool:
        """Its job may start at any moment: worth a closer look for a while."""
        attempt = self.run.attempt
        if self.run.state is not State.QUEUED or attempt is None or attempt.submitted_at_s is None:
            return False
        return 0 <= self.office.clock.now_s() - attempt.submitted_at_s < JUST_SUBMITTED_S

    @property
    def watch_only(self) -> bool:
        """ftrun may only watch this run (`observe`, or `retries` 0), and nobody has asked for more."""
        only = bool(self.settings.get("observe")) or int(self.settings.get("retries", 20)) == 0
        return only and not self.run.wish

    def close(self) -> None:
        """Let go of files."""
        self.memory.close()
        if self._journal is not None:
            self._journal.close()
        if self._stays_open:
            self._stays_open = False
            self.office.descriptors.give()

    def record(self, kind: str, /, **data: Any) -> None:
        """Journal one record and fold it. The record is durable when this returns."""
        attempt = self.run.attempt
        numbers: dict[str, Any] = {"attempt": data.pop("attempt", attempt.number if attempt else 0)}
        numbers["job"] = data.pop("job_id", attempt.job if attempt else "")
        numbers["launch"] = data.pop("launch", attempt.launch.number if attempt else 0)
        numbers["start"] = data.pop("start", attempt.launch.start.number if attempt else 1)
        next_state(self.run.state, kind)  # what cannot follow is a mistake of ours, and is never written
        self._own_journal()
        assert self._journal is not None
        record = self._journal.append(kind, **numbers, **data)
        if not self._stays_open:
            self._journal.close()
        self.run = apply(self.run, record)
        self.office.crash(f"record:after:{kind}")
        self.office.noted(self.run.id, record)

    def _own_journal(self) -> None:
        if self._journal is not None:
            if self._journal.epoch != self.office.lead.epoch:
                raise LeaseLost("this file belongs to an epoch that is over")
            self.office.prove(within_s=PROOF_LASTS_S)
            return
        self.office.prove()
        believed = journal.believed_lengths(self.run_dir)
        if believed != self._lengths:
            raise Moved(self.run_dir)
        self._journal = journal.Journal.open_epoch(
            self.run_dir,
            epoch=self.office.lead.epoch,
            writer=self.office.lead.writer,
            believed=believed,
            now=self.office.clock.now_s,
        )
        self._stays_open = self.office.descriptors.take()

    # ------------------------------------------------------------------ one look

    def job_ids(self) -> tuple[str, ...]:
        """The jobs whose rows the next look must bring."""
        attempt, beside_it = self.run.attempt, companions.job_ids(self.run)
        if self.run.final or attempt is None or not attempt.job:
            return beside_it
        return (attempt.job, *beside_it)

    def step(self, world: World) -> None:
        """Move on as far as the world allows. Raises LeaseLost, Stale, OSError (journal)."""
        if self._journal is None and journal.sizes(self.run_dir) != self._sizes:
            self.reload()
        if self._front_at_work(world):
            return
        rival = self._journal is None and self.office.lead.rival
        if rival and rival >= journal.newest_epoch(self._sizes):
            self._own_journal()  # whoever led before may only stand still: its records count no more
        final = self.run.final
        wishes.take(self)
        halting.look(self, world)
        self.memory.looked(seen=world.jobs is not None, mono_s=world.mono_s)
        if world.jobs is None or world.nodes is None:
            return
        if final and not self.run.final:
            return  # the world was looked at when nobody asked for its job
        strays.beside(self, world)
        dependents.move(self, world)
        companions.look(self, world)
        asking.answers(self)
        for _ in range(STEPS_MAX):
            before = (self.run.state, len(self.run.attempts))
            self._handlers()[self.run.state](world)
            if (self.run.state, len(self.run.attempts)) == before:
                return
            if self.run.state in (State.QUEUED, State.SUBMITTING):
                return  # the world was looked at before this job was there
            self.office.fresh(world)

    def glance(self, world: World) -> None:
        """Read the log of a live attempt between two looks at Slurm. Notes and intends; carries out nothing."""
        if self._journal is not None and self.run.state in (State.RUNNING, State.SUSPECT):
            if self.memory.due("inside", world.mono_s, INSIDE_EVERY_S):
                beside.take(self)
                sense.note_start(self)
            self._watch(world)

    def _watch(self, world: World) -> None:
        report = sense.watch(self, world)
        if beside.in_charge(self, world):
            suspect.leave_alone(self)
            hanging.leave_alone(self)
        elif any("_" in row.job_id for row in self.rows(world)):
            hanging_tasks.look(self, world)
        elif report is not None:
            suspect.judge(self, world, report)  # of an array: a broken task must not end it
            if self.run.state in (State.RUNNING, State.SUSPECT):
                hanging.look(self, world, report)

    def _handlers(self) -> Mapping[State, Callable[[World], None]]:
        return {
            State.NEW: self._new,
            State.SUBMITTING: lambda world: outcome.look(self, world),
            State.QUEUED: self._queued,
            State.RUNNING: self._running,
            State.SUSPECT: self._running,
            State.ENDING: self._ending,
            State.SETTLING: lambda world: settle.settle(self, world),
            State.RECOVERING: lambda world: recover.recover(self, world),
            State.FINISHED: lambda world: recover.let_go(self, world),
            State.STOPPED: lambda world: recover.abandoned(self, world),
        }

    # ------------------------------------------------------------------ submitting

    def _new(self, _world: World) -> None:
        """`ftrun sbatch` died before it opened an attempt: no sbatch was called, nor can it be when attempt 1 is taken."""
        self.office.prove()
        store.open_attempt(self.run_dir, 1)
        recover.close(self)
        reason = "ftrun sbatch was interrupted before it submitted"
        self.record("run.stopped", reason=reason, **{"class": "cancelled"})

    def _front_at_work(self, world: World) -> bool:
        """`ftrun sbatch` still writes: after a record of ours, be it that of a request, nobody would believe its next one (P8)."""
        state, attempt = self.run.state, self.run.attempt
        first = attempt is None or (attempt.number == 1 and not self.run.incidents)
        early = state is State.NEW or (state is State.SUBMITTING and first)
        return early and self._journal is None and not self._front_gone(world)

    def _front_gone(self, world: World) -> bool:
        writer = str(self.run.submitter.get("writer", ""))
        if writer and store.provably_dead(writer):
            return True
        return self.memory.for_how_long(f"front:{self._lengths}", world.mono_s) >= FRONT_PATIENCE_S

    # ------------------------------------------------------------------ in Slurm's hands

    def row(self, world: World) -> JobRow | None:
        """This attempt's job in the last look, its tasks or components seen as one, if it is really ours."""
        return rows.combined(self.rows(world))

    def rows(self, world: World) -> tuple[JobRow, ...]:
        """Every row of this attempt's submission. A row that bears another token has got our id anew."""
        attempt, memory = self.attempt, self.memory
        if memory.own is None or memory.own[0] is not world.families or memory.own[1] is not attempt:
            family = world.families.get(attempt.job, ())
            memory.learn(family, attempt.token)
            user = self.run.submitter.get("user", "")
            own = rows.own(family, attempt, memory.known_as, memory.submitted_s, user=user)
            memory.own = world.families, attempt, own
        return memory.own[2]

    def _queued(self, world: World) -> None:
        row = self.row(world)
        if row is None:
            absent.missed(self, world)
            return
        absent.seen(self, world, row)
        if row.state.ended and row.restarts not in (None, self.attempt.launch.number):
            self._started(row)  # another launch than was awaited: it ended between two looks, or in the queue
        elif row.state.ended:
            self._ended(world, row)
        elif sense.is_anothers(self, world, row):
            pass  # its row comes with the next look
        elif row.state.live:
            self._started(row)
        elif "launch failed requeued held" in row.reason.lower():
            self.record("job.requeued", state=row.state.value, reason=row.reason)
        elif self.run.wish:
            self.intend_end(f"{self.run.wish} by {self.run.wish_by or 'request'}")
        else:
            waiting.spare(self, world, row)
            queue_desk.look(self, world, row)

    def _started(self, row: JobRow) -> None:
        launch = row.restarts if row.restarts is not None else absent.latest_launch(self)
        self.record(
            "job.started",
            launch=launch,
            nodes=list(row.nodes),
            started_at_s=row.start_time_s,
            partition=row.partition,
            known_as=self.memory.known_as,
            submitted_s=self.memory.submitted_s,
            limit_s=row.time_limit_s,
        )
        self.forget(launch)

    def forget(self, launch: int) -> None:
        """A new launch or attempt begins: nothing that was seen of the last one counts."""
        self.memory.close()
        kept = {name: getattr(self.memory, name) for name in ("seen_s", "looked_s", "partition")}
        self.memory = Memory(attempt=self.attempt.number, launch=launch, **kept)

    def _running(self, world: World) -> None:
        row = self.row(world)
        if row is None:
            absent.missed(self, world)
            return
        absent.seen(self, world, row)
        beside.take(self)
        sense.note_launch(self, world)
        if row.state.ended and not self.started_again(row):
            self._ended(world, row)
            return
        drains.inside(self, world)
        if len(self.rows(world)) > 1:
            arrays.note_failed(self, world)
        elif row.state.pending or self.started_again(row):  # cancelled in the queue: see `recover`
            lost_track = row.state.pending and row.restarts == self.attempt.launch.number
            reason = ends.LOST_TRACK if lost_track else row.reason
            self.record_end("job.requeued", row.state.value, reason, ())
            return
        if row.state is JobState.RUNNING:
            self._watch(world)
            hanging_tasks.end(self, world)
            if len(self.rows(world)) == 1 and self.run.state in (State.RUNNING, State.SUSPECT):
                beside.headless(self, world, row)
                beside.look_for(self, world)
        if self.run.state in (State.RUNNING, State.SUSPECT):
            halting.live(self, world, row)

    def started_again(self, row: JobRow) -> bool:
        """Slurm shows a later launch than the one that we know."""
        if row.restarts is not None:
            return row.restarts > self.attempt.launch.number
        then = self.attempt.launch.started_at_s
        return then is not None and row.start_time_s is not None and row.start_time_s > then + 1

    def _ended(self, world: World, row: JobRow) -> None:
        if sense.is_anothers(self, world, row):
            return
        sense.note_launch(self, world)
        beside.look_for(self, world, over=True)
        arrays.note_failed(self, world)
        state, ours = row.state.value, self.attempt.ended_tasks
        theirs = row.state is JobState.CANCELLED and rows.cancelled_by_others(self.rows(world), ours)
        if self.attempt.failed_tasks and row.state in (JobState.COMPLETED, JobState.CANCELLED) and not theirs:
            state = JobState.FAILED.value
        self.record_end("job.ended", state, row.reason, row.nodes, row=row)

    def record_end(
        self,
        kind: str,
        state: str,
        reason: str,
        nodes: tuple[str, ...],
        *,
        launch: int | None = None,
        row: JobRow | None = None,
    ) -> None:
        """Journal the end of a launch (the present one if none is named); `row` is the ended job's where Slurm still shows it."""
        number = self.attempt.launch.number if launch is None else launch
        job, started_at_s = (
            (row.raw_job_id or row.job_id, row.start_time_s) if row is not None else ("", None)
        )
        data = ends.end_data(self, state, reason, nodes, job=job, launch=number, started_at_s=started_at_s)
        data |= {"slurm_end_s": row.end_time_s if row is not None else None}
        self.memory.since.pop("settle", None)
        self.record(kind, launch=number, **data)

    def _ending(self, world: World) -> None:
        row = self.row(world)
        if row is None:
            absent.missed(self, world)
            return
        absent.seen(self, world, row)
        if row.state.ended:
            self._ended(world, row)
        elif row.state.live and self.started_again(row):  # the launch that was to be ended is over
            self.record_end("job.requeued", row.state.value, row.reason, ())
        elif not self.attempt.end_done:
            if not lastgasp.holds(self, world, row):
                recover.end_attempt(self, world)
        elif self.memory.for_how_long("cancelled", world.mono_s) > 30.0:
            self.memory.since["cancelled"] = world.mono_s
            self.office.act("cancel", world, lambda: self.office.cluster.cancel(self.attempt.job))

    def intend_end(self, reason: str) -> None:
        """Announce that this attempt is to be ended; `_ending` carries it out. Where ftrun may only watch, it is shown."""
        if self.watch_only:
            if self.memory.due("observed-end", 0.0, float("inf")):
                self.record("observed", decision={"kind": "end", "reason": reason})
            return
        self.memory.since.pop("cancelled", None)
        self.record("end.intended", reason=reason)


class Moved(Exception):
    """Another process wrote to the journal since we read it: look again."""
