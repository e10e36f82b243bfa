"""Laws of a live start whose job loses a node while no srun would tell of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftrun.slurm.client.cluster import JobRow, JobState
from ftrun.slurm.client.errors import Unreachable
from ftrun.slurm.commands.spanning import Span
from ftrun.supervisor.agent.batch_channel import BatchChannel, Started
from ftrun.supervisor.agent.context import AgentContext, LaunchIdentity
from ftrun.supervisor.agent.removed_nodes import RemovedNodes
from ftrun.supervisor.diagnosis import suspicions
from ftrun.supervisor.store.attempt_dir import LaunchRecord, parse_launch

ALL = ("n0", "n1", "n2")


class _Clock:
    def __init__(self) -> None:
        self.s = 1000.0

    def mono_s(self) -> float:
        return self.s

    def now_s(self) -> float:
        return self.s

    def sleep(self, seconds: float) -> None:
        self.s += seconds


class _Says:
    """Slurm's answers about the job, one after the other; the last one stays. None: it does not answer."""

    def __init__(self, *answers: tuple[str, ...] | None, state: JobState = JobState.RUNNING) -> None:
        self.answers, self.state, self.asked = list(answers), state, 0

    def jobs(self, wanted: tuple[str, ...]) -> dict[str, JobRow]:
        self.asked += 1
        nodes = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if nodes is None:
            raise Unreachable("no answer")
        row = JobRow("7", self.state, "None", nodes, len(nodes), "", "job", "me", "main", None, 1.0, None)
        return {"7": row}


def _lost(
    folder: Path, cluster: _Says, *, calls: bool = False, spans: tuple[Span, ...] = ()
) -> tuple[str, ...]:
    """The nodes for which the start is ended within ten minutes."""
    channel = folder / "talk"
    channel.mkdir()
    if calls:
        (channel / "calls.1").write_text("1700000000 4711 -N2 train\n")
    clock, where = _Clock(), LaunchIdentity(str(folder), str(folder), 1, 0, "7", "", "n0", ALL)
    ctx = AgentContext(where, BatchChannel(str(channel)), None, cluster, None, clock)  # type: ignore[arg-type]
    ctx.spans = spans
    launch: LaunchRecord = parse_launch({"nodes": ",".join(ALL)}, 1)
    taken = RemovedNodes(ctx, Started(1, 1, ALL, "0.1", launch))
    for _ in range(600):
        clock.s += 1.0
        found = taken.look()
        if found is not None:
            assert found.diagnosis.signature == suspicions.LOST
            return found.diagnosis.nodes
    return ()


def test_a_node_that_slurm_takes_out_of_the_job_ends_a_start_that_srun_knows_nothing_of(
    tmp_path: Path,
) -> None:
    """With --no-kill the job goes on without it, and nobody else may ever stand still."""
    assert _lost(tmp_path, _Says(ALL, ("n0", "n2"))) == ("n1",)


@pytest.mark.parametrize(
    "cluster",
    [
        _Says(ALL),
        _Says(("n0", "n2"), ALL),
        _Says(("n0", "n2"), ("n0", "n1")),
        _Says(("n0", "n2"), None, ALL),
        _Says(("n1", "n2")),
        _Says((), state=JobState.PENDING),
        _Says(("n0",), state=JobState.SUSPENDED),
    ],
    ids=["all there", "once", "each once", "no answer between", "not even ours", "pending", "suspended"],
)
def test_never_on_one_answer_alone(tmp_path: Path, cluster: _Says) -> None:
    """What was said once, what cannot be since we live there, and what is said of a job that does not run: nothing of it ends anything."""
    if cluster.answers[-1] == ("n0", "n1"):  # then n2 is said to be gone again and again
        assert _lost(tmp_path, cluster) == ("n2",)
    else:
        assert _lost(tmp_path, cluster) == ()


def test_slurm_is_not_asked_where_srun_would_tell(tmp_path: Path) -> None:
    """Most jobs start their ranks by srun: they cost Slurm nothing."""
    cluster = _Says(("n0", "n2"))
    assert _lost(tmp_path, cluster, calls=True) == ()
    assert cluster.asked == 0


def test_a_node_that_is_back_as_a_companions_is_not_lost(tmp_path: Path) -> None:
    """It left the job and came again by another one."""
    assert _lost(tmp_path, _Says(("n0", "n2")), spans=(Span("8", ("n1",)),)) == ()
