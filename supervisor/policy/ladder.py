"""The ladder: the cheapest recovery inside the allocation, from policy input and decision. (pure)

The policy has already decided whether another try makes sense and which nodes to blame; the ladder only asks
how little has to be redone. `climb` walks the list of rungs from the finest down and picks the first one
without an objection; objections to the others are kept in `path`. Any decision other than a new attempt is
not the ladder's business.

Objections
- rank: the framework cannot take a process back, more than one died, a node is blamed, or the fault is not
  one of a process.
- step: a node that is surely enough blamed to be excluded would be used again; or it is a node fault and the
  node is unknown.
- swap: no node is blamed, every node is, or there are fewer usable spares than blamed nodes.
  Where segments must be whole (`spare_placement`): or the spares make no broken segment whole again.
- companion: as for swap, except that it exists for the case of too few spares. It asks only for the missing
  nodes. A run that may also go on smaller asks only where the companion would start at once: steps at a
  smaller size are worth more than waiting, and the run can grow later.
- shrink: no valid size is left. Shrinking keeps whole units: spares first replace what is missing, complete
  units go on, and healthy nodes of broken units fill further units as far as they reach. It is skipped where
  a new job at full size would start at once.
- all of them: the budget, a pause longer than the limit, and what was tried before.

Never in circles. A rung that was used for a class, after which the same class came back without progress, has
failed; then only the rungs below are tried. The same rung may be used again only if the try differs: a spare
for another node, an older checkpoint.

Restarts in place and the classes that go "elsewhere first" (network, hang, unknown): the policy reserves the
few retries of such a class for other nodes. A restart on the same nodes costs seconds, so it comes first, but
it is paid from the rung's own budget and leaves those retries untouched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from ftrun.hooks.runtime.formats import counted
from ftrun.slurm.client.topology import is_whole, whole_segments
from ftrun.slurm.records import dataclass
from ftrun.supervisor.config.node_counts import Sizes, whole_units
from ftrun.supervisor.config.recovery_order import RungRules
from ftrun.supervisor.config.rungs import Rung
from ftrun.supervisor.model.types import CLASS_RULES, FaultClass
from ftrun.supervisor.policy.policy_input import PolicyInput, Ruling
from ftrun.supervisor.policy.spare_placement import (
    are_in_rows,
    in_rank_order,
    mend_segments,
    substitute_nodes,
)

F = FaultClass
PROCESS_FAULTS = frozenset(
    {F.UNKNOWN, F.LIBRARY_BUG, F.NETWORK, F.STORAGE, F.OOM_GPU, F.OOM_HOST, F.USER_CODE, F.DATA}
)
"""Classes that can kill one process while the others can go on."""

NODE_BOUND = frozenset({F.HARDWARE_GPU, F.HARDWARE_OTHER, F.NODE})
"""Classes that would come again on the same nodes."""

ENDS_ALLOCATION = frozenset({F.PREEMPTED, F.TIMELIMIT, F.CANCELLED})
"""Classes that end the allocation itself."""

_NONE_OF_ITS_OWN = "no node of the job itself would take part, and no start uses companions' nodes alone"
CHANGES_NODES = (Rung.SWAP, Rung.COMPANION, Rung.SHRINK)
"""Each use of these is a different try: on other nodes, or on fewer."""

_OUT_OF_MEMORY = frozenset({FaultClass.OOM_GPU, FaultClass.OOM_HOST})


@dataclass(frozen=True, slots=True)
class AllocationState:
    """The position of the job inside its allocation.

    `nodes` are all nodes of the job; `active` those of the present start, in the order of the ranks; `spares`
    those that a start could use (they answer and nothing bad is known), the best first; `aside` those that no
    later start may use. `start` counts the starts of this launch from 1. `dead_rank` is the one rank that
    died while all others live, otherwise None. `step_off`, `swap_off`, `companion_off` and `shrink_off` say
    why the script cannot be restarted in that way ("" = it can), `spares_off` why some waiting nodes are no
    spares ("" = all are).

    `sizes` are the possible sizes of the run, without those that failed; None = only one size. `batch_node`
    is where the script runs ("" = unknown). `idle` is how many idle, healthy nodes outside of the job a
    companion could have now, None if unknown; `others_wait`: jobs of others wait for nodes. `lent` are those
    of `nodes` that companions hold, `doubtful` the spares that others go before. `segment` is how many ranks in a row make
    a segment that must be whole (0 = none need be).
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
    spares_off: str = ""
    sizes: Sizes | None = None
    batch_node: str = ""
    companion_off: str = ""
    idle: int | None = None
    others_wait: bool = False
    shrink_off: str = ""
    lent: frozenset[str] = frozenset()
    doubtful: frozenset[str] = frozenset()
    segment: int = 0


