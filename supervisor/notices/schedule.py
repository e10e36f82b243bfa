"""When a message leaves to a receiver, and which notices are in it. (pure)

Kinds in `now` leave at once, one by one; the last message that an hour has room for holds all that wait. All others
wait for the daily summary. In quiet hours nothing leaves. Whatever does not leave waits, and is in a later message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks.runtime.formats import DAY_S, HOUR_S
from ftrun.slurm.records import dataclass
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.notices.notice import KINDS, Notice

_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True, slots=True)
class Rules:
    """`quiet`: from and to, `summary`: when, in minutes of the local day; None = none. `per_hour`: at least 1."""

    now: frozenset[str] = frozenset({"gave-up", "stalled", "finished"})
    summary: int | None = 8 * 60
    quiet: tuple[int, int] | None = None
    per_hour: int = 6

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Rules:
        """The rules of these settings. Raises UserError."""
        now = {word for word in str(settings["notify-now"]).replace(" ", "").split(",") if word}
        if unknown := sorted(now - set(KINDS) - {"all", "none"}):
            raise UserError(
                f"notify-now: there is no {unknown[0]!r}; there are: {', '.join(KINDS)}, all, none"
            )
        now = set(KINDS) if "all" in now else now - {"none"}
        summary, quiet = str(settings["notify-summary"]).strip(), str(settings["notify-quiet"]).strip()
        hours = None
        if quiet:
            begin, dash, end = quiet.partition("-")
            if not dash:
                raise UserError("notify-quiet: hours such as 22:00-07:00 are wanted")
            hours = (_minute("notify-quiet", begin), _minute("notify-quiet", end))
        return cls(
            frozenset(now),
            None if summary == "never" else _minute("notify-summary", summary),
            hours,
            max(1, int(settings["notify-per-hour"])),
        )


@dataclass(frozen=True, slots=True)
class Told:
    """What a receiver got: since when it is one, when messages left to it, when the last summary did."""

    since_s: float
    left_s: tuple[float, ...] = ()
    summary_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Message:
    """The notices that leave together. `summary`: it is the daily one."""

    notices: tuple[Notice, ...]
    summary: bool = False


def _minute(key: str, text: str) -> int:
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise UserError(f"{key}: {text!r} is no time such as 08:00")
    return int(found[1]) * 60 + int(found[2])


def next_message(
    waiting: Sequence[Notice], told: Told, rules: Rules, now_s: float, offset_s: float
) -> Message | str:
    """The message that leaves now, else why none does ("" = there is nothing to tell yet).

    `waiting`: oldest first. `offset_s`: local time minus UTC.
    """
    urgent = tuple(one for one in waiting if one.kind in rules.now)
    summary = len(urgent) < len(waiting) and _summary_due(told, rules, now_s, offset_s)
    if not urgent and not summary:
        return ""
    if is_quiet(rules, now_s, offset_s):
        return "quiet hours"
    # One that left in the future, as after a clock was set back, counts for an hour of this clock, not for ever.
    room = rules.per_hour - sum(1 for one in told.left_s if abs(now_s - one) < HOUR_S)
    if room < 1:
        return f"{rules.per_hour} messages left within an hour"
    if summary:
        return Message(tuple(waiting), summary=True)
    return Message(urgent if room == 1 else urgent[:1])


def is_quiet(rules: Rules, now_s: float, offset_s: float) -> bool:
    """Whether these are quiet hours; from and to may lie on either side of midnight."""
    if rules.quiet is None:
        return False
    begin, end = rules.quiet
    minute = ((now_s + offset_s) % DAY_S) / 60
    return begin <= minute < end if begin <= end else minute >= begin or minute < end


def _summary_due(told: Told, rules: Rules, now_s: float, offset_s: float) -> bool:
    """Whether the hour of the summary has passed since the last one."""
    if rules.summary is None:
        return False
    local_s = now_s + offset_s
    due_s = local_s - (local_s - rules.summary * 60) % DAY_S - offset_s
    return max(told.summary_s, told.since_s) < due_s <= now_s
