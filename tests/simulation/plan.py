"""What goes wrong in one simulated life, drawn from a seed. (pure)

How it thinks. A plan is a swarm: most kinds of faults are switched off in any one life, so that those that are on meet often and
in odd company. Faults of the job come at a step of the training, so the same plan without crashes of the supervisor
meets the same faults; faults of everything else come at a time.

`Plan.must_finish` says that nothing in the plan is a reason to stop: then the run has to finish, whatever else happens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

__all__ = [
    "AgentFault",
    "HiddenRows",
    "JobFault",
    "Outage",
    "PersonAct",
    "Plan",
    "SlurmFault",
    "Stall",
    "SubmitFault",
    "SupervisorFault",
    "draw",
]

# What a run survives as long as its budgets last. The other kinds are reasons to stop.
RECOVERABLE = (
    "crash",
    "freeze",
    "slurmd",
    "xid",
    "hang",
    "hang-exit",
    "torn",
    "port",
    "preempt",
    "preempt-cancel",
    "requeue",
    "hold-launch",
    "kill",
    "survived",
    "forged",
)
PLAIN_SEEDS = range(10_000, 12_200)  # lives with nothing of `_more`
_SUBMIT_KINDS = ("unheard", "late", "lost", "busy", "doubled", "copied")
_NAMED_POINTS = (
    "record:after:decided",
    "record:after:attempt.over",
    "record:after:attempt.closed",
    "record:after:attempt.opened",
    "record:after:submit.intended",
    "record:after:cancel.intended",
    "record:after:end.intended",
    "record:after:job.requeued",
    "record:after:job.ended",
    "record:after:launch.kept",
    "open:after",
    "submit:before",
    "submit:after",
    "cancel:before",
    "cancel:after",
)
_AGENT_POINTS = (
    "record:after:agent.opened",
    "record:after:start.begun",
    "record:after:start.over",
    "sweep:before",
    "sweep:after",
    "record:after:nodes.checked",
    "record:after:start.diagnosed",
    "record:after:start.decided",
    "steps.cancel:before",
    "steps.cancel:after",
    "record:after:start.placed",
    "answer:before",
    "answer:after",
)
_COMPANION_POINTS = (
    "record:after:companion.intended",
    "companion.submit:before",
    "companion.submit:after",
    "record:after:companion.submitted",
    "record:after:companion.here",
    "record:after:companion.failed",
    "record:after:companion.ended.intended",
    "companion.end:before",
    "companion.end:after",
    "record:after:companion.ended",
    "record:after:start.placed",
    "release:before",
    "release:after",
)
_COMPANION_ENDS = (
    "record:after:companion.submitted",
    "record:after:companion.ended.intended",
    "companion:before",
    "companion:after",
    "record:after:companion.ended",
    "record:after:companion.gone",
)
_INSIDE = ("crash", "freeze", "slurmd", "xid", "hang", "hang-exit", "torn", "port", "kill", "sick")
_NO_JOB = ("late", "lost", "busy")  # what may leave `ftrun sbatch` without a job
QUICK_HANGS = {"hang-min": 30.0, "hang-max": 120.0, "hang-grace": 120.0}
HOPELESS = ("bug", "oom", "early-exit", "diverge-again")


@dataclass(frozen=True, slots=True)
class JobFault:
    """A fault of the job or of one of its nodes: once, when `at_step` is about to be made for the first time."""

    kind: str
    at_step: int
    node: int  # which of the launch's nodes, modulo their number
    for_s: float  # until the node is mended


@dataclass(frozen=True, slots=True)
class SupervisorFault:
    """`crash`, `pause` or `slow` (a pause of the loop alone: the lease is renewed meanwhile) at the `at_point`-th point of all supervisors together (see `services.Services.crash`).

    `at_name` narrows the count to points of this name: the `at_point`-th `submit:after`.
    """

    kind: str
    at_point: int
    for_s: float  # until the next process starts, or until this one goes on
    tear: int = 0  # bytes cut off the record that was being written; 0 = it was whole
    at_name: str = ""


@dataclass(frozen=True, slots=True)
class AgentFault:
    """What befalls the agents of a life at the `at_point`-th point of all of them together, or of those called `at_name`.

    `kill`, `freeze` (nothing of it wakes for a while) or `stuck` (its watchdog does: what a shared folder that hangs makes of it).
    """

    kind: str
    at_point: int
    for_s: float = 0.0
    at_name: str = ""


@dataclass(frozen=True, slots=True)
class SlurmFault:
    """`down`, `hung` or `crash` of the controller; a crash loses jobs and sets others back."""

    kind: str
    at_s: float
    for_s: float
    lose: int = 0
    rewind: bool = False


@dataclass(frozen=True, slots=True)
class SubmitFault:
    """What befalls the sbatch of one attempt: the fields of `Faults` that begin with submit_, without that word, or `copied`:
    a second job of the same token appears `for_s` later.
    """

    attempt: int
    kind: str
    for_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HiddenRows:
    """Slurm's answers lack every job of the run: those to `jobs` (`look`), or those to `find` as well (`all`)."""

    at_s: float
    for_s: float
    where: str = "look"


