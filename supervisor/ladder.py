"""Which rung of recovery comes next inside an allocation: a case, its ruling and the place in, a move with its path out. (pure)

How it thinks. The policy has decided already whether another try makes sense and whom it blames; the ladder only asks how little
has to be done again. It walks the list of rungs from the finest down and takes the first that nothing speaks against; what
spoke against the others stands in the path. Whatever the policy decides but a new attempt is not the ladder's business.

What speaks against a rung
- rank: the framework cannot take a process back, more than one died, a node is blamed, or the fault is not one of a process.
- step: a node that is blamed surely enough to be left out would be used again; or the fault is a node's, and nobody knows which's.
- swap: nobody is blamed, everybody is, or there are fewer usable spares than blamed nodes.
- each of them: its budget, a pause that is longer than its limit, and what was tried before.

Never in circles. A rung that was used for a class, after which the same class came back without progress, failed; then only what
stands below it is tried. It may itself be used again only where the try is another one: a spare for another node, an older checkpoint.

Tries in place and the classes that go "elsewhere first" (network, hang, unknown): the policy keeps the few tries of such a class for
other nodes. A restart on the same nodes costs seconds, so it comes first, but it is paid from the rung's own budget and leaves
those tries as they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ftrun.supervisor.grounds import CLASS_RULES, Case, Ruling
from ftrun.supervisor.model import FaultClass
from ftrun.supervisor.rungs import Rung, Rungs, rungs_from

__all__ = [
    "ENDS_THE_JOB",
    "NODE_BOUND",
    "PROCESS_FAULTS",
    "Move",
    "Place",
    "Rung",
    "Rungs",
    "climb",
    "put_in",
    "rungs_from",
]

F = FaultClass
PROCESS_FAULTS = frozenset(
    {F.UNKNOWN, F.LIBRARY_BUG, F.NETWORK, F.STORAGE, F.OOM_GPU, F.OOM_HOST, F.USER_CODE, F.DATA}
)
"""What can kill one process and leave the others able to go on."""

NODE_BOUND = frozenset({F.HARDWARE_GPU, F.HARDWARE_OTHER, F.NODE})
"""What the same nodes would show again."""

ENDS_THE_JOB = frozenset({F.PREEMPTED, F.TIMELIMIT, F.CANCELLED})
"""What takes the allocation itself away."""

_OUT_OF_MEMORY = frozenset({F.OOM_GPU, F.OOM_HOST})


@dataclass(frozen=True, slots=True)
class Place:
    """Where the job stands inside its allocation.

    `nodes` are all of the job; `active` those of the present start, in the order of the ranks; `spares` those that a start could
    use (they answer, nothing bad is known of them), the best first; `aside` those that no later start may use. `start` counts the
    starts of this launch from 1. `dead_rank` is the one rank that died while all others live; None otherwise. `step_off` and
    `swap_off` say why the script cannot be started again here ("" = it can).
    """

    nodes: tuple[str, ...]
    active: tuple[str, ...]
    spares: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()
    start: int = 1
    rejoin: bool = False
    dead_rank: int | None = None
    step_off: str = ""
    swap_off: str = ""


@dataclass(frozen=True, slots=True)
class Move:
    """What comes next.

    `nodes` are those of the next start, in the order of the ranks: a spare stands where the node stood that it replaces; () for
    resubmit. `aside` is what no later start may use, `path` every rung that was considered, with what was found. `limit_s` is the
    longest that it may take until the script or the process runs again (0 = none), `delay_s` the pause in it.
    `used` and `spent` are the uses of the rungs and the budgets of the classes after this move: what a journal keeps, and what
    the next call of `climb` and the next Case are given.
    """

    rung: Rung
    nodes: tuple[str, ...]
    aside: tuple[str, ...]
    reason: str
    limit_s: float = 0.0
    path: tuple[tuple[str, str], ...] = ()
    delay_s: float = 0.0
    used: Mapping[str, int] = field(default_factory=dict)
    spent: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Ask:
    """One question: everything that the rungs are measured by."""

    case: Case
    ruling: Ruling
    rungs: Rungs
    place: Place
    used: Mapping[str, int]
    order: tuple[Rung, ...]

    @property
    def fault(self) -> FaultClass:
        return self.case.diagnosis.fault

    @property
    def signature(self) -> str:
        return self.case.diagnosis.signature

    @property
    def out(self) -> tuple[str, ...]:
        """Active nodes that no later start may use: set aside before, or blamed surely enough to be left out."""
        bad = {*self.ruling.decision.exclude, *self.place.aside}
        return tuple(node for node in self.place.active if node in bad)

    @property
    def blamed(self) -> tuple[str, ...]:
        """Active nodes that a spare should replace: those that are out, else those that are only suspected."""
        if self.out or CLASS_RULES[self.fault].exclude == "never":
            return self.out
        return tuple(node for node in self.place.active if node in self.case.culprits)

    @property
    def spares(self) -> tuple[str, ...]:
        """The spares that may take a place now."""
        bad = {*self.place.active, *self.place.aside, *self.case.culprits, *self.ruling.decision.exclude}
        return tuple(node for node in self.place.spares if node in self.place.nodes and node not in bad)

    @property
    def floor(self) -> int:
        """The lowest rung in the list that was used for this class without progress since; -1 for none."""
        tried = [
            i for i, rung in enumerate(self.order) if self.used.get(f"{rung.value}:{self.fault.value}", 0)
        ]
        return max(tried, default=-1)


def climb(case: Case, ruling: Ruling, rungs: Rungs, place: Place, used: Mapping[str, int]) -> Move:
    """The finest rung that nothing speaks against.

    `used` is what the last Move of this run's agent left in its `used`; {} at first. Progress in this start empties it. A ruling
    that is no new attempt, and a fault that takes the allocation away, give `resubmit`: the allocation is left as it would be
    without a ladder.
    """
    used = {} if case.progressed else used
    fault, signature = case.diagnosis.fault, case.diagnosis.signature
    ask = _Ask(case, ruling, rungs, place, used, rungs.order(fault, signature))
    if ruling.decision.kind != "resubmit":
        return _leave(ask, f"not inside the allocation: {ruling.decision.kind}", ())
    if fault in ENDS_THE_JOB or case.attempt.requeued:
        return _leave(ask, f"not inside the allocation: {fault.value} ends it", ())
    path: list[tuple[str, str]] = []
    for rung in ask.order:
        against = _against(ask, rung)
        if not against:
            return _taken(ask, rung, tuple(path))
        path.append((rung.value, against))
    return _leave(ask, "no rung inside the allocation is left", tuple(path))


def put_in(active: Iterable[str], bad: Iterable[str], spares: Iterable[str]) -> tuple[str, ...] | None:
    """The active nodes with a spare in the place of each bad one, all others where they were; None where spares are too few."""
    gone, free = set(bad), iter(spares)
    nodes = [next(free, "") if node in gone else node for node in active]
    return tuple(nodes) if all(nodes) else None


def _against(ask: _Ask, rung: Rung) -> str:
    """What speaks against a rung; "" = nothing."""
    if rung is Rung.RESUBMIT:
        return ""
    own = {Rung.RANK: _against_rank, Rung.STEP: _against_step, Rung.SWAP: _against_swap}[rung](ask)
    return own or _tried(ask, rung) or _unpaid(ask, rung) or _too_slow(ask, rung)


def _against_rank(ask: _Ask) -> str:
    if not ask.place.rejoin:
        return "the framework does not let a process join again (rejoin)"
    if ask.place.dead_rank is None:
        return "it is not one process alone that died"
    if ask.fault not in PROCESS_FAULTS:
        return f"{ask.fault.value} is more than the fault of a process"
    if ask.out or ask.case.culprits:
        return f"blamed: {', '.join(ask.out or ask.case.culprits)}"
    return "an older checkpoint is wanted" if ask.ruling.decision.older_checkpoint else ""


def _against_step(ask: _Ask) -> str:
    if ask.place.step_off:
        return ask.place.step_off
    if ask.out:
        return f"{', '.join(ask.out)} is blamed and would be used again"
    suspects = [node for node in ask.place.active if node in ask.case.culprits]
    if ask.fault in NODE_BOUND and (suspects or not ask.case.culprits):
        return "the fault is a node's" + ("" if suspects else ", and nobody knows which's")
    if ask.fault in _OUT_OF_MEMORY and suspects:
        return f"what took the memory of {', '.join(suspects)} may still be there"
    return ""


def _against_swap(ask: _Ask) -> str:
    if ask.place.swap_off or ask.place.step_off:
        return ask.place.swap_off or ask.place.step_off
    bad, spares = ask.blamed, ask.spares
    if not bad:
        return "no node is blamed"
    if len(bad) == len(ask.place.active) > 1:
        return "every node is blamed: the job or the cluster, not a node"
    if len(spares) < len(bad):
        return f"{_spares(len(bad))} wanted, {len(spares)} usable"
    return ""


def _tried(ask: _Ask, rung: Rung) -> str:
    """Never in circles: what was used for this class without progress since is not used again, nor anything above it."""
    place = ask.order.index(rung)
    if place > ask.floor:
        return ""
    if place < ask.floor:
        return f"{ask.order[ask.floor].value} was tried already for {ask.fault.value}: only further down"
    another = rung is Rung.SWAP or (rung is Rung.STEP and ask.ruling.decision.older_checkpoint)
    return "" if another else f"tried already for {ask.fault.value}, without progress since"


def _unpaid(ask: _Ask, rung: Rung) -> str:
    allowed, over = ask.rungs.budget(rung, ask.fault, ask.signature)
    used = ask.used.get(f"{rung.value}:{over}" if over else rung.value, 0)
    if used < allowed:
        return ""
    of = f" for {over}" if over else ""
    return f"budget-{rung.value}{of}: {used} of {allowed} used without progress"


def _too_slow(ask: _Ask, rung: Rung) -> str:
    limit_s = ask.rungs.limit_s(rung, ask.fault, ask.signature)
    if ask.ruling.decision.delay_s < limit_s:
        return ""
    return f"a pause of {ask.ruling.decision.delay_s:g} s comes first: longer than limit-{rung.value} ({limit_s:g} s), nodes are not held for it"


def _taken(ask: _Ask, rung: Rung, path: tuple[tuple[str, str], ...]) -> Move:
    if rung is Rung.RESUBMIT:
        return _leave(ask, "a new job", path)
    active, aside, spent = ask.place.active, ask.place.aside, ask.ruling.spent
    if rung is Rung.SWAP:
        bad = ask.blamed
        nodes = put_in(active, bad, ask.spares)
        assert nodes is not None
        came = tuple(node for node in nodes if node not in active)
        told = f"{', '.join(came)} in the place of {', '.join(bad)}"
        active, aside = nodes, (*aside, *(node for node in bad if node not in aside))
    else:
        idle = (node for node in ask.case.culprits if node not in active and node in ask.place.nodes)
        aside = (*aside, *(node for node in idle if node not in aside))
        told = f"rank {ask.place.dead_rank} alone" if rung is Rung.RANK else "the same nodes once more"
        if CLASS_RULES[ask.fault].elsewhere and not ask.ruling.decision.exclude:
            spent = ask.case.spent  # its tries are kept for other nodes
    delay_s = ask.ruling.decision.delay_s
    told += f" after {delay_s:g} s" if delay_s else ""
    told += ", from an older checkpoint" if ask.ruling.decision.older_checkpoint else ""
    return Move(
        rung=rung,
        nodes=active,
        aside=aside,
        reason=f"{_what(ask)}: {told}",
        limit_s=ask.rungs.limit_s(rung, ask.fault, ask.signature),
        path=(*path, (rung.value, told)),
        delay_s=delay_s,
        used=_spend(ask, rung),
        spent=spent,
    )


def _leave(ask: _Ask, why: str, path: tuple[tuple[str, str], ...]) -> Move:
    """The agent gives up the allocation and the supervisor acts on its own judgement of the end."""
    return Move(
        rung=Rung.RESUBMIT,
        nodes=(),
        aside=ask.place.aside,
        reason=f"{_what(ask)}: {why}",
        path=(*path, (Rung.RESUBMIT.value, why)),
        used=ask.used,
        spent=ask.ruling.spent,
    )


def _spend(ask: _Ask, rung: Rung) -> dict[str, int]:
    """The uses after one more of this rung: in all, for the class, and for the signature."""
    used = dict(ask.used)
    over = {"", ask.fault.value, ask.signature}
    for key in (f"{rung.value}:{name}" if name else rung.value for name in sorted(over)):
        used[key] = used.get(key, 0) + 1
    return used


def _what(ask: _Ask) -> str:
    where = f" on {', '.join(ask.case.culprits)}" if ask.case.culprits else ""
    return f"{ask.fault.value}: {ask.case.diagnosis.title}{where}"


def _spares(number: int) -> str:
    return "1 spare is" if number == 1 else f"{number} spares are"
