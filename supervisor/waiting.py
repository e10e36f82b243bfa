"""A first attempt that waits in the queue is kept off the nodes that are held against. (I/O)

How it thinks. `ftrun sbatch` asks neither ledger nor Slurm, so the first job of a run knows nothing of other runs' nodes. While it waits,
the quarantined nodes are added to its list of excluded ones, once, under the rules of every later attempt (`placing.left_out`). A job that starts
at once starts where it starts. The user's own list stays as it is, and what the user requires is not excluded.

Nothing of this may keep a job from running. Slurm shows a job that cannot be placed any more as BadConstraints; then
the list becomes again what it was, and Slurm goes on with the job. The list before is in the journal, so whoever comes next can do that, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ftrun.slurm.client import JobState
from ftrun.slurm.errors import RefusedForGood
from ftrun.supervisor import grounds, journal, nodebook, placing, settle

if TYPE_CHECKING:
    from ftrun.slurm.client import JobRow
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World

__all__ = ["Spared", "spare"]

CANNOT_START = "badconstraints"


@dataclass(frozen=True, slots=True)
class Spared:
    """What was done about a waiting job: the list before, what came on top of it, whether Slurm has it so."""

    before: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    done: bool = True


def spare(keeper: Keeper, world: World, row: JobRow) -> None:
    """One look at a job in the queue. Raises SlurmError where it is worth another look."""
    attempt, known = keeper.attempt, keeper.office.nodebook.waiting
    first = attempt.number == 1 and not attempt.launch and attempt.running_seen_at_s is None
    if not first or keeper.watch_only or row.state is not JobState.PENDING or _in_parts(keeper, world, row):
        return
    told = known.get(keeper.run.token) or _from_journal(keeper)
    if told is None:
        told = _chosen(keeper, world, row)
        if told.nodes:
            _announce(keeper, told)
    elif told.done and told.nodes and CANNOT_START in row.reason.lower().replace(" ", ""):
        told = replace(told, nodes=(), done=False)
        _announce(keeper, told)
    if not told.done:
        _carry_out(keeper, world, told)
        told = replace(told, done=True)
    known[keeper.run.token] = told


def _in_parts(keeper: Keeper, world: World, row: JobRow) -> bool:
    """Tasks of an array and components of a heterogeneous job have lists of their own: they are left alone."""
    return len(keeper.rows(world)) > 1 or not row.job_id.isdigit()


def _chosen(keeper: Keeper, world: World, row: JobRow) -> Spared:
    """Whom this job is to be kept off; nobody, in most cases, and then Slurm is not asked."""
    quarantined = nodebook.kept_away(keeper, world.now_s)
    if not quarantined:
        return Spared()
    view = settle.cluster_view(keeper, world)
    details = keeper.office.cluster.details(keeper.attempt.job)
    if details is None or details.state is not JobState.PENDING or len(view.partition) == 0:
        return Spared()
    cap = grounds.limits_from(keeper.settings).exclude_cap
    free = [node for node in quarantined if node not in (*details.required, *details.excluded)]
    view = replace(view, nodes_needed=max(view.nodes_needed, row.node_count, len(details.required)))
    own = [node for node in details.excluded if node in view.partition]
    view = replace(view, partition=tuple(node for node in view.partition if node not in own))
    view = replace(view, available=view.available - set(own), lost=view.lost - set(own))
    nodes = placing.left_out(view, (), (), (), quarantined=free, cap=cap)
    return Spared(details.excluded, nodes, done=not nodes)


def _announce(keeper: Keeper, told: Spared) -> None:
    keeper.record("exclude.intended", nodes=list(told.nodes), before=list(told.before))


def _carry_out(keeper: Keeper, world: World, told: Spared) -> None:
    """Set the list. A job that has started meanwhile keeps its place."""
    names = sorted({*told.before, *told.nodes})
    cluster, job = keeper.office.cluster, keeper.attempt.job
    try:
        keeper.office.act("exclude", world, lambda: cluster.exclude(job, names))
    except RefusedForGood as error:
        keeper.record("exclude.refused", message=error.message)
    else:
        keeper.record("exclude.done", nodes=list(told.nodes))


def _from_journal(keeper: Keeper) -> Spared | None:
    """What an earlier supervisor did; None where none did anything."""
    told: Spared | None = None
    for record in journal.read_run(keeper.run_dir):
        data = record["data"]
        if record["kind"] == "exclude.intended":
            told = Spared(tuple(data["before"]), tuple(data["nodes"]), done=False)
        elif record["kind"] in ("exclude.done", "exclude.refused") and told is not None:
            told = replace(told, done=True)
    return told
