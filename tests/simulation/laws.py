"""The invariants of a run, checked against what really happens in the simulated world. (I/O)

How it thinks. The laws know the truth (which ranks live, which node is broken, what a person asked for); ftrun does not.
Each broken law is a sentence with the virtual time; the first one says most.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftrun.hooks.checkpoints.diverged import Divergence
from ftrun.hooks.checkpoints.names import step_of
from ftrun.slurm.client.cluster import JobRow, JobState, SubmitRequest
from ftrun.slurm.client.nodeset import expand
from ftrun.supervisor.model import events
from ftrun.supervisor.model import run as model_run
from ftrun.supervisor.model.states import State
from ftrun.supervisor.nodes import from_runs, ledger
from ftrun.supervisor.reports import time_ledger
from ftrun.supervisor.store import checkpoints, journal
from tests.fake_slurm.options import read_options
from tests.simulation.holder import named
from tests.simulation.saved import spoilt
from tests.unit import moves

if TYPE_CHECKING:
    from ftrun.supervisor.model.run import Run
    from tests.fake_slurm.records import Job
    from tests.simulation.agents import Agent
    from tests.simulation.inside import Rank
    from tests.simulation.trainer import Start
    from tests.simulation.world import Process, World

__all__ = ["Laws"]

_CANCELLED = re.compile(r"\*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ \*\*\*")

PULSE_KNOWN_S = 45.0  # an agent that has shown itself for so long is known to live
ORPHAN_S = 2.5  # a second of its guard's, and what it takes to look
COMES_LATE_S = 5.0  # a companion that Slurm makes so long after it was asked
OUTLIVES_LOOK_S = 30.0
OUTLIVES_S = 300.0  # so long a companion may be there when its launch is over
LOOK_TAKES_S = 5.0  # with calls that take their time
WISH_HEARD_WITHIN_S = 60.0  # by a supervisor that leads and whose calls take their time


class Laws:
    """Told of everything that happens; `broken` lists what must not have."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.broken: list[str] = []
        self.starts: list[Start] = []  # those that trained, in the order in which they began
        self.guilty: set[str] = set()  # nodes that a fault of the plan was on
        self.submitted: Counter[str] = Counter()  # token -> calls of sbatch
        self.companions: Counter[str] = Counter()  # mark -> calls of sbatch
        self.companion_asked_s: dict[str, float] = {}
        self._outlived_s: dict[int, float] = defaultdict(float)  # companion's job -> seconds
        self.submitted_s = self.stopped_s = float(
            "-inf"
        )  # when sbatch was called last, and when the run was called over
        # Jobs that a person cancelled before ftrun meant to -> when, if they were known to wait then.
        self.person_ended: dict[int, float | None] = {}
        self.cancelled_s: dict[int, float] = {}
        self.shown: dict[
            int, tuple[float, JobState]
        ] = {}  # jobs that an answer told of -> when last, the state
        self.whole: dict[str, tuple[int, float]] = {}  # checkpoints that were saved whole -> their step, when
        self.sick: dict[
            str, tuple[int, int, int]
        ] = {}  # those that a diverged training wrote -> its attempt and launch, and how many diagnoses there were then
        self.resumed_times = 0
        self.told: list[journal.Record] = []  # the journal at the end
        self.unloadable: dict[str, str] = {}  # checkpoints that a start failed to load -> their stamp
        self.decided_s = 0.0  # when ftrun decided last
        self.exited = False  # a script exited 0
        self.reached = 0  # the highest step that the script finished at
        self.went_on_s = float("-inf")  # when a process that stood still went on last
        self.hit_late = False  # a cancel that was long on its way met a launch that it was not meant for
        self.used_up = False  # the run stopped since its budgets are really used up
        self.stopped_for_possible_cancel = (
            False  # it stopped once since nobody had looked in time: a person may have cancelled
        )
        self.wished_s: float | None = None  # since when a request of the user lies there
        self.halted_s: float | None = None  # since when a person has wanted it left, now or later
        self._sizes: dict[str, int] = {}  # of the journal as it was read last
        self._records: list[journal.Record] = []
        self._folded: tuple[list[journal.Record], Run | None] = ([], None)

    def breach(self, law: str) -> None:
        """A law was broken now."""
        self.broken.append(f"{self.world.since_start_s():8.1f} s: {law}")
        self.world.trace(f"BROKEN: {law}")

    # ------------------------------------------------------------------ the job

    def training_begins(self, start: Start) -> None:
        """One attempt of a run trains at a time; the ranks of a lost node are waited for (P6)."""
        for other in self.starts:
            if (
                other.training
                and other.alive
                and not (self._fenced(other, start) or self._behind_fence(start))
            ):
                self.breach(f"{start} begins while {other} trains on {','.join(other.nodes)}")
        self.starts.append(start)
        self._spans_are_right(start)
        if start.number > 1:
            self.starts_again(start)
        self.world.trace(f"  {start} trains on {','.join(start.nodes)}")

    def _fenced(self, old: Start, new: Start) -> bool:
        """Slurm has lost the old ranks' node, and either enough time has passed or Slurm itself started the job again."""
        node = self.world.engine.nodes[old.launch.head]
        if not node.fault and not node.not_responding:
            return False
        if new.launch.job is old.launch.job:
            return True
        lost_s = self.world.hurt_s[node.name] + self.world.engine.timing.silent_s
        return self.world.clock.now() - lost_s >= self.world.fence_wait_s

    def stepped(self, start: Start) -> None:
        """Only the newest start trains; an old one may go on behind its fence until its slurmd is back."""
        for newer in self.starts[self.starts.index(start) + 1 :]:
            if (
                newer.training
                and newer.alive
                and not (self._behind_fence(start) or self._behind_fence(newer))
            ):
                self.breach(f"{start} makes step {start.step} beside {newer}")

    def _behind_fence(self, start: Start) -> bool:
        node = self.world.engine.nodes[start.launch.head]
        mended_s = self.world.mended_s.get(node.name, float("-inf"))
        just_back = self.world.clock.now() - mended_s <= self.world.engine.timing.register_s + 1.0
        return bool(node.fault) or node.not_responding or just_back

    def saved(self, start: Start, path: str) -> None:
        """A whole checkpoint exists, of a training that is well or not."""
        if start.sick_from is None:
            self.whole[path] = (start.step, self.world.clock.now())
        else:
            self.whole.pop(path, None)
            self.sick[path] = (start.attempt, start.launch.restarts, len(self._diagnoses(self.records())))

    def not_loaded(self, start: Start, path: str) -> None:
        """What could not be loaded is set aside: no later attempt is given the same writing of it."""
        if self.world.plan.judged and dict(self.world.plan.settings).get("checkpoint-verify") != "name":
            self.breach(f"{start} resumes from {path}, which is cut: the judge could see that")
        stamp = checkpoints.content_stamp(path)
        late = any(
            other.attempt > start.attempt for other in self.starts
        )  # a rank that froze as it loaded, and woke up
        if not start.launch.restarts and not late and self.unloadable.get(path) == stamp:
            self.breach(f"{start} resumes from {path} again, which could not be loaded before")
        self.unloadable[path] = stamp

    def resumed(self, start: Start, path: str) -> None:
        """Nothing is lost: a start goes on from the newest whole checkpoint."""
        # ftrun may hear that one could not be loaded only when a rank that woke up has written it anew: that costs the steps
        # since the one before it, and no data.
        aside = {
            (record["data"]["path"], record["data"]["stamp"])
            for record in self.records()
            if record["kind"] == "checkpoint.set-aside"
        }
        # What an agent set aside stays so in later attempts, too.
        inside = (*self.records(), *self.agent_records(start))
        told = [record["data"] for record in inside if record["kind"] == "start.decided"]
        aside |= {(path, stamp) for data in told for path, stamp in data["set_aside"]}
        poisons = self._poisons(start)
        # What nobody looked at (no answer to the first submission, a cancel, a rank that woke up) nobody can know.
        attempt, launch, before = self.sick.get(path, (0, 0, 0))
        later = self._diagnoses(self.records())[before:] + self._diagnoses(self.agent_records(start))
        # Where the nodes did not see the run's folder, the supervisor knows no log of the launch; its agent does.
        where = (attempt, launch)
        by = ("start.diagnosed", *(("diagnosed",) if where in self._launches_seen() else ()))
        looked = any((r["attempt"], r.get("launch", 0)) == where and r["kind"] in by for r in later)
        if start.sick_from is not None and not start.launch.restarts and looked:
            self.breach(f"{start} resumes from {path}, which a diverged training wrote")
        # Two starts that made no step from one checkpoint speak against it, though it be whole: that is a choice (docs/policy.md).
        decided = [record["data"] for record in self.records() if record["kind"] == "decided"]
        fruitless = any(data["older_checkpoint"] for data in (*decided, *told))
        newest = max(
            (
                step
                for saved, (step, at_s) in self.whole.items()
                if at_s < start.began_s
                and not spoilt(saved, poisons, step)
                and not (
                    (fruitless or saved in self.unloadable)
                    and (saved, checkpoints.content_stamp(saved)) in aside
                )
            ),
            default=0,
        )
        # What was set aside, and then written anew, is known again at the next submission only.
        if start.step < newest and not start.launch.restarts:
            self.breach(f"{start} resumes at step {start.step} of {path or 'nothing'}, {newest} was saved")
        self.world.trace(f"  {start} resumes at step {start.step}")

    def _launches_seen(self) -> set[tuple[int, int]]:
        return {(r["attempt"], r["launch"]) for r in self.records() if r["kind"] == "launch.seen"}

    @staticmethod
    def _diagnoses(records: Iterable[journal.Record]) -> list[journal.Record]:
        return [one for one in records if one["kind"] in ("diagnosed", "start.diagnosed")]

    def _poisons(self, start: Start | None = None) -> tuple[Divergence, ...]:
        """The divergences that were noted, by the supervisor or by the agent of a start."""
        records = (*self.records(), *(self.agent_records(start) if start is not None else ()))
        told = [record["data"] for record in records if record["kind"] == "checkpoint.poisoned"]
        return tuple(Divergence(d["name"], d["before_step"], d["since_s"], d["until_s"]) for d in told)

    def script_finished(self, start: Start) -> None:
        """The script exited 0."""
        self.exited = True
        self.reached = max(self.reached, start.step)
        self.world.trace(f"  {start} exits 0 at step {start.step}")

    # ------------------------------------------------------------------ inside an allocation

    def starts_again(self, start: Start) -> None:
        """A start inside an allocation uses no node that was set aside, and none that was dead, or no good, when the nodes were asked."""
        assert start.inside is not None
        told = [r["data"] for r in self.agent_records(start) if r["kind"] == "start.decided"]
        aside: set[str] = set()
        for data in told:  # one whose exclusion is over may come back to a run that grows
            aside = set(data["aside"]) if data["rung"] == "grow" else aside | set(data["aside"])
        # One that left the job may be mended, and come back by a companion.
        aside = {node for node in aside if node not in start.nodes or start.host(node) is start.launch}
        if aside & set(start.nodes):
            self.breach(f"{start} uses {sorted(aside)}, which were set aside")
        nodes, hurt_s = self.world.engine.nodes, self.world.hurt_s
        dead = [n for n in start.nodes if nodes[n].fault and hurt_s[n] < start.inside.over_s]
        if len(start.launch.nodes) == 1 and len(start.nodes) == 1:
            dead = []  # it is the one that the agent lives on: no daemon is asked for it
        if dead:
            self.breach(f"{start} begins on {dead}, which did not answer")
        unfit = sorted(filter(self.world.unfit, start.nodes))
        if unfit:
            self.breach(f"{start} begins on {unfit}, which said that no start should use them")
        plan = self.world.plan
        inside = (
            range(plan.least, plan.wanted + 1) if plan.least and start.number > 1 else ()
        )  # by the ladder
        known = {self._size(start.attempt), self._resizing(), *inside}
        if len(start.nodes) not in known:
            wanted = self._size(start.attempt)
            self.breach(f"{start} begins on {len(start.nodes)} nodes instead of {wanted}")

    def _size(self, attempt: int) -> int:
        """How many nodes the script of an attempt uses."""
        run = self.run()
        known = [one.size for one in run.attempts if one.number == attempt] if run is not None else []
        return (known[-1] if known else 0) or self.world.plan.wanted

    def _resizing(self) -> int:
        """The size that the waiting job is being made to ask for; 0 = none: whether that was done in time, its nodes tell."""
        run = self.run()
        return run.attempt.resizing if run is not None and run.attempt is not None else 0

    def _at_valid_size(self, request: SubmitRequest, attempt: int) -> None:
        """An elastic run is submitted at a size that it may have, and with no more than its spares on top; every other one at its own."""
        plan, size = self.world.plan, self._size(attempt)
        if not (plan.least or plan.wanted) <= size <= plan.wanted:
            self.breach(f"attempt {attempt} is submitted at size {size}: {plan.least}-{plan.wanted}")
        nodes = read_options(request.argv, request.script).node_count
        if not size <= nodes <= size + plan.spares:
            self.breach(f"attempt {attempt} of size {size} is submitted with {nodes} nodes")
        kinds = ("queue.moved", "decided", "run.resumed", "submit.lost")
        why = [record for record in self.records() if record["kind"] in kinds][-1:]
        if why and why[0]["kind"] == "queue.moved" and why[0]["data"]["decision"]["size"] != size:
            self.breach(f"attempt {attempt} is submitted at size {size}, which was not decided")

    def _since_opened(self, back: int = 2) -> list[journal.Record]:
        """The records since the last attempt but one was opened."""
        records = self.records()
        opened = [i for i, record in enumerate(records) if record["kind"] == "attempt.opened"]
        return records[opened[-back] :] if len(opened) >= back else records

    def _moved(self) -> bool:
        """The present attempt was told to give way to a smaller one; only a run that has run before may be."""
        moved = any(record["kind"] == "queue.moved" for record in self._since_opened(1))
        ran = any(record["kind"] in ("job.started", "job.ended") for record in self.records())
        return moved and ran and bool(self.world.plan.least)

    def agent_records(self, start: Start) -> list[journal.Record]:
        """What the agent of a launch has journalled, copied or not."""
        path = start.folder / "agent" / f"{start.launch.restarts}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def orphan_acts(self, rank: Rank, since_s: float) -> None:
        """A rank that its start left behind writes; not for long beside a newer start (P6)."""
        now = self.world.clock.now()
        for newer in self.starts[self.starts.index(rank.start) + 1 :]:
            beside_s = now - max(since_s, newer.began_s)
            if newer.training and newer.alive and beside_s > ORPHAN_S and self._seen_for(ORPHAN_S):
                self.breach(
                    f"a rank of {rank.start} on {rank.node} writes beside {newer} for {beside_s:.1f} s"
                )
                rank.alive = False

    def _seen_for(self, seconds: float) -> bool:
        """The nodes have seen the run's folder for so long."""
        begin_s, for_s = self.world.plan.blind_nodes_s
        return not (for_s and begin_s <= self.world.since_start_s() <= begin_s + for_s + seconds)

    def agent_acts(self, agent: Agent, what: str) -> None:
        """An agent ends only what is not healthy."""
        start = agent.inside.start
        if what not in ("steps.cancel:before", "script.end:before") or start.over:
            return
        if self._is_well(start) and not (
            self._moved_off(start) or self._grows(start) or self._mended_meanwhile(start)
        ):
            self.breach(f"the agent ends {start} ({what}) although it is healthy")

    def _mended_meanwhile(self, start: Start) -> bool:
        """A node of it came back after the end was announced, or just before, and had not registered yet: the steps may have been told."""
        announced = [r["at"] for r in self.agent_records(start) if r["kind"] == "start.end.intended"]
        known_s = announced[-1] - self.world.engine.timing.register_s - 1.0 if announced else float("inf")
        return any(self.world.mended_s.get(node, 0.0) >= known_s for node in start.nodes)

    def _grows(self, start: Start) -> bool:
        """More nodes are there for it, and what it had done was saved but for what was made since the last look.

        It may go on for long after the end was announced, where Slurm answers no cancel of its steps in time: such a cancel may
        have reached one of them, or reach it later. So nobody could take the end back, and what is made meanwhile counts nothing.
        """
        told = [r for r in self.agent_records(start) if r["kind"].startswith(("grow.", "companion."))]
        begun = any(r["kind"] == "grow.begun" and r["start"] == start.number for r in told)
        there = {node for r in told if r["kind"] == "companion.here" for node in r["data"]["nodes"]}
        more = {*start.launch.job.nodes, *there} - {*start.nodes}
        saved = max((step for step, _ in self.whole.values()), default=0)
        late_s = LOOK_TAKES_S + self._unanswered_s(start)
        little = start.step - saved <= 1 + late_s / self.world.plan.step_s
        return begun and little and bool(more) and bool(self.world.plan.least)

    def _unanswered_s(self, start: Start) -> float:
        """For how long a cancel of the steps of a start has been announced that no step of it has felt."""
        announced = [
            record["at"]
            for record in self.agent_records(start)
            if record["kind"] == "steps.cancel.intended" and record["start"] == start.number
        ]
        return self.world.clock.now() - announced[-1] if announced else 0.0

    def _moved_off(self, start: Start) -> bool:
        """Somebody else drains a node of it, and what it has done is saved but for what was made since the last look."""
        nodes = [self.world.engine.nodes[name] for name in start.nodes]
        saved = max((step for step, _ in self.whole.values()), default=0)
        late_s = self.world.poll_s + LOOK_TAKES_S
        little = start.step - saved <= 1 + late_s / self.world.plan.step_s
        return little and any(node.drained and not node.reason.startswith("ftrun:") for node in nodes)

    # ------------------------------------------------------------------ what ftrun does

    def acts(self, process: Process, what: str) -> None:
        """The lease was proven just before the effect, and once for each (P8)."""
        if not process.leads:
            self.breach(f"{process.name} acts ({what}) although it does not lead")
        process.leads = False
        wished = self.wished_s is not None or self.halted_s is not None
        if self.world.plan.watch_only and not wished and not self.resumed_times:
            self.breach(f"{process.name} acts ({what}) on a run that it may only watch")

    def resumes(self) -> None:
        """A person takes back that the run ends."""
        self.resumed_times += 1
        self.wished_s = self.halted_s = None
        self.person_ended.clear()

    def submits(self, request: SubmitRequest) -> None:
        """A token goes to sbatch once; never against a person's wish; always with nodes left to run on."""
        world = self.world
        self.submitted[request.token] += 1
        self.submitted_s = world.clock.now()
        if self.submitted[request.token] > 1:
            self.breach(f"{request.token} goes to sbatch again")
        attempt = int(request.token.rsplit(":", 1)[1])
        if attempt == 1:
            return
        self._ended_with_companions(attempt)
        self._at_valid_size(request, attempt)
        # What waited and is gone was cancelled, unless a controller crashed in between: then it may have been forgotten.
        ended = {
            number
            for number, waited_s in self.person_ended.items()
            if (waited_s is not None and waited_s > world.crashed_s) or self._left_a_trace(number)
        }
        if ended:
            self.breach(f"attempt {attempt} is submitted although a person cancelled {ended}")
        # Who stood still between his last proof and the effect hears a wish only afterwards.
        heard_s = max(self.wished_s or 0.0, self.went_on_s)
        if self.wished_s is not None and world.clock.now() - heard_s > WISH_HEARD_WITHIN_S:
            self.breach(f"attempt {attempt} is submitted although the user asked to end the run")
        excluded = {
            node
            for word in request.argv
            if word.startswith("--exclude=")
            for node in expand(word.partition("=")[2])
        }
        world.trace(f"  sbatch of attempt {attempt} without {','.join(sorted(excluded)) or 'nothing'}")
        if world.plan.nodes - len(excluded) < self._size(attempt):
            self.breach(f"attempt {attempt} excludes so many nodes that it cannot run: {sorted(excluded)}")
        self._kept_out(attempt, excluded)
        # A run that was stopped, and is resumed by a person, goes on as its decision would have had it.
        kinds = ("decided", "observed", "run.stopped")
        decided = [record["data"] for record in self.records() if record["kind"] in kinds]
        avoided = set(next((data["avoid"] for data in reversed(decided) if data.get("avoid")), ()))
        nodes = world.engine.nodes
        # What no job can be placed on costs the run nothing: lost nodes, and those that are drained already.
        usable = {
            n
            for n in excluded - avoided
            if not (nodes[n].down or nodes[n].not_responding or nodes[n].drained)
        }
        usable -= {
            n for n in usable if world.mended_s.get(n, 0.0) > self.decided_s
        }  # it was not in the way then
        cap = max(1, int(world.exclude_cap * world.plan.nodes))
        if len(usable) > cap:
            self.breach(f"attempt {attempt} excludes {sorted(usable)}, the cap is {cap}")

    def _kept_out(self, attempt: int, excluded: set[str]) -> None:
        """What was decided to be left out, by the supervisor or by an agent, is left out later, too, as long as its time runs and the caps have room."""
        world, now_s = self.world, self.world.clock.now()
        held: dict[str, float] = {}
        for record in self.records():
            if record["kind"] in ("decided", "start.decided"):
                data = record["data"]
                held |= dict.fromkeys(data.get("exclude", ()), data.get("exclude_until_s", 0.0))
                for node in data.get("relax", ()):
                    held.pop(node, None)
        # One that is drained gets no job: leaving it out, too, may only keep the job from starting at all.
        held = {node: until_s for node, until_s in held.items() if not world.engine.nodes[node].drained}
        due = {node for node, until_s in held.items() if until_s > now_s + max(world.plan.skews_s) + 60.0}
        room = min(int(world.exclude_cap * world.plan.nodes), world.plan.nodes - world.plan.wanted) - len(
            excluded
        )
        up = {
            one.name
            for one in world.engine.nodes.values()
            if not (one.down or one.not_responding or one.drained)
        }
        if due - excluded and room > 0 and len(up - due - excluded) >= self._size(attempt):
            self.breach(
                f"attempt {attempt} may use {sorted(due - excluded)}, which were decided to be left out"
            )

    def excludes(self, job: Job | None, nodes: Sequence[str]) -> None:
        """A waiting job may be kept off some nodes, the cap being what bounds them, and never off so many that it cannot run."""
        plan = self.world.plan
        self.world.trace(f"  a waiting job is kept off {','.join(nodes) or 'nothing'}")
        if job is None or job.state.ended:
            return  # long on its way: Slurm refuses it
        if not self._first_attempt(job):
            run, latest_s = self.run(), self.world.clock.now() + max(*self.world.plan.skews_s, 0.0)
            still = {one.node for one in run.excluded if one.until_s > latest_s} if run is not None else set()
            if set(nodes) - set(job.excluded) or (set(job.excluded) - set(nodes)) & still:
                self.breach(
                    f"a later attempt is kept off other nodes than before, and not since time is up: {job}"
                )
            return
        if len(nodes) > max(1, int(self.world.exclude_cap * plan.nodes)):
            self.breach(f"a waiting job is kept off {nodes}: more than the cap")
        if plan.nodes - len(nodes) < plan.wanted:
            self.breach(f"a waiting job is kept off so many nodes that it cannot run: {nodes}")

    @staticmethod
    def _first_attempt(job: Job) -> bool:
        return job.comment.endswith(":1")

    def cancels(self, job: Job | None, looked_s: float) -> None:
        """No healthy job is cancelled: only what stands still after a fatal line, what the user gave up, and strays."""
        if job is None or job.state.ended:
            return
        if named(job) is not None:
            self.companion_ends(job, "the supervisor")
            return
        if self.wished_s is not None or self.halted_s is not None or self._is_stray(job):
            return
        if job.state is JobState.PENDING:
            # A second job of a token may get the number of the first, which Slurm has forgotten: its attempt is decided.
            second = any(s.launch.job.number == job.number and s.launch.job is not job for s in self.starts)
            if job.restarts == 0 and not (job.held or self.world.rewound or second or self._moved()):
                self.breach(f"job {job.number} is cancelled although it only waits for its first start")
            return
        start = next((s for s in reversed(self.starts) if s.launch is job.launch), None)
        if start is None or job.state is not JobState.RUNNING:
            return  # it never trained, or is ending already
        if start.launch.head not in job.nodes:
            return  # Slurm has taken the node of its script from it
        if self._moved_off(start):
            return
        agent = start.inside.agent if start.inside is not None else None
        if agent is not None and agent.seen_for_s >= PULSE_KNOWN_S and self._seen_for(PULSE_KNOWN_S):
            self.breach(f"job {job.number} is cancelled although the agent in it lives")
        if (start.launch.restarts or self._moved()) and start.launch.started_s > looked_s:
            self.hit_late = True
            return  # it was in the queue at the last look
        # The first fatal line since the last step: what is printed after it takes nothing back.
        # Whose ranks are gone from a node that crashed waits for them, whether Slurm knows it by now or not.
        there = [start.host(node).processes.get(node) for node in start.nodes]
        hangs = start.hung or not all(one is not None and one.alive for one in there)
        told = (start.fatal_s, start.last_step_s if hangs else None, start.claimed_s)
        fatal_s = min((at_s for at_s in told if at_s is not None), default=None)
        quiet_s = self.world.clock.now() - max(start.last_step_s, fatal_s or 0.0)
        least_s = self.world.end_wait_s
        if hangs and self.world.clock.now() - start.last_step_s >= self.world.hang_min_s:
            least_s = 0.0  # it was held to hang: a silence of its own, whatever the lines say
        if fatal_s is None or quiet_s < least_s - 1.0:
            self.breach(f"job {job.number} is cancelled at step {start.step} although {start} is healthy")

    def companion_asked(self, request: SubmitRequest) -> None:
        """An agent submits a companion: each mark once, at a size that is wanted."""
        self.companions[request.token] += 1
        self.companion_asked_s[request.token] = self.world.clock.now()
        self.world.trace(f"  sbatch of {request.token}: {' '.join(request.argv)}")
        if self.companions[request.token] > 1:
            self.breach(f"{request.token} goes to sbatch again")

    def companion_ends(self, job: Job | None, who: str) -> None:
        """Nobody of us ends a companion on whose nodes a healthy start works."""
        name = named(job) if job is not None else None
        if job is None or name is None or job.state is not JobState.RUNNING:
            return
        if self.wished_s is not None or self.halted_s is not None:
            return
        start = self.starts[-1] if self.starts else None
        if start is None or not start.training or start.over or not start.alive:
            return
        if start.launch.job.launch is not start.launch or start.launch.job.state is not JobState.RUNNING:
            return  # Slurm ends the main job, and it goes with it
        used = [node for node in start.nodes if start.host(node) is job.launch]
        healthy = self._is_well(start) and all(start.host(node).running(node) for node in start.nodes)
        if used and healthy and not self._moved_off(start):
            self.breach(f"{who} ends companion job {job.number} with {used} of {start}, which is healthy")

    def _ended_with_companions(self, attempt: int) -> None:
        """The next attempt is not submitted before the companions of the last one are gone, or not heard of for long (P6)."""
        world = self.world
        for job in world.engine.jobs.values():
            name = named(job)
            if name is None or name[0] >= attempt or job.state.ended:
                continue
            asked_s = self.companion_asked_s.get(job.comment.split()[-1], 0.0)
            if job.submit_s - asked_s > COMES_LATE_S:
                continue  # Slurm made it long after it was asked: it ends itself
            left = [node for node in job.nodes if not self._is_fenced(node)]
            if left or not job.nodes:
                self.breach(
                    f"attempt {attempt} is submitted while companion job {job.number} is {job.state.value} on {left}"
                )

    def _is_fenced(self, name: str) -> bool:
        """The node was lost so long ago that nothing on it counts."""
        node, world = self.world.engine.nodes[name], self.world
        if not node.fault and not node.not_responding:
            return False
        lost_s = world.hurt_s.get(name, 0.0) + world.engine.timing.silent_s
        return world.clock.now() - lost_s >= world.fence_wait_s

    def companions_left(self) -> None:
        """Looked at now and then: no companion outlives its main launch for long while Slurm answers and somebody looks."""
        world = self.world
        for job in world.engine.jobs.values():
            name = named(job)
            if name is None or job.state.ended:
                continue
            owner = next(
                (s for s in reversed(self.starts) if (s.attempt, s.launch.restarts) == name[:2]), None
            )
            main = owner.launch.job if owner is not None and owner.launch.job.launch is owner.launch else None
            lives = main is not None and main.state is JobState.RUNNING
            lost = any(world.engine.nodes[node].fault for node in job.nodes)
            if lives or lost or world.engine.controller != "up" or world.hidden or not world.processes:
                continue
            self._outlived_s[job.number] += OUTLIVES_LOOK_S
            if self._outlived_s[job.number] > OUTLIVES_S:
                self._outlived_s[job.number] = float("-inf")
                self.breach(f"companion job {job.number} ({job.state.value}) has outlived its launch")

    def _spans_are_right(self, start: Start) -> None:
        """A start uses nodes that its jobs have, each once."""
        if len({*start.nodes}) != len(start.nodes):
            self.breach(f"{start} uses a node twice: {start.nodes}")
        for node in start.nodes:
            launch = start.host(node)
            if node not in launch.nodes:
                self.breach(f"{start} uses {node}, which job {launch.job_id} does not have")
            if launch is not start.launch and launch.job is not start.launch.job:
                name = named(launch.job)
                if name is None or name[:2] != (start.attempt, start.launch.restarts):
                    self.breach(
                        f"{start} uses {node} of job {launch.job_id}, which is none of its companions"
                    )

    def _is_well(self, start: Start) -> bool:
        told = (start.fatal_s, start.claimed_s, start.stuck_s)
        return not (start.hung or start.cancelled or start.reported or any(one is not None for one in told))

    def _is_stray(self, job: Job) -> bool:
        """Not the job that the run's newest attempt knows as its own."""
        run = self.run()
        if run is None or run.attempt is None:
            return True
        number = int(job.comment.rsplit(":", 1)[1])
        own = run.attempt.job
        if number == run.attempt.number and run.attempt.submission == "lost":
            return True
        return run.final or number < run.attempt.number or (bool(own) and own != str(job.number))

    def drains(self, node: str) -> None:
        """A drain needs a source that no user can write, and stays under the cap (P9)."""
        world = self.world
        row = world.engine.nodes[node]
        if node not in world.hurt_s:
            self.breach(f"{node} is drained although Slurm never lost it")
        ours = [n for n in world.engine.nodes.values() if n.drained and n.reason.startswith("ftrun:")]
        others = [n for n in ours if n is not row]
        if len(others) + 1 > max(1, int(0.05 * world.plan.nodes)):
            self.breach(f"{node} is drained beside {[n.name for n in others]}: more than the cap")

    def jobs_seen(self) -> list[str]:
        """`attempt N` of every job that Slurm ever had of the run, in the order in which they came."""
        return [f"attempt {token.rpartition(':')[2]}" for token in self.world.engine.tokens]

    # ------------------------------------------------------------------ people

    def looks(self, rows: Iterable[JobRow]) -> None:
        """A supervisor is told of jobs."""
        for row in rows:
            number = int(row.raw_job_id or row.job_id)
            self.shown[number] = (self.world.clock.now(), row.state)
            if row.state.live and self.cancelled_s.get(number, float("inf")) <= self.world.crashed_s:
                self.person_ended.pop(number, None)  # the controller forgot the cancel when it crashed

    def person_cancels(self, job: Job) -> None:
        """A person ends a job that ftrun has not meant to end; its companions are none of its jobs."""
        if named(job) is not None:
            return
        run = self.run()
        meant = run is not None and run.attempt is not None and run.attempt.ended_by_us
        waits_or_runs = job.state in (JobState.PENDING, JobState.RUNNING)  # Slurm ignores it afterwards
        # One that never had the claim, since another job of its token trained, is nobody's run, whatever ftrun knows yet.
        surplus = any(s.launch.job is not job and s.launch.job.comment == job.comment for s in self.starts)
        if waits_or_runs and not (meant or surplus or self._cancel_intended() or self._is_stray(job)):
            shown_s, state = self.shown.get(job.number, (0.0, None))
            began_s = [start.launch.started_s for start in self.starts if start.launch.job is job]
            told = not began_s or (state is JobState.PENDING and shown_s > max(began_s))
            waited = job.state is JobState.PENDING and told
            self.cancelled_s[job.number] = now_s = self.world.clock.now()
            self.person_ended[job.number] = now_s if waited else None

    def _left_a_trace(self, number: int) -> bool:
        """Somebody could know that a person ended it: an answer said so, or the words that slurmstepd leaves in the job's log.

        Where the node died first and Slurm forgot the job before anyone looked, only accounting could tell.
        """
        if self.shown.get(number, (0.0, None))[1] is JobState.CANCELLED:
            return True
        log = Path(self.world.cwd) / f"slurm-{number}.out"
        return log.is_file() and _CANCELLED.search(log.read_text(errors="replace")) is not None

    def _cancel_intended(self) -> bool:
        """Our own cancel of the present attempt's job is journalled: whose it was in the end, nobody can tell."""
        records = self.records()
        opened = max((i for i, r in enumerate(records) if r["kind"] == "attempt.opened"), default=0)
        return any(record["kind"] == "cancel.intended" for record in records[opened:])

    # ------------------------------------------------------------------ the end

    def records(self) -> list[journal.Record]:
        """The run's journal; [] before there is one."""
        if not self.world.run_dir or not os.path.isdir(os.path.join(self.world.run_dir, "journal")):
            return []
        sizes = journal.sizes(self.world.run_dir)
        if sizes != self._sizes:
            self._records, self._sizes = journal.read_run(self.world.run_dir), sizes
        return self._records

    def run(self) -> Run | None:
        """The run as its journal tells it: what was folded stays as long as the records before it do."""
        records = self.records()
        done, run = self._folded
        if records[: len(done)] != done or run is None:
            done, run = [], model_run.Run(os.path.basename(self.world.run_dir))
        for record in records[len(done) :]:
            run = events.apply(run, record)
        self._folded = (records, run)
        return run if records else None

    def at_the_end(self) -> None:
        """Long after the last fault: every run is over, with a reason, and nothing of it is left in Slurm."""
        run = self.run()
        self.told = self.records()
        if run is None:
            return
        for move in moves.unlisted_moves(run.id, self.told):
            self.breach(f"a move that no table has: {move}")
        self._time_adds_up(run)
        plan = self.world.plan
        if not run.final and plan.watch_only and any(start.hung and start.training for start in self.starts):
            return  # it hangs, and ftrun may not end it
        if not run.final and plan.watch_only and any(r["kind"] == "observed" for r in self.records()):
            return  # it goes on without the node of its script, and ftrun may not end it
        if not run.final:
            self.breach(f"the run is still {run.state.value}")
            return
        self.world.trace(f"end: {run.state.value}: {run.final_reason}")
        if not run.final_reason:
            self.breach("the run ended without a reason")
        left = [
            job.number
            for job in self.world.engine.jobs.values()
            if not job.state.ended and run.token.removeprefix("ftrun:") in job.comment
        ]
        if left and not plan.watch_only:
            self.breach(f"jobs {left} are left although the run is {run.state.value}")
        if run.state is State.FINISHED and not self.exited:
            self.breach("the run is called finished, its script never exited 0")
        if run.state is State.FINISHED and self.reached != plan.steps and not self._left_early():
            self.breach(f"the run finished at step {self.reached} of {plan.steps}")
        self.used_up = run.state is State.STOPPED and self._spent(run)
        # A job that the controller forgot in the queue while nobody watched looks as one that a person cancelled there.
        forgotten = bool(self.world.lost_waiting) and "gone from the queue unstarted" in run.final_reason
        self.stopped_for_possible_cancel = any(
            "until Slurm could have forgotten it" in str(r["data"].get("reason")) for r in self.records()
        )
        forgotten = forgotten or self._looked_too_late(run.final_reason)
        asked = (
            self.wished_s is not None or self.halted_s is not None or bool(self.person_ended)
        )  # after the one resume that a plan has
        asked = asked or (
            self.hit_late and "cancelled by a person" in run.final_reason
        )  # nobody else can know whose it was
        if plan.must_finish and run.state is not State.FINISHED and not (self.used_up or forgotten or asked):
            self.breach(f"the run was given up without need: {run.final_reason}")
        self._budgets(run)
        self._no_thrash(run)
        self._exclusions(run)
        self._ledger(run)

    def _time_adds_up(self, run: Run) -> None:
        """Every second of its life is spent on one thing, and every node-hour, whatever the clocks did."""
        found = time_ledger.ledger_of(run, self.told, run.last_at_s)
        parts = found.intervals
        if any(one.end_s != other.begin_s for one, other in itertools.pairwise(parts)):
            self.breach("the ledger of the run's time has a gap")
        if any(one.seconds <= 0.0 or one.held < 0 for one in parts):
            self.breach("the ledger of the run's time has a part that is none")
        spent = sum(value for name, value in found.node_seconds().items() if name != "smaller")
        if (
            abs(spent - sum(one.held * one.seconds for one in parts)) > 1e-3
            or abs(sum(found.seconds().values()) - found.life_s) > 1e-3
        ):
            self.breach("the ledger of the run's time does not add up")

    def run_ends(self) -> None:
        """When ftrun calls the run over, nothing of it waits in the queue that might start behind its back."""
        run = self.run()
        self.stopped_s = self.world.clock.now()
        if run is None:
            return
        jobs = self.world.engine.jobs.values()
        waiting = [j.number for j in jobs if run.token in j.comment and j.state is JobState.PENDING]
        if waiting and not self.world.plan.watch_only and self.world.hidden != "all":
            self.breach(f"the run is called {run.state.value} while its jobs {waiting} wait in the queue")

    def _looked_too_late(self, reason: str) -> bool:
        """Nobody could look for a submission until Slurm could have forgotten it, or until hosts whose clocks differ by more could tell."""
        skews, age_s = self.world.plan.skews_s, self.world.engine.timing.min_job_age_s
        late = self.stopped_s - self.submitted_s >= age_s or max(skews) - min(skews) >= age_s
        return late and "until Slurm could have forgotten it" in reason

    def _left_early(self) -> bool:
        return any(fault.kind == "early-exit" for fault in self.world.plan.job)

    def _spent(self, run: Run) -> bool:
        """The budgets are really used up: a reason to stop that a plan cannot know beforehand."""
        plan, reason = self.world.plan, run.final_reason
        reasons = {
            "used without progress": True,
            "no net progress, and ": run.retries >= int(run.settings.get("retries", 20)),
            "came twice": plan.time_limit_s > 0,
            "never seen from": plan.blind_nodes_s[1] > 0,
            "same failure twice": True,
            "may be loaded": not self._loadable(run),
        }
        return any(words in reason for words, possible in reasons.items() if possible)

    def _loadable(self, run: Run) -> list[str]:
        """The checkpoints that a start could have been given."""
        aside = {path for path, stamp in run.set_aside if checkpoints.content_stamp(path) == stamp}
        poisons = self._poisons()
        return [
            path
            for path, (step, _) in self.whole.items()
            if path not in aside and not spoilt(path, poisons, step)
        ]

    def _budgets(self, run: Run) -> None:
        """No class and no run spends more than it has."""
        limit = int(run.settings.get("retries", 20))
        lost = sum(record["kind"] == "submit.lost" for record in self.records())
        moves = sum(record["kind"] == "queue.moved" for record in self.records())
        decisions = [r for r in self.records() if r["kind"] in ("decided", "start.decided")]
        most = max((r["data"].get("retries", 0) for r in decisions), default=0)  # since the last net progress
        if most > limit > 0:  # with 0, what Slurm starts again by itself is left to it
            self.breach(f"{most} retries of {limit}")
        refills = self._refills(decisions)
        free = sum(r["data"].get("class") == "preempted" for r in decisions)
        allowed = (1 + limit) * (1 + refills + self.resumed_times) + free + lost + moves
        grown = sum(record["data"].get("rung") == "grow" for record in self.records())  # that spends nothing
        inside = sum(start.number > 1 for start in self.starts) - grown
        if limit > 0 and inside + len(run.attempts) > allowed:
            self.breach(f"{inside} starts inside {len(run.attempts)} attempts with {limit} retries")
        decided = {
            (r["job"], r["data"]["incident"]) for r in decisions
        }  # a job that was adopted is judged anew
        if run.retries > len(decided):
            self.breach(f"{run.retries} retries were counted for {len(decided)} incidents")
        if len(run.attempts) > allowed:
            self.breach(f"{len(run.attempts)} attempts with {limit} retries and {lost} lost submissions")

    def _refills(self, decisions: list[dict[str, Any]]) -> int:
        """How often net progress gave the retries back: each time further on than ever before.

        A decision that knows of no progress gives nothing back: the supervisor may have judged the launch before only after an
        agent decided.
        """
        seen = None
        furthest: dict[str, int] = {}
        count = 0
        last = {(r["job"], r["data"]["incident"]): r["data"] for r in decisions}  # it may be judged anew
        for data in last.values():
            if data.get("progress_at_s") in (None, seen):
                continue
            seen, count = data["progress_at_s"], count + 1
            path = data.get("checkpoint") or ""
            number = step_of(path)
            unit, here = ("step", data.get("step")) if number is None else ("checkpoint", number)
            if here is not None and here <= furthest.get(unit, -1):
                self.breach(f"retries were given back at {unit} {here}, after {furthest[unit]}")
            furthest[unit] = here if here is not None else furthest.get(unit, -1)
        return count

    def _no_thrash(self, run: Run) -> None:
        """In the queue a size only goes down: between two starts no more moves than there are sizes."""
        wanted, sizes, reshaped = self.world.plan.wanted, [0], False
        for record in self.records():
            if record["kind"] in (
                "job.started",
                "decided",
                "submit.lost",
                "run.resumed",
            ):  # a start that must be made anyway
                sizes, reshaped = [0], False
            elif record["kind"] in ("queue.moved", "resize.done"):
                moved = record["kind"] == "queue.moved"
                sizes.append(record["data"]["decision"]["size"] if moved else record["data"]["size"])
                before = sizes[-2] or wanted
                # At the same size: without the spares, or by another job where Slurm did not take the change of the first one.
                same = moved and (bool(self.world.plan.spares) or reshaped)
                if not 0 < sizes[-1] < before + same:
                    self.breach(f"moved in the queue from {before} nodes to {sizes[-1]}")
                reshaped = not moved

    def _exclusions(self, run: Run) -> None:
        """Nobody innocent is excluded by a log that tells the truth."""
        forged = any(fault.kind == "forged" for fault in self.world.plan.job)
        current = exclusions_of(run.id, self.records())
        for at_s, names in current:
            innocent = names - self.guilty
            if innocent and not forged:
                self.breach(f"{sorted(innocent)} excluded at {at_s:.0f} although innocent")

    def _ledger(self, run: Run) -> None:
        """The ledger has what the journal has, and holds nothing against a node that the journal does not."""
        due = {entry.id for entry in from_runs.entries_of(run)}
        once = due | self._due_before(run)
        noted = [entry for entry in ledger.read_entries(self.world.home) if entry.run == run.id]
        lacking = due - {entry.id for entry in noted}
        # Hours served are counted as they pass, and findings and cards come from the nodes' own reports.
        invented = {entry.id for entry in noted if entry.what not in ("served", "check", "device")} - once
        # An adopted job is judged anew under the number of its attempt: what was said of the job before it stays written down.
        if any(record["kind"] == "job.adopted" for record in self.records()):
            invented = set()
        if lacking or invented:
            self.breach(f"the ledger lacks {sorted(lacking)} and invents {sorted(invented)}")

    def _due_before(self, run: Run) -> set[str]:
        """What the journal gave rise to by decisions inside an allocation that were not carried out: the supervisor has decided anew since."""
        found: set[str] = set()
        told = model_run.Run(run.id)
        inside = {r["data"]["incident"] for r in self.records() if r["kind"] == "start.decided"}
        for record in self.records():
            if record["kind"] in ("diagnosed", "decided") and record["data"]["incident"] in inside:
                found |= {entry.id for entry in from_runs.entries_of(told)}
            told = events.apply(told, record)
        return found


def exclusions_of(run_id: str, records: list[journal.Record]) -> list[tuple[float, set[str]]]:
    """The exclusions in force after each decision."""
    found = []
    run = model_run.Run(run_id)
    for record in records:
        run = events.apply(run, record)
        if record["kind"] in ("decided", "start.decided"):
            found.append((record["at"], set(run.excluded_at(record["at"]))))
    return found
