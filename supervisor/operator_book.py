"""What the operator's journal says: what was opened, what was answered, how much was done lately. (pure)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ftrun.supervisor.raising import Raised

__all__ = ["Book"]

HOUR_S = 3600.0


@dataclass(slots=True)
class Book:
    """Folded from the records of the operator, and kept up to date by `take`. Times are Unix seconds."""

    taken: dict[str, tuple[int, float]] = field(
        default_factory=dict
    )  # user:hash of a credential -> who left it, when
    opened: set[str] = field(default_factory=set)  # hashes of credentials
    answers: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # id of a request -> the answer
    answered: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # user:hash -> the answer
    draining: dict[str, set[str]] = field(default_factory=dict)  # id -> the reasons announced
    raised: dict[str, Raised] = field(default_factory=dict)  # id -> the job, be it that it came about or not
    drained_s: list[float] = field(
        default_factory=list
    )  # when a drain was announced, be it that it came about or not

    @staticmethod
    def of(records: Iterable[Mapping[str, Any]]) -> Book:
        """The book that these records make."""
        book = Book()
        for record in records:
            book.take(record)
        return book

    def take(self, record: Mapping[str, Any]) -> None:
        """One more record."""
        kind = record["kind"]
        if kind == "taken":
            self.taken.setdefault(record["key"], (int(record["uid"]), float(record["at"])))
            self.opened.add(record["key"].partition(":")[2])
        elif kind == "answered":
            self.answered[record["key"]] = record
            self.answers.setdefault(record["id"], record)
        elif kind == "draining":
            self.draining.setdefault(record["id"], set()).add(record["reason"])
            self.drained_s.append(float(record["at"]))
        elif kind == "raising":
            job = Raised(int(record["uid"]), str(record["job"]), float(record["at"]))
            self.raised.setdefault(record["id"], job)

    def asked(self, uid: int, now_s: float) -> int:
        """How many requests of this user were opened within the last hour."""
        return sum(1 for whose, at_s in self.taken.values() if whose == uid and now_s - at_s < HOUR_S)
