"""Every drill there is: those of `ftrun drill`, then those that only these tests hold. (I/O)"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ftrun.supervisor.drill.runner import load, user_scenarios
from ftrun.supervisor.drill.scenario import Scenario

__all__ = ["all_scenarios", "by_name"]


@cache
def all_scenarios() -> tuple[Scenario, ...]:
    """The users' table, then the tables beside this file."""
    tables = sorted(Path(__file__).parent.glob("*.toml"))
    return (*user_scenarios(), *(one for table in tables for one in load(table)))


def by_name(name: str) -> Scenario:
    """The drill of that name."""
    return next(one for one in all_scenarios() if one.name == name)
