"""A question to the nodes of a job: a step of one's own that runs a line of sh on each, listened to while it runs. (I/O)

How it thinks. srun prints what the tasks say as they say it, but leaves a node only after its own time-outs (4 s where the connection is refused,
beyond 10 s where nobody answers). So whoever asks decides whom it waits for: answers are there as they come, and so is the word that a node's
line has ended. A question that is not wanted any more is let go, and ends by itself beside whatever comes next. Such a step stands in /: a node whose
shared file system stands still for a while is there all the same.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Protocol

from ftrun.slurm.client.errors import Unreachable
from ftrun.slurm.client.nodeset import fold
from ftrun.slurm.commands.process import tool
from ftrun.slurm.records import dataclass

__all__ = ["ANSWER", "Question", "Reached", "SrunQuestion", "parse_answers"]

ANSWER = "ftrun-here"
"""The word before a node's name, and what it has to say, in what a task prints."""

ENDED = "ftrun-done"
"""The word before its name once the line has ended there."""

_OUTPUT_BYTES_MAX = 4 * 1024 * 1024
_LEAVES_S = 0.3
_ASKED = (
    "--overlap", "--ntasks-per-node=1", "--mem=0", "--cpu-bind=none", "--mpi=none", "--input=none", "--export=NONE",
    "--kill-on-bad-exit=0", "--no-kill", "--wait=0", "--quiet", "--unbuffered", "--chdir=/",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reached:
    """Who answered, with the lines that it printed, what srun itself had to say, and on which nodes the line has ended."""

    answers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    told: str = ""
    ended: frozenset[str] = frozenset()


class Question(Protocol):
    """One question under way. `nodes` are asked, `reached` is what came so far, `over`: nothing more will come."""

    nodes: tuple[str, ...]
    reached: Reached
    over: bool

    def listen(self, wait_s: float) -> None:
        """Take what has come; where nothing has, wait for so long at most."""
        ...

    def let_go(self) -> None:
        """Nothing more is wanted; returns at once. A question that is over, or was let go, may be let go again."""
        ...


class SrunQuestion:
    """`Question` by srun, with `gpus` of each node ("" = as srun has it). Raises Unreachable where srun cannot be started."""

    def __init__(
        self, env: Mapping[str, str], job: str, nodes: Sequence[str], script: str, gpus: str = ""
    ) -> None:
        self.nodes = tuple(nodes)
        self.reached = Reached()
        self.over = False
        self._heard = b""
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
                start_new_session=True,  # signals that are sent to the job's group are not for it
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
        self._heard = (self._heard + more)[:_OUTPUT_BYTES_MAX]
        whole = self._heard if not more else self._heard[: self._heard.rfind(b"\n") + 1]
        self.reached = parse_answers(whole.decode("utf-8", "replace"), self.nodes)
        if not more:
            self.let_go()

    def let_go(self) -> None:
        """See `Question.let_go`."""
        if not self._out.closed:
            self.over = True
            self._out.close()
            threading.Thread(target=_see_off, args=(self._child,), daemon=True).start()


def _see_off(child: subprocess.Popen[bytes]) -> None:
    """srun leaves its step when it is told to twice; the tasks that answered are over already."""
    for number in (None, signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_LEAVES_S)
            return
    child.wait()


def parse_answers(text: str, nodes: Collection[str]) -> Reached:
    """What tasks printed: the lines of one task come one after another, since each says its node's name first. (pure)

    A task says `ANSWER NODE`, then, for each thing that it has to say, `ANSWER NODE WORDS`, and `ENDED NODE` in the end.
    """
    answers: dict[str, list[str]] = {}
    told, ended = [], set()
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        node, _, words = rest.partition(" ")
        if word == ANSWER and node in nodes:
            answers.setdefault(node, []).extend([words] if words else [])
        elif word == ENDED and node in nodes:
            ended.add(node)
        elif line.strip():
            told.append(line.strip())
    found = {node: tuple(words) for node, words in answers.items()}
    return Reached(found, "; ".join(told[:20]), frozenset(ended))
