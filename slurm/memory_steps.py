"""The steps of jobs of a virtual Slurm, and asking its nodes something: `Steps` without processes. (I/O)

How it thinks. A script of the virtual Slurm says which steps it runs (`Launch.begin_step`) and is told when one of them gets a signal on a node. A
node answers when neither it nor its daemon is away. What a task would say there is not this module's business: the caller gives a function that
plays the tasks. Time is the caller's, too: as with the real srun, a node that does not answer costs some seconds, a controller that is away costs
all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ftrun.slurm.client import JobState
from ftrun.slurm.errors import SlurmError
from ftrun.slurm.memory import MemoryCluster
from ftrun.slurm.memory_records import Job, Launch
from ftrun.slurm.steps import Reached, StepRow

__all__ = ["MemorySteps", "Play"]

Play = Callable[[Launch, str, str], Sequence[str]]
"""What the task of a launch says on a node that runs a line of sh there: (launch, node, line) -> words."""

STARTS_S = 0.1  # how long a step takes to start and to say something
ALIVE_EVERY_S = 1.0


class MemorySteps:
    """`Steps` on the engine of `cluster`, with the rights and the luck of that client. `sleep` lets the caller's time pass."""

    def __init__(self, cluster: MemoryCluster, sleep: Callable[[float], None], play: Play) -> None:
        self._cluster = cluster
        self._sleep = sleep
        self._play = play

    def steps(self, job_id: str) -> tuple[StepRow, ...]:
        """See `Steps.steps`."""
        self._cluster.details(job_id)  # raises as every question does
        launch = self._launch(job_id)
        if launch is None:
            return ()
        return tuple(StepRow(f"{job_id}.{step.number}", step.name, step.nodes) for step in launch.steps)

    def end_step(self, step_id: str, *, signal: str | None = None) -> None:
        """See `Steps.end_step`; a node that does not answer is told nothing, now or later, and keeps its step in the list."""
        job_id, _, number = step_id.partition(".")
        launch = self._launch(job_id)
        for step in [one for one in launch.steps if str(one.number) == number] if launch is not None else []:
            assert launch is not None
            self._cluster.effect(lambda launch=launch, step=step: launch.signal_step(step, signal or ""))  # type: ignore[misc]

    def ask(
        self,
        job_id: str,
        nodes: Sequence[str],
        script: str,
        *,
        limit_s: float,
        quiet_s: float,
        alive: Callable[[], None] = lambda: None,
    ) -> Reached:
        """See `Steps.ask`."""
        if not nodes:
            return Reached()
        try:
            self._cluster.details(job_id)
        except SlurmError as error:
            self._pass(limit_s, alive)
            return Reached(told=error.message)
        self._pass(STARTS_S, alive)
        launch, job = self._launch(job_id), self._job(job_id)
        if launch is None or job is None or job.state is not JobState.RUNNING:
            return Reached(told="Invalid job id specified")
        if any(node not in job.nodes for node in nodes):
            return Reached(told="Requested node configuration is not available")
        engine = self._cluster.engine
        there = [node for node in nodes if not engine.nodes[node].fault]
        answers = {node: tuple(self._play(launch, node, script)) for node in there}
        if len(there) < len(nodes):
            self._pass(quiet_s if there else limit_s, alive)
        return Reached(answers)

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
