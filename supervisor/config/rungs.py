"""The rungs of recovery, and the lists of them in settings. (pure)

The default list names every rung, so a rung that cannot apply to a job drops out of it silently. A person
who names a rung means it: a list that was written for this job is refused if one of its rungs can never be
used. `resubmit` is last in each list, because it handles whatever fails above it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from ftrun.supervisor.model.errors import SettingError, nearest_word


class Rung(StrEnum):
    """The rungs, the finest first."""

    RANK = "rank"
    STEP = "step"
    SWAP = "swap"
    COMPANION = "companion"
    SHRINK = "shrink"
    RESUBMIT = "resubmit"


IN_PLACE = (Rung.RANK, Rung.STEP, Rung.SWAP, Rung.COMPANION, Rung.SHRINK)
DEFAULT_ORDER = (*IN_PLACE, Rung.RESUBMIT)
_DEFAULTS = (DEFAULT_ORDER, (Rung.RANK, Rung.STEP, Rung.SWAP, Rung.RESUBMIT))
"""Lists that name whatever there is: the default, and that of earlier versions."""


def parse_order(place: str, text: str) -> tuple[Rung, ...]:
    """The rungs of a list such as `step,swap,resubmit`, which `place` names. Raises SettingError."""
    words = [word.strip() for word in text.split(",")]
    known = [rung.value for rung in Rung]
    for word in words:
        if word not in known:
            near = nearest_word(word, [rung.value for rung in DEFAULT_ORDER])
            hint = f"; did you mean {near!r}?" if near else f"; there are {', '.join(DEFAULT_ORDER)}"
            raise SettingError(f"{place}: no rung is called {word!r}{hint}")
        if words.count(word) > 1:
            raise SettingError(f"{place}: {word} stands there twice")
    if words[-1] != Rung.RESUBMIT:
        rest = [word for word in words if word != Rung.RESUBMIT]
        raise SettingError(
            f"{place}: resubmit stands last, what fails above it goes there: {','.join([*rest, 'resubmit'])}"
        )
    if Rung.RANK in words[1:]:
        rest = [word for word in words if word != Rung.RANK]
        raise SettingError(f"{place}: rank is the finest rung and stands first: {','.join(['rank', *rest])}")
    return tuple(Rung(word) for word in words)


def inapplicable_rungs(settings: Mapping[str, Any]) -> dict[Rung, str]:
    """Rung -> why it can never be used with these settings; rungs that can are not in it."""
    why: dict[Rung, str] = {}
    if not settings.get("rank-restart"):
        why[Rung.RANK] = "it wants a framework that lets a process join again (--ft-rank-restart)"
    sized = settings.get("nodes") or settings.get("nodes-valid")
    if not settings.get("spares") and not sized:  # a broken unit's other nodes are spares
        why[Rung.SWAP] = "it wants spares (--ft-spares=K)"
    if not sized:
        why[Rung.SHRINK] = "it wants the sizes at which the run may go on (--ft-nodes=MIN-MAX)"
    return why


def drop_inapplicable(
    place: str, order: tuple[Rung, ...], off: Mapping[Rung, str], *, meant: bool
) -> tuple[Rung, ...]:
    """The order less what cannot apply. The default means whatever there is, so nothing of it is refused."""
    for rung in order:
        if rung in off and meant and order not in _DEFAULTS:
            raise SettingError(f"{place}: {rung.value} cannot be used: {off[rung]}; or leave it out")
    return tuple(rung for rung in order if rung not in off)
