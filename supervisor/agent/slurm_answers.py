"""A Slurm client that tells of the first question that Slurm leaves unanswered. (I/O)

What the agent cannot ask, it does not do: no node is tried, no step is ended, no spare taken. Each caller copes
with that in silence, and a job that could have gone on ends. So the first such failure of a launch becomes a
warning of the run, with the client that was asked: a node may have a second Slurm.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable
from typing import Any, TypeVar, cast

from ftrun.slurm.client.errors import OutcomeUnknown, SlurmError, Unreachable
from ftrun.slurm.commands.process import reading_env, tool

VERSION_S = 5.0
Client = TypeVar("Client")


def with_failures_reported(client: Client, tell: Callable[[str], None]) -> Client:
    """The same client, which calls `tell` with Slurm's words wherever one of its methods gets no answer."""
    return cast("Client", _ReportsFailures(client, tell))


class _ReportsFailures:
    def __init__(self, client: object, tell: Callable[[str], None]) -> None:
        self._client, self._tell = client, tell

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not callable(found):
            return found

        @functools.wraps(found)
        def asked(*args: Any, **words: Any) -> Any:
            try:
                return found(*args, **words)
            except (Unreachable, OutcomeUnknown) as error:
                self._tell(error.message)
                raise

        return asked


def unanswered_message(node: str, words: str) -> str:
    """One line: which client on which node was asked, its release, and what it said."""
    env = reading_env(os.environ)
    try:
        client = tool("squeue", env)
        shown = subprocess.run(
            [client, "--version"], env=env, capture_output=True, text=True, timeout=VERSION_S, check=False
        )
        release = " ".join(shown.stdout.split())[:40] or "release unknown"
    except (SlurmError, OSError, subprocess.TimeoutExpired):
        client, release = "squeue", "not found"
    return (
        f"Slurm does not answer the agent on {node}, which asks by {client} ({release}): {words};"
        " until it does, nothing is restarted inside the job"
    )
