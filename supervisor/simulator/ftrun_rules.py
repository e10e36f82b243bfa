"""A virtual run that ftrun looks after: real policy, ladder and history; virtual nodes and time. (pure)

The history is a real `Run`: every step is a journal record, folded as the supervisor folds it, so budgets,
exclusions, recovery actions and limits are the real ones. A fault is given to the same functions that agent
and supervisor call (`start_case.ruled`, `decide.decide`, `node_placement.left_out`, `queue.look`). Drawn at
random here is only what the world would answer: whether the cause names its node, how long a queue takes.

A start inside the allocation costs what docs/benchmarks.md measured, scaled. What the agent cannot recover
goes to the supervisor, as it does when the batch node itself is lost: then Slurm and the fence have to be
waited for. A stop waits for a person, who resumes the run.

A run that has fewer nodes than it could have is checked when something may have changed: a node is back, a
wait is over. `policy.elastic` decides whether it grows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ftrun.slurm.records import replace
from ftrun.supervisor.config import settings
from ftrun.supervisor.config.node_counts import segment_size, sizes_of_settings
from ftrun.supervisor.config.rungs import Rung
from ftrun.supervisor.diagnosis.class_defaults import plain
from ftrun.supervisor.model.agent_events import GROW_RUNG
from ftrun.supervisor.model.events import apply
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.model.types import Blame, Decision, Diagnosis, FaultClass, Source
from ftrun.supervisor.policy import decide, elastic, estimates, node_placement, queue, start_decision
from ftrun.supervisor.policy.elastic import GrowthDecision, GrowthInput
from ftrun.supervisor.policy.ladder import AllocationState, RecoveryStep
from ftrun.supervisor.policy.policy_input import ClusterView, PolicyInput, Ruling, limits_from
from ftrun.supervisor.policy.queue import PendingJob, QueueAction, WaitSettings
from ftrun.supervisor.simulator.queue import Companions, QueuedJob, first_job
from ftrun.supervisor.simulator.virtual_run import Fault, VirtualRun


def diagnosis(fault: Fault) -> Diagnosis:
    """What ftrun would diagnose: by the log and, where the node answers, by its own checks of the node."""
    cause = fault.cause
    found = plain(
        cause.fault,
        cause.name,
        (),
        confidence=0.9,
        names=fault.nodes if fault.named else (),
        sources=(Source.SILENCE,) if cause.lost else (Source.LOG, Source.REPORT),
    )
    blame = found.blame if cause.of_a_node else Blame.JOB
    return replace(found, signature=f"virtual-{cause.name}", blame=blame)


def diagnosis_json(found: Diagnosis) -> dict[str, Any]:
    """What the journal keeps of it."""
    return {
        "class": found.fault.value,
        "signature": found.signature,
        "title": found.title,
        "nodes": list(found.nodes),
    }


def stop_reason(decision: Decision, case: PolicyInput) -> str:
    """Why it stopped, without nodes and steps, so that seeds can be summed up."""
    last = decision.reason.rpartition("; ")[2]
    if "(--ft-max-lost)" in last:
        return "recovery has cost more than --ft-max-lost"
    return last if "retries" in last or "--ft-" in last else f"{case.diagnosis.fault.value}: not tried again"


FENCE_S = 30.0
"""After SlurmdTimeout: the default of `fence-wait`."""

LOOK_EVERY_S = 60.0
"""Period of a check of a queued job. The supervisor checks more often, which changes nothing here."""

STILL_STEPS = 10.0
"""A standstill of fewer median steps is no hang, whatever `hang-min` says."""

DECIDED_S = 0.2
"""Part of a start in place: stop, place, start. The rest is detection."""


IN_THE_QUEUE = "smaller in the queue"

LOOK_AGAIN_S = 3_600.0
"""Where only time can change the verdict about growing."""

HELD_S = 60.0
"""How long before the checkpoint a companion that lets a run grow is there."""


class FtrunRules:
    """ftrun with these settings; others have their defaults."""

    def __init__(self, own: Mapping[str, Any], spares: int = 0) -> None:
        self.settings = {**settings.defaults(), "checkpoint": "ckpt/*", **own, "spares": spares}
        self.limits = limits_from(self.settings)
        self.sizes = sizes_of_settings(self.settings)
        self.run = Run("virtual")
        self._start = self._attempt = 0
        self._newest = self._resumed = ""  # checkpoints: the newest, and the one that this start began with
        self._lent = Companions()
        self._aside: set[str] = set()  # nodes of the job that no start uses any more
        self._gone: set[str] = set()  # those of them that are lost or broken, until the job releases them
        self._coming = (math.inf, 0)  # when the spares that were asked for again are there, and how many
        self._open = ""  # the incident whose first step is still to come
        self._begun_s = 0.0

    def begin(self, life: VirtualRun) -> None:
        """Submit the first job, with its spares."""
        first_job(life, int(self.settings["spares"]))
        self._note(life, "run.created", settings=self.settings)
        self._opened(life, (), life.scenario.nodes)
        self._started(life)

    def recover(self, life: VirtualRun, fault: Fault) -> None:
        """Recover from a fault: the agent first, where it is alive, then the supervisor."""
        self._stepped(life, stepped=fault.step is not None)
        found = diagnosis(fault)
        if fault.cause.fault is FaultClass.HANG:
            life.spend("detection", self._until_ended_s(life))
        if fault.cause.lost:
            life.spend("lost steps", life.scenario["copy-lag"])
        agent = self.settings["agent"] != "never" and life.active[0] not in fault.silent
        if not agent or not self._inside(life, fault, found):
            self._submit_again(life, fault, found)

    def _until_ended_s(self, life: VirtualRun) -> float:
        """How long a hang lasts: ftrun's hang limit, but no longer than the collectives themselves wait."""
        given_up_s = life.scenario["watchdog"]
        if self.settings["hang"] == "never":
            return given_up_s
        return min(given_up_s, max(float(self.settings["hang-min"]), STILL_STEPS * life.scenario["step"]))

    # ------------------------------------------------------------------ inside the allocation

    def _inside(self, life: VirtualRun, fault: Fault, found: Diagnosis) -> bool:
        self._refill_spares(life)
        case = self._case(life, fault, found)
        silent = fault.silent
        place = self._place(life, fault, found, silent)
        ruling, move = start_decision.decide_start(case, place)
        came: tuple[str, ...] = ()
        if move.rung is Rung.COMPANION:
            out = self._out(life, found.nodes, silent)
            out |= {*life.cluster.names} - {*move.within} if move.within else set()
            came = self._lent.ask(life, move.missing, out, float(self.settings["limit-companion"]))
            if not came:
                ruling, move = start_decision.decide_start(
                    case, replace(place, companion_off="none came in time")
                )
        incident = self._incident()
        self._note(
            life, "start.diagnosed", incident=incident, diagnosis=diagnosis_json(found), step=fault.step
        )
        if move.rung is Rung.RESUBMIT:
            self._note(life, "start.left", incident=incident, reason=move.reason, path=move.path)
            return False
        self._note(life, "start.decided", **start_decision.decision_record(incident, case, ruling, move))
        self._open = incident
        self._again(life, fault, move, came, silent)
        return True

    def _place(
        self, life: VirtualRun, fault: Fault, found: Diagnosis, silent: tuple[str, ...]
    ) -> AllocationState:
        self._given_back(life)
        gone = self._lent.broken(silent)
        held, out = (*life.active, *life.spares), {*gone, *silent}
        place = start_decision.allocation_state(
            self._seen(life, fault, found, silent),
            tuple(node for node in held if node not in gone) if gone else held,
            tuple(node for node in life.spares if node not in out),
            gone,
            batch_node=life.active[0],
            culprits=found.nodes,
            called=True,
            stuck={},
            off="",
        )
        idle = self._lent.idle(life, self._out(life, found.nodes, silent))
        sizes = self.sizes.without(self.run.sizes_aside) if self.sizes is not None else None
        return replace(
            place, sizes=sizes, idle=len(idle), companion_off="", segment=segment_size(self.settings)
        )

    def _out(self, life: VirtualRun, *more: tuple[str, ...]) -> set[str]:
        """Nodes that no companion may bring: those that the job has, and those that the run avoids."""
        return {*self._aside, *self.run.excluded_at(life.now_s), *(node for nodes in more for node in nodes)}

    def _again(
        self,
        life: VirtualRun,
        fault: Fault,
        move: RecoveryStep,
        came: tuple[str, ...],
        silent: tuple[str, ...],
    ) -> None:
        cost_s = life.scenario["in-place-step" if move.rung is Rung.STEP else "in-place-swap"]
        life.spend("detection", max(0.0, cost_s - DECIDED_S))
        cold_s = life.scenario["new-job"] if came else 0.0
        life.spend("restart", DECIDED_S + move.delay_s + cold_s)
        had = (*life.active, *life.spares)
        life.active = (*move.nodes, *came)
        aside = {*move.aside, *(node for node in life.spares if node in silent)}
        out = {*life.active, *aside}
        life.spares = tuple(node for node in had if node not in out)
        self._aside |= aside
        self._gone |= {node for node in aside if node in silent or life.cluster.broken((node,), life.now_s)}
        life.restarted(move.rung.value)
        if fault.named and move.rung in (Rung.SWAP, Rung.COMPANION, Rung.SHRINK):
            life.cluster.found(fault.node, life.now_s)
        self._refill_spares(life)
        self._next_start(life)

    def _refill_spares(self, life: VirtualRun) -> None:
        """Take the spares that have come since they were asked for again, and ask for what is still missing (`spares-refill`)."""
        if self.settings["spares-refill"] == "never":
            return
        there_s, count = self._coming
        if there_s <= life.now_s and (came := self._lent.come(life, count, self._out(life))):
            life.spares += came
            life.outcome.spare_node_s += len(came) * (life.now_s - there_s)
            self._coming = (math.inf, 0)
        missing = int(self.settings["spares"]) - len(life.spares)
        if missing > 0 and not self._coming[1]:
            self._coming = (life.now_s + self._lent.turn_s(life) + life.scenario["new-job"], missing)

    def _next_start(self, life: VirtualRun) -> None:
        self._start += 1
        self._begun(life)

    def _stepped(self, life: VirtualRun, *, stepped: bool) -> None:
        """Note the first step of this start, if its launch was over."""
        if self._open and stepped:
            at_s = min(life.now_s, self._begun_s + life.scenario["launch"])
            self._note_at(at_s, "start.first-step", incident=self._open, step=0)
        self._open = ""

    # ------------------------------------------------------------------ more nodes

    def look_at_s(self, life: VirtualRun) -> float:
        """When the run may grow; never at full size, and never without an agent."""
        if self.sizes is None or len(life.active) >= self.sizes.full or self.settings["agent"] == "never":
            return math.inf
        self._given_back(life)
        scene = self._scene(life)
        word, past = elastic.decide_growth(scene).word, scene.past
        if word == "never":
            return math.inf
        if word == "grow":
            return life.now_s
        if word == "stays":
            return life.now_s + scene.min_stay_s * 2.0**past.in_vain - past.stayed_s
        back_s = life.cluster.back_s(life.now_s, self._out(life))
        return min([life.now_s + LOOK_AGAIN_S, *back_s[:1]])

    def look(self, life: VirtualRun) -> None:
        """Grow where it pays: with the job's own nodes, or with a companion that is there at once."""
        self._stepped(life, stepped=True)
        self._given_back(life)
        found = elastic.decide_growth(self._scene(life))
        if not found.size:
            return
        came: tuple[str, ...] = ()
        if found.missing:
            came = self._lent.come(life, found.missing, self._out(life))
        self._grow(life, found, came)

    def _scene(self, life: VirtualRun) -> GrowthInput:
        assert self.sizes is not None
        scenario, run, min_stay_s = life.scenario, self.run, float(self.settings["grow-min-interval"])
        restart_s = estimates.restart_s(run) or scenario["launch"] + scenario["in-place-step"]
        return GrowthInput(
            size=len(life.active),
            sizes=self.sizes.without(run.sizes_aside),
            past=elastic.resize_history(run, life.now_s, min_stay_s, restart_s),
            free=len(self._free(life)),
            idle=len(self._lent.idle(life, self._out(life))),
            between_s=estimates.fault_interval_s(run, life.now_s, len(life.active)),
            restart_s=restart_s,
            min_stay_s=min_stay_s,
            others_wait=life.contended(),
            next_save_s=HELD_S,
            wanted=self.settings["grow"] != "never",
        )

    def _given_back(self, life: VirtualRun) -> None:
        """Release nodes as Slurm and the site would.

        Slurm takes lost nodes out of the job, and broken ones are released once the site knows of them:
        they may be repaired, and come back with a companion.
        """
        kept = {node for node in self._gone if life.cluster.held_broken(node, life.now_s)}
        self._aside -= self._gone - kept
        self._gone = kept

    def _free(self, life: VirtualRun) -> tuple[str, ...]:
        """Spares, and nodes set aside once the run avoids them no longer; none is repaired in its job."""
        aside = self._aside - self._gone - set(self.run.excluded_at(life.now_s))
        return (*life.spares, *sorted(aside))

    def _grow(self, life: VirtualRun, found: GrowthDecision, came: tuple[str, ...]) -> None:
        own = self._free(life)[: found.size - len(life.active) - len(came)]
        nodes = (*life.active, *own, *came)
        self._note(
            life, "start.decided", incident=self._incident(), rung=GROW_RUNG, nodes=nodes, reason=found.reason
        )
        life.outcome.spare_node_s += HELD_S * len(came)
        life.spend("lost steps", elastic.LOST_S)
        life.spend("restart", life.scenario["in-place-step"] + (life.scenario["new-job"] if came else 0.0))
        life.spares = tuple(node for node in life.spares if node not in own)
        self._aside.difference_update(own)
        life.active = nodes
        life.warm = False
        life.restarted(GROW_RUNG)
        self._next_start(life)

    # ------------------------------------------------------------------ a new job

    def _submit_again(self, life: VirtualRun, fault: Fault, found: Diagnosis) -> None:
        fence_s = float(self.settings["fence-wait"] or life.scenario["lost-after"] + FENCE_S)
        log_quiet_s = float(self.settings["log-quiet"])
        life.spend("detection", max(fence_s, log_quiet_s) if fault.cause.lost else log_quiet_s)
        self._note(life, "job.ended", state="FAILED", exit_code=1, nodes=[])
        case = self._case(life, fault, found)
        ruling = decide.decide(case)
        self._note(
            life, "diagnosed", incident=self._incident(), diagnosis=diagnosis_json(found), step=fault.step
        )
        avoided: tuple[str, ...] = ()
        if ruling.decision.kind == "stop":
            self._stopped(life, case, ruling)
        else:
            self._note(life, "decided", **self._carried(case, ruling))
            avoided = ruling.decision.avoid
            if fault.named:
                life.cluster.found(fault.node, life.now_s)
            life.spend("restart", ruling.decision.delay_s, held=False)
        self._queued(life, avoided)
        life.spend("restart", life.scenario["new-job"])
        life.restarted("resubmit")
        self._started(life)

    def _queued(self, life: VirtualRun, avoided: tuple[str, ...]) -> None:
        """Submit, and again at a smaller size where the queue gives no more, each as an attempt."""
        view = self._view(life, ())
        out = node_placement.nodes_to_exclude(
            view, self.run.excluded_at(life.now_s), avoided, view.lost, cap=self.limits.exclude_cap
        )
        size = self._next_size(life, view, out)
        while not life.over:
            self._opened(life, out, size)
            waiting = QueuedJob(life, size, spares=int(self.settings["spares"]), left_out=frozenset(out))
            move = self._waited(waiting)
            if move is None:
                return
            decision = {"kind": "resubmit", "reason": move.reason, "size": move.size, "queued": True}
            self._note(life, "queue.moved", decision=decision)
            life.restarted(IN_THE_QUEUE)
            size = move.size

    def _waited(self, waiting: QueuedJob) -> QueueAction | None:
        """Wait in the queue. Returns a move to a smaller size, or None once the job has started."""
        patience = WaitSettings(float(self.settings["resize-after"]), float(self.settings["queue-timeout"]))
        if self.sizes is None:
            waiting.started()
            return None
        pause_s = patience.spare_wait_s
        while not waiting.started(pause_s):
            pause_s = LOOK_EVERY_S
            pending = PendingJob("Resources", waiting.waited_s, waiting.size)
            move = queue.decide_wait(pending, waiting.ready(), self.sizes, patience)
            if move.kind == "shrink":
                return move
        return None

    def _next_size(self, life: VirtualRun, view: ClusterView, out: tuple[str, ...]) -> int:
        if self.sizes is None:
            return life.scenario.nodes
        now = queue.run_size(self.run, self.sizes)
        return queue.next_size(self.sizes, now, view, (), out)

    def _stopped(self, life: VirtualRun, case: PolicyInput, ruling: Ruling) -> None:
        """Wait for a person, who runs `ftrun resume`."""
        self._note(life, "run.stopped", **self._carried(case, ruling))
        life.stopped(stop_reason(ruling.decision, case))
        life.spend("person", life.wait(life.scenario["reaction"]), held=False)
        for node in case.culprits:
            life.cluster.found(node, life.now_s)
        decision = {"kind": "resubmit", "reason": "resumed by a person", "exclude": [], "resumed": True}
        self._note(life, "run.resumed", decision=decision)

    def _opened(self, life: VirtualRun, out: tuple[str, ...], size: int) -> None:
        self._attempt, self._start = self._attempt + 1, 1
        self._lent.end()
        self._coming = (math.inf, 0)
        self._aside.clear()
        self._gone.clear()
        smaller = size if size < life.scenario.nodes else 0
        self._note(life, "attempt.opened", excluded=out, size=smaller)
        self._note(life, "submit.done")

    def _started(self, life: VirtualRun) -> None:
        nodes = (*life.active, *life.spares)
        self._note(life, "job.started", nodes=nodes, started_at_s=life.now_s)
        self._note(life, "agent.opened", active=life.active)
        self._begun(life)

    def _begun(self, life: VirtualRun) -> None:
        self._resumed, self._begun_s = self._newest, life.now_s
        self._note(life, "start.begun", nodes=life.active, resume_from=self._resumed)

    # ------------------------------------------------------------------ what the policy sees

    def _case(self, life: VirtualRun, fault: Fault, found: Diagnosis) -> PolicyInput:
        if fault.saved:
            self._newest = f"ckpt/{fault.step}"
        view = self._view(life, (*life.active, *life.spares))
        return start_decision.policy_input_of(self.run, self._seen(life, fault, found, ()), found, view)

    def _view(self, life: VirtualRun, held: tuple[str, ...]) -> ClusterView:
        needed = queue.run_size(self.run, self.sizes) if self.sizes is not None else life.scenario.nodes
        view = life.cluster.view(held, life.now_s, needed)
        return replace(view, sizes=queue.sizes_left(self.run, self.sizes))

    def _seen(
        self, life: VirtualRun, fault: Fault, found: Diagnosis, silent: tuple[str, ...]
    ) -> start_decision.StartFacts:
        return start_decision.StartFacts(
            number=self._start,
            nodes=life.active,
            resume_from=self._resumed,
            code=1,
            signal=0,
            now_s=life.now_s,
            silent=silent,
            suspicion=found if fault.cause.fault is FaultClass.HANG else None,
            step=fault.step,
            checkpoint=self._newest if fault.saved else "",
        )

    def _carried(self, case: PolicyInput, ruling: Ruling) -> dict[str, Any]:
        return {
            **asdict(ruling.decision),
            "incident": self._incident(),
            "class": case.diagnosis.fault.value,
            "signature": case.diagnosis.signature,
            "spent": dict(ruling.spent),
            "retries": ruling.retries,
            "progress_at_s": case.progress_at_s,
            "step": case.step,
            "checkpoint": case.checkpoint,
            "used": {} if case.progressed else dict(case.run.rungs),
            "exclude_until_s": case.exclude_until_s,
        }

    def _incident(self) -> str:
        return f"{self._attempt}.0.{self._start}"

    def _note(self, life: VirtualRun, kind: str, /, **data: Any) -> None:
        self._note_at(life.now_s, kind, **data)

    def _note_at(self, at_s: float, kind: str, /, **data: Any) -> None:
        place = {"attempt": self._attempt, "job": str(self._attempt), "launch": 0, "start": self._start}
        self.run = apply(self.run, {"at": at_s, "kind": kind, **place, "data": data})
