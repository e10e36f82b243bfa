"""Which nodes the next attempt avoids, which ones are drained, and which exclusions end. (pure)

A node is excluded when its class says so and the diagnosis names it, never a node outside the attempt.
Evidence from the log alone may exclude but never drains, because users write logs. Exclusions stay under a
cap, so that the job stays schedulable; the newest culprit has priority over the oldest. Where nodes of one switch fail
together, the switch is suspected: other switches' nodes are tried first, and only nodes with a proven fault of their own
are excluded or drained.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ftrun.hooks.runtime.formats import counted
from ftrun.slurm.records import replace
from ftrun.supervisor.model.types import CLASS_RULES, Decision, Source
from ftrun.supervisor.policy.policy_input import EXCLUDE_SOURCES, PROOF_SOURCES, ClusterView, PolicyInput


def add_node_decisions(case: PolicyInput, decision: Decision) -> Decision:
    """The decision with its exclusions, drains and nodes to try last; the reason names them."""
    exclude, notes = _to_exclude(case)
    relax, kept_out = _under_cap(case, exclude)
    if case.attempt.launch.end.state == "REFUSED":  # perhaps because of the exclusions
        relax, notes = case.attempt.excluded, (*notes, "sbatch refused: once more with no node left out")
    exclude = tuple(node for node in exclude if node not in kept_out)
    if kept_out:
        notes = (*notes, f"not excluded, to keep the job schedulable: {', '.join(kept_out)}")
    drain, drain_notes = _to_drain(case, exclude)
    ask = _to_ask(case, exclude)
    if ask:
        drain_notes = (f"the site's service is asked to drain {', '.join(ask)}",)
    avoid = _to_avoid(case, exclude)
    if case.switch is not None:
        avoid = _away_from_switch(case, exclude, avoid)
        notes = (*notes, case.switch.sentence)
    reason = decision.reason + (f"; without {', '.join(exclude)}" if exclude else "")
    if case.switch is not None:
        reason += f"; away from {case.switch.name} as far as other nodes are idle"
    elif avoid and not exclude:
        reason += f"; on other nodes first{'' if len(avoid) == len(case.attempt.nodes) else ', as far as they are idle'}"
    elif not exclude and CLASS_RULES[case.diagnosis.fault].elsewhere and case.cluster.partition:
        reason += "; too few other nodes are idle to go elsewhere"
    return replace(
        decision,
        reason=reason,
        exclude=exclude,
        relax=relax,
        avoid=avoid,
        drain=drain,
        ask=ask,
        notes=(*decision.notes, *notes, *drain_notes),
    )


def within_cap(cluster: ClusterView, excluded: Sequence[str], cap: float) -> tuple[str, ...]:
    """The exclusions of the run, the newest first, that fit into `cap`, a share of the partition; at least
    one.

    Each decision keeps to the cap when it excludes. Exclusions made inside an allocation did not touch the
    partition, so they meet the cap here. A node on which no job can be placed takes no room.
    """
    if not cluster.partition:
        return tuple(excluded)
    usable = cluster.available | cluster.lost
    over = [node for node in excluded if node in usable][max(1, int(cap * len(cluster.partition))) :]
    return tuple(node for node in excluded if node not in over)


def nodes_to_exclude(
    cluster: ClusterView,
    excluded: Iterable[str],
    avoided: Iterable[str],
    silent: Iterable[str],
    *,
    quarantined: Iterable[str] = (),
    cap: float = 1.0,
) -> tuple[str, ...]:
    """The nodes for --exclude of the next attempt: as many as leave it enough to run on, the blamed ones
    first, and in the order given.

    An elastic run can do without a bad node by going on smaller, but not without one that is only avoided.
    Slurm starts nothing on a silent node, so that one is dropped from the list first. Nodes that other runs
    blame (`quarantined`, the worst first) come last, and only in what the run's own exclusions leave of
    `cap`, a share of the partition.
    """
    avoided, excluded = tuple(avoided), tuple(excluded)
    wanted = tuple(dict.fromkeys((*excluded, *avoided, *sorted(silent))))
    if not cluster.partition:
        return tuple(sorted(wanted))
    usable = cluster.available | cluster.lost  # a lost node comes back by itself, a drained one does not
    named: list[str] = []
    for node in wanted:
        after = {*named, node}
        needed = cluster.least if node in excluded else cluster.nodes_needed
        enough = len(cluster.partition) - len(after) >= needed
        if node in usable:
            enough = enough and len(usable - after) >= needed
        if node in cluster.partition and enough:
            named.append(node)
    room = max(1, int(cap * len(cluster.partition))) - len((usable & set(named)) - set(avoided))
    for node in quarantined:
        after = {*named, node}
        enough = len(set(cluster.partition) - after) >= cluster.nodes_needed
        enough = enough and len(usable - after) >= cluster.nodes_needed
        if room > 0 and node in cluster.partition and node not in named and enough:
            named.append(node)
            room -= 1
    return tuple(sorted(named))


def _to_exclude(case: PolicyInput) -> tuple[tuple[str, ...], tuple[str, ...]]:
    outside = tuple(node for node in case.diagnosis.nodes if node not in case.attempt.nodes)
    notes = tuple(f"{node} is not of this attempt: not blamed" for node in outside)
    rule = CLASS_RULES[case.diagnosis.fault].exclude
    if not case.culprits or rule == "never" or case.diagnosis.opinion is not None:
        return (), notes
    if case.switch is not None and not case.proven:
        return (), notes
    if len(case.culprits) == len(case.attempt.nodes) > 1:
        return (), (*notes, "every node of the attempt is affected: the job or the cluster, not a node")
    proof = bool(set(case.diagnosis.sources) & EXCLUDE_SOURCES)
    if not (proof if rule == "proven" else case.diagnosis.exclude):
        earlier = {
            node
            for i in case.run.incidents
            if (i.attempt, i.launch, i.start)
            != (case.attempt.number, case.attempt.launch.number, case.attempt.launch.start.number)
            for node in i.nodes
        }
        repeated = tuple(node for node in case.culprits if node in earlier)
        return repeated, (
            *notes,
            *(
                f"{n} is blamed for the first time, and not surely enough to leave it out"
                for n in case.culprits
                if n not in earlier
            ),
        )
    return case.culprits, notes


def _under_cap(case: PolicyInput, exclude: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(old exclusions to give up, new ones that do not fit), so that the job can still be placed."""
    partition = case.cluster.partition
    if not partition:
        return (), ()
    usable = set(case.cluster.available) | (set(exclude) & set(partition))
    spare = len(usable) - case.cluster.least
    room = max(0, min(max(1, int(case.limits.exclude_cap * len(partition))), spare))
    new, kept_out = exclude[:room], exclude[room:]
    old = [e for e in case.run.excluded if e.until_s > case.now_s and e.node not in new]
    old.sort(key=lambda e: e.until_s, reverse=True)
    # A node that is silent now may come back by itself; then its exclusion counts again.
    usable_old = [e for e in old if e.node in case.cluster.available | case.cluster.lost]
    left = room - len(new)
    return tuple(e.node for e in usable_old[left:]), kept_out


