"""What a supervisor asks of the operator, who may do more than it, as the payload of a signed credential. (pure)

Everything in it is a claim of the user who signed it. Who that is, when it was signed, whether the job was there and whether the node
is sick is found out by the operator itself; what is claimed serves to look, and stands in the reason of the drain. So every
field has a narrow form, and what does not fit is no request.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict

from ftrun.slurm.records import dataclass

__all__ = ["ID", "PAYLOAD_BYTES_MAX", "BadRequest", "Request", "from_payload", "reason_of", "to_payload"]

SCHEMA = 1
PURPOSE = "ftrun-operator"  # a credential that was signed for anything else is no request
PAYLOAD_BYTES_MAX = 4096
ID = re.compile(r"[0-9a-f]{32}")

_FORMS = {
    "id": ID,
    "cluster": re.compile(r"[A-Za-z0-9_.-]{0,64}"),
    "node": re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9_.-]{0,63})?"),
    "job": re.compile(r"[0-9]{1,10}"),
    "run": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"),
    "fault": re.compile(r"[a-z][a-z-]{0,31}"),
    "signature": re.compile(r"[A-Za-z0-9_.-]{1,64}"),
    "want": re.compile(r"drain|raise"),
    "lost": re.compile(r"[0-9]{0,10}"),
}
_BEFORE = {"want": "drain", "lost": ""}  # what requests of earlier releases mean


class BadRequest(ValueError):
    """A payload that no supervisor signs; one line."""


@dataclass(frozen=True, slots=True)
class Request:
    """`want` drain: please drain `node`; it was `job`'s (a plain number) when `fault` was seen at `seen_s` (Unix time). `want` raise: please put
    `job`, which waits, ahead of others; it goes on for job `lost`, which `fault` took at `seen_s`."""

    id: str
    cluster: str
    node: str
    job: str
    run: str
    fault: str
    signature: str
    seen_s: float
    want: str = "drain"
    lost: str = ""


def to_payload(request: Request) -> bytes:
    """The bytes to sign."""
    return json.dumps({"schema": SCHEMA, "for": PURPOSE, **asdict(request)}, separators=(",", ":")).encode()


def from_payload(payload: bytes) -> Request:
    """The request in signed bytes. Raises BadRequest."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise BadRequest("it is too long")
    try:
        told = json.loads(payload)
    except (ValueError, RecursionError):
        raise BadRequest("it is no JSON") from None
    if not isinstance(told, dict) or told.get("for") != PURPOSE or told.get("schema") != SCHEMA:
        raise BadRequest("it is no request to this operator")
    told = {**_BEFORE, **told}
    for key, form in _FORMS.items():
        value = told.get(key)
        if not isinstance(value, str) or not form.fullmatch(value):
            raise BadRequest(f"its {key} is not of the form that it must have")
    if not told["node" if told["want"] == "drain" else "lost"]:
        raise BadRequest("it does not say what it is about")
    seen_s = told.get("seen_s")
    if isinstance(seen_s, bool) or not isinstance(seen_s, int | float) or not 0 < seen_s < 1e11:
        raise BadRequest("its time is none")
    return Request(seen_s=float(seen_s), **{key: told[key] for key in _FORMS})


def reason_of(run: str, signature: str, stamp: str) -> str:
    """The reason of a drain, as Slurm shows it."""
    return f"ftrun: {run} {signature} {stamp}"
