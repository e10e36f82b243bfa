"""`Cluster` by Slurm's own commands: sbatch, squeue, scontrol, sinfo, scancel. (I/O)

Each query is one call (two if some of the jobs are not this user's), whatever the number of jobs or nodes,
because sites count calls to their controller. Each call has its own timeout. `parse` reads the output and
`answers` classifies failures; this module makes the calls. Reads are repeated if Slurm could not be reached
and that failed quickly; effects are never repeated here.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from ftrun.slurm.client import parse
from ftrun.slurm.client.cluster import (
    ClusterFacts,
    JobDetails,
    JobRow,
    NodeRow,
    NodeUsage,
    PartitionRow,
    Rights,
    StepFiles,
    SubmitRequest,
    Submitted,
)
from ftrun.slurm.client.errors import OutcomeUnknown, RefusedForGood, SlurmError, Unreachable
from ftrun.slurm.client.nodeset import expand, fold
from ftrun.slurm.client.topology import Topology, has_no_topology, parse_topology
from ftrun.slurm.commands import process
from ftrun.slurm.commands.failure_kinds import Call, is_gone
from ftrun.slurm.commands.process import Answer, Context, ask, reading_env

# One argument may have 128 KiB on Linux; beyond this the whole queue is asked for and filtered here.
_LONGEST_ID_LIST = 100_000
# squeue compares every job with every id; for more ids than this it is cheaper to print all jobs of the user.
_COMPARED_MAX = 100
JOB_ID = re.compile(r"\d+(?:[_+]\d+)?")
_QUICK_S = 3.0  # a failure that took longer is not retried: the caller polls anyway
_PING_S = 10.0
_TOPOLOGY_KEPT_S = 3600.0
_TOPOLOGY_AGAIN_S = 60.0  # when it was not told
_WAITS = frozenset({"Resources", "Priority"})


class CommandCluster:
    """A `Cluster` on the machine's own Slurm commands. `env` supplies SLURM_CONF and PATH (default: this
    process's environment). `timeout_s` bounds a read or an effect, `submit_timeout_s` one sbatch (which
    itself waits while the controller is busy). `user` is whose jobs are meant (default: the caller).
    """

    def __init__(
        self,
        env: Mapping[str, str] | None = None,
        *,
        timeout_s: float = 30.0,
        submit_timeout_s: float = 120.0,
        user: str | None = None,
    ) -> None:
        self._env = reading_env(os.environ if env is None else env)
        self._timeout_s = timeout_s
        self._submit_timeout_s = submit_timeout_s
        self._user = user if user is not None else pwd.getpwuid(os.geteuid()).pw_name
        self._topology = Topology()
        self._topology_due_s = 0.0

    def submit(self, request: SubmitRequest) -> Submitted:
        """One sbatch, in exactly the request's context (see `Cluster.submit`). `request.argv` must not ask
        sbatch to hide the job id (`--quiet`), to wait (`--wait`) or to only test.
        """
        process.check_configuration(request.env)
        answer = process.run(
            [process.tool("sbatch", request.env), *request.argv],
            request.env,
            timeout_s=self._submit_timeout_s,
            stdin=request.script,
            context=Context(request.cwd, request.umask, request.limits, request.nice),
        )
        if answer.killed or answer.exit_code != 0:
            raise process.failure(Call.SUBMIT, answer, self._submit_timeout_s)
        told = parse.parse_submitted(answer.stdout)
        if told is None:
            raise OutcomeUnknown("sbatch succeeded but told no job id", output=answer.stderr, exit_code=0)
        return Submitted(job_id=told[0], cluster=told[1], stdout=answer.stdout, stderr=answer.stderr)

    def find(self, token: str) -> tuple[JobRow, ...]:
        """Every job of this user that bears the token, in any state that Slurm remembers (see `parse.bears`)."""
        return tuple(row for row in self._queue(["-u", self._user]) if parse.has_token(row.comment, token))

    def jobs(self, job_ids: Collection[str]) -> Mapping[str, JobRow]:
        """The rows of these jobs by their own ids. Words that are no job ids are unknown, as missing ones
        are. For a list of ids squeue fetches the jobs of all users, and compares each job with each id; for
        one user the controller sends only that user's jobs. So the first call asks for this user's jobs, and
        a second one, by id, for the rest: jobs of others, and jobs that are gone.
        """
        wanted = {job_id for job_id in job_ids if JOB_ID.fullmatch(job_id)}
        if len(wanted) < 2:
            return self._listed(wanted)
        few = ["-j", ",".join(sorted(wanted))] if len(wanted) <= _COMPARED_MAX else []
        found, missing = _among(self._queue(["-u", self._user, *few]), wanted)
        return found | self._listed(missing) if missing else found

    def _listed(self, ids: Collection[str]) -> dict[str, JobRow]:
        listed = ",".join(sorted(ids))
        if not listed:
            return {}
        if len(listed) <= _LONGEST_ID_LIST:
            return {row.job_id: row for row in self._queue(["-j", listed])}
        return _among(self._queue([]), ids)[0]

    def _queue(self, selection: Sequence[str]) -> tuple[JobRow, ...]:
        argv = ["squeue", "-h", "-a", "-r", "-t", "all", *selection, "-O", parse.JOB_FORMAT]
        answer = self._read(argv, accept=_only_unknown_ids)
        return parse.parse_jobs(answer.stdout)

    def details(self, job_id: str) -> JobDetails | None:
        """One job in full, DerivedExitCode included; None when Slurm does not know the id (any more)."""
        answer = self._read(["scontrol", "-d", "-o", "show", "job", job_id], accept=_only_unknown_ids)
        return parse.parse_details(answer.stdout, job_id)

    def step_files(self, job_id: str) -> tuple[StepFiles, ...]:
        """By the records of the steps."""
        answer = self._read(["scontrol", "-o", "show", "step", _checked(job_id)], accept=_only_unknown_ids)
        return parse.parse_step_files(answer.stdout)

    def stays(self, job_id: str) -> tuple[NodeUsage, ...]:
        """Where a job has been: from the controller, and from accounting, which knows former launches, too."""
        argv = ["squeue", "-h", "-a", "-r", "-t", "all", "-j", _checked(job_id), "-O", parse.STAY_ROW]
        shown = self._read(argv, accept=_only_unknown_ids)
        argv = ["sacct", "-X", "-D", "-n", "-P", "-j", job_id, "-o", parse.STAY_FORMAT]
        told = self._read(argv, accept=lambda stderr: "accounting storage is disabled" in stderr)
        return parse.parse_node_usage(shown.stdout, told.stdout)

    def nodes(self, names: Collection[str] | None = None) -> Mapping[str, NodeRow]:
        """Nodes by name in one call, in which those that agree in all share a line; names that Slurm does not know are absent."""
        if names is not None and not names:
            return {}
        selection = ["-n", fold(names)] if names is not None else []
        return parse.parse_nodes(
            self._read(["sinfo", "-h", "-a", *selection, "-O", parse.NODE_FORMAT]).stdout
        )

    def partitions(self) -> Mapping[str, PartitionRow]:
        """Partitions by name, hidden ones included."""
        return parse.parse_partitions(self._read(["scontrol", "-a", "-o", "show", "partition"]).stdout)

    def topology(self) -> Topology:
        """What the controller's topology plugin knows, or told last. It changes by a reconfiguration only."""
        if time.monotonic() >= self._topology_due_s:
            kept_s = _TOPOLOGY_AGAIN_S
            with contextlib.suppress(SlurmError):  # a site may hide it: that holds up nobody
                shown = self._ask(Call.READ, ["scontrol", "show", "topology"], has_no_topology).stdout
                self._topology, kept_s = parse_topology(shown), _TOPOLOGY_KEPT_S
            self._topology_due_s = time.monotonic() + kept_s
        return self._topology

    def reserved(self, name: str) -> tuple[str, ...]:
        """The nodes of a reservation, active or future."""
        shown = self._read(
            ["scontrol", "-o", "show", "reservation"]
        ).stdout  # a missing reservation alone is no error
        found = re.search(rf"^ReservationName={re.escape(name)} .*?\bNodes=(\S+)", shown, re.MULTILINE)
        return expand(found[1]) if found is not None and found[1] != "(null)" else ()

    def facts(self) -> ClusterFacts:
        """Name, version and time-outs from the running controller's configuration."""
        return parse.parse_config(self._read(["scontrol", "show", "config"]).stdout)

    def dependents(self, job_id: str) -> Mapping[str, str]:
        """Pending jobs of this user whose dependency names `job_id`, with it in the form that `set_dependency` takes."""
        argv = ["squeue", "-h", "-a", "-t", "PENDING", "-u", self._user, "-O", parse.DEPENDENCY_FORMAT]
        found = parse.parse_dependencies(self._read(argv).stdout)
        return {waiting: text for waiting, text in found.items() if parse.depends_on(text, job_id)}

    def contended(self, partitions: Collection[str]) -> bool:
        """Whether pending jobs wait for resources, or for jobs before them that do."""
        argv = ["squeue", "-h", "-a", "-t", "PENDING", "-p", ",".join(sorted(partitions)), "-o", "%r"]
        return bool(partitions) and bool(_WAITS & set(self._read(argv).stdout.split()))

    def ping(self) -> bool:
        """True when a controller, primary or backup, answers within 10 s; never raises."""
        try:
            limit_s = min(_PING_S, self._timeout_s)
            argv = ["scontrol", "ping"]
            answer = ask(Call.READ, argv, self._env, timeout_s=limit_s, accept=lambda _: True)
        except SlurmError:
            return False
        return re.search(r"\bis UP\b", answer.stdout) is not None

    def rights(self) -> Rights:
        """Whether this user may drain: root, SlurmUser, or AdminLevel=Administrator in accounting. An
        operator may not: Slurm refuses node updates below Administrator in every version from 22.05 to
        26.05.
        """
        if os.geteuid() == 0:
            return Rights(True, "root")
        me = pwd.getpwuid(os.geteuid()).pw_name
        config = self._read(["scontrol", "show", "config"]).stdout
        if parse.setting(config, "SlurmUser").split("(", 1)[0] == me:
            return Rights(True, f"{me} is SlurmUser")
        if "slurmdbd" not in parse.setting(config, "AccountingStorageType"):
            return Rights(False, f"{me} is neither root nor SlurmUser, and this cluster has no accounting")
        argv = ["sacctmgr", "-n", "-P", "show", "user", me, "format=AdminLevel"]
        try:
            answer = self._ask(Call.READ, argv, None)
        except SlurmError as wrong:
            return Rights(False, f"{me} is neither root nor SlurmUser, and accounting says: {wrong.message}")
        level = answer.stdout.strip().splitlines()[:1]
        if level == ["Administrator"]:
            return Rights(True, f"{me} has AdminLevel=Administrator")
        return Rights(
            False, f"{me} has AdminLevel={level[0] if level else 'None'}; draining needs Administrator"
        )

    def cancel(
        self, job_id: str, *, signal: str | None = None, full: bool = False, batch: bool = False
    ) -> None:
        """scancel; with `signal`, send that instead: to the steps, with `batch` to the batch script, with
        `full` to both. A job that is gone is no error. A heterogeneous job is cancelled as a whole whichever
        component is named: while it is pending Slurm takes nothing less.
        """
        whole = _checked(job_id)
        if signal is None:
            whole = whole.split("+", 1)[0]
        options = [f"--signal={signal}"] if signal is not None else []
        if signal is not None and full:
            options.append("--full")
        elif signal is not None and batch:
            options.append("--batch")
        self._effect(["scancel", *options, whole], accept=is_gone)

    def hold(self, job_id: str) -> None:
        """scontrol hold."""
        self._effect(["scontrol", "hold", _checked(job_id)])

    def release(self, job_id: str) -> None:
        """scontrol release."""
        self._effect(["scontrol", "release", _checked(job_id)])

    def exclude(self, job_id: str, nodes: Sequence[str]) -> None:
        """Set ExcNodeList of a pending job; an empty sequence clears it."""
        self._effect(["scontrol", "update", f"JobId={_checked(job_id)}", f"ExcNodeList={fold(nodes)}"])

    def reshape(self, job_id: str, *, nodes: int, tasks: int, cpus: int) -> None:
        """One update: 22.05 keeps a missing upper limit of nodes, and Slurm takes none for CPUs."""
        shape = (f"NumNodes={nodes}-{nodes}", f"NumTasks={tasks}", f"NumCPUs={cpus}")
        self._effect(["scontrol", "update", f"JobId={_checked(job_id)}", *shape])

    def prefer(self, job_id: str, update: str) -> None:
        """Raise a pending job's priority by this word for `scontrol update`, as root or SlurmUser."""
        self._effect(["scontrol", "update", f"JobId={_checked(job_id)}", update])

    def set_dependency(self, job_id: str, dependency: str) -> None:
        """Replace the dependency of a pending job; "" removes it."""
        self._effect(["scontrol", "update", f"JobId={_checked(job_id)}", f"Dependency={dependency}"])

    def set_comment(self, job_id: str, comment: str) -> None:
        """Replace the comment; Slurm lets the owner do so while the job waits or runs."""
        self._effect(["scontrol", "update", f"JobId={_checked(job_id)}", f"Comment={comment}"])

    def batch_script(self, job_id: str) -> bytes:
        """`scontrol write batch_script`, which exits 0 even where it prints none [tried on 22.05]."""
        answer = self._read(["scontrol", "write", "batch_script", _checked(job_id), "-"])
        if not answer.stdout:
            raise RefusedForGood(answer.stderr.strip() or f"Slurm keeps no script of job {job_id}")
        return answer.stdout.encode("utf-8", "surrogateescape")

    def drain(self, node: str, reason: str) -> None:
        """Drain a node after one more look at it (see `Cluster.drain`)."""
        if needs_drain(self._node(node), reason):
            self._effect(["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"])

    def resume(self, node: str, reason: str) -> bool:
        """Give a node back if its reason, read once more, is exactly this one."""
        if not reason or self._node(node).reason != reason:
            return False
        self._effect(["scontrol", "update", f"NodeName={node}", "State=RESUME"])
        return True

    def reword(self, node: str, before: str, after: str) -> bool:
        """Replace the reason of a drained node if it, read once more, is exactly `before`."""
        row = self._node(node)
        if not before or not after or row.reason != before or not row.drained:
            return False
        self._effect(["scontrol", "update", f"NodeName={node}", f"Reason={after}"])
        return True

    def _node(self, name: str) -> NodeRow:
        return known_node(self.nodes([name]), name)

    def _read(self, argv: Sequence[str], accept: Callable[[str], bool] | None = None) -> Answer:
        """The output of a read, retried at most twice, and only after quick failures to reach Slurm. `accept`
        recognises in stderr that a failed command did answer ("there is no such job").
        """
        began = time.monotonic()
        try:
            return self._ask(Call.READ, argv, accept)
        except Unreachable:
            if time.monotonic() - began > _QUICK_S:
                raise
        import tenacity

        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(Unreachable),
            stop=tenacity.stop_after_attempt(2) | tenacity.stop_after_delay(_QUICK_S),
            wait=tenacity.wait_fixed(1),
            reraise=True,
        )
        return again(self._ask, Call.READ, argv, accept)

    def _effect(self, argv: Sequence[str], accept: Callable[[str], bool] | None = None) -> None:
        self._ask(Call.EFFECT, argv, accept)

    def _ask(self, call: Call, argv: Sequence[str], accept: Callable[[str], bool] | None) -> Answer:
        return ask(call, argv, self._env, timeout_s=self._timeout_s, accept=accept)