@dataclass(frozen=True, slots=True)
class Outage:
    """A node is lost at a time, whether a job is on it or not. `kind` as `crash`, `freeze`, `slurmd` of `JobFault`, or
    `drain` by an administrator: what runs there goes on.
    """

    node: int
    kind: str
    at_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class Stall:
    """No lease can be renewed (the home is full): the supervisors go on, their counter stands still."""

    at_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class PersonAct:
    """`scancel` (of all jobs of the run) or `scancel-companions`, `requeue` by somebody else, or a request of the user: `cancel`, `stop`, or `halt` under conditions (`Halt`; `before_s` from then on)."""

    kind: str
    at_s: float
    halt: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """One life. Probabilities in `client` hold until `calm_s`; every fault at a time comes before it."""

    seed: int
    nodes: int = 6
    wanted: int = 2
    steps: int = 30
    step_s: float = 4.0
    save_every: int = 5
    graceful: bool = False  # the script saves and leaves when it is told to (SIGTERM)
    requeue: bool = True
    may_drain: bool = True
    time_limit_s: float = 0.0  # 0 = none
    settings: tuple[tuple[str, Any], ...] = ()
    job: tuple[JobFault, ...] = ()
    supervisors: tuple[SupervisorFault, ...] = ()
    second_at_s: float = 0.0  # another supervisor from then on; 0 = none
    skews_s: tuple[float, ...] = (0.0, 0.0)
    slurm: tuple[SlurmFault, ...] = ()
    client: tuple[tuple[str, float], ...] = ()
    submits: tuple[SubmitFault, ...] = ()
    hidden: tuple[HiddenRows, ...] = ()
    stalls: tuple[Stall, ...] = ()
    outages: tuple[Outage, ...] = ()
    usurped_at_s: float = 0.0  # somebody takes the lease out of turn, and does nothing with it; 0 = never
    lucky_front: bool = False  # nothing of `client` befalls the first submission
    people: tuple[PersonAct, ...] = ()
    blind_nodes_s: tuple[float, float] = (0.0, 0.0)  # the nodes do not see the run's folder from, for
    front_dies_at: int = 0  # which step of `ftrun sbatch` is its last; 0 = none
    front_pause: tuple[int, float] = (0, 0.0)  # before which step it stands still, for how long
    resume_after_s: float = 0.0  # a person resumes the run so long after it was stopped, once; 0 = never
    haunted: int = 0  # against so many nodes other runs of the user hold something
    crowded_s: float = 0.0  # every node is taken by strangers at first, for so long
    agent: bool = False  # an agent beside the script
    spares: int = 0
    agents: tuple[AgentFault, ...] = ()
    least: int = 0  # the run may go on with so few nodes; 0 = with `wanted` only
    strangers: tuple[
        tuple[int, float, float], ...
    ] = ()  # nodes that others have: which, from when, for how long
    no_kill: str = ""  # the user's word about it: "off"
    releases: int = 1  # how often in a launch Slurm lets a job give nodes back (22.05: once)
    no_span: bool = False  # no srun of the script can lie in two jobs
    judged: bool = False  # its checkpoints are files that the judge can look into
    sick_steps: int = 3  # so many steps without a number, and the trainer stops itself
    one_log: bool = False  # all attempts write into one file
    load_s: float = 0.0  # for so long a start that is not the first loads in silence
    unfit: tuple[int, ...] = ()  # nodes that answer the agent, and say that no start should use them
    calm_s: float = 0.0

    @property
    def watch_only(self) -> bool:
        """ftrun may not touch the run (`observe`, or `retries` 0)."""
        chosen = dict(self.settings)
        return bool(chosen.get("observe")) or chosen.get("retries") == 0

    @property
    def must_finish(self) -> bool:
        """Whether nothing in here is a reason to stop."""
        return not (
            any(fault.kind in HOPELESS for fault in self.job)
            or (
                any(act.kind not in ("requeue", "scancel-companions") for act in self.people)
                and not self.resume_after_s
            )
            or self.watch_only
            or self.front_dies_at
            or self.front_pause[0]
            or self.front_may_fail
        )

    @property
    def front_may_fail(self) -> bool:
        """Whether the first submission may be refused or left unknown."""
        early = any(fault.at_s < 60.0 for fault in self.slurm)
        early = early or any(fault.attempt == 1 and fault.kind in _NO_JOB for fault in self.submits)
        unlucky = any(name.startswith(("submit", "read")) and rate for name, rate in self.client)
        return early or (unlucky and not self.lucky_front)

    @property
    def crash_only(self) -> bool:
        """Only supervisors die: the end must be that of the same life without."""
        timed = (
            self.agents
            or self.slurm
            or self.people
            or self.second_at_s
            or self.hidden
            or self.stalls
            or self.outages
        )
        return bool(self.supervisors) and not (timed or self.client or self.submits or self.usurped_at_s)

    def without_supervisor_faults(self) -> Plan:
        """The same life with supervisors that live for ever."""
        return replace(self, supervisors=(), second_at_s=0.0)


