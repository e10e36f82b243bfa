"""Which nodes of the allocation answer now, and that nothing of earlier starts is left on them. (I/O)

How it thinks. One step over all nodes that Slurm still counts as the job's asks each for its name and sweeps it; how it is told that one is silent
is the roll call's business (`agent_roll`). Who answered but could not be swept is asked once more. A job of one node needs no step. A node that Slurm
has already taken from the job is lost without being asked; one that was found silent while the start still lived gets no more time than the others
take to be swept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import field

from ftrun.slurm.client.cluster import Cluster, JobRow, JobState
from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.commands.spanning import Span
from ftrun.slurm.commands.steps import InsideSteps
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.agent_line import OwnNode, node_line, on_own_node
from ftrun.supervisor.agent_roll import (
    AGAIN_QUIET_S,
    DOUBTED_MAX,
    FLAT_NODES,
    LIMIT_S,
    QUIET_S,
    SHUT_S,
    Ask,
    roll_call,
)
from ftrun.supervisor.lease import Clock

__all__ = ["Reach", "Sweep", "reach", "runs", "sweep_line", "unfit"]

UNSWEPT = "it could not be swept of what earlier starts left: no Python 3.9 there, or no answer in time"


@dataclass(frozen=True, slots=True)
class Sweep:
    """Who is asked: the `nodes` of the job and of its companions (`spans`), of which `node` is ours. And what is swept: everything of starts before `token` (LAUNCH.START).
    `home` is $FTRUN_HOME, `place` the attempt's folder, `quiet_s` how long a silent node is waited for after the last answer, `lost` who
    was found silent just now and is not waited for again. `doubted` is told once who has answered while others have not. A slurmd that
    refuses is given `shut_s`."""

    home: str
    place: str
    token: str
    job: str
    nodes: tuple[str, ...]
    node: str
    quiet_s: float = QUIET_S
    lost: tuple[str, ...] = ()
    doubted: Callable[[tuple[str, ...]], None] = lambda _: None
    shut_s: float = SHUT_S
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Reach:
    """`answered`: may take part in the next start; `silent`: did not answer; `unfit`: answered, and why it may not take part; `gone`: nodes of a
    companion that is over, of which nothing bad is known.

    `known` False: nothing was learnt, `why` says why; `running`: Slurm says that the job runs. `end_s`: when its time is up
    (Unix seconds, None = unknown), that of its companions counts, too.
    """

    answered: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    unfit: dict[str, str] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    known: bool = True
    running: bool = True
    why: str = ""
    end_s: float | None = None


def reach(
    cluster: Cluster,
    steps: InsideSteps,
    clock: Clock,
    sweep: Sweep,
    *,
    alive: Callable[[], None] = lambda: None,
    own_node: OwnNode = on_own_node,
) -> Reach:
    """Ask all nodes. Never raises for what Slurm does not answer: then `known` is False."""
    job, nodes = sweep.job, sweep.nodes
    live: tuple[JobRow, ...] = ()
    leaves: dict[str, str] = {}
    gone: frozenset[str] = frozenset()
    try:
        rows = cluster.jobs((job, *(span.job for span in sweep.spans)))
        row = rows.get(job)
        leaves = {one.job_id: _leaves(cluster, one) for one in rows.values()}
        live = tuple(one for one in rows.values() if not leaves[one.job_id])
        gone = _gone(cluster, sweep, live) if row is not None else gone
    except SlurmError as error:
        row, why = None, error.message
    else:
        why = "Slurm does not show the job"
    if row is not None and leaves[job]:
        return Reach(known=False, running=False, why=leaves[job])
    if len(nodes) == 1:
        return _alone(row, sweep, own_node)
    if row is None:
        return Reach(known=False, why=why)
    held = {node for one in live for node in one.nodes}
    there = tuple(node for node in nodes if node in held)
    if len(there) > FLAT_NODES:  # others would hear by way of a lost one
        there = tuple(node for node in there if node not in sweep.lost)
    if sweep.node not in there:
        return Reach(known=False, why=f"{sweep.node} is not among the job's nodes")
    again = len(there) > FLAT_NODES or sweep.quiet_s >= QUIET_S
    ask = Ask(
        job, there, sweep.node, _line(sweep), sweep.quiet_s, again, sweep.lost, sweep.doubted, sweep.shut_s
    )
    try:
        answers = dict(roll_call(steps, clock, ask, alive).answers)
        late = tuple(node for node in answers if not answers[node])
        if len(there) - len(answers) + len(late) > DOUBTED_MAX:
            return Reach(
                known=False, why=f"{len(there) - len(answers) + len(late)} nodes did not answer in time"
            )
        answers |= _swept_again(steps, clock, ask, late, alive)
    except SlurmError as error:
        return Reach(known=False, why=error.message)
    stuck = {node: why for node, words in answers.items() if (why := unfit(words))}
    return Reach(
        answered=tuple(node for node in nodes if node in answers),
        silent=tuple(node for node in nodes if node not in answers and node not in gone),
        unfit=stuck,
        gone=tuple(node for node in nodes if node in gone and node not in answers),
        end_s=min((end_s for one in live if (end_s := _end_s(one)) is not None), default=None),
    )


def _gone(cluster: Cluster, sweep: Sweep, live: tuple[JobRow, ...]) -> frozenset[str]:
    """The nodes of companions that are over, less those that Slurm does not hear: these were lost, and took their companion with them."""
    jobs = {row.job_id for row in live}
    found = [node for span in sweep.spans if span.job not in jobs for node in span.nodes]
    known = cluster.nodes(found) if found else {}
    return frozenset(node for node in found if node not in known or known[node].responding)


def _leaves(cluster: Cluster, row: JobRow) -> str:
    """Why the job is not to go on; "" where it is. A job that is preempted has a grace time: it runs, but its end came nearer. Raises SlurmError.

    That alone may be a reservation that ends, or a person who made the job shorter: what it is, is asked for then.
    """
    if row.state is not JobState.RUNNING:
        return f"Slurm calls the job {row.state.value}"
    if row.is_cut_short and (details := cluster.details(row.job_id)) is not None and details.is_preempted:
        return "Slurm ends the job before its time limit: its nodes are wanted for another"
    return ""


def _end_s(row: JobRow) -> float | None:
    """When Slurm will end it, be it before its limit."""
    return row.planned_end_s if row.is_cut_short else row.limit_end_s


def _swept_again(
    steps: InsideSteps, clock: Clock, ask: Ask, late: tuple[str, ...], alive: Callable[[], None]
) -> dict[str, tuple[str, ...]]:
    """What those say that answered and were not swept, few at a time: an answer without words stays one. Raises Unreachable."""
    found: dict[str, tuple[str, ...]] = {}
    for first in range(0, len(late), FLAT_NODES - 1):
        few = tuple(dict.fromkeys((ask.node, *late[first : first + FLAT_NODES - 1])))
        once = replace(ask, nodes=few, quiet_s=AGAIN_QUIET_S, again=False, lost=(), doubted=lambda _: None)
        found |= {
            node: words for node, words in roll_call(steps, clock, once, alive).answers.items() if words
        }
    return found


def runs(cluster: Cluster, job: str) -> bool | None:
    """Whether Slurm says that the job runs, and is not suspended; None where it says nothing."""
    try:
        row = cluster.jobs((job,)).get(job)
    except SlurmError:
        return None
    return None if row is None else row.state is JobState.RUNNING


def _alone(row: JobRow | None, sweep: Sweep, own_node: OwnNode) -> Reach:
    """The only node is the one that we live on; Slurm need not be asked about it."""
    words = own_node(_line(sweep), sweep.job, sweep.node, LIMIT_S)
    if words is None:
        return Reach(known=False, why="what earlier starts left could not be swept in time")
    why = unfit(words) if words else ""  # batch.sh itself ends the script's own processes here
    stuck = {sweep.node: why} if why else {}
    return Reach(answered=sweep.nodes, unfit=stuck, end_s=_end_s(row) if row is not None else None)


def _line(sweep: Sweep) -> str:
    return sweep_line(sweep.home, sweep.place, sweep.token, sweep.job)


def sweep_line(home: str, place: str, token: str, job: str) -> str:
    """The line that has a node end what is of starts before `token`, and say whether a start may use it. `home` is $FTRUN_HOME, `place` the attempt's folder."""
    words = ["sweep", "--attempt-folder", place, "--token", token, "--job", job]
    return node_line(home, [*words, "--spare-check"])


def unfit(words: Sequence[str]) -> str:
    """Why the node's own sweep says that no start should use it, or that there was none: ranks of an earlier start may live there."""
    if not words:
        return UNSWEPT
    for line in words:
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if isinstance(told, dict) and told.get("unfit"):
            return str(told["unfit"])[:200]
        if isinstance(told, dict) and told.get("left"):
            return "processes of an earlier start cannot be ended"
    return ""
