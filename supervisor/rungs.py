"""The rungs of recovery, and what the settings say of them: order, budgets, time limits, rules of one class or signature. (pure)

How it thinks. Rules are asked from the narrowest to the widest: those of the signature, of the class, of the run. The default list
names every rung that there is, so what cannot apply to a job drops out of it without a word. A person who names a rung means it:
a list that was written for this job is refused where one of its rungs could never be used. `resubmit` stands last in each list,
because whatever fails above it goes there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor import settings as table
from ftrun.supervisor.model import FaultClass
from ftrun.supervisor.settings import SettingError

__all__ = [
    "DEFAULT_ORDER",
    "IN_PLACE",
    "LIMIT_MAX_S",
    "Rung",
    "Rungs",
    "cannot_apply",
    "order_from",
    "rungs_from",
]


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

LIMIT_MAX_S = 540.0
"""batch.sh waits ten minutes for an answer in all; a rung may take less."""

OWN_SIGNATURES = ("slurm.", "preflight.", "node.", "check-", "hang")
"""What ftrun itself finds bears such names, and no catalog lists them."""


@dataclass(frozen=True, slots=True)
class Rungs:
    """What the settings say of the rungs. Keys of each mapping: a signature, a class, or "" for the run itself.

    Budgets count uses without progress in between, limits are seconds.
    """

    orders: Mapping[str, tuple[Rung, ...]]
    budgets: Mapping[str, Mapping[Rung, int]]
    limits_s: Mapping[str, Mapping[Rung, float]]

    def order(self, fault: FaultClass, signature: str = "") -> tuple[Rung, ...]:
        """The rungs for a fault, in the order in which they are tried; `resubmit` is the last."""
        return next(self.orders[name] for name in _narrowest_first(fault, signature) if name in self.orders)

    def budget(self, rung: Rung, fault: FaultClass, signature: str = "") -> tuple[int, str]:
        """(how often, counted over what): a signature, a class, or "" for all uses of the rung."""
        return next(
            (self.budgets[name][rung], name)
            for name in _narrowest_first(fault, signature)
            if rung in self.budgets.get(name, {})
        )

    def limit_s(self, rung: Rung, fault: FaultClass, signature: str = "") -> float:
        """How long the rung may take, from the decision until the script or the process runs again."""
        names = _narrowest_first(fault, signature)
        return next(self.limits_s[name][rung] for name in names if rung in self.limits_s.get(name, {}))

    @property
    def in_place(self) -> bool:
        """Whether anything is ever recovered inside an allocation."""
        return any(rung in IN_PLACE for order in self.orders.values() for rung in order)


def _narrowest_first(fault: FaultClass, signature: str) -> tuple[str, ...]:
    return (signature, fault.value, "") if signature else (fault.value, "")


def rungs_from(
    settings: Mapping[str, Any],
    *,
    signatures: Callable[[], Collection[str]] | None = None,
    meant: Collection[str] = (),
) -> Rungs:
    """The rungs as the validated settings of a run have them. Settings of older versions may lack all of them.

    `signatures` gives the names that the catalog knows; without it the names in `policy` are believed. `meant` are the
    settings ("recover", "policy") that were written for this very job: rungs in them that cannot apply are refused.
    Raises SettingError in one line that names the setting and what would be right.
    """
    may = cannot_apply(settings)
    default = table.defaults()
    said = str(settings.get("recover") or default["recover"])
    orders = {"": _fit("recover", order_from("recover", said), may, meant="recover" in meant)}
    budgets: dict[str, dict[Rung, int]] = {"": {}}
    limits: dict[str, dict[Rung, float]] = {"": {}}
    for rung in IN_PLACE:
        for kind, kept in (("budget", budgets), ("limit", limits)):
            key = f"{kind}-{rung.value}"
            kept[""][rung] = settings.get(key, default[key])
            _within(key, key, kept[""][rung])
    for element in settings.get("policy") or ():
        name, key, given = table.rule(element)
        value: Any = given
        _known(name, signatures)
        place = f"policy: {name}.{key}"
        kind, _, last = key.partition("-")
        if key == "recover":
            orders[name] = _fit(place, order_from(place, value), may, meant="policy" in meant)
        elif key == "budget":
            if name not in {fault.value for fault in FaultClass}:
                raise SettingError(f"{place}: classes have such a budget; a signature has budget-RUNG")
        else:
            _within(place, key, value)
            (budgets if kind == "budget" else limits).setdefault(name, {})[Rung(last)] = value
    return Rungs(orders, budgets, limits)


def order_from(place: str, text: str) -> tuple[Rung, ...]:
    """The rungs of a list such as `step,swap,resubmit`. Raises SettingError; `place` names the setting in its message."""
    words = [word.strip() for word in text.split(",")]
    known = [rung.value for rung in Rung]
    for word in words:
        if word not in known:
            near = table.nearest(word, [rung.value for rung in DEFAULT_ORDER])
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


def cannot_apply(settings: Mapping[str, Any]) -> dict[Rung, str]:
    """Rung -> why it can never be used with these settings; rungs that can are not in it."""
    why: dict[Rung, str] = {}
    if not settings.get("rejoin"):
        why[Rung.RANK] = "it wants a framework that lets a process join again (--ft-rejoin)"
    sized = settings.get("nodes") or settings.get("nodes-valid")
    if not settings.get("spares") and not sized:  # a broken unit's other nodes are spares
        why[Rung.SWAP] = "it wants spares (--ft-spares=K)"
    if not sized:
        why[Rung.SHRINK] = "it wants the sizes at which the run may go on (--ft-nodes=MIN-MAX)"
    return why


def _fit(place: str, order: tuple[Rung, ...], off: Mapping[Rung, str], *, meant: bool) -> tuple[Rung, ...]:
    """The order less what cannot apply. The default means whatever there is, so nothing of it is refused."""
    for rung in order:
        if rung in off and meant and order not in _DEFAULTS:
            raise SettingError(f"{place}: {rung.value} cannot be used: {off[rung]}; or leave it out")
    return tuple(rung for rung in order if rung not in off)


def _within(place: str, key: str, value: float) -> None:
    if key.startswith("limit-") and value > LIMIT_MAX_S:
        raise SettingError(f"{place}: at most {table.show(key, LIMIT_MAX_S)}: the job's end waits no longer")


def _known(name: str, signatures: Callable[[], Collection[str]] | None) -> None:
    classes = [fault.value for fault in FaultClass if fault is not FaultClass.HEALTHY]
    if name in classes or signatures is None or name.startswith(OWN_SIGNATURES):
        return
    known = signatures()
    if name in known:
        return
    near = table.nearest(name, classes) or table.nearest(name, known)
    hint = f"; did you mean {near!r}?" if near else " (ftrun catalog list names them)"
    raise SettingError(f"policy: {name!r} is neither a fault class nor a known signature{hint}")
