"""What of an answer is believed: one JSON object whose every value is of a closed list. (pure)

Whoever answers may be wrong, and may have been led by a line of a log. So anything else than the four keys with
allowed values is no answer: a class that may not be named, a node that is none of the job's, a text in place of
true or false. The reason alone is free text: it is cut, made one line and shown, and decides nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ftrun.supervisor.model.types import Opinion
from ftrun.supervisor.opinion.question import CLASSES
from ftrun.supervisor.opinion.redaction import Redactor

REASON_CHARS = 240
_FENCED = re.compile(r"\A\s*```(?:json)?\s*(.*?)\s*```\s*\Z", re.DOTALL)
_THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_BY_NAME = {fault.value: fault for fault in CLASSES}


class BadAnswer(ValueError):
    """An answer that is none; one line that says why, without quoting it."""


def parse_answer(content: bytes, redactor: Redactor, *, by: str) -> Opinion:
    """The opinion in the body of a chat completion. `by`: whom it is from. Raises BadAnswer."""
    try:
        text = json.loads(content)["choices"][0]["message"]["content"]
    except (ValueError, RecursionError):
        raise BadAnswer("it is not JSON") from None
    except (LookupError, TypeError):
        raise BadAnswer("it is no chat completion") from None
    if not isinstance(text, str):
        raise BadAnswer("it has no text")
    return _opinion(_object(text), redactor, by)


def _object(text: str) -> dict[str, Any]:
    text = _THOUGHT.sub("", text)
    if fenced := _FENCED.match(text):
        text = fenced[1]
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise BadAnswer("its text is not the JSON object that was asked for") from None
    if not isinstance(found, dict):
        raise BadAnswer("its text is not the JSON object that was asked for")
    return found


def _opinion(found: dict[str, Any], redactor: Redactor, by: str) -> Opinion:
    name, retry, node, reason = (found.get(key) for key in ("class", "retry", "node", "reason"))
    fault = _BY_NAME.get(name) if isinstance(name, str) else None
    if fault is None:
        raise BadAnswer("it names a class that is not one of those that it may name")
    if not isinstance(retry, bool):
        raise BadAnswer("it does not say whether a retry makes sense")
    if not isinstance(node, str | None) or not isinstance(reason, str | None):
        raise BadAnswer("its node or its reason is not a text")
    suspect = redactor.node(node) if node else ""
    if node and not suspect:
        raise BadAnswer("it names a node that is none of the job's")
    return Opinion(fault, retry, suspect, _one_line(redactor.named(reason or "")), by)


def _one_line(text: str) -> str:
    """Printable, without control characters, and short."""
    plain = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return plain if len(plain) <= REASON_CHARS else plain[: REASON_CHARS - 4] + " ..."
