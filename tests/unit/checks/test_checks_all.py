"""Laws of all checks: each is a row of the catalogue and a pair of functions, documented, bounded, and harmless on a machine that has nothing of it. (I/O)"""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import pytest

from ftrun.hooks import checks
from ftrun.hooks.checks import catalogue, runner
from ftrun.hooks.checks.catalogue import CHECKS, entry
from ftrun.hooks.runtime.finding import BAD, DEGRADED, SEVERITIES, TIERS, Check, Finding
from ftrun.hooks.runtime.host import Machine, NoAnswer
from ftrun.supervisor.model.types import FaultClass

FILES = {
    path.stem
    for folder in checks.__path__
    for path in Path(folder).glob("*.py")
    if "\nFUNCTIONS" in path.read_text(encoding="utf-8")
}
BROKEN = "the check itself failed"


@pytest.fixture(params=CHECKS.values(), ids=lambda check: check.name)
def check(request: pytest.FixtureRequest) -> Check:
    found: Check = request.param
    return found


def test_the_catalogue_and_the_files_know_the_same_checks() -> None:
    """Every row leads to a pair of functions, and no file holds a pair that no row leads to."""
    held = {
        name: stem
        for stem in FILES
        for name in importlib.import_module(f"ftrun.hooks.checks.{stem}").FUNCTIONS
    }

    assert {name: check.file for name, check in CHECKS.items()} == held
    assert sorted(CHECKS) == sorted(catalogue._texts())
    assert sorted(CHECKS) == list(CHECKS)


def test_names_are_unique_and_are_those_that_people_type() -> None:
    """Small letters and hyphens; a size of a disk bears its disk."""
    names = list(CHECKS)

    assert [] == [name for name in names if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*( [a-z]+)?", name)]


def test_a_check_is_of_a_known_class_with_a_limit_of_its_tier(check: Check) -> None:
    """What the runner and the reports rely on."""
    assert check.title
    assert check.tier in TIERS
    assert check.fault in set(FaultClass)
    assert 0 < check.limit_s <= runner.BUDGETS_S[check.tier]
    assert all(isinstance(need, str) and need for need in check.needs)


def test_every_threshold_is_documented(check: Check) -> None:
    """A site that wants another value finds its name and its reason in its paragraph."""
    told = entry(check)["thresholds_told"]

    assert [] == [name for name in check.thresholds if f"`{name}`" not in told]


def test_every_check_says_how_it_thinks_and_what_it_was_tried_on(check: Check) -> None:
    """The list of checks and the documents are read from one page beside the checks."""
    told = entry(check)

    assert told["thinking"]
    assert told["thresholds_told"]
    assert told["checked_against"]
    json.dumps(told)


def test_a_machine_that_has_nothing_of_it_breaks_no_check(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty machine, without tools and files: findings or no answer, never a traceback, and nothing is bad for it."""
    monkeypatch.setattr(Machine, "tool", lambda _self, _name: None)
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    thresholds = {**check.thresholds, **({"window_s": 0.01} if "window_s" in check.thresholds else {})}
    try:
        found = check.judge(check.probe(Machine(str(tmp_path)), thresholds), thresholds)
    except NoAnswer:
        return

    assert found
    assert all(_is_sound(one, check) for one in found)


def test_this_machine_is_looked_at_without_a_traceback() -> None:
    """All checks on the real machine, side by side: each says something of itself within its time."""
    chosen = list(CHECKS.values())
    reports = runner.run(chosen, budget_s=60.0)

    assert [check.name for check in chosen] == [report.check for report in reports]
    for report, check in zip(reports, chosen, strict=True):
        assert report.findings
        assert all(_is_sound(one, check) for one in report.findings), report


def _is_sound(one: Finding, check: Check) -> bool:
    blamed = one.severity not in (BAD, DEGRADED) or one.fault in set(FaultClass)
    return one.check == check.name and one.severity in SEVERITIES and blamed and BROKEN not in one.message