def draw(seed: int) -> Plan:
    """The plan of a seed; the same one on every machine."""
    plan = _plain(seed)
    if seed in PLAIN_SEEDS:
        return plan
    plan = _with_reports(_with_a_past(_more(plan)))
    plan = _with_sizes(_with_unfit(_with_agent(plan)) if seed % 2 else _with_silence(plan))
    plan = _with_one_log(_with_divergence(plan))
    return _with_companions(plan) if plan.agent else plan


def _with_one_log(plan: Plan) -> Plan:
    """All attempts write into one file, where a node that thaws writes, too, from a stream of its own."""
    luck = Random(f"ftrun simulation {plan.seed} one log")
    return replace(plan, one_log=True, load_s=luck.choice((0.0, 30.0))) if luck.random() < 0.3 else plan


def _with_divergence(plan: Plan) -> Plan:
    """Checkpoints that the judge can look into, and trainings that go wrong and save on, from a stream of their own."""
    luck = Random(f"ftrun simulation {plan.seed} divergence")
    if luck.random() >= 0.35 or plan.blind_nodes_s[1]:
        return plan
    kinds = luck.choice(
        (("diverge",), ("diverge", "torn"), ("torn", "torn"), ("diverge", "diverge"), ("diverge-again",))
    )
    job = tuple(
        JobFault(kind, luck.randint(1, plan.steps), luck.randrange(plan.wanted), luck.uniform(10, 400))
        for kind in kinds
    )
    chosen = dict(plan.settings) | {
        "checkpoint-fresh": luck.random() < 0.5,
        "checkpoint-verify": luck.choice(("structure", "structure", "name")),
    }
    return replace(
        plan,
        judged=luck.random() < 0.7,
        sick_steps=luck.choice((1, 3, 8)),
        job=tuple(sorted((*plan.job, *job), key=lambda fault: fault.at_step)),
        settings=tuple(sorted(chosen.items())),
    )


