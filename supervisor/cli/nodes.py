"""`ftrun nodes`: the history of nodes, lemons, and the user's exclusions and releases. (I/O)"""

from __future__ import annotations

import getpass
import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Annotated, Any

import typer

from ftrun.hooks.runtime.ownership import private_folders
from ftrun.slurm.client import nodeset
from ftrun.slurm.client.cluster import NodeRow
from ftrun.slurm.client.errors import SlurmError
from ftrun.slurm.records import dataclass
from ftrun.supervisor.cli import common
from ftrun.supervisor.cli.options import Json, argument, option
from ftrun.supervisor.config import node_counts, sources
from ftrun.supervisor.config.settings import parse
from ftrun.supervisor.config.sources import Config
from ftrun.supervisor.model.errors import SettingError, UserError
from ftrun.supervisor.model.node_entry import NodeEntry
from ftrun.supervisor.model.run import Run
from ftrun.supervisor.nodes import ledger, lemon_score, node_facts
from ftrun.supervisor.nodes.history import NodeHistory, NodeRecord, QuarantineRules, fold_entries
from ftrun.supervisor.nodes.machines import machine_text
from ftrun.supervisor.reports.view_run import zoned_clock_text
from ftrun.supervisor.store import site_nodes, user_exclusions
from ftrun.supervisor.submission import companion

SLURM_TIMEOUT_S = 10.0
HISTORY_SHOWN = 40

app = typer.Typer(help="The history of nodes: strikes, quarantine, lemons.")
Names = Annotated[list[str], argument("NODE...", "Nodes, or lists such as n[1-4].")]
Reason = Annotated[str, option("--reason", "The reason, for other readers.")]


@dataclass(frozen=True, slots=True)
class NodesView:
    """The ledger and, if Slurm answers, its nodes."""

    home: str
    now_s: float
    book: NodeHistory
    rows: Mapping[str, NodeRow] = field(default_factory=dict)
    unseen: str = ""  # why Slurm was not seen
    pool: str = ""  # where companions are borrowed from
    pooled: tuple[str, ...] = ()  # its nodes

    def record(self, node: str) -> NodeRecord:
        """The record of a node; an empty one if only Slurm knows the node."""
        return self.book.nodes.get(node, NodeRecord(node))


@app.callback(invoke_without_command=True)
def nodes(
    context: typer.Context,
    every: Annotated[bool, option("--all -a", "Also nodes without a history.")] = False,
    json: Json = False,
) -> None:
    """Show the nodes that have a history: state in Slurm, strikes, last fault, quarantine, score.

    The ledger in $FTRUN_HOME records the faults of all runs of its owner.  docs/nodes.md has the formulas.
    """
    if context.invoked_subcommand is not None:
        return
    scene = _load_view()
    names = node_facts.names_to_show(scene.book, scene.rows, every=every)
    rows = [node_facts.node_row(scene.record(name), scene.rows.get(name), scene.now_s) for name in names]
    together = node_facts.correlated_facts(scene.book, scene.now_s)
    pooled = _pooled(scene)
    spool = sources.load(os.getcwd(), dict(os.environ)).text("site-spool")
    placed_last = site_nodes.quarantined_nodes(spool, scene.now_s)
    if json:
        pool = {"pool": scene.pool, "nodes": pooled}
        seen = {"slurm_unseen": scene.unseen, "nodes": rows, "together": together, "pool": pool}
        common.print_json({**seen, "placed_last_by_the_site": placed_last})
        return
    if rows:
        columns = ["NODE", "SLURM", "STRIKES", "LAST FAULT", "WHEN", "QUARANTINED UNTIL", "WHY", "SCORE"]
        common.print_table(columns, [_cells(row) for row in rows])
    else:
        print("no node has a history yet")
    for cause in together:
        print(f"{_clock(cause['at'])}  {cause['sentence']}")
    for found in (row["association"] for row in rows):
        if found and found["suspect"]:
            print(f"{'avoided' if found['excluded'] else 'suspected'}: {found['sentence']}")
    for row in rows:
        if row["reason_of_others"]:
            print(f"{row['node']}: {row['reason']}: {row['reason_of_others']}; ftrun leaves it alone")
    for name, why in placed_last.items():
        print(f"placed last by the site: {name}: {why or 'runs of several users blame it'}")
    if scene.pool:
        lent = {one["node"]: f"lent to {run}" for one in pooled if (run := one["borrowed_by"])}
        told = [f"{n['node']} {lent.get(n['node'], n['slurm'] or 'not seen')}" for n in pooled]
        print(f"pool {scene.pool}: {', '.join(told) or 'no nodes'}")


