"""Whatever befalls a run with companions, in whatever order: none is left, nothing begins beside one, nobody else's job is touched. (I/O)"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ftrun.slurm.client.cluster import SubmitRequest
from ftrun.supervisor.model.agent_events import companion_mark
from ftrun.supervisor.store.crash_points import PlannedCrash
from tests.fake_slurm.records import Job
from tests.unit.controller.test_beside import Agent
from tests.unit.lives import Life

STEPS = (
    "announce", "submit", "note it", "it is there", "join it", "it came to nothing", "the agent ends it", "the agent dies", "a person cancels it",
    "it ends by itself", "its node dies", "the script fails", "Slurm is away", "the supervisor dies", "live",
)  # fmt: skip
FIRST: tuple[list[str], ...] = (
    [], ["announce"], ["announce", "submit"], ["announce", "submit", "note it"], ["announce", "submit", "note it", "it is there", "join it"],
)  # fmt: skip
ENDS = ("the script fails", "the script ends well", "a person cancels", "a node of the job dies")
CUTS = ("", "companion:before", "companion:after", "record:after:companion", "cancel:after", "submit:after")


class History:
    """One run, and what its agent asks for."""

    def __init__(self, folder: Path, cut: str, deaf: int) -> None:
        self.life = Life(folder, nodes=7, wanted=2, fence_wait=20, backoff=0.0)
        for name in ("companion", "theirs"):
            self.life.engine.script(name, lambda launch: None)
        self.life.until("running")
        self.agent, self.alive, self.cut = Agent(self.life), True, cut
        self.own = list(self.life.launches[0].nodes)
        self.agent.begin(1, self.own)
        self.stranger = self._sbatch("theirs", "other-0001:0badf00d:companion:1.0.1", count=1)
        self.jobs: list[Job] = []
        self.number, self.noted, self.start = 0, 0, 1
        self.beside: list[str] = []
        add = self.life.engine.add

        def watched(job: Job) -> None:
            if ":companion:" not in job.comment:
                silent = {name for name, node in self.life.engine.nodes.items() if node.fault}
                self.beside += [
                    f"job {job.number} beside companion {one.number}"
                    for one in self.jobs
                    if not one.state.ended and not {*one.nodes} <= silent
                ]
            add(job)

        self.life.engine.add = watched  # type: ignore[method-assign]
        self._cancel, self._deaf = self.life.cluster.cancel, deaf
        self.life.cluster.cancel = self._cancels  # type: ignore[method-assign]
        self.live(2)

    def _sbatch(self, name: str, comment: str, count: int) -> Job:
        argv = (f"-N{count}", "-pmain", f"--job-name={name}", f"--comment={comment}", "--no-requeue", "x.sh")
        heard = self.life.cluster.submit(SubmitRequest(comment, argv, None, {}, "/"))
        return self.life.engine.jobs[int(heard.job_id)]

    def _cancels(self, job_id: str, **how: Any) -> None:
        """The first so many of a companion's cancels come to nothing."""
        if self._deaf and job_id in {str(job.number) for job in self.jobs}:
            self._deaf -= 1
            return
        self._cancel(job_id, **how)

    def live(self, seconds: int) -> None:
        """Time passes; who is cut down is followed by another."""
        for _ in range(seconds):
            self.life.supervisor.services.crash = self._crash
            if self.alive:
                self.agent.beat()
            try:
                self.life.live(1)
            except PlannedCrash:
                self.life.begin_anew()

    def _crash(self, point: str) -> None:
        if self.cut and point.startswith(self.cut):
            self.cut = ""
            raise PlannedCrash

    def _script_lives(self) -> bool:
        return self.alive and self.life.launches[0].running()

    def step(self, what: str) -> None:
        """One thing happens; where it cannot happen now, only time passes."""
        last = self.jobs[-1] if self.jobs else None
        if what == "announce" and self._script_lives():
            self.number += 1
            mark = companion_mark(self.life.token, 1, 0, self.number)
            self.agent.note("companion.intended", number=self.number, nodes=1, exclude=[], mark=mark, why="")
        elif what == "submit" and self._script_lives() and len(self.jobs) < self.number:
            self.jobs.append(self._sbatch("companion", companion_mark(self.life.token, 1, 0, self.number), 1))
        elif what == "the agent dies":
            self.alive = False
        elif what == "the script fails":
            self.end(what)
        elif what == "Slurm is away":
            self.life.engine.set_controller("down")
            self.live(15)
            self.life.engine.set_controller("up")
        elif what == "the supervisor dies":
            self.life.begin_anew()
        elif last is not None and not last.state.ended:
            self._to_companion(what, last)
        self.live(3)

    def _to_companion(self, what: str, job: Job) -> None:
        about = {"number": self.number, "job": str(job.number)}
        if what == "a person cancels it":
            self.life.cluster.cancel(str(job.number))
        elif what == "it ends by itself" and job.launch is not None:
            job.launch.exit(0)
        elif what == "its node dies" and job.nodes:
            self.life.engine.fail_node(job.nodes[0], "crash")
        elif not self._script_lives() or len(self.jobs) < self.number:
            return
        elif what == "note it":
            self.agent.note("companion.submitted", **about)
        elif what == "it is there" and job.nodes:
            self.agent.note("companion.here", nodes=list(job.nodes), **about)
        elif what == "it came to nothing":
            self.agent.note("companion.failed", reason="a limit", **about)
        elif what == "the agent ends it":
            self.agent.note("companion.ended.intended", reason="not needed", **about)
            self.life.cluster.cancel(str(job.number))
            self.agent.note("companion.ended", reason="not needed", **about)
        elif what == "join it" and job.nodes:
            nodes = [*self.own[1:], *job.nodes]
            self.agent.decide(self.start, nodes, aside=[], exclude=[])
            self.start += 1
            self.agent.begin(self.start, nodes)

    def end(self, how: str) -> None:
        """The launch comes to its end."""
        if how == "a person cancels":
            self.life.ask("cancel", "1-cancel")
        elif how == "a node of the job dies":
            self.life.engine.fail_node(self.own[0], "crash")
        elif self.life.launches[-1].running():
            self.life.exit(0 if how == "the script ends well" else 1)
        self.live(3)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(FIRST),
    st.lists(st.sampled_from(STEPS), max_size=7),
    st.sampled_from(ENDS),
    st.sampled_from(CUTS),
    st.integers(0, 2),
)
def test_no_history_leaves_a_companion_or_begins_beside_one(
    first: list[str], steps: list[str], how: str, cut: str, deaf: int
) -> None:
    """P6, P8: at the end nothing is left of the run; no attempt was submitted beside a living companion; a stranger's job with a mark like ours lives on."""
    with tempfile.TemporaryDirectory() as folder:
        history = History(Path(folder), cut, deaf)
        for step in (*first, *steps):
            history.step(step)
        history.end(how)
        history.alive = False
        for _ in range(40):
            history.live(10)
            if history.life.launches[-1].running():
                history.life.exit(0)
        run = history.life.run

        assert history.beside == []
        assert run.final, run.state
        assert [one.number for one in history.jobs if not one.state.ended] == []
        assert all(one.gone for attempt in run.attempts for one in attempt.companions)
        assert history.life.living() == [str(history.stranger.number)]
