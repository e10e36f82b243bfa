"""Which rung of recovery comes next inside an allocation: a case, its ruling and the place in, a move with its path out. (pure)

How it thinks. The policy has decided already whether another try makes sense and whom it blames; the ladder only asks how little
has to be done again. It walks the list of rungs from the finest down and takes the first that nothing speaks against; what
spoke against the others stands in the path. Whatever the policy decides but a new attempt is not the ladder's business.

What speaks against a rung
- rank: the framework cannot take a process back, more than one died, a node is blamed, or the fault is not one of a process.
- step: a node that is blamed surely enough to be left out would be used again; or the fault is a node's, and nobody knows which's.
- swap: nobody is blamed, everybody is, or there are fewer usable spares than blamed nodes.
- companion: as for swap, but that spares are too few is why it is there; shrink: no valid size is left (`ladder_elastic`).
- each of them: its budget, a pause that is longer than its limit, and what was tried before.

Never in circles. A rung that was used for a class, after which the same class came back without progress, failed; then only what
stands below it is tried. It may itself be used again only where the try is another one: a spare for another node, an older checkpoint.

Tries in place and the classes that go "elsewhere first" (network, hang, unknown): the policy keeps the few tries of such a class for
other nodes. A restart on the same nodes costs seconds, so it comes first, but it is paid from the rung's own budget and leaves
those tries as they were.
"""

from __future__ import annotations

from collections.abc import Mapping

from ftrun.supervisor import ladder_elastic as elastic
from ftrun.supervisor.grounds import CLASS_RULES, Case, Ruling
from ftrun.supervisor.ladder_terms import ENDS_THE_JOB, NODE_BOUND, PROCESS_FAULTS, Ask, Move, Place, put_in
from ftrun.supervisor.model import FaultClass
from ftrun.supervisor.rung_order import Rung
from ftrun.supervisor.rungs import Rungs, rungs_from

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

CHANGES_NODES = (Rung.SWAP, Rung.COMPANION, Rung.SHRINK)
"""Each use of these is another try: on other nodes, or on fewer."""

_OUT_OF_MEMORY = frozenset({FaultClass.OOM_GPU, FaultClass.OOM_HOST})


def climb(case: Case, ruling: Ruling, rungs: Rungs, place: Place, used: Mapping[str, int]) -> Move:
    """The finest rung that nothing speaks against.

    `used` is what the last Move of this run's agent left in its `used`; {} at first. Progress in this start empties it. A ruling
    that is no new attempt, and a fault that takes the allocation away, give `resubmit`: the allocation is left as it would be
    without a ladder.
    """
    used = {} if case.progressed else used
    fault, signature = case.diagnosis.fault, case.diagnosis.signature
    ask = Ask(case, ruling, rungs, place, used, rungs.order(fault, signature))
    if ruling.decision.kind != "resubmit":
        return _leave(ask, f"not inside the allocation: {ruling.decision.kind}", ())
    if fault in ENDS_THE_JOB or case.attempt.launch.requeued:
        return _leave(ask, f"not inside the allocation: {fault.value} ends it", ())
    path: list[tuple[str, str]] = []
    for rung in ask.order:
        against = _against(ask, rung)
        if not against:
            return _taken(ask, rung, tuple(path))
        path.append((rung.value, against))
    return _leave(ask, "no rung inside the allocation is left", tuple(path))


def _against(ask: Ask, rung: Rung) -> str:
    """What speaks against a rung; "" = nothing."""
    if rung is Rung.RESUBMIT:
        return ""
    if ask.ruling.decision.aside and rung is not Rung.SHRINK:
        return f"its {ask.ruling.decision.aside} nodes are to blame"
    return _OWN[rung](ask) or _held_back(ask, rung)


def _held_back(ask: Ask, rung: Rung) -> str:
    """What speaks against another use of a rung, whatever the rung is."""
    return _tried(ask, rung) or _unpaid(ask, rung) or _too_slow(ask, rung)


def _against_rank(ask: Ask) -> str:
    if not ask.place.rejoin:
        return "the framework does not let a process join again (rejoin)"
    if ask.place.dead_rank is None:
        return "it is not one process alone that died"
    if ask.fault not in PROCESS_FAULTS:
        return f"{ask.fault.value} is more than the fault of a process"
    if ask.out or ask.case.culprits:
        return f"blamed: {', '.join(ask.out or ask.case.culprits)}"
    return "an older checkpoint is wanted" if ask.ruling.decision.older_checkpoint else ""


def _against_step(ask: Ask) -> str:
    if ask.place.step_off:
        return ask.place.step_off
    if ask.out:
        return f"{', '.join(ask.out)} is blamed and would be used again"
    culprits = frozenset(ask.case.culprits)
    suspects = [node for node in ask.place.active if node in culprits]
    if ask.fault in NODE_BOUND and (suspects or not culprits):
        return "the fault is a node's" + ("" if suspects else ", and nobody knows which's")
    if ask.fault in _OUT_OF_MEMORY and suspects:
        return f"what took the memory of {', '.join(suspects)} may still be there"
    return ""


