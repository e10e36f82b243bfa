"""Input and output of the policy: limits, cluster view, the case, the ruling. (pure)

docs/policy.md shows the table of classes; settings (`budget-<class>`, `retries`, ...) change its numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from ftrun.hooks.checkpoints.names import step_of
from ftrun.hooks.runtime.formats import duration_text
from ftrun.slurm.client.cluster import NodeRow, PartitionRow, Rights
from ftrun.slurm.client.topology import Topology
from ftrun.slurm.records import dataclass
from ftrun.supervisor.config.node_counts import Sizes
from ftrun.supervisor.config.settings import (
    number_of,
    parse_escalation,
    parse_policy_rule,
    parse_storm,
    text_of,
)
from ftrun.supervisor.model.run import Attempt, Incident, Run
from ftrun.supervisor.model.types import CLASS_RULES, Decision, Diagnosis, FaultClass, Source
from ftrun.supervisor.policy.correlated_failures import TOGETHER_S, SwitchSuspicion, suspect_switch
from ftrun.supervisor.policy.estimates import lost_node_hours, start_ran_s

FROM_ZERO_TRIES = 3  # in a row
EXCLUDE_FOR_MIN_S = 60.0  # at least the next attempt avoids the node

OUTLIVED_S = 1800.0
ALIKE = (
    0.8,
    1.25,
)  # a start that ran so many times as long as the one before failed after about the same time

PROOF_SOURCES = frozenset({Source.SLURM, Source.KERNEL, Source.CHECK})
EXCLUDE_SOURCES = PROOF_SOURCES | {Source.REPORT}  # enough to exclude a node from this run, not to drain it
OWN_SOURCES = frozenset({Source.CHECK, Source.KERNEL, Source.COUNTER, Source.BMC})
"""What proves a fault of a node whatever its switch does. Slurm also loses the healthy nodes below a dead switch."""

SWITCH_FAULTS = frozenset({FaultClass.NODE, FaultClass.NETWORK, FaultClass.HANG, FaultClass.UNKNOWN})
"""Classes that a switch can cause."""
RECENT_S = 6 * 3600.0
RECENT_BUDGET = 10
MANY_NODES = 128
BROKEN_NODES = frozenset({FaultClass.HARDWARE_GPU, FaultClass.HARDWARE_OTHER, FaultClass.NODE})
HOLD_BUDGET = "preflight"


@dataclass(frozen=True, slots=True)
class PolicyLimits:
    """The settings of the policy. Shares are 0..1 of the nodes of the partition."""

    retries: int = 20
    storm: tuple[int, float] | None = (10, 3600.0)  # so many retries within so many seconds
    max_lost_node_h: float | None = None
    deadline_s: float = 0.0  # after submission; 0 = none
    escalate: Mapping[str, float] = field(default_factory=dict)  # mem, time -> so many times as much
    budgets: Mapping[str, int] = field(default_factory=dict)
    exclude_for_s: float = 86_400.0
    exclude_cap: float = 0.10
    drain: bool = True
    ask_only: bool = False  # the drain service drains, even where this user may
    drain_cap: float = 0.05
    backoff_s: float = 5.0
    backoff_max_s: float = 600.0
    from_zero_max_s: float = 3600.0  # the most training that beginning anew may lose
    observe: bool = False  # show what would be done, do nothing

    def drains(self, partition_size: int) -> int:
        """How many nodes of a partition of this size ftrun may drain, all supervisors together; at least one."""
        return max(1, int(self.drain_cap * partition_size))

    def budget(self, fault: FaultClass) -> int:
        """How often this class may fail without progress."""
        return self.budgets.get(fault.value, CLASS_RULES[fault].budget)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What the policy knows of the cluster at this moment; all empty if Slurm does not answer."""

    partition: tuple[str, ...] = ()  # every node the job could be placed on
    available: frozenset[str] = frozenset()  # of these: up and not drained
    idle: frozenset[str] = frozenset()  # of these: nothing runs there now
    lost: frozenset[str] = frozenset()  # of these: down or not responding
    nodes_needed: int = 1
    ftrun_drains: int = 0  # nodes of the partition that ftrun drained
    may_drain: bool = False
    may_ask: bool = False  # the site has a drain service
    sizes: Sizes | None = None  # those at which an elastic run can go on; None = it needs all nodes
    topology: Topology = field(default_factory=Topology)

    @property
    def least(self) -> int:
        """The smallest number of nodes on which the run can go on."""
        return self.sizes.all[0] if self.sizes is not None else self.nodes_needed

    def size_of_start(self, nodes: int) -> int:
        """How many nodes a start uses that could have so many: those it needs or, in an elastic run, the largest size."""
        return max(self.nodes_needed, self.sizes.at_most(nodes) if self.sizes is not None else 0)

    @classmethod
    def of(
        cls,
        partitions: Mapping[str, PartitionRow],
        nodes: Mapping[str, NodeRow],
        rights: Rights,
        *,
        names: Sequence[str],
        lost: Iterable[str],
        nodes_needed: int,
        may_ask: bool,
        sizes: Sizes | None = None,
        topology: Topology | None = None,
    ) -> ClusterView:
        """The view from Slurm's answers. `names` are the job's partitions; if Slurm knows none of them, the
        default partition counts.
        """
        if not any(name in partitions for name in names):
            names = [p.name for p in partitions.values() if p.default]
        members = tuple(
            sorted({node for name in names if name in partitions for node in partitions[name].nodes})
        )
        return cls(
            partition=members,
            available=frozenset(node for node in members if node in nodes and nodes[node].available),
            lost=frozenset(lost),
            idle=frozenset(
                n for n in members if n in nodes and nodes[n].available and nodes[n].state == "idle"
            ),
            nodes_needed=nodes_needed,
            sizes=sizes,
            ftrun_drains=sum(
                1 for node in members if node in nodes and nodes[node].reason.startswith("ftrun:")
            ),
            may_drain=rights.may_drain,
            may_ask=may_ask,
            topology=topology or Topology(),
        )


