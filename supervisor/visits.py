"""The fast checks on nodes whose job is gone already: over SSH, beside the supervisor's loop. (I/O)

A visit is a thread that may take its time; the loop looks now and then whether it is over, and goes on without it when its time is up. What cannot be
reached says nothing about a node.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from ftrun.hooks.after import NOT_AFTERWARDS

__all__ = ["GIVEN_UP_AFTER_S", "Visit"]

GIVEN_UP_AFTER_S = 40.0
CONNECT_S = 5.0


class Visit:
    """One round over these nodes; begins at once. `reports` is all that came back so far, by node; `why` what kept it from beginning."""

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
            from ftrun.hooks.probe import NodeReport, Probes, checked

            def told(report: NodeReport) -> None:
                if report.report is not None:
                    self.reports[report.node] = report.report

            names = [check.name for check in catalogue.checks("fast") if check.name not in NOT_AFTERWARDS]
            checked(
                nodes,
                "fast",
                None,
                Probes(ssh_config, connect_s=CONNECT_S),
                kind="after",
                names=names,
                told=told,
            )
        except Exception as error:  # noqa: BLE001 - whatever keeps us from looking is no fault of a node, nor of the run
            self.why = f"{type(error).__name__}: {error}"