class LedgerView:
    """The rows of `ftrun nodes` for those who ask again and again, without asking Slurm: what is new is read."""

    def __init__(self, home: str, settings: Config) -> None:
        self._reader = ledger.Reader(home)
        self._rules, self._keep_s = QuarantineRules.of(settings.values), settings.number("ledger-keep")
        self._entries: list[NodeEntry] = []
        self._book = fold_entries([], self._rules, {})

    def rows(self, runs: Iterable[Run]) -> list[list[object]]:
        """A row for each node that has a history or that one of the runs uses now: its cells, the run instead of
        Slurm's state.
        """
        now_s, entries = time.time(), self._reader.entries()
        if entries is not self._entries:
            self._entries = entries
            kept = [entry for entry in entries if now_s - entry.at_s <= self._keep_s]
            self._book = fold_entries(kept, self._rules, {})
        used = {
            node: run.id
            for run in runs
            if not run.final and run.attempt is not None and not run.attempt.launch.end.state
            for node in run.attempt.reach
        }
        scene = NodesView("", now_s, self._book)
        names = sorted({*used, *node_facts.names_to_show(self._book, {}, every=False)})
        rows = [_cells(node_facts.node_row(scene.record(name), None, now_s)) for name in names]
        return [[row[0], used.get(str(row[0])), *row[2:]] for row in rows]


def _pooled(scene: NodesView) -> list[dict[str, str]]:
    """Each node of the pool: its state in Slurm, and the run of this home that has borrowed it."""
    if not scene.pooled:
        return []
    lent = {
        node: run.id
        for _, run in common.all_runs(scene.home)
        for attempt in run.attempts
        for one in attempt.companions
        if one.pool == scene.pool and not one.gone
        for node in one.nodes
    }
    return [
        {
            "node": node,
            "slurm": node_facts.slurm_state(scene.rows.get(node)),
            "borrowed_by": lent.get(node, ""),
        }
        for node in scene.pooled
    ]


@app.command("show")
def show(
    node: Annotated[str, argument("NODE", "A node.")],
    number: Annotated[int, option("-n", "How many entries, newest last.", min=1)] = HISTORY_SHOWN,
    json: Json = False,
) -> None:
    """Show one node: its strikes, its devices, and its history."""
    scene = _load_view()
    wanted = _named_nodes(scene, [node])
    if len(wanted) > 1:
        raise UserError(f"give one node: {node!r} names {len(wanted)}")
    (node,) = wanted
    facts = node_facts.node_facts(scene.record(node), scene.rows.get(node), scene.now_s)
    if json:
        common.print_json(facts | {"slurm_unseen": scene.unseen})
        return
    state = f"{facts['slurm'] or 'not seen'} in Slurm" + (f" ({facts['reason']})" if facts["reason"] else "")
    until = f"quarantined until {_clock(facts['quarantined_until'])}: {facts['why']}"
    print(f"{node}: {state}; {until if facts['quarantined'] else 'not quarantined'}")
    print(
        f"{facts['strikes']} strikes open, {facts['strikes_taken_back']} taken back, {facts['lies']} after a passed recheck;"
        f" {facts['served_hours']:g} hours served; score {facts['score']:g}{', a lemon' if facts['lemon'] else ''}"
    )
    if facts["reason_of_others"]:
        print(f"{facts['reason_of_others']}; ftrun leaves it alone")
    if told := machine_text(facts["machine"]):
        times = facts["machine_replaced_at"]
        since = f"; another machine than before since {_clock(times[-1])}" if times else ""
        print(f"machine: {told}{since}")
    if facts["association"]:
        print(facts["association"]["sentence"])
    if facts["devices"]:
        print()
        rows = [
            [d["device"], d["serial"], d["incidents"], d["strikes"], d["replaced"]] for d in facts["devices"]
        ]
        common.print_table(["DEVICE", "SERIAL", "FAULTS", "STRIKES", "REPLACED"], rows)
    if facts["history"]:
        print()
        columns = ["WHEN", "WHAT", "RUN", "CLASS", "SIGNATURE", "DEVICE", "DETAIL"]
        common.print_table(columns, [_history_row(entry) for entry in facts["history"][-number:]])


