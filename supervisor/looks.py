"""Looking at nodes from outside: the checks over SSH, as recheck and operator take them. (I/O)"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftrun.supervisor.errors import UserError
from ftrun.supervisor.recheck import Report

__all__ = ["Look", "by_ssh", "thresholds"]

Look = Callable[[Sequence[str]], Mapping[str, Report]]
"""Names of nodes -> a report for each, in bounded time; a node that gave none has a report that says why."""


def thresholds(path: str) -> dict[str, dict[str, Any]]:
    """Thresholds by check from a JSON file; "" = the site's own on this host, where there is one. Raises UserError."""
    from ftrun.hooks.checks.thresholds import SITES_OWN, whole

    if not path and not os.path.exists(SITES_OWN):
        return {}
    path = path or SITES_OWN
    if "{node}" in path:
        raise UserError(f"checks: {path}: a file for all nodes is wanted here, without {{node}}")
    try:
        return whole(path)
    except ValueError as error:
        raise UserError(f"checks: {error}") from None


def by_ssh(
    tier: str, kind: str, *, ssh_config: str = "", checks: Mapping[str, Mapping[str, Any]] | None = None
) -> Look:
    """A look by the checks of a tier, sent over SSH; `kind` is the occasion that the reports name, `checks` are thresholds.

    The look raises UserError where `ssh_config` cannot be read.
    """

    def look(nodes: Sequence[str]) -> Mapping[str, Report]:
        from ftrun.hooks import probe

        try:
            answers = probe.checked(nodes, tier, checks or {}, probe.Probes(ssh_config), kind=kind)
        except OSError as error:
            raise UserError(f"ssh-config: {error.filename}: {error.strerror}") from None
        return {node: _report(answer.state, answer.report, answer.why) for node, answer in answers.items()}

    return look


def _report(state: str, told: Mapping[str, Any] | None, why: str) -> Report:
    if told is None:
        return Report("speechless" if state == "answered" else state, why=why)
    findings = [finding for finding in told["findings"] if isinstance(finding, dict)]
    return Report(state, findings, why)
