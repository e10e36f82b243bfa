"""Signs and decodes munge credentials: the authentication service of every Slurm cluster. (I/O)

A credential says which user of the cluster made it and when; no user can make one for another. If it is
restricted to a user, only that user can decode it, so others can neither read it nor use it up. The status
codes are munge's (munge.h).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ftrun.slurm.client.errors import RefusedForGood, Unreachable
from ftrun.slurm.commands.process import Answer, run, tool
from ftrun.slurm.records import dataclass

GOOD, EXPIRED, REWOUND, REPLAYED = 0, 15, 16, 17
TTL_MAX_S = 3600  # munge allows no more
TIMEOUT_S = 10.0
# internal, memory, socket, timeout: these say nothing about the credential
_NOT_NOW = frozenset({1, 5, 6, 7})
_KEYS = "STATUS,UID,ENCODE_TIME"


@dataclass(frozen=True, slots=True)
class Credential:
    """An authentic credential. `status`: GOOD, EXPIRED, REWOUND (from the future) or REPLAYED (opened on this
    host before); `encoded_s` is Unix time by the clock of the host that made it.
    """

    status: int
    uid: int
    encoded_s: float
    payload: bytes


def sign(payload: bytes, *, for_uid: int, socket: str = "", ttl_s: int = TTL_MAX_S) -> bytes:
    """A credential of the caller over `payload`, for `for_uid` alone. Raises Unreachable, RefusedForGood."""
    argv = ["--restrict-uid", str(for_uid), "--ttl", str(ttl_s), *_socket(socket)]
    answer = _call("munge", argv, payload)
    if answer.exit_code in _NOT_NOW or answer.killed:
        raise Unreachable(f"munge does not sign: {_said(answer)}")
    if answer.exit_code != 0 or not answer.stdout.startswith("MUNGE:"):
        raise RefusedForGood(f"munge refuses to sign: {_said(answer)}")
    return answer.stdout.strip().encode()


def decode(credential: bytes, *, socket: str = "") -> Credential | None:
    """The content of a credential; None if not this cluster's or not for us. Raises Unreachable."""
    answer = _call("unmunge", ["--numeric", "--keys", _KEYS, *_socket(socket)], credential)
    if answer.exit_code in _NOT_NOW or answer.killed:
        raise Unreachable(f"unmunge does not answer: {_said(answer)}")
    if answer.exit_code not in {GOOD, EXPIRED, REWOUND, REPLAYED}:
        return None
    head, _, payload = answer.stdout.partition("\n\n")
    fields = dict(line.split(":", 1) for line in head.splitlines() if ":" in line)
    try:
        return Credential(
            status=answer.exit_code,
            uid=int(fields["UID"]),
            encoded_s=float(fields["ENCODE_TIME"]),
            payload=payload.encode("utf-8", "surrogateescape"),
        )
    except (KeyError, ValueError) as error:
        raise Unreachable(f"unmunge printed what it never did before: {error}") from error


def _call(name: str, argv: list[str], stdin: bytes) -> Answer:
    env: Mapping[str, str] = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    return run([tool(name, env), *argv], env, timeout_s=TIMEOUT_S, stdin=stdin)


def _socket(path: str) -> list[str]:
    return ["--socket", path] if path else []


def _said(answer: Answer) -> str:
    return " ".join(answer.stderr.split())[:200] or (
        "no answer" if answer.killed else f"exit {answer.exit_code}"
    )