def _against_swap(ask: Ask) -> str:
    if ask.place.swap_off or ask.place.step_off:
        return ask.place.swap_off or ask.place.step_off
    bad, spares = ask.blamed, ask.spares
    if not bad:
        return "no node is blamed"
    if len(bad) == len(ask.place.active) > 1:
        return "every node is blamed: the job or the cluster, not a node"
    if len(spares) < len(bad):
        why = f" ({ask.place.spares_off})" if ask.place.spares_off else ""
        return f"{_spares(len(bad))} wanted, {len(spares)} usable{why}"
    return ""


def _against_companion(ask: Ask) -> str:
    smaller = Rung.SHRINK in ask.order and not elastic.against_shrink(ask, companion=True)
    return elastic.against_companion(ask, may_shrink=smaller and not _held_back(ask, Rung.SHRINK))


def _against_shrink(ask: Ask) -> str:
    open_ = Rung.COMPANION in ask.order and not ask.place.companion_off
    return elastic.against_shrink(ask, companion=open_ and not _held_back(ask, Rung.COMPANION))


_OWN = {
    Rung.RANK: _against_rank,
    Rung.STEP: _against_step,
    Rung.SWAP: _against_swap,
    Rung.COMPANION: _against_companion,
    Rung.SHRINK: _against_shrink,
}


def _tried(ask: Ask, rung: Rung) -> str:
    """Never in circles: what was used for this class without progress since is not used again, nor anything above it."""
    place = ask.order.index(rung)
    if place > ask.floor:
        return ""
    if place < ask.floor:
        return f"{ask.order[ask.floor].value} was tried already for {ask.fault.value}: only further down"
    another = rung in CHANGES_NODES or (rung is Rung.STEP and ask.ruling.decision.older_checkpoint)
    return "" if another else f"tried already for {ask.fault.value}, without progress since"


def _unpaid(ask: Ask, rung: Rung) -> str:
    allowed, over = ask.rungs.budget(rung, ask.fault, ask.signature)
    used = ask.used.get(f"{rung.value}:{over}" if over else rung.value, 0)
    if used < allowed:
        return ""
    of = f" for {over}" if over else ""
    return f"budget-{rung.value}{of}: {used} of {allowed} used without progress"


def _too_slow(ask: Ask, rung: Rung) -> str:
    limit_s = ask.rungs.limit_s(rung, ask.fault, ask.signature)
    if ask.ruling.decision.delay_s < limit_s:
        return ""
    return f"a pause of {ask.ruling.decision.delay_s:g} s comes first: longer than limit-{rung.value} ({limit_s:g} s), nodes are not held for it"


def _taken(ask: Ask, rung: Rung, path: tuple[tuple[str, str], ...]) -> Move:
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
            spent = ask.case.spent  # its tries are kept for other nodes
    delay_s = ask.ruling.decision.delay_s
    told += f" after {delay_s:g} s" if delay_s else ""
    if ask.ruling.decision.fresh:
        told += ", from nothing, since no checkpoint may be loaded"
    elif ask.ruling.decision.older_checkpoint:
        told += ", from an older checkpoint"
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
        missing=elastic.missing(ask) if rung is Rung.COMPANION else 0,
    )


def _changed(ask: Ask, rung: Rung) -> tuple[tuple[str, ...], str]:
    """(the active nodes of the next start, what is told of them) for a rung that changes them."""
    bad = ask.blamed
    if rung is Rung.SHRINK:
        nodes = elastic.fewer(ask)
        without = f" without {', '.join(bad)}" if bad else ""
        return nodes, f"on with {len(nodes)} of {len(ask.place.active)} nodes{without}"
    nodes, lost = elastic.patched(ask)
    if rung is Rung.COMPANION:
        nodes_asked = f"{len(lost)} {'node' if len(lost) == 1 else 'nodes'}"
        told = f"{nodes_asked} from a companion job in the place of {', '.join(bad)}"
        return tuple(node for node in nodes if node not in lost), told
    before = frozenset(ask.place.active)  # thousands of nodes
    came = (node for node in nodes if node not in before)
    return nodes, f"{', '.join(came)} in the place of {', '.join(bad)}"


def _leave(ask: Ask, why: str, path: tuple[tuple[str, str], ...]) -> Move:
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


def _spend(ask: Ask, rung: Rung) -> dict[str, int]:
    """The uses after one more of this rung: in all, for the class, and for the signature."""
    used = dict(ask.used)
    over = {"", ask.fault.value, ask.signature}
    for key in (f"{rung.value}:{name}" if name else rung.value for name in sorted(over)):
        used[key] = used.get(key, 0) + 1
    return used


def _what(ask: Ask) -> str:
    where = f" on {', '.join(ask.case.culprits)}" if ask.case.culprits else ""
    return f"{ask.fault.value}: {ask.case.diagnosis.title}{where}"


def _spares(number: int) -> str:
    return "1 spare is" if number == 1 else f"{number} spares are"
