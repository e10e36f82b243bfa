"""`Cluster` by pyslurm in a child process, and by Slurm's commands for the rest. (I/O)

pyslurm serves only what it does clearly better: the rows of jobs, nodes and partitions, and plain effects on
one job or one node. The commands do submission (site filters run in sbatch), details, accounting, signals, and
arrays and heterogeneous jobs, whose members pyslurm cannot name.

An error that Slurm returns through the child counts as Slurm's answer; but "unreachable" is believed of a
library only after a timeout. If the child itself fails, the commands do the read, or the effect if it has not
begun; an effect that may have happened is `OutcomeUnknown`. A child that fails repeatedly is not used for a
while (`rows.ChildHealth`); `speaking` says so.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ftrun.slurm.client.cluster import Cluster, JobRow, NodeRow, PartitionRow
from ftrun.slurm.client.errors import OutcomeUnknown, SlurmError, Unreachable
from ftrun.slurm.client.nodeset import fold
from ftrun.slurm.commands.cluster import JOB_ID, known_node, needs_drain
from ftrun.slurm.commands.failure_kinds import Call, error_of_failure, is_gone, is_known
from ftrun.slurm.commands.process import check_configuration, reading_env
from ftrun.slurm.native import rows
from ftrun.slurm.native.pipe import Child, NoAnswer, NotSupported, SlurmAnswered
from ftrun.slurm.records import dataclass

HELLO_S = 20.0
"""pyslurm loads in a quarter of a second; without its configuration libslurm waits for a minute."""

QUICK_S = 3.0
"""A call that returned sooner met no timeout."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class ClientInUse:
    """`by`: "commands" or "pyslurm VERSION"; `why` pyslurm is not used, if so."""

    by: str
    why: str = ""


