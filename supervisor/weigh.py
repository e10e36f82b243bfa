"""What a log says, weighed: causes apart from consequences, survived lines apart from both. (pure)

How it thinks. Each line is what its signature says it is. A line after which training went on is no cause, nor is one
before a start or a good end that came later. Of the rest the first by role, priority and order is the cause; another class at about the same priority is
its rival.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftrun.supervisor.model import Evidence, FaultClass, Role

if TYPE_CHECKING:
    from ftrun.supervisor.signatures import Catalog, Signature

__all__ = ["Weighed", "weigh"]

RIVAL_DISTANCE = 5
"""Causes of another class whose priority is at most so much lower are named as rivals."""
SUSPICIOUS_MAX = 5


@dataclass(frozen=True, slots=True)
class Weighed:
    """The evidence in order of weight: `causes` best first, `cause` the best of them."""

    causes: tuple[tuple[Evidence, Signature], ...] = ()
    consequences: int = 0
    finished: bool = False  # the log itself tells of a good end
    rivals: tuple[str, ...] = ()
    suspicious: tuple[Evidence, ...] = ()
    words: tuple[str, ...] = field(default=())

    @property
    def cause(self) -> Signature | None:
        """The signature of the chosen cause."""
        return self.causes[0][1] if self.causes else None

    @property
    def role(self) -> Role | None:
        """The role of the chosen cause."""
        return self.causes[0][1].role if self.causes else None

    def lines_of(self, signature: str) -> tuple[Evidence, ...]:
        """All lines of one signature that count, in the order written."""
        return tuple(
            sorted((line for line, of in self.causes if of.id == signature), key=lambda line: line.order)
        )

    def signature_of(self, line: Evidence) -> Signature | None:
        """The signature of one of `causes`."""
        return next((of for own, of in self.causes if own is line), None)

    def first_of(self, faults: Collection[FaultClass]) -> Evidence | None:
        """The weightiest line of these classes."""
        return next((line for line, of in self.causes if of.fault in faults), None)


def weigh(evidence: Sequence[Evidence], catalog: Catalog, *, over: bool) -> Weighed:
    """Sort `evidence` by what it can be; `over` says that the launch is known to have ended.

    Evidence of signatures that the catalog does not know is left aside.
    """
    known = [(line, catalog.by_id[line.signature]) for line in evidence if line.signature in catalog.by_id]
    good_end = max((line.order for line, of in known if _is_good_end(of)), default=-1)
    fatal = [
        (line, of) for line, of in known if of.role is not Role.INFO and of.fault is not FaultClass.HEALTHY
    ]
    survived = [(line, of) for line, of in fatal if line.progress_after]
    left = [(line, of) for line, of in fatal if not line.progress_after and (over or line.order > good_end)]
    causes = sorted((pair for pair in left if pair[1].role is not Role.CONSEQUENCE), key=_weight)
    consequences = [line for line, of in left if of.role is Role.CONSEQUENCE]
    words = []
    if survived:
        words.append(
            f"{sum(line.count for line, _ in survived)} lines were survived: training went on after them"
        )
    if consequences:
        words.append(f"{sum(line.count for line in consequences)} lines are consequences")
    return Weighed(
        causes=tuple(causes),
        consequences=sum(line.count for line in consequences),
        finished=good_end >= 0,
        rivals=_rivals(causes),
        suspicious=tuple(sorted(consequences, key=lambda line: -line.order)[:SUSPICIOUS_MAX]),
        words=tuple(words),
    )


def _is_good_end(signature: Signature) -> bool:
    return signature.fault is FaultClass.HEALTHY and signature.role is Role.INFO


def _weight(pair: tuple[Evidence, Signature]) -> tuple[int, int, int]:
    line, signature = pair
    return (0 if signature.role is Role.CAUSE else 1, -signature.priority, line.order)


def _rivals(causes: Sequence[tuple[Evidence, Signature]]) -> tuple[str, ...]:
    if not causes:
        return ()
    best = causes[0][1]
    near = [
        of.id
        for _, of in causes
        if of.fault is not best.fault
        and of.role is best.role
        and best.priority - of.priority <= RIVAL_DISTANCE
    ]
    return tuple(dict.fromkeys(near))
