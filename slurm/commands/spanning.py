"""The steps of several jobs as those of one: a main job, and companions that hold nodes for it. (I/O)

Callers that query nodes or end steps need not know which job has a node: the main job stands for all. Each
job gets a step of its own, in parallel, and the answers are merged. A companion may be over by then: srun
says so at once, and its nodes are silent like any other node without an answer; that is no error of this
query or the others. The set of companions may change between two calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.commands.node_queries import NodeQuery, QueryAnswers
from ftrun.slurm.commands.slurmd_ports import SlurmdPorts
from ftrun.slurm.commands.steps import InsideSteps, StepRow, await_answers
from ftrun.slurm.records import dataclass

SLICE_S = 0.02  # each query has its own pipe: they are read in turn


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a start that lies in one companion: the job, and its nodes in Slurm's order."""

    job: str
    nodes: tuple[str, ...]


class SpanningSteps:
    """`InsideSteps` of `main` and its `spans`; calls for other jobs go to `inner`."""

    def __init__(
        self,
        inner: InsideSteps,
        main: str,
        spans: Callable[[], Sequence[Span]],
        mono_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner, self._main, self._spans, self._mono_s = inner, main, spans, mono_s

    def steps(self, job_id: str) -> tuple[StepRow, ...]:
        """See `Steps.steps`: those of the companions, too."""
        jobs = (job_id, *(span.job for span in self._spans() if job_id == self._main))
        return tuple(row for job in jobs for row in self._inner.steps(job))

    def end_step(self, step_id: str, *, signal: str | None = None) -> None:
        """See `Steps.end_step`."""
        self._inner.end_step(step_id, signal=signal)

    def begin(self, job_id: str, nodes: Sequence[str], script: str) -> NodeQuery:
        """See `InsideSteps.begin`: one query, whichever jobs the nodes are in."""
        asked: list[NodeQuery] = []
        try:
            for job, part in self._parts(job_id, nodes):
                asked.append(self._inner.begin(job, part, script))
        except SlurmError:
            for one in asked:
                one.let_go()
            raise
        return asked[0] if len(asked) == 1 else _CombinedQuery(nodes, asked, self._mono_s)

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
        parts = self._parts(job_id, nodes)
        if len(parts) < 2:
            job = parts[0][0] if parts else job_id
            return self._inner.ask(job, nodes, script, limit_s=limit_s, quiet_s=quiet_s, alive=alive)
        question = self.begin(job_id, nodes, script)
        return await_answers(question, limit_s=limit_s, quiet_s=quiet_s, alive=alive, mono_s=self._mono_s)

    def doors(self, nodes: Sequence[str]) -> SlurmdPorts:
        """See `InsideSteps.doors`."""
        return self._inner.doors(nodes)

    def keep_nodes(self, job_id: str, nodes: Sequence[str]) -> None:
        """See `InsideSteps.keep_nodes`: applies to this one job only."""
        self._inner.keep_nodes(job_id, nodes)

    def _parts(self, job_id: str, nodes: Sequence[str]) -> list[tuple[str, list[str]]]:
        """Job -> its share of the nodes, without jobs that have none; the main job is the first."""
        job_of = dict.fromkeys(nodes, job_id)
        if job_id == self._main:
            job_of |= {node: span.job for span in self._spans() for node in span.nodes if node in job_of}
        jobs = dict.fromkeys((job_id, *job_of.values()))
        parts = ((job, [node for node in nodes if job_of[node] == job]) for job in jobs)
        return [(job, part) for job, part in parts if part]


class _CombinedQuery:
    """Several queries as one; over when each of them is."""

    def __init__(self, nodes: Sequence[str], asked: Sequence[NodeQuery], mono_s: Callable[[], float]) -> None:
        self.nodes = tuple(nodes)
        self.reached = QueryAnswers()
        self.over = False
        self._asked, self._mono_s = tuple(asked), mono_s

    def listen(self, wait_s: float) -> None:
        """See `Question.listen`."""
        give_up_s = self._mono_s() + wait_s
        before = self.reached
        while not self.over:
            for one in self._asked:
                if not one.over:
                    one.listen(min(SLICE_S, max(0.0, give_up_s - self._mono_s())))
            self.over = all(one.over for one in self._asked)
            self.reached = _merged([one.reached for one in self._asked])
            if self.reached != before or self._mono_s() >= give_up_s:
                return

    def let_go(self) -> None:
        """See `Question.let_go`."""
        self.over = True
        for one in self._asked:
            one.let_go()


def _merged(found: Sequence[QueryAnswers]) -> QueryAnswers:
    return QueryAnswers(
        {node: words for one in found for node, words in one.answers.items()},
        "; ".join(one.told for one in found if one.told),
        frozenset(node for one in found for node in one.ended),
    )