class NativeCluster:
    """A `Cluster` that uses pyslurm first, and `commands` for the rest. `env` as for `CommandCluster`.
    `python`: the interpreter that has pyslurm (default: this one). `auto`: use pyslurm only if it has exactly
    the cluster's release. `tell` is called when the client in use changes. `argv` replaces the child's
    command line, `clock` (monotonic seconds) tells when to retry it.
    """

    def __init__(
        self,
        commands: Cluster,
        env: Mapping[str, str],
        *,
        timeout_s: float = 30.0,
        python: str = "",
        auto: bool = True,
        tell: Callable[[ClientInUse], None] = lambda _: None,
        argv: Sequence[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._commands = commands
        self._env = reading_env(env)
        self._timeout_s, self._auto, self._tell, self._clock = timeout_s, auto, tell, clock
        child = str(Path(__file__).with_name("child.py"))
        self._argv = tuple(argv) if argv is not None else (python or sys.executable, child)
        self._child: Child | None = None
        self._standing = rows.ChildHealth()
        self._lock = threading.RLock()
        self.speaking = ClientInUse("commands", "pyslurm was not asked yet")
        # What the commands do in any case: site filters run in sbatch, and squeue can filter by user.
        self.submit, self.find, self.details = commands.submit, commands.find, commands.details
        self.stays, self.topology, self.reserved = commands.stays, commands.topology, commands.reserved
        self.step_files = commands.step_files
        self.facts, self.ping, self.rights = commands.facts, commands.ping, commands.rights
        self.dependents, self.contended = commands.dependents, commands.contended
        self.reshape, self.set_dependency = commands.reshape, commands.set_dependency
        self.set_comment, self.batch_script = commands.set_comment, commands.batch_script

    def jobs(self, job_ids: Collection[str]) -> Mapping[str, JobRow]:
        """See `Cluster.jobs`."""
        wanted = {job_id for job_id in job_ids if JOB_ID.fullmatch(job_id)}
        if not wanted:
            return {}
        return self._read(
            lambda told: rows.job_rows(told, wanted),
            lambda: self._commands.jobs(wanted),
            "jobs",
            ids=rows.numbers(wanted),
        )

    def nodes(self, names: Collection[str] | None = None) -> Mapping[str, NodeRow]:
        """See `Cluster.nodes`."""
        if names is not None and not names:
            return {}
        wanted = None if names is None else frozenset(names)
        return self._read(
            lambda told: rows.node_rows(told, wanted), lambda: self._commands.nodes(names), "nodes"
        )

    def partitions(self) -> Mapping[str, PartitionRow]:
        """See `Cluster.partitions`."""
        return self._read(rows.partition_rows, self._commands.partitions, "partitions")

    def cancel(
        self, job_id: str, *, signal: str | None = None, full: bool = False, batch: bool = False
    ) -> None:
        """See `Cluster.cancel`. Signals go by scancel, which knows their targets."""

        def otherwise() -> None:
            self._commands.cancel(job_id, signal=signal, full=full, batch=batch)

        if signal is None and job_id.isdecimal():
            self._effect(otherwise, "cancel", {"job": int(job_id)}, accept=is_gone)
        else:
            otherwise()

    def hold(self, job_id: str) -> None:
        """See `Cluster.hold`."""
        self._on_job(job_id, lambda: self._commands.hold(job_id), "hold")

    def release(self, job_id: str) -> None:
        """See `Cluster.release`."""
        self._on_job(job_id, lambda: self._commands.release(job_id), "release")

    def exclude(self, job_id: str, nodes: Sequence[str]) -> None:
        """See `Cluster.exclude`. pyslurm cannot empty the list."""

        def otherwise() -> None:
            self._commands.exclude(job_id, nodes)

        if nodes:
            self._on_job(job_id, otherwise, "exclude", nodes=[fold(nodes)])
        else:
            otherwise()

    def drain(self, node: str, reason: str) -> None:
        """See `Cluster.drain`."""
        if needs_drain(known_node(self.nodes([node]), node), reason):
            words = {"name": node, "change": {"state": "DRAIN", "reason": reason}}
            self._effect(lambda: self._commands.drain(node, reason), "node", words)

    def resume(self, node: str, reason: str) -> bool:
        """See `Cluster.resume`."""
        if not reason or known_node(self.nodes([node]), node).reason != reason:
            return False
        words = {"name": node, "change": {"state": "RESUME"}}
        return self._effect(lambda: self._commands.resume(node, reason), "node", words) is not False

    def reword(self, node: str, before: str, after: str) -> bool:
        """See `Cluster.reword`."""
        row = known_node(self.nodes([node]), node)
        if not before or not after or row.reason != before or not row.drained:
            return False
        words = {"name": node, "change": {"reason": after}}
        return self._effect(lambda: self._commands.reword(node, before, after), "node", words) is not False

    def _on_job(self, job_id: str, otherwise: Callable[[], None], do: str, **words: object) -> None:
        if job_id.isdecimal():
            self._effect(otherwise, do, {"job": int(job_id)} | words)
        else:
            otherwise()

    def probe(self) -> ClientInUse:
        """Check now whether the child works, whatever it did before. Raises SlurmError."""
        with self._lock:
            self._standing = rows.ChildHealth()
        self.partitions()
        return self.speaking

    def close(self) -> None:
        """End the child; the next query starts another."""
        with self._lock:
            if self._child is not None:
                self._child.end()
                self._child = None

    def _read(
        self, made: Callable[[Any], _Answer], otherwise: Callable[[], _Answer], do: str, **words: object
    ) -> _Answer:
        hung, asked_s = False, self._clock()
        try:
            return made(self._ask(do, **words))
        except NotSupported:
            return otherwise()
        except SlurmAnswered as told:
            if (error := self._verdict(told, asked_s)) is not None:
                raise error from told
            why = f"pyslurm said: {told.words}"
        except NoAnswer as wrong:
            why, hung = wrong.why, wrong.hung
        except (TypeError, ValueError) as wrong:
            why = f"an answer that makes no sense: {wrong}"
        try:
            answer = otherwise()
        except Unreachable:
            if not hung:  # if no client gets an answer in time, it is not pyslurm's fault
                self._failed(why)
            raise
        self._failed(why)
        return answer

    def _effect(
        self,
        otherwise: Callable[[], object],
        do: str,
        words: Mapping[str, object],
        accept: Callable[[str], bool] = lambda _: False,
    ) -> object:
        """Run an effect by the child: None, or the result of `otherwise` if the commands did it."""
        asked_s = self._clock()
        try:
            return self._ask(do, **words)
        except NotSupported:
            return otherwise()
        except SlurmAnswered as told:
            if accept(told.words):
                return None
            if (error := self._verdict(told, asked_s)) is not None:
                raise error from told
            return otherwise()
        except NoAnswer as wrong:
            self._failed(wrong.why)
            if wrong.begun:
                raise OutcomeUnknown(f"pyslurm: {wrong.why}") from wrong
            return otherwise()

    def _verdict(self, told: SlurmAnswered, asked_s: float) -> SlurmError | None:
        """The error for Slurm's words; None if the commands should try as well, since pyslurm alone may be
        the cause. That is so for words that Slurm does not have, and for "unreachable" without a timeout.
        Nothing has happened then.
        """
        error = error_of_failure(Call.EFFECT if told.begun else Call.READ, stderr=told.words)
        if told.begun or not isinstance(error, Unreachable):
            return error
        return error if is_known(told.words) and self._clock() - asked_s >= QUICK_S else None

    def _ask(self, do: str, **words: object) -> object:
        """The child's reply. Raises NotSupported, SlurmAnswered, NoAnswer; Unreachable without slurm.conf."""
        check_configuration(self._env)
        with self._lock:
            if self._child is not None and not self._child.alive:
                self._failed("its process ended between two questions")
            if self._child is None:
                self._start()
            assert self._child is not None
            return self._child.ask(do, self._timeout_s, **words)

    def _start(self) -> None:
        """Start a child of the right release that answers. Raises NotSupported, SlurmError."""
        if self._standing.barred(self._clock()):
            raise NotSupported(self.speaking.why)
        self.close()
        try:
            self._child = Child(self._argv, self._env | {"SLURM_BITSTR_LEN": "0"}, hello_s=HELLO_S)
            version = self._child.version
            why = rows.unfit(version, self._commands.facts().version, auto=self._auto)
            if not why:
                self._child.ask("partitions", self._timeout_s)
        except NoAnswer as wrong:
            why = wrong.why
        except SlurmAnswered as told:  # the commands got an answer a moment ago
            why = f"pyslurm said: {told.words}"
        except SlurmError:
            self.close()
            raise
        if why:
            self._failed(why)
            raise NotSupported(why)
        self._spoke(ClientInUse(f"pyslurm {version}"))

    def _failed(self, why: str) -> None:
        with self._lock:
            self._standing = self._standing.failed(self._clock())
            self.close()
            self._spoke(ClientInUse("commands", why))

    def _spoke(self, speaking: ClientInUse) -> None:
        if speaking != self.speaking:
            self.speaking = speaking
            self._tell(speaking)
