"""Laws of all checks: each is one file with one check, documented, bounded, and harmless on a machine that has nothing of it. (I/O)"""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from ftrun.hooks import checks, runner
from ftrun.hooks.catalogue import entry
from ftrun.hooks.findings import BAD, DEGRADED, SEVERITIES, TIERS, Check, Finding
from ftrun.hooks.machine import Machine, NoAnswer
from ftrun.supervisor.model import FaultClass

MODULES = [
    importlib.import_module(f"ftrun.hooks.checks.{path.stem}")
    for folder in checks.__path__
    for path in sorted(Path(folder).glob("*.py"))
    if not path.stem.startswith("_")
]
BROKEN = "the check itself failed"


@pytest.fixture(params=MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def module(request: pytest.FixtureRequest) -> ModuleType:
    found: ModuleType = request.param
    return found


def test_names_are_unique_and_are_those_that_people_type() -> None:
    """Small letters and hyphens; a size of a disk bears its disk."""
    names = [module.CHECK.name for module in MODULES]

    assert len(set(names)) == len(names)
    assert [] == [name for name in names if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*( [a-z]+)?", name)]


def test_a_file_is_a_check_of_a_known_class_with_a_limit_of_its_tier(module: ModuleType) -> None:
    """What the runner and the reports rely on."""
    check: Check = module.CHECK

    assert check.title
    assert check.tier in TIERS
    assert check.fault in set(FaultClass)
    assert 0 < check.limit_s <= runner.BUDGETS_S[check.tier]
    assert all(isinstance(need, str) and need for need in check.needs)


def test_every_threshold_is_documented(module: ModuleType) -> None:
    """A site that wants another value finds its name and its reason at the top of the file."""
    check: Check = module.CHECK
    told = module.__doc__ or ""

    assert [] == [name for name in check.thresholds if f"`{name}`" not in told]


def test_every_check_says_how_it_thinks_and_what_it_was_tried_on(module: ModuleType) -> None:
    """The list of checks and the documents are read from the heads of the files."""
    told = entry(module.CHECK)

    assert told.thinking
    assert told.thresholds_told
    assert told.checked_against
    json.dumps(told._asdict())


def test_a_machine_that_has_nothing_of_it_breaks_no_check(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty machine, without tools and files: findings or no answer, never a traceback, and nothing is bad for it."""
    monkeypatch.setattr(Machine, "tool", lambda _self, _name: None)
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    check: Check = module.CHECK
    thresholds = {**check.thresholds, **({"window_s": 0.01} if "window_s" in check.thresholds else {})}
    try:
        found = check.judge(check.probe(Machine(str(tmp_path)), thresholds), thresholds)
    except NoAnswer:
        return

    assert found
    assert all(_is_sound(one, check) for one in found)


def test_this_machine_is_looked_at_without_a_traceback() -> None:
    """All checks on the real machine, side by side: each says something of itself within its time."""
    chosen = [module.CHECK for module in MODULES]
    reports = runner.run(chosen, budget_s=60.0)

    assert [check.name for check in chosen] == [report.check for report in reports]
    for report, check in zip(reports, chosen, strict=True):
        assert report.findings
        assert all(_is_sound(one, check) for one in report.findings), report


def _is_sound(one: Finding, check: Check) -> bool:
    blamed = one.severity not in (BAD, DEGRADED) or one.fault in set(FaultClass)
    return one.check == check.name and one.severity in SEVERITIES and blamed and BROKEN not in one.message
