"""The steps of a running job: which there are, ending one, and asking nodes something by a step of one's own. (I/O)

How it thinks. Inside an allocation the quickest witness of a node is whether it starts a small task: Slurm itself needs
SlurmdTimeout to call a node down, a step answers in a tenth of a second. srun prints what the tasks say as they say it, but
leaves a node only after its own time-outs (4 s where the connection is refused, beyond 10 s where nobody answers). So
answers are read as they come, and who is silent long after all the others have spoken is not waited for. Such a step stands in /: a
node whose shared file system stands still for a while is there all the same.

Seen on 22.05: with --no-kill and --wait=0 one dead node costs the other tasks of a step nothing; a step that names a node
which Slurm has already taken from the job is refused as a whole, so ask for the nodes that the job still has.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ftrun.slurm.answers import Call, is_gone, sort_failure
from ftrun.slurm.errors import RefusedForGood, Unreachable
from ftrun.slurm.nodeset import expand, fold
from ftrun.slurm.process import check_configuration, reading_env, run, tool

__all__ = ["CommandSteps", "Reached", "StepRow", "Steps"]

ANSWER = "ftrun-here"
"""The word before a node's name, and what it has to say, in what a task prints."""

_FORMAT = "%i|%N|%j"  # the name last: it is free text
_STEP = re.compile(r"(\d+)\.(\d+)")
_OUTPUT_BYTES_MAX = 4 * 1024 * 1024
_ASKED = (
    "--overlap", "--ntasks-per-node=1", "--mem=0", "--cpu-bind=none", "--mpi=none", "--input=none", "--export=NONE",
    "--kill-on-bad-exit=0", "--no-kill", "--wait=0", "--quiet", "--unbuffered", "--chdir=/",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step that srun made: `id` is "123.0", `nodes` those that it runs on."""

    id: str
    name: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reached:
    """Who answered, with the lines that it printed, and what srun itself had to say."""

    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    told: str = ""


class Steps(Protocol):
    """What is asked of a cluster from inside an allocation. Raises the errors of `ftrun.slurm.errors`."""

    def steps(self, job_id: str) -> tuple[StepRow, ...]:
        """The steps of a job that srun made; () where it has none or is gone."""
        ...

    def end_step(self, step_id: str, *, signal: str | None = None) -> None:
        """scancel of one step, or send it a signal. A step that is gone is no error."""
        ...

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
        """Run a line of sh on each of these nodes (of the job), side by side; what it prints behind `ANSWER` counts.

        Ends when all have answered and ended, or nobody new answered for `quiet_s` (or three times what the last one took) after
        the first did, `limit_s` at most. `alive` is called some times a second. Raises Unreachable where srun cannot be started.
        """
        ...


class CommandSteps:
    """`Steps` by squeue, scancel and srun."""

    def __init__(self, env: Mapping[str, str] | None = None, *, timeout_s: float = 10.0) -> None:
        self._env = reading_env(os.environ if env is None else env)
        self._timeout_s = timeout_s

    def steps(self, job_id: str) -> tuple[StepRow, ...]:
        """See `Steps.steps`; batch and extern steps are none of srun's."""
        answer = self._ask_slurm(Call.READ, ["squeue", "-h", "-s", "-j", _number(job_id), "-o", _FORMAT])
        return parse_steps(answer, job_id)

    def end_step(self, step_id: str, *, signal: str | None = None) -> None:
        """See `Steps.end_step`."""
        if not _STEP.fullmatch(step_id):
            raise RefusedForGood(f"{step_id!r} is no step of a job")
        self._ask_slurm(Call.EFFECT, ["scancel", *([f"--signal={signal}"] if signal else []), step_id])

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
        check_configuration(self._env)
        size = str(len(nodes))
        line = f'printf "%s %s\\n" {ANSWER} "$SLURMD_NODENAME"; {script}'
        argv = [
            tool("srun", self._env), f"--jobid={_number(job_id)}", "--job-name=ftrun", *_ASKED, f"--nodes={size}",
            f"--ntasks={size}", f"--nodelist={fold(nodes)}", "/bin/sh", "-c", line,
        ]  # fmt: skip
        try:
            child = subprocess.Popen(
                argv,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # signals that are sent to the job's group are not for it
            )
        except OSError as error:
            raise Unreachable(f"cannot start srun: {error.strerror}") from error
        try:
            text = _listen(child, frozenset(nodes), limit_s=limit_s, quiet_s=quiet_s, alive=alive)
        finally:
            _let_go(child)
        return parse_answers(text, nodes)

    def _ask_slurm(self, call: Call, argv: Sequence[str]) -> str:
        answer = run([tool(argv[0], self._env), *argv[1:]], self._env, timeout_s=self._timeout_s)
        if answer.exit_code == 0 or (not answer.killed and is_gone(answer.stderr)):
            return answer.stdout
        killed_after_s = self._timeout_s if answer.killed else None
        raise sort_failure(
            call, stderr=answer.stderr, exit_code=answer.exit_code, killed_after_s=killed_after_s
        )


def parse_steps(text: str, job_id: str) -> tuple[StepRow, ...]:
    """The rows of `squeue -s` that are steps of this job with a number. (pure)"""
    found = []
    for line in text.splitlines():
        fields = line.split("|", 2)
        step = _STEP.fullmatch(fields[0].strip())
        if len(fields) == 3 and step is not None and step[1] == job_id:
            found.append(StepRow(fields[0].strip(), fields[2], expand(fields[1])))
    return tuple(found)


def parse_answers(text: str, nodes: Collection[str]) -> Reached:
    """What tasks printed: the lines of one task come one after another, since each says its node's name first. (pure)

    A task says `ANSWER NODE` and then, for each thing that it has to say, `ANSWER NODE WORDS`.
    """
    answers: dict[str, list[str]] = {}
    told = []
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        node, _, words = rest.partition(" ")
        if word == ANSWER and node in nodes:
            answers.setdefault(node, []).extend([words] if words else [])
        elif line.strip():
            told.append(line.strip())
    return Reached({node: tuple(words) for node, words in answers.items()}, "; ".join(told[:20]))


def _listen(
    child: subprocess.Popen[bytes],
    nodes: frozenset[str],
    *,
    limit_s: float,
    quiet_s: float,
    alive: Callable[[], None],
) -> str:
    """What srun and its tasks print, until it is over or not worth the wait."""
    assert child.stdout is not None
    os.set_blocking(child.stdout.fileno(), False)
    began = time.monotonic()
    heard, answered, last_s = b"", 0, 0.0
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while (waited := time.monotonic() - began) < limit_s:
            alive()
            if selector.select(0.2):
                more = os.read(child.stdout.fileno(), 65536)
                if not more:
                    break
                heard = (heard + more)[:_OUTPUT_BYTES_MAX]
                said = len(parse_answers(heard.decode("utf-8", "replace"), nodes).answers)
                if said > answered:
                    answered, last_s = said, time.monotonic() - began
            elif 0 < answered < len(nodes) and waited - last_s > max(quiet_s, 3 * last_s):
                break
    return heard.decode("utf-8", "replace")


def _let_go(child: subprocess.Popen[bytes]) -> None:
    """srun leaves its step when it is told to twice; the tasks that answered are over already."""
    if child.poll() is None:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(child.pid, number)
                child.wait(0.3)
                break
            except subprocess.TimeoutExpired:
                continue
            except ProcessLookupError:
                break
        child.wait()
    if child.stdout is not None:
        child.stdout.close()


def _number(job_id: str) -> str:
    if not job_id.isdigit():
        raise RefusedForGood(f"{job_id!r} is no plain job id")
    return job_id
