"""A companion for the next start: asked for, awaited, looked at; and in which order the nodes of several jobs stand. (I/O)

How it thinks. The rung has a time limit, and all the while batch.sh and the supervisor see that work goes on. Nodes that nobody of this run has used are
swept, asked and checked like spares before a start uses them: one that is bad, or does not even answer, is left out when a companion is asked for
once more; twice is enough. What is not there in time is taken back, so that it cannot come later and hold nodes for nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.commands.questions import Question
from ftrun.slurm.commands.spanning import Span
from ftrun.slurm.records import dataclass
from ftrun.supervisor import agent_after, agent_case, agent_reach, nodereports
from ftrun.supervisor import pool as pools
from ftrun.supervisor.agent_checks import Checks
from ftrun.supervisor.agent_companion import HERE, WAITING, Companion, Companions
from ftrun.supervisor.agent_desk import Desk
from ftrun.supervisor.agent_talk import Started
from ftrun.supervisor.poolspec import Pool, pool_of

__all__ = ["Joined", "Wanted", "arranged", "fit", "join", "lent"]

TRIES = 2
LOOK_EVERY_S = 0.1
SWEPT_S = 2.0  # so long a sweep that was begun ahead is waited for


@dataclass(frozen=True, slots=True)
class Wanted:
    """`count` nodes, none of `exclude`, until `end_s` (Unix seconds, None = without a limit), there before `until_s` (monotonic). `started` is the
    start that failed, `why` stands in the journal."""

    started: Started
    count: int
    exclude: frozenset[str]
    end_s: float | None
    until_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Joined:
    """The nodes that came; () where none did, and why; `lasts`: asking again is of no use in this launch."""

    nodes: tuple[str, ...] = ()
    why: str = ""
    lasts: bool = False


def join(
    desk: Desk,
    companions: Companions,
    settings: Mapping[str, Any],
    wanted: Wanted,
    *,
    checks: Checks | None = None,
    swept: Question | None = None,
) -> Joined:
    """Have a companion whose nodes are well; of one that was asked for ahead `checks` may be at it, and `swept` is a question that sweeps it. Raises OSError (journal), GivenUp."""
    exclude, why = set(wanted.exclude), ""
    early = companions.take(wanted.count, exclude)
    if early is None:
        companions.end_waiting("its nodes are needed otherwise")
    for last in range(1 - TRIES, 1):
        pool = None if early else lent(desk, settings, wanted.count, exclude)
        found = early or _asked(desk, companions, wanted, exclude, pool)
        early = None
        while found.state == WAITING:
            if desk.clock.mono_s() > wanted.until_s:
                companions.end(found.number, "it did not come in time")
                return Joined(why="no companion came within limit-companion")
            desk.rest(LOOK_EVERY_S)
            found = companions.look()
        if found.state != HERE and pool is not None and last < 0:
            settings = {**settings, "pool": ""}  # the job's own partition may have what the pool refuses
            continue
        if found.state != HERE:
            return Joined(why=found.reason, lasts=found.lasts)
        unfit = fit(desk, settings, wanted.started, found, checks, swept=swept)
        swept = None
        if not unfit:
            return Joined(found.nodes[: wanted.count])
        why = "; ".join(f"{node}: {told}" for node, told in sorted(unfit.items()))
        companions.end(found.number, why)
        exclude |= set(unfit)
    return Joined(why=f"the companion's nodes are unfit: {why}")


def lent(desk: Desk, settings: Mapping[str, Any], count: int, exclude: Collection[str]) -> Pool | None:
    """The pool, where it has enough idle nodes now."""
    pool = pool_of(str(settings.get("pool", "")))
    if pool is None:
        return None
    try:
        nodes = desk.cluster.nodes()
    except SlurmError:
        return None
    return pool if len(pools.idle(desk.cluster, pool, nodes, {*exclude, *desk.nodes})) >= count else None


def _asked(
    desk: Desk, companions: Companions, wanted: Wanted, exclude: set[str], pool: Pool | None
) -> Companion:
    left_s = wanted.end_s - desk.clock.now_s() if wanted.end_s is not None else None
    return companions.ask(wanted.count, exclude, left_s, wanted.why, pool=pool)


def fit(
    desk: Desk,
    settings: Mapping[str, Any],
    started: Started,
    found: Companion,
    begun: Checks | None = None,
    *,
    lives: bool = False,
    swept: Question | None = None,
) -> dict[str, str]:
    """Node of this companion -> why no start should use it; those that are well are not in it. `begun` are checks that may be at it. Where the start still `lives`, nothing of it is swept away. Raises OSError (journal), GivenUp."""
    where, nodes = desk.where, found.nodes
    checks = begun or Checks(desk, started, settings)
    wants_checks = settings.get("after-checks") != "never"
    try:
        if wants_checks:
            checks.begin(nodes)
        token = f"{where.launch}.{started.number + (not lives)}"
        unfit: dict[str, str] = {}
        if not _all_swept(desk, nodes, swept):
            reach = agent_after.reach_all(desk, token, nodes=(where.node, *nodes))
            if not reach.known:
                return dict.fromkeys(nodes, f"it is not known whether it is well: {reach.why}")
            unfit = {node: "it does not answer" for node in (*reach.silent, *reach.gone) if node in nodes}
            unfit |= {node: why for node, why in reach.unfit.items() if node in nodes}
        if wants_checks and not unfit:
            checks.finish(nodes, desk.alive)
    finally:
        checks.let_go()
    facts = nodereports.read(where.run_dir, where.attempt, where.launch, nodes, start=started.number)
    usable = agent_case.usable(nodes, active=(), aside=(), answered=nodes, unfit=unfit, facts=facts)
    return unfit | {node: "its checks call it bad" for node in nodes if node not in {*usable, *unfit}}


def _all_swept(desk: Desk, nodes: tuple[str, ...], swept: Question | None) -> bool:
    """Whether all of these have said by now that they are swept and may be used. Who has not is asked anew."""
    if swept is None:
        return False
    give_up_s = desk.clock.mono_s() + SWEPT_S
    while not swept.over and len(swept.reached.ended) < len(nodes) and desk.clock.mono_s() < give_up_s:
        desk.alive()
        swept.listen(LOOK_EVERY_S)
    answers = swept.reached.answers
    return all(node in answers and not agent_reach.unfit(answers[node]) for node in nodes)


def arranged(desk: Desk, nodes: Collection[str]) -> tuple[tuple[str, ...], tuple[Span, ...]]:
    """(these nodes in the order of the ranks, the part of them that lies in each companion): the job's own stand first, as they are given."""
    wanted = frozenset(nodes)
    parts = (Span(span.job, tuple(node for node in span.nodes if node in wanted)) for span in desk.spans)
    spans = tuple(part for part in parts if part.nodes)
    apart = {node for span in spans for node in span.nodes}
    own = tuple(node for node in nodes if node not in apart)
    return (*own, *(node for span in spans for node in span.nodes)), spans
