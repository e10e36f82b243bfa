"""When an attempt is over, so that another one may start: the proof that P6 asks for. (I/O)

How it thinks. The job must be over for Slurm, and then each node of the launch by itself: it answers and has nothing of the job
left, or it is silent for so long that what ran there is given up for dead (it is excluded then). A launch that ran while
nobody watched comes first: it may have come to its own end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftrun.supervisor import absent, attempts, ends, sense

if TYPE_CHECKING:
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.office import World
    from ftrun.supervisor.run_types import Companion

__all__ = ["fence_wait_s", "proven", "silent"]


def proven(keeper: Keeper, world: World) -> bool:
    """P6: terminal for this launch, and every node of it answered without the job, or is silent, excluded and fenced."""
    if keeper.attempt.launch.over:
        return True
    if not _job_over(keeper, world) or _ran_unseen(keeper, world):
        return False
    if keeper.attempt.launch.end.reason == ends.STARTED_TWICE and not _heard_since(keeper, world):
        return False
    if not all(_companion_over(keeper, world, one) for one in keeper.attempt.companions):
        return False
    if not all(_node_clear(keeper, world, node) for node in _ever_used(keeper)):
        return False
    fenced = sorted(silent(keeper, world))
    keeper.record("attempt.over", fenced=fenced)
    return True


def _ever_used(keeper: Keeper) -> set[str]:
    """The nodes of every launch of the attempt, also of those that nobody saw, and of its companions: Slurm may have started the job again beside a node that
    only froze, or taken a lost one out of a job that went on without it."""
    attempt, run_dir = keeper.attempt, keeper.run_dir
    launches = range(max(attempt.launch.number, absent.latest_launch(keeper)) + 1)
    records = (attempts.launch_record(run_dir, attempt.number, launch) for launch in launches)
    brought = {node for one in attempt.companions for node in one.nodes}
    return {*attempt.nodes, *brought, *(n for record in records if record is not None for n in record.nodes)}


def _companion_over(keeper: Keeper, world: World, one: Companion) -> bool:
    """Slurm has it no more, or has not heard of any of its nodes for so long that what ran there is given up for dead."""
    rows = [(world.nodes or {}).get(node) for node in one.nodes]
    silenced = bool(rows) and not any(row is not None and row.responding for row in rows)
    return one.gone or (silenced and all(_node_clear(keeper, world, node) for node in one.nodes))


def _heard_since(keeper: Keeper, world: World) -> bool:
    """That the second start is over says nothing of the first: a node that died with it still counts as heard for a while."""
    return keeper.memory.for_how_long("started-twice", world.mono_s) >= fence_wait_s(keeper)


def _job_over(keeper: Keeper, world: World) -> bool:
    row = keeper.row(world)
    if row is not None:
        keeper.memory.since.pop("over-absent", None)
        return row.state.ended
    if keeper.attempt.launch.end.state == "GONE":
        return True
    if keeper.memory.for_how_long("over-absent", world.mono_s) < 60.0:
        return False
    return all(row.state.ended for row in keeper.office.cluster.find(keeper.attempt.token))


def _ran_unseen(keeper: Keeper, world: World) -> bool:
    """Another launch than the one that we know: it is judged, too, before the attempt counts as over.

    The requeued job started again while nobody watched, and Slurm has forgotten it since; or sbatch made two jobs of one
    token, and the one that is over never had the claim.
    """
    if _second_job(keeper):
        return True
    launch = absent.latest_launch(keeper)
    if keeper.row(world) is not None or launch <= keeper.attempt.launch.number:
        return False
    record = attempts.launch_record(keeper.run_dir, keeper.attempt.number, launch)
    nodes = record.nodes if record is not None and record.nodes else keeper.attempt.nodes
    keeper.record("job.started", launch=launch, nodes=list(nodes), started_at_s=None, over=True)
    keeper.forget(launch)
    return True


def _second_job(keeper: Keeper) -> bool:
    attempt, run_dir = keeper.attempt, keeper.run_dir
    record = attempts.launch_record(run_dir, attempt.number, attempt.launch.number)
    if record is None or record.job in ("", attempt.job) or attempts.has_tasks(run_dir, attempt.number):
        return False
    sense.adopt(keeper, record.job)
    keeper.record("job.started", nodes=list(record.nodes), started_at_s=None)
    keeper.forget(attempt.launch.number)
    return True


def _node_clear(keeper: Keeper, world: World, node: str) -> bool:
    assert world.nodes is not None
    row = world.nodes.get(node)
    if row is None:
        return True  # Slurm has no such node any more
    if row.responding:
        keeper.memory.since.pop(f"silent:{node}", None)
        return "completing" not in row.flags or _others_complete(keeper, world, node)
    return keeper.memory.for_how_long(f"silent:{node}", world.mono_s) >= fence_wait_s(keeper)


def _others_complete(keeper: Keeper, world: World, node: str) -> bool:
    """COMPLETING is the node's flag for any job: once ours is terminal, or forgotten, which comes after that, it is another's."""
    row = keeper.row(world)
    done = row is None or row.state.ended
    return done and keeper.memory.for_how_long(f"completing:{node}", world.mono_s) >= 5.0


def silent(keeper: Keeper, world: World) -> set[str]:
    """The nodes of the attempt that Slurm does not hear."""
    assert world.nodes is not None
    return {n for n in keeper.attempt.reach if n in world.nodes and not world.nodes[n].responding}


def fence_wait_s(keeper: Keeper) -> float:
    """How long a silent node is waited for before it counts as fenced: the setting, else SlurmdTimeout + 30 s."""
    value = keeper.settings.get("fence-wait", "")
    return float(value) if value not in ("", None) else keeper.office.facts().slurmd_timeout_s + 30.0