@dataclass(frozen=True, slots=True)
class AskedResource:
    """What a job asked for of one resource: by which option of sbatch, how much, and the most that it may (MiB, or minutes;
    None = no limit is known).
    """

    option: str
    amount: float
    most: float | None


@dataclass(frozen=True, slots=True)
class PolicyInput:
    """Everything that one decision is based on.

    `common` says why the fault is probably not the node's own ("" = it may be); then no node is drained for
    it. `diverged` says that the training had diverged ("" = it had not), and `older` is the checkpoint from
    before that, to which the next start would go back. `no_checkpoint` says why no start could load anything, so that
    the run must not begin from nothing; `own_checkpoints`: the run itself wrote all that would be lost. `step` is the
    highest step seen in this launch, or the one at which it diverged; `checkpoint` the newest complete
    checkpoint if it is newer than the best known before, else "". `running_again`: Slurm has already started
    the requeued job; `unseen` is the run's folder if the nodes of the job never saw it. `switch` is the switch that the
    blamed nodes have in common, with those that failed alike in the run's last minutes; computed once.
    """

    run: Run
    attempt: Attempt
    diagnosis: Diagnosis
    cluster: ClusterView
    limits: PolicyLimits
    now_s: float
    step: int | None = None
    checkpoint: str = ""
    running_again: bool = False
    common: str = ""
    diverged: str = ""
    older: str = ""
    no_checkpoint: str = ""
    own_checkpoints: bool = False
    unseen: str = ""
    expedited: bool = (
        False  # Slurm requeued the job, and puts it first (--requeue=expedite) unless it holds it
    )
    asked: AskedResource | None = None  # what the job ran out of, where `escalate` may ask for more
    switch: SwitchSuspicion | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "switch", self._suspected_switch())

    @property
    def trained_s(self) -> float:
        """Training time since the run began, or began anew, without queue time; unknown time counts as
        training.
        """
        since = (i.decided_at_s for i in self.run.incidents if i.decision.get("fresh"))
        anew_s = max((at_s for at_s in since if at_s is not None), default=0.0)
        spans = []
        for one in self.run.attempts:
            ended = (
                self.now_s
                if one.number == self.attempt.number
                else one.launch.end.slurm_at_s or one.launch.end.at_s
            )
            known = (*one.starts.values(), *((one.launch.started_at_s,) if one.launch.started_at_s else ()))
            spans.append((min(known, default=one.opened_at_s), self.now_s if ended is None else ended))
        return sum(max(0.0, end_s - max(begin_s, anew_s)) for begin_s, end_s in spans)

    @property
    def from_zero(self) -> bool:
        """Nothing may be loaded, and little is lost by beginning anew. Not repeated if that comes to nothing."""
        if not self.no_checkpoint or not self.own_checkpoints or self.trained_s > self.limits.from_zero_max_s:
            return False
        last = [one for one in self.run.incidents if one.decision][-FROM_ZERO_TRIES:]
        return len(last) < FROM_ZERO_TRIES or not all(one.decision.get("fresh") for one in last)

    @property
    def saved(self) -> bool:
        """Another attempt would begin further on: at a newer checkpoint. If ftrun knows of no checkpoints, the
        second start shows whether the script resumes by itself: it gets further, and did not begin anew.
        """
        if self.checkpoint or self.run.settings.get("checkpoint"):
            return bool(self.checkpoint)
        return self.run.best_step is not None and self.progressed and not self.began_anew

    @property
    def began_anew(self) -> bool:
        """Whether the first step that was seen of this start lies far below what an earlier start reached."""
        first = self.before.first_step if self.before is not None else None
        return first is not None and self.run.best_step is not None and 2 * first <= self.run.best_step

    @property
    def progressed(self) -> bool:
        """Training got further than ever before: a newer checkpoint or a higher step."""
        if self.checkpoint:
            return True
        return self.step is not None and (self.run.best_step is None or self.step > self.run.best_step)

    @property
    def net_progress(self) -> bool:
        """The next start begins further on than any start before.

        Measured against all of the history, so that neither a start from nothing nor a checkpoint that is
        written again counts twice: a newer checkpoint whose number is above all earlier ones; without a number,
        or where no checkpoint was ever seen, a step above all earlier ones.
        """
        known = (
            self.run.best_checkpoint,
            *(str(one.decision.get("checkpoint") or "") for one in self.earlier),
        )
        saves = [path for path in known if path]  # the best one may be that of a growth, which is no incident
        if self.checkpoint or saves:
            if not self.checkpoint:
                return False
            number = step_of(self.checkpoint)
            if number is not None:
                return all(number > one for one in map(step_of, saves) if one is not None)
        if self.step is None:
            return self.outlived
        steps = (self.run.best_step, *(one.step for one in self.earlier))
        return all(self.step > one for one in steps if one is not None)

    @property
    def outlived(self) -> bool:
        """Whether a start of a run that never showed a step ran for longer than a crash loop does.

        Such a run has only the time that its starts last. A failure of the same kind after about the same time
        as the one before is no bad luck, however late it comes.
        """
        run, attempt, before = self.run, self.attempt, self.before
        steps = (self.step, run.best_step, *(one.step for one in run.incidents))
        if attempt.failed_tasks or attempt.tasks or any(step is not None for step in steps):
            return False
        launch = attempt.launch
        ended_s = launch.end.slurm_at_s or launch.end.at_s or self.now_s
        ran_s = start_ran_s(attempt, launch.number, launch.start.number, ended_s)
        if ran_s < OUTLIVED_S:
            return False
        found = self.diagnosis.fault
        if before is None or found in (FaultClass.PREEMPTED, FaultClass.TIMELIMIT):  # others set their time
            return True
        owner = next((one for one in run.attempts if one.number == before.attempt), None)
        if owner is None or (before.fault, before.signature) != (found.value, self.diagnosis.signature):
            return True
        failed_s = before.ended_at_s or before.diagnosed_at_s
        lasted_s = start_ran_s(owner, before.launch, before.start, failed_s)
        return not ALIKE[0] * lasted_s <= ran_s <= ALIKE[1] * lasted_s

    @property
    def retries(self) -> int:
        """The restarts since the last net progress, before this decision."""
        return 0 if self.net_progress else self.run.retries

    @property
    def progress_at_s(self) -> float | None:
        """When net progress was seen last (Unix seconds); None = never, or by a release that did not note it."""
        return self.now_s if self.net_progress else self.run.progress_at_s

    @property
    def paid_by(self) -> FaultClass:
        """The class whose budget pays for a retry. What only a second opinion says is unknown all the same."""
        return self.diagnosis.fault if self.diagnosis.opinion is None else FaultClass.UNKNOWN

    @property
    def is_free(self) -> bool:
        """Slurm took the nodes for another job: that counts for nothing."""
        return self.paid_by is FaultClass.PREEMPTED

    @property
    def is_recent(self) -> bool:
        """Whether the run made net progress in the last hours."""
        at_s = self.progress_at_s
        return at_s is not None and self.now_s - at_s <= RECENT_S

    @property
    def is_large(self) -> bool:
        """Whether a node may fail every few hours though nothing else is wrong."""
        return len(self.attempt.nodes) >= MANY_NODES

    @property
    def is_coincidence(self) -> bool:
        """Whether a class budget that is used up says little.

        So it does where the run made net progress in the last hours and its faults come at different places: on a
        hundred nodes and more, two faults between two checkpoints are a coincidence, and a node that breaks in ways that
        nobody can name breaks anywhere. Such a class may fail `RECENT_BUDGET` times. The same class at the same place
        twice is none, unless it blames broken nodes.
        """
        before = self.before
        if before is None or not self.is_large or not self.is_recent:
            return False
        found = self.diagnosis.fault
        return found in BROKEN_NODES or (before.fault, before.step) != (found.value, self.step)

    @property
    def ceiling(self) -> str:
        """Why the run is not started again, whatever the budgets of the classes leave; "" = nothing speaks against it.

        `retries` restarts without net progress, or a storm: so many restarts within so much time without it. Net progress
        refills both. Preemptions, and attempts that checks held, count for nothing. `max-lost` and `deadline` are caps of
        the user's own: only a person lifts them.
        """
        return self._cap_reached() or self._retries_reached()

    def _retries_reached(self) -> str:
        if self.is_free:
            return ""
        if self.retries >= self.limits.retries:
            used = "the 1 retry is" if self.limits.retries == 1 else f"all {self.limits.retries} retries are"
            return f"no net progress, and {used} used up"
        if self.limits.storm is None or self.net_progress:
            return ""
        most, within_s = self.limits.storm
        if sum(1 for _ in self._restarts_since(self.now_s - within_s)) < most:
            return ""
        return f"a storm: {most} retries within {duration_text(within_s)} without net progress (--ft-storm)"

    def _restarts_since(self, since_s: float) -> Iterator[Incident]:
        """The restarts since then that count, of those after the last net progress."""
        since_s = max(since_s, self.run.progress_at_s or 0.0, self.run.resumed_at_s)
        for one in self.earlier:
            free = one.fault == FaultClass.PREEMPTED or one.decision.get("spends") == HOLD_BUDGET
            if one.rung and not free and one.decided_at_s is not None and one.decided_at_s >= since_s:
                yield one

    def _cap_reached(self) -> str:
        limits, run = self.limits, self.run
        if limits.deadline_s and self.now_s >= run.created_at_s + limits.deadline_s:
            return f"the deadline, {duration_text(limits.deadline_s)} after submission, has passed (--ft-deadline)"
        if limits.max_lost_node_h is None:
            return ""
        lost = lost_node_hours(run, self.now_s)
        if lost <= limits.max_lost_node_h:
            return ""
        return f"recovery has cost {lost:,.1f} of {limits.max_lost_node_h:,g} node-hours (--ft-max-lost)"

    @property
    def exclude_until_s(self) -> float:
        """When an exclusion made now ends (Unix seconds)."""
        return self.now_s + max(self.limits.exclude_for_s, EXCLUDE_FOR_MIN_S)

    @property
    def culprits(self) -> tuple[str, ...]:
        """The blamed nodes that belonged to the attempt."""
        return tuple(node for node in self.diagnosis.nodes if node in self.attempt.nodes)

    @property
    def proven(self) -> bool:
        """Whether the culprits have a fault of their own, whatever their switch does."""
        return bool(OWN_SOURCES.intersection(self.diagnosis.sources))

    def _suspected_switch(self) -> SwitchSuspicion | None:
        if not self.cluster.topology or self.diagnosis.fault not in SWITCH_FAULTS or not self.culprits:
            return None
        lately = (
            one.nodes
            for one in self.earlier
            if one.fault == self.diagnosis.fault.value
            and self.now_s - (one.ended_at_s or one.diagnosed_at_s) <= TOGETHER_S
        )
        failed = {*self.culprits, *(node for nodes in lately for node in nodes)}
        nodes = next((one.nodes for one in self.run.attempts if one.number == self.attempt.number), ())
        return suspect_switch(failed, {*nodes, *self.attempt.nodes}, self.cluster.topology)

    @property
    def below_switch(self) -> tuple[str, ...]:
        """The nodes below the switch that is suspected; () for none."""
        return self.cluster.topology.leaves[self.switch.name] if self.switch is not None else ()

    @property
    def summary(self) -> str:
        """Class, title and blamed nodes, as messages begin."""
        where = f" on {', '.join(self.culprits)}" if self.culprits else ""
        return f"{self.diagnosis.fault.value}: {self.diagnosis.title}{where}"

    @property
    def spent(self) -> Mapping[str, int]:
        """The used budgets, after a refill by progress. Steps that were not saved do not excuse a time limit."""
        if not self.progressed and not self.outlived:
            return self.run.spent
        if self.saved:
            return {}
        return {k: v for k, v in self.run.spent.items() if k == FaultClass.TIMELIMIT.value}

    @property
    def earlier(self) -> list[Incident]:
        """The incidents before this one."""
        launch = self.attempt.launch
        present = (self.attempt.number, launch.number, launch.start.number)
        return [one for one in self.run.incidents if (one.attempt, one.launch, one.start) != present]

    @property
    def before(self) -> Incident | None:
        """The incident before this one."""
        return self.earlier[-1] if self.earlier else None


