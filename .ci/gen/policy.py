"""Writes the table of classes into docs/policy.md from the class rules; `--check` compares. (I/O)"""

from __future__ import annotations

from marked import keep_current

from ftrun.supervisor.diagnosis.class_defaults import CLASS_DEFAULTS
from ftrun.supervisor.model.types import CLASS_RULES, UNLIMITED, Action, ClassRule, FaultClass

BEGIN = "<!-- classes: begin, written by `make docs` from supervisor/policy/policy_input.py -->"
END = "<!-- classes: end -->"
HEAD = "| class | another try | budget without progress | the culprit node is left out | drained | elsewhere first | waits first |\n|---|---|---|---|---|---|---|"
EXCLUDED = {
    "always": "at once",
    "proven": "when proven or repeated",
    "never": "never",
}


def table() -> str:
    """Return the classes as a table, in the order of the rules."""
    return "\n".join([HEAD, *(_row(fault, rule) for fault, rule in CLASS_RULES.items())])


def _row(fault: FaultClass, rule: ClassRule) -> str:
    default = CLASS_DEFAULTS[fault]
    again = "yes" if default.retry else "-" if default.action is Action.NONE else "no"
    budget = "no limit" if rule.budget >= UNLIMITED else str(rule.budget)
    cells = [
        f"`{fault.value}`",
        again,
        budget,
        EXCLUDED[rule.exclude],
        "when corroborated" if rule.drain else "never",
        "yes" if rule.elsewhere else "no",
        f"{rule.back_off:g} x `backoff`" if rule.back_off else "no",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    keep_current("policy.md", "the table", BEGIN, END, table())