@app.command("lemons")
def show_lemons(
    every: Annotated[bool, option("--all -a", "Every node with a score.")] = False, json: Json = False
) -> None:
    """Show the nodes that kept failing jobs in the last four weeks, the worst first, with the signals behind
    the score.
    """
    scene = _load_view()
    scores = [lemon_score.score(record, scene.now_s) for record in scene.book.nodes.values()]
    chosen = [s for s in scores if s.lemon or (every and s.score > 0)]
    chosen.sort(key=lambda s: (-s.score, s.node))
    rows = [
        node_facts.score_facts(s) | {"slurm": node_facts.slurm_state(scene.rows.get(s.node))} for s in chosen
    ]
    if json:
        common.print_json({"lemon_at": lemon_score.LEMON_AT, "slurm_unseen": scene.unseen, "nodes": rows})
        return
    if not rows:
        print("no lemons" + ("" if every else "; nodes with a lower score: ftrun nodes lemons --all"))
        return
    signals = list(rows[0]["signals"])
    columns = ["NODE", "SLURM", "SCORE", "LEMON", "RUNS", *(s.upper().replace("_", " ") for s in signals)]
    cells = [
        [r["node"], r["slurm"] or None, f"{r['score']:g}", "yes" if r["lemon"] else "no", r["runs"]]
        + [f"{r['signals'][s]:g}" for s in signals]
        for r in rows
    ]
    common.print_table(columns, cells)


