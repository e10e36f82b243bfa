"""Who is asked about what, how often a day, and what came of it. (I/O)

$FTRUN_HOME/opinions      one line for each question of the last days: when (Unix time)
"""

from __future__ import annotations

import contextlib
import getpass
import os
from collections.abc import Mapping, Sequence

from ftrun.hooks.runtime.formats import DAY_S
from ftrun.supervisor.diagnosis.facts import Facts
from ftrun.supervisor.diagnosis.unknown_cause import last_lines
from ftrun.supervisor.model.types import Diagnosis, Opinion
from ftrun.supervisor.opinion.answer import BadAnswer, parse_answer
from ftrun.supervisor.opinion.endpoint import Endpoint, NoAnswer, Request
from ftrun.supervisor.opinion.question import EVIDENCE_BYTES, End, Question, question_about
from ftrun.supervisor.telemetry.tail import LogPath

_COUNTER = "opinions"


def question_of_end(
    facts: Facts, found: Diagnosis, logs: Sequence[LogPath], *, users: Sequence[str] = ()
) -> Question:
    """The question about an end that ftrun cannot explain."""
    ended, nodes = facts.ended, facts.topology.nodes
    if facts.attempt is not None:
        nodes = facts.attempt.used or nodes
    told = [f"what ftrun made of it: {found.fault.value}, {found.title}"]
    if ended is not None:
        told.append(
            f"Slurm's state: {ended.state or 'unknown'}, exit code {ended.exit_code}, signal {ended.signal}"
        )
    step = facts.progress.step if facts.progress is not None else None
    told.append(
        "no training step was seen" if step is None else f"training had made steps, the last one was {step}"
    )
    odd = [proof.text for proof in (*found.because, *(facts.last_words or found.suspicious))]
    last = last_lines(logs, facts.topology, size_bytes=2 * EVIDENCE_BYTES)
    return question_about(End(tuple(told), nodes, _users(users)), odd, last)


def _users(known: Sequence[str]) -> tuple[str, ...]:
    """The names of the user, as far as they are known here."""
    found = {*known, os.environ.get("USER", ""), os.path.basename(os.path.expanduser("~"))}
    with contextlib.suppress(OSError, KeyError):
        found.add(getpass.getuser())
    return tuple(sorted(name for name in found if name))


def spend_one(home: str, per_day: int, now_s: float) -> bool:
    """Count one question more; False where the budget of the last 24 hours is used up, or cannot be counted."""
    path = os.path.join(home, _COUNTER)
    try:
        with open(path, "a+", encoding="ascii", opener=_private) as stream:
            stream.seek(0)
            asked = [line for line in stream.read().split() if _is_recent(line, now_s)]
            if len(asked) >= per_day:
                return False
            if stream.tell() > 1 << 16:  # the days before
                stream.truncate(0)
                stream.write("".join(f"{line}\n" for line in asked))
            stream.write(f"{now_s:.0f}\n")
            stream.flush()
            os.fsync(stream.fileno())
    except (OSError, ValueError):
        return False
    return True


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _is_recent(line: str, now_s: float) -> bool:
    try:
        return abs(now_s - float(line)) < DAY_S
    except ValueError:
        return False


def opinion_of(request: Request, question: Question, endpoint: Endpoint) -> Opinion:
    """The opinion in the answer. Raises NoAnswer, BadAnswer."""
    return parse_answer(request.result(), question.redactor, by=endpoint.by)


def ask_and_wait(
    endpoint: Endpoint, question: Question, home: str, env: Mapping[str, str], now_s: float
) -> Opinion:
    """Ask, and wait for the answer until the limit. Raises NoAnswer."""
    if not spend_one(home, endpoint.per_day, now_s):
        raise NoAnswer(budget_used_up(endpoint))
    request = Request(endpoint, question.body(endpoint.model), env)
    request.wait()
    try:
        return opinion_of(request, question, endpoint)
    except BadAnswer as error:
        raise NoAnswer(f"not a valid answer: {error}") from None


def budget_used_up(endpoint: Endpoint) -> str:
    """Why nobody is asked any more today."""
    return f"{endpoint.per_day} questions were asked within a day (second-opinion-per-day)"
