"""One round of recheck: check the nodes that ftrun drained, and act on the result. (I/O)

A round may be killed at any moment. Its whole state is folded from its own journal, and every effect on
Slurm or on a node is announced there first; what was announced and not confirmed is compared with what
Slurm shows now. Returning and rewording compare the whole reason just before the act, so a person's edit in
the meantime wins. A command (a reset, a reboot) counts when it is announced: it never runs twice for one
announcement.

    $FTRUN_HOME/recheck/<year>-<month>.jsonl   what was seen, intended and done
    $FTRUN_HOME/recheck/reports/<node>.json    the last report of a node
    $FTRUN_HOME/recheck/evidence/<node>.json   what was collected when a node was left to a person
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

from ftrun.hooks.runtime.formats import duration_text
from ftrun.slurm.client.cluster import Cluster, NodeRow
from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.records import dataclass, replace
from ftrun.supervisor.config import home as config_home
from ftrun.supervisor.model.node_entry import NodeEntry
from ftrun.supervisor.nodes import ledger, recheck_rules
from ftrun.supervisor.nodes.drain_rules import control_nodes
from ftrun.supervisor.nodes.machines import MACHINE, known_after, parse_identity
from ftrun.supervisor.nodes.recheck_rules import CheckNodes, CheckReport, RecheckRules, RecheckState
from ftrun.supervisor.store.append_log import AppendLog

STEP_S = 600.0
STEP_OUTPUT_CHARS = 2000


@dataclass(frozen=True, slots=True)
class RecheckResult:
    """`state`: returned, passing, failing, unseen, waiting, left, edited, gone or refused."""

    node: str
    state: str
    why: str
    reason: str = ""
    passes: int = 0


def recheck_dir(home: str) -> str:
    """Where recheck keeps its journal."""
    return os.path.join(home, "recheck")


@dataclass
class RecheckRound:
    """One round. `look` checks nodes; `dry` writes and changes nothing; `only` limits it to some nodes."""

    home: str
    cluster: Cluster
    look: CheckNodes
    rules: RecheckRules
    now: Callable[[], float]
    steps: Sequence[str] = ()
    dry: bool = False
    only: frozenset[str] = frozenset()
    crash: Callable[[str], None] = lambda point: None
    lines: list[RecheckResult] = field(default_factory=list)
    _classes: dict[tuple[str, ...], str] | None = None  # (node, signature) -> class, by the ledger

    def run(self) -> list[RecheckResult]:
        """Do the round: a line for each node that is or was ftrun's. Raises SlurmError, OSError."""
        self._daybook = AppendLog(recheck_dir(self.home), self.now)
        self._known = recheck_rules.fold(self._daybook.read())
        rows = self.cluster.nodes()
        mine = [row for name, row in sorted(rows.items()) if self._concerns(name, row)]
        waiting = [row for row in mine if self._safely(row, self._ready)]
        reports = self._compared({row.name: row for row in waiting}, rows) if waiting else {}
        for row in waiting:
            report = reports.get(row.name, CheckReport("unseen", why="it was not asked"))
            self._safely(row, partial(self._looked, report=report))
        for name in sorted(set(self._known) - set(rows)):
            if self._known[name].ours and (not self.only or name in self.only):
                self._note("gone", name, why="Slurm knows no such node")
        return self.lines

    def _compared(
        self, waiting: Mapping[str, NodeRow], rows: Mapping[str, NodeRow]
    ) -> dict[str, CheckReport]:
        """The reports of these nodes, in which a check that fails on their peers in service as well is no fault."""
        reports = dict(self.look(sorted(waiting)))
        failing = [node for node in waiting if node in reports and _has_bad(reports[node])]
        if not failing:
            return reports
        partitions = self.cluster.partitions()
        peers = {node: control_nodes(node, rows, partitions.values(), waiting) for node in failing}
        beside = self.look(sorted({peer for some in peers.values() for peer in some}))
        for node in failing:
            told = {peer: beside[peer] for peer in peers[node] if peer in beside}
            reports[node] = recheck_rules.without_common(reports[node], told)
        return reports

    def _safely(self, row: NodeRow, deed: Callable[[NodeRow], bool]) -> bool:
        """A refusal by Slurm concerns this node's line only."""
        try:
            return deed(row)
        except SlurmError as error:
            self._note("refused", row.name, message=error.message)
            return self._say(row, "refused", error.message)

    # ------------------------------------------------------------------ before a look

    def _concerns(self, name: str, row: NodeRow) -> bool:
        if self.only and name not in self.only:
            return False
        return row.reason.startswith(recheck_rules.PREFIX) or self._memory(name).ours

    def _ready(self, row: NodeRow) -> bool:
        """Whether to check the node now; what needs no check is done and reported here."""
        memory, whose = self._memory(row.name), recheck_rules.reason_owner(row.reason, self._memory(row.name))
        if whose == "nobody":
            return self._gone(row, memory)
        if whose == "edited":
            if memory.ours and not memory.left:
                self._note("left", row.name, why="a person changed the reason", reason=row.reason)
            return self._say(row, "edited", "the reason is not as ftrun set it: left to whoever changed it")
        if whose == "new":
            memory = self._adopt(row, memory)
        elif memory.pending and recheck_rules.without_reboot_note(row.reason) == memory.pending:
            memory = self._note("reworded", row.name, reason=memory.pending)
        if memory.lies >= self.rules.lies and not memory.left:
            memory = self._leave(row, f"given back {memory.lies} times, and blamed again each time")
        if memory.left:
            return self._say(row, "left", memory.left)
        return self._due(row, memory)

    def _due(self, row: NodeRow, memory: RecheckState) -> bool:
        state, why = recheck_rules.check_eligibility(row)
        if state == "gone":
            return self._gone(row, memory)
        if state == "wait":
            return self._say(row, "waiting", why)
        left_s = recheck_rules.due_s(memory, self.rules) - self.now()
        if left_s > 0:
            return self._say(row, "waiting", f"looked at again in {duration_text(left_s)}")
        return self._looked(row, CheckReport("silent", why=why)) if state == "silent" else True

    def _gone(self, row: NodeRow, memory: RecheckState) -> bool:
        if memory.returning:  # announced and done, but not confirmed
            return self._given_back(row, memory)
        if not memory.ours:
            return False
        why = f"it bears another reason: {row.reason}" if row.reason else "somebody gave it back"
        self._note("gone", row.name, why=why)
        return self._say(row, "gone", why)

    def _adopt(self, row: NodeRow, memory: RecheckState) -> RecheckState:
        if memory.returning:
            memory = self._note("returned", row.name, reason=memory.reason)
        lies = recheck_rules.relapses_after(memory, self.rules, self.now())
        return self._note(
            "adopted", row.name, reason=recheck_rules.without_reboot_note(row.reason), lies=lies
        )

    # ------------------------------------------------------------------ after a look

    def _looked(self, row: NodeRow, report: CheckReport) -> bool:
        memory = self._memory(row.name)
        steps = self._steps(row)
        verdict = recheck_rules.assess_check(memory, report, replace(self.rules, steps=len(steps)))
        self._tell_machine(row.name, report)
        self._keep_report(row.name, report)
        facts = {"result": verdict.result, "why": verdict.why, "wrong": list(verdict.wrong)}
        self._note("looked", row.name, reason=memory.reason, **facts)
        if verdict.act == "return":
            return self._give_back(row)
        if verdict.result == "failed":
            self._set_reason(row, f"still: {', '.join(verdict.wrong)}")
        why = verdict.why
        if verdict.act == "step":
            why += f"; tried: {self._step(row, steps)}"
        return self._say(row, {"clean": "passing", "failed": "failing"}.get(verdict.result, "unseen"), why)

    def _give_back(self, row: NodeRow) -> bool:
        """Return the node. The check took minutes, so its state is read again first."""
        now = self.cluster.nodes([row.name]).get(row.name)
        state, why = (
            recheck_rules.check_eligibility(now) if now is not None else ("gone", "Slurm knows no such node")
        )
        if state != "look":
            return self._say(row, "waiting", f"it was clean, and by now {why}")
        memory = self._note("returning", row.name, reason=row.reason)
        if self.dry:
            return self._say(row, "returned", "would be given back")
        self.crash("resume:before")
        if not self.cluster.resume(row.name, row.reason):
            self._note("refused", row.name, message="the reason changed in the meantime")
            return self._say(row, "edited", "the reason changed in the meantime: left as it is")
        self.crash("resume:after")
        return self._given_back(row, memory)

    def _given_back(self, row: NodeRow, memory: RecheckState) -> bool:
        self._tell_ledger(row.name, "returned", memory)
        self._note("returned", row.name, reason=memory.reason)
        return self._say(row, "returned", "given back")

    def _set_reason(self, row: NodeRow, words: str) -> None:
        """Show people the result where they look first, in Slurm's reason; only when it changes."""
        before, after = row.reason, recheck_rules.with_note(row.reason, words)
        if recheck_rules.without_reboot_note(before) == after or self.dry:
            return
        self._note("rewording", row.name, before=before, after=after)
        self.crash("reword:before")
        if self.cluster.reword(row.name, before, after):
            self.crash("reword:after")
            self._note("reworded", row.name, reason=after)

    def _steps(self, row: NodeRow) -> list[str]:
        """The commands for this node, by the class of the fault that its reason names."""
        signature = (self._memory(row.name).reason.split() or row.reason.split())[2:3]
        if self.steps and self._classes is None:
            entries = sorted(ledger.read_entries(self.home), key=lambda one: one.at_s)
            self._classes = {
                (node, one.signature): one.fault for one in entries if one.fault for node in one.nodes
            }
        fault = (self._classes or {}).get((row.name, *signature), "") if signature else ""
        return [command for step in self.steps if (command := recheck_rules.step_command(step, fault))]

    def _step(self, row: NodeRow, steps: Sequence[str]) -> str:
        number = self._memory(row.name).steps
        command = [word.replace("{node}", row.name) for word in shlex.split(steps[number])]
        self._note("step.intended", row.name, number=number, command=command)
        if self.dry:
            return shlex.join(command)
        self.crash("step:before")
        exit_code, output = _run(command)
        self.crash("step:after")
        self._note(
            "step.done", row.name, number=number, exit_code=exit_code, told=output[-STEP_OUTPUT_CHARS:]
        )
        return f"{shlex.join(command)}, exit {exit_code}"

    def _leave(self, row: NodeRow, why: str) -> RecheckState:
        """Leave the node to a person, with everything that is known in one file."""
        memory = self._memory(row.name)
        if not self.dry:
            path = os.path.join(recheck_dir(self.home), "evidence", f"{row.name}.json")
            records = [record for record in self._daybook.read() if record.get("node") == row.name]
            facts = {"node": row.name, "why": why, "reason": row.reason, "records": records}
            _write(path, facts | {"report": self._report(row.name)})
            why += f"; evidence in {path}"
        self._set_reason(row, "left to a person: it lied")
        self._tell_ledger(row.name, "left", memory)
        return self._note("left", row.name, why=why)

    # ------------------------------------------------------------------ telling

    def _memory(self, node: str) -> RecheckState:
        return self._known.get(node, RecheckState())

    def _note(self, kind: str, node: str, /, **data: Any) -> RecheckState:
        """Append one record and fold it. A dry round only folds it."""
        if self.dry:
            record: dict[str, Any] = {"kind": kind, "at": self.now(), "node": node, **data}
        else:
            record = self._daybook.append(kind, node=node, **data)
            self.crash(f"record:{kind}")
        self._known[node] = recheck_rules.apply_record(self._memory(node), record)
        return self._memory(node)

    def _say(self, row: NodeRow, state: str, why: str) -> bool:
        """Add a line for people. Always False: the node is done for this round."""
        self.lines.append(RecheckResult(row.name, state, why, row.reason, self._memory(row.name).passes))
        return False

    def _tell_ledger(self, node: str, what: str, memory: RecheckState) -> None:
        if self.dry:
            return
        words = memory.reason.split()
        run, signature = (words[1], words[2]) if len(words) > 2 else ("", "")
        key = f"recheck:{node}:{what}:{memory.since_s:.3f}"
        detail = {"reason": memory.reason, "passes": memory.passes}
        entry = NodeEntry(self.now(), what, (node,), key, run, signature, detail=detail)
        ledger.append_entries(self.home, entry)

    def _tell_machine(self, node: str, report: CheckReport) -> None:
        """Tell the ledger which machine bears the name, where that is news."""
        before = self._report(node)
        told = parse_identity(before.get("machine")) if isinstance(before, dict) else {}
        if self.dry or not report.machine or known_after(told, report.machine) == told:
            return
        key = f"recheck:{node}:{MACHINE}:{self.now():.3f}"
        ledger.append_entries(
            self.home, NodeEntry(self.now(), MACHINE, (node,), key, detail=dict(report.machine))
        )

    def _keep_report(self, node: str, report: CheckReport) -> None:
        if not self.dry:
            facts = {"at_s": self.now(), "state": report.state, "why": report.why}
            facts |= {"machine": dict(report.machine)} if report.machine else {}
            _write(self._report_path(node), facts | {"findings": list(report.findings)})

    def _report_path(self, node: str) -> str:
        return os.path.join(recheck_dir(self.home), "reports", f"{node}.json")

    def _report(self, node: str) -> Any:
        try:
            with open(self._report_path(node), encoding="utf-8") as stream:
                return json.load(stream)
        except (OSError, ValueError):
            return None


def _has_bad(report: CheckReport) -> bool:
    return any(finding.get("severity") == "bad" for finding in report.findings)


def _write(path: str, facts: Mapping[str, Any]) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    config_home.write_atomically(path, (json.dumps(facts, indent=1) + "\n").encode())


def _run(command: Sequence[str]) -> tuple[int, str]:
    """(exit status, output); -1 where it could not be run or did not end in time."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=STEP_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, str(error)
    return done.returncode, (done.stdout + done.stderr).strip()
