"""What a supervisor does with the ledger of nodes: it writes down what its runs met, and asks whom to avoid. (I/O)

How it thinks. The journals are the truth, the ledger is made from them: after each look at a run the entries of its journal that
the ledger lacks are noted. A supervisor that died in between left them to the next one, and none counts twice (`nodestory`).
What the ledger says of other runs' nodes is asked for at the turning points only: a fault that is judged, an attempt that opens.
Nothing of this may cost a run anything: what cannot be read or written is told, and the run goes on as if there were no ledger.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ftrun.slurm.client.errors import SlurmError
from ftrun.supervisor import ledger, nodereports, nodestory
from ftrun.supervisor.nodes import Book, Entry, Rules, failures, fold, place
from ftrun.supervisor.together import common_causes

if TYPE_CHECKING:
    from ftrun.supervisor.keeper import Keeper
    from ftrun.supervisor.model import Diagnosis
    from ftrun.supervisor.run_types import Run
    from ftrun.supervisor.waiting import Spared

__all__ = ["KEEP_S", "NodeBook", "common", "excluded", "kept_away", "rules_from"]

A_DAY_S = 86_400.0
KEEP_S = 180 * A_DAY_S
Domains = Mapping[str, tuple[str, ...]]


def rules_from(settings: Mapping[str, Any]) -> Rules:
    """The numbers of the fold from the settings of a run or of a home."""
    default = Rules()
    return Rules(
        base_s=float(settings.get("exclude-for", default.base_s)),
        ceiling_s=float(settings.get("quarantine-max", default.ceiling_s)),
    )


class NodeBook:
    """The ledger of one home, as a supervisor sees it. `tell` is told what went wrong, `now_s` gives Unix seconds."""

    def __init__(self, home: str, now_s: Callable[[], float], tell: Callable[..., None]) -> None:
        self._home = home
        self._now_s = now_s
        self._tell = tell
        self._reader = ledger.Reader(home)
        self._followed: dict[str, tuple[Any, ...]] = {}
        self._folded: tuple[list[Entry], Rules, Domains, Book] | None = None
        self._tidied_s = float("-inf")
        self._failing = False
        self.waiting: dict[
            str, Spared
        ] = {}  # token of a run -> what was done about its first job in the queue

    def follow(self, run: Run) -> None:
        """Note what the journal of this run has and the ledger lacks. Never raises."""
        mark = nodestory.mark(run)
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
        ) as error:  # a journal of another ftrun
            self._tell("ledger.not-understood", run=run.id, why=f"{type(error).__name__}: {error}")
            done = True
        if done:
            self._followed[run.id] = mark

    def _note(self, run: Run) -> bool:
        now_s, keep_s = self._now_s(), float(run.settings.get("ledger-keep", KEEP_S))
        told = [*nodestory.entries_of(run), *self._reported(run, now_s)]
        told = [entry for entry in told if now_s - entry.at_s <= keep_s]
        if not told:
            return True
        known = {entry.id for entry in self._reader.entries()}
        lacking = [entry for entry in told if entry.id not in known]
        noted = ledger.note(self._home, *lacking)
        if noted is self._failing:
            self._tell("ledger.written-again" if noted else "ledger.not-written", run=run.id)
            self._failing = not noted
        if noted and now_s - self._tidied_s > A_DAY_S:
            self._tidied_s = now_s
            ledger.compact(self._home, now_s, keep_s)
        return noted

    def _reported(self, run: Run, now_s: float) -> list[Entry]:
        """What the nodes reported of themselves in the launch that is over; of cards only those that were not known to sit there."""
        attempt = run.attempt
        if attempt is None or not attempt.launch.end.state or now_s - run.last_at_s > A_DAY_S:
            return []
        run_dir = os.path.join(self._home, "runs", run.id)
        left = nodereports.left(run_dir, attempt.number, attempt.launch.number, attempt.reach)
        found = [
            entry
            for reports in left.values()
            for node, report in reports.items()
            for entry in nodestory.of_report(
                run, attempt.number, attempt.launch.number, report, node=node, now_s=now_s
            )
        ]
        if not any(entry.what == "device" for entry in found):
            return found
        known = sorted(self._reader.entries(), key=lambda e: e.at_s)
        sits = {(node, place(e.device)): e.serial for e in known if e.device and e.serial for node in e.nodes}
        return [e for e in found if e.what != "device" or sits.get((e.nodes[0], e.device)) != e.serial]

    def entries(self) -> list[Entry]:
        """What the ledger has now."""
        return self._reader.entries()

    def book(self, rules: Rules, domains: Callable[[], Domains]) -> Book:
        """The ledger, folded; `domains` is asked only where enough nodes failed for a switch to be blamed."""
        entries = self._reader.entries()
        below = domains() if _several(entries, rules) else {}
        done = self._folded
        if done is None or done[0] is not entries or done[1:3] != (rules, below):
            done = self._folded = (entries, rules, below, fold(entries, rules, below))
        return done[3]


def common(keeper: Keeper, diagnosis: Diagnosis, now_s: float) -> str:
    """Why the fault is held to be no node's own: what the ledger and this diagnosis tell together; "" where it may be one's."""
    attempt = keeper.attempt
    culprits = tuple(node for node in diagnosis.nodes if node in attempt.reach)
    if not culprits:
        return ""
    this = Entry(
        now_s,
        "incident",
        culprits,
        id="now",
        run=keeper.run.id,
        signature=diagnosis.signature,
        fault=diagnosis.fault.value,
    )
    rules = rules_from(keeper.settings)
    entries = [
        entry for entry in keeper.office.nodebook.entries() if abs(now_s - entry.at_s) <= rules.window_s
    ]
    told = [*entries, this]
    below = domains(keeper) if _several(told, rules) else {}
    causes = common_causes(failures(told), rules.window_s, rules.many, rules.several, below)
    ours = (cause for cause in causes if any(key == "now" for _, key in cause.failures))
    return next((cause.sentence for cause in ours), "")


def kept_away(keeper: Keeper, now_s: float) -> tuple[str, ...]:
    """The nodes that the next attempt avoids if it can, the worst first: what other runs, or people, hold against them.

    Nobody, where the setting says so, and where sbatch refused this run with nodes left out.
    """
    refused = any(a.launch.end.state == "REFUSED" and a.excluded for a in keeper.run.attempts)
    if refused or keeper.settings.get("quarantine", "auto") == "never":
        return ()
    return _book(keeper).quarantined(now_s)


def excluded(keeper: Keeper, now_s: float) -> tuple[str, ...]:
    """The run's own exclusions, less the nodes that a person has released since; the newest first."""
    own = sorted(
        (e for e in keeper.run.excluded if e.until_s > now_s), key=lambda e: (e.until_s, e.node), reverse=True
    )
    if not own:
        return ()
    known, for_s = _book(keeper).nodes, rules_from(keeper.settings).base_s
    released = {name: record.released_at_s for name, record in known.items()}
    return tuple(dict.fromkeys(e.node for e in own if released.get(e.node, 0.0) <= e.until_s - for_s))


def _book(keeper: Keeper) -> Book:
    return keeper.office.nodebook.book(rules_from(keeper.settings), lambda: domains(keeper))


def domains(keeper: Keeper) -> Domains:
    """What shares a switch; {} where Slurm does not say so now."""
    try:
        return keeper.office.domains()
    except SlurmError:
        return {}


def _several(entries: Iterable[Entry], rules: Rules) -> bool:
    return len({failure.node for failure in failures(entries)}) >= rules.several
