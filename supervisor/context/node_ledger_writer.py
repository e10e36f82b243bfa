"""The node ledger, as the supervisor writes and reads it. (I/O)

The journals are the truth and the ledger is derived from them: after each step of a run the supervisor adds
the entries of its journal that the ledger lacks. If a supervisor dies in between, the next one adds them, and
no entry counts twice (`nodes.from_runs`). A ledger that cannot be read or written is logged, and the runs go
on as if there were no ledger.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ftrun.supervisor.model.node_entry import NodeEntry, canonical_device
from ftrun.supervisor.nodes import from_runs, ledger
from ftrun.supervisor.nodes.history import NodeHistory, QuarantineRules, failures, fold_entries
from ftrun.supervisor.store import node_reports

if TYPE_CHECKING:
    from ftrun.supervisor.model.run import Run

__all__ = ["KEEP_S", "Domains", "NodeLedgerWriter", "rules_from", "several_nodes_failed"]

A_DAY_S = 86_400.0
KEEP_S = 180 * A_DAY_S
Domains = Mapping[str, tuple[str, ...]]


def rules_from(settings: Mapping[str, Any]) -> QuarantineRules:
    """The rules of the fold, from the settings of a run or of a home."""
    default = QuarantineRules()
    return QuarantineRules(
        base_s=float(settings.get("exclude-for", default.base_s)),
        ceiling_s=float(settings.get("quarantine-max", default.ceiling_s)),
    )


class NodeLedgerWriter:
    """The ledger of one home. `tell` logs an event, `now_s` returns Unix seconds."""

    def __init__(self, home: str, now_s: Callable[[], float], tell: Callable[..., None]) -> None:
        self._home = home
        self._now_s = now_s
        self._tell = tell
        self._reader = ledger.Reader(home)
        self._followed: dict[str, tuple[Any, ...]] = {}
        self._folded: tuple[list[NodeEntry], QuarantineRules, Domains, NodeHistory] | None = None
        self._tidied_s = float("-inf")
        self._failing = False

    def follow(self, run: Run) -> None:
        """Add what the journal of this run has and the ledger lacks. Never raises."""
        mark = from_runs.entries_mark(run)
        if self._followed.get(run.id) == mark:
            return
        try:
            done = self._note(run)
        except (
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:  # written by another version of ftrun
            self._tell("ledger.not-understood", run=run.id, why=f"{type(error).__name__}: {error}")
            done = True
        if done:
            self._followed[run.id] = mark

    def _note(self, run: Run) -> bool:
        now_s, keep_s = self._now_s(), float(run.settings.get("ledger-keep", KEEP_S))
        told = [*from_runs.entries_of(run), *self._reported(run, now_s)]
        told = [entry for entry in told if now_s - entry.at_s <= keep_s]
        if not told:
            return True
        known = {entry.id for entry in self._reader.entries()}
        lacking = [entry for entry in told if entry.id not in known]
        noted = ledger.append_entries(self._home, *lacking)
        if noted is self._failing:
            self._tell("ledger.written-again" if noted else "ledger.not-written", run=run.id)
            self._failing = not noted
        if noted and now_s - self._tidied_s > A_DAY_S:
            self._tidied_s = now_s
            ledger.compact(self._home, now_s, keep_s)
        return noted

    def _reported(self, run: Run, now_s: float) -> list[NodeEntry]:
        """Entries from the node reports of the launch that is over.

        An inventory entry of a device is kept only if the ledger does not yet show that device in that place.
        """
        attempt = run.attempt
        if attempt is None or not attempt.launch.end.state or now_s - run.last_at_s > A_DAY_S:
            return []
        run_dir = os.path.join(self._home, "runs", run.id)
        left = node_reports.read_reports(run_dir, attempt.number, attempt.launch.number, attempt.reach)
        found = [
            entry
            for reports in left.values()
            for node, report in reports.items()
            for entry in from_runs.entries_of_report(
                run, attempt.number, attempt.launch.number, report, node=node, now_s=now_s
            )
        ]
        if not any(entry.what == "device" for entry in found):
            return found
        known = sorted(self._reader.entries(), key=lambda e: e.at_s)
        sits = {
            (node, canonical_device(e.device)): e.serial
            for e in known
            if e.device and e.serial
            for node in e.nodes
        }
        return [e for e in found if e.what != "device" or sits.get((e.nodes[0], e.device)) != e.serial]

    def entries(self) -> list[NodeEntry]:
        """The entries of the ledger now."""
        return self._reader.entries()

    def book(self, rules: QuarantineRules, domains: Callable[[], Domains]) -> NodeHistory:
        """The folded ledger. `domains` is called only if enough nodes failed for a switch to be blamed."""
        entries = self._reader.entries()
        below = domains() if several_nodes_failed(entries, rules) else {}
        done = self._folded
        if done is None or done[0] is not entries or done[1:3] != (rules, below):
            done = self._folded = (entries, rules, below, fold_entries(entries, rules, below))
        return done[3]


def several_nodes_failed(entries: Iterable[NodeEntry], rules: QuarantineRules) -> bool:
    """Whether enough nodes failed for something that they share to be blamed."""
    return len({failure.node for failure in failures(entries)}) >= rules.several
