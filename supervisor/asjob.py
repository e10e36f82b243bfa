"""The supervisor as a small job of its own, which Slurm starts again where its node dies. (I/O)

How it thinks. A cluster that ends long processes on login nodes has one place where a process may last: a job. It is requeueable, so Slurm starts it again elsewhere
when its node is lost, and it puts itself back into the queue shortly before its time limit. Whoever looks after the runs meanwhile leads by the lease, as ever: the job stands by
beside a supervisor on a login node, and ends once it leads and nothing is left to look after. Its comment tells for which home it is, so a second one is not made.
"""

from __future__ import annotations

import os
import shlex
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ftrun.slurm.client import Cluster, SubmitRequest
from ftrun.supervisor import spawn

__all__ = ["Watch", "submit"]

NAME = "ftrun-supervisor"
AHEAD_S = 120  # before its time limit it goes back into the queue

SCRIPT = """#!/bin/sh
export FTRUN_HOME={home}
again() {{ kill -TERM "$child"; wait "$child"; scontrol requeue "$SLURM_JOB_ID"; exit; }}
leave() {{ kill -TERM "$child"; wait "$child"; exit 0; }}
trap again USR1
trap leave TERM
{python} -P -m ftrun.supervisor supervise --in-job &
child=$!
wait "$child"
"""


@dataclass(frozen=True, slots=True)
class Watch:
    """The job that looks after a home, and whether it was there already."""

    job: str
    before: bool


def submit(cluster: Cluster, home: str, env: Mapping[str, str], words: Sequence[str] = ()) -> Watch:
    """Submit the job unless one is there; `words` are more options for sbatch. Raises SlurmError."""
    mark = f"{NAME}:{zlib.crc32(os.path.realpath(home).encode()):08x}"
    living = [row for row in cluster.find(mark) if not row.state.ended]
    if living:
        return Watch(living[0].job_id, before=True)
    options = (
        "--parsable", f"--job-name={NAME}", f"--comment={mark}", "--requeue", "--open-mode=append", "--ntasks=1", "--cpus-per-task=1",
        f"--signal=B:USR1@{AHEAD_S}", f"--output={os.path.join(home, 'supervisor.log')}",
    )  # fmt: skip
    script = SCRIPT.format(home=shlex.quote(home), python=shlex.quote(sys.executable))
    request = SubmitRequest(mark, (*options, *words), script.encode(), spawn.clean(env), home)
    os.makedirs(home, mode=0o700, exist_ok=True)
    return Watch(cluster.submit(request).job_id, before=False)