@dataclass(frozen=True, slots=True)
class RecoveryStep:
    """The next recovery step.

    `nodes` are those of the next start in the order of the ranks, a spare in the position of the node that it
    replaces; () for resubmit. For a companion they are the nodes of this allocation, and `missing` companion
    nodes follow. `aside` is what no later start may use, `path` each rung considered, with the result.
    `limit_s` is the longest time until the script or the process runs again (0 = no limit), `delay_s` the
    pause within it. `missing` nodes are asked of a companion, `within` those that it may have (() = any). `used` and `spent` are the uses of the rungs and the budgets of the classes after this
    step; the journal keeps them for the next `climb`.
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
    missing: int = 0
    within: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LadderInput:
    """The input of every rung."""

    case: PolicyInput
    ruling: Ruling
    rungs: RungRules
    place: AllocationState
    used: Mapping[str, int]
    order: tuple[Rung, ...]

    @property
    def fault(self) -> FaultClass:
        """The class of the fault."""
        return self.case.diagnosis.fault

    @property
    def signature(self) -> str:
        """The signature of the fault; "" for none."""
        return self.case.diagnosis.signature

    @property
    def out(self) -> tuple[str, ...]:
        """Active nodes that no later start may use: set aside before, or blamed surely enough to be excluded."""
        bad = {*self.ruling.decision.exclude, *self.place.aside}.intersection(self.place.active)
        return tuple(node for node in self.place.active if node in bad) if bad else ()

    @property
    def blamed(self) -> tuple[str, ...]:
        """Active nodes that a spare should replace: those that are out, otherwise those that are only
        suspected.
        """
        if self.out or CLASS_RULES[self.fault].exclude == "never":
            return self.out
        culprits = frozenset(self.case.culprits).intersection(self.place.active)  # of thousands of nodes
        return tuple(node for node in self.place.active if node in culprits) if culprits else ()

    @property
    def spares(self) -> tuple[str, ...]:
        """The spares that may take a place now."""
        bad = {*self.place.active, *self.place.aside, *self.case.culprits, *self.ruling.decision.exclude}
        held = frozenset(self.place.nodes)  # thousands of nodes
        return tuple(node for node in self.place.spares if node in held and node not in bad)

    @property
    def doubtful(self) -> frozenset[str]:
        """The spares that others go before: doubtful themselves, or below a switch that is suspected."""
        return self.place.doubtful | frozenset(self.case.below_switch)

    @property
    def segments(self) -> tuple[tuple[str, ...], ...]:
        """The segments of the next start, () for each that spares cannot make whole."""
        doubtful = self.doubtful
        spares = sorted(self.spares, key=lambda node: node in doubtful)
        active = in_rank_order(self.place.active, self.place.nodes)
        topology = self.case.cluster.topology
        return mend_segments(active, set(self.blamed), spares, self.place.segment, topology)

    def ranked(self, segments: Iterable[Sequence[str]], came: Sequence[str] = ()) -> tuple[str, ...]:
        """The nodes of these segments and those that `came`, as srun ranks them; () where segments would not be in a row."""
        own = (node for segment in segments for node in segment)
        nodes = (*in_rank_order(own, self.place.nodes), *came)
        return nodes if are_in_rows(nodes, self.place.segment, self.case.cluster.topology) else ()

    @property
    def floor(self) -> int:
        """The lowest rung in the list that was used for this class without progress since; -1 for none."""
        tried = [
            i for i, rung in enumerate(self.order) if self.used.get(f"{rung.value}:{self.fault.value}", 0)
        ]
        return max(tried, default=-1)


def companion_objection(ask: LadderInput, *, may_shrink: bool) -> str:
    """The objection to asking for the missing nodes; "" = none. `may_shrink`: going on smaller is possible,
    too.
    """
    place = ask.place
    if off := place.companion_off or place.swap_off or place.step_off or _no_batch_node(ask):
        return off
    bad = ask.blamed
    if not bad:
        return "no node is blamed"
    if len(bad) == len(place.active):
        return "every node is blamed: no node is left to go on with"
    if _are_covered(ask):
        return "there is a spare for each blamed node"
    if place.segment and not companion_segment(ask)[1]:
        return f"no idle nodes would make the broken segment whole ({place.segment} nodes that share a switch or block)"
    if not set(_staying(ask)) - place.lent:
        return _NONE_OF_ITS_OWN
    if may_shrink and place.idle is None:
        return "nobody knows how many nodes are idle, and the run may go on smaller at once"
    if may_shrink and place.idle is not None and place.idle < missing_count(ask):
        return f"{_are(missing_count(ask), 'node')} wanted, {place.idle} idle, and the run may go on smaller at once"
    return ""


def shrink_objection(ask: LadderInput, *, companion: bool) -> str:
    """The objection to going on with fewer nodes; "" = none. `companion`: one could still be requested."""
    place, sizes = ask.place, ask.place.sizes
    if sizes is None:
        return "the run has but one size (--ft-nodes)"
    if off := place.shrink_off or place.swap_off or place.step_off or _no_batch_node(ask):
        return off
    bad = ask.blamed
    if not bad and not ask.ruling.decision.aside:
        return "no node is blamed"
    if bad and len(bad) == len(place.active) > 1:
        return "every node is blamed: the job or the cluster, not a node"
    if bad and _are_covered(ask):
        return "there is a spare for each blamed node"
    if not shrunk_nodes(ask):
        left = len([node for node in place.active if node not in bad])
        whole = (
            f", {sum(map(bool, ask.segments))} segments of {place.segment} are whole" if place.segment else ""
        )
        return f"no valid size is left: {_are(left, 'node')} well{whole}, the smallest size is {sizes.all[0]}"
    if not set(shrunk_nodes(ask)) - place.lent:
        return _NONE_OF_ITS_OWN
    out = {*place.aside, *bad}
    well = [node for node in place.nodes if node not in out]
    wanted = max(0, sizes.full - len(well))
    at_full = ask.ruling.decision.aside != sizes.full
    if (
        at_full
        and not companion
        and place.idle is not None
        and place.idle >= wanted
        and not place.others_wait
    ):
        return (
            f"a new job at full size would begin at once: {_are(place.idle, 'node')} idle, nobody else waits"
        )
    return ""


def _staying(ask: LadderInput) -> tuple[str, ...]:
    """The nodes before those of a companion."""
    if ask.place.segment:
        return companion_segment(ask)[0]
    nodes, left = with_spares(ask)
    return tuple(node for node in nodes if node not in left)


def missing_count(ask: LadderInput) -> int:
    """How many nodes no spare can replace."""
    if ask.place.segment:
        return len(companion_segment(ask)[1])
    return max(0, len(ask.blamed) - len(ask.spares))


def _are_covered(ask: LadderInput) -> bool:
    """Whether spares can replace all blamed nodes."""
    if not ask.place.segment:
        return len(ask.blamed) <= len(ask.spares)
    return all(ask.segments) and bool(ask.ranked(ask.segments))


def companion_segment(ask: LadderInput) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the own nodes of a start whose one broken segment a companion makes whole, the idle nodes for it); () without such
    nodes.
    """
    place, topology, segments = ask.place, ask.case.cluster.topology, ask.segments
    own = ask.ranked(segments)
    if sum(not segment for segment in segments) != 1:
        return own, ()
    away = {*place.nodes, *ask.ruling.decision.exclude, *ask.case.run.excluded_at(ask.case.now_s)}
    last = frozenset(ask.case.below_switch)
    idle = sorted(ask.case.cluster.idle - away, key=lambda node: (node in last, node))
    active, bad = in_rank_order(place.active, place.nodes), set(ask.blamed)
    at = segments.index(()) * place.segment
    well = tuple(node for node in active[at : at + place.segment] if node not in bad)
    if well and is_whole(well, topology) and (leaf := topology.leaf(well[0])):
        part = (*well, *(node for node in ask.spares if topology.leaf(node) == leaf and node not in own))
        near = tuple(node for node in idle if topology.leaf(node) == leaf)[
            : max(0, place.segment - len(part))
        ]
        if len(part) + len(near) == place.segment and ask.ranked((*segments, part), near):
            return tuple(node for node in ask.ranked((*segments, part), near) if node not in near), near
    return own, next(iter(whole_segments(idle, place.segment, topology)), ())