def _with_companions(plan: Plan) -> Plan:
    """Nodes outside of the job that it may borrow, or that others have for long, from a stream of its own."""
    luck = Random(f"ftrun simulation {plan.seed} companions")
    if luck.random() >= 0.4 or plan.watch_only or plan.front_pause[0]:
        return plan
    nodes, whole_s = plan.nodes + luck.choice((0, 1, 2, 3)), plan.steps * plan.step_s
    kinds = [luck.choice(("crash", "xid", "freeze", "slurmd", "sick", "kill")) for _ in range(2)]
    job = tuple(
        JobFault(
            luck.choice(kinds),
            luck.randint(2, plan.steps),
            luck.randrange(plan.wanted),
            luck.uniform(20, 600),
        )
        for _ in range(luck.choice((1, 2, 3)))
    )
    strangers = tuple(
        (luck.randrange(nodes), luck.uniform(0, whole_s), luck.choice((30.0, 200.0, 2000.0)))
        for _ in range(luck.choice((0, 0, 1, 3)))
    )
    people = plan.people
    if not people and luck.random() < 0.3:
        people = (PersonAct("scancel-companions", luck.uniform(30, whole_s * 1.5)),)
    chosen = dict(plan.settings) | {
        "recover": luck.choice(
            (
                "rank,step,swap,companion,shrink,resubmit",
                "step,swap,companion,shrink,resubmit",
                "companion,resubmit",
            )
        ),
        "limit-companion": luck.choice((30.0, 60.0, 300.0)),
        "grow-min-interval": luck.choice((20.0, 60.0, 1800.0)),
    }
    longer = luck.choice((1, 4)) if plan.least else 1  # else nothing that grows would pay
    return replace(
        plan,
        nodes=nodes,
        steps=plan.steps * longer,
        job=tuple(sorted((*plan.job, *job), key=lambda fault: fault.at_step)),
        agents=(*plan.agents, *_named(luck, _COMPANION_POINTS)),
        supervisors=(*plan.supervisors, *_ends_cut(luck)),
        strangers=(*plan.strangers, *strangers),
        people=people,
        no_kill=luck.choice(("", "", "", "off")),
        releases=luck.choice((0, 1, 1, 9)),
        no_span=luck.random() < 0.05,
        settings=tuple(sorted(chosen.items())),
        calm_s=max(
            plan.calm_s, *(at + long for _, at, long in strangers), *(act.at_s for act in people), 0.0
        ),
    )


def _named(luck: Random, points: tuple[str, ...]) -> tuple[AgentFault, ...]:
    return tuple(
        AgentFault(
            luck.choice(("kill", "kill", "freeze", "stuck")),
            1,
            luck.choice((5.0, 25.0, 70.0, 200.0)),
            at_name=luck.choice(points),
        )
        for _ in range(luck.choice((0, 0, 1)))
    )


def _ends_cut(luck: Random) -> tuple[SupervisorFault, ...]:
    return tuple(
        SupervisorFault(
            luck.choice(("crash", "pause", "slow")),
            1,
            luck.choice((5.0, 15.0, 60.0, 300.0)),
            at_name=luck.choice(_COMPANION_ENDS),
        )
        for _ in range(luck.choice((0, 0, 1)))
    )


def _with_sizes(plan: Plan) -> Plan:
    """Runs that may go on with fewer nodes, where nodes are scarce, from a stream of their own."""
    luck = Random(f"ftrun simulation {plan.seed} sizes")
    if luck.random() >= 0.25 or plan.wanted < 2 or plan.watch_only or plan.front_pause[0]:
        return plan
    whole_s = plan.steps * plan.step_s
    strangers = tuple(
        (luck.randrange(plan.nodes), luck.uniform(0, whole_s), luck.choice((30.0, 200.0, 2000.0)))
        for _ in range(luck.choice((0, 1, 2, 4)))
    )
    outages = tuple(
        Outage(luck.randrange(plan.nodes), "crash", luck.uniform(0, whole_s), luck.uniform(400, 2000))
        for _ in range(luck.choice((0, 1, 1, 2)))
    )
    chosen = dict(plan.settings) | {
        "resize-after": luck.choice((0.0, 10.0, 60.0, 270.0)),
        "queue-timeout": luck.choice((120.0, 1800.0)),
    }
    return replace(
        plan,
        least=luck.randint(1, plan.wanted - 1),
        strangers=strangers,
        outages=(*plan.outages, *outages),
        settings=tuple(sorted(chosen.items())),
        calm_s=max(
            plan.calm_s, *(at + long for _, at, long in strangers), *(o.at_s + o.for_s for o in outages), 0.0
        ),
    )


def _with_silence(plan: Plan) -> Plan:
    """Without an agent: scripts that stand still and say nothing, from a stream of their own."""
    luck = Random(f"ftrun simulation {plan.seed} silence")
    if luck.random() >= 0.3 or plan.watch_only or plan.blind_nodes_s[1]:
        return plan
    silent = tuple(
        JobFault("silent", luck.randint(2, plan.steps), 0, 0.0) for _ in range(luck.choice((1, 1, 2)))
    )
    return replace(
        plan,
        job=tuple(sorted((*plan.job, *silent), key=lambda fault: fault.at_step)),
        settings=tuple(sorted((dict(plan.settings) | QUICK_HANGS).items())),
    )


