"""Requests to hosts: over SSH as `ssh` would reach them, or to this machine; many at once. (I/O)"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from ftrun.hooks.bundle import zipapp
from ftrun.hooks.ssh import pool
from ftrun.slurm.cluster.plan import LOCALHOST
from ftrun.slurm.records import dataclass
from ftrun.supervisor.model.errors import UserError

CONNECT_S = 10.0
AT_ONCE = 64
STEP_S = 180.0

Step = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """What came of the steps on one host. `done`: the answer of each step that was done; `failed`: why the next was not, "" for none.

    `reached`: False where there was no connection or no login, `failed` says why. `took_s`: in all; `at_s`: when it
    came, by this machine's clock.
    """

    target: str
    done: tuple[Any, ...]
    failed: str
    reached: bool
    took_s: float
    at_s: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether all steps were done."""
        return not self.failed


def ask(
    requests: Mapping[str, Sequence[Step]],
    limit_s: float = STEP_S,
    told: Callable[[HostAnswer], None] = lambda _answer: None,
    ssh_config: str = "",
) -> dict[str, HostAnswer]:
    """Send each host its steps and wait for all; host -> answer. `told` hears each answer as it comes. Raises UserError."""
    # Hosts that are asked the same get the same bytes: a bundle of Slurm is large.
    texts = {id(steps): b"" for steps in requests.values()}
    inputs = {}
    for target, steps in requests.items():
        texts[id(steps)] = texts[id(steps)] or zipapp.request_input(
            ["host"], {"steps": [dict(step) for step in steps]}, _packed()
        )
        inputs[target] = texts[id(steps)]
    found: dict[str, HostAnswer] = {}

    def understood(answer: pool.Answer) -> None:
        found[answer.node] = _parsed(answer)
        told(found[answer.node])

    if list(requests) == [LOCALHOST]:
        understood(_here(inputs[LOCALHOST], limit_s))
        return found
    try:
        pool.NodePool(ssh_config, AT_ONCE, CONNECT_S, limit_s).run(
            requests, zipapp.REMOTE_COMMAND, inputs, understood
        )
    except OSError as error:
        raise UserError(f"{error.filename or 'ssh configuration'}: {error.strerror}") from None
    return {target: found[target] for target in requests}


@cache
def _packed() -> bytes:
    return zipapp.packed_rooms("cluster", "runtime")


def _here(stdin: bytes, limit_s: float) -> pool.Answer:
    began_s = time.monotonic()
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", zipapp.REMOTE_COMMAND],
            input=stdin,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return pool.Answer(LOCALHOST, pool.TIMEOUT, None, "", "", limit_s, f"no end within {limit_s:g} s")
    out, err = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    return pool.Answer(LOCALHOST, pool.ANSWERED, done.returncode, out, err, time.monotonic() - began_s, "")


def _parsed(answer: pool.Answer) -> HostAnswer:
    if answer.state != pool.ANSWERED:
        shows = "" if answer.state == pool.TIMEOUT else f" (`ssh {answer.node}` shows it)"
        return HostAnswer(
            answer.node, (), f"{answer.why}{shows}", answer.state == pool.TIMEOUT, answer.took_s
        )
    try:
        told = json.loads(answer.stdout.strip().splitlines()[-1])
        done, failed = tuple(told["done"]), told["failed"]
        why = f"{failed['step']}: {failed['why']}" if failed else ""
    except (ValueError, IndexError, KeyError, TypeError, RecursionError):
        said = answer.stderr.strip() or answer.stdout.strip()  # a login without a shell says so on stdout
        words = said.splitlines() or [f"exit code {answer.exit_code}, and no answer"]
        return HostAnswer(answer.node, (), words[-1], True, answer.took_s)
    return HostAnswer(answer.node, done, why, True, answer.took_s, time.time())