@app.command("exclude")
def exclude(
    names: Names,
    lasting: Annotated[str, option("--for", "Duration: 12h, 2d.", "TIME")] = "1d",
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Make all runs of this home, new ones too, avoid nodes for a while, as far as `exclude-cap` and the size
    of the job permit.
    """
    scene = _load_view()
    wanted = _named_nodes(scene, names)
    try:
        for_s = float(str(parse("exclude-for", lasting)))
    except SettingError as error:
        raise UserError(f"--for: {str(error).partition(': ')[2]}") from None
    if for_s <= 0:
        raise UserError("--for: a time above zero is wanted; to end an exclusion: ftrun nodes release")
    until_s = scene.now_s + for_s
    _note(scene, "excluded", wanted, {"until_s": until_s, "reason": reason})
    _tell_submissions(scene.home, wanted, until_s)
    if json:
        common.print_json({"excluded": wanted, "until": until_s, "reason": reason})
        return
    print(f"{nodeset.fold(wanted)}: avoided by new runs and later attempts until {_clock(until_s)}")


@app.command("release")
def release(names: Names, reason: Reason = "", json: Json = False) -> None:
    """Clear what counts against nodes: strikes, quarantine, exclusions by users. Their history stays."""
    scene = _load_view()
    wanted = _named_nodes(scene, names)
    _note(scene, "released", wanted, {"reason": reason})
    _tell_submissions(scene.home, wanted, 0.0)
    drained = [name for name in wanted if name in scene.rows and scene.rows[name].drained]
    if json:
        common.print_json({"released": wanted, "drained_in_slurm": drained})
        return
    print(f"{nodeset.fold(wanted)}: nothing counts against {'it' if len(wanted) == 1 else 'them'} any more")
    if drained:
        print(f"{nodeset.fold(drained)}: still drained in Slurm; see: ftrun recheck", file=sys.stderr)


# ---------------------------------------------------------------------- ledger and Slurm


def _load_view() -> NodesView:
    from ftrun.slurm.commands.cluster import CommandCluster

    env = dict(os.environ)
    settings = sources.load(os.getcwd(), env)
    home, now_s = common.checked_home(settings.home(env)), time.time()
    rows: Mapping[str, NodeRow] = {}
    domains: Mapping[str, tuple[str, ...]] = {}
    unseen = ""
    pooled: tuple[str, ...] = ()
    pool = node_counts.parse_pool(settings.text("pool"))
    cluster = CommandCluster(env, timeout_s=SLURM_TIMEOUT_S)
    try:
        rows = cluster.nodes()
        domains = cluster.topology().leaves
        if pool is not None:
            pooled = tuple(sorted(companion.pool_nodes(cluster, pool)))
    except SlurmError as error:
        unseen = error.message
        print(f"ftrun: Slurm does not answer, so only the ledger is shown: {unseen}", file=sys.stderr)
    keep_s = settings.number("ledger-keep")
    entries = [entry for entry in ledger.read_entries(home) if now_s - entry.at_s <= keep_s]
    book = fold_entries(entries, QuarantineRules.of(settings.values), domains)
    return NodesView(home, now_s, book, rows, unseen, str(pool or ""), pooled)


def _named_nodes(scene: NodesView, names: list[str]) -> list[str]:
    """The named nodes, each once. Raises UserError for one that neither the ledger nor Slurm knows."""
    wanted = list(common.nodes_named(names))
    if not wanted:
        raise UserError("no node is named")
    strange = [name for name in wanted if name not in scene.rows and name not in scene.book.nodes]
    if strange and not scene.unseen:
        raise UserError(f"neither Slurm nor the ledger knows {', '.join(strange)}; see: ftrun nodes --all")
    return wanted


def _note(scene: NodesView, what: str, names: list[str], detail: dict[str, Any]) -> None:
    told = {key: value for key, value in detail.items() if value != ""}
    entry = NodeEntry(scene.now_s, what, tuple(names), detail=told | {"by": getpass.getuser()})
    if not os.path.isdir(scene.home):
        private_folders(scene.home)
    if not ledger.append_entries(scene.home, entry):
        raise UserError(f"the ledger cannot be written: {ledger.ledger_dir(scene.home)}", 1)


def _tell_submissions(home: str, nodes: list[str], until_s: float) -> None:
    """Let the first job of a new run know, too: it does not wait for the ledger."""
    try:
        user_exclusions.write_exclusions(home, nodes, until_s)
    except OSError as error:
        raise UserError(
            f"{error.filename}: {error.strerror}; later attempts go by the ledger, new runs do not", 1
        ) from None


# ---------------------------------------------------------------------- printing


def _cells(row: dict[str, Any]) -> list[object]:
    return [
        row["node"],
        row["slurm"] or None,
        row["strikes"],
        row["last_fault"] or None,
        _clock(row["last_fault_at"]),
        _clock(row["quarantined_until"]),
        _why(row),
        f"{row['score']:g}" + (" lemon" if row["lemon"] else ""),
    ]


def _why(row: dict[str, Any]) -> str | None:
    """Why the node is avoided; the arithmetic of failures that follow it has a line of its own."""
    found = row["association"]
    return "failures follow it" if found and row["why"] == found["sentence"] else row["why"] or None


def _history_row(entry: dict[str, Any]) -> list[object]:
    detail = dict(entry["detail"])
    until_s = detail.pop("until_s", None)
    words = [str(detail[key]) for key in ("title", "reason", "text", "worst") if detail.get(key)]
    words += [f"until {_clock(until_s)}"] if isinstance(until_s, int | float) else []
    words += [f"by {detail['by']}"] if detail.get("by") else []
    words += ["not counted as a fault of this node"] if entry["common"] else []
    return [
        _clock(entry["at"]),
        entry["what"],
        entry["run"] or None,
        entry["class"] or None,
        entry["signature"] or None,
        entry["device"] or entry["serial"] or None,
        ", ".join(words) or None,
    ]


def _clock(at_s: float | None) -> str | None:
    return zoned_clock_text(at_s, end=-3)
