"""Order, budget and time limit of each recovery rung, for a run, a fault class or a signature. (pure)

The narrowest rule wins: that of the signature, then of the class, then of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ftrun.slurm.records import dataclass
from ftrun.supervisor.config import settings as config_settings
from ftrun.supervisor.config.rungs import IN_PLACE, Rung, drop_inapplicable, inapplicable_rungs, parse_order
from ftrun.supervisor.model.errors import SettingError, nearest_word
from ftrun.supervisor.model.types import FaultClass

LIMIT_MAX_S = 540.0
"""batch.sh waits ten minutes for an answer in all; a rung may take less."""

OWN_SIGNATURES = ("slurm.", "preflight.", "node.", "check-", "hang")
"""What ftrun itself finds bears such names, and no catalog lists them."""


@dataclass(frozen=True, slots=True)
class RungRules:
    """Orders, budgets and limits of the rungs. Keys of each mapping: a signature, a class, or "" for the run
    itself.

    Budgets count uses without progress in between; limits are seconds.
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


def rung_rules_from(
    settings: Mapping[str, Any],
    *,
    signatures: Callable[[], Collection[str]] | None = None,
    meant: Collection[str] = (),
) -> RungRules:
    """Return the rungs in the validated settings of a run. Settings of older versions may lack all of them.

    `signatures` returns the names in the catalogue; without it the names in `policy` are believed. `meant`
    are the settings ("recover", "policy") that were written for this very job: rungs in them that cannot
    apply are refused. Raises SettingError in one line that names the setting and what would be right.
    """
    may = inapplicable_rungs(settings)
    default = config_settings.defaults()
    said = str(settings.get("recover") or default["recover"])
    orders = {"": drop_inapplicable("recover", parse_order("recover", said), may, meant="recover" in meant)}
    budgets: dict[str, dict[Rung, int]] = {"": {}}
    limits: dict[str, dict[Rung, float]] = {"": {}}
    for rung in IN_PLACE:
        for kind, kept in (("budget", budgets), ("limit", limits)):
            key = f"{kind}-{rung.value}"
            kept[""][rung] = settings.get(key, default[key])
            _within(key, key, kept[""][rung])
    for element in settings.get("policy") or ():
        name, key, given = config_settings.parse_policy_rule(element)
        value: Any = given
        _known(name, signatures)
        place = f"policy: {name}.{key}"
        kind, _, last = key.partition("-")
        if key == "recover":
            orders[name] = drop_inapplicable(place, parse_order(place, value), may, meant="policy" in meant)
        elif key == "budget":
            if name not in {fault.value for fault in FaultClass}:
                raise SettingError(f"{place}: classes have such a budget; a signature has budget-RUNG")
        else:
            _within(place, key, value)
            (budgets if kind == "budget" else limits).setdefault(name, {})[Rung(last)] = value
    return RungRules(orders, budgets, limits)


def _within(place: str, key: str, value: float) -> None:
    if key.startswith("limit-") and value > LIMIT_MAX_S:
        raise SettingError(
            f"{place}: at most {config_settings.format_value(key, LIMIT_MAX_S)}: the job's end waits no longer"
        )


def _known(name: str, signatures: Callable[[], Collection[str]] | None) -> None:
    classes = [fault.value for fault in FaultClass if fault is not FaultClass.HEALTHY]
    if name in classes or signatures is None or name.startswith(OWN_SIGNATURES):
        return
    known = signatures()
    if name in known:
        return
    near = nearest_word(name, classes) or nearest_word(name, known)
    hint = f"; did you mean {near!r}?" if near else " (ftrun catalog list names them)"
    raise SettingError(f"policy: {name!r} is neither a fault class nor a known signature{hint}")
