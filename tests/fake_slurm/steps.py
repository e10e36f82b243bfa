"""The steps of jobs of a virtual Slurm, and asking its nodes something: `Steps` without processes. (I/O)

How it thinks. A script of the virtual Slurm says which steps it runs (`Launch.begin_step`) and is told when one of them gets a signal on a node. A
node answers when neither it nor its daemon is away. What a task would say there is not this module's business: the caller gives a function that
plays the tasks. Time is the caller's, too: as with the real srun, a node that does not answer costs some seconds, a controller that is away costs
all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.client.errors import RefusedForGood, RefusedForNow, SlurmError
from ftrun.slurm.commands.node_queries import NodeQuery, QueryAnswers
from ftrun.slurm.commands.slurmd_ports import SlurmdPorts
from ftrun.slurm.commands.steps import StepRow
from tests.fake_slurm.cluster import MemoryCluster
from tests.fake_slurm.records import Job, Launch

__all__ = ["MemorySteps", "Play"]

Play = Callable[[Launch, str, str], Sequence[str]]
"""What the task of a launch says on a node that runs a line of sh there: (launch, node, line) -> words."""

STARTS_S = 0.1  # how long a step takes to start and to say something
ALIVE_EVERY_S = 1.0


class MemorySteps:
    """`Steps` on the engine of `cluster`, with the rights and the luck of that client. `sleep` lets the caller's time pass. `releases` is how often in a
    launch a job may give nodes back: once, as 22.05 without accounting has it.
    """

    def __init__(
        self, cluster: MemoryCluster, sleep: Callable[[float], None], play: Play, *, releases: int = 1
    ) -> None:
        self._cluster = cluster
        self._releases = releases
        self._sleep = sleep
        self._play = play

    def steps(self, job_id: str) -> tuple[StepRow, ...]:
        """See `Steps.steps`."""
        self._cluster.details(job_id)  # raises as every question does
        launch, job = self._launch(job_id), self._job(job_id)
        if launch is None or job is None or job.state.ended:
            return ()
        return tuple(StepRow(f"{job_id}.{step.number}", step.name, step.nodes) for step in launch.steps)

    def end_step(self, step_id: str, *, signal: str | None = None) -> None:
        """See `Steps.end_step`; a node that does not answer is told nothing, now or later, and keeps its step in the list."""
        job_id, _, number = step_id.partition(".")
        launch = self._launch(job_id)
        for step in [one for one in launch.steps if str(one.number) == number] if launch is not None else []:
            assert launch is not None
            self._cluster.effect(lambda launch=launch, step=step: launch.signal_step(step, signal or ""))  # type: ignore[misc]

    def begin(self, job_id: str, nodes: Sequence[str], script: str) -> NodeQuery:
        """See `InsideSteps.begin`."""
        return _MemoryQuestion(self, job_id, nodes, script)

    def keep_nodes(self, job_id: str, nodes: Sequence[str]) -> None:
        """See `InsideSteps.keep_nodes`."""
        job, launch = self._job(job_id), self._launch(job_id)
        if job is None or launch is None or job.state is not JobState.RUNNING:
            raise RefusedForGood("Invalid job id specified", exit_code=1)
        if launch.head not in nodes or not {*nodes} <= {*job.nodes}:
            raise RefusedForGood("Invalid node name specified", exit_code=1)
        if {*nodes} == {*job.nodes}:
            return
        if launch.shrunk >= self._releases:
            raise RefusedForNow("Job update not available right now, the DB index is being set", exit_code=1)
        self._cluster.effect(lambda: self._give_back(job, launch, nodes))

    def _give_back(self, job: Job, launch: Launch, nodes: Sequence[str]) -> None:
        engine = self._cluster.engine
        for name in [name for name in job.nodes if name not in nodes]:
            engine.nodes[name].jobs.discard(job.number)
            if not engine.silent(name):
                engine.kill(engine.nodes[name], launch)
        job.nodes = tuple(name for name in job.nodes if name in nodes)
        launch.shrunk += 1
        engine.schedule_soon()

    def doors(self, nodes: Sequence[str]) -> SlurmdPorts:
        """See `InsideSteps.doors`."""
        return _MemoryDoors(self._cluster, nodes)

    def ask(
        self,
        job_id: str,
        nodes: Sequence[str],
        script: str,
        *,
        limit_s: float,
        quiet_s: float,
        alive: Callable[[], None] = lambda: None,
    ) -> QueryAnswers:
        """See `Steps.ask`."""
        if not nodes:
            return QueryAnswers()
        question = self.begin(job_id, nodes, script)
        self._pass(STARTS_S, alive)
        question.listen(0.0)
        if not question.over:
            self._pass(quiet_s if question.reached.answers else limit_s, alive)
        return question.reached

    def answered(self, job_id: str, nodes: Sequence[str], script: str) -> QueryAnswers | None:
        """What the nodes of a job say; None where the controller says nothing at all."""
        try:
            self._cluster.details(job_id)
        except SlurmError:
            return None
        launch, job = self._launch(job_id), self._job(job_id)
        if launch is None or job is None or job.state is not JobState.RUNNING:
            return QueryAnswers(told="Invalid job id specified", ended=frozenset(nodes))
        if any(node not in job.nodes for node in nodes):
            return QueryAnswers(told="Requested node configuration is not available", ended=frozenset(nodes))
        engine = self._cluster.engine
        there = [node for node in nodes if not engine.nodes[node].fault]
        answers = {node: tuple(self._play(launch, node, script)) for node in there}
        return QueryAnswers(answers, ended=frozenset(there))

    def pass_time(self, seconds: float) -> None:
        """Let the caller's time pass."""
        self._sleep(seconds)

    def _job(self, job_id: str) -> Job | None:
        return self._cluster.engine.jobs.get(int(job_id)) if job_id.isdigit() else None

    def _launch(self, job_id: str) -> Launch | None:
        job = self._job(job_id)
        return job.launch if job is not None else None

    def _pass(self, seconds: float, alive: Callable[[], None]) -> None:
        while seconds > 0:
            alive()
            self._sleep(min(ALIVE_EVERY_S, seconds))
            seconds -= ALIVE_EVERY_S


class _MemoryQuestion:
    """A question whose answers come when it is listened to for the first time."""

    def __init__(self, steps: MemorySteps, job: str, nodes: Sequence[str], script: str) -> None:
        self.nodes = tuple(nodes)
        self.reached = QueryAnswers()
        self.over = False
        self._steps, self._job, self._script = steps, job, script
        self._asked = False

    def listen(self, wait_s: float) -> None:
        """See `Question.listen`."""
        if self.over:
            return
        if wait_s > 0:
            self._steps.pass_time(max(wait_s, STARTS_S))
        if not self._asked:
            self._asked = True
            found = self._steps.answered(self._job, self.nodes, self._script)
            self.reached = found or QueryAnswers(told="no answer from the controller")
            self.over = found is not None and len(found.ended) == len(self.nodes)

    def let_go(self) -> None:
        """See `Question.let_go`."""
        self.over = True


class _MemoryDoors:
    """Nobody listens where the daemon alone is away; a node that is away itself says nothing."""

    def __init__(self, cluster: MemoryCluster, nodes: Sequence[str]) -> None:
        self._cluster, self._nodes = cluster, tuple(nodes)

    def refused(self) -> frozenset[str]:
        """See `Doors.refused`."""
        known = self._cluster.engine.nodes
        return frozenset(node for node in self._nodes if known[node].fault == "slurmd")

    def close(self) -> None:
        """See `Doors.close`."""
