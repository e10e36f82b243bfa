"""The loop: one snapshot of the cluster for all runs, then each run moves on as far as it allows. (I/O)

One supervisor serves a home (see `store.lease`). It asks Slurm once for the jobs of all runs and gives every
run the same answer. A run whose step fails is skipped for `BROKEN_FOR_S` and the failure is logged: our bug
in one run must not cost another run, and must never end a job. A lost lease ends everything at once: the
supervisor drops all runs and what it remembers of them, since another process may already write.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

from ftrun.slurm.client.cluster import Cluster, JobRow, NodeRow
from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.records import replace
from ftrun.supervisor.config import home as config_home
from ftrun.supervisor.context.run_context import JournalChanged, RunContext
from ftrun.supervisor.context.services import STALE_AFTER_S, ClusterSnapshot, Services, Stale
from ftrun.supervisor.controller import (
    accounting,
    companions,
    dependents,
    fencing,
    finish,
    missing_jobs,
    node_history,
    observe,
    user_hooks,
    user_requests,
)
from ftrun.supervisor.controller.at_rest import Rests
from ftrun.supervisor.controller.reasons_to_end import ReasonsToEnd
from ftrun.supervisor.controller.reconcile import RunReconciler
from ftrun.supervisor.model import job_rows
from ftrun.supervisor.model.states import State
from ftrun.supervisor.publish.process import PublishProcess
from ftrun.supervisor.store import journal, node_tools
from ftrun.supervisor.store import run_dir as store_run_dir
from ftrun.supervisor.store.journal import JournalDamaged, JournalTooNew
from ftrun.supervisor.store.lease import Clock, Lease, LeaseLost
from ftrun.supervisor.store.live_steps import StepsWriter
from ftrun.supervisor.store.run_cache import RunCache, RunCacheWriter

BROKEN_FOR_S = 60.0  # how long a run is skipped after a failed step
NODES_EVERY_S = 5.0
PROVE_EVERY_S = 1.0
MOVING_POLL_S = 0.5
GLANCE_EVERY_S = 0.2
CACHE_EVERY_S = 60.0
CACHE_FIRST_S = 5.0
GLANCE_SHARE = 30.0  # the pause after a glance is at least so many times its own CPU time
_LIVE = frozenset({State.RUNNING, State.SUSPECT})
_MOVING = frozenset({State.SUBMITTING, State.SETTLING, State.RECOVERING, State.ENDING, State.NEW})


class Supervisor:
    """Looks after every run of one home while it holds the lease."""

    def __init__(
        self,
        home: str,
        cluster: Cluster,
        clock: Clock,
        lease: Lease,
        *,
        log: Any = None,
        slurm_conf: str = "",
        publish: PublishProcess | None = None,
    ) -> None:
        self.services = Services(home=home, cluster=cluster, clock=clock, lead=lease, log=log)
        self.lease = lease
        self._publish = publish
        self._reasons = ReasonsToEnd(home, slurm_conf)
        self._lease_unwritable = False  # the lease cannot be written
        self._ends = ""  # why this process ends by itself
        self._left_open = 0  # the runs that this process looked after when it lost the lease
        self.reconcilers: dict[str, RunReconciler] = {}
        self._final: dict[str, int] = {}  # final runs -> time stamp of their requests folder
        self._run_dirs = store_run_dir.RunDirs(home)
        self._found_s = clock.mono_s()  # when runs were last looked for
        self._broken: dict[str, tuple[float, str]] = {}
        self._nodes: tuple[float, dict[str, NodeRow]] | None = None
        self._tokens_s = float("-inf")
        self._told = ""
        self.ticks = 0
        self._snapshot: ClusterSnapshot | None = None
        self._next_glance_s = 0.0
        self._rests = Rests()
        self._earlier: RunCache | None = None  # what the supervisor before this one noted, at our first tick
        self._cache = RunCacheWriter(home)
        self._cache_due_s = clock.mono_s() + CACHE_FIRST_S
        self._steps = StepsWriter(home)

    # ------------------------------------------------------------------ one round

    def tick(self) -> None:
        """Take one snapshot and do one step of every run. Raises LeaseLost.

        Each effect confirms the lease by itself (`Services.prove`); besides, it is confirmed only every
        `PROVE_EVERY_S`, so that runs without work cost little. Records go into the journal file of our own
        epoch and do no harm. Without any run it is confirmed here: a lost lease must be noticed.
        """
        if not self.reconcilers:
            self.services.prove()
        self._find_runs()
        if self._earlier is not None:
            self._forget_earlier()
            self._tell_status()  # the first steps of a thousand runs take seconds
        snapshot = self._snapshot = self._look()
        proven_s = float("-inf")
        self._rests.begin_round(snapshot, self.reconcilers)
        for run_dir in list(self.reconcilers):
            if self.services.clock.mono_s() - proven_s >= PROVE_EVERY_S:
                self.services.prove()
                proven_s = self.services.clock.mono_s()
            if (
                snapshot.jobs is not None
                and self.services.clock.mono_s() - snapshot.mono_s > STALE_AFTER_S / 2
            ):
                snapshot = self._snapshot = (
                    self._look()
                )  # with very many runs, the last must be able to act, too
            self._step(run_dir, snapshot)
        self.services.accounting.look(self.services.in_background)
        if self._publish is not None:
            self._publish.look()
        self._tell_status()
        if self.services.clock.mono_s() >= self._cache_due_s:
            self._write_cache()
        if self._steps.due(self.services.clock.mono_s()):
            live = (ctx for ctx in self._contexts() if ctx.run.state in _LIVE)
            self._steps.write({ctx.run.id: seen for ctx in live if (seen := observe.step_seen(ctx))})
        self.ticks += 1

    @property
    def moving(self) -> bool:
        """Whether some run waits for ftrun rather than for Slurm or its own script."""
        return any(
            ctx.run.state in _MOVING
            or ctx.just_submitted
            or (ctx.run.state in _LIVE and observe.script_just_ended(ctx))
            or companions.are_left(ctx.run)
            for ctx in self._contexts()
        )

    @property
    def patient(self) -> bool:
        """Whether some run is in doubt: a new process would start that wait again (P6, P7)."""
        return any(ctx.run.state is State.SUSPECT or missing_jobs.is_missing(ctx) for ctx in self._contexts())

    def _contexts(self) -> list[RunContext]:
        return [reconciler.ctx for reconciler in self.reconcilers.values()]

    @property
    def idle(self) -> bool:
        """Whether there is no run to look after."""
        return not self.reconcilers

    def _find_runs(self) -> None:
        try:
            now_s = self.services.clock.mono_s()
            due = self._run_dirs.due(now_s - self._found_s)
            self._found_s = now_s
        except OSError as error:
            self.services.tell("home.unseen", why=str(error))
            return
        for run_dir in dict.fromkeys((*due, *self._broken)):
            if run_dir in self.reconcilers:
                continue
            asked = store_run_dir.requests_time_ns(run_dir)
            if self._final.get(run_dir) == asked:
                continue
            broken = self._broken.get(run_dir)
            if broken is not None and self.services.clock.mono_s() - broken[0] < BROKEN_FOR_S:
                continue
            self._take(run_dir, asked)

    def _take(self, run_dir: str, asked: int) -> None:
        if self._earlier is not None and self._earlier.is_over(run_dir, asked):
            self._cache.keep_over(self._earlier, run_dir)
            self._final[run_dir] = asked
            return
        try:
            reconciler = RunReconciler(run_dir, self.services)
        except (JournalDamaged, JournalTooNew, OSError, KeyError, ValueError) as error:
            self._set_aside(run_dir, f"{type(error).__name__}: {error}")
            return
        ctx = reconciler.ctx
        if ctx.run.final and not (_asked(ctx) or _unfinished(ctx)):
            self.services.ledger.follow(ctx.run)
            self._leave(ctx, asked)
            return
        self.reconcilers[run_dir] = reconciler

    def _set_aside(self, run_dir: str, why: str) -> None:
        known = self._broken.get(run_dir)
        self._broken[run_dir] = (self.services.clock.mono_s(), why)
        if known is None or known[1] != why:
            self.services.tell("run.set-aside", run=os.path.basename(run_dir), why=why)

    def _look(self) -> ClusterSnapshot:
        """One snapshot for all runs. If Slurm does not answer, it is blind and no run moves."""
        clock, cluster = self.services.clock, self.services.cluster
        mono = clock.mono_s()
        ids = [job for one in self.reconcilers.values() for job in one.job_ids()]
        jobs: dict[str, JobRow] | None
        nodes: dict[str, NodeRow] | None
        try:
            jobs = dict(cluster.jobs(ids)) if ids else {}
            nodes = self._look_at_nodes(mono)
        except SlurmError as error:
            jobs = nodes = None
            self.services.unseen(error.message)
        else:
            self.services.seen()
        tokens = self._look_for_tokens(mono) if jobs is not None else ()
        return ClusterSnapshot(
            clock.now_s(), clock.mono_s(), jobs, nodes, job_rows.rows_by_submission(jobs or {}), tokens
        )

    def _look_for_tokens(self, mono: float) -> tuple[JobRow, ...]:
        """Now and then, all jobs that bear a token, to find orphans of all runs.

        A failed query is repeated next time.
        """
        live = any(ctx.run.state in fencing.LIVE_STATES for ctx in self._contexts())
        if not live or mono - self._tokens_s < fencing.SEARCH_EVERY_S:
            return ()
        self._tokens_s = mono
        own = {job for one in self.reconcilers.values() for job in one.job_ids()}
        try:
            found = self.services.cluster.find(fencing.TOKEN_PREFIX)
        except SlurmError as error:
            self.services.tell("strays.unseen", why=error.message)
            return ()
        return tuple(
            row for row in found if not row.state.ended and job_rows.base_job_id(row.job_id) not in own
        )

    def _look_at_nodes(self, mono: float) -> dict[str, NodeRow]:
        """The nodes: asked for at every tick while a run is moving, else every `NODES_EVERY_S`."""
        if not self.reconcilers:
            return {}
        if self._nodes is not None and not self.moving and mono - self._nodes[0] < NODES_EVERY_S:
            return self._nodes[1]
        self._nodes = (mono, dict(self.services.cluster.nodes()))
        return self._nodes[1]

    def _step(self, run_dir: str, snapshot: ClusterSnapshot) -> None:
        reconciler = self.reconcilers[run_dir]
        ctx, cpu_s = reconciler.ctx, time.thread_time()
        if self._rests.left_out(ctx, snapshot):
            return
        if not self._guarded(run_dir, lambda: reconciler.step(accounting.with_ended_job(ctx, snapshot))):
            return
        self._rests.stepped(ctx, time.thread_time() - cpu_s)
        self.services.ledger.follow(ctx.run)
        if not self._guarded(run_dir, lambda: user_hooks.run_due_hooks(ctx)):
            return
        if snapshot.jobs is not None:
            self.services.seen(who=ctx.run.id, run=ctx.run.id)
        if ctx.run.final and not _unfinished(ctx):
            stamp = store_run_dir.requests_time_ns(
                run_dir
            )  # the stamp first: a request after this changes it
            if _asked(ctx):
                return
            self._drop(run_dir, "")
            self._leave(ctx, stamp)

    def _guarded(self, run_dir: str, deed: Callable[[], None]) -> bool:
        """Do something for one run so that a failure does not reach another run. False if it failed. Raises
        LeaseLost.
        """
        run_id = self.reconcilers[run_dir].ctx.run.id
        try:
            deed()
        except (JournalChanged, Stale):
            return False
        except LeaseLost:
            raise
        except SlurmError as error:
            self.services.unseen(error.message, who=run_id, run=run_id)
            return False
        except (JournalDamaged, JournalTooNew) as error:
            self._drop(run_dir, str(error))
            return False
        except FileNotFoundError as error:
            gone = not os.path.isdir(run_dir)  # `ftrun sbatch` was refused and removed its run
            self._drop(run_dir, "" if gone else str(error))
            return False
        except Exception as error:  # noqa: BLE001 - our bug must cost neither its job nor another run
            self._drop(run_dir, f"{type(error).__name__}: {error}")
            self.services.tell("run.failed-step", run=run_id, traceback=traceback.format_exc())
            return False
        return True

    def _drop(self, run_dir: str, why: str) -> None:
        self.reconcilers.pop(run_dir).close()
        if why:
            self._set_aside(run_dir, why)

    def _leave(self, ctx: RunContext, asked: int) -> None:
        self._final[ctx.run_dir] = asked
        self._cache.note_over(ctx.run_dir, ctx.run, ctx.folded_lengths, asked)

    def _write_cache(self) -> None:
        """Note what we know of the runs for those who look at them, and for the next supervisor."""
        self._cache_due_s = self.services.clock.mono_s() + CACHE_EVERY_S
        with contextlib.suppress(Exception):  # it is only a cache
            for ctx in self._contexts():
                self._cache.note_live(ctx.run_dir, ctx.run, ctx.folded_lengths)
            self._cache.write({ctx.run.id for ctx in self._contexts()})

    def _read_cache(self) -> None:
        """Read at our first tick what the supervisor before this one noted."""
        self._earlier = RunCache(self.services.home)
        self.services.read_run = partial(self._earlier.load, whole=True)

    def _forget_earlier(self) -> None:
        self._earlier, self.services.read_run = None, journal.load_whole

    def forget(self) -> None:
        """Drop all runs and what is remembered of them: the lease is gone."""
        self._left_open = len(self.reconcilers)
        for reconciler in self.reconcilers.values():
            reconciler.close()
        self.reconcilers.clear()
        self._final.clear()
        self._run_dirs.forget()
        self._cache = RunCacheWriter(self.services.home)
        node_history.forget_pending_exclusions(self.services)

    def _tell_status(self) -> None:
        """Write what `ftrun status` shows of the supervisor itself."""
        facts = {
            "writer": self.lease.writer,
            "epoch": self.lease.epoch,
            "runs": len(self.reconcilers),
            "blind_since_s": self.services.blind_since_s,
            "slurm_client": dict(self.services.asks),
            "set_aside": {os.path.basename(run): why for run, (_, why) in self._broken.items()},
            "not_published": dict(self._publish.problems) if self._publish is not None else {},
        }
        text = json.dumps(facts)
        if text != self._told:
            with contextlib.suppress(OSError):
                config_home.write_atomically(
                    os.path.join(self.services.home, "supervisor.json"), text.encode(), sync=False
                )
                self._told = text

    # ------------------------------------------------------------------ whole lives

    def run(self, *, poll_s: float, until: Callable[[Supervisor], bool], standby: bool = True) -> bool:
        """Lead and tick until `until` returns true, or until nothing can be done any more (`ReasonsToEnd`).

        False: another supervisor leads and `standby` is off, or this one never led.
        """
        while True:
            if not self._lead(until, standby=standby):
                return False
            keep_alive = _Renewal(self.lease)
            try:
                with contextlib.suppress(OSError):  # jobs do without it
                    node_tools.install_node_tools(self.services.home)
                self._read_cache()
                while not until(self) and not self._is_hopeless():
                    self.tick()
                    self._wait(min(poll_s, MOVING_POLL_S) if self.moving else poll_s)
                self._write_cache()
                self.forget()
                self.lease.release()
                if self._is_hopeless() or not self._left_behind(until):
                    return True
            except LeaseLost as error:
                self.services.tell("lease.lost", why=str(error))
                self.forget()
            finally:
                keep_alive.stop()
                if self._publish is not None:
                    self._publish.stop()
                self.lease.release()

    def _wait(self, seconds: float) -> None:
        """Wait for the next snapshot; read logs meanwhile, since reading them costs Slurm nothing."""
        clock = self.services.clock
        end = clock.mono_s() + seconds
        while (left := end - clock.mono_s()) > 0:
            clock.sleep(min(left, GLANCE_EVERY_S))
            if left > GLANCE_EVERY_S and clock.mono_s() >= self._next_glance_s and self._glance():
                return

    def _glance(self) -> bool:
        """Read new lines of live runs. True if a script has ended, so that Slurm is worth a query now.

        With many runs the pause between glances grows, so that the cost stays small.
        """
        if self._snapshot is None or self._snapshot.jobs is None:
            return False
        over = False
        clock = self.services.clock
        cpu_s = time.thread_time()  # CPU time, not wall time: a slow disk must not make glances rare
        snapshot = replace(self._snapshot, now_s=clock.now_s(), mono_s=clock.mono_s())
        for run_dir in list(self.reconcilers):
            reconciler = self.reconcilers[run_dir]
            ctx = reconciler.ctx
            if ctx.run.state in _LIVE:
                self._guarded(run_dir, lambda one=reconciler: one.glance(snapshot))  # type: ignore[misc]
            if run_dir in self.reconcilers and ctx.run.state in _LIVE:
                over = observe.script_ended_now(ctx) or over
        self._next_glance_s = clock.mono_s() + GLANCE_SHARE * (time.thread_time() - cpu_s)
        return over

    def _left_behind(self, until: Callable[[Supervisor], bool]) -> bool:
        """Whether a run arrived in our last moments.

        Its `ftrun sbatch` saw us alive and started no other supervisor.
        """
        self._run_dirs.forget()
        self._find_runs()
        return not self.idle and not until(self)

    def _lead(self, until: Callable[[Supervisor], bool], *, standby: bool) -> bool:
        clock = self.services.clock
        started = clock.mono_s()
        logged = False
        while not self._acquired():
            if not logged:
                self.services.tell("lease.awaited")
                logged = True
            waited = clock.mono_s() - started > self.lease.term_s * 1.5
            abandons = self._lease_unwritable and self._left_open > 0  # nobody else looks after these runs
            if until(self) or self._is_hopeless() or (not standby and waited and not abandons):
                if self._lease_unwritable:
                    self.services.tell("supervisor.ends", why="the lease cannot be written")
                return False
            clock.sleep(min(1.0, self.lease.term_s / 10))
        self.services.tell("lease.taken", epoch=self.lease.epoch)
        return True

    def _acquired(self) -> bool:
        """Try to take the lease.

        If the home is full or unreachable for a while, wait: ending would abandon the runs.
        """
        try:
            acquired = self.lease.acquire()
        except OSError as error:
            if not self._lease_unwritable:
                self.services.tell("home.unseen", why=str(error))
            self._lease_unwritable = True
            self.services.clock.sleep(self.lease.term_s / 2)
            return False
        self._lease_unwritable = False
        return acquired

    def _is_hopeless(self) -> bool:
        """Whether this process ends because it can do nothing any more; it says why."""
        blind = self.services.blind_since_s is not None
        why = self._reasons.why(
            self.services.clock.mono_s(), blind=blind, lease_unwritable=self._lease_unwritable
        )
        if why and not self._ends:
            self.services.tell("supervisor.ends", why=why)
        self._ends = self._ends or why
        return bool(self._ends)


class _Renewal:
    """Renews the lease in a thread, so that a Slurm command that hangs for 10 s does not cost the lease.

    It proves that this process runs, not that its loop does; every effect confirms the lease by itself.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lease", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._stop.wait(self._lease.term_s / 10):
            try:
                self._lease.renew()
            except LeaseLost:
                return
            except OSError:
                continue  # may be transient; without a renewal in time the lease expires

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5.0)


def _asked(ctx: RunContext) -> bool:
    return bool(user_requests.pending(ctx.run_dir, ctx.run.requests_seen))


def _unfinished(ctx: RunContext) -> bool:
    """Whether something is left to do for a final run."""
    left = dependents.are_left(ctx.run) or companions.are_left(ctx.run)
    late = finish.awaits_late_job(ctx) or companions.awaits_late(ctx)
    return left or late or user_hooks.has_pending_hooks(ctx)
