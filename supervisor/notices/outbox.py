"""What is to be told, to whom, and what was told: on disk before and after each delivery. (I/O)

A line is written before a delivery begins and one when it ended. So a process that is cut between them leaves a
delivery of unknown end: it is not begun again, since nobody wants to be told twice, and `status` names it. One that
failed is: its notices wait, and are in a later message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from ftrun.hooks.runtime.formats import DAY_S, HOUR_S
from ftrun.slurm.records import dataclass
from ftrun.supervisor.notices.notice import Notice
from ftrun.supervisor.notices.schedule import Message, Told
from ftrun.supervisor.store.append_log import AppendLog

PAUSE_S, PAUSE_MAX_S = 60.0, 3600.0


@dataclass(slots=True)
class Inbox:
    """What one receiver is to get and got. `waiting`: id -> notice, oldest first."""

    since_s: float
    waiting: dict[str, Notice] = field(default_factory=dict)
    under_way: dict[str, Notice] = field(default_factory=dict)
    left_s: list[float] = field(default_factory=list)  # when messages left, of the last day
    summary_s: float = 0.0
    is_summary: bool = False  # what is under way
    failures: int = 0  # since the last that arrived
    failed_s: float = 0.0
    why: str = ""
    unknown: list[float] = field(default_factory=list)  # when deliveries began whose end nobody saw

    @property
    def told(self) -> Told:
        """What the schedule has to know."""
        return Told(self.since_s, tuple(self.left_s), self.summary_s)

    def is_pausing(self, now_s: float) -> bool:
        """Whether it failed, and is left alone for a while."""
        pause_s = min(PAUSE_MAX_S, PAUSE_S * 2 ** (min(self.failures, 10) - 1))
        return self.failures > 0 and abs(now_s - self.failed_s) < pause_s


class Outbox:
    """The outbox in one folder. Its methods that write raise OSError; then nothing of it was noted."""

    def __init__(self, folder: str) -> None:
        self._log = AppendLog(folder)
        self.inboxes: dict[str, Inbox] = {}
        self._known: set[str] = set()
        for record in self._log.read():
            self._apply(record)

    def give_up_deliveries(self) -> None:
        """Nobody will see the end of what is under way: for whoever leads now, at its beginning."""
        for inbox in self.inboxes.values():
            _lose(inbox)

    def add_receivers(self, ids: Iterable[str], now_s: float) -> None:
        """Those that are new get what is accepted from now on."""
        for one in ids:
            if one not in self.inboxes:
                self._write("receiver", now_s, to=one)

    def accept(self, notice: Notice, now_s: float) -> bool:
        """It is to be told; False where it was accepted before."""
        if notice.id in self._known:
            return False
        self._write("notice", now_s, notice=notice.facts)
        return True

    def begin(self, to: str, message: Message, now_s: float) -> None:
        """A delivery is about to begin."""
        self._write("sending", now_s, to=to, ids=[one.id for one in message.notices], summary=message.summary)

    def end(self, to: str, why: str, now_s: float) -> None:
        """It arrived (`why` is ""), or it did not: why."""
        if why:
            self._write("failed", now_s, to=to, why=why)
        else:
            self._write("sent", now_s, to=to)

    def _write(self, kind: str, now_s: float, /, **data: Any) -> None:
        self._log.append(kind, now_s=now_s, **data)
        self._apply({"kind": kind, "now_s": now_s, **data})

    def _apply(self, record: Mapping[str, Any]) -> None:
        """One line. A line that says nothing we understand changes nothing."""
        try:
            kind, now_s = record["kind"], float(record["now_s"])
            if kind == "notice":
                notice = Notice.of_json(record["notice"])
                self._known.add(notice.id)
                for inbox in self.inboxes.values():
                    inbox.waiting[notice.id] = notice
            elif kind == "receiver":
                self.inboxes.setdefault(str(record["to"]), Inbox(now_s))
            else:
                _apply_delivery(self.inboxes[record["to"]], kind, now_s, record)
        except (KeyError, TypeError, ValueError):
            return


def _apply_delivery(inbox: Inbox, kind: str, now_s: float, record: Mapping[str, Any]) -> None:
    if kind == "sending":
        _lose(inbox)
        inbox.under_way = {one: inbox.waiting.pop(one) for one in record["ids"] if one in inbox.waiting}
        inbox.is_summary = bool(record["summary"])
        inbox.left_s = [one for one in inbox.left_s if abs(now_s - one) < HOUR_S] + [now_s]
    elif kind == "failed":
        inbox.waiting = inbox.under_way | inbox.waiting
        inbox.under_way, inbox.left_s = {}, inbox.left_s[:-1]
        inbox.failures, inbox.failed_s, inbox.why = inbox.failures + 1, now_s, str(record["why"])
    elif kind == "sent":
        inbox.summary_s = now_s if inbox.is_summary else inbox.summary_s
        inbox.under_way, inbox.failures, inbox.why = {}, 0, ""


def _lose(inbox: Inbox) -> None:
    """Whatever is under way: nobody will see its end."""
    if inbox.under_way:
        began_s = inbox.left_s[-1]
        inbox.unknown = [one for one in inbox.unknown if abs(began_s - one) < DAY_S] + [began_s]
        inbox.summary_s = began_s if inbox.is_summary else inbox.summary_s
        inbox.under_way = {}
