"""The steps of a running job: list them, end one, and query nodes by a step of our own. (I/O)

Inside an allocation the quickest evidence for a node is whether it starts a small task: Slurm itself needs
SlurmdTimeout to call a node down, a step answers in a tenth of a second. Nodes that are silent long after all
others have answered are not waited for.

Seen on 22.05: with --no-kill and --wait=0 one dead node does not delay the other tasks of a step; a step that
names a node which Slurm has already removed from the job is refused as a whole, so query only nodes that the
job still has.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ftrun.slurm.client.errors import RefusedForGood, SlurmError
from ftrun.slurm.client.nodeset import expand, fold
from ftrun.slurm.commands.failure_kinds import Call, is_gone
from ftrun.slurm.commands.node_queries import NodeQuery, QueryAnswers, SrunQuery
from ftrun.slurm.commands.process import ask, check_configuration, reading_env
from ftrun.slurm.commands.slurmd_ports import USUAL_PORT, SlurmdPorts, TcpSlurmdPorts, parse_slurmd_addresses
from ftrun.slurm.records import dataclass

_FORMAT = "%i|%N|%j"  # the name last: it is free text
_STEP = re.compile(r"(\d+)\.(\d+)")
_SLURMD_PORT = re.compile(r"^SlurmdPort\s*=\s*(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step that srun made: `id` is "123.0", `nodes` those that it runs on."""

    id: str
    name: str
    nodes: tuple[str, ...]


class Steps(Protocol):
    """What ftrun asks of a cluster inside an allocation. Raises ftrun.slurm.client.errors."""

    def steps(self, job_id: str) -> tuple[StepRow, ...]:
        """The steps of a job that srun made; () where it has none or is gone."""

    def end_step(self, step_id: str, *, signal: str | None = None) -> None:
        """scancel of one step, or send it a signal. A step that is gone is no error."""

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
        """Run a line of sh on each of these nodes (of the job), in parallel; output after `ANSWER` counts.
        Ends when all have answered and ended, or when no further node answered for `quiet_s` (or three times
        what the last one took) after the first did, `limit_s` at most. `alive` is called several times a
        second. Raises Unreachable if srun cannot be started.
        """


class InsideSteps(Steps, Protocol):
    """Operations from inside an allocation that must not block."""

    def begin(self, job_id: str, nodes: Sequence[str], script: str) -> NodeQuery:
        """As `ask`, for at least one node, without waiting. Raises Unreachable if srun cannot be started."""

    def doors(self, nodes: Sequence[str]) -> SlurmdPorts:
        """Poll the slurmd ports of these nodes from outside."""

    def keep_nodes(self, job_id: str, nodes: Sequence[str]) -> None:
        """Shrink a running job to these nodes; the node of its script must be among them. Returns once Slurm
        shows the change. Raises the errors of `ftrun.slurm.client.errors`; then Slurm shows no change, or
        does not answer.
        """


