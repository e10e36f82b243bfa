"""Programs that leave a daemon of a cluster behind on this host: one process at a time starts them. (I/O)

A daemon gets a session of its own, under systemd a scope of its own, and the environment of nobody: what it inherits, steps inherit
from it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from ftrun.hooks.cluster import init_system
from ftrun.hooks.cluster.errors import HostError
from ftrun.hooks.cluster.members import MARK, mark_of
from ftrun.hooks.cluster.survey import search_path

START_S = 60.0
POLL_S = 0.05
LAST_LINES = 2
CONF_MARK = "FTRUN_CLUSTER_CONF"
"""The variable of a daemon that tells with which slurm.conf it was started."""


@contextlib.contextmanager
def starting(folder: str, limit_s: float) -> Iterator[None]:
    """Hold the right to start daemons of a cluster here: one process has it at a time. Raises HostError after `limit_s`."""
    number = os.open(os.path.join(folder, "run", "start.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    give_up_s = time.monotonic() + limit_s
    try:
        while True:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= give_up_s:
                    raise HostError(
                        "another command or the keeper starts daemons here: say it again"
                    ) from None
            time.sleep(POLL_S)
        yield
    finally:
        os.close(number)


def launch(
    step: dict[str, Any], daemon: str, command: list[str], *, log: str = "start", limit_s: float = START_S
) -> None:
    """Run a program that returns once it is a daemon; what it says goes to log/<log>.log. Raises HostError with its last words."""
    said = os.path.join(step["folder"], "log", f"{log}.log")
    scope = init_system.scope_words()
    env = {
        **environment(step),
        MARK: mark_of(step["token"], daemon),
        CONF_MARK: conf_hash(step["folder"]),
    }
    if scope:
        env["XDG_RUNTIME_DIR"] = init_system.environment()["XDG_RUNTIME_DIR"]
    with open(said, "ab") as output:
        before = output.tell()
        try:
            process = subprocess.Popen(
                [*scope, *command],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/",
                env=env, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise HostError(f"{daemon} did not start: {command[0]}: {error.strerror}") from None
        try:
            exit_code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise HostError(f"{daemon} did not start within {limit_s:g} s") from None
    if exit_code:
        words = last_lines(said, before) or log_of(step, daemon) or f"exit code {exit_code}"
        raise HostError(f"{daemon} did not start: {words}")


def environment(step: dict[str, Any]) -> dict[str, str]:
    """The environment of a daemon, and of a client of Slurm on this host."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key in {"HOME", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME"}
    }
    return {**kept, "PATH": search_path(), "SLURM_CONF": f"{step['folder']}/etc/slurm.conf"}


def conf_hash(folder: str) -> str:
    """What tells the slurm.conf of now from others. Raises OSError."""
    with open(os.path.join(folder, "etc", "slurm.conf"), "rb") as stream:
        return hashlib.sha256(stream.read()).hexdigest()[:16]


def log_of(step: dict[str, Any], daemon: str) -> str:
    """The last words in a daemon's log."""
    return last_lines(os.path.join(step["folder"], "log", f"{daemon}.log"), 0)


def last_lines(path: str, offset: int) -> str:
    """The last words behind `offset`: Slurm's last line says that it gives up, the one before says why."""
    try:
        with open(path, "rb") as stream:
            stream.seek(offset)
            lines = [
                line.strip() for line in stream.read().decode("utf-8", "replace").splitlines() if line.strip()
            ]
    except OSError:
        return ""
    return "; ".join(lines[-LAST_LINES:])
