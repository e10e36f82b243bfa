"""The supervisor as a small job of its own, which Slurm starts again where its node dies. (I/O)

How it thinks. A cluster that ends long processes on login nodes has one place where a process may last: a job. It is requeueable, so Slurm starts it again elsewhere
when its node is lost, and it puts itself back into the queue shortly before its time limit. A limit is always asked for: without one, a job may wait behind every
maintenance that is planned, and what it gets is the partition's default, which may be minutes. Whoever looks after the runs meanwhile leads by the lease, as ever: the
job stands by beside a supervisor on a login node, and ends once it leads and nothing is left to look after. A supervisor that dies in it is started again. Its
comment tells for which home it is, so a second one is not made.
"""

from __future__ import annotations

import os
import shlex
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ftrun.slurm.client import options
from ftrun.slurm.client.cluster import Cluster, PartitionRow, SubmitRequest
from ftrun.slurm.client.parse import parse_seconds
from ftrun.supervisor import spawn
from ftrun.supervisor.errors import UserError

__all__ = ["Watch", "submit", "time_limit"]

NAME = "ftrun-supervisor"
AHEAD_S = 120  # before its time limit it goes back into the queue
LEAST_S = 240.0  # Slurm may send that signal a minute early, and a look at the runs takes a while
USUAL_S = 86_400.0

SCRIPT = """#!/bin/sh
export FTRUN_HOME={home}
end() {{ kill -TERM "$child" 2>/dev/null; wait "$child"; }}
again() {{ end; until scontrol requeue "$SLURM_JOB_ID"; do sleep 5; done; exit; }}
leave() {{ end; exit 0; }}
trap again USR1
trap leave TERM
while :; do
    {python} -P -m ftrun.supervisor supervise --in-job &
    child=$!
    wait "$child"
    code=$?
    case $code in 0 | 2 | 126 | 127) exit "$code" ;; esac
    sleep 10
done
"""


@dataclass(frozen=True, slots=True)
class Watch:
    """The job that looks after a home, whether it was there already, and the time limit that was asked for (minutes; None: by the user's own options, or not now)."""

    job: str
    before: bool
    limit_min: int | None


def submit(cluster: Cluster, home: str, env: Mapping[str, str], words: Sequence[str] = ()) -> Watch:
    """Submit the job unless one is there; `words` are more options for sbatch. Raises SlurmError, and UserError for what cannot be meant."""
    mark = f"{NAME}:{zlib.crc32(os.path.realpath(home).encode()):08x}"
    living = [row for row in cluster.find(mark) if not row.state.ended]
    if living:
        return Watch(living[0].job_id, before=True, limit_min=None)
    limit_min = time_limit(words, cluster.partitions())
    given = (
        "--parsable", f"--job-name={NAME}", f"--comment={mark}", "--requeue", "--open-mode=append", "--ntasks=1", "--cpus-per-task=1",
        f"--signal=B:USR1@{AHEAD_S}", f"--output={os.path.join(home, 'supervisor.log').replace('%', '%%')}",
        *([f"--time={limit_min}"] if limit_min else []),
    )  # fmt: skip
    script = SCRIPT.format(home=shlex.quote(home), python=shlex.quote(sys.executable))
    request = SubmitRequest(mark, (*given, *words), script.encode(), spawn.clean(env), home)
    os.makedirs(home, mode=0o700, exist_ok=True)
    return Watch(cluster.submit(request).job_id, before=False, limit_min=limit_min)


def time_limit(words: Sequence[str], partitions: Mapping[str, PartitionRow]) -> int | None:
    """Minutes to ask for: a day, or what the partition allows; None where `words` say it. Raises UserError for what is too short to be of use."""
    try:
        line = options.split(list(words))
    except options.OptionError as error:
        raise UserError(f"--sbatch-options: {error}") from None
    if line.script is not None:
        raise UserError(f"--sbatch-options: options of sbatch are wanted, not {line.script!r}")
    chosen = line.get("time")
    if chosen is not None:
        limit_s = parse_seconds(chosen)
        if limit_s is not None and 0 < limit_s < LEAST_S:
            raise UserError(f"--time={chosen}: a supervisor's job wants {LEAST_S / 60:.0f} minutes at least")
        return None
    named = line.get("partition")
    names = named.split(",") if named else [row.name for row in partitions.values() if row.default]
    known = [partitions[name] for name in names if name in partitions]
    limits = [row.max_time_s for row in known if row.max_time_s is not None]
    limit_s = min([USUAL_S, *limits])
    if limit_s < LEAST_S:
        least = min(known, key=lambda row: row.max_time_s or USUAL_S).name
        raise UserError(
            f"partition {least} ends a job after {limit_s / 60:g} minutes, a supervisor's job wants {LEAST_S / 60:.0f} at least:"
            " name another one with --sbatch-options '-p NAME'"
        )
    return int(limit_s // 60)
