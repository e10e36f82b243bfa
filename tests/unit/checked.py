"""What the tests of checks share: a tree of files as a machine, and what a check finds there. (I/O)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ftrun.hooks.checks.catalogue import CHECKS
from ftrun.hooks.runtime.finding import BAD, DEGRADED, SEVERITIES, Finding, worst
from ftrun.hooks.runtime.host import Machine

__all__ = ["asked", "probed", "severities", "severity", "told", "tree"]


def tree(root: Path, files: dict[str, str]) -> Machine:
    """A machine with these files, by absolute path."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(str(root))


def told(name: str, facts: Any, **more: Any) -> list[Finding]:
    """What a check finds in facts; every finding bears its name, and what is wrong bears a class, and nothing else does."""
    check = CHECKS[name]
    found = list(check.judge(facts, {**check.thresholds, **more}))
    assert found
    assert all(one.message and name == one.check and one.severity in SEVERITIES for one in found)
    assert all((one.severity in (BAD, DEGRADED)) == bool(one.fault) for one in found)
    return found


def probed(name: str, machine: Machine, **more: Any) -> Any:
    """The facts that a check reads from a machine."""
    check = CHECKS[name]
    return check.probe(machine, {**check.thresholds, **more})


def asked(name: str, machine: Machine, **more: Any) -> list[Finding]:
    """What a check finds on a machine."""
    return told(name, probed(name, machine, **more), **more)


def severities(name: str, facts: Any, **more: Any) -> list[str]:
    """How bad each finding is."""
    return [one.severity for one in told(name, facts, **more)]


def severity(name: str, facts: Any, **more: Any) -> str:
    """How bad the worst finding is."""
    return worst(told(name, facts, **more))
