"""Which nodes of the allocation answer now, and that nothing of earlier starts is left on them. (I/O)

How it thinks. One step over all nodes that Slurm still counts as the job's asks each for its name and sweeps it; who says nothing within some seconds
after the others is asked once more, at the side of our own node: on a large job Slurm hands a step on from node to node, so that one dead node
keeps others from hearing of it, and a loaded one may just be late. Who is silent then, too, is silent. It is a test of the test, too: the batch node, where we live ourselves, must be among the answers, else the step
failed as such (a controller that is away, a full table of steps) and nothing is known of any node. A job of one node needs no step.
A node that Slurm has already taken from the job is lost without being asked.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ftrun.slurm.client import Cluster, JobRow, JobState
from ftrun.slurm.errors import SlurmError, Unreachable
from ftrun.slurm.steps import Steps
from ftrun.supervisor.agent_line import node_line

__all__ = ["Reach", "Sweep", "reach", "runs"]

LIMIT_S = 20.0
QUIET_S = 3.0
"""So long after the last answer nobody else is waited for; srun itself needs 4 s to find a port closed."""

AGAIN_QUIET_S = 2.0
FLAT_NODES = 16
"""So many nodes srun reaches one by one, whatever TreeWidth the site has (its default was 50, and is 16)."""

UNSWEPT = "it could not be swept of what earlier starts left: no Python 3.9 there, or no answer in time"
DOUBTED_MAX = 64  # beyond that it is no longer a question of single nodes


@dataclass(frozen=True, slots=True)
class Sweep:
    """Who is asked: the `nodes` of the job, of which `node` is ours. And what is swept: everything of starts before `token` (LAUNCH.START).
    `home` is $FTRUN_HOME, `place` the attempt's folder, `quiet_s` how long a silent node is waited for after the last answer."""

    home: str
    place: str
    token: str
    job: str
    nodes: tuple[str, ...]
    node: str
    quiet_s: float = QUIET_S


@dataclass(frozen=True, slots=True)
class Reach:
    """`answered`: may take part in the next start; `silent`: did not answer; `unfit`: answered, and why it may not take part.

    `known` False: nothing was learnt, `why` says why; `running`: Slurm says that the job runs. `end_s`: when its time is up
    (Unix seconds, None = unknown).
    """

    answered: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    unfit: dict[str, str] = field(default_factory=dict)
    known: bool = True
    running: bool = True
    why: str = ""
    end_s: float | None = None


def reach(cluster: Cluster, steps: Steps, sweep: Sweep, *, alive: Callable[[], None] = lambda: None) -> Reach:
    """Ask all nodes. Never raises for what Slurm does not answer: then `known` is False."""
    job, nodes = sweep.job, sweep.nodes
    try:
        row = cluster.jobs((job,)).get(job)
    except SlurmError as error:
        row, why = None, error.message
    else:
        why = "Slurm does not show the job"
    if len(nodes) == 1:
        return _alone(row, sweep)
    if row is None:
        return Reach(known=False, why=why)
    if (why := _leaves(row)) != "":
        return Reach(known=False, running=False, why=why)
    there = tuple(node for node in nodes if node in row.nodes)
    if sweep.node not in there:
        return Reach(known=False, why=f"{sweep.node} is not among the job's nodes")
    line = _line(sweep)
    try:
        told = steps.ask(job, there, line, limit_s=LIMIT_S, quiet_s=sweep.quiet_s, alive=alive)
    except SlurmError as error:
        return Reach(known=False, why=error.message)
    if sweep.node not in told.answers:
        return Reach(known=False, why=f"no answer even from {sweep.node}: {told.told}")
    answers = dict(told.answers)
    doubted = tuple(node for node in there if node not in answers)
    late = tuple(node for node in answers if not answers[node])
    if len(doubted) + len(late) > DOUBTED_MAX:
        return Reach(known=False, why=f"{len(doubted) + len(late)} nodes did not answer in time")
    if len(there) <= FLAT_NODES and sweep.quiet_s < QUIET_S:
        doubted = ()
    try:
        for nodes_again in (
            late,
            doubted,
        ):  # who is there is not waited for any shorter for the sake of others
            answers |= _asked_again(steps, sweep, nodes_again, line, alive)
    except SlurmError as error:
        return Reach(known=False, why=error.message)
    unfit = {node: why for node, words in answers.items() if (why := _unfit(words))}
    return Reach(
        answered=tuple(node for node in nodes if node in answers),
        silent=tuple(node for node in nodes if node not in answers),
        unfit=unfit,
        end_s=row.limit_end_s,
    )


def _leaves(row: JobRow) -> str:
    """Why the job is not to go on; "" where it is. A job that is preempted has a grace time: it runs, but its end came nearer."""
    if row.state is not JobState.RUNNING:
        return f"Slurm calls the job {row.state.value}"
    if row.is_cut_short:
        return "Slurm ends the job before its time limit: its nodes are wanted for another"
    return ""


def _asked_again(
    steps: Steps, sweep: Sweep, doubted: tuple[str, ...], line: str, alive: Callable[[], None]
) -> dict[str, tuple[str, ...]]:
    """What the doubted nodes say when few are asked at a time. Raises Unreachable, also where not even our own node answers."""
    found: dict[str, tuple[str, ...]] = {}
    quiet_s = min(sweep.quiet_s, AGAIN_QUIET_S)
    for first in range(0, len(doubted), FLAT_NODES - 1):
        few = tuple(dict.fromkeys((sweep.node, *doubted[first : first + FLAT_NODES - 1])))
        told = steps.ask(sweep.job, few, line, limit_s=LIMIT_S, quiet_s=quiet_s, alive=alive)
        if sweep.node not in told.answers:
            raise Unreachable(f"no answer even from {sweep.node}: {told.told}")
        found |= {node: words for node, words in told.answers.items() if words or node != sweep.node}
    return found


def runs(cluster: Cluster, job: str) -> bool | None:
    """Whether Slurm says that the job runs, and is not suspended; None where it says nothing."""
    try:
        row = cluster.jobs((job,)).get(job)
    except SlurmError:
        return None
    return None if row is None else row.state is JobState.RUNNING


def _alone(row: JobRow | None, sweep: Sweep) -> Reach:
    """The only node is the one that we live on; Slurm need not be asked about it, but may say that the job is being ended."""
    if row is not None and (why := _leaves(row)) != "":
        return Reach(known=False, running=False, why=why)
    env = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": sweep.job, "SLURMD_NODENAME": sweep.node}
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", _line(sweep)],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
        words = tuple(
            line.split(" ", 2)[2] for line in done.stdout.decode().splitlines() if line.count(" ") >= 2
        )
    except subprocess.TimeoutExpired:
        return Reach(known=False, why="what earlier starts left could not be swept in time")
    why = _unfit(words) if words else ""  # batch.sh itself ends the script's own processes here
    unfit = {sweep.node: why} if why else {}
    return Reach(answered=sweep.nodes, unfit=unfit, end_s=row.limit_end_s if row is not None else None)


def _line(sweep: Sweep) -> str:
    words = ["sweep", "--attempt-folder", sweep.place, "--token", sweep.token, "--job", sweep.job]
    return node_line(sweep.home, [*words, "--spare-check"])


def _unfit(words: Sequence[str]) -> str:
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
