"""Checks on nodes from outside the job, over SSH: for recheck, drain service and supervisor. (I/O)

`by_ssh` returns a function that checks nodes and waits for the result. `Visit` runs the fast checks on
nodes whose job is over, in a thread beside the supervisor's loop; the loop polls it, and goes on without it
when its time is up. A node that cannot be reached proves nothing.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ftrun.hooks.health.post_failure import NOT_AFTERWARDS
from ftrun.supervisor.model.errors import UserError
from ftrun.supervisor.nodes.machines import parse_identity
from ftrun.supervisor.nodes.recheck_rules import CheckNodes, CheckReport


def thresholds(path: str) -> dict[str, dict[str, Any]]:
    """Thresholds by check from a JSON file; "" = the site's own on this host, if any. Raises UserError."""
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


def ssh_checks(
    tier: str, kind: str, *, ssh_config: str = "", checks: Mapping[str, Mapping[str, Any]] | None = None
) -> CheckNodes:
    """A function that runs the checks of a tier over SSH.

    `kind` is the occasion in the reports, `checks` are thresholds.

    It raises UserError where `ssh_config` cannot be read.
    """

    def look(nodes: Sequence[str]) -> Mapping[str, CheckReport]:
        from ftrun.hooks.ssh import pool

        try:
            answers = pool.check_nodes(nodes, tier, checks or {}, pool.NodePool(ssh_config), kind=kind)
        except OSError as error:
            raise UserError(f"ssh-config: {error.filename}: {error.strerror}") from None
        return {node: _report(answer.state, answer.report, answer.why) for node, answer in answers.items()}

    return look


PAIRS_S = 120.0
PAIR_PORTS = (20_000, 32_000)  # below those that the kernel gives out


def test_pairs(nodes: Sequence[str], ssh_config: str) -> dict[str, dict[str, Any]]:
    """The finding for each node of a test of the network between them, in pairs, over SSH; {} without a verdict. Its
    notes are served by the first node, on a port by chance. Raises UserError.
    """
    from ftrun.hooks.bundle import zipapp
    from ftrun.hooks.health import pair_test
    from ftrun.hooks.ssh import pool

    if len(nodes) < 2:
        return {}
    try:
        ways = pool.NodePool(ssh_config, len(nodes), run_s=PAIRS_S)
        board = f"{ways.address(nodes[0])}:{secrets.choice(range(*PAIR_PORTS))}"
        env = {"FTRUN_PAIRS_TOKEN": secrets.token_hex(16)}
        words = ["pair-test", "--json", "--nodes", ",".join(nodes), "--board", board]
        told = {node: zipapp.secret_input([*words, "--node", node], env) for node in nodes}
        answer = ways.run(nodes, zipapp.REMOTE_COMMAND, told)[nodes[0]]
    except OSError as error:
        raise UserError(f"ssh-config: {error.filename}: {error.strerror}") from None
    except ValueError:
        return {}
    try:
        return {node: one._asdict() for node, one in pair_test.findings(json.loads(answer.stdout)).items()}
    except (ValueError, LookupError, TypeError):
        return {}


def _report(state: str, report: Mapping[str, Any] | None, why: str) -> CheckReport:
    if report is None:
        return CheckReport("speechless" if state == "answered" else state, why=why)
    findings = [finding for finding in report["findings"] if isinstance(finding, dict)]
    return CheckReport(state, findings, why, parse_identity(report.get("machine")))


GIVEN_UP_AFTER_S = 40.0
CONNECT_S = 5.0


class SshVisit:
    """One round over these nodes, begun at once. `why`: what kept it from starting."""

    def __init__(self, nodes: Sequence[str], ssh_config: str) -> None:
        self.reports: dict[str, Mapping[str, object]] = {}
        self.why = ""
        self._thread = threading.Thread(target=self._work, args=(tuple(nodes), ssh_config), daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Every node has answered, or will not."""
        return not self._thread.is_alive()

    def _work(self, nodes: tuple[str, ...], ssh_config: str) -> None:
        try:
            from ftrun.hooks.checks import catalogue
            from ftrun.hooks.ssh.pool import NodePool, NodeReport, check_nodes

            def told(report: NodeReport) -> None:
                if report.report is not None:
                    self.reports[report.node] = report.report

            names = [check.name for check in catalogue.checks("fast") if check.name not in NOT_AFTERWARDS]
            check_nodes(
                nodes,
                "fast",
                None,
                NodePool(ssh_config, connect_s=CONNECT_S),
                kind="after",
                names=names,
                told=told,
            )
        except Exception as error:  # noqa: BLE001 - a failed visit is no fault of a node or run
            self.why = f"{type(error).__name__}: {error}"