def _with_agent(plan: Plan) -> Plan:
    """An agent beside the script, from a stream of its own: spares, what befalls the agents, and faults that come close upon each other."""
    luck = Random(f"ftrun simulation {plan.seed} agent")
    spares = luck.choice((0, 0, 1, 1, 2))
    nodes = max(plan.nodes, plan.wanted + spares + luck.choice((0, 1)))
    whole_s = plan.steps * plan.step_s
    agents = _agents(luck)
    job = _inside(luck, plan)
    outages = tuple(
        Outage(
            luck.randrange(nodes),
            luck.choice(("crash", "freeze", "slurmd")),
            luck.uniform(0, whole_s * 1.5),
            luck.uniform(10, 400),
        )
        for _ in range(luck.choice((0, 0, 0, 1, 2)))
    )
    people, resume_after_s = plan.people, plan.resume_after_s
    if not people and luck.random() < 0.2:
        people = (_halt(luck, plan),)
        resume_after_s = luck.choice((0.0, 30.0, 200.0))
    chosen = dict(plan.settings)
    if luck.random() < 0.15:
        chosen |= luck.choice(({"hang": "never"}, {"recover": "step,resubmit"}, {"recover": "swap,resubmit"}))
    ends_s = (*(outage.at_s + outage.for_s for outage in outages), *(act.at_s for act in people))
    return replace(
        plan,
        agent=True,
        spares=spares,
        nodes=nodes,
        agents=agents,
        job=tuple(sorted((*plan.job, *job), key=lambda fault: fault.at_step)),
        outages=(*plan.outages, *outages),
        people=people,
        resume_after_s=resume_after_s,
        settings=tuple(sorted(chosen.items())),
        calm_s=max(plan.calm_s, *ends_s, 0.0),
    )


def _with_unfit(plan: Plan) -> Plan:
    """Nodes, spares among them, that are there and no good, from a stream of their own."""
    luck = Random(f"ftrun simulation {plan.seed} unfit")
    if luck.random() >= 0.25:
        return plan
    return replace(plan, unfit=tuple(luck.sample(range(plan.nodes), min(plan.nodes, luck.choice((1, 1, 2))))))


def _agents(luck: Random) -> tuple[AgentFault, ...]:
    named = luck.choice(("", "", *_AGENT_POINTS))
    return tuple(
        AgentFault(
            luck.choice(("kill", "kill", "freeze", "stuck")),
            luck.randint(1, 3 if named else 40),
            luck.choice((5.0, 15.0, 25.0, 70.0, 200.0)),
            at_name=named,
        )
        for _ in range(luck.choice((0, 0, 1, 1, 2)))
    )


def _inside(luck: Random, plan: Plan) -> tuple[JobFault, ...]:
    """Faults that come close upon each other."""
    kinds = luck.sample(_INSIDE, 3)
    step = luck.randint(2, plan.steps)
    job = tuple(
        JobFault(
            luck.choice(kinds),
            step + luck.choice((0, 0, 1, 3)),
            luck.randrange(plan.wanted),
            luck.uniform(10, 400),
        )
        for _ in range(luck.choice((0, 1, 2, 3)))
    )
    return tuple(f for f in job if not (plan.blind_nodes_s[1] and f.kind.startswith("hang")))


def _halt(luck: Random, plan: Plan) -> PersonAct:
    """A person wants the run to be left under a condition."""
    condition = luck.choice(
        (
            ("after_checkpoint", True),
            ("at_step", luck.randint(1, plan.steps)),
            ("before_s", luck.uniform(60, 400)),
        )
    )
    halt = (condition, ("pause", luck.random() < 0.5))
    return PersonAct("halt", luck.uniform(0, plan.steps * plan.step_s), halt)


def _with_reports(plan: Plan) -> Plan:
    """Nodes that say something of themselves, from a stream of their own: true (the run stands still without a word) or not."""
    luck = Random(f"ftrun simulation {plan.seed} reports")
    if luck.random() >= 0.25 or plan.watch_only:
        return plan
    told = [
        JobFault(
            luck.choice(("sick", "report")), luck.randint(2, plan.steps), luck.randrange(plan.wanted), 0.0
        )
        for _ in range(luck.randint(1, 2))
    ]
    return replace(plan, job=tuple(sorted((*plan.job, *told), key=lambda fault: fault.at_step)))


def _with_a_past(plan: Plan) -> Plan:
    """Earlier runs of the user, from a stream of their own, too."""
    luck = Random(f"ftrun simulation {plan.seed} past")
    haunted = luck.randint(1, plan.nodes) if luck.random() < 0.3 else 0
    crowded_s = luck.uniform(10.0, 120.0) if haunted and luck.random() < 0.5 else 0.0
    return replace(plan, haunted=haunted, crowded_s=crowded_s)


