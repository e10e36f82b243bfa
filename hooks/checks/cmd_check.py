"""`ftrun-hook check`: looks at this node and says what is wrong with it. (I/O)"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from ftrun.hooks.checks import catalogue, runner, thresholds
from ftrun.hooks.checks.catalogue import entry
from ftrun.hooks.runtime import UsageError
from ftrun.hooks.runtime.command_line import parser_of
from ftrun.hooks.runtime.finding import BAD, SKIPPED, TIERS, worst
from ftrun.hooks.runtime.slurm_env import node_name

EXIT_BAD = 1
"""Something on this node is bad: no job should run here."""


def main(arguments: list[str]) -> int:
    """Run the checks of a tier, or those named; print a line each, or one JSON object. 0 nothing bad, 1 something bad."""
    words = _parser().parse_args(arguments)
    chosen = catalogue.checks(words.tier, words.names)
    if words.list:
        _list([entry(check) for check in chosen], as_json=words.json)
        return 0
    budget_s = words.within or max((runner.BUDGETS_S[check.tier] for check in chosen), default=0.0)
    reports = runner.run(chosen, settings=_settings(words.settings), budget_s=budget_s)
    found = [one for report in reports for one in report.findings]
    if words.json:
        report = runner.report_of(
            reports, kind=words.kind, node=node_name(words.node), at_s=time.time(), tier=words.tier
        )
        print(json.dumps(report))
    else:
        for one in found:
            if one.severity != SKIPPED or words.all:
                device = f" {one.device}" if one.device else ""
                print(f"{one.severity:<9} {one.check}{device}: {one.message}")
        if not words.all and worst(found) == SKIPPED:
            print("nothing was looked at, --all tells why", file=sys.stderr)
    return EXIT_BAD if worst(found) == BAD else 0


def _list(entries: list[dict[str, Any]], *, as_json: bool) -> None:
    """The checks in words: a line and their thresholds each, or all that is known as one array."""
    if as_json:
        print(json.dumps(entries))
        return
    for one in entries:
        needs = f"; needs {', '.join(one['needs'])}" if one["needs"] else ""
        print(f"{one['name']:<16} {one['tier']:<8} {one['fault']:<14} {one['title']}{needs}")
        print(f"{'':<16} {' '.join(f'{name}={value!r}' for name, value in one['thresholds'].items())}")


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("check", "Look at this node.", "--json", "--node")
    add = parser.add_argument
    add("names", nargs="*", metavar="CHECK", help="only these checks")
    add("--tier", choices=TIERS, default="fast", help="how thorough (default: fast)")
    add("--kind", default="check", help="the occasion that the JSON object names (default: check)")
    add("--all", action="store_true", help="print what was skipped, too")
    add("--list", action="store_true", help="print the checks and run none")
    add("--within", type=float, default=0.0, metavar="SECONDS", help="end within this time")
    add("--settings", metavar="FILE", default="", help="thresholds by check, as JSON")
    return parser


def _settings(path: str) -> dict[str, dict[str, Any]]:
    if not path:
        return {}
    try:
        table = thresholds.whole(path)
    except ValueError as error:
        raise UsageError(f"--settings {error}") from None
    for told in catalogue.strange(table):
        print(f"ftrun-hook: --settings {path}: {told}", file=sys.stderr)
    return table