class CommandSteps:
    """`InsideSteps` by squeue, scancel and srun."""

    def __init__(self, env: Mapping[str, str] | None = None, *, timeout_s: float = 10.0) -> None:
        around = os.environ if env is None else env
        self._env = reading_env(around)
        self._timeout_s = timeout_s
        # A step of a job with a total count of GPUs (--gpus) wants them all, and is refused once a node of
        # the job is lost.
        self._gpus = around.get("SLURM_GPUS_PER_NODE", "") if "SLURM_GPUS" in around else ""

    def steps(self, job_id: str) -> tuple[StepRow, ...]:
        """See `Steps.steps`; batch and extern steps are none of srun's."""
        answer = self._ask_slurm(Call.READ, ["squeue", "-h", "-s", "-j", _number(job_id), "-o", _FORMAT])
        return parse_steps(answer, job_id)

    def end_step(self, step_id: str, *, signal: str | None = None) -> None:
        """See `Steps.end_step`."""
        if not _STEP.fullmatch(step_id):
            raise RefusedForGood(f"{step_id!r} is no step of a job")
        self._ask_slurm(Call.EFFECT, ["scancel", *([f"--signal={signal}"] if signal else []), step_id])

    def begin(self, job_id: str, nodes: Sequence[str], script: str) -> NodeQuery:
        """See `InsideSteps.begin`."""
        check_configuration(self._env)
        return SrunQuery(self._env, _number(job_id), nodes, script, self._gpus)

    def doors(self, nodes: Sequence[str]) -> SlurmdPorts:
        """See `InsideSteps.doors`."""
        return TcpSlurmdPorts(lambda: self._addresses(nodes))

    def keep_nodes(self, job_id: str, nodes: Sequence[str]) -> None:
        """See `InsideSteps`. 22.05 without accounting does it once a job, then refuses after 5 s."""
        wanted = f"NodeList={fold(nodes)}"
        try:
            self._ask_slurm(Call.EFFECT, ["scontrol", "update", f"JobId={_number(job_id)}", wanted])
        except SlurmError:
            if self._holds_more(job_id, nodes):
                raise
        else:
            if self._holds_more(job_id, nodes):
                raise RefusedForGood("Slurm took the smaller list of nodes and did not go by it")

    def _holds_more(self, job_id: str, nodes: Sequence[str]) -> bool:
        """Whether the job has other nodes as well, or none at all."""
        told = self._ask_slurm(Call.READ, ["squeue", "-h", "-j", _number(job_id), "-o", "%N"])
        return not {*expand(told.strip())} <= {*nodes} or not told.strip()

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
        return await_answers(question, limit_s=limit_s, quiet_s=quiet_s, alive=alive)

    def _addresses(self, nodes: Sequence[str]) -> dict[str, tuple[str, int]]:
        found = parse_slurmd_addresses(
            self._ask_slurm(Call.READ, ["scontrol", "-o", "show", "node", fold(nodes)]), 0
        )
        if all(port for _, port in found.values()):
            return found
        told = _SLURMD_PORT.search(self._ask_slurm(Call.READ, ["scontrol", "show", "config"]))
        usual = int(told[1]) if told else USUAL_PORT
        return {node: (address, port or usual) for node, (address, port) in found.items()}

    def _ask_slurm(self, call: Call, argv: Sequence[str]) -> str:
        return ask(call, argv, self._env, timeout_s=self._timeout_s, accept=is_gone).stdout


def parse_steps(text: str, job_id: str) -> tuple[StepRow, ...]:
    """The rows of `squeue -s` that are steps of this job with a number. (pure)"""
    found = []
    for line in text.splitlines():
        fields = line.split("|", 2)
        step = _STEP.fullmatch(fields[0].strip())
        if len(fields) == 3 and step is not None and step[1] == job_id:
            found.append(StepRow(fields[0].strip(), fields[2], expand(fields[1])))
    return tuple(found)


def await_answers(
    question: NodeQuery,
    *,
    limit_s: float,
    quiet_s: float,
    alive: Callable[[], None],
    mono_s: Callable[[], float] = time.monotonic,
) -> QueryAnswers:
    """The answers until the query is over or waiting is not worthwhile; then it is abandoned."""
    began = mono_s()
    answered, last_s = 0, 0.0
    try:
        while not question.over and (waited := mono_s() - began) < limit_s:
            alive()
            question.listen(0.2)
            found = question.reached
            if len(found.answers) > answered:
                answered, last_s = len(found.answers), mono_s() - began
            if len(found.ended) == len(question.nodes):
                break
            if 0 < answered < len(question.nodes) and waited - last_s > max(quiet_s, 3 * last_s):
                break
        return question.reached
    finally:
        question.let_go()


def _number(job_id: str) -> str:
    if not job_id.isdigit():
        raise RefusedForGood(f"{job_id!r} is no plain job id")
    return job_id