def _more(plan: Plan) -> Plan:
    """Rarer things, from a stream of their own: what a seed drew without them stays as it was."""
    luck = Random(f"ftrun simulation {plan.seed} more")
    whole_s = plan.steps * plan.step_s

    def some(rate: float, most: int) -> range:
        return range(luck.randint(1, most) if luck.random() < rate else 0)

    submits = tuple(
        SubmitFault(
            luck.choice((1, 2, 2, 2, 3, 4)), luck.choice(_SUBMIT_KINDS), luck.choice((5.0, 25.0, 60.0, 150.0))
        )
        for _ in some(0.35, 2)
    )
    named = tuple(
        SupervisorFault(
            luck.choice(("crash", "pause", "slow")),
            luck.randint(1, 3),
            luck.choice((5.0, 9.5, 15.0, 60.0, 300.0)),
            at_name=luck.choice(_NAMED_POINTS),
        )
        for _ in some(0.4, 3)
    )
    hidden = tuple(HiddenRows(luck.uniform(0, whole_s * 1.5), luck.uniform(5, 50)) for _ in some(0.12, 1))
    stalls = tuple(Stall(luck.uniform(0, whole_s * 1.5), luck.uniform(5, 60)) for _ in some(0.15, 2))
    outages = tuple(
        Outage(
            luck.randrange(plan.nodes),
            luck.choice(("crash", "freeze", "slurmd", "drain")),
            luck.uniform(0, whole_s * 1.5),
            luck.uniform(10, 400),
        )
        for _ in some(0.15, 2)
    )
    chosen = dict(plan.settings)
    if luck.random() < 0.15:
        chosen["lease"] = 8.0
    if luck.random() < 0.06:
        chosen |= luck.choice(({"observe": True}, {"retries": 0}))
    if plan.blind_nodes_s[1]:  # attempt 1 runs where nobody can claim: nothing else can exist then (P4)
        submits = tuple(f for f in submits if f.attempt > 1 or f.kind not in ("doubled", "copied"))
    return replace(
        plan,
        submits=submits,
        supervisors=(*plan.supervisors, *named),
        hidden=hidden,
        stalls=stalls,
        outages=outages,
        usurped_at_s=luck.uniform(10, whole_s) if luck.random() < 0.05 else 0.0,
        resume_after_s=luck.choice((1.0, 30.0, 200.0)) if luck.random() < 0.4 else 0.0,
        settings=tuple(sorted(chosen.items())),
        calm_s=max(
            plan.calm_s,
            *(rows.at_s + rows.for_s for rows in hidden),
            *(stall.at_s + stall.for_s for stall in stalls),
            *(outage.at_s + outage.for_s for outage in outages),
            0.0,
        ),
    )


def _plain(seed: int) -> Plan:
    luck = Random(f"ftrun simulation {seed}")
    wanted = luck.choice((1, 2, 2, 3, 4))
    nodes = wanted + luck.choice((0, 1, 2, 4, 8))
    steps, step_s = luck.randint(12, 40), luck.choice((2.0, 4.0, 7.0))
    whole_s = steps * step_s
    people = _people(luck, whole_s)
    slurm = _slurm(luck, whole_s)
    front_dies_at, front_pause = _front(luck)
    blind_s = (luck.uniform(0, whole_s), luck.uniform(5, 100)) if luck.random() < 0.1 else (0.0, 0.0)
    limit_s = luck.choice((whole_s * 0.6, whole_s * 0.8)) // 60 * 60 if luck.random() < 0.15 else 0.0
    return Plan(
        seed=seed,
        nodes=nodes,
        wanted=wanted,
        steps=steps,
        step_s=step_s,
        save_every=luck.randint(2, 6),
        graceful=luck.random() < 0.3,
        requeue=luck.random() < 0.6,
        may_drain=luck.random() < 0.6,
        time_limit_s=limit_s if limit_s >= 60.0 else 0.0,
        settings=_settings(luck),
        job=tuple(f for f in _job(luck, steps, wanted) if not blind_s[1] or not f.kind.startswith("hang")),
        supervisors=_supervisors(luck),
        second_at_s=luck.uniform(1, whole_s) if luck.random() < 0.3 else 0.0,
        skews_s=tuple(luck.choice((0.0, 3600.0, -3600.0, 5.0)) for _ in range(3)),
        slurm=tuple(replace(fault, rewind=fault.rewind and not blind_s[1]) for fault in slurm),
        client=tuple((n, p) for n, p in _client(luck) if n != "submit_doubled" or not blind_s[1]),
        lucky_front=luck.random() < 0.6,
        people=people,
        blind_nodes_s=blind_s,
        front_dies_at=front_dies_at,
        front_pause=front_pause,
        calm_s=max(whole_s * 2, *(act.at_s for act in people), *(s.at_s + s.for_s for s in slurm), 0.0),
    )