def known_node(rows: Mapping[str, NodeRow], name: str) -> NodeRow:
    """The node of this name. Raises RefusedForGood where there is none."""
    if name not in rows:
        raise RefusedForGood(f"Slurm knows no node {name}")
    return rows[name]


def needs_drain(row: NodeRow, reason: str) -> bool:
    """Whether a node still has to be drained for this reason. Raises RefusedForGood if it is another's."""
    if row.reason == reason and row.drained:
        return False
    if row.spoken_for:
        raise RefusedForGood(f"{row.name} already has a reason, which is not overwritten: {row.reason}")
    if row.drained:
        raise RefusedForGood(f"{row.name} is drained already, without a reason")
    return True


def _among(rows: Iterable[JobRow], ids: Collection[str]) -> tuple[dict[str, JobRow], set[str]]:
    """The rows that these ids name, as squeue's `-j` would, and the ids without rows."""
    found, missing = {}, set(ids)
    for row in rows:
        base = row.job_id.partition("_")[0].partition("+")[0]
        names = {row.job_id, row.raw_job_id, base}.intersection(ids)
        if names:
            found[row.job_id] = row
            missing -= names
    return found, missing


def _only_unknown_ids(stderr: str) -> bool:
    """Whether the controller answered that it knows none of these ids."""
    return is_gone(stderr)


def _checked(job_id: str) -> str:
    if not JOB_ID.fullmatch(job_id):
        raise RefusedForGood(f"{job_id!r} is no Slurm job id")
    return job_id
