"""What belongs to one job by its id: its logs, its record, its nodes, from ftrun's own run or from Slurm. (I/O)

How it thinks. A run that ftrun looked after knows best which part of which file belongs to which launch. Of any other job
Slurm tells the files and the end; when the controller has forgotten it, accounting may still know. What can be found is
used, what cannot is said.
"""

from __future__ import annotations

import os
import re

from ftrun.slurm.client.cluster import JobDetails
from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.commands.accounting import accounted
from ftrun.slurm.commands.cluster import CommandCluster
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor import attempts, launchlogs, readers, store
from ftrun.supervisor.errors import UserError
from ftrun.supervisor.home import home_dir
from ftrun.supervisor.readers import Record
from ftrun.supervisor.tail import LogPath
from ftrun.supervisor.verdicts import Ended
from ftrun.supervisor.whose import NOBODY_KNOWN, Ours

__all__ = ["JobFacts", "of_job"]


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Where the logs of a job are, and what is known of its end; `notes` are words for a person."""

    logs: tuple[LogPath, ...]
    record: Record
    notes: tuple[str, ...] = ()
    ours: Ours = NOBODY_KNOWN  # by what its lines are told from those of other jobs in the same files


def of_job(job_id: str) -> JobFacts:
    """All that is known of a job. Raises UserError (one line) where neither ftrun nor Slurm knows it, or no log is left."""
    record, logs, notes = _of_slurm(job_id)
    own, ours = _of_run(job_id)
    if own:
        logs = own
    if record is None and not logs:
        told = notes[0] if notes else "neither Slurm nor its accounting knows it"
        raise UserError(f"job {job_id}: {told}; name its log file instead")
    readable = tuple(log for log in logs if os.access(log.path, os.R_OK))
    missing = [log.path for log in logs if log not in readable]
    notes += tuple(f"{path} cannot be read here" for path in missing)
    return JobFacts(readable, record or Record(None, ()), notes, ours)


def _of_run(job_id: str) -> tuple[tuple[LogPath, ...], Ours]:
    """The logs of the last launch that had this job id, as far as they are its own, and whose lines count; nothing where ftrun did not start it."""
    run_dir = store.resolve(home_dir(), job_id)
    if run_dir is None:
        return (), NOBODY_KNOWN
    plain = job_id.split("_", 1)[0].split("+", 1)[0]
    for attempt in range(store.latest_attempt(run_dir), 0, -1):
        for claim in reversed(attempts.claims(run_dir, attempt)):
            launch = attempts.launch_record(run_dir, attempt, claim.launch) if claim.job == plain else None
            if launch is not None:
                logs = launchlogs.of_launch(run_dir, attempt, claim.launch)
                return tuple(logs), launchlogs.ours(run_dir, attempt, claim.launch)
    return (), NOBODY_KNOWN


def _of_slurm(job_id: str) -> tuple[Record | None, tuple[LogPath, ...], tuple[str, ...]]:
    notes: tuple[str, ...] = ()
    cluster = CommandCluster(timeout_s=10.0)
    try:
        details = cluster.details(job_id)
        if details is not None:
            return _record(cluster, details), _logs(details), ()
    except SlurmError as error:
        notes = (f"Slurm does not answer ({error})",)
    text = accounted(job_id)
    if not text:
        return None, (), notes
    row = readers.record(text)
    folder = re.search(r"\|(/[^|\n]*)\|", text)
    log = f"{folder[1]}/slurm-{job_id}.out" if folder else ""
    logs = (LogPath(log),) if log and os.path.isfile(log) else ()
    return row, logs, notes


def _record(cluster: CommandCluster, details: JobDetails) -> Record:
    if not details.state.ended:
        return Record(None, details.nodes)
    ended = Ended(
        state=details.state.value,
        reason=details.reason,
        exit_code=details.exit_code,
        exit_signal=details.exit_signal,
        derived_exit_code=details.derived_exit_code,
    )
    rows = cluster.nodes(details.nodes) if details.nodes else {}
    lost = tuple(name for name, row in rows.items() if not row.responding)
    return Record(replace(ended, nodes_down=lost), details.nodes)


def _logs(details: JobDetails) -> tuple[LogPath, ...]:
    """Slurm leaves %N and %n in a name as they are; such a file is looked for by the node's name."""
    names = dict.fromkeys(name for name in (details.std_out, details.std_err) if name and name != "/dev/null")
    hosts = (details.batch_host, *details.nodes[:1])
    spelled = {name.replace("%N", host).replace("%n", "0") for name in names for host in hosts if host}
    return tuple(LogPath(name) for name in sorted(spelled or names))
