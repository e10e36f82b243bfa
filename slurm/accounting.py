"""What Slurm's accounting keeps of a job that the controller has forgotten. (I/O)"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ftrun.slurm.errors import SlurmError
from ftrun.slurm.process import reading_env, run, tool

__all__ = ["accounted"]

_FIELDS = "JobID,State,ExitCode,DerivedExitCode,Reason,NodeList,WorkDir,JobName"
_SHORT_FIELDS = "JobID,State,ExitCode,DerivedExitCode,NodeList,WorkDir,JobName"
"""Reason came with 21.08, and a database that is older than its clients may refuse it."""


def accounted(job_id: str, env: Mapping[str, str] | None = None, *, timeout_s: float = 30.0) -> str:
    """The rows of one job as `sacct -P` prints them, its heading first; "" where accounting is off or knows no such job."""
    reading = reading_env(os.environ if env is None else env)
    for fields in (_FIELDS, _SHORT_FIELDS):
        try:
            argv = [tool("sacct", reading), "-P", "-D", "-j", job_id, f"--format={fields}"]
            answer = run(argv, reading, timeout_s=timeout_s)
        except SlurmError:
            return ""
        if answer.exit_code == 0:
            return answer.stdout if answer.stdout.count("\n") > 1 else ""
    return ""
