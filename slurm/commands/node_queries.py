"""Queries to a job's nodes: a step of our own runs a line of sh on each; output is read as it comes. (I/O)

srun forwards the output of tasks at once, but gives up a node only after its own timeouts (4 s for a refused
connection, more than 10 s without an answer). So the caller decides which nodes to wait for: answers are
available as they arrive, and so is the end of a node's line. An unwanted query is abandoned, and ends by
itself in parallel with later work. The step runs in /, so that a node with a hung shared file system can
still answer.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field
from typing import Protocol

from ftrun.slurm.client.errors import Unreachable
from ftrun.slurm.client.nodeset import fold
from ftrun.slurm.commands.process import tool
from ftrun.slurm.records import dataclass

ANSWER = "ftrun-here"
"""In a task's output: stands before the node's name and its answer."""

ENDED = "ftrun-done"
"""Stands before the node's name when its line has ended."""

_OUTPUT_BYTES_MAX = 4 * 1024 * 1024
_TOLD_MAX = 20
_LEAVES_S = 0.3
_ASKED = (
    "--overlap", "--ntasks-per-node=1", "--mem=0", "--cpu-bind=none", "--mpi=none", "--input=none", "--export=NONE",
    "--kill-on-bad-exit=0", "--no-kill", "--wait=0", "--quiet", "--unbuffered", "--chdir=/",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class QueryAnswers:
    """The nodes that answered, with their lines; srun's messages; the nodes where the line has ended."""

    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    told: str = ""
    ended: AbstractSet[str] = frozenset()


class NodeQuery(Protocol):
    """A running query. `nodes` were asked, `reached` is what came so far, `over`: nothing more will come."""

    nodes: tuple[str, ...]
    reached: QueryAnswers
    over: bool

    def listen(self, wait_s: float) -> None:
        """Read what has come; without anything, wait at most so long."""

    def let_go(self) -> None:
        """Abandon the query; returns at once. May be called again, and after the end."""


class SrunQuery:
    """`Question` by srun, with `gpus` of each node ("" = as srun has it). Raises Unreachable where srun cannot be started."""

    def __init__(
        self, env: Mapping[str, str], job: str, nodes: Sequence[str], script: str, gpus: str = ""
    ) -> None:
        self.nodes = tuple(nodes)
        self.reached = QueryAnswers()
        self.over = False
        self._parser = AnswerParser(nodes)
        self._rest, self._heard_bytes = b"", 0  # the last line, which is not whole
        size = str(len(nodes))
        here, done = (f'printf "%s %s\\n" {word} "$SLURMD_NODENAME"' for word in (ANSWER, ENDED))
        line = f"{here}; ( {script or ':'}\n); {done}"
        argv = [
            tool("srun", env), f"--jobid={job}", "--job-name=ftrun", *_ASKED, *([f"--gpus-per-node={gpus}"] if gpus else ()), f"--nodes={size}",
            f"--ntasks={size}", f"--nodelist={fold(nodes)}", "/bin/sh", "-c", line,
        ]  # fmt: skip
        try:
            self._child = subprocess.Popen(
                argv,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # signals to the job's process group are not for it
            )
        except OSError as error:
            raise Unreachable(f"cannot start srun: {error.strerror}") from error
        assert self._child.stdout is not None
        self._out = self._child.stdout
        os.set_blocking(self._out.fileno(), False)

    def listen(self, wait_s: float) -> None:
        """See `Question.listen`."""
        if self.over:
            return
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            if not selector.select(wait_s):
                return
        more = os.read(self._out.fileno(), 1 << 16)
        heard = self._rest + more[: max(0, _OUTPUT_BYTES_MAX - self._heard_bytes)]
        self._heard_bytes += len(more)
        whole = heard if not more else heard[: heard.rfind(b"\n") + 1]
        self._rest = heard[len(whole) :]
        self.reached = self._parser.feed(whole.decode("utf-8", "replace"))
        if not more:
            self.let_go()

    def let_go(self) -> None:
        """See `Question.let_go`."""
        if not self._out.closed:
            self.over = True
            self._out.close()
            threading.Thread(target=_dismiss_srun, args=(self._child,), daemon=True).start()


def _dismiss_srun(child: subprocess.Popen[bytes]) -> None:
    """srun leaves its step when it is told to twice; the tasks that answered are over already."""
    for number in (None, signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_LEAVES_S)
            return
    child.wait()


def parse_answers(text: str, nodes: Collection[str]) -> QueryAnswers:
    """The answers in the tasks' output. (pure) A task prints `ANSWER NODE`, then `ANSWER NODE WORDS` for each
    answer, and `ENDED NODE` at the end. Each line names its node, since the output of the tasks is mixed.
    """
    return AnswerParser(nodes).feed(text)


class AnswerParser:
    """`parse_answers` for output that comes in pieces of whole lines. What it returns grows with the next piece:
    the work is that of each line once, however many pieces thousands of nodes make.
    """

    def __init__(self, nodes: Collection[str]) -> None:
        self._nodes = frozenset(nodes)
        self._answers: dict[str, tuple[str, ...]] = {}
        self._ended: set[str] = set()
        self._told: list[str] = []

    def feed(self, text: str) -> QueryAnswers:
        """The answers so far."""
        for line in text.splitlines():
            word, _, rest = line.partition(" ")
            node, _, words = rest.partition(" ")
            if word == ANSWER and node in self._nodes:
                self._answers[node] = (*self._answers.get(node, ()), *([words] if words else ()))
            elif word == ENDED and node in self._nodes:
                self._ended.add(node)
            elif line.strip() and len(self._told) < _TOLD_MAX:
                self._told.append(line.strip())
        return QueryAnswers(self._answers, "; ".join(self._told), self._ended)