def _settings(luck: Random) -> tuple[tuple[str, Any], ...]:
    chosen: dict[str, Any] = {
        "poll": luck.choice((2.0, 5.0, 10.0)),
        "lease": luck.choice((12.0, 20.0, 40.0)),
        "fault-grace": luck.choice((20.0, 60.0)),
        "backoff": luck.choice((0.0, 5.0)),
        "backoff-max": 60.0,
        "exclude-for": luck.choice((120.0, 86_400.0)),
        "exclude-cap": luck.choice((0.10, 0.5, 1.0)),
    }
    if luck.random() < 0.15:
        chosen["retries"] = luck.choice((1, 2, 3))
    if luck.random() < 0.3:
        chosen["fence-wait"] = luck.choice((10.0, 60.0))
    return tuple(sorted(chosen.items()))


def _job(luck: Random, steps: int, wanted: int) -> tuple[JobFault, ...]:
    kinds = luck.sample(RECOVERABLE, luck.randint(1, 4))
    if luck.random() < 0.12:
        kinds.append(luck.choice(HOPELESS))
    faults = [
        JobFault(luck.choice(kinds), luck.randint(1, steps), luck.randrange(wanted), luck.uniform(10, 400))
        for _ in range(luck.choice((0, 1, 1, 2, 3, 5)))
    ]
    return tuple(sorted(faults, key=lambda fault: fault.at_step))


def _supervisors(luck: Random) -> tuple[SupervisorFault, ...]:
    if luck.random() < 0.25:
        return ()
    faults = []
    for _ in range(luck.choice((1, 1, 2, 3, 5))):
        kind = luck.choice(("crash", "crash", "pause"))
        for_s = luck.choice((1.0, 15.0, 60.0, 300.0)) * luck.uniform(0.5, 1.5)
        tear = luck.randint(1, 200) if kind == "crash" and luck.random() < 0.3 else 0
        faults.append(SupervisorFault(kind, luck.randint(1, 60), for_s, tear))
    return tuple(faults)


def _slurm(luck: Random, whole_s: float) -> tuple[SlurmFault, ...]:
    if luck.random() < 0.6:
        return ()
    faults = []
    for _ in range(luck.choice((1, 1, 2))):
        kind = luck.choice(("down", "hung", "crash"))
        lose = luck.choice((0, 0, 1)) if kind == "crash" else 0
        rewind = kind == "crash" and luck.random() < 0.3
        faults.append(
            SlurmFault(
                kind, luck.uniform(0, whole_s * 1.5), luck.choice((5.0, 60.0, 90.0)), lose, rewind=rewind
            )
        )
    return tuple(faults)


def _client(luck: Random) -> tuple[tuple[str, float], ...]:
    if luck.random() < 0.6:
        return ()
    names = (
        "read_fails",
        "stale",
        "drop_row",
        "submit_unheard",
        "submit_late",
        "submit_lost",
        "submit_busy",
        "submit_doubled",
        "effect_unheard",
        "effect_lost",
    )
    rates = tuple((name, luck.choice((0.02, 0.1, 0.4))) for name in sorted(luck.sample(names, 3)))
    return (*rates, ("late_s", luck.choice((10.0, 45.0, 120.0))))


def _people(luck: Random, whole_s: float) -> tuple[PersonAct, ...]:
    if luck.random() < 0.75:
        return ()
    return (PersonAct(luck.choice(("scancel", "cancel", "stop", "requeue")), luck.uniform(0, whole_s * 1.5)),)


def _front(luck: Random) -> tuple[int, tuple[int, float]]:
    roll = luck.random()
    if roll < 0.06:
        return luck.randint(1, 8), (0, 0.0)
    if roll < 0.10:
        return 0, (luck.randint(1, 8), luck.choice((30.0, 300.0)))
    return 0, (0, 0.0)