def with_spares(ask: LadderInput) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the active nodes with bad ones replaced as far as spares reach, the bad ones that are left)."""
    if ask.place.segment:
        return ask.ranked(ask.segments), ()
    covered, topology = len(ask.spares), ask.case.cluster.topology
    nodes = substitute_nodes(ask.place.active, ask.blamed[:covered], ask.spares, topology, ask.doubtful)
    assert nodes is not None
    return nodes, ask.blamed[covered:]


def shrunk_nodes(ask: LadderInput) -> tuple[str, ...]:
    """The nodes of the largest valid size below the present one, in the order of the ranks; () if there is
    none.
    """
    sizes = ask.place.sizes
    if sizes is None:
        return ()
    most = len(ask.place.active) - 1
    if ask.place.segment:
        whole = [segment for segment in ask.segments if segment]
        found = (
            ask.ranked(whole[: size // ask.place.segment]) for size in reversed(sizes.all) if size <= most
        )
        return next(
            (nodes for nodes in found if len(nodes) in sizes.all and len(nodes) != ask.ruling.decision.aside),
            (),
        )
    left = tuple(node for part in whole_units(*with_spares(ask), sizes.unit) for node in part)
    most = min(len(left), most)
    valid = [size for size in sizes.all if size <= most and size != ask.ruling.decision.aside]
    return left[: max(valid, default=0)]


def _no_batch_node(ask: LadderInput) -> str:
    place = ask.place
    gone = place.batch_node and place.batch_node not in place.nodes
    return f"{place.batch_node}, where the script runs, is gone" if gone else ""


def _are(number: int, noun: str) -> str:
    return f"{counted(number, noun)} {'is' if number == 1 else 'are'}"


def choose_action(
    case: PolicyInput, ruling: Ruling, rungs: RungRules, place: AllocationState, used: Mapping[str, int]
) -> RecoveryStep:
    """The finest rung without an objection.

    `used` is the field `used` of the last Move of this run; {} at first. Progress in this start empties it. A
    ruling that is not a new attempt, or a fault that ends the allocation, gives `resubmit`: the allocation is
    left as it would be without a ladder.
    """
    used = {} if case.progressed else used
    fault, signature = case.diagnosis.fault, case.diagnosis.signature
    ask = LadderInput(case, ruling, rungs, place, used, rungs.order(fault, signature))
    if ruling.decision.kind != "resubmit":
        return _leave(ask, f"the decision is to {ruling.decision.kind}", ())
    if fault in ENDS_ALLOCATION or case.attempt.launch.requeued:
        return _leave(ask, f"{fault.value} ends the allocation", ())
    path: list[tuple[str, str]] = []
    for rung in ask.order:
        against = _against(ask, rung)
        if not against:
            return _taken(ask, rung, tuple(path))
        path.append((rung.value, against))
    return _leave(ask, "no rung inside the allocation is left", tuple(path))


def _against(ask: LadderInput, rung: Rung) -> str:
    """The objection to a rung; "" = none."""
    if rung is Rung.RESUBMIT:
        return ""
    if ask.ruling.decision.aside and rung is not Rung.SHRINK:
        return f"its {ask.ruling.decision.aside} nodes are to blame"
    return _OWN[rung](ask) or _held_back(ask, rung)


def _held_back(ask: LadderInput, rung: Rung) -> str:
    """The objection to another use of a rung, whatever the rung is."""
    return _tried(ask, rung) or _unpaid(ask, rung) or _too_slow(ask, rung)


def _against_rank(ask: LadderInput) -> str:
    if not ask.place.rejoin:
        return "the framework does not let a process join again (rejoin)"
    if ask.place.dead_rank is None:
        return "it is not one process alone that died"
    if ask.fault not in PROCESS_FAULTS:
        return f"{ask.fault.value} is more than the fault of a process"
    if ask.blamed:
        return f"blamed: {', '.join(ask.blamed)}"
    return "an older checkpoint is wanted" if ask.ruling.decision.older_checkpoint else ""


def _against_step(ask: LadderInput) -> str:
    if ask.place.step_off:
        return ask.place.step_off
    if ask.out:
        return f"{', '.join(ask.out)} is blamed and would be used again"
    culprits = frozenset(ask.case.culprits)
    suspects = [node for node in ask.place.active if node in culprits]
    if ask.fault in NODE_BOUND and (suspects or not culprits):
        return "the fault is a node's" + ("" if suspects else ", and it is not known which node")
    if ask.fault in _OUT_OF_MEMORY and suspects:
        return f"what took the memory of {', '.join(suspects)} may still be there"
    return ""


def _against_swap(ask: LadderInput) -> str:
    if ask.place.swap_off or ask.place.step_off:
        return ask.place.swap_off or ask.place.step_off
    bad, spares = ask.blamed, ask.spares
    if not bad:
        return "no node is blamed"
    if len(bad) == len(ask.place.active) > 1:
        return "every node is blamed: the job or the cluster, not a node"
    why = f" ({ask.place.spares_off})" if ask.place.spares_off else ""
    if ask.place.segment and not _are_covered(ask):
        return f"{counted(len(spares), 'spare')} would not make each segment of {ask.place.segment} nodes whole{why}"
    if not ask.place.segment and len(spares) < len(bad):
        return f"{_are(len(bad), 'spare')} wanted, {len(spares)} usable{why}"
    return ""


def _against_companion(ask: LadderInput) -> str:
    smaller = Rung.SHRINK in ask.order and not shrink_objection(ask, companion=True)
    return companion_objection(ask, may_shrink=smaller and not _held_back(ask, Rung.SHRINK))


def _against_shrink(ask: LadderInput) -> str:
    open_ = Rung.COMPANION in ask.order and not ask.place.companion_off
    return shrink_objection(ask, companion=open_ and not _held_back(ask, Rung.COMPANION))


_OWN = {
    Rung.RANK: _against_rank,
    Rung.STEP: _against_step,
    Rung.SWAP: _against_swap,
    Rung.COMPANION: _against_companion,
    Rung.SHRINK: _against_shrink,
}


def _tried(ask: LadderInput, rung: Rung) -> str:
    """Never in circles: what was used for this class without progress is not used again, nor anything above
    it.
    """
    place = ask.order.index(rung)
    if place > ask.floor:
        return ""
    if place < ask.floor:
        return f"{ask.order[ask.floor].value} was tried already for {ask.fault.value}: only further down"
    another = rung in CHANGES_NODES or (rung is Rung.STEP and ask.ruling.decision.older_checkpoint)
    return "" if another else f"tried already for {ask.fault.value}, without progress since"


def _unpaid(ask: LadderInput, rung: Rung) -> str:
    allowed, over = ask.rungs.budget(rung, ask.fault, ask.signature)
    used = ask.used.get(f"{rung.value}:{over}" if over else rung.value, 0)
    if used < allowed:
        return ""
    of = f" for {over}" if over else ""
    return f"budget-{rung.value}{of}: {used} of {allowed} used without progress"


def _too_slow(ask: LadderInput, rung: Rung) -> str:
    limit_s = ask.rungs.limit_s(rung, ask.fault, ask.signature)
    if ask.ruling.decision.delay_s < limit_s:
        return ""
    return f"a pause of {ask.ruling.decision.delay_s:g} s comes first: longer than limit-{rung.value} ({limit_s:g} s), nodes are not held for it"


def _taken(ask: LadderInput, rung: Rung, path: tuple[tuple[str, str], ...]) -> RecoveryStep:
    if rung is Rung.RESUBMIT:
        return _leave(ask, "a new job", path)
    aside, spent = ask.place.aside, ask.ruling.spent
    if rung in CHANGES_NODES:
        active, told = _changed(ask, rung)
        aside = (*aside, *(node for node in ask.blamed if node not in aside))
    else:
        active = ask.place.active
        idle = (node for node in ask.case.culprits if node not in active and node in ask.place.nodes)
        aside = (*aside, *(node for node in idle if node not in aside))
        told = f"rank {ask.place.dead_rank} alone" if rung is Rung.RANK else "the same nodes once more"
        if CLASS_RULES[ask.fault].elsewhere and not ask.ruling.decision.exclude:
            spent = ask.case.spent  # its retries are reserved for other nodes
    told += f"; {ask.case.switch.sentence}" if ask.case.switch is not None else ""
    delay_s = ask.ruling.decision.delay_s
    told += f" after {delay_s:g} s" if delay_s else ""
    if ask.ruling.decision.fresh:
        told += ", from nothing, since no checkpoint may be loaded"
    elif ask.ruling.decision.older_checkpoint:
        told += ", from an older checkpoint"
    return RecoveryStep(
        rung=rung,
        nodes=active,
        aside=aside,
        reason=f"{ask.case.summary}: {told}",
        limit_s=ask.rungs.limit_s(rung, ask.fault, ask.signature),
        path=(*path, (rung.value, told)),
        delay_s=delay_s,
        used=_spend(ask, rung),
        spent=spent,
        missing=missing_count(ask) if rung is Rung.COMPANION else 0,
        within=companion_segment(ask)[1] if rung is Rung.COMPANION and ask.place.segment else (),
    )


def _changed(ask: LadderInput, rung: Rung) -> tuple[tuple[str, ...], str]:
    """(the active nodes of the next start, their description) for a rung that changes them."""
    bad = ask.blamed
    if rung is Rung.SHRINK:
        nodes = shrunk_nodes(ask)
        without = f" without {', '.join(bad)}" if bad else ""
        return nodes, f"on with {len(nodes)} of {len(ask.place.active)} nodes{without}"
    if rung is Rung.COMPANION:
        told = f"{counted(missing_count(ask), 'node')} from a companion job in the place of {', '.join(bad)}"
        return _staying(ask), told
    nodes, _ = with_spares(ask)
    before = frozenset(ask.place.active)  # thousands of nodes
    came = (node for node in nodes if node not in before)
    return nodes, f"{', '.join(came)} in the place of {', '.join(bad)}{_how_near(ask, nodes)}"


def _how_near(ask: LadderInput, nodes: Sequence[str]) -> str:
    """Where the spares stand that took the places of others, if Slurm tells; "" if nothing is to be said."""
    topology = ask.case.cluster.topology
    gone, came = (
        set(one) - set(other) for one, other in ((ask.place.active, nodes), (nodes, ask.place.active))
    )
    if not topology or not came:
        return ""
    leaves = {topology.leaf(node) for node in gone}
    near = [node for node in came if topology.leaf(node) in leaves]
    where = "the same" if len(near) == len(came) else "another" if not near else "partly another"
    return f", below {where} {'block' if topology.kind == 'block' else 'switch'}"


def _leave(ask: LadderInput, why: str, path: tuple[tuple[str, str], ...]) -> RecoveryStep:
    """The agent gives up the allocation, and the supervisor judges the end for itself."""
    return RecoveryStep(
        rung=Rung.RESUBMIT,
        nodes=(),
        aside=ask.place.aside,
        reason=f"{ask.case.summary}: {why}",
        path=(*path, (Rung.RESUBMIT.value, why)),
        used=ask.used,
        spent=ask.ruling.spent,
    )


def _spend(ask: LadderInput, rung: Rung) -> dict[str, int]:
    """The uses after one more of this rung: in all, for the class, and for the signature."""
    used = dict(ask.used)
    over = {"", ask.fault.value, ask.signature}
    for key in (f"{rung.value}:{name}" if name else rung.value for name in sorted(over)):
        used[key] = used.get(key, 0) + 1
    return used
