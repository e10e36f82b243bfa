"""Jobs in Slurm's accounting, which the controller may have forgotten. (I/O)

`sacct -X -D` prints a row for each launch of a job of any user, however long ago. One call serves all jobs
and has its own timeout, so a database that hangs delays no caller beyond that.

Meaning of the rows (tried on 22.05):

- A requeue closes a row (REQUEUED, NODE_FAIL, PREEMPTED: the reason) and opens the next one, with a new
  submission time. A shrink closes one as RESIZING, and the launch continues in the next.
- The user who cancelled a job is named: "CANCELLED by 1000". A controller that restarts without its state
  closes unknown jobs as plain CANCELLED, and assigns the same ids again: one id may stand for several jobs.
- The comment is stored only if AccountingStoreFlags has job_comment; the typed line (SubmitLine, from 21.08)
  always is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from typing import Protocol

from ftrun.slurm.client.cluster import JobState
from ftrun.slurm.client.errors import RefusedForGood, SlurmError
from ftrun.slurm.client.nodeset import expand
from ftrun.slurm.client.parse import UNIT, parse_exit, parse_state, parse_time
from ftrun.slurm.commands.failure_kinds import Call
from ftrun.slurm.commands.process import check_configuration, failure, reading_env, run, tool
from ftrun.slurm.records import dataclass

_FIELDS = "JobID,State,ExitCode,DerivedExitCode,Reason,NodeList,WorkDir,JobName"
_SHORT_FIELDS = "JobID,State,ExitCode,DerivedExitCode,NodeList,WorkDir,JobName"
"""Reason came with 21.08, and a database older than its clients may refuse it."""

_PLAIN = ("JobIDRaw", "JobID", "Cluster", "User", "Submit", "Start", "End", "State", "ExitCode", "DerivedExitCode", "NodeList")  # fmt: skip
_ACCOUNT = (*_PLAIN, "Reason", "JobName", "Comment", "SubmitLine")
_SHORT_ACCOUNT = (*_PLAIN, "JobName", "Comment")
_IDS_MAX = 8_000  # in one argument; further ids go into the next query
_OFF = "accounting storage is disabled"
_NO_NODES = frozenset({"", "None assigned", "(null)", "None", "Unknown"})


@dataclass(frozen=True, slots=True)
class AccountingRow:
    """One launch of one job in accounting. Times are Unix seconds, None without one (yet). `by`: the user id
    that cancelled it, None if no user did or none is named.
    """

    job_id: str  # as squeue prints it: "7", "7_3", "7+1"
    raw_job_id: str  # the plain number
    cluster: str
    user: str
    name: str
    submit_time_s: float | None
    start_time_s: float | None
    end_time_s: float | None
    state: JobState
    by: int | None
    exit_code: int
    exit_signal: int
    derived_exit_code: int
    nodes: tuple[str, ...]
    reason: str = ""  # why it waited
    comment: str = ""
    submit_line: str = ""

    @property
    def given_up(self) -> bool:
        """The controller restarted without it: no user ended it, and its outcome is unknown. A job that Slurm
        itself cancels names no user either, but its dependency.
        """
        by_slurm = self.reason.startswith("Dependency")
        return self.state is JobState.CANCELLED and self.by is None and not by_slurm


class Accounting(Protocol):
    """The second source. Every method may raise the errors of `ftrun.slurm.client.errors`."""

    def rows(self, job_ids: Collection[str]) -> tuple[AccountingRow, ...]:
        """All launches of these jobs that accounting knows. RefusedForGood: there is none here."""


class SacctAccounting:
    """`Accounts` by sacct. `env` supplies SLURM_CONF and PATH; `timeout_s` limits a query."""

    def __init__(self, env: Mapping[str, str] | None = None, *, timeout_s: float = 20.0) -> None:
        self._env = reading_env(os.environ if env is None else env)
        self._timeout_s = timeout_s

    def rows(self, job_ids: Collection[str]) -> tuple[AccountingRow, ...]:
        """See `Accounts.rows`. For an array or heterogeneous job id, all tasks or components."""
        wanted = sorted(job_id for job_id in set(job_ids) if job_id.isdigit())[:_IDS_MAX]
        if not wanted:
            return ()
        check_configuration(self._env)
        try:
            return parse_accounts(self._ask(wanted, _ACCOUNT))
        except _UnknownField:
            return parse_accounts(self._ask(wanted, _SHORT_ACCOUNT))

    def _ask(self, wanted: Collection[str], fields: Collection[str]) -> str:
        chosen = (f"--delimiter={UNIT}", f"--format={','.join(fields)}", "-j", ",".join(wanted))
        argv = [tool("sacct", self._env), "-X", "-D", "-P", *chosen]
        answer = run(argv, self._env, timeout_s=self._timeout_s)
        if answer.exit_code == 0:
            return answer.stdout
        if _OFF in answer.stderr:
            raise RefusedForGood("this cluster has no accounting", output=answer.stderr)
        if "invalid field" in answer.stderr.lower():
            raise _UnknownField(answer.stderr)
        raise failure(Call.READ, answer, self._timeout_s)


class _UnknownField(Exception):
    """This sacct is older than a requested field."""


def parse_accounts(text: str) -> tuple[AccountingRow, ...]:
    """Rows of `sacct -P --delimiter=UNIT`, its heading first, oldest submission first. Free text stands last and may hold line breaks."""
    heading, _, body = text.partition("\n")
    names = heading.split(UNIT)
    if "JobIDRaw" not in names:
        return ()
    found = []
    for record in re.split(rf"\n(?=\d+{UNIT}[\d_+\[\],%-]+{UNIT})", body.rstrip("\n")):
        values = record.split(UNIT, len(names) - 1)
        if len(values) == len(names):
            found.append(_account(dict(zip(names, values, strict=True))))
    return tuple(sorted(found, key=lambda one: (one.submit_time_s or 0.0, int(one.raw_job_id))))


def _account(told: Mapping[str, str]) -> AccountingRow:
    by = re.search(r" by (\d+)$", told["State"])
    code, signal = parse_exit(told["ExitCode"])
    return AccountingRow(
        job_id=told["JobID"],
        raw_job_id=told["JobIDRaw"],
        cluster=told["Cluster"],
        user=told["User"],
        name=told["JobName"],
        submit_time_s=parse_time(told["Submit"]),
        start_time_s=parse_time(told["Start"]),
        end_time_s=parse_time(told["End"]),
        state=parse_state(told["State"]),
        by=int(by[1]) if by is not None else None,
        exit_code=code,
        exit_signal=signal,
        derived_exit_code=parse_exit(told["DerivedExitCode"])[0],
        nodes=() if told["NodeList"] in _NO_NODES else expand(told["NodeList"]),
        reason="" if told.get("Reason", "None") == "None" else told["Reason"],
        comment=told["Comment"],
        submit_line=told.get("SubmitLine", ""),
    )


def accounted(job_id: str) -> str:
    """The rows of one job as `sacct -P` prints them, its heading first; "" where accounting is off or knows no such job."""
    reading = reading_env(os.environ)
    for fields in (_FIELDS, _SHORT_FIELDS):
        try:
            argv = [tool("sacct", reading), "-P", "-D", "-j", job_id, f"--format={fields}"]
            answer = run(argv, reading, timeout_s=30.0)
        except SlurmError:
            return ""
        if answer.exit_code == 0:
            return answer.stdout if answer.stdout.count("\n") > 1 else ""
    return ""