def _to_drain(case: PolicyInput, exclude: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    rule = CLASS_RULES[case.diagnosis.fault]
    if not exclude or not rule.drain or not case.limits.drain or case.limits.ask_only:
        return (), ()
    if case.common:
        return (), (f"not drained: {case.common}",)
    if not set(case.diagnosis.sources) & PROOF_SOURCES:
        own = "log and its nodes' reports say" if Source.REPORT in case.diagnosis.sources else "log says"
        return (), (f"not drained: only the job's own {own} so",)
    if not set(case.diagnosis.sources) & PROOF_SOURCES - {
        Source.SLURM
    }:  # then Slurm must have lost this very node
        exclude = tuple(node for node in exclude if node in case.cluster.lost)
    if not exclude:
        return (), ("not drained: Slurm has not lost the node",)
    if not case.cluster.may_drain:
        return (), ("not drained: this user may not",)
    cap = case.limits.drains(len(case.cluster.partition))
    room = max(0, cap - case.cluster.ftrun_drains)
    if room < len(exclude):
        return exclude[:room], (f"drain cap of {counted(cap, 'node')} reached",)
    return exclude, ()


def _to_ask(case: PolicyInput, exclude: tuple[str, ...]) -> tuple[str, ...]:
    """The nodes that the drain service is asked to drain. Log evidence is enough to ask: the service examines
    the node itself.
    """
    asks = case.cluster.may_ask and (case.limits.ask_only or not case.cluster.may_drain)
    drains = CLASS_RULES[case.diagnosis.fault].drain and case.limits.drain and not case.common
    return exclude if asks and drains else ()


def _to_avoid(case: PolicyInput, exclude: tuple[str, ...]) -> tuple[str, ...]:
    """The nodes of the attempt, if no culprit is excluded: other nodes first, but never at the price of a queue
    or, in an elastic run, of a smaller size. Where fewer others are idle than the job needs, it keeps so many of
    its own, suspects last.

    Of a class that does not go elsewhere and excludes nobody: its suspects.
    """
    rule, mine = CLASS_RULES[case.diagnosis.fault], case.attempt.nodes
    others = case.cluster.idle - {*mine, *case.run.excluded_at(case.now_s)}
    usable = [node for node in mine if node in case.cluster.available and node not in case.cluster.lost]
    needed = case.cluster.size_of_start(len(others) + len(usable))
    suspects = frozenset(case.culprits)
    guessed = case.diagnosis.opinion is not None  # a guess costs no other node
    if rule.elsewhere and not exclude and not guessed and others:
        wanted = max(0, needed - len(others))
        kept = sorted(usable, key=lambda node: node in suspects)[:wanted]
        if len(kept) == wanted:
            stays = frozenset(kept)
            return tuple(sorted((n for n in mine if n not in stays), key=lambda node: node not in suspects))
    few = (guessed or rule.exclude == "never") and len(suspects) < max(2, len(mine))
    return case.culprits if few and len(others) + len({*usable} - suspects) >= needed else ()


def _away_from_switch(case: PolicyInput, exclude: Sequence[str], avoid: Sequence[str]) -> tuple[str, ...]:
    """The culprits, the nodes below the suspected switch, and those to avoid anyway: the first of them, as far as enough
    other nodes are idle. A node that is not free costs nothing.
    """
    mine, out = set(case.attempt.nodes), {*exclude, *case.run.excluded_at(case.now_s)}
    free = (case.cluster.idle | (mine & case.cluster.available) - case.cluster.lost) - out
    left = len(free) - case.cluster.size_of_start(len(free))
    found: list[str] = []
    for node in dict.fromkeys((*case.culprits, *case.below_switch, *avoid)):
        if node not in out and (node not in free or left > 0):
            found.append(node)
            left -= node in free
    return tuple(found)