@dataclass(frozen=True, slots=True)
class Ruling:
    """A decision and the budgets after it. `would` is what the rules had decided, if it must not be done or
    only Slurm does it.
    """

    decision: Decision
    spent: Mapping[str, int]
    retries: int
    would: Decision | None = None


def limits_from(settings: Mapping[str, Any]) -> PolicyLimits:
    """The limits of the policy from validated settings (settings.py has defaults, units and meaning)."""
    budgets = {
        fault.value: int(value)
        for fault in FaultClass
        if (value := settings.get(f"budget-{fault.value}", "")) != ""
    }
    told = map(parse_policy_rule, settings.get("policy") or ())
    budgets |= {name: value for name, key, value in told if key == "budget" and isinstance(value, int)}
    return PolicyLimits(
        retries=int(number_of(settings, "retries")),
        storm=parse_storm(text_of(settings, "storm")),
        max_lost_node_h=float(settings["max-lost"]) if settings.get("max-lost", "") != "" else None,
        deadline_s=float(settings.get("deadline") or 0.0),
        escalate=parse_escalation(str(settings.get("escalate") or "")),
        budgets=budgets,
        exclude_for_s=number_of(settings, "exclude-for"),
        exclude_cap=number_of(settings, "exclude-cap"),
        drain=settings.get("drain") != "never",
        ask_only=settings.get("drain") == "ask",
        drain_cap=number_of(settings, "drain-cap"),
        backoff_s=number_of(settings, "backoff"),
        backoff_max_s=number_of(settings, "backoff-max"),
        from_zero_max_s=number_of(settings, "restart-from-zero-max"),
        observe=bool(settings.get("observe")),
    )
